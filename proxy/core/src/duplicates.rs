//! Nodes whose key is used by two processes at once: a state folder was copied, by mistake or by a
//! thief. Each takes over the other's tunnels, so long sessions of both are cut repeatedly.
//!
//! The mesh finds them (see `mesh/proto/src/processes.rs`); this module remembers and reports them.
//! Bounded by [`MAX_DUPLICATES`] nodes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use meshport_config::NodeId;

use crate::findings::{Finding, KEY_USED_TWICE};

/// Maximum nodes remembered; beyond that the one seen longest ago is dropped.
pub const MAX_DUPLICATES: usize = 64;
/// How long a duplicate is reported after its last sign. Both processes send something at least
/// every two minutes.
const OVER_AFTER: Duration = Duration::from_secs(300);
/// A node that is still a duplicate after this time is logged again.
const REMIND: Duration = Duration::from_secs(600);

#[derive(Debug)]
struct Evidence {
    /// Addresses of both; for this node itself, that of the other process.
    at: Vec<SocketAddr>,
    /// The peer that reported it; `None` if this node saw it itself.
    by: Option<NodeId>,
    first: Instant,
    last: Instant,
    told: Instant,
}

/// See the module's doc.
#[derive(Debug, Default)]
pub struct Duplicates(BTreeMap<NodeId, Evidence>);

impl Duplicates {
    /// Records that two processes use a node's key. Returns whether to log it now.
    pub fn note(
        &mut self,
        node: NodeId,
        at: Vec<SocketAddr>,
        by: Option<NodeId>,
        now: Instant,
    ) -> bool {
        self.forget(now);
        let known = self.0.get_mut(&node);
        if let Some(known) = known {
            (known.at, known.by, known.last) = (at, by, now);
            let is_due = now.saturating_duration_since(known.told) >= REMIND;
            if is_due {
                known.told = now;
            }
            return is_due;
        }
        if self.0.len() >= MAX_DUPLICATES
            && let Some(oldest) = self.0.iter().min_by_key(|(_, it)| it.last).map(|(node, _)| *node)
        {
            self.0.remove(&oldest);
        }
        self.0.insert(node, Evidence { at, by, first: now, last: now, told: now });
        true
    }

    /// Number of current duplicates.
    pub fn count(&self, now: Instant) -> u32 {
        self.0.values().map(|it| u32::from(it.is_present(now))).sum()
    }

    /// A finding for each. `name` gives the name of a node.
    pub fn findings(
        &self,
        me: &NodeId,
        name: impl Fn(&NodeId) -> String,
        now: Instant,
    ) -> Vec<Finding> {
        let present = self.0.iter().filter(|(_, it)| it.is_present(now));
        let finding = |(node, it): (&NodeId, &Evidence)| {
            let at: Vec<String> = it.at.iter().map(ToString::to_string).collect();
            let at = at.join(" and ");
            let ago = |since| now.saturating_duration_since(since).as_secs();
            let (began, last) = (ago(it.first), ago(it.last));
            let by = it.by.map_or_else(|| "this node".to_owned(), |by| name(&by));
            let seen = format!("seen by {by} {last} s ago, first {began} s ago");
            let (name, is_own) = (name(node), node == me);
            let found = KEY_USED_TWICE.found(match is_own {
                true => format!("another process uses this node's key, at {at} ({seen})"),
                false => format!("two processes use the key of {name}, at {at} ({seen})"),
            });
            found.naming("NODE", &name)
        };
        present.map(finding).collect()
    }

    fn forget(&mut self, now: Instant) {
        self.0.retain(|_, it| it.is_present(now));
    }
}

impl Evidence {
    fn is_present(&self, now: Instant) -> bool {
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

    fn at(number: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, number], 7442))
    }

    fn found(duplicates: &Duplicates, now: Instant) -> Vec<String> {
        let name = |it: &NodeId| format!("n{}", it.as_bytes()[0]);
        let found = duplicates.findings(&node(1), name, now);
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn both_and_others_report_the_remedy_until_it_is_over() {
        let start = Instant::now();
        let mut duplicates = Duplicates::default();
        assert!(duplicates.note(node(1), vec![at(9)], Some(node(2)), start));
        assert!(duplicates.note(node(3), vec![at(3), at(4)], None, start));
        let later = start + Duration::from_secs(5);
        assert!(!duplicates.note(node(1), vec![at(8)], Some(node(2)), later), "told already");
        let said = found(&duplicates, later);
        let own = "another process uses this node's key, at 10.0.0.8:7442 (seen by n2 0 s ago, \
                   first 5 s ago)";
        assert!(said[0].starts_with(own), "{}", said[0]);
        let other = "two processes use the key of n3, at 10.0.0.3:7442 and 10.0.0.4:7442 (seen by \
                     this node 5 s ago";
        assert!(said[1].starts_with(other), "{}", said[1]);
        for words in ["meshport rotate-key", "`meshport revoke n3`"] {
            assert!(said[1].contains(words), "{words}");
        }
        assert_eq!(duplicates.count(later), 2);
        assert!(found(&duplicates, later + OVER_AFTER).is_empty());
        assert_eq!(duplicates.count(later + OVER_AFTER), 0);
    }

    #[test]
    fn one_that_lasts_is_logged_every_ten_minutes() {
        let start = Instant::now();
        let mut duplicates = Duplicates::default();
        let logged = (0..3600 / 5).filter(|count| {
            let now = start + Duration::from_secs(5 * count);
            duplicates.note(node(1), vec![at(9)], None, now)
        });
        assert_eq!(logged.count(), 6);
    }

    #[test]
    fn they_are_bounded() {
        let start = Instant::now();
        let mut duplicates = Duplicates::default();
        for number in 0..=255 {
            let now = start + Duration::from_millis(number.into());
            duplicates.note(node(number), vec![at(1), at(2)], None, now);
        }
        assert_eq!(duplicates.0.len(), MAX_DUPLICATES);
    }
}
