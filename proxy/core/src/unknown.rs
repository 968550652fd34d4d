//! Messages that this version does not know, from members with a later one.
//!
//! Such a message is ignored and counted where it arrives. This module remembers its sender, for
//! one log line and for a finding while it continues. Bounded by [`MAX_SENDERS`] nodes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use meshport_config::NodeId;

use crate::findings::{Finding, UNKNOWN_MESSAGES};

/// Maximum senders remembered; beyond that the one heard longest ago is dropped.
pub const MAX_SENDERS: usize = 64;
/// Senders that a finding names; it counts the others.
const MAX_NAMED: usize = 3;
/// How long after its last unknown message a node is still reported.
const OVER_AFTER: Duration = Duration::from_secs(600);

#[derive(Debug)]
struct Heard {
    what: String,
    last: Instant,
}

/// See the module's doc.
#[derive(Debug, Default)]
pub struct Unknown(BTreeMap<NodeId, Heard>);

impl Unknown {
    /// A node sent `what`, as in "control message 9". Returns whether to log it: the first of this
    /// node in a while.
    pub fn note(&mut self, from: NodeId, what: String, now: Instant) -> bool {
        self.0.retain(|_, it| it.is_recent(now));
        if let Some(heard) = self.0.get_mut(&from) {
            *heard = Heard { what, last: now };
            return false;
        }
        if self.0.len() >= MAX_SENDERS
            && let Some(oldest) = self.0.iter().min_by_key(|(_, it)| it.last).map(|(node, _)| *node)
        {
            self.0.remove(&oldest);
        }
        self.0.insert(from, Heard { what, last: now });
        true
    }

    /// One finding for all of them. `name` gives the name of a node.
    pub fn finding(&self, name: impl Fn(&NodeId) -> String, now: Instant) -> Option<Finding> {
        let mut senders: Vec<String> = self
            .0
            .iter()
            .filter(|(_, it)| it.is_recent(now))
            .map(|(node, it)| format!("{} ({})", name(node), it.what))
            .collect();
        if senders.is_empty() {
            return None;
        }
        let more = senders.len().saturating_sub(MAX_NAMED);
        senders.truncate(MAX_NAMED);
        if more > 0 {
            senders.push(format!("{more} more"));
        }
        let senders = senders.join(", ");
        Some(UNKNOWN_MESSAGES.found(format!("unknown messages from {senders}")))
    }
}

impl Heard {
    fn is_recent(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.last) < OVER_AFTER
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "an origin for virtual time")]

    use super::*;

    fn node(number: u8) -> NodeId {
        NodeId::from_bytes([number; 32])
    }

    fn name(node: &NodeId) -> String {
        format!("n{}", node.as_bytes()[0])
    }

    #[test]
    fn a_sender_is_logged_once_and_found_until_it_stops() {
        let start = Instant::now();
        let mut unknown = Unknown::default();
        assert_eq!(unknown.finding(name, start), None);
        assert!(unknown.note(node(1), "control message 9".into(), start));
        let later = start + OVER_AFTER / 2;
        assert!(!unknown.note(node(1), "gossip message 21".into(), later));
        let found = unknown.finding(name, later).expect("it is recent");
        assert_eq!(found.detail, "unknown messages from n1 (gossip message 21)");
        assert_eq!(found.kind.id, "MP213");
        assert!(unknown.finding(name, start + OVER_AFTER).is_some(), "the last one counts");
        let over = later + OVER_AFTER;
        assert_eq!(unknown.finding(name, over), None);
        assert!(unknown.note(node(1), "control message 9".into(), over), "after a while again");
    }

    #[test]
    fn senders_are_bounded_and_few_are_named() {
        let start = Instant::now();
        let mut unknown = Unknown::default();
        for number in 0..=255 {
            let now = start + Duration::from_millis(number.into());
            assert!(unknown.note(node(number), "x".into(), now));
        }
        assert_eq!(unknown.0.len(), MAX_SENDERS);
        let found = unknown.finding(name, start + Duration::from_secs(1)).expect("many");
        let end = "from n192 (x), n193 (x), n194 (x), 61 more";
        assert!(found.detail.ends_with(end), "{}", found.detail);
    }
}
