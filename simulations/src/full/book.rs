//! What is written down about a run: routes, sessions, and what nodes show, for the rules and the
//! measures that all levels share. The wire is here too, since one lock guards both.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use meshport_config::{NodeId, Revocations};
use meshport_core::route::Route;
use meshport_daemon::admin::api::Status;

use super::saved::Record;
use super::wire::Wire;
use crate::flight::StreamPath;
use crate::level::{Follow, Held, Judge, Level, Scene, Ties};
use crate::measure::{Measures, Notice, Suspicions, WayBack, micros};
use crate::report::keys;
use crate::rules;

mod sessions;

use sessions::Sessions;

/// See the module's description.
pub(super) struct Book {
    pub(super) scene: Scene,
    pub(super) wire: Wire,
    /// The latest route of each node that runs.
    pub(super) routes: Vec<Option<Arc<Route>>>,
    /// The revocations in the state folder of each node.
    pub(super) revocations: Vec<Revocations>,
    /// The last answer of each node.
    pub(super) seen: Vec<Seen>,
    sessions: Sessions,
    /// Measures of the way back.
    pub(super) back: Measures,
    /// Its refusals, by the status of the answer.
    refused: BTreeMap<u16, u64>,
}

/// A node's view of others, and of itself.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen {
    /// The nodes that are down, or have left.
    absent: BTreeSet<usize>,
    /// How many are there, itself included.
    pub(super) alive: usize,
    /// What it would save of each.
    pub(super) records: BTreeMap<usize, Record>,
    /// Revoked nodes that are among its peers.
    pub(super) revoked_peers: BTreeSet<usize>,
    /// For how long it has gone where it goes, if its settings are to go to the nearest.
    pub(super) lasting: Option<Duration>,
}

impl Level for Book {
    const NAME: keys::Level = keys::Level::Full;
    const SHOWN_BY_ROUTE: &[Notice] = &[Notice::Instance, Notice::Gone];

    fn scene(&self) -> &Scene {
        &self.scene
    }

    fn scene_mut(&mut self) -> &mut Scene {
        &mut self.scene
    }

    fn runs(&self, at: usize) -> bool {
        self.routes[at].is_some()
    }

    fn route(&self, at: usize) -> Option<&Route> {
        self.routes[at].as_deref()
    }

    fn lasting(&self, at: usize) -> Option<Duration> {
        self.seen[at].lasting
    }

    fn shuts_out(&self, at: usize, subject: usize) -> bool {
        self.revocations[at].has_node(&self.scene.account.id(subject))
    }

    fn ties(&self, at: usize, subject: usize) -> Ties {
        let tunnel = self.seen[at].revoked_peers.contains(&subject);
        Ties { entry: false, tunnel, session: self.sessions.has(at, subject) }
    }

    fn holds(&self, at: usize, subject: usize) -> Held {
        let record = |of: usize| self.seen[of].records.get(&subject);
        match (record(at), record(subject)) {
            _ if self.seen[at].absent.contains(&subject) => Held::Absent,
            (None, _) => Held::Nothing,
            (Some(held), Some(own)) if held.says_the_same(own) => Held::Newest,
            _ => Held::Older,
        }
    }

    fn alive(&self, at: usize) -> Option<usize> {
        Some(self.seen[at].alive)
    }

    fn has_to_notice(&self, at: usize, victim: usize, notice: Notice) -> bool {
        match notice {
            Notice::Instance | Notice::Gone => self.believes_in(at, victim),
            Notice::Revoked => true,
            // At this level it is not visible when a node becomes a member.
            Notice::Came | Notice::Way | Notice::Nothing => false,
        }
    }
}

impl Book {
    pub(super) fn new(mut scene: Scene) -> Self {
        let nodes = scene.account.len();
        scene.measures.suspicions = Some(Suspicions::default());
        Self {
            scene,
            wire: Wire::new(nodes),
            routes: vec![None; nodes],
            revocations: vec![Revocations::default(); nodes],
            seen: vec![Seen::default(); nodes],
            sessions: Sessions::new(nodes),
            back: Measures::default(),
            refused: BTreeMap::new(),
        }
    }

    /// A process of a node begins.
    pub(super) fn starts(&mut self, node: usize, boot: u32) {
        self.sessions.starts(node);
        self.process_starts(node, boot);
    }

    /// A node's route is another one.
    pub(super) fn routed(&mut self, node: usize, route: Arc<Route>) {
        let before = self.first(node);
        self.routes[node] = Some(route);
        let is_other = self.first(node) != before;
        let words = is_other.then(|| self.goes(node));
        self.route_changed(node, words);
    }

    /// A node's status: the nodes it considers down, and counts as present.
    pub(super) fn status(&mut self, node: usize, status: &Status) {
        let number = |id: &NodeId| self.scene.account.number(id);
        let absent = status.absent.iter().filter_map(|it| number(&it.who.node)).collect();
        let down = status.absent.iter().filter(|it| it.liveness == "down");
        let down: BTreeSet<usize> = down.filter_map(|it| number(&it.who.node)).collect();
        self.holds_absent(node, &absent, |subject| !down.contains(&subject));
        let seen = &mut self.seen[node];
        (seen.absent, seen.alive) = (absent, status.members.alive);
    }

    /// A node has suspected a member.
    pub(super) fn suspected(&mut self, node: usize, subject: &NodeId) {
        if let Some(subject) = self.scene.account.number(subject) {
            self.suspects(node, subject);
        }
    }

    /// A node has suspected so many more than it tells of at once.
    pub(super) fn overlooks(&mut self, node: usize, missed: u64) {
        let what = format!("{missed} suspicions more than can be told of at once");
        self.violates(rules::QUEUES, node, what);
    }

    /// A node knows of these revocations.
    pub(super) fn hears_of(&mut self, node: usize, all: &Revocations) {
        for subject in 0..self.scene.account.len() {
            if all.has_node(&self.scene.account.id(subject)) {
                self.notices(node, subject, Notice::Revoked);
            }
        }
        self.says(node, format!("knows of {} revocations", all.len()));
    }

    /// A client looks for an instance: what its node would try first must not be dead while
    /// something better is there.
    pub(super) fn looks_for_one(&mut self, node: usize) {
        self.scene.measures.sessions.begun += 1;
        let Some(route) = self.routes[node].clone() else { return };
        let firsts = route.home().iter().chain(route.first().filter(|_| route.home().is_empty()));
        for first in firsts {
            self.check_choice(node, &first.origin.line);
        }
    }

    /// A client has reached an instance; its session's number.
    pub(super) fn connected(&mut self, node: usize, chosen: usize, took: Duration) -> u64 {
        self.scene.measures.sessions.opened += 1;
        let number = self.sessions.open(node, chosen);
        let to = self.scene.account.name(chosen);
        self.says(node, format!("session to {to} after {} us", took.as_micros()));
        self.measure_choice(node, Some(StreamPath::direct(chosen)), took);
        number
    }

    /// The session with that number has ended.
    pub(super) fn closed(&mut self, number: u64) {
        self.scene.measures.sessions.closed += 1;
        self.sessions.close(number);
    }

    /// A request has ended.
    pub(super) fn answered(&mut self, node: usize, started: Duration, answered: bool) {
        if self.scene.account.revoked[node].is_some() {
            // A node that is shut out gets nothing, as intended: that is no failure.
            return;
        }
        let now = self.scene.now;
        if self.scene.measures.request(started, now, answered) || !answered {
            let took = now.saturating_sub(started);
            let word = if answered { "was answered" } else { "failed" };
            self.says(node, format!("a request {word} after {} us", took.as_micros()));
        }
    }

    /// A stream to the kubelet of a node has been greeted by that of another one, or the same.
    pub(super) fn called(&mut self, from: usize, to: usize, reached: usize, took: Duration) {
        let back = &mut self.back;
        back.sessions.opened += 1;
        back.latency.connect.add(micros(took));
        let name = |at| self.scene.account.name(at);
        let words = format!("reaches the kubelet of {} after {} us", name(to), took.as_micros());
        let wrong = format!("its stream to the kubelet of {} reaches {}", name(to), name(reached));
        self.says(from, words);
        if reached != to {
            self.violates(rules::OTHER_KUBELET, from, wrong);
        }
    }

    /// A call of a node's kubelet was refused.
    pub(super) fn refused(&mut self, to: usize, status: u16, said: &str) {
        *self.refused.entry(status).or_default() += 1;
        self.says(to, format!("its kubelet is not reached: {said}"));
    }

    /// A request to a node's kubelet has ended.
    pub(super) fn call_ends(&mut self, to: usize, started: Duration, answered: bool) {
        if self.scene.account.revoked[to].is_none() {
            self.back.request(started, self.scene.now, answered);
        }
    }

    /// The measures of the way back.
    pub(super) fn take_back(&mut self) -> WayBack {
        let Measures { requests, sessions, latency, .. } = std::mem::take(&mut self.back);
        WayBack { requests, sessions, latency, refused: std::mem::take(&mut self.refused) }
    }

    /// Sessions that clients of a node have opened through its present process.
    pub(super) fn opened_by_process(&self, node: usize) -> u64 {
        self.sessions.opened_by_process(node)
    }

    /// Sessions opened = closed + open, by the clients' own count.
    pub(super) fn check_count(&mut self, node: usize) {
        self.check_sessions(node, self.sessions.count(node));
    }
}

#[cfg(test)]
mod tests;
