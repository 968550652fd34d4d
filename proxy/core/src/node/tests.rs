//! Complete nodes in virtual time: datagrams between them are delayed or lost.

#![expect(clippy::disallowed_methods, reason = "an origin for virtual time")]

use std::time::Duration;

use meshport_config::{AuthorityKey, NodeKey, RecordKey, Subject};

use super::*;
use crate::drift::DriftConfig;
use crate::health::{Outcome, Question};
use crate::route::{PathView, Standing, Weights};

mod drains;
mod offers;
mod stall;

const WALL: UnixSeconds = UnixSeconds(1_800_000_000);
const A: usize = 0;
const B: usize = 1;
const C: usize = 2;

/// Some nodes and the links between them.
struct Net {
    nodes: Vec<NodeCore>,
    /// One-way delays; none if nothing passes.
    links: BTreeMap<(usize, usize), Option<Duration>>,
    /// Links on which three of five datagrams are lost.
    lossy: BTreeSet<(usize, usize)>,
    /// A link on which eight of seventeen path probes are lost, and how many it has had.
    halved: Option<((usize, usize), u32)>,
    flying: BTreeMap<(Instant, u64), (usize, usize, Vec<u8>)>,
    /// Nodes whose instances hang, and their pending answers with the status.
    stalled: BTreeSet<usize>,
    /// Nodes whose instances are live and not ready.
    unready: BTreeSet<usize>,
    answers: BTreeMap<(Instant, u64), (usize, Question, u16)>,
    /// By how much the times until a hanging instance answers differ from one to the next.
    uneven_ms: u64,
    /// An instance that takes so much longer until it answers when it hangs.
    slow: Option<(usize, Duration)>,
    /// Until when an instance that hung repeats its last error at once.
    repeats: BTreeMap<usize, Instant>,
    sent: u64,
    now: Instant,
    events: Vec<(usize, Event)>,
}

impl Net {
    /// Nodes with these roles; those that are origins are ready.
    fn new(roles: &[&str], delay: Duration) -> Self {
        let now = Instant::now();
        let authority = AuthorityKey::from_bytes([9; 32]);
        let credentials: Vec<Credential> = (1..)
            .zip(roles)
            .map(|(it, roles)| {
                let key = NodeKey::from_bytes([it; 32]);
                let subject = Subject {
                    node: key.public(),
                    record_key: RecordKey::from_bytes([it; 32]).public(),
                    name: format!("node-{it}").parse().expect("a name"),
                    site: format!("site-{it}").parse().expect("a site"),
                    roles: roles.parse().expect("roles"),
                    succession: None,
                };
                let until = UnixSeconds(WALL.0 + 86_400);
                let issued = Credential::issue_by_authority(&authority, subject, WALL, until);
                issued.and_then(|issued| issued.countersign(&key)).expect("valid")
            })
            .collect();
        let mut nodes = Vec::new();
        for (number, credential) in (1..).zip(&credentials) {
            let offers = credential.roles.may_offer(&service());
            let policy = Policy::Nearest { band: Duration::ZERO, band_percent: 15 };
            let interval = Duration::from_secs(1);
            let health = HealthConfig { interval, fall: 2, asks_ready: false, asks_live: false };
            let (drift, health) = (DriftConfig::default(), offers.then_some(health));
            let config = ServiceConfig {
                policy,
                weights: Weights::default(),
                damping: Damping::default(),
                drift,
                health,
            };
            let config = CoreConfig {
                discovery: Setup::default(),
                services: BTreeMap::from([(service(), config)]),
            };
            let record_key = RecordKey::from_bytes([number; 32]);
            let me = LocalNode { credential: credential.clone(), record_key };
            nodes.push(NodeCore::new(config, me, 1, [number; 32], now));
        }
        let ids: Vec<NodeId> = credentials.iter().map(|it| it.node).collect();
        let mut links = BTreeMap::new();
        for (from, node) in nodes.iter_mut().enumerate() {
            for (to, credential) in credentials.iter().enumerate().filter(|(to, _)| *to != from) {
                links.insert((from, to), Some(delay));
                node.handle_credential(credential, now, WALL);
                node.handle_session(credential.node, true, now);
            }
            node.set_seeds(ids.clone(), now);
        }
        Self {
            nodes,
            links,
            lossy: BTreeSet::new(),
            halved: None,
            flying: BTreeMap::new(),
            stalled: BTreeSet::new(),
            unready: BTreeSet::new(),
            answers: BTreeMap::new(),
            uneven_ms: 0,
            slow: None,
            repeats: BTreeMap::new(),
            sent: 0,
            now,
            events: Vec::new(),
        }
    }

    /// Ends the stalls of these nodes: their pending probes are answered within a moment, with this
    /// status.
    fn unstall(&mut self, nodes: &[usize], status: u16) {
        self.stalled.retain(|at| !nodes.contains(at));
        let soon = self.now + ms(20);
        let waiting = std::mem::take(&mut self.answers);
        let answers = waiting.into_iter().map(|((due, number), (at, question, fails))| {
            let ends = nodes.contains(&at);
            let (due, status) = if ends { (soon, status) } else { (due, fails) };
            ((due, number), (at, question, status))
        });
        self.answers = answers.collect();
    }

    fn link(&mut self, one: usize, other: usize, delay: Option<Duration>) {
        self.links.insert((one, other), delay);
        self.links.insert((other, one), delay);
    }

    fn id(&self, node: usize) -> NodeId {
        self.nodes[node].me
    }

    /// Advances time until `until` holds; none if it does not within `limit`.
    fn until(&mut self, limit: Duration, until: impl Fn(&Self) -> bool) -> Option<Duration> {
        let begun = self.now;
        loop {
            self.drain();
            if until(self) {
                return Some(self.now - begun);
            }
            let arrivals = [self.flying.keys().next(), self.answers.keys().next()];
            let arrivals = arrivals.into_iter().flatten().map(|(at, _)| *at);
            let timers = self.nodes.iter().filter_map(NodeCore::poll_timeout);
            let next = timers.chain(arrivals).min().unwrap_or(begun + limit).max(self.now);
            if next > begun + limit {
                self.now = begun + limit;
                return None;
            }
            self.now = next;
            while let Some(entry) = self.flying.first_entry().filter(|it| it.key().0 <= next) {
                let (from, to, payload) = entry.remove();
                let from = self.id(from);
                self.nodes[to].handle_datagram(from, &payload, next, WALL);
            }
            while let Some(entry) = self.answers.first_entry().filter(|it| it.key().0 <= next) {
                let (at, question, status) = entry.remove();
                let answer = Outcome::Answered(Some(status));
                self.nodes[at].handle_outcome(&service(), question, answer, next);
            }
            for node in &mut self.nodes {
                if node.poll_timeout().is_some_and(|due| due <= next) {
                    node.handle_timeout(next, WALL);
                    node.handle_counts(|_, _| 1, next);
                }
            }
        }
    }

    fn pass(&mut self, time: Duration) {
        assert!(self.until(time, |_| false).is_none());
    }

    /// A session of a node's client reports this about a line.
    fn attempted(&mut self, at: usize, line: Line, verdict: Verdict) {
        let attempted = Attempted { line, verdict, began: self.now };
        self.nodes[at].handle_verdicts(&service(), [attempted], self.now);
    }

    fn drain(&mut self) {
        let ids: BTreeMap<NodeId, usize> =
            self.nodes.iter().enumerate().map(|(at, node)| (node.me, at)).collect();
        for (at, node) in self.nodes.iter_mut().enumerate() {
            while let Some((name, question)) = node.poll_probe(self.now) {
                let repeats = self.repeats.get(&at).is_some_and(|until| self.now < *until);
                let is_stalled = self.stalled.contains(&at);
                if (is_stalled || repeats) && question != Question::Alive {
                    self.sent += 1;
                    let slow = self.slow.filter(|(slow, _)| *slow == at).map(|slow| slow.1);
                    let hangs = STALL_TIME + ms(self.sent % 5 * self.uneven_ms);
                    let hangs = hangs + slow.unwrap_or_default();
                    let took = if is_stalled { hangs } else { ms(5) };
                    self.answers.insert((self.now + took, self.sent), (at, question, 500));
                } else {
                    let is_no = question == Question::Ready && self.unready.contains(&at);
                    let answer = Outcome::Answered(Some(if is_no { 500 } else { 200 }));
                    node.handle_outcome(&name, question, answer, self.now);
                }
            }
            while let Some(Transmit { to, payload }) = node.poll_transmit() {
                let to = ids[&to];
                if let Some(delay) = self.links[&(at, to)] {
                    self.sent += 1;
                    let is_lost = match &mut self.halved {
                        Some((link, probes)) if *link == (at, to) && payload[1] == PROBE => {
                            *probes += 1;
                            *probes % 17 % 2 == 1
                        }
                        _ => self.lossy.contains(&(at, to)) && self.sent % 5 >= 2,
                    };
                    if !is_lost {
                        self.flying.insert((self.now + delay, self.sent), (at, to, payload));
                    }
                }
            }
            while let Some(event) = node.poll_event() {
                self.events.push((at, event));
            }
        }
    }

    fn first(&self, node: usize) -> Option<(Line, Standing)> {
        let route = self.nodes[node].route(&service())?;
        route.first().map(|first| (first.origin.line, first.standing))
    }
}

fn service() -> ServiceName {
    "kube-apiserver".parse().expect("a valid name")
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

const MEET: Duration = Duration::from_secs(20);
/// How long an apiserver takes to report that etcd does not answer.
const STALL_TIME: Duration = Duration::from_secs(2);
const ORIGIN: &str = "node,origin:kube-apiserver";
/// The kind of the datagrams that measure paths.
const PROBE: u8 = 9;

#[test]
fn a_broken_path_is_gone_around_and_gone_back_to() {
    let mut net = Net::new(&["node", ORIGIN, "node,relay"], ms(1));
    let (b, c) = (net.id(B), net.id(C));
    let (direct, relayed) = (Line::Direct(b), Line::Relayed { origin: b, relay: c });
    let healthy = |net: &Net, line| net.first(A) == Some((line, Standing::Healthy));
    net.until(MEET, |net| healthy(net, direct)).expect("they meet");
    net.pass(MEET);
    net.nodes[A].handle_busy(BTreeSet::from([direct]), net.now);
    net.events.clear();

    net.link(A, B, None);
    let limit = Duration::from_secs(4);
    let on = |line| move |net: &Net| net.first(A).is_some_and(|it| it.0 == line);
    net.until(limit, on(relayed)).expect("the relay is used");
    let cut = |net: &Net, cut: Line| {
        let resets = net.events.iter();
        resets
            .filter(|(at, it)| *at == A && matches!(it, Event::Reset { line, .. } if *line == cut))
            .count()
    };
    assert_eq!((cut(&net, direct), cut(&net, relayed)), (1, 0));
    net.attempted(A, relayed, Verdict::Connected(ms(4)));
    assert!(healthy(&net, relayed), "a session got through");
    net.nodes[A].handle_busy(BTreeSet::from([relayed]), net.now);
    net.pass(Duration::from_secs(60));
    assert!(healthy(&net, relayed));
    assert_eq!(cut(&net, relayed), 0);

    let silent =
        |(at, it): &&(usize, Event)| *at == A && matches!(it, Event::Silent(node) if *node == b);
    assert_eq!(net.events.iter().filter(silent).count(), 1, "said once, not with each probe");
    let revived = |net: &Net| {
        let mut events = net.events.iter();
        events.any(|(at, it)| *at == A && matches!(it, Event::Revived(node) if *node == b))
    };
    assert!(!revived(&net));
    net.link(A, B, Some(ms(1)));
    let back = net.until(Duration::from_secs(20), on(direct)).expect("direct again");
    assert!(revived(&net), "before it is used again");
    assert!(back > Duration::from_secs(5), "not at the first answer, but after {back:?}");
    assert_eq!(cut(&net, relayed), 0, "the sessions through the relay are not cut");
}

#[test]
fn sessions_through_a_relay_are_reset_when_it_is_lost() {
    for whole in [true, false] {
        let mut net = Net::new(&["node", ORIGIN, "node,relay", "node"], ms(1));
        let (b, c) = (net.id(B), net.id(C));
        let relayed = Line::Relayed { origin: b, relay: c };
        net.link(A, B, None);
        net.until(MEET, |net| net.first(A).is_some_and(|it| it.0 == relayed)).expect("relayed");
        net.nodes[A].handle_busy(BTreeSet::from([relayed]), net.now);
        net.pass(MEET);
        // Either the path to the relay breaks or the relay's own path.
        let (one, other) = if whole { (A, C) } else { (C, B) };
        net.link(one, other, None);
        net.events.clear();
        let is_reset = |net: &Net| {
            let mut events = net.events.iter();
            events.any(|(_, it)| matches!(it, Event::Reset { line, .. } if *line == relayed))
        };
        net.until(MEET, is_reset).unwrap_or_else(|| panic!("reset, whole: {whole}"));
        assert!(net.first(A).is_none_or(|it| it.0 != relayed));
    }
}

#[test]
fn sessions_through_a_former_relay_are_not_judged_by_the_direct_path() {
    const D: usize = 3;
    let mut net = Net::new(&["node", ORIGIN, "node,relay", "node,relay"], ms(1));
    let (b, c, d) = (net.id(B), net.id(C), net.id(D));
    let [former, better] = [c, d].map(|relay| Line::Relayed { origin: b, relay });
    let on = |line| move |net: &Net| net.first(A).is_some_and(|it| it.0 == line);
    net.link(A, D, None);
    net.lossy.extend([(A, B), (B, A)]);
    net.until(3 * MEET, on(former)).expect("around the lossy path");
    net.attempted(A, former, Verdict::Connected(ms(4)));
    net.nodes[A].handle_busy(BTreeSet::from([former]), net.now);
    net.link(A, D, Some(ms(1)));
    net.link(A, C, Some(ms(30)));
    net.events.clear();
    net.until(3 * MEET, on(better)).expect("the better relay");
    net.attempted(A, better, Verdict::Connected(ms(4)));
    net.pass(MEET);
    assert_eq!(net.first(A), Some((better, Standing::Healthy)));
    let is_reset = |it: &Event| matches!(it, Event::Reset { line, .. } if *line == former);
    assert!(!net.events.iter().any(|(_, it)| is_reset(it)), "that relay loses nothing");
}

#[test]
fn a_path_that_loses_about_half_resets_its_sessions_once() {
    let mut net = Net::new(&["node", ORIGIN, ORIGIN], ms(1));
    let b = net.id(B);
    let lines = [B, C].map(|at| Line::Direct(net.id(at)));
    net.nodes[A].set_policy(&service(), Policy::Spread, Weights::default(), net.now);
    let standing = |net: &Net, line| {
        let route = net.nodes[A].route(&service()).expect("a route");
        route.candidates.iter().find(|it| it.origin.line == line).map(|it| it.standing)
    };
    let is_healthy = |net: &Net| lines.map(|it| standing(net, it)) == [Some(Standing::Healthy); 2];
    net.until(MEET, is_healthy).expect("they meet");
    net.nodes[A].handle_busy(BTreeSet::from(lines), net.now);
    net.pass(MEET);
    let loss = |net: &Net| {
        let path = net.nodes[A].discovery().paths().get(&b).expect("measured");
        path.loss_percent
    };
    let resets = |net: &Net| {
        let is_reset = |it: &Event| matches!(it, Event::Reset { line, .. } if *line == lines[0]);
        net.events.iter().filter(|(at, it)| *at == A && is_reset(it)).count()
    };
    for fault in 1..=2 {
        net.halved = Some(((A, B), 0));
        net.until(MEET, |net| loss(net) >= 50).expect("half is lost");
        let mut below = 0;
        for _ in 0..300 {
            net.pass(ms(100));
            below += u32::from(loss(&net) < 50);
        }
        assert!((30..=270).contains(&below), "above and below: {below} of 300");
        assert_eq!((resets(&net), standing(&net, lines[0])), (fault, Some(Standing::Suspect)));
        net.halved = None;
        net.until(MEET, is_healthy).expect("it is sound again");
        assert!(loss(&net) < 25, "{}", loss(&net));
    }
    // Sessions that begin on it while it is lossy hang once it is dead.
    net.halved = Some(((A, B), 0));
    net.until(MEET, |net| resets(net) == 3).expect("half is lost");
    net.links.insert((A, B), None);
    net.until(MEET, |net| standing(net, lines[0]) == Some(Standing::Down)).expect("it is dead");
    assert_eq!(resets(&net), 4);
}

#[test]
fn the_outside_comes_last_and_each_address_for_itself() {
    let mut net = Net::new(&["node", ORIGIN], ms(1));
    let direct = Line::Direct(net.id(B));
    let [one, two]: [SocketAddr; 2] = [1, 2].map(|port| ([192, 0, 2, 1], port).into());
    net.until(MEET, |net| net.first(A) == Some((direct, Standing::Healthy))).expect("they meet");
    net.nodes[A].set_fallback(&service(), vec![one, two], net.now);
    net.pass(MEET);
    assert_eq!(net.first(A), Some((direct, Standing::Healthy)));
    net.link(A, B, None);
    let first =
        |net: &Net, address| net.first(A) == Some((Line::Outside(address), Standing::Fallback));
    net.until(MEET, |net| first(net, one)).expect("all that is left");
    // The other one turns out faster, and then silent.
    let verdict = |net: &mut Net, verdict| net.attempted(A, Line::Outside(two), verdict);
    verdict(&mut net, Verdict::Connected(ms(3)));
    net.pass(MEET);
    assert!(first(&net, two));
    verdict(&mut net, Verdict::Silent);
    verdict(&mut net, Verdict::Silent);
    assert!(first(&net, one));
    let route = net.nodes[A].route(&service()).expect("a route").clone();
    let standings: Vec<Standing> = route.candidates.iter().map(|it| it.standing).collect();
    assert_eq!(standings, [Standing::Fallback, Standing::Down, Standing::Down]);
    net.link(A, B, Some(ms(1)));
    net.until(MEET, |net| net.first(A) == Some((direct, Standing::Healthy))).expect("it is back");
    net.nodes[A].set_fallback(&service(), Vec::new(), net.now);
    assert_eq!(net.nodes[A].route(&service()).expect("a route").candidates.len(), 1);
}

#[test]
fn a_dead_host_is_not_looked_for_through_relays() {
    let mut net = Net::new(&["node", ORIGIN, "node,relay", ORIGIN, "node,relay"], ms(1));
    let (b, d) = (net.id(B), net.id(3));
    for near in [A, B, C, 4] {
        net.link(near, 3, Some(ms(20)));
    }
    let healthy = |net: &Net, node| net.first(A) == Some((Line::Direct(node), Standing::Healthy));
    net.until(MEET, |net| healthy(net, b)).expect("they meet");
    net.pass(MEET);
    net.nodes[A].handle_busy(BTreeSet::from([Line::Direct(b)]), net.now);
    // The host is gone, and for a while every record still reports that it is near.
    for other in [A, C, 3, 4] {
        net.link(B, other, None);
    }
    net.until(Duration::from_secs(3), |net| healthy(net, d)).expect("the other one");
    net.events.clear();
    net.pass(MEET * 3);
    assert!(healthy(&net, d));
    let moved =
        |it: &&(usize, Event)| it.0 == A && matches!(it.1, Event::Route { change: Some(_), .. });
    assert_eq!(net.events.iter().filter(moved).count(), 0);
}

#[test]
fn few_paths_are_measured_for_the_sake_of_relays() {
    let relays = [["node", ORIGIN].as_slice(), &["node,relay"; 9]].concat();
    let mut net = Net::new(&relays, ms(1));
    let direct = Line::Direct(net.id(B));
    net.until(MEET, |net| net.first(A) == Some((direct, Standing::Healthy))).expect("they meet");
    let measured = |net: &Net| {
        let paths: Vec<NodeId> =
            net.nodes[A].discovery().paths().iter().map(|(node, _)| *node).collect();
        paths
    };
    net.pass(MEET);
    let before = measured(&net);
    assert_eq!(before.len(), 1 + crate::relay::MAX_WATCHED, "the origin and a few relays");
    net.pass(MEET);
    assert_eq!(measured(&net), before, "those that answer stay");
    assert_eq!(net.nodes[A].offers(&service(), net.id(B), net.now).len(), before.len() - 1);
}

#[test]
fn what_others_cannot_reach_changes_nothing_here() {
    let mut net = Net::new(&["node", ORIGIN, "node,relay", ORIGIN], ms(1));
    let (b, d) = (net.id(B), net.id(3));
    net.link(A, 3, Some(ms(20)));
    // A relay that claims to be next to every origin.
    net.link(C, B, Some(Duration::ZERO));
    net.link(C, 3, Some(ms(10)));
    net.until(MEET, |net| net.first(A) == Some((Line::Direct(b), Standing::Healthy))).expect("met");
    net.pass(MEET * 3);
    net.events.clear();
    // It loses all of them, and reports that.
    net.link(C, B, None);
    net.link(C, 3, None);
    net.pass(MEET * 3);
    let told = net.nodes[A].discovery().directory().get(&net.id(C)).and_then(|it| it.node_state());
    let lost = told.expect("a record").distances.iter().filter(|it| it.rtt_us.is_none()).count();
    assert_eq!(lost, 2, "C says that it reaches none");
    let moved = |it: &&(usize, Event)| {
        it.0 == A && matches!(it.1, Event::Route { change: Some(_), .. } | Event::Reset { .. })
    };
    assert_eq!(net.events.iter().find(moved).map(|it| it.0), None);
    let route = net.nodes[A].route(&service()).expect("a route");
    let paths: Vec<_> = route.candidates.iter().map(|it| (it.origin.line, it.standing)).collect();
    let expected = [b, d].map(|node| (Line::Direct(node), Standing::Healthy));
    assert_eq!(paths, expected);
    assert!(route.candidates.iter().all(|it| matches!(it.origin.path, PathView::Up(_))));
}

#[test]
fn sessions_to_a_node_that_left_are_reset_when_its_path_dies() {
    let mut net = Net::new(&["node", ORIGIN, "node"], ms(1));
    let direct = Line::Direct(net.id(B));
    net.until(MEET, |net| net.first(A) == Some((direct, Standing::Healthy))).expect("they meet");
    net.nodes[A].handle_busy(BTreeSet::from([direct]), net.now);
    net.pass(MEET);
    let now = net.now;
    net.nodes[B].leave(now);
    net.until(MEET, |net| net.first(A).is_none()).expect("it is no origin any more");
    let is_reset = |net: &Net| {
        let mut events = net.events.iter();
        events
            .any(|(at, it)| *at == A && matches!(it, Event::Reset { line, .. } if *line == direct))
    };
    assert!(!is_reset(&net), "a farewell alone cuts nothing");
    // Its process ends, and the packets that close its sessions are lost.
    net.link(A, B, None);
    net.until(Duration::from_secs(4), is_reset).expect("its sessions are reset");
}

#[test]
fn an_origin_that_denies_this_node_is_asked_last_and_reported_once() {
    let mut net = Net::new(&["node", ORIGIN], ms(1));
    let direct = Line::Direct(net.id(B));
    net.until(MEET, |net| net.first(A) == Some((direct, Standing::Healthy))).expect("they meet");
    for _ in 0..3 {
        net.attempted(A, direct, Verdict::Denied);
    }
    net.drain();
    let told = net.events.iter().filter(|(_, event)| matches!(event, Event::Denied { .. }));
    assert_eq!(told.count(), 1);
    let route = net.nodes[A].route(&service()).expect("a route").clone();
    assert!(!route.is_usable() && route.why == "no origin allows this node", "{route:?}");
    let open = |net: &Net| net.first(A) == Some((direct, Standing::Healthy));
    let after = net.until(Duration::from_secs(60), open).expect("it is tried again");
    assert!(after >= Duration::from_secs(20), "not at once, but after {after:?}");
}

#[test]
fn a_new_credential_ends_the_memory_of_denials() {
    let mut net = Net::new(&["node", ORIGIN], ms(1));
    let direct = Line::Direct(net.id(B));
    let open = |net: &Net| net.first(A) == Some((direct, Standing::Healthy));
    net.until(MEET, open).expect("they meet");
    net.attempted(A, direct, Verdict::Denied);
    net.drain();
    assert!(!open(&net), "it is asked last");
    let me = net.id(A);
    let own = net.nodes[A].discovery().directory().get(&me).expect("known").credential.clone();
    net.nodes[A].set_credential(&own, net.now);
    net.drain();
    assert!(open(&net), "at once");
    // The origin has not heard of it yet.
    net.attempted(A, direct, Verdict::Denied);
    net.drain();
    assert!(!open(&net));
    net.until(Duration::from_secs(2), open).expect("it is tried again soon");
}

/// A node announced a service while it was permitted to, and then loses the permission.
#[test]
fn a_service_that_a_credential_does_not_allow_is_not_routed_to_and_warned_of() {
    let mut net = Net::new(&["node", ORIGIN], ms(1));
    let (direct, b) = (Line::Direct(net.id(B)), net.id(B));
    net.until(MEET, |net| net.first(A) == Some((direct, Standing::Healthy))).expect("they meet");
    let ignored = |net: &Net| {
        let entry = net.nodes[A].discovery().directory().get(&b).expect("known");
        entry.ignored_services().cloned().collect::<Vec<_>>()
    };
    assert!(ignored(&net).is_empty());
    let before = net.nodes[A].discovery().directory().get(&b).expect("known").credential.clone();
    let authority = AuthorityKey::from_bytes([9; 32]);
    let subject = Subject {
        node: b,
        record_key: before.record_key,
        name: before.name.clone(),
        site: before.site.clone(),
        roles: "node".parse().expect("roles"),
        succession: None,
    };
    let (from, until) = (UnixSeconds(WALL.0 + 1), before.expires_at);
    let later = Credential::issue_by_authority(&authority, subject, from, until);
    let key = NodeKey::from_bytes([2; 32]);
    let later = later.and_then(|issued| issued.countersign(&key)).expect("valid");
    net.nodes[A].handle_credential(&later, net.now, WALL);
    assert_eq!(net.first(A), None, "no origin is left");
    assert_eq!(ignored(&net), [service()]);
}
