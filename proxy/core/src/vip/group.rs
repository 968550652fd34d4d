//! The recipients of a node's claims: the other nodes of its group, as far as it knows them.
//!
//! A credential shows which nodes may hold virtual addresses, but not in which group. So a node
//! periodically introduces itself to all of them, and sends its claims to those that have announced
//! the same group. A node that hears another for the first time answers with its next claim, so
//! both know each other within [`REPEAT_INTERVAL`](super::contest::REPEAT_INTERVAL) of a received
//! introduction.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use meshport_config::NodeId;

use super::boot_time::BootTime;
use super::contest::MAX_PEERS;

/// Interval between introductions.
const INTRODUCTION: Duration = Duration::from_secs(5);
/// A node that sent no claim for this long gets only introductions: it is gone, or its settings no
/// longer have the address.
const FORGOTTEN: Duration = Duration::from_secs(60);
/// Nodes that get one introduction. If there are more, each turn takes the next ones.
pub const MAX_INTRODUCED: usize = 64;

/// The other nodes of one group. `Default` knows none.
#[derive(Debug, Default)]
pub struct Group {
    heard: BTreeMap<NodeId, BootTime>,
    candidates: BTreeSet<NodeId>,
    /// The last recipient of the last introduction, where the next one continues.
    last: Option<NodeId>,
    due: BootTime,
}

impl Group {
    /// Handles a claim of this group from a node. At most [`MAX_PEERS`] are known.
    pub fn handle_claim(&mut self, from: NodeId, now: BootTime) {
        self.heard.retain(|_, at| now.since(*at) < FORGOTTEN);
        if self.heard.len() < MAX_PEERS || self.heard.contains_key(&from) {
            self.heard.insert(from, now);
        }
    }

    /// The nodes that may hold virtual addresses, without this one. A new one gets an introduction
    /// at once.
    pub fn set_candidates(&mut self, nodes: impl IntoIterator<Item = NodeId>, now: BootTime) {
        let candidates: BTreeSet<NodeId> = nodes.into_iter().collect();
        if !candidates.is_subset(&self.candidates) {
            self.due = now;
        }
        self.heard.retain(|node, _| candidates.contains(node));
        self.candidates = candidates;
    }

    /// The recipients of the current claim.
    pub fn recipients(&mut self, now: BootTime) -> BTreeSet<NodeId> {
        let is_fresh = |at: &BootTime| now.since(*at) < FORGOTTEN;
        let mut to: BTreeSet<NodeId> =
            self.heard.iter().filter(|(_, at)| is_fresh(at)).map(|(node, _)| *node).collect();
        if now >= self.due {
            self.due = now + INTRODUCTION;
            let after = |node: &&NodeId| self.last.is_none_or(|last| **node > last);
            let turn: Vec<NodeId> =
                self.candidates.iter().filter(after).take(MAX_INTRODUCED).copied().collect();
            // After the last one it starts over.
            self.last = turn.last().copied().filter(|last| Some(last) != self.candidates.last());
            to.extend(turn);
        }
        to
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(number: u8) -> NodeId {
        NodeId::from_bytes([number; 32])
    }

    fn at(seconds: u64) -> BootTime {
        BootTime::new(Duration::from_secs(seconds))
    }

    #[test]
    fn all_get_introductions_and_those_that_answer_get_every_claim() {
        let mut group = Group::default();
        group.set_candidates([node(1), node(2)], at(1));
        assert_eq!(group.recipients(at(1)), [node(1), node(2)].into());
        assert_eq!(group.recipients(at(2)), [].into());
        group.handle_claim(node(2), at(2));
        assert_eq!(group.recipients(at(3)), [node(2)].into());
        assert_eq!(group.recipients(at(6)), [node(1), node(2)].into());
        // A node that joins does not wait for the next turn.
        group.set_candidates([node(1), node(2), node(3)], at(7));
        assert_eq!(group.recipients(at(7)), [node(1), node(2), node(3)].into());
    }

    #[test]
    fn one_without_the_role_or_a_claim_gets_nothing_more() {
        let mut group = Group::default();
        group.set_candidates([node(1), node(2)], at(1));
        group.handle_claim(node(1), at(1));
        group.handle_claim(node(2), at(1));
        group.recipients(at(1));
        assert_eq!(group.recipients(at(2)), [node(1), node(2)].into());
        group.set_candidates([node(2)], at(3));
        assert_eq!(group.recipients(at(3)), [node(2)].into());
        group.recipients(at(60));
        assert_eq!(group.recipients(at(61)), [].into());
    }

    #[test]
    fn of_many_each_has_its_turn() {
        let mut group = Group::default();
        let all: BTreeSet<NodeId> = (0..150).map(node).collect();
        group.set_candidates(all.clone(), at(1));
        let turns: Vec<_> = (0..3).map(|turn| group.recipients(at(1 + turn * 5))).collect();
        assert_eq!(turns.iter().map(BTreeSet::len).collect::<Vec<_>>(), [64, 64, 22]);
        assert_eq!(turns.iter().flatten().copied().collect::<BTreeSet<_>>(), all);
        assert_eq!(group.recipients(at(16)), turns[0]);
        for number in 0..150 {
            group.handle_claim(node(number), at(17));
        }
        assert_eq!(group.recipients(at(17)).len(), MAX_PEERS);
    }
}
