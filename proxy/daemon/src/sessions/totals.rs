//! Counters of a service since the start, and recent events at its local addresses.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use meshport_config::counters;
use meshport_config::counters::{Counter, SharedCounters};
use meshport_core::wire::Answer;

use crate::sessions::claim::Loss;
use crate::sessions::client::ClientId;
use crate::sessions::durations::{CONNECT_BOUNDS, Durations, SESSION_BOUNDS};
use crate::sessions::origins::Origins;

/// How long `status` reports that a client had to wait or was refused.
const LASTS: Duration = Duration::from_secs(60);

counters! {
    /// Counters of clients, attempts, sessions and streams of one service.
    pub(crate) enum SessionCount {
        "meshport_sessions_accepted_total" by "" {
            /// Accepted.
            Accepted = "",
        }
        "meshport_sessions_total" by "outcome" {
            /// Reached an origin.
            Connected = "connected",
            /// Found no origin in time.
            Failed = "failed",
            /// The client left before any origin answered.
            Abandoned = "abandoned",
            /// Refused because `max-sessions` of the service are open.
            OverLimit = "over-limit",
            /// Refused because its user has its share of `max-sessions`.
            OverShare = "over-share",
            /// Refused because too many connections of the same client, or of too many clients,
            /// wait for their turn.
            OverPace = "over-pace",
        }
        "meshport_sessions_paced_total" by "" {
            /// Delayed because their client does not use most that it opens.
            Paced = "",
        }
        "meshport_sessions_cut_total" by "" {
            /// Reset because their path died or their instance hung.
            Cut = "",
        }
        "meshport_sessions_moved_total" by "" {
            /// Ended so that their client reconnects to a better origin.
            Moved = "",
        }
        "meshport_session_bytes_total" by "direction" {
            /// From clients.
            UpBytes = "up",
            /// To clients.
            DownBytes = "down",
        }
        "meshport_attempts_retried_total" by "" {
            /// Followed a failed attempt.
            Retried = "",
        }
        "meshport_attempts_hedged_total" by "" {
            /// Started in parallel to a silent attempt.
            Hedged = "",
        }
        "meshport_attempts_cancelled_total" by "" {
            /// Cancelled because another was faster or their line went down.
            Cancelled = "",
        }
        "meshport_relayed_streams_total" by "" {
            /// Relayed to other nodes.
            Relayed = "",
        }
    }
}

/// The counters of one service since the start.
#[derive(Debug)]
pub(crate) struct Totals {
    pub(crate) counts: SharedCounters<SessionCount, { SessionCount::ALL.len() }>,
    /// Clients that are served now, or for which an origin is being searched.
    pub(crate) open: AtomicU64,
    /// Time from accepting a client to the answer of an origin.
    pub(crate) connects: Durations,
    /// Time from that answer to the end of the session.
    pub(crate) sessions: Durations,
    pub(crate) answers: Answers,
    pub(crate) addresses: Addresses,
    pub(crate) origins: Origins,
}

impl Default for Totals {
    fn default() -> Self {
        Self {
            counts: SharedCounters::default(),
            open: AtomicU64::new(0),
            connects: Durations::new(&CONNECT_BOUNDS),
            sessions: Durations::new(&SESSION_BOUNDS),
            answers: Answers::default(),
            addresses: Addresses::default(),
            origins: Origins::default(),
        }
    }
}

/// Answers to streams of other nodes, by kind.
#[derive(Debug, Default)]
pub(crate) struct Answers([AtomicU64; Answer::ALL.len()]);

impl Answers {
    /// Counts an answer.
    pub(crate) fn note(&self, answer: Answer) {
        self.0[usize::from(answer.code())].fetch_add(1, Ordering::Relaxed);
    }

    /// The number of answers of this kind.
    pub(crate) fn get(&self, answer: Answer) -> u64 {
        self.0[usize::from(answer.code())].load(Ordering::Relaxed)
    }
}

/// A client that was refused because of the slots that it already holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OverShare {
    pub(crate) who: ClientId,
    /// Slots that it held.
    pub(crate) held: u64,
}

/// Recent events at the local addresses of a service.
#[derive(Debug, Default)]
pub(crate) struct Addresses(Mutex<Met>);

#[derive(Debug, Default)]
struct Met {
    over_share: Option<(OverShare, Instant)>,
    paced: Option<(ClientId, Instant)>,
    lost: BTreeMap<SocketAddr, Loss>,
}

impl Addresses {
    fn met(&self) -> MutexGuard<'_, Met> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a client refused because of the slots that it holds.
    pub(crate) fn note_over_share(&self, client: OverShare, now: Instant) {
        self.met().over_share = Some((client, now));
    }

    /// The last such client, if recent.
    pub(crate) fn over_share(&self, now: Instant) -> Option<OverShare> {
        self.met().over_share.and_then(|(client, at)| lately(client, at, now))
    }

    /// Records a client that had to wait for its turn.
    pub(crate) fn note_paced(&self, who: ClientId, now: Instant) {
        self.met().paced = Some((who, now));
    }

    /// The last such client, if recent.
    pub(crate) fn paced(&self, now: Instant) -> Option<ClientId> {
        self.met().paced.and_then(|(who, at)| lately(who, at, now))
    }

    /// Sets why an address is lost, if it is.
    pub(crate) fn note_lost(&self, address: SocketAddr, loss: Option<Loss>) {
        let lost = &mut self.met().lost;
        match loss {
            Some(loss) => lost.insert(address, loss),
            None => lost.remove(&address),
        };
    }

    /// The lost addresses.
    pub(crate) fn lost(&self) -> BTreeMap<SocketAddr, Loss> {
        self.met().lost.clone()
    }
}

fn lately<T>(what: T, at: Instant, now: Instant) -> Option<T> {
    (now.saturating_duration_since(at) < LASTS).then_some(what)
}

impl Totals {
    /// Connections for which an instance was dialled, here or elsewhere, since start.
    pub(crate) fn dialled(&self) -> u64 {
        let served: u64 = Answer::ALL.into_iter().map(|answer| self.answers.get(answer)).sum();
        served + self.counts.get(SessionCount::Accepted)
    }
}
