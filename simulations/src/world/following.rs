//! How nodes follow what happens: detection, failover, news, and how good their choices are, by the
//! scenario's own truth and not by what nodes believe.

use std::collections::BTreeMap;
use std::time::Duration;

use meshport_config::NodeId;
use meshport_discovery::{Liveness, OriginState};

use super::World;
use super::clients::{Attempt, OUTSIDE};
use crate::brain::{Brain, Line};
use crate::instance::Instance;
use crate::measure::{Cut, FOLLOWED_FOR, Fault, MAX_FAULTS, News, Notice, Pair, Users, begin};
use crate::scenario::Happening;

/// A node's own loopback counts as this far away, so that stretch has a value there too.
const OWN: Duration = Duration::from_micros(50);
/// The default band: origins this near, or this many percent, are equally near.
const BAND: Duration = Duration::from_millis(1);
const BAND_PERCENT: u32 = 15;
/// A process that has run for so long has been found by all.
const SETTLED: Duration = Duration::from_secs(30);

impl World {
    /// Something of the plan is about to happen. If it may disturb somebody: who has to notice it,
    /// and who has to go elsewhere, or may?
    pub(super) fn fault_begins(&mut self, place: usize) {
        let nodes = self.nodes.len();
        let faults = &mut self.measures.faults;
        let Some(fault) = begin(faults, &self.plan[place..], nodes, self.now) else { return };
        let (unaware, staying) = self.concerned(&self.measures.faults[fault]);
        let fault = &mut self.measures.faults[fault];
        fault.unaware.extend(unaware);
        fault.staying.extend(staying);
    }

    /// Who has something to notice of the newest victim of a fault, and who goes there.
    fn concerned(&self, fault: &Fault) -> (Vec<Pair>, Vec<Pair>) {
        let Some(victim) = fault.newest() else {
            let users = (0..self.nodes.len()).filter(|at| self.goes_into(&fault.cut, *at));
            let users: Vec<Pair> = users.map(|at| (at, at)).collect();
            let has_to_notice = fault.notice() == Notice::Way;
            return (if has_to_notice { users.clone() } else { Vec::new() }, users);
        };
        let id = self.nodes[victim].credential.node;
        let (mut unaware, mut staying) = (Vec::new(), Vec::new());
        for (at, other) in self.nodes.iter().enumerate() {
            let Some(brain) = other.brain.as_ref().filter(|_| at != victim) else { continue };
            let is_member = || brain.directory().get(&id).is_some_and(is_present);
            let has_to_notice = fault.is_watched()
                && match fault.notice() {
                    Notice::Instance => believes_in(brain, &id),
                    Notice::Gone | Notice::Revoked => is_member(),
                    Notice::Came => !is_member(),
                    Notice::Way | Notice::Nothing => false,
                };
            if has_to_notice {
                unaware.push((at, victim));
            }
            if fault.users() == Users::Theirs && brain.first() == Some(id) {
                staying.push((at, victim));
            }
        }
        let own = self.nodes[victim].brain.as_ref();
        let is_user = match fault.users() {
            Users::Own => own.is_some_and(|brain| brain.first().is_some()),
            Users::Joining => own.is_none(),
            Users::Theirs | Users::Ways => false,
        };
        if is_user {
            staying.push((victim, victim));
        }
        (unaware, staying)
    }

    /// Whether a node's first choice is behind these ways.
    fn goes_into(&self, cut: &Cut, at: usize) -> bool {
        let first = self.nodes[at].brain.as_ref().and_then(Brain::first);
        let Some(first) = first.and_then(|id| self.by_id.get(&id)).copied() else { return false };
        cut.parts((at, self.network.site(at)), (first, self.network.site(first)))
    }

    /// What these kinds of faults took from a node is given back.
    pub(super) fn fault_ends(&mut self, node: usize, kinds: &[&str]) {
        let now = self.now;
        for fault in &mut self.measures.faults {
            if kinds.contains(&fault.kind) {
                fault.ends(node, now);
            }
        }
    }

    /// A way is another one now; whether it is as at the start.
    pub(super) fn ways_changed(&mut self, way: &Happening, ends: bool) {
        let now = self.now;
        for fault in &mut self.measures.faults {
            if ends && fault.over.is_none() && fault.at < now && fault.cut.concerns(way) {
                fault.over = Some(now);
            }
        }
        self.guard.ways_changed(now);
    }

    pub(super) fn route_changed(&mut self, at: usize, first_changed: bool) {
        let now = self.now;
        if first_changed {
            self.measures.route_changes += 1;
            self.measures.second(now).moved += 1;
            let words = self.way(at);
            self.trace.node(now, at, words);
        }
        self.follow_faults(at, first_changed);
        self.follow_news(at);
        if self.nodes[at].clients.searching > 0 {
            self.reroute(at);
        }
    }

    /// Where a node goes, and by whom unless it goes straight there, in words.
    fn way(&self, at: usize) -> String {
        let brain = self.nodes[at].brain.as_ref();
        let route = brain.filter(|brain| brain.first().is_some()).map(Brain::route);
        let line = route.and_then(|route| route.first()).map(|first| first.origin.line);
        let name = |id: Option<NodeId>| Some(&*self.nodes[*self.by_id.get(&id?)?].name);
        match (line.and_then(|line| name(line.origin())), line) {
            (Some(origin), Some(Line::Relayed { relay, .. })) => {
                format!("goes to {origin} by {}", name(Some(relay)).unwrap_or("a stranger"))
            }
            (Some(origin), _) => format!("goes to {origin}"),
            (None, _) => "has nowhere to go".to_owned(),
        }
    }

    fn follow_faults(&mut self, at: usize, first_changed: bool) {
        let now = self.now;
        let Some(brain) = &self.nodes[at].brain else { return };
        let first = brain.first().and_then(|id| self.by_id.get(&id)).copied();
        let spot = |node: usize| (node, self.network.site(node));
        for fault in self.measures.followed(now) {
            // A route is also another one when only its end is: what counts is its first origin.
            let away = match fault.users() {
                Users::Theirs => !first.is_some_and(|first| fault.out.contains(&first)),
                Users::Ways => !first.is_some_and(|first| fault.cut.parts(spot(at), spot(first))),
                Users::Own => first_changed,
                Users::Joining => first.is_some(),
            };
            if away {
                fault.leaves(at, now);
            }
            if fault.notice() == Notice::Instance {
                for victim in fault.unnoticed(at) {
                    if !believes_in(brain, &self.nodes[victim].credential.node) {
                        fault.notices(at, victim, now);
                    }
                }
            }
        }
    }

    fn follow_news(&mut self, at: usize) {
        let now = self.now;
        let Some(brain) = &self.nodes[at].brain else { return };
        let fresh = |news: &&mut News| !news.superseded && now - news.at < FOLLOWED_FOR;
        for news in self.measures.news.iter_mut().rev().take(16).filter(fresh) {
            let id = self.nodes[news.origin].credential.node;
            let knows = brain.views().any(|view| view.origin == id && view.state == news.state);
            if knows && at != news.origin {
                news.known.entry(at).or_insert(now - news.at);
            }
        }
    }

    /// An origin said something about its local instance.
    pub(super) fn announced(&mut self, origin: usize, state: OriginState) {
        self.trace.node(self.now, origin, format!("says of its instance: {state}"));
        for news in &mut self.measures.news {
            news.superseded |= news.origin == origin;
        }
        // A process that has just started has to be found first: that is joining, not news.
        let is_new = self.now - self.nodes[origin].started < SETTLED;
        let is_early = self.now < self.scenario.warmup();
        if is_new || is_early || self.measures.news.len() >= MAX_FAULTS {
            return;
        }
        let reached = |at: &usize| {
            *at != origin && self.nodes[*at].brain.is_some() && self.network.connects(*at, origin)
        };
        let audience = (0..self.nodes.len()).filter(reached).count();
        self.measures.news.push(News {
            origin,
            state,
            at: self.now,
            known: BTreeMap::new(),
            audience,
            superseded: false,
        });
    }

    pub(super) fn member_changed(&mut self, at: usize, subject: usize, up: bool) {
        let now = self.now;
        let words = if up { "is present" } else { "is down" };
        let words = format!("{} {words}", self.nodes[subject].name);
        self.trace.node(now, at, words);
        let noticed = if up { Notice::Came } else { Notice::Gone };
        for fault in self.measures.followed(now) {
            if fault.notice() == noticed {
                fault.notices(at, subject, now);
            }
        }
        if up {
            self.guard.readmitted(at, subject);
            return;
        }
        self.measures.second(now).downs += 1;
        let brain = self.nodes[at].brain.as_ref();
        let entry = brain.and_then(|it| it.directory().get(&self.nodes[subject].credential.node));
        // Word of its end may come before its goodbye.
        let has_left =
            self.nodes[subject].leaving || entry.is_some_and(|it| it.liveness == Liveness::Left);
        if now >= self.scenario.warmup() && !has_left {
            self.measures.suspicions.get_or_insert_default().evictions += 1;
        }
        self.judge_eviction(at, subject);
    }

    /// A node has found a member silent, and tells the others that it suspects it.
    pub(super) fn suspects(&mut self, at: usize, subject: usize) {
        let now = self.now;
        let words = format!("suspects {}", self.nodes[subject].name);
        self.trace.node(now, at, words);
        if now < self.scenario.warmup() {
            return;
        }
        let is_wrong = self.settles(at, subject).is_some_and(|since| since <= now);
        let suspicions = self.measures.suspicions.get_or_insert_default();
        suspicions.raised += 1;
        suspicions.wrong += u64::from(is_wrong);
    }

    /// A session has reached an origin: how good was the choice?
    pub(super) fn measure_choice(&mut self, node: usize, chosen: &Attempt, took: Duration) {
        if self.now < self.scenario.warmup() {
            return;
        }
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.measures.connect.add(micros(took));
        if chosen.origin == OUTSIDE {
            return;
        }
        let Some(best) = self.best(node) else { return };
        let (origin, hop) = (chosen.origin, chosen.hop);
        let onward = if hop == origin { Duration::ZERO } else { self.network.rtt(hop, origin) };
        let own = self.distance(node, hop) + onward;
        let stretch = own.as_nanos() * 1000 / best.as_nanos().max(1);
        let stretch = u64::try_from(stretch).unwrap_or(u64::MAX);
        self.measures.stretch.add(stretch);
        if self.measures.is_quiet(self.now) {
            self.measures.stretch_quiet.add(stretch);
        }
        self.measures.compared += 1;
        self.measures.nearest += u64::from(is_near(own, best));
    }

    /// Whether no other ready and reachable origin is nearer than the chosen one by more than the
    /// band, by the scenario's own distances.
    pub(super) fn is_nearest(&self, at: usize, chosen: Option<usize>) -> bool {
        match (self.best(at), chosen) {
            (Some(best), Some(chosen)) => {
                self.serves(at, chosen) && is_near(self.distance(at, chosen), best)
            }
            (None, None) => true,
            _ => false,
        }
    }

    /// The distance of the nearest origin that serves.
    fn best(&self, node: usize) -> Option<Duration> {
        if self.nodes[node].revoked.is_some() {
            return None;
        }
        let serving = self.origins.iter().filter(|origin| self.serves(node, **origin));
        serving.map(|origin| self.distance(node, *origin)).min()
    }

    /// Whether sessions of a node that take this line reach an instance that is ready, in truth.
    pub(super) fn works(&self, node: usize, line: &Line) -> bool {
        let number_of = |id: Option<NodeId>| id.and_then(|id| self.by_id.get(&id)).copied();
        let Some((origin, hop)) = number_of(line.origin()).zip(number_of(line.first_hop())) else {
            return false;
        };
        let carries = self.nodes[hop].brain.is_some() && !self.nodes[hop].leaving;
        let is_reached = hop == node || self.network.connects(node, hop);
        carries && is_reached && self.serves(hop, origin)
    }

    /// Whether an origin is ready and within reach of a node, in truth.
    pub(super) fn serves(&self, node: usize, origin: usize) -> bool {
        let is_ready = self.nodes[origin].instance == Some(Instance::Ready);
        let there = &self.nodes[origin];
        let runs = there.brain.is_some() && !there.leaving && there.revoked.is_none();
        is_ready && runs && (node == origin || self.network.connects(node, origin))
    }

    pub(super) fn distance(&self, node: usize, origin: usize) -> Duration {
        if node == origin { OWN } else { self.network.rtt(node, origin) }
    }
}

fn is_near(own: Duration, best: Duration) -> bool {
    own <= best + BAND.max(best * BAND_PERCENT / 100)
}

fn believes_in(brain: &Brain, origin: &NodeId) -> bool {
    brain.views().any(|view| view.origin == *origin && view.is_healthy)
}

fn is_present(entry: &meshport_discovery::Entry) -> bool {
    entry.liveness == Liveness::Alive
}
