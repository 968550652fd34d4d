//! Records of a run: routes, sessions and what nodes report, for the rules and measures that all
//! levels share. It contains the wire too, since one lock guards both.

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
    /// The latest route of each running node.
    pub(super) routes: Vec<Option<Arc<Route>>>,
    /// The revocations in the state folder of each node.
    pub(super) revocations: Vec<Revocations>,
    /// The last answer of each node.
    pub(super) seen: Vec<Seen>,
    sessions: Sessions,
    /// Measures of the way back.
    pub(super) back: Measures,
    /// Refusals of the way back, by HTTP status.
    refused: BTreeMap<u16, u64>,
}

/// A node's view of others, and of itself.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen {
    /// The nodes that are down, or have left.
    absent: BTreeSet<usize>,
    /// How many nodes are alive, itself included.
    pub(super) alive: usize,
    /// The records it would save, by node.
    pub(super) records: BTreeMap<usize, Record>,
    /// Revoked nodes among its peers.
    pub(super) revoked_peers: BTreeSet<usize>,
    /// How long its route has been unchanged, if its settings prefer the nearest origin.
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
            // This level cannot see when a node becomes a member.
            Notice::Came | Notice::Path | Notice::Nothing => false,
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

    /// Records the start of a node's process.
    pub(super) fn starts(&mut self, node: usize, boot: u32) {
        self.sessions.starts(node);
        self.process_starts(node, boot);
    }

    /// Records a node's new route.
    pub(super) fn routed(&mut self, node: usize, route: Arc<Route>) {
        let before = self.first(node);
        self.routes[node] = Some(route);
        let is_other = self.first(node) != before;
        let words = is_other.then(|| self.goes(node));
        self.route_changed(node, words);
    }

    /// Records a node's status: the nodes it considers down, and those it counts as present.
    pub(super) fn status(&mut self, node: usize, status: &Status) {
        let number = |id: &NodeId| self.scene.account.number(id);
        let absent = status.absent.iter().filter_map(|it| number(&it.who.node)).collect();
        let down = status.absent.iter().filter(|it| it.liveness == "down");
        let down: BTreeSet<usize> = down.filter_map(|it| number(&it.who.node)).collect();
        self.holds_absent(node, &absent, |subject| !down.contains(&subject));
        let seen = &mut self.seen[node];
        (seen.absent, seen.alive) = (absent, status.members.alive);
    }

    /// Records that a node suspects a member.
    pub(super) fn suspected(&mut self, node: usize, subject: &NodeId) {
        if let Some(subject) = self.scene.account.number(subject) {
            self.suspects(node, subject);
        }
    }

    /// Records how many suspicions of a node were dropped from its bounded queue.
    pub(super) fn overlooks(&mut self, node: usize, missed: u64) {
        let what = format!("{missed} suspicions dropped from a full queue");
        self.violates(rules::QUEUES, node, what);
    }

    /// Records the revocations that a node knows.
    pub(super) fn hears_of(&mut self, node: usize, all: &Revocations) {
        for subject in 0..self.scene.account.len() {
            if all.has_node(&self.scene.account.id(subject)) {
                self.notices(node, subject, Notice::Revoked);
            }
        }
        self.says(node, format!("knows of {} revocations", all.len()));
    }

    /// Records that a client starts a search: its node's first choice must not be dead while a
    /// healthy origin exists.
    pub(super) fn looks_for_one(&mut self, node: usize) {
        self.scene.measures.sessions.begun += 1;
        let Some(route) = self.routes[node].clone() else { return };
        let firsts = route.home().iter().chain(route.first().filter(|_| route.home().is_empty()));
        for first in firsts {
            self.check_choice(node, &first.origin.line);
        }
    }

    /// Records that a client reached an instance; returns its session's number.
    pub(super) fn connected(&mut self, node: usize, chosen: usize, took: Duration) -> u64 {
        self.scene.measures.sessions.opened += 1;
        let number = self.sessions.open(node, chosen);
        let to = self.scene.account.name(chosen);
        self.says(node, format!("session to {to} after {} us", took.as_micros()));
        self.measure_choice(node, Some(StreamPath::direct(chosen)), took);
        number
    }

    /// Records the end of the session with that number.
    pub(super) fn closed(&mut self, number: u64) {
        self.scene.measures.sessions.closed += 1;
        self.sessions.close(number);
    }

    /// Records the end of a request.
    pub(super) fn answered(&mut self, node: usize, started: Duration, answered: bool) {
        if self.scene.account.revoked[node].is_some() {
            // A revoked node gets no service, as intended: not a failure.
            return;
        }
        let now = self.scene.now;
        if self.scene.measures.request(started, now, answered) || !answered {
            let took = now.saturating_sub(started);
            let word = if answered { "was answered" } else { "failed" };
            let words = format!("a request {word} after {} us", took.as_micros());
            self.says(node, words.clone());
            if !answered {
                self.check_unanswered(node, words);
            }
        }
    }

    /// Records which node's kubelet greeted a stream to the kubelet of `to`.
    pub(super) fn called(&mut self, from: usize, to: usize, reached: usize, took: Duration) {
        let back = &mut self.back;
        back.sessions.opened += 1;
        back.latency.connect.add(micros(took));
        let name = |at| self.scene.account.name(at);
        let words = format!("reaches the kubelet of {} after {} us", name(to), took.as_micros());
        let wrong = format!("its stream to the kubelet of {} reached {}", name(to), name(reached));
        self.says(from, words);
        if reached != to {
            self.violates(rules::OTHER_KUBELET, from, wrong);
        }
    }

    /// Records a refused call of a node's kubelet.
    pub(super) fn refused(&mut self, to: usize, status: u16, said: &str) {
        *self.refused.entry(status).or_default() += 1;
        self.says(to, format!("its kubelet is not reached: {said}"));
    }

    /// Records the end of a request to a node's kubelet.
    pub(super) fn call_ends(&mut self, to: usize, started: Duration, answered: bool) {
        if self.scene.account.revoked[to].is_none() {
            self.back.request(started, self.scene.now, answered);
        }
    }

    /// Takes the measures of the way back.
    pub(super) fn take_back(&mut self) -> WayBack {
        let Measures { requests, sessions, latency, .. } = std::mem::take(&mut self.back);
        WayBack { requests, sessions, latency, refused: std::mem::take(&mut self.refused) }
    }

    /// Sessions that a node's clients have opened through its current process.
    pub(super) fn opened_by_process(&self, node: usize) -> u64 {
        self.sessions.opened_by_process(node)
    }

    /// Checks that opened = closed + open, by the clients' count.
    pub(super) fn check_count(&mut self, node: usize) {
        self.check_sessions(node, self.sessions.count(node));
    }
}

#[cfg(test)]
mod tests;
