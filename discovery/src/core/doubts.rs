//! Members reported down by one other member: a second report confirms it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use meshport_config::NodeId;

use crate::state::Life;

/// How long the first report that a member is down is remembered, and for how many members.
const LIFETIME: Duration = Duration::from_secs(5);
const MAX_DOUBTS: usize = 4096;

/// The first member to report each of them down.
#[derive(Debug, Default)]
pub(super) struct Doubts(BTreeMap<NodeId, Doubt>);

#[derive(Debug)]
struct Doubt {
    life: Life,
    from: NodeId,
    at: Instant,
}

impl Doubt {
    fn is_fresh(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.at) < LIFETIME
    }
}

impl Doubts {
    /// The first member that reported a member down in this life, if recently.
    pub(super) fn first(&self, node: &NodeId, life: Life, now: Instant) -> Option<NodeId> {
        let doubt = self.0.get(node).filter(|doubt| doubt.life == life && doubt.is_fresh(now));
        doubt.map(|doubt| doubt.from)
    }

    /// Remembers the first report; false when there are too many.
    pub(super) fn add(&mut self, node: NodeId, life: Life, from: NodeId, now: Instant) -> bool {
        let fits = self.0.len() < MAX_DOUBTS || self.0.contains_key(&node);
        if fits {
            self.0.insert(node, Doubt { life, from, at: now });
        }
        fits
    }

    pub(super) fn remove(&mut self, node: &NodeId) {
        self.0.remove(node);
    }

    /// Forgets reports that no other member confirmed.
    pub(super) fn prune(&mut self, now: Instant) {
        self.0.retain(|_, doubt| doubt.is_fresh(now));
    }
}
