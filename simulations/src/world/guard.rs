//! What must hold in every run, checked from outside the nodes.
//!
//! * No session begins at an origin its node knows to be dead while another is healthy: at each
//!   first attempt.
//! * A directory never goes back to an older record: now and then, for some nodes.
//! * A node that runs and is within reach is not held for down longer than `MAX_EVICTION`, counted
//!   from when both nodes and the ways have had `SETTLING`: each second.
//! * What a node wants at once stays within its queues' bounds: at each step.
//! * Sessions opened = closed + open: at the end.
//! * Who was revoked is known to be, has no tunnel and no session, and is served no more: each
//!   second and at each request (`revoked`).
//! * No node carries a stream on that another one has carried: at each one (`moves`).
//! * Every request is answered, where the scenario says so: at each that is not.
//! * Sessions go home no faster than the settings say: at each leave to go (`moves`).
//! * After a quiet time all nodes within reach of each other agree, and routes are good and near:
//!   at the end. What is near by a way that loses more, or varies more, need not be gone to.
//!
//! That a seed determines everything is checked by running twice and comparing traces.

use std::collections::BTreeSet;
use std::time::Duration;

use meshport_discovery::{Liveness, MAX_MEMBERS, MAX_PATHS, MAX_TRANSMITS};
use rand::RngCore;
use rand_chacha::ChaCha8Rng;

use super::World;
use super::moves::Pace;
use crate::brain::{Candidate, Line};
use crate::instance::Instance;
use crate::report::Violation;
use crate::rules::{
    self, Evictions, FOLLOW_EVERY_S, MAX_FOLLOWED, MAX_VIOLATIONS, QUIET, Records, SETTLING,
};

/// A time after the end of every run.
const BEYOND_ANY_RUN: Duration = Duration::from_secs(u32::MAX as u64);

/// The rules and what they need to remember.
#[derive(Debug)]
pub(super) struct Guard {
    violations: Vec<Violation>,
    evicted: Evictions,
    followed: Vec<usize>,
    records: Records,
    pub(super) started: Vec<Duration>,
    running: u64,
    running_since: Duration,
    node_time: Duration,
    disturbed: Duration,
    pub(super) ways_changed: Duration,
    pub(super) pace: Pace,
}

impl Guard {
    pub(super) fn new(nodes: usize, rng: &mut ChaCha8Rng) -> Self {
        let mut followed = BTreeSet::new();
        let number = |random: u64| usize::try_from(random % nodes as u64).unwrap_or(0);
        while followed.len() < MAX_FOLLOWED.min(nodes) {
            followed.insert(number(rng.next_u64()));
        }
        Self {
            violations: Vec::new(),
            evicted: Evictions::default(),
            followed: followed.into_iter().collect(),
            records: Records::default(),
            started: vec![Duration::ZERO; nodes],
            running: 0,
            running_since: Duration::ZERO,
            node_time: Duration::ZERO,
            disturbed: Duration::ZERO,
            ways_changed: Duration::ZERO,
            pace: Pace::default(),
        }
    }

    pub(super) fn started(&mut self, node: usize, now: Duration) {
        self.count(now);
        self.running += 1;
        self.started[node] = now;
        self.disturbed = now;
    }

    pub(super) fn stopped(&mut self, node: usize, now: Duration) {
        self.count(now);
        self.running -= 1;
        self.evicted.forget(node);
        self.records.forget(node);
        self.disturbed = now;
    }

    /// A node is somewhere else, or was as good as gone, until then.
    pub(super) fn unsettled(&mut self, node: usize, until: Duration) {
        self.started[node] = until;
        self.disturbed = self.disturbed.max(until);
    }

    /// By its clock all credentials have ended: it believes nobody until that is right again.
    pub(super) fn astray(&mut self, node: usize) {
        self.started[node] = BEYOND_ANY_RUN;
    }

    fn count(&mut self, now: Duration) {
        let running = u32::try_from(self.running).expect("at most MAX_NODES");
        self.node_time += (now - self.running_since) * running;
        self.running_since = now;
    }

    pub(super) fn disturbed(&mut self, now: Duration) {
        self.disturbed = now;
    }

    pub(super) fn ways_changed(&mut self, now: Duration) {
        self.ways_changed = now;
    }

    pub(super) fn readmitted(&mut self, holder: usize, subject: usize) {
        self.evicted.end(holder, subject);
    }

    pub(super) fn has_enough(&self) -> bool {
        self.violations.len() >= MAX_VIOLATIONS
    }

    /// Seconds that nodes ran, in all.
    pub(super) fn node_seconds(&self) -> f64 {
        self.node_time.as_secs_f64()
    }

    pub(super) fn into_violations(self) -> Vec<Violation> {
        self.violations
    }
}

impl World {
    pub(super) fn violates(&mut self, rule: &'static str, node: Option<usize>, what: String) {
        let last = node.map(|node| self.trace.last(node)).unwrap_or_default();
        let node = node.map(|node| self.nodes[node].name.clone());
        self.guard.violations.push(Violation { at: self.now, rule, node, what, last });
    }

    /// A session is about to try its first candidate.
    pub(super) fn check_choice(&mut self, node: usize, first: &Candidate) {
        let Some(brain) = &self.nodes[node].brain else { return };
        let Line::Direct(origin) = first.origin.line else { return };
        let Some(better) = rules::better_than_dead(brain.route(), origin) else { return };
        let name = |id| self.by_id.get(&id).map_or("?".into(), |at| self.nodes[*at].name.clone());
        let what = rules::dead_choice(&name(origin), &name(better));
        self.violates(rules::DEAD_ORIGIN, Some(node), what);
    }

    pub(super) fn check_wishes(&mut self, node: usize, wishes: usize) {
        // A directory that is taken up reports every node of it.
        let bound = MAX_TRANSMITS + 4 * MAX_MEMBERS;
        if wishes > bound {
            let what = format!("{wishes} wishes at once, more than its queues hold ({bound})");
            self.violates(rules::QUEUES, Some(node), what);
        }
    }

    /// Somebody holds somebody for down: rightly?
    pub(super) fn judge_eviction(&mut self, holder: usize, subject: usize) {
        self.guard.evicted.begin(holder, subject, self.now);
        let is_wrong = self.settles(holder, subject).is_some_and(|at| at <= self.now);
        if is_wrong && self.now >= self.scenario.warmup() {
            self.measures.false_evictions += 1;
        }
    }

    /// From when on two nodes have no excuse any more for not knowing each other; none while one
    /// of them does not run or take part, or is out of the other's reach.
    pub(super) fn settles(&self, holder: usize, subject: usize) -> Option<Duration> {
        let takes_part = |node: usize| {
            self.nodes[node].brain.is_some()
                && !self.nodes[node].leaving
                && self.nodes[node].lie.is_none()
                && self.nodes[node].revoked.is_none()
        };
        let mutual = takes_part(holder) && takes_part(subject);
        if !mutual || !self.network.connects(holder, subject) {
            return None;
        }
        let started = self.guard.started[holder].max(self.guard.started[subject]);
        Some(started.max(self.guard.ways_changed) + SETTLING)
    }

    fn holds_for_alive(&self, holder: usize, subject: usize) -> bool {
        let brain = self.nodes[holder].brain.as_ref();
        let entry = brain.and_then(|it| it.directory().get(&self.nodes[subject].credential.node));
        entry.is_some_and(|entry| entry.liveness == Liveness::Alive)
    }

    /// Looks at everything that needs a look now and then.
    pub(super) fn look(&mut self) {
        let running = self.nodes.iter().filter(|node| node.brain.is_some()).count();
        self.measures.second(self.now).running = u32::try_from(running).unwrap_or(u32::MAX);
        if let Some(progress) = &mut self.progress {
            progress(self.now);
        }
        let settles = |holder, subject| self.settles(holder, subject);
        for (holder, subject) in self.guard.evicted.overdue(self.now, settles) {
            self.guard.evicted.end(holder, subject);
            if !self.holds_for_alive(holder, subject) {
                let what = rules::evicted(&self.nodes[subject].name);
                self.violates(rules::EVICTED, Some(holder), what);
            }
        }
        self.check_revoked();
        if self.now.as_secs().is_multiple_of(FOLLOW_EVERY_S) {
            for place in 0..self.guard.followed.len() {
                self.follow_directory(self.guard.followed[place]);
            }
        }
    }

    /// Whether a node's directory has gone back anywhere since the last look.
    fn follow_directory(&mut self, at: usize) {
        let Some(brain) = &self.nodes[at].brain else { return };
        let boot = self.nodes[at].boot;
        let records = brain.directory().iter().filter_map(|(node, entry)| {
            let key = entry.node_state().map_or((0, 0), |it| (it.generation, it.version));
            Some((*self.by_id.get(node)?, key))
        });
        let back = self.guard.records.follow((at, boot), self.nodes.len(), records);
        let sizes = (brain.directory().len(), brain.paths());
        if let Some(back) = back {
            let what = rules::went_back(&self.nodes[back.0].name, back);
            self.violates(rules::NEVER_BACK, Some(at), what);
        }
        self.check_sizes(at, sizes);
    }

    fn check_sizes(&mut self, at: usize, (entries, paths): (usize, usize)) {
        if entries > MAX_MEMBERS || paths > MAX_PATHS {
            let what = format!("{entries} entries and {paths} paths");
            self.violates(rules::QUEUES, Some(at), what);
        }
    }

    /// What must hold at the end.
    pub(super) fn check_end(&mut self) {
        self.guard.count(self.now);
        for at in 0..self.nodes.len() {
            let clients = &self.nodes[at].clients;
            let (opened, closed, open) = (clients.opened, clients.closed, clients.open());
            if opened != closed + open {
                let what = format!("{opened} sessions opened, {closed} closed, {open} open");
                self.violates(rules::SESSIONS, Some(at), what);
            }
        }
        let still = self.nodes.iter().any(|node| node.still_until + QUIET > self.now)
            && self.nodes.iter().any(|node| !node.still_until.is_zero());
        let quiet =
            self.now.saturating_sub(self.guard.disturbed.max(self.guard.ways_changed)) >= QUIET;
        if quiet && !still {
            self.check_agreement();
        }
    }

    /// After a quiet time everybody knows of everybody within reach: alive, with the newest record.
    fn check_agreement(&mut self) {
        let mut newest = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let brain = node.brain.as_ref().filter(|_| node.revoked.is_none());
            let own = brain.and_then(|brain| {
                let state = brain.directory().get(&node.credential.node)?.node_state()?;
                Some((state.generation, state.services.clone()))
            });
            newest.push(own);
        }
        let mut wrong = None;
        'all: for (at, node) in self.nodes.iter().enumerate() {
            let is_judged = node.lie.is_none() && node.revoked.is_none();
            let Some(brain) = node.brain.as_ref().filter(|_| is_judged) else { continue };
            let mut seen = 0;
            for (id, entry) in brain.directory().iter() {
                let Some(subject) = self.by_id.get(id).copied() else { continue };
                let Some((generation, services)) = &newest[subject] else { continue };
                let mutual = self.network.connects(at, subject);
                if !mutual || self.nodes[subject].lie.is_some() {
                    continue;
                }
                seen += 1;
                let state = entry.node_state();
                let same = state.is_some_and(|state| {
                    state.generation == *generation && state.services == *services
                });
                if entry.liveness != Liveness::Alive || !same {
                    let (name, liveness) = (&self.nodes[subject].name, entry.liveness);
                    let what = format!("it holds {name} for {liveness}, newest record: {same}");
                    wrong = Some((at, what));
                    break 'all;
                }
            }
            let all = (0..self.nodes.len()).filter(|other| {
                let other_node = &self.nodes[*other];
                newest[*other].is_some()
                    && other_node.lie.is_none()
                    && self.network.connects(at, *other)
            });
            let all = all.count();
            if seen < all {
                wrong = Some((at, format!("it knows {seen} of {all} nodes within its reach")));
                break;
            }
        }
        if let Some((at, what)) = wrong {
            self.violates(rules::AGREEMENT, Some(at), what);
        }
        self.check_routes();
    }

    /// After a quiet time nobody goes to an origin that does not serve while another does.
    fn check_routes(&mut self) {
        for at in 0..self.nodes.len() {
            let node = &self.nodes[at];
            // Who lies may deafen itself; where it goes then is nobody's mistake.
            let is_judged = node.lie.is_none() && node.revoked.is_none();
            let Some(brain) = node.brain.as_ref().filter(|_| is_judged) else { continue };
            let line = brain.first_line();
            let first = brain.first().and_then(|id| self.by_id.get(&id)).copied();
            let serves = line.is_some_and(|line| self.works(at, &line));
            let others = || self.origins.iter().any(|origin| self.serves(at, *origin));
            let through = line.and_then(|line| self.by_id.get(&line.first_hop()?).copied());
            let lies = |node: &usize| self.nodes[*node].lie.is_some();
            let lied = self.origins.iter().chain(&through).any(lies);
            // Whether it should know by now is judged where revocations are.
            let unheard = |of: usize| self.nodes[of].revoked.is_some() && !self.shuts_out(at, of);
            let misled = lied || first.into_iter().chain(through).any(unheard);
            if !serves && !misled && others() {
                let to = first.map_or("nobody", |first| self.nodes[first].name.as_str());
                let state = first.and_then(|first| self.nodes[first].instance);
                let state = state.unwrap_or(Instance::Down);
                let what = format!("it goes to {to} ({state:?}) though another origin serves");
                return self.violates(rules::GOOD_ROUTES, Some(at), what);
            }
            if let Some(what) = self.strays(at) {
                return self.violates(rules::NEAR_ROUTES, Some(at), what);
            }
        }
    }
}

#[cfg(test)]
mod tests;
