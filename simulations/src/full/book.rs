//! What is written down about a run: measures, routes, faults and how nodes followed them, by the
//! scenario's own truth.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use meshport_config::{NodeId, Revocations};
use meshport_core::route::{Line, PathView, Route, Standing};
use meshport_discovery::OriginState;

use super::wire::Wire;
use super::{lock, machine};
use crate::instance::Instance;
use crate::measure::{Cut, Fault, Measures, Notice, Pair, Suspicions, Users, begin, micros};
use crate::report::Violation;
use crate::scenario::Happening;
use crate::scenario::timeline::Planned;

mod truth;

/// A node's own loopback counts as this far away, so that stretch has a value there too.
const OWN: Duration = Duration::from_micros(50);

/// See the module's description.
#[derive(Debug)]
pub(super) struct Book {
    pub(super) measures: Measures,
    /// What each node's instance is up to; none for nodes without one.
    pub(super) instances: Vec<Option<Instance>>,
    /// The latest route of each node that runs.
    pub(super) routes: Vec<Option<Arc<Route>>>,
    /// When the authority took back each node's credential, if it did.
    pub(super) revoked: Vec<Option<Duration>>,
    /// Rules that did not hold, until somebody takes them.
    pub(super) violations: Vec<Violation>,
    /// When the world last changed, or will have.
    pub(super) disturbed: Duration,
    sessions: truth::Sessions,
    since: truth::Since,
    pub(super) node_seconds: f64,
    names: Vec<String>,
    by_id: BTreeMap<NodeId, usize>,
    ids: Vec<NodeId>,
    warmup: Duration,
    wire: Arc<Mutex<Wire>>,
}

impl Book {
    pub(super) fn new(
        nodes: Vec<(String, NodeId)>,
        instances: Vec<Option<Instance>>,
        warmup: Duration,
        wire: Arc<Mutex<Wire>>,
    ) -> Self {
        let by_id = nodes.iter().enumerate().map(|(at, (_, id))| (*id, at)).collect();
        let (names, ids): (Vec<String>, Vec<NodeId>) = nodes.into_iter().unzip();
        Self {
            measures: Measures { suspicions: Some(Suspicions::default()), ..Measures::default() },
            routes: vec![None; names.len()],
            revoked: vec![None; names.len()],
            violations: Vec::new(),
            disturbed: Duration::ZERO,
            sessions: truth::Sessions::default(),
            since: truth::Since::new(names.len()),
            node_seconds: 0.0,
            instances,
            names,
            by_id,
            ids,
            warmup,
            wire,
        }
    }

    /// Something that a node did or that was done to it.
    pub(super) fn note(&self, node: usize, words: String) {
        lock(&self.wire).trace.node(machine::now(), node, words);
    }

    /// The first origin of a node's route, if it is worth trying.
    pub(super) fn first(&self, node: usize) -> Option<usize> {
        let route = self.routes[node].as_ref()?;
        let first = route.first().filter(|first| first.standing < Standing::Down)?;
        self.by_id.get(&first.origin.line.origin()?).copied()
    }

    /// Whether a node holds an origin for healthy.
    fn believes_in(&self, node: usize, origin: usize) -> bool {
        let Some(route) = &self.routes[node] else { return false };
        route.candidates.iter().any(|candidate| {
            let view = &candidate.origin;
            view.line == Line::Direct(self.ids[origin])
                && view.state == OriginState::Ready
                && matches!(view.path, PathView::Own | PathView::Up(_))
                && !view.suspect
        })
    }

    /// A node's route is another one.
    pub(super) fn route(&mut self, node: usize, route: Arc<Route>) {
        let (now, before) = (machine::now(), self.first(node));
        self.routes[node] = Some(route);
        let first = self.first(node);
        if first != before {
            self.measures.route_changes += 1;
            self.measures.second(now).moved += 1;
            let words = match first {
                Some(first) => format!("goes to {}", self.names[first]),
                None => "has nowhere to go".to_owned(),
            };
            self.note(node, words);
        }
        let healthy: BTreeSet<usize> =
            (0..self.ids.len()).filter(|origin| self.believes_in(node, *origin)).collect();
        let is_other = first != before;
        let spots = {
            let wire = lock(&self.wire);
            let spot = |node| (node, wire.network.site(node));
            first.map(|first| (spot(node), spot(first)))
        };
        for fault in self.measures.followed(now) {
            let away = match fault.users() {
                Users::Theirs => !first.is_some_and(|first| fault.out.contains(&first)),
                Users::Ways => !spots.is_some_and(|(here, there)| fault.cut.parts(here, there)),
                Users::Own => is_other,
                Users::Joining => first.is_some(),
            };
            if away {
                fault.leaves(node, now);
            }
            if matches!(fault.notice(), Notice::Instance | Notice::Gone) {
                for victim in fault.unnoticed(node) {
                    if !healthy.contains(&victim) {
                        fault.notices(node, victim, now);
                    }
                }
            }
        }
    }

    /// The first of these is about to happen: something is taken away, if the plan says so.
    pub(super) fn before(&mut self, plan: &[Planned]) {
        let Some(planned) = plan.first() else { return };
        let now = machine::now();
        lock(&self.wire).trace.world(now, &planned.words);
        self.disturbed = self.disturbed.max(now);
        self.measures.disturbed = Some(now);
        let faults = &mut self.measures.faults;
        let Some(place) = begin(faults, plan, self.names.len(), now) else { return };
        let (unaware, staying) = self.concerned(&self.measures.faults[place]);
        let fault = &mut self.measures.faults[place];
        fault.unaware.extend(unaware);
        fault.staying.extend(staying);
    }

    /// Who has something to notice of the newest victim of a fault, and who goes there.
    fn concerned(&self, fault: &Fault) -> (Vec<Pair>, Vec<Pair>) {
        let victim = fault.newest();
        let running = (0..self.names.len()).filter(|at| self.routes[*at].is_some());
        let is_asked = |at: &usize| Some(*at) != victim && self.revoked[*at].is_none();
        let others: Vec<usize> = running.filter(is_asked).collect();
        let goes_there = |at: &usize| match fault.users() {
            Users::Theirs => self.first(*at) == victim,
            Users::Ways => self.goes_into(&fault.cut, *at),
            Users::Own | Users::Joining => false,
        };
        let has_to_notice = |at: &usize| match (victim, fault.notice()) {
            (Some(victim), Notice::Instance | Notice::Gone) => self.believes_in(*at, victim),
            (Some(_), Notice::Revoked) => true,
            (None, Notice::Way) => goes_there(at),
            // Nobody sees here when a node becomes a member.
            _ => false,
        };
        let pair = |at: &usize| (*at, victim.unwrap_or(*at));
        let unaware = others.iter().filter(|at| has_to_notice(at)).map(pair).collect();
        let mut staying: Vec<Pair> = others.iter().filter(|at| goes_there(at)).map(pair).collect();
        let is_user = |victim: &usize| match fault.users() {
            Users::Own => self.first(*victim).is_some(),
            Users::Joining => self.routes[*victim].is_none(),
            Users::Theirs | Users::Ways => false,
        };
        staying.extend(victim.filter(is_user).map(|victim| (victim, victim)));
        (unaware, staying)
    }

    /// Whether a node's first choice is behind a way that goes down.
    fn goes_into(&self, cut: &Cut, node: usize) -> bool {
        let Some(first) = self.first(node) else { return false };
        let wire = lock(&self.wire);
        cut.parts((node, wire.network.site(node)), (first, wire.network.site(first)))
    }

    /// What these kinds of faults took from a node is given back.
    pub(super) fn over(&mut self, node: usize, kinds: &[&str]) {
        let now = machine::now();
        for fault in &mut self.measures.faults {
            if kinds.contains(&fault.kind) {
                fault.ends(node, now);
            }
        }
    }

    /// A way is as at the start again.
    pub(super) fn way_is_back(&mut self, way: &Happening) {
        let now = machine::now();
        for fault in &mut self.measures.faults {
            if fault.over.is_none() && fault.at < now && fault.cut.concerns(way) {
                fault.over = Some(now);
            }
        }
    }

    /// A node knows of these revocations.
    pub(super) fn hears_of(&mut self, node: usize, all: &Revocations) {
        let now = machine::now();
        let ids = &self.ids;
        let is_it = |fault: &&mut Fault| fault.notice() == Notice::Revoked;
        for fault in self.measures.followed(now).filter(is_it) {
            for subject in fault.unnoticed(node) {
                if all.has_node(&ids[subject]) {
                    fault.notices(node, subject, now);
                }
            }
        }
        self.note(node, format!("knows of {} revocations", all.len()));
    }

    /// How many candidates of a node's route lead to one of these nodes, or through it.
    pub(super) fn ways_to(&self, node: usize, nodes: &BTreeSet<NodeId>) -> usize {
        let candidates = self.routes[node].iter().flat_map(|route| &route.candidates);
        let leads = candidates.filter(|candidate| {
            let line = candidate.origin.line;
            [line.origin(), line.first_hop()].into_iter().flatten().any(|id| nodes.contains(&id))
        });
        leads.count()
    }

    /// A request has ended.
    pub(super) fn answered(&mut self, node: usize, started: Duration, answered: bool) {
        if self.revoked[node].is_some() {
            // Whoever is shut out gets nothing, as is meant: that is no failure.
            return;
        }
        let now = machine::now();
        if self.measures.request(started, now, answered) || !answered {
            let took = now.saturating_sub(started);
            let word = if answered { "was answered" } else { "failed" };
            self.note(node, format!("a request {word} after {} us", took.as_micros()));
        }
    }

    /// A client has reached an instance; its session's number.
    pub(super) fn connected(&mut self, node: usize, chosen: usize, took: Duration) -> u64 {
        self.measures.sessions.opened += 1;
        let number = self.sessions.open(node, chosen);
        self.note(node, format!("session to {} after {} us", self.names[chosen], took.as_micros()));
        self.measure_choice(node, chosen, took);
        number
    }

    /// The session of that number is over.
    pub(super) fn closed(&mut self, number: u64) {
        self.measures.sessions.closed += 1;
        self.sessions.close(number);
    }

    fn measure_choice(&mut self, node: usize, chosen: usize, took: Duration) {
        if machine::now() < self.warmup {
            return;
        }
        self.measures.connect.add(micros(took));
        let Some(best) = self.best(node) else { return };
        let own = self.distance(node, chosen);
        self.measures.compared += 1;
        self.measures.nearest += u64::from(self.is_near_enough(own, best));
        let thousandths = own.as_nanos() * 1000 / best.as_nanos().max(1);
        let stretch = u64::try_from(thousandths).unwrap_or(u64::MAX);
        self.measures.stretch.add(stretch);
        if self.measures.is_quiet(machine::now()) {
            self.measures.stretch_quiet.add(stretch);
        }
    }

    /// Whether what a node goes to is, or is about as near as, the nearest that serves.
    pub(super) fn is_nearest(&self, node: usize, chosen: Option<usize>) -> bool {
        match (chosen, self.best(node)) {
            (Some(chosen), Some(best)) => {
                self.serves(node, chosen) && self.is_near_enough(self.distance(node, chosen), best)
            }
            (chosen, best) => chosen.is_none() && best.is_none(),
        }
    }

    /// Whether a distance is within the default band of the best.
    #[expect(clippy::unused_self, reason = "reads as the others do")]
    fn is_near_enough(&self, own: Duration, best: Duration) -> bool {
        own <= best + Duration::from_millis(1).max(best * 15 / 100)
    }

    /// Whether an origin's instance serves, and a node reaches it.
    pub(super) fn serves(&self, node: usize, origin: usize) -> bool {
        self.instances[origin] == Some(Instance::Ready)
            && self.revoked[origin].is_none()
            && self.routes[origin].is_some()
            && (node == origin || lock(&self.wire).network.connects(node, origin))
    }

    fn distance(&self, node: usize, origin: usize) -> Duration {
        if node == origin { OWN } else { lock(&self.wire).network.rtt(node, origin) }
    }

    fn best(&self, node: usize) -> Option<Duration> {
        if self.revoked[node].is_some() {
            return None;
        }
        let serving = (0..self.ids.len()).filter(|origin| self.serves(node, *origin));
        serving.map(|origin| self.distance(node, origin)).min()
    }

    pub(super) fn name(&self, node: usize) -> &str {
        &self.names[node]
    }
}
