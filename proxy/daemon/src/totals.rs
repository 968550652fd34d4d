//! What was counted of each service since the start.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use meshport_core::wire::Answer;

use super::who::Who;

/// Counters of one service since start, and the clients that are here.
#[derive(Debug, Default)]
pub(super) struct Totals {
    /// Clients that are served or searched for now.
    pub(super) clients: AtomicU64,
    /// Client connections accepted.
    pub(super) accepted: AtomicU64,
    /// Client connections that reached an origin.
    pub(super) connected: AtomicU64,
    /// Client connections for which no origin was found in time.
    pub(super) failed: AtomicU64,
    /// Client connections that ended by themselves before any origin answered.
    pub(super) abandoned: AtomicU64,
    /// Client connections refused because the service's `max-sessions` are open.
    pub(super) over_limit: AtomicU64,
    /// Client connections refused because one of the users has so many already.
    pub(super) over_share: AtomicU64,
    /// The last client that was refused for that, how many places counted for it, and when.
    pub(super) greedy: Mutex<Option<(Who, u64, Instant)>>,
    /// Client connections that had to wait, because their client gives up most of what it opens.
    pub(super) paced: AtomicU64,
    /// Client connections refused because too many of the same client wait.
    pub(super) over_pace: AtomicU64,
    /// The last client that had to wait, and when.
    pub(super) hasty: Mutex<Option<(Who, Instant)>>,
    /// Local addresses that another process has taken meanwhile.
    pub(super) lost: Mutex<BTreeSet<SocketAddr>>,
    /// Sessions reset because their path died or their instance hung.
    pub(super) cut: AtomicU64,
    /// Attempts that took the place of a failed one.
    pub(super) retried: AtomicU64,
    /// Attempts that were started beside a silent one.
    pub(super) hedged: AtomicU64,
    /// Attempts that were given up because another one was faster, or their line went down.
    pub(super) cancelled: AtomicU64,
    /// Streams carried on to other nodes.
    pub(super) relayed: AtomicU64,
    /// Sessions that were ended so that their client comes back to a better origin.
    pub(super) moved: AtomicU64,
    /// Bytes from clients.
    pub(super) up_bytes: AtomicU64,
    /// Bytes to clients.
    pub(super) down_bytes: AtomicU64,
    /// Answers given to other nodes, by kind.
    pub(super) answers: [AtomicU64; Answer::ALL.len()],
}

impl Totals {
    /// Connections for which an instance was dialled, here or elsewhere, since start.
    pub(super) fn dialled(&self) -> u64 {
        let all = self.answers.iter().chain([&self.accepted]);
        all.map(|count| count.load(Ordering::Relaxed)).sum()
    }
}

/// Adds one to a counter that nobody orders by.
pub(super) fn bump(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
