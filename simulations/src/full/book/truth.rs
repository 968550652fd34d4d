//! What is so, by the scenario, beside what nodes hold: who has to know whom, who serves, what the
//! clients' own count of sessions is.

use std::collections::BTreeMap;
use std::time::Duration;

use meshport_config::NodeId;
use meshport_core::route::Standing;

use super::super::{lock, machine};
use super::Book;
use crate::report::Violation;
use crate::rules::{self, LONG_STALL, Line, MAX_VIOLATIONS, SETTLING};

/// Sessions of clients, by their own count.
#[derive(Debug, Default)]
pub(in super::super) struct Sessions {
    /// Which node's clients have them, and whose instance serves them, by number.
    open: BTreeMap<u64, (usize, usize)>,
    numbers: u64,
    tallies: Vec<Tally>,
}

/// Sessions of one node's clients since the beginning.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    opened: u64,
    closed: u64,
    /// How many of them an earlier process of the node has had.
    before: u64,
}

impl Sessions {
    fn tally(&mut self, node: usize) -> &mut Tally {
        if self.tallies.len() <= node {
            self.tallies.resize(node + 1, Tally::default());
        }
        &mut self.tallies[node]
    }

    /// A client of a node is served by the instance of another; the session's number.
    pub(super) fn open(&mut self, node: usize, origin: usize) -> u64 {
        self.numbers += 1;
        self.open.insert(self.numbers, (node, origin));
        self.tally(node).opened += 1;
        self.numbers
    }

    pub(super) fn close(&mut self, number: u64) {
        if let Some((node, _)) = self.open.remove(&number) {
            self.tally(node).closed += 1;
        }
    }

    /// What does not add up for a node.
    fn miscounted(&self, node: usize) -> Option<String> {
        let Tally { opened, closed, .. } = *self.tallies.get(node)?;
        let open = self.open.values().filter(|(at, _)| *at == node).count() as u64;
        (opened != closed + open)
            .then(|| format!("{opened} sessions opened, {closed} closed, {open} open"))
    }
}

/// Since when nodes and ways are as they are, which excuses what others hold of them for a while.
#[derive(Debug)]
pub(in super::super) struct Since {
    nodes: Vec<Duration>,
    ways: Duration,
}

impl Since {
    pub(super) fn new(nodes: usize) -> Self {
        Self { nodes: vec![Duration::ZERO; nodes], ways: Duration::ZERO }
    }
}

impl Book {
    pub(in super::super) fn violation(
        &self,
        rule: &'static str,
        node: Option<usize>,
        what: String,
    ) -> Violation {
        let last = node.map(|at| lock(&self.wire).trace.last(at)).unwrap_or_default();
        let node = node.map(|at| self.names[at].clone());
        Violation { at: machine::now(), rule, node, what, last }
    }

    fn violates(&mut self, rule: &'static str, node: usize, what: String) {
        if self.violations.len() < MAX_VIOLATIONS {
            let violation = self.violation(rule, Some(node), what);
            self.violations.push(violation);
        }
    }

    pub(in super::super) fn number(&self, id: &NodeId) -> Option<usize> {
        self.by_id.get(id).copied()
    }

    /// A node has started, moved, or was as good as gone, until then.
    pub(in super::super) fn unsettled(&mut self, node: usize, until: Duration) {
        self.since.nodes[node] = self.since.nodes[node].max(until);
        self.disturbed = self.disturbed.max(until);
    }

    /// A node's process will stand still again and again for so long, until then.
    pub(in super::super) fn starves(&mut self, node: usize, stall: Duration, until: Duration) {
        self.disturbed = self.disturbed.max(until + stall);
        if stall > LONG_STALL {
            self.unsettled(node, until + stall);
        }
    }

    pub(in super::super) fn ways_changed(&mut self) {
        self.since.ways = machine::now();
    }

    /// A process of a node begins: its own count does as well.
    pub(in super::super) fn starts(&mut self, node: usize) {
        let tally = self.sessions.tally(node);
        tally.before = tally.opened;
        self.unsettled(node, machine::now());
    }

    /// Whether a node runs and has not been revoked.
    pub(in super::super) fn takes_part(&self, node: usize) -> bool {
        self.routes[node].is_some() && self.revoked[node].is_none()
    }

    /// From when on two nodes have no excuse any more for not knowing each other; none while one of
    /// them does not take part, or is out of the other's reach.
    pub(in super::super) fn settles(&self, holder: usize, subject: usize) -> Option<Duration> {
        let mutual = self.takes_part(holder) && self.takes_part(subject);
        if !mutual || !lock(&self.wire).network.connects(holder, subject) {
            return None;
        }
        Some(self.settled(&[holder, subject]))
    }

    /// A node has found a member silent, and suspects it: by mistake, if that one takes part and is
    /// within reach, and nothing excuses it.
    pub(in super::super) fn suspects(&mut self, node: usize, subject: &NodeId) {
        let (Some(subject), now) = (self.number(subject), machine::now()) else { return };
        self.note(node, format!("suspects {}", self.names[subject]));
        if now < self.warmup {
            return;
        }
        let is_wrong = self.settles(node, subject).is_some_and(|since| since <= now);
        let seen = self.measures.suspicions.get_or_insert_default();
        seen.raised += 1;
        seen.wrong += u64::from(is_wrong);
    }

    /// A node has suspected so many more than it tells of at once.
    pub(in super::super) fn overlooks(&mut self, node: usize, missed: u64) {
        let what = format!("{missed} suspicions more than can be told of at once");
        self.violates(rules::QUEUES, node, what);
    }

    /// From when on these nodes, and the ways, have been as they are for long enough.
    pub(in super::super) fn settled(&self, nodes: &[usize]) -> Duration {
        let since = nodes.iter().map(|node| self.since.nodes[*node]).max();
        since.unwrap_or_default().max(self.since.ways) + SETTLING
    }

    /// The nodes that take part and are within reach of a node, itself included.
    pub(in super::super) fn within_reach(&self, node: usize) -> Vec<usize> {
        let wire = lock(&self.wire);
        let reached = |other: &usize| *other == node || wire.network.connects(node, *other);
        (0..self.ids.len()).filter(|at| self.takes_part(*at)).filter(reached).collect()
    }

    /// A client looks for an instance: what its node would try first must not be dead while
    /// something better is there.
    pub(in super::super) fn begins(&mut self, node: usize) {
        self.measures.sessions.begun += 1;
        let Some(route) = self.routes[node].clone() else { return };
        let firsts = route.home().iter().chain(route.first().filter(|_| route.home().is_empty()));
        for first in firsts {
            let Line::Direct(origin) = first.origin.line else { continue };
            let Some(better) = rules::better_than_dead(&route, origin) else { continue };
            let name = |id: &NodeId| self.number(id).map_or("?", |at| self.name(at)).to_owned();
            let what = rules::dead_choice(&name(&origin), &name(&better));
            return self.violates(rules::DEAD_ORIGIN, node, what);
        }
    }

    /// A client of a node was answered by an origin's instance: has one of them been revoked long
    /// ago? What a node's local instance does for its own clients is nobody else's business.
    pub(in super::super) fn served(&mut self, node: usize, origin: usize) {
        let since = [self.revoked[node], self.revoked[origin]].into_iter().flatten().min();
        let Some(since) = since.filter(|_| node != origin) else { return };
        if machine::now() > self.settled(&[node, origin]).max(since + SETTLING) {
            let what = format!("it serves a client of {}", self.names[node]);
            self.violates(rules::SERVED_NO_MORE, origin, what);
        }
    }

    /// Whether a client of a node has a session with an origin.
    pub(in super::super) fn has_session(&self, node: usize, origin: usize) -> bool {
        self.sessions.open.values().any(|ends| *ends == (node, origin))
    }

    /// What does not add up in the count of a node's clients.
    pub(in super::super) fn miscounted(&self, node: usize) -> Option<String> {
        self.sessions.miscounted(node)
    }

    /// Sessions that clients of a node have opened through its present process.
    pub(in super::super) fn opened_by_process(&self, node: usize) -> u64 {
        let tally = self.sessions.tallies.get(node);
        tally.map_or(0, |tally| tally.opened - tally.before)
    }

    /// Where a node goes if that is not good, though another origin serves.
    pub(in super::super) fn bad_route(&self, node: usize) -> Option<String> {
        let line = self.first_line(node);
        let works = line.is_some_and(|line| self.works(node, &line));
        if works || !(0..self.ids.len()).any(|origin| self.serves(node, origin)) {
            return None;
        }
        let to = line.map_or("nobody".into(), |line| {
            let origin = line.origin().and_then(|id| self.number(&id));
            origin.map_or_else(|| line.to_string(), |origin| self.names[origin].clone())
        });
        Some(format!("it goes to {to}, which does not serve, though another origin does"))
    }

    /// Where a node goes if that is clearly farther than the nearest origin that serves.
    pub(in super::super) fn strays(&self, node: usize) -> Option<String> {
        let Line::Direct(first) = self.first_line(node)? else { return None };
        let first = self.number(&first)?;
        let serving = (0..self.ids.len()).filter(|origin| self.serves(node, *origin));
        let best = serving.min_by_key(|origin| self.distance(node, *origin))?;
        let (own, least) = (self.distance(node, first), self.distance(node, best));
        rules::is_far(own, least).then(|| {
            let (to, better) = (&self.names[first], &self.names[best]);
            format!("it goes to {to}, {own:?} away, though {better} serves at {least:?}")
        })
    }

    /// The line of a node's first candidate, if it is worth trying.
    fn first_line(&self, node: usize) -> Option<Line> {
        let first = self.routes[node].as_ref()?.first()?;
        (first.standing < Standing::Down).then_some(first.origin.line)
    }

    /// Whether sessions of a node that take this line reach an instance that is ready.
    fn works(&self, node: usize, line: &Line) -> bool {
        let number = |id: Option<NodeId>| id.and_then(|id| self.number(&id));
        let Some((origin, hop)) = number(line.origin()).zip(number(line.first_hop())) else {
            return false;
        };
        let is_reached = hop == node || lock(&self.wire).network.connects(node, hop);
        self.takes_part(hop) && is_reached && self.serves(hop, origin)
    }
}

#[cfg(test)]
mod tests;
