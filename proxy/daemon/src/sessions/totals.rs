//! What was counted of each service since the start, and what its local addresses met lately.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use meshport_core::wire::Answer;

use crate::sessions::client::ClientId;

/// So long after a client last had to wait, or was refused, it is no longer told of.
const LASTS: Duration = Duration::from_secs(60);

/// What is counted of one service since the start.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    pub(crate) clients: Clients,
    pub(crate) attempts: Attempts,
    pub(crate) sessions: Ended,
    pub(crate) streams: Streams,
    pub(crate) addresses: Addresses,
}

/// Connections of clients.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    /// Served or searched for now.
    pub(crate) open: AtomicU64,
    /// Accepted.
    pub(crate) accepted: AtomicU64,
    /// Reached an origin.
    pub(crate) connected: AtomicU64,
    /// Without an origin in time.
    pub(crate) failed: AtomicU64,
    /// Ended by themselves before any origin answered.
    pub(crate) abandoned: AtomicU64,
    /// Refused because the service's `max-sessions` are open.
    pub(crate) over_limit: AtomicU64,
    /// Refused because one of the users has so many already.
    pub(crate) over_share: AtomicU64,
    /// Had to wait, because their client gives up most of what it opens.
    pub(crate) paced: AtomicU64,
    /// Refused because too many of the same client wait.
    pub(crate) over_pace: AtomicU64,
}

/// Attempts to reach an origin.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    /// Took the place of a failed one.
    pub(crate) retried: AtomicU64,
    /// Were started beside a silent one.
    pub(crate) hedged: AtomicU64,
    /// Were given up because another one was faster, or their line went down.
    pub(crate) cancelled: AtomicU64,
}

/// Sessions of clients that have ended.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    /// Reset because their path died or their instance hung.
    pub(crate) cut: AtomicU64,
    /// Ended so that their client comes back to a better origin.
    pub(crate) moved: AtomicU64,
    /// Bytes from clients.
    pub(crate) up_bytes: AtomicU64,
    /// Bytes to clients.
    pub(crate) down_bytes: AtomicU64,
}

/// Streams of other nodes.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    /// Carried on to other nodes.
    pub(crate) relayed: AtomicU64,
    /// Answers, by kind.
    answers: [AtomicU64; Answer::ALL.len()],
}

impl Streams {
    /// Counts an answer.
    pub(crate) fn answered(&self, answer: Answer) {
        bump(&self.answers[usize::from(answer.code())]);
    }

    /// How many there were of this kind.
    pub(crate) fn answers(&self, answer: Answer) -> u64 {
        self.answers[usize::from(answer.code())].load(Ordering::Relaxed)
    }
}

/// A client that was refused because of the places that it holds already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OverShare {
    pub(crate) who: ClientId,
    /// Places that counted for it.
    pub(crate) held: u64,
}

/// What the local addresses of a service met lately.
#[derive(Debug, Default)]
pub(crate) struct Addresses(Mutex<Met>);

#[derive(Debug, Default)]
struct Met {
    over_share: Option<(OverShare, Instant)>,
    paced: Option<(ClientId, Instant)>,
    taken: BTreeSet<SocketAddr>,
}

impl Addresses {
    fn met(&self) -> MutexGuard<'_, Met> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A client was refused because of what it holds.
    pub(crate) fn note_over_share(&self, client: OverShare, now: Instant) {
        self.met().over_share = Some((client, now));
    }

    /// The last such client, if that was lately.
    pub(crate) fn over_share(&self, now: Instant) -> Option<OverShare> {
        self.met().over_share.and_then(|(client, at)| lately(client, at, now))
    }

    /// A client had to wait for its turn.
    pub(crate) fn note_paced(&self, who: ClientId, now: Instant) {
        self.met().paced = Some((who, now));
    }

    /// The last such client, if that was lately.
    pub(crate) fn paced(&self, now: Instant) -> Option<ClientId> {
        self.met().paced.and_then(|(who, at)| lately(who, at, now))
    }

    /// Another process has an address, or not; whether that is news.
    pub(crate) fn note_taken(&self, address: SocketAddr, is_taken: bool) -> bool {
        let taken = &mut self.met().taken;
        if is_taken { taken.insert(address) } else { taken.remove(&address) }
    }

    /// The addresses that another process has.
    pub(crate) fn taken(&self) -> Vec<SocketAddr> {
        self.met().taken.iter().copied().collect()
    }
}

fn lately<T>(what: T, at: Instant, now: Instant) -> Option<T> {
    (now.saturating_duration_since(at) < LASTS).then_some(what)
}

impl Totals {
    /// Connections for which an instance was dialled, here or elsewhere, since start.
    pub(crate) fn dialled(&self) -> u64 {
        let all = self.streams.answers.iter().chain([&self.clients.accepted]);
        all.map(|count| count.load(Ordering::Relaxed)).sum()
    }
}

/// Adds one to a counter that nobody orders by.
pub(crate) fn bump(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
