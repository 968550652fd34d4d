//! What was counted of each service since the start.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use meshport_core::wire::Answer;

use crate::sessions::who::Who;

/// Counters of one service since start, and the clients that are here.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    /// Clients that are served or searched for now.
    pub(crate) clients: AtomicU64,
    /// Client connections accepted.
    pub(crate) accepted: AtomicU64,
    /// Client connections that reached an origin.
    pub(crate) connected: AtomicU64,
    /// Client connections for which no origin was found in time.
    pub(crate) failed: AtomicU64,
    /// Client connections that ended by themselves before any origin answered.
    pub(crate) abandoned: AtomicU64,
    /// Client connections refused because the service's `max-sessions` are open.
    pub(crate) over_limit: AtomicU64,
    /// Client connections refused because one of the users has so many already.
    pub(crate) over_share: AtomicU64,
    /// The last client that was refused for that, how many places counted for it, and when.
    pub(crate) greedy: Mutex<Option<(Who, u64, Instant)>>,
    /// Client connections that had to wait, because their client gives up most of what it opens.
    pub(crate) paced: AtomicU64,
    /// Client connections refused because too many of the same client wait.
    pub(crate) over_pace: AtomicU64,
    /// The last client that had to wait, and when.
    pub(crate) hasty: Mutex<Option<(Who, Instant)>>,
    /// Local addresses that another process has taken.
    pub(crate) lost: Mutex<BTreeSet<SocketAddr>>,
    /// Sessions reset because their path died or their instance hung.
    pub(crate) cut: AtomicU64,
    /// Attempts that took the place of a failed one.
    pub(crate) retried: AtomicU64,
    /// Attempts that were started beside a silent one.
    pub(crate) hedged: AtomicU64,
    /// Attempts that were given up because another one was faster, or their line went down.
    pub(crate) cancelled: AtomicU64,
    /// Streams carried on to other nodes.
    pub(crate) relayed: AtomicU64,
    /// Sessions that were ended so that their client comes back to a better origin.
    pub(crate) moved: AtomicU64,
    /// Bytes from clients.
    pub(crate) up_bytes: AtomicU64,
    /// Bytes to clients.
    pub(crate) down_bytes: AtomicU64,
    /// Answers given to other nodes, by kind.
    pub(crate) answers: [AtomicU64; Answer::ALL.len()],
}

impl Totals {
    /// Connections for which an instance was dialled, here or elsewhere, since start.
    pub(crate) fn dialled(&self) -> u64 {
        let all = self.answers.iter().chain([&self.accepted]);
        all.map(|count| count.load(Ordering::Relaxed)).sum()
    }
}

/// Adds one to a counter that nobody orders by.
pub(crate) fn bump(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
