//! How peers see this node, and which endpoints it announces as a result.
//!
//! A peer that sees one of this node's own addresses has a direct path to it. A peer that sees
//! another address is behind a NAT from here: this node also announces that address, unless another
//! peer contradicts. A report is only a hint: it decides where others send handshakes first, and
//! what `status` shows.
//!
//! Hole punching between two nodes behind NAT would need a member that makes both start at once;
//! [`Reach::endpoints`] has the addresses for it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;

use meshport_config::NodeId;

/// Maximum peers whose reports are kept, 64 bytes each: more add nothing new.
pub const MAX_WITNESSES: usize = 64;
/// Addresses seen from outside that are announced: one for each family.
const MAX_SEEN: usize = 2;

/// Maximum number of addresses reported for a NAT that uses one for each peer.
const MAX_TOLD: usize = 3;

/// Column text for two nodes that cannot reach each other, with the id of the finding that has the
/// remedy.
pub const BOTH_BEHIND_NAT: &str = "both behind NAT: no direct path (MP106)";
/// The text with the remedy.
pub const BOTH_BEHIND_NAT_REMEDY: &str = "both behind NAT: no direct path; give the role relay to \
                                          a member that both reach, or forward a port and set \
                                          advertise (MP106)";

/// Addresses at which this node is reached from outside, without reports of peers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OwnEndpoints {
    /// From the settings, which thereby handle NAT.
    Advertised(Vec<SocketAddr>),
    /// Derived from the addresses of this machine.
    Guessed(Vec<SocketAddr>),
}

/// How a NAT maps this node's port, as peers see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Nat {
    /// All peers see it at this address.
    Same(SocketAddr),
    /// Only one peer has reported an address.
    OneReport(SocketAddr),
    /// Peers see it at these addresses and maybe more: each peer gets its own mapping.
    PerPeer(Vec<SocketAddr>),
}

impl fmt::Display for Nat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Same(at) => write!(f, "members see this node at {at}, the same for all"),
            Self::OneReport(at) => write!(f, "one member sees this node, at {at}"),
            Self::PerPeer(at) => {
                let at: Vec<String> = at.iter().map(ToString::to_string).collect();
                let at = at.join(", ");
                write!(f, "its NAT shows each member another address of this node ({at})")
            }
        }
    }
}

/// The address at which a peer sees this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sighting {
    at: SocketAddr,
    /// It is an address of this machine.
    is_own: bool,
    /// Later reports have higher numbers.
    number: u64,
}

/// The reports of peers with a tunnel about this node's address.
#[derive(Debug, Default)]
pub struct Reach {
    sights: BTreeMap<NodeId, Sighting>,
    /// The number of the last report.
    last: u64,
    /// Its own endpoints: those of the settings, or its addresses.
    own: Vec<SocketAddr>,
    /// Whether they are in the settings, which thereby handle NAT.
    is_set: bool,
}

impl Reach {
    /// Sets this node's addresses as known without asking peers.
    pub fn set_own(&mut self, own: OwnEndpoints) {
        (self.own, self.is_set) = match own {
            OwnEndpoints::Advertised(at) => (at, true),
            OwnEndpoints::Guessed(at) => (at, false),
        };
    }

    /// Records at which address a peer sees this node; `is_own` if it belongs to this machine.
    pub fn note(&mut self, by: NodeId, at: SocketAddr, is_own: bool) {
        if self.sights.len() < MAX_WITNESSES || self.sights.contains_key(&by) {
            self.last += 1;
            self.sights.insert(by, Sighting { at, is_own, number: self.last });
        }
    }

    /// Drops the report of a peer whose tunnel has ended.
    pub fn forget(&mut self, by: &NodeId) {
        self.sights.remove(by);
    }

    /// Whether a node behind another NAT cannot start a handshake with this one.
    pub fn is_behind_nat(&self) -> bool {
        !self.is_set && self.sights.values().any(|sight| !sight.is_own)
    }

    /// The NAT in front of this node as its peers see it; `None` without a NAT.
    pub fn nat(&self) -> Option<Nat> {
        let sights = self.sights.values().filter(|sight| !self.is_set && !sight.is_own);
        let mut reports: BTreeMap<SocketAddr, usize> = BTreeMap::new();
        sights.for_each(|sight| *reports.entry(sight.at).or_default() += 1);
        let (v4, v6): (Vec<_>, Vec<_>) = reports.iter().partition(|(at, _)| at.is_ipv4());
        let differs = [&v4, &v6].into_iter().find(|family| family.len() > 1);
        match (differs, reports.first_key_value()) {
            (Some(family), _) => {
                let at = family.iter().take(MAX_TOLD).map(|(at, _)| **at);
                Some(Nat::PerPeer(at.collect()))
            }
            (None, Some((at, 1))) => Some(Nat::OneReport(*at)),
            (None, Some((at, _))) => Some(Nat::Same(*at)),
            (None, None) => None,
        }
    }

    /// The kind of NAT in front of this node as a word for reports: `none`; by RFC 4787, section
    /// 4.1, `endpoint-independent` if all peers see one address of it, else `endpoint-dependent`;
    /// `one-report` if a single peer has reported one; `advertised` if the settings handle NAT;
    /// `unknown` without any report.
    pub fn nat_kind(&self) -> &'static str {
        match self.nat() {
            _ if self.is_set => "advertised",
            Some(Nat::Same(_)) => "endpoint-independent",
            Some(Nat::PerPeer(_)) => "endpoint-dependent",
            Some(Nat::OneReport(_)) => "one-report",
            None if self.sights.is_empty() => "unknown",
            None => "none",
        }
    }

    /// Addresses at which peers see this node, at most three: those of a NAT, else its own.
    pub fn seen_at(&self) -> Vec<SocketAddr> {
        let at = |is_own| {
            let sights = self.sights.values().filter(move |sight| sight.is_own == is_own);
            sights.map(|sight| sight.at).collect::<BTreeSet<_>>()
        };
        let foreign = at(false);
        let all = if foreign.is_empty() { at(true) } else { foreign };
        all.into_iter().take(MAX_TOLD).collect()
    }

    /// The endpoints to announce: this node's own, and the addresses others see it at.
    pub fn endpoints(&self) -> Vec<SocketAddr> {
        let mut all = self.own.clone();
        if !self.is_set {
            all.extend(self.seen());
        }
        all
    }

    /// The addresses that peers see and agree on, one for each family. If each sees another port,
    /// the NAT maps every destination separately, and no mapping is useful to a third node. After a
    /// NAT has changed its mapping, peers that received nothing since still report the old address,
    /// so the address with the newest second report counts: two witnesses suffice and a single liar
    /// does not.
    fn seen(&self) -> impl Iterator<Item = SocketAddr> {
        let mut reports: BTreeMap<SocketAddr, Vec<u64>> = BTreeMap::new();
        for sight in self.sights.values().filter(|sight| !sight.is_own) {
            reports.entry(sight.at).or_default().push(sight.number);
        }
        let families: BTreeSet<bool> = reports.keys().map(SocketAddr::is_ipv4).collect();
        let agreed = families.into_iter().filter_map(move |v4| {
            let of_family = reports.iter_mut().filter(|(at, _)| at.is_ipv4() == v4);
            let mut of_family: Vec<_> = of_family.collect();
            if let [(only, _)] = of_family[..] {
                return Some(*only);
            }
            let second = |numbers: &mut Vec<u64>| {
                numbers.sort_unstable();
                numbers.iter().rev().nth(1).copied()
            };
            let agreed = of_family.iter_mut().filter_map(|(at, all)| Some((second(all)?, **at)));
            agreed.max().map(|(_, at)| at)
        });
        agreed.take(MAX_SEEN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    fn peer(number: u8) -> NodeId {
        NodeId::from_bytes([number; 32])
    }

    const OWN: &str = "10.0.0.5:7442";

    fn reach(seen: &[(&str, bool)]) -> Reach {
        let mut reach = Reach::default();
        reach.set_own(OwnEndpoints::Guessed(vec![at(OWN)]));
        for (number, (seen, is_own)) in (0..).zip(seen) {
            reach.note(peer(number), at(seen), *is_own);
        }
        reach
    }

    #[test]
    fn an_own_address_is_no_nat() {
        let reach = reach(&[(OWN, true), ("192.168.1.2:7442", true)]);
        assert!(!reach.is_behind_nat());
        assert_eq!(reach.endpoints(), [at(OWN)]);
    }

    #[test]
    fn an_address_that_all_see_is_announced_with_its_own_ones() {
        let mapped = "203.0.113.7:41000";
        for seen in [&[(mapped, false)][..], &[(mapped, false), (mapped, false), (OWN, true)]] {
            let reach = reach(seen);
            assert!(reach.is_behind_nat());
            assert_eq!(reach.endpoints(), [at(OWN), at(mapped)]);
        }
        let both = reach(&[(mapped, false), ("[2001:db8::7]:41000", false)]);
        assert_eq!(both.endpoints(), [at(OWN), at("[2001:db8::7]:41000"), at(mapped)]);
    }

    #[test]
    fn a_nat_that_gives_each_peer_another_port_has_nothing_to_announce() {
        let hard = reach(&[("203.0.113.7:1", false), ("203.0.113.7:2", false)]);
        assert!(hard.is_behind_nat());
        assert_eq!(hard.endpoints(), [at(OWN)]);
        // A lying peer does not outweigh two that agree.
        let mapped = "203.0.113.7:41000";
        let lied = reach(&[(mapped, false), ("192.0.2.66:53", false), (mapped, false)]);
        assert_eq!(lied.endpoints(), [at(OWN), at(mapped)]);
    }

    #[test]
    fn the_kind_of_a_nat_is_what_peers_see() {
        assert_eq!(reach(&[]).nat_kind(), "unknown");
        let open = reach(&[(OWN, true)]);
        assert_eq!((open.nat(), open.nat_kind(), open.seen_at()), (None, "none", vec![at(OWN)]));
        let mapped = "203.0.113.7:41000";
        let once = reach(&[(mapped, false)]);
        assert_eq!((once.nat(), once.nat_kind()), (Some(Nat::OneReport(at(mapped))), "one-report"));
        let easy = reach(&[(mapped, false), (OWN, true), (mapped, false)]);
        assert_eq!(easy.nat(), Some(Nat::Same(at(mapped))));
        assert_eq!((easy.nat_kind(), easy.seen_at()), ("endpoint-independent", vec![at(mapped)]));
        let hard = reach(&[("203.0.113.7:1", false), ("203.0.113.7:2", false)]);
        let said = hard.nat().expect("there is one").to_string();
        assert!(said.ends_with("(203.0.113.7:1, 203.0.113.7:2)"), "{said}");
        assert_eq!((hard.nat_kind(), hard.seen_at().len()), ("endpoint-dependent", 2));
        let mut set = reach(&[(mapped, false)]);
        set.set_own(OwnEndpoints::Advertised(vec![at(mapped)]));
        assert_eq!((set.nat(), set.nat_kind()), (None, "advertised"));
    }

    #[test]
    fn a_new_mapping_counts_as_soon_as_two_see_it_whatever_the_others_saw_before() {
        let (old, new) = ("203.0.113.7:41000", "203.0.113.7:52000");
        for (old, new) in [(old, new), (new, old)] {
            let mut reach = reach(&[(old, false), (old, false), (old, false), (old, false)]);
            reach.note(peer(3), at(new), false);
            assert_eq!(reach.endpoints(), [at(OWN), at(old)], "one may be wrong");
            reach.note(peer(2), at(new), false);
            assert_eq!(reach.endpoints(), [at(OWN), at(new)]);
            reach.note(peer(0), at(old), false);
            assert_eq!(reach.endpoints(), [at(OWN), at(new)], "a late report of one");
        }
    }

    #[test]
    fn what_the_settings_say_is_believed_and_what_is_gone_is_forgotten() {
        let mut reach = reach(&[("203.0.113.7:41000", false)]);
        reach.set_own(OwnEndpoints::Advertised(vec![at("203.0.113.7:7442")]));
        assert!(!reach.is_behind_nat());
        assert_eq!(reach.endpoints(), [at("203.0.113.7:7442")]);
        reach.set_own(OwnEndpoints::Guessed(vec![at(OWN)]));
        assert!(reach.is_behind_nat());
        reach.forget(&peer(0));
        assert!(!reach.is_behind_nat());
    }

    #[test]
    fn witnesses_are_bounded() {
        let mut reach = reach(&[]);
        for number in 0..=255 {
            reach.note(peer(number), at("203.0.113.7:41000"), false);
        }
        assert_eq!(reach.sights.len(), MAX_WITNESSES);
    }
}
