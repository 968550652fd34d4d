//! A deterministic network of discoveries: one event queue, virtual time, latency and loss per
//! link, and the mesh below: sessions made on first use, credentials exchanged at admission.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use meshport_config::{Credential, NodeId, UnixSeconds};

use crate::Count;
use crate::core::{Discovery, Event};
use crate::directory::Liveness;
use crate::state::OriginState;
use crate::tests::{Member, Mesh, WALL, base};
pub(super) use crate::tests::{ms, secs};
use crate::verify::Memo;
use crate::{DiscoveryConfig, Setup};

mod events;
mod links;

use events::{Events, What};
use links::Links;

/// The service all origins offer.
pub(super) const SERVICE: &str = "kube-apiserver";
/// Datagrams that the mesh queues per peer during a handshake, and how often it retries.
const QUEUED: usize = 16;
const HANDSHAKES: u32 = 5;

pub(super) struct Node {
    pub(super) member: Member,
    pub(super) site: usize,
    pub(super) discovery: Option<Discovery>,
    pub(super) generation: u64,
    pub(super) events: Vec<(Duration, Event)>,
    /// Peers with a session, and what waits for one.
    sessions: BTreeSet<usize>,
    queued: BTreeMap<usize, Vec<Vec<u8>>>,
    /// Peers whose address is known.
    routable: BTreeSet<usize>,
    timer: Option<Duration>,
    frozen_until: Duration,
    /// Offset of its wall clock, in seconds.
    ahead_s: i64,
}

pub(super) struct Net {
    pub(super) mesh: Mesh,
    pub(super) nodes: Vec<Node>,
    pub(super) config: DiscoveryConfig,
    memo: Memo,
    pub(super) links: Links,
    pub(super) hash: u64,
    pub(super) unroutable: u64,
    index: BTreeMap<NodeId, usize>,
    events: Events,
    base: Instant,
    seed: u8,
}

impl Net {
    pub(super) fn new(seed: u8) -> Self {
        println!("seed {seed}");
        Self {
            mesh: Mesh::new(1),
            nodes: Vec::new(),
            config: DiscoveryConfig::default(),
            memo: Memo::default(),
            links: Links::new(seed),
            hash: 0xcbf2_9ce4_8422_2325,
            unroutable: 0,
            index: BTreeMap::new(),
            events: Events::default(),
            base: base(),
            seed,
        }
    }

    /// `count` nodes spread over `sites`, the first `origins` of them origins that are ready, all
    /// started with the first node as seed.
    pub(super) fn with_nodes(seed: u8, count: usize, sites: usize, origins: usize) -> Self {
        let mut net = Self::new(seed);
        for number in 0..count {
            let roles = if number < origins { "node,origin:kube-apiserver" } else { "node" };
            net.add(number % sites, roles);
        }
        for number in 0..count {
            net.start(number, &[0]);
            if number < origins {
                net.set_service(number, OriginState::Ready);
            }
        }
        net
    }

    /// Adds a node that is not running yet.
    pub(super) fn add(&mut self, site: usize, roles: &str) -> usize {
        let number = self.nodes.len();
        let member = self.mesh.member(number as u32, &format!("site-{site}"), roles);
        self.index.insert(member.credential.node, number);
        self.nodes.push(Node {
            member,
            site,
            discovery: None,
            generation: 0,
            events: Vec::new(),
            sessions: BTreeSet::new(),
            queued: BTreeMap::new(),
            routable: BTreeSet::new(),
            timer: None,
            frozen_until: Duration::ZERO,
            ahead_s: 0,
        });
        number
    }

    /// Starts a node with these seeds, in a new generation.
    pub(super) fn start(&mut self, number: usize, seeds: &[usize]) {
        self.boot(number, seeds, None);
    }

    /// Starts a node, with a snapshot if given.
    pub(super) fn boot(&mut self, number: usize, seeds: &[usize], snapshot: Option<&[u8]>) {
        let (now, wall) = (self.instant(), self.wall_of(number));
        let ids: Vec<NodeId> = seeds.iter().map(|it| self.id(*it)).collect();
        let node = &mut self.nodes[number];
        node.generation += 1;
        let me = node.member.local();
        let mut seed = [self.seed; 32];
        seed[..4].copy_from_slice(&(number as u32).to_le_bytes());
        seed[4] = node.generation as u8;
        let is_leaf = me.credential.roles.is_leaf();
        let leaf_of = is_leaf.then(|| vec![SERVICE.parse().unwrap()]);
        let setup = Setup { config: self.config.clone(), leaf_of, memo: Some(self.memo.clone()) };
        let mut discovery = Discovery::new(setup, me, node.generation, seed, now);
        let endpoint = format!("10.{}.{}.{}:51820", node.site, number / 256, number % 256);
        discovery.set_endpoints(vec![endpoint.parse().unwrap()], now);
        if let Some(snapshot) = snapshot {
            discovery.restore(snapshot, now, wall).expect("the snapshot is good");
        }
        discovery.set_seeds(ids, now);
        node.discovery = Some(discovery);
        node.routable.extend(seeds);
        self.drain(number);
    }

    /// A node continues with another key; the mesh shows its credential to its peers.
    pub(super) fn succeed(&mut self, number: usize) {
        let member = self.mesh.successor(&self.nodes[number].member, number as u32);
        let credential = member.credential.clone();
        let me = member.local();
        self.index.insert(credential.node, number);
        self.nodes[number].member = member;
        let (wall, peers) = (self.wall(), self.nodes[number].sessions.clone());
        for peer in peers {
            self.with(peer, |discovery, now| {
                discovery.handle_credential(&credential, now, wall);
                discovery.handle_session(credential.node, true, now);
            });
        }
        self.with(number, |discovery, now| discovery.succeed(me, now));
    }

    /// A node has another credential, which the mesh shows to these peers.
    pub(super) fn show(&mut self, number: usize, credential: &Credential, to: &[usize]) {
        for &peer in to {
            let wall = self.wall_of(peer);
            let take = |it: &mut Discovery, now| it.handle_credential(credential, now, wall);
            self.with(peer, take);
        }
        self.nodes[number].member.credential = credential.clone();
        self.with(number, |discovery, now| discovery.set_credential(credential, now));
    }

    /// Stops a node silently. Its peers keep their sessions, as WireGuard does.
    pub(super) fn crash(&mut self, number: usize) {
        let node = &mut self.nodes[number];
        node.discovery = None;
        node.sessions.clear();
        node.queued.clear();
        node.timer = None;
    }

    pub(super) fn freeze(&mut self, number: usize, by: Duration) {
        self.nodes[number].frozen_until = self.events.now + by;
    }

    /// Cuts both directions between two groups.
    pub(super) fn partition(&mut self, a: &[usize], b: &[usize]) {
        for a in a {
            for b in b {
                self.links.cut(*a, *b);
            }
        }
    }

    pub(super) fn heal(&mut self) {
        self.links.heal();
    }

    pub(super) fn set_service(&mut self, number: usize, state: OriginState) {
        let now = self.instant();
        self.discovery(number).set_service(SERVICE.parse().unwrap(), state, now);
        self.drain(number);
    }

    /// Runs a closure on a node and drains it.
    pub(super) fn with(&mut self, number: usize, act: impl FnOnce(&mut Discovery, Instant)) {
        let now = self.instant();
        act(self.discovery(number), now);
        self.drain(number);
    }

    /// Delivers bytes as if one node had sent them to another over their session.
    pub(super) fn inject(&mut self, from: usize, to: usize, bytes: Vec<u8>) {
        self.events.push(self.events.now, What::Deliver { from, to, bytes });
    }

    pub(super) fn now(&self) -> Duration {
        self.events.now
    }

    pub(super) fn instant(&self) -> Instant {
        self.base + self.events.now
    }

    pub(super) fn wall(&self) -> UnixSeconds {
        UnixSeconds(WALL.0 + self.events.now.as_secs())
    }

    /// The wall clock of a node.
    fn wall_of(&self, number: usize) -> UnixSeconds {
        UnixSeconds(self.wall().0.saturating_add_signed(self.nodes[number].ahead_s))
    }

    /// Sets the wall clock of a node ahead of the correct one by this much.
    pub(super) fn set_clock(&mut self, number: usize, ahead_s: i64) {
        self.nodes[number].ahead_s = ahead_s;
    }

    pub(super) fn id(&self, number: usize) -> NodeId {
        self.nodes[number].member.credential.node
    }

    pub(super) fn get(&self, number: usize) -> &Discovery {
        self.nodes[number].discovery.as_ref().expect("the node runs")
    }

    pub(super) fn running(&self) -> impl Iterator<Item = usize> {
        (0..self.nodes.len()).filter(|it| self.nodes[*it].discovery.is_some())
    }

    /// How one node sees another.
    pub(super) fn sees(&self, observer: usize, number: usize) -> Option<Liveness> {
        self.get(observer).directory().get(&self.id(number)).map(|entry| entry.liveness)
    }

    pub(super) fn sees_service(&self, observer: usize, number: usize) -> Option<OriginState> {
        let entry = self.get(observer).directory().get(&self.id(number))?;
        entry.service(&SERVICE.parse().unwrap())
    }

    /// All running nodes consider exactly the running nodes alive, each with the record of its
    /// generation.
    pub(super) fn agreed(&self) -> bool {
        let running: Vec<usize> = self.running().collect();
        running.iter().all(|it| {
            let directory = self.get(*it).directory();
            let current = |other: &usize| {
                let entry = directory.get(&self.id(*other));
                let state = entry.and_then(|it| it.node_state());
                state.is_some_and(|state| state.generation == self.get(*other).generation())
            };
            directory.alive() == running.len() && running.iter().all(current)
        })
    }

    /// All running nodes have identical directories.
    pub(super) fn identical(&self) -> bool {
        let roots: BTreeSet<u64> =
            self.running().map(|it| self.get(it).directory().root()).collect();
        roots.len() == 1
    }

    /// Events of a kind that a node reported since `since`.
    pub(super) fn count_events(
        &self,
        number: usize,
        since: Duration,
        is: impl Fn(&Event) -> bool,
    ) -> usize {
        let events = self.nodes[number].events.iter();
        events.filter(|(at, event)| *at >= since && is(event)).count()
    }

    /// Runs for some time.
    pub(super) fn run(&mut self, time: Duration) {
        let end = self.events.now + time;
        while let Some(what) = self.events.next(end) {
            self.step(what);
        }
    }

    /// Runs until something holds, checked every 20 ms; how long it took, or a failed test.
    pub(super) fn until(
        &mut self,
        limit: Duration,
        what: &str,
        holds: impl Fn(&Self) -> bool,
    ) -> Duration {
        let start = self.events.now;
        while !holds(self) {
            if self.events.now - start >= limit {
                self.explain();
            }
            assert!(self.events.now - start < limit, "{what} took longer than {limit:?}");
            self.run(ms(20));
        }
        println!("{what}: {:?}", self.events.now - start);
        self.events.now - start
    }

    /// Prints the differences of directories, for a test that is about to fail.
    fn explain(&self) {
        let running: Vec<usize> = self.running().collect();
        for about in &running {
            let mut views: BTreeMap<String, Vec<usize>> = BTreeMap::new();
            for observer in &running {
                let entry = self.get(*observer).directory().get(&self.id(*about));
                let view = entry.map(|it| (it.liveness, it.have()));
                views.entry(format!("{view:?}")).or_default().push(*observer);
            }
            for (view, observers) in views.iter().filter(|_| views.len() > 1) {
                let some = &observers[..observers.len().min(8)];
                println!("about {about}: {} see {view}, {some:?}", observers.len());
            }
        }
    }

    /// Bytes and packets sent per node and second while running for `time`.
    pub(super) fn rate(&mut self, time: Duration) -> (f64, f64) {
        let total = |net: &Self| {
            net.running().map(|it| net.get(it).counters()).fold((0, 0), |sum, it| {
                (sum.0 + it[Count::SentBytes], sum.1 + it[Count::SentPackets])
            })
        };
        let before = total(self);
        self.run(time);
        let after = total(self);
        let per = self.running().count() as f64 * time.as_secs_f64();
        ((after.0 - before.0) as f64 / per, (after.1 - before.1) as f64 / per)
    }

    fn discovery(&mut self, number: usize) -> &mut Discovery {
        self.nodes[number].discovery.as_mut().expect("the node runs")
    }

    fn step(&mut self, what: What) {
        let (number, timer) = match &what {
            What::Deliver { to, .. } => (*to, false),
            What::Timer { node } => (*node, true),
            What::Handshake { from, to, tries } => return self.handshake(*from, *to, *tries),
        };
        if self.nodes[number].frozen_until > self.events.now {
            let until = self.nodes[number].frozen_until;
            return self.events.push(until, what);
        }
        let (now, wall) = (self.instant(), self.wall_of(number));
        let node = &mut self.nodes[number];
        let Some(discovery) = &mut node.discovery else { return };
        match what {
            What::Timer { .. } => {
                node.timer = None;
                if discovery.poll_timeout().is_some_and(|due| due <= now) {
                    discovery.handle_timeout(now, wall);
                }
            }
            What::Deliver { from, bytes, .. } => {
                if !node.sessions.contains(&from) {
                    // The peer holds a session that this node lost when it restarted.
                    self.events.push(
                        self.events.now + secs(5),
                        What::Handshake { from, to: number, tries: 0 },
                    );
                    return;
                }
                let credential = self.nodes[from].member.credential.clone();
                let from = credential.node;
                let discovery = self.discovery(number);
                if discovery.wants_credential(&from, now) {
                    discovery.handle_credential(&credential, now, wall);
                }
                discovery.handle_datagram(from, &bytes, now, wall);
            }
            What::Handshake { .. } => {}
        }
        debug_assert!(timer || self.nodes[number].discovery.is_some());
        self.drain(number);
    }

    fn latency(&mut self, from: usize, to: usize) -> Duration {
        self.links.delay(self.nodes[from].site, self.nodes[to].site)
    }

    fn handshake(&mut self, from: usize, to: usize, tries: u32) {
        let both = self.nodes[from].discovery.is_some() && self.nodes[to].discovery.is_some();
        let lost = self.links.lose(from, to) || self.links.lose(to, from);
        let made =
            self.nodes[from].sessions.contains(&to) && self.nodes[to].sessions.contains(&from);
        if self.nodes[from].discovery.is_none() || made {
            return self.release(from, to);
        }
        if !both || lost {
            if tries < HANDSHAKES {
                self.events.push(
                    self.events.now + secs(1),
                    What::Handshake { from, to, tries: tries + 1 },
                );
            } else {
                self.nodes[from].queued.remove(&to);
            }
            return;
        }
        for (a, b) in [(from, to), (to, from)] {
            let (now, wall) = (self.instant(), self.wall_of(a));
            let (peer, credential) = (self.id(b), self.nodes[b].member.credential.clone());
            self.nodes[a].sessions.insert(b);
            self.nodes[a].routable.insert(b);
            let discovery = self.discovery(a);
            discovery.handle_credential(&credential, now, wall);
            discovery.handle_session(peer, true, now);
        }
        self.release(from, to);
        self.release(to, from);
        self.drain(from);
        self.drain(to);
    }

    fn release(&mut self, from: usize, to: usize) {
        for bytes in self.nodes[from].queued.remove(&to).unwrap_or_default() {
            self.transmit(from, to, bytes);
        }
    }

    fn transmit(&mut self, from: usize, to: usize, bytes: Vec<u8>) {
        if self.nodes[from].sessions.contains(&to) {
            let at = self.events.now + self.latency(from, to);
            for word in [at.as_micros() as u64, from as u64, to as u64, bytes.len() as u64] {
                self.hash = (self.hash ^ word).wrapping_mul(0x0100_0000_01b3);
            }
            // No mesh splits anything here.
            let is_long = ["wide-", "split-"].iter().any(|it| crate::kind(&bytes).starts_with(it));
            let is_stuck = self.links.narrow == Some((from, to)) && is_long;
            if !is_stuck && !self.links.lose(from, to) {
                self.events.push(at, What::Deliver { from, to, bytes });
            }
        } else if self.nodes[from].routable.contains(&to) {
            let waiting = self.nodes[from].queued.entry(to).or_default();
            if waiting.is_empty() {
                let at = self.events.now + self.latency(from, to) + self.latency(to, from);
                self.events.push(at, What::Handshake { from, to, tries: 0 });
            }
            let waiting = self.nodes[from].queued.entry(to).or_default();
            if waiting.len() < QUEUED {
                waiting.push(bytes);
            }
        } else {
            self.unroutable += 1;
        }
    }

    fn drain(&mut self, number: usize) {
        let at = self.events.now;
        let Some(discovery) = &mut self.nodes[number].discovery else { return };
        let mut transmits = Vec::new();
        while let Some(transmit) = discovery.poll_transmit() {
            assert!(transmit.payload.len() <= crate::WIDE_DATAGRAM);
            transmits.push(transmit);
        }
        let mut events = Vec::new();
        while let Some(event) = discovery.poll_event() {
            events.push(event);
        }
        let due = discovery.poll_timeout().map(|due| due.saturating_duration_since(self.base));
        for event in events {
            if let Event::PeerWanted { node, endpoints, .. } = &event {
                if !endpoints.is_empty() {
                    let peer = self.index[node];
                    self.nodes[number].routable.insert(peer);
                }
            } else {
                self.nodes[number].events.push((at, event));
            }
        }
        for transmit in transmits {
            let to = self.index[&transmit.to];
            self.transmit(number, to, transmit.payload);
        }
        let timer = self.nodes[number].timer;
        if let Some(due) = due.map(|due| due.max(at))
            && timer.is_none_or(|set| due < set)
        {
            self.nodes[number].timer = Some(due);
            self.events.push(due, What::Timer { node: number });
        }
    }
}
