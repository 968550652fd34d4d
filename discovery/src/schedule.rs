//! A schedule: nodes by the time at which something is due.
//!
//! The earliest time is read after each datagram and rarely changes, so it is cached.
//!
//! The owner bounds it: at most one entry per node that the owner keeps.

use std::collections::BTreeSet;
use std::time::Instant;

use meshport_config::NodeId;

/// Nodes ascending by due time, then by id.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    entries: BTreeSet<(Instant, NodeId)>,
    first: Option<Instant>,
}

impl Schedule {
    pub(crate) fn insert(&mut self, due: Instant, node: NodeId) {
        self.entries.insert((due, node));
        self.first = Some(self.first.map_or(due, |first| first.min(due)));
    }

    pub(crate) fn remove(&mut self, due: Instant, node: NodeId) {
        if self.entries.remove(&(due, node)) && self.first == Some(due) {
            self.first = self.entries.first().map(|(due, _)| *due);
        }
    }

    /// Time at which the first entry is due.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.first
    }

    /// Takes the first entry if it is due.
    pub(crate) fn take_due(&mut self, now: Instant) -> Option<NodeId> {
        if self.first.is_none_or(|first| first > now) {
            return None;
        }
        let (_, node) = self.entries.pop_first()?;
        self.first = self.entries.first().map(|(due, _)| *due);
        Some(node)
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.first = None;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::tests::base;

    proptest! {
        #[test]
        fn the_first_is_known_whatever_comes_and_goes(
            steps in prop::collection::vec((0..4_u8, 0..8_u64, 0..4_u8), 0..100),
        ) {
            let start = base();
            let (mut schedule, mut all) = (Schedule::default(), BTreeSet::new());
            for (what, after, node) in steps {
                let due = start + Duration::from_secs(after);
                let node = NodeId::from_bytes([node; 32]);
                match what {
                    0 | 1 => {
                        schedule.insert(due, node);
                        all.insert((due, node));
                    }
                    2 => {
                        schedule.remove(due, node);
                        all.remove(&(due, node));
                    }
                    _ => {
                        let first = all.first().copied().filter(|(first, _)| *first <= due);
                        all.retain(|entry| Some(*entry) != first);
                        prop_assert_eq!(schedule.take_due(due), first.map(|(_, node)| node));
                    }
                }
                prop_assert_eq!(schedule.next(), all.first().map(|(due, _)| *due));
            }
            schedule.clear();
            prop_assert_eq!(schedule.next(), None);
        }
    }
}
