//! Members that one voice has called down: a second one settles it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use meshport_config::NodeId;

use crate::state::Life;

/// How long the first voice that calls a member down is remembered, and for how many members.
const LIFETIME: Duration = Duration::from_secs(5);
const MAX_DOUBTS: usize = 4096;

/// The first member to call each of them down.
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
    /// The first member that called a member down in this life, if that was recent.
    pub(super) fn first(&self, node: &NodeId, life: Life, now: Instant) -> Option<NodeId> {
        let doubt = self.0.get(node).filter(|doubt| doubt.life == life && doubt.is_fresh(now));
        doubt.map(|doubt| doubt.from)
    }

    /// Remembers the first voice; false when there are too many.
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

    /// Forgets doubts that no other member confirmed.
    pub(super) fn prune(&mut self, now: Instant) {
        self.0.retain(|_, doubt| doubt.is_fresh(now));
    }
}
