//! Counters of each origin of a service since the start.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use meshport_config::NodeId;
use meshport_core::node::MAX_ORIGINS;
use meshport_core::route::Line;

use crate::sessions::durations::{CONNECT_BOUNDS, Durations};

/// Origins counted separately: as many as there can be at once.
const MAX_COUNTED: usize = MAX_ORIGINS;

/// The origin, regardless of the path to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Whose {
    Node(NodeId),
    Outside(SocketAddr),
    /// Origins seen after the table was full.
    Others,
}

impl From<&Line> for Whose {
    fn from(line: &Line) -> Self {
        match *line {
            Line::Direct(node) | Line::Relayed { origin: node, .. } => Self::Node(node),
            Line::Outside(address) => Self::Outside(address),
        }
    }
}

/// The counters of one origin, for sessions of this node's clients.
#[derive(Debug)]
pub(crate) struct OriginTotals {
    /// Attempts that ended without an answer.
    failed: AtomicU64,
    up: AtomicU64,
    down: AtomicU64,
    /// Time from accepting a client to the origin's answer, for each session.
    pub(crate) connects: Durations,
}

impl Default for OriginTotals {
    fn default() -> Self {
        let [failed, up, down] = [(); 3].map(|()| AtomicU64::new(0));
        Self { failed, up, down, connects: Durations::new(&CONNECT_BOUNDS) }
    }
}

impl OriginTotals {
    /// Records a new session and its connect time.
    pub(crate) fn note_connected(&self, took: Duration) {
        self.connects.note(took);
    }

    /// An attempt has failed.
    pub(crate) fn note_failed(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds bytes from a client, or to it.
    pub(crate) fn add(&self, bytes: u64, from_client: bool) {
        let count = if from_client { &self.up } else { &self.down };
        count.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    pub(crate) fn up(&self) -> u64 {
        self.up.load(Ordering::Relaxed)
    }

    pub(crate) fn down(&self) -> u64 {
        self.down.load(Ordering::Relaxed)
    }
}

/// The origins of one service.
#[derive(Debug, Default)]
pub(crate) struct Origins(Mutex<BTreeMap<Whose, Arc<OriginTotals>>>);

impl Origins {
    /// The counters of the origin to which a line leads.
    pub(crate) fn of(&self, line: &Line) -> Arc<OriginTotals> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let whose = Whose::from(line);
        let is_full = all.len() >= MAX_COUNTED && !all.contains_key(&whose);
        all.entry(if is_full { Whose::Others } else { whose }).or_default().clone()
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<(Whose, Arc<OriginTotals>)> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().map(|(whose, totals)| (*whose, totals.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use meshport_config::NodeKey;

    use super::*;

    #[test]
    fn an_origin_is_one_by_every_way_and_there_are_not_more_than_that() {
        let origins = Origins::default();
        let node = NodeKey::from_bytes([4; 32]).public();
        let relay = NodeKey::from_bytes([5; 32]).public();
        origins.of(&Line::Direct(node)).note_failed();
        origins.of(&Line::Relayed { origin: node, relay }).note_failed();
        assert_eq!(origins.of(&Line::Direct(node)).failed(), 2);
        for port in 1..2_000 {
            origins.of(&Line::Outside(([192, 0, 2, 1], port).into())).note_failed();
        }
        let all = origins.all();
        assert_eq!(all.len(), MAX_COUNTED + 1);
        let failed: u64 = all.iter().map(|(_, totals)| totals.failed()).sum();
        assert_eq!(failed, 2 + 1_999);
    }
}
