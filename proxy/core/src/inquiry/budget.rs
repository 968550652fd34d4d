//! Limits how often a member calls others back.
//!
//! A call-back is three small datagrams to at most four addresses that the requester named itself;
//! the question costs the requester as much. The budget keeps one member from making others send,
//! and many members from making one send.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use meshport_config::NodeId;

/// Minimum interval between call-backs to the same requester: a person may ask again.
const GAP: Duration = Duration::from_secs(2);
/// Call-backs to all within one [`PERIOD`].
const MAX_PER_PERIOD: usize = 32;
const PERIOD: Duration = Duration::from_secs(10);

/// See the module's description.
#[derive(Debug, Default)]
pub struct CallBudget {
    /// Time of the last call-back to each asker in the current period.
    last: BTreeMap<NodeId, Instant>,
}

impl CallBudget {
    /// Whether `asker` may be called now; counts it if so.
    pub fn take(&mut self, asker: NodeId, now: Instant) -> bool {
        self.last.retain(|_, at| now.saturating_duration_since(*at) < PERIOD);
        let is_recent = |at: &Instant| now.saturating_duration_since(*at) < GAP;
        let known = self.last.get(&asker);
        if known.is_some_and(is_recent) || (known.is_none() && self.last.len() >= MAX_PER_PERIOD) {
            return false;
        }
        self.last.insert(asker, now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "an arbitrary origin for made-up time")]
    fn one_asker_waits_and_many_share_a_period() {
        let (mut budget, begun) = (CallBudget::default(), Instant::now());
        let node = |number: u8| NodeId::from_bytes([number; 32]);
        assert!(budget.take(node(0), begun) && !budget.take(node(0), begun + GAP / 2));
        assert!(budget.take(node(0), begun + GAP));
        for number in 1..32 {
            assert!(budget.take(node(number), begun + GAP), "{number}");
        }
        assert!(!budget.take(node(99), begun + GAP), "the period is used up");
        assert!(budget.take(node(99), begun + GAP + PERIOD));
    }
}
