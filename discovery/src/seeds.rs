//! Announces to seeds forever: with growing pauses while they are not members, and again as soon as
//! one is lost. So a mesh forms again after every node was down.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use meshport_config::NodeId;

use crate::dice::Dice;

/// Maximum number of seeds; an invite has eight, and a node may know a few more.
pub const MAX_SEEDS: usize = 64;

/// The seeds and when to announce to each.
#[derive(Debug)]
pub(crate) struct Seeds {
    seeds: BTreeMap<NodeId, Seed>,
    first: Duration,
    longest: Duration,
}

#[derive(Debug)]
struct Seed {
    due: Instant,
    pause: Duration,
}

impl Seeds {
    pub(crate) fn new(first: Duration, longest: Duration) -> Self {
        Self { seeds: BTreeMap::new(), first, longest }
    }

    /// Replaces the seeds; new ones are due at once. Returns how many were too many.
    pub(crate) fn set(&mut self, nodes: &[NodeId], now: Instant) -> usize {
        let kept = &nodes[..nodes.len().min(MAX_SEEDS)];
        self.seeds.retain(|node, _| kept.contains(node));
        for node in kept {
            self.seeds.entry(*node).or_insert(Seed { due: now, pause: self.first });
        }
        nodes.len() - kept.len()
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.seeds.keys().copied()
    }

    pub(crate) fn contains(&self, node: &NodeId) -> bool {
        self.seeds.contains_key(node)
    }

    /// A seed was lost or can be reached again: announce to it at once, with short pauses.
    pub(crate) fn wake(&mut self, node: &NodeId, now: Instant) {
        if let Some(seed) = self.seeds.get_mut(node) {
            *seed = Seed { due: now, pause: self.first };
        }
    }

    /// The seeds to announce to now.
    pub(crate) fn take_due(
        &mut self,
        is_member: impl Fn(&NodeId) -> bool,
        dice: &mut Dice,
        now: Instant,
    ) -> Vec<NodeId> {
        let mut announce = Vec::new();
        for (node, seed) in &mut self.seeds {
            if seed.due > now {
                continue;
            }
            if is_member(node) {
                seed.pause = self.first;
                seed.due = now + self.longest;
                continue;
            }
            announce.push(*node);
            seed.due = now + dice.jitter(seed.pause, 25);
            seed.pause = (seed.pause * 2).min(self.longest);
        }
        announce
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.seeds.values().map(|seed| seed.due).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::base;

    #[test]
    fn pauses_grow_to_the_longest_and_never_end() {
        let (first, longest) = (Duration::from_secs(1), Duration::from_secs(30));
        let (mut seeds, mut dice) = (Seeds::new(first, longest), Dice::new([1; 32], 0));
        let (node, mut now) = (NodeId::from_bytes([1; 32]), base());
        assert_eq!(seeds.set(&[node], now), 0);
        let mut pauses = Vec::new();
        for _ in 0..20 {
            assert_eq!(seeds.take_due(|_| false, &mut dice, now), [node]);
            let next = seeds.poll_timeout().expect("a seed is never given up");
            pauses.push(next - now);
            now = next;
        }
        assert!(pauses[0] <= Duration::from_millis(1250));
        assert!(pauses[19] >= Duration::from_millis(22_500), "{:?}", pauses[19]);
        seeds.wake(&node, now);
        assert_eq!(seeds.take_due(|_| false, &mut dice, now), [node]);
        assert!(seeds.take_due(|_| true, &mut dice, now + first * 2).is_empty());
    }

    #[test]
    fn too_many_seeds_are_counted() {
        let mut seeds = Seeds::new(Duration::from_secs(1), Duration::from_secs(2));
        let nodes: Vec<_> = (0..=MAX_SEEDS)
            .map(|number| NodeId::from_bytes([u8::try_from(number).unwrap(); 32]))
            .collect();
        assert_eq!(seeds.set(&nodes, base()), 1);
        assert!(seeds.contains(&nodes[0]) && !seeds.contains(&nodes[MAX_SEEDS]));
    }
}
