//! Nodes whose key is used by two processes at once: a state folder or a saved operator credential
//! was copied, by mistake or by a thief. Each takes over the other's tunnels, so long sessions of
//! both are cut repeatedly.
//!
//! The mesh finds them (see `mesh/proto/src/processes.rs`); this module remembers and reports them.
//! Bounded by [`MAX_DUPLICATES`] nodes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use meshport_config::{Credential, Delegation, NodeId};

use crate::findings::{Finding, KEY_USED_TWICE};

/// Maximum nodes remembered; beyond that the one seen longest ago is dropped.
pub const MAX_DUPLICATES: usize = 64;
/// How long a duplicate is reported after its last sign. Both processes send something at least
/// every two minutes.
const OVER_AFTER: Duration = Duration::from_secs(300);
/// A node that is still a duplicate after this time is logged again.
const REMIND: Duration = Duration::from_secs(600);
/// The remedy if the node is a leaf, which has no `rotate-key`. A saved credential has several keys
/// from one invite, which are copied together, so revoking one node is not enough.
const REMEDY_FOR_A_LEAF: &str = "A saved operator credential was copied. Stop the copy, and use a \
                                 new invite on that machine. If it is not yours: on a machine \
                                 with the authority's key, `meshport revoke NODE` shuts out every \
                                 machine that joined with this invite; `meshport invite --site \
                                 SITE --role operator` makes a new one";

#[derive(Debug)]
struct Evidence {
    credential: Arc<Credential>,
    /// Addresses of both; for this node itself, that of the other process.
    at: Vec<SocketAddr>,
    /// The peer that reported this node's own key; `None` for the key of another node.
    by: Option<String>,
    first: Instant,
    last: Instant,
    told: Instant,
}

/// See the module's doc.
#[derive(Debug, Default)]
pub struct Duplicates(BTreeMap<NodeId, Evidence>);

impl Duplicates {
    /// Records that two processes use the key of the node with this credential: this node's own if
    /// a peer reports it, `by` name. Returns the finding if it is to be told now.
    pub fn note(
        &mut self,
        credential: Arc<Credential>,
        at: Vec<SocketAddr>,
        by: Option<String>,
        now: Instant,
    ) -> Option<Finding> {
        self.forget(now);
        let node = credential.node;
        if let Some(known) = self.0.get_mut(&node) {
            (known.credential, known.at, known.by, known.last) = (credential, at, by, now);
            if now.saturating_duration_since(known.told) < REMIND {
                return None;
            }
            known.told = now;
            return Some(known.finding(now));
        }
        if self.0.len() >= MAX_DUPLICATES
            && let Some(oldest) = self.0.iter().min_by_key(|(_, it)| it.last).map(|(node, _)| *node)
        {
            self.0.remove(&oldest);
        }
        let new = Evidence { credential, at, by, first: now, last: now, told: now };
        let finding = new.finding(now);
        self.0.insert(node, new);
        Some(finding)
    }

    /// A finding for each. Once this node has another key, the former one is not reported: that
    /// was the remedy.
    pub fn findings(&self, own: NodeId, now: Instant) -> impl Iterator<Item = Finding> {
        let counts = move |node: NodeId, it: &Evidence| it.by.is_none() || node == own;
        let present = self.0.iter().filter(move |(_, it)| it.is_present(now));
        present.filter(move |(node, it)| counts(**node, it)).map(move |(_, it)| it.finding(now))
    }

    fn forget(&mut self, now: Instant) {
        self.0.retain(|_, it| it.is_present(now));
    }
}

impl Evidence {
    fn finding(&self, now: Instant) -> Finding {
        let Credential { name, roles, delegation, .. } = &*self.credential;
        let at: Vec<String> = self.at.iter().map(ToString::to_string).collect();
        let at = at.join(" and ");
        let ago = |since| now.saturating_duration_since(since).as_secs();
        let (began, last) = (ago(self.first), ago(self.last));
        let by = self.by.as_deref().unwrap_or("this node");
        let seen = format!("seen by {by} {last} s ago, first {began} s ago");
        let is_leaf = roles.is_leaf();
        let (whose, what) = match is_leaf {
            true => ("this machine's", "operator credential"),
            false => ("this node's", "key"),
        };
        let found = KEY_USED_TWICE.found(match self.by {
            Some(_) => format!("another process uses {whose} {what}, at {at} ({seen})"),
            None => format!("two processes use the {what} of {name}, at {at} ({seen})"),
        });
        if !is_leaf {
            return found.naming("NODE", name.as_ref());
        }
        let invite = |it: &Delegation| format!("invite:{} --with-nodes", it.key);
        let target = delegation.as_ref().map_or_else(|| name.to_string(), invite);
        Finding { remedy: REMEDY_FOR_A_LEAF.into(), ..found }.naming("NODE", &target)
    }

    fn is_present(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.last) < OVER_AFTER
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "an origin for virtual time")]

    use super::*;
    use crate::testing::credential;

    fn node(number: u8) -> Arc<Credential> {
        credential(number, "node").into()
    }

    fn at(number: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, number], 7442))
    }

    /// The findings that begin with these words.
    fn found(duplicates: &Duplicates, words: &str, now: Instant) -> Vec<String> {
        let own = node(1).node;
        let said = duplicates.findings(own, now).map(|it| it.to_string());
        said.filter(|it| it.starts_with(words)).collect()
    }

    #[test]
    fn both_and_others_report_the_remedy_until_it_is_over() {
        let start = Instant::now();
        let mut duplicates = Duplicates::default();
        let (own, other) = (node(1), node(3));
        let by = || Some("node-2".to_owned());
        assert!(duplicates.note(own.clone(), vec![at(9)], by(), start).is_some());
        assert!(duplicates.note(other, vec![at(3), at(4)], None, start).is_some());
        let later = start + Duration::from_secs(5);
        assert_eq!(duplicates.note(own, vec![at(8)], by(), later), None, "told already");
        let own = "another process uses this node's key, at 10.0.0.8:7442 (seen by node-2 0 s ago, \
                   first 5 s ago)";
        assert_eq!(found(&duplicates, own, later).len(), 1);
        let other = "two processes use the key of node-3, at 10.0.0.3:7442 and 10.0.0.4:7442 (seen \
                     by this node 5 s ago";
        let said = found(&duplicates, other, later);
        for words in ["meshport rotate-key", "`meshport revoke node-3`"] {
            assert!(said[0].contains(words), "{words}");
        }
        assert_eq!(duplicates.findings(node(1).node, later).count(), 2);
        assert_eq!(duplicates.findings(node(2).node, later).count(), 1, "the key is another one");
        assert!(found(&duplicates, "", later + OVER_AFTER).is_empty());
    }

    #[test]
    fn the_remedy_for_a_leaf_is_another_invite() {
        let start = Instant::now();
        let mut duplicates = Duplicates::default();
        let leaf = |number| Arc::new(credential(number, "operator"));
        let by = Some("node-2".to_owned());
        duplicates.note(leaf(1), vec![at(9)], by, start);
        duplicates.note(leaf(3), vec![at(3), at(4)], None, start);
        for (words, target) in [
            ("another process uses this machine's operator credential, at ", "node-1"),
            ("two processes use the operator credential of node-3, at ", "node-3"),
        ] {
            let said = found(&duplicates, words, start);
            assert!(said[0].contains(&format!("`meshport revoke {target}`")), "{}", said[0]);
            assert!(said[0].contains("--role operator"), "{}", said[0]);
            assert!(!said[0].contains("rotate-key"), "{}", said[0]);
        }
    }

    #[test]
    fn one_that_lasts_is_logged_every_ten_minutes() {
        let start = Instant::now();
        let mut duplicates = Duplicates::default();
        let own = node(1);
        let logged = (0..3600 / 5).filter(|count| {
            let now = start + Duration::from_secs(5 * count);
            duplicates.note(own.clone(), vec![at(9)], None, now).is_some()
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
