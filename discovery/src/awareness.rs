//! Local health: how much this node trusts its own view (the multiplier of Lifeguard).
//!
//! A node that is starved of CPU or isolated sees all others fail. The score rises when its own
//! timers fire late and when several different peers in a row do not answer its probes; it falls
//! with each answer. Timeouts for peers grow with the score, so an unhealthy node is slow to blame
//! others. After Dadgar, Phillips and Currey, "Lifeguard: Local Health Awareness for More Accurate
//! Failure Detection" (2018).

use std::time::Duration;

use meshport_config::NodeId;

/// The highest score; waits are then nine times as long.
pub(crate) const MAX_SCORE: u32 = 8;

/// The local health score, 0 (healthy) to [`MAX_SCORE`].
#[derive(Debug, Default)]
pub(crate) struct Awareness {
    score: u32,
    /// The last peer that did not answer; a single peer proves nothing about this node.
    missed: Option<NodeId>,
}

impl Awareness {
    /// The score, 0 to [`MAX_SCORE`].
    pub(crate) fn score(&self) -> u32 {
        self.score
    }

    /// One of this node's timers fired late.
    pub(crate) fn late(&mut self) {
        self.score = (self.score + 1).min(MAX_SCORE);
    }

    /// A peer with a session left a probe unanswered.
    pub(crate) fn miss(&mut self, peer: NodeId) {
        if self.missed.is_some_and(|before| before != peer) {
            self.late();
        }
        self.missed = Some(peer);
    }

    /// A peer answered.
    pub(crate) fn answered(&mut self) {
        self.score = self.score.saturating_sub(1);
        self.missed = None;
    }

    /// A timeout for a peer, stretched by the score.
    pub(crate) fn stretch(&self, wait: Duration) -> Duration {
        wait * (1 + self.score)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::node;

    #[test]
    fn one_silent_peer_is_its_own_fault_and_two_in_a_row_are_mine() {
        let mut awareness = Awareness::default();
        awareness.miss(node(1));
        awareness.miss(node(1));
        assert_eq!(awareness.score(), 0);
        awareness.miss(node(2));
        assert_eq!(awareness.score(), 1);
        assert_eq!(awareness.stretch(Duration::from_secs(1)), Duration::from_secs(2));
        awareness.answered();
        assert_eq!(awareness.score(), 0);
        awareness.miss(node(3));
        assert_eq!(awareness.score(), 0, "an answer in between ends the row");
    }

    #[test]
    fn the_score_stays_in_its_range() {
        let mut awareness = Awareness::default();
        for _ in 0..20 {
            awareness.late();
        }
        assert_eq!(awareness.score(), MAX_SCORE);
        for _ in 0..20 {
            awareness.answered();
        }
        assert_eq!(awareness.score(), 0);
    }
}
