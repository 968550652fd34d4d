//! Why sessions go where they go, as [`crate::admin::explain`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use meshport_config::{NodeId, NodeName, ServiceName, SiteName};
use meshport_discovery::{Entry, Liveness};

use crate::admin::api::{NodeRef, OriginRef};
use crate::admin::explain::{
    CandidateFacts, Explanation, LineSessions, RelayFacts, RouteChange, Seen,
};
use meshport_core::changes::{Change, Choice};
use meshport_core::findings::{Finding, SAME_NAMES};
use meshport_core::node::NodeCore;
use meshport_core::relay::Offer;
use meshport_core::route::{Candidate, Line, PathView};

use super::{Reporter, age_s, in_ms, name};
use meshport_core::ledger::Side;

/// Relays shown per origin: the one in use and the next best.
const MAX_RELAYS_SHOWN: usize = 5;
/// Maximum duplicate names in warnings, one sentence each.
const MAX_SAME_NAMES: usize = 3;
/// Ids shown per duplicate name.
const MAX_SHORTS: usize = 4;

impl Reporter<'_> {
    /// Every service and the reason for its route.
    pub(crate) fn explanations(&self, now: Instant) -> Vec<Explanation> {
        self.core.services().map(|name| self.explanation(name, now)).collect()
    }

    fn explanation(&self, name: &ServiceName, now: Instant) -> Explanation {
        let status = self.service(name, now);
        let route = self.core.route(name).cloned().unwrap_or_default();
        let facts = |(candidate, status)| {
            let candidate: &Candidate = candidate;
            let view = &candidate.origin;
            let measured = matches!(view.path, PathView::Up(_)) && view.line.origin().is_some();
            let origin = view.line.origin();
            CandidateFacts {
                status,
                standing: candidate.standing.word().into(),
                cost_ms: in_ms(candidate.cost),
                deviation_ms: measured.then(|| in_ms(view.deviation)),
                evidence: (self.core.evidence(name, &view.line, now) * 10.0).round() / 10.0,
                seen: origin.map(|origin| self.seen(&origin)),
                relays: self.relays(name, candidate, now),
            }
        };
        let change = |change: &Change| RouteChange {
            age_s: age_s(change.at, now),
            from: change.from.as_ref().map(|it| choice(self.core, it)),
            to: change.to.as_ref().map(|it| choice(self.core, it)),
            cause: change.cause.into(),
        };
        Explanation {
            service: name.clone(),
            policy: status.policy,
            chosen: status.chosen,
            candidates: route.candidates.iter().zip(status.origins).map(facts).collect(),
            sessions: self.lines(name),
            changes: self.core.changes(name).map(change).collect(),
        }
    }

    /// A change of a route in words: "cp-1 to cp-2: refusing".
    pub(crate) fn change(&self, it: &Change) -> String {
        change(self.core, it)
    }

    /// How the other nodes see an origin.
    pub(super) fn seen(&self, origin: &NodeId) -> Seen {
        let others = self.core.discovery().directory().iter();
        let others = others.filter(|(node, entry)| {
            **node != self.state.identity.me.node
                && *node != origin
                && entry.liveness == Liveness::Alive
        });
        let told = others.filter_map(|(_, entry)| {
            let mut distances = entry.node_state()?.distances.iter();
            let distance = distances.find(|it| it.origin == *origin)?;
            let rtt = distance.rtt_us.map(|us| Duration::from_micros(us.into()));
            Some((entry.credential.site.clone(), rtt))
        });
        seen(told)
    }

    pub(super) fn relays(
        &self,
        service: &ServiceName,
        candidate: &Candidate,
        now: Instant,
    ) -> Vec<RelayFacts> {
        let line = candidate.origin.line;
        let Some(origin) = line.origin().filter(|origin| *origin != self.state.identity.me.node)
        else {
            return Vec::new();
        };
        let facts = |offer: Offer| {
            let credential = &self.core.discovery().directory().get(&offer.relay)?.credential;
            Some(RelayFacts {
                name: credential.name.clone(),
                site: credential.site.clone(),
                rtt_ms: in_ms(offer.rtt),
                cost_ms: in_ms(offer.cost()),
                loss_percent: offer.loss_percent,
                suspect: offer.suspect,
                proven: offer.proven,
                used: line == Line::Relayed { origin, relay: offer.relay },
            })
        };
        let offers = self.core.offers(service, origin, now);
        let mut relays: Vec<RelayFacts> = offers.into_iter().filter_map(facts).collect();
        // The one in use may no longer be the best.
        relays.sort_by_key(|relay| !relay.used);
        relays.truncate(MAX_RELAYS_SHOWN);
        relays
    }

    /// The sessions of this node's clients by line.
    pub(super) fn lines(&self, service: &ServiceName) -> Vec<LineSessions> {
        let directory = self.core.discovery().directory();
        let named = |(line, open): (Line, u64)| {
            let entry = line.origin().and_then(|node| directory.get(&node));
            let relay = match line {
                Line::Relayed { relay, .. } => Some(self.name(&relay)),
                Line::Direct(_) | Line::Outside(_) => None,
            };
            let name = match line {
                Line::Relayed { origin, .. } => self.name(&origin),
                Line::Direct(_) | Line::Outside(_) => self.line(&line),
            };
            let site = entry.map(|entry| entry.credential.site.clone());
            LineSessions { who: OriginRef { node: line.origin(), name, site, relay }, open }
        };
        let lines = self.state.sessions.lines(service, Side::Client);
        lines.into_iter().map(named).collect()
    }

    /// Findings for names that several nodes have, which refer to none of them.
    pub(super) fn same_names(&self) -> Vec<Finding> {
        let here = |entry: &&Entry| matches!(entry.liveness, Liveness::Alive | Liveness::Unknown);
        let entries = self.core.discovery().directory().iter().map(|(_, entry)| entry);
        let others = entries.filter(here).map(|entry| (&entry.credential.name, entry.node()));
        same_names(others.chain([(&self.state.identity.me.name, self.state.identity.me.node)]))
    }
}

/// A change of a route in words: "cp-1 to cp-2: refusing".
pub(crate) fn change(core: &NodeCore, change: &Change) -> String {
    let said =
        |it: &Option<Choice>| it.as_ref().map_or_else(|| "none".into(), |it| choice(core, it));
    format!("{} to {}: {}", said(&change.from), said(&change.to), change.cause)
}

fn choice(core: &NodeCore, choice: &Choice) -> String {
    match choice.line {
        Line::Relayed { relay, .. } => format!("{} through {}", choice.name, name(core, &relay)),
        Line::Direct(_) | Line::Outside(_) => choice.name.clone(),
    }
}

fn same_names<'a>(nodes: impl Iterator<Item = (&'a NodeName, NodeId)>) -> Vec<Finding> {
    let mut by_name: BTreeMap<&NodeName, BTreeSet<NodeId>> = BTreeMap::new();
    for (name, node) in nodes {
        by_name.entry(name).or_default().insert(node);
    }
    let several = by_name.into_iter().filter(|(_, nodes)| nodes.len() > 1);
    let finding = |(name, nodes): (&NodeName, BTreeSet<NodeId>)| {
        let shorts: Vec<String> = nodes.iter().take(MAX_SHORTS).map(NodeId::short).collect();
        SAME_NAMES.found(format!("{} nodes are named {name} ({})", nodes.len(), shorts.join(", ")))
    };
    several.take(MAX_SAME_NAMES).map(finding).collect()
}

/// Whether `target` may refer to this node: its name, its NodeId or the short form.
pub(super) fn is_meant(who: &NodeRef, target: &str) -> bool {
    let ids = [who.node.to_string(), who.node.short()];
    who.name.as_ref() == target || ids.iter().any(|id| id == target)
}

/// Summarises all measurements of an origin.
fn seen(told: impl Iterator<Item = (SiteName, Option<Duration>)>) -> Seen {
    let mut seen = Seen::default();
    let mut sites: BTreeSet<SiteName> = BTreeSet::new();
    let (mut least, mut most): (Option<Duration>, Option<Duration>) = (None, None);
    for (site, rtt) in told {
        seen.nodes += 1;
        if rtt.is_none() {
            seen.unreachable += 1;
            sites.insert(site);
        }
        least = least.into_iter().chain(rtt).min();
        most = most.into_iter().chain(rtt).max();
    }
    seen.unreachable_sites = sites.into_iter().collect();
    (seen.least_ms, seen.most_ms) = (least.map(in_ms), most.map(in_ms));
    seen.words = words(&seen);
    seen
}

fn words(seen: &Seen) -> String {
    let nodes = if seen.nodes == 1 { "node" } else { "nodes" };
    let of = match (seen.unreachable, seen.nodes) {
        (_, 0) => return "no other node measures it".into(),
        (0, 1) => return "reachable from the only other node that measures it".into(),
        (0, 2) => return "reachable from both other nodes that measure it".into(),
        (0, all) => return format!("reachable from all {all} other nodes that measure it"),
        (some, all) => format!("unreachable from {some} of {all} {nodes}"),
    };
    match seen.unreachable_sites.as_slice() {
        [site] if seen.unreachable > 1 => format!("{of}, all in site {site}"),
        [site] => format!("{of}, in site {site}"),
        sites => {
            let names: Vec<&str> = sites.iter().map(AsRef::as_ref).collect();
            format!("{of}, in sites {}", names.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words_of(told: &[(&str, Option<u64>)]) -> String {
        let told = told
            .iter()
            .map(|(site, ms)| (site.parse().expect("a site"), ms.map(Duration::from_millis)));
        seen(told).words
    }

    #[test]
    fn what_others_see_is_one_sentence() {
        assert_eq!(words_of(&[]), "no other node measures it");
        assert_eq!(
            words_of(&[("a", Some(1)), ("b", Some(9))]),
            "reachable from both other nodes that measure it"
        );
        let four = [("b", None), ("b", None), ("b", None), ("b", None), ("a", Some(2))];
        assert_eq!(words_of(&four), "unreachable from 4 of 5 nodes, all in site b");
        assert_eq!(words_of(&four[3..]), "unreachable from 1 of 2 nodes, in site b");
        let two = [("c", None), ("b", None), ("a", Some(2))];
        assert_eq!(words_of(&two), "unreachable from 2 of 3 nodes, in sites b, c");
    }

    #[test]
    fn the_extremes_are_reported() {
        let site = || "a".parse().expect("a site");
        let told = [3, 1, 2].map(|ms| (site(), Some(Duration::from_millis(ms))));
        let seen = seen(told.into_iter());
        assert_eq!((seen.least_ms, seen.most_ms), (Some(1.0), Some(3.0)));
    }

    #[test]
    fn a_name_of_several_nodes_is_warned_of() {
        let names: Vec<NodeName> =
            ["cp-1", "cp-2", "cp-1"].map(|name| name.parse().expect("a name")).into();
        let nodes = (1..).map(|number| NodeId::from_bytes([number; 32]));
        let found = same_names(names.iter().zip(nodes));
        let [Finding { detail, .. }] = found.as_slice() else { panic!("{found:?}") };
        assert!(detail.starts_with("2 nodes are named cp-1 ("), "{detail}");
        let one = NodeId::from_bytes([1; 32]);
        assert!(detail.contains(&one.short()));
        // This node's record next to its own name is no second node.
        assert!(same_names([(&names[0], one), (&names[0], one)].into_iter()).is_empty());
    }

    #[test]
    fn a_node_is_meant_by_name_id_or_short_id() {
        let node = NodeId::from_bytes([1; 32]);
        let (name, site) = ("cp-1".parse().expect("a name"), "fra".parse().expect("a site"));
        let who = NodeRef { node, name, site };
        assert!(["cp-1", &node.to_string(), &node.short()].iter().all(|it| is_meant(&who, it)));
        assert!(!is_meant(&who, "cp-2") && !is_meant(&who, &node.short()[1..]));
    }
}
