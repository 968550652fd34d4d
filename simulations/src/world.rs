//! The event queue and what it acts on: nodes, tunnels, links, instances.
//!
//! One loop pops the next event, hands it to the node concerned with the time it happens at, and
//! carries out what the node then wants. Nothing else advances time. Randomness comes from the seed
//! alone: one generator for the world, one per link, one per node.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use meshport::core::drift::DriftConfig;
use meshport::core::health::{HealthConfig, Outcome, Question};
use meshport::core::node::{CoreConfig, Event as Decision, NodeCore, ServiceConfig};
use meshport::core::route::{PathView, Policy, Standing};
use meshport::wan::{Jitter, Link, LinkConfig, Loss, Verdict};
use meshport_config::{
    AuthorityKey, Credential, NodeId, NodeKey, RecordKey, Role, Roles, ServiceName, Subject,
    UnixSeconds,
};
use meshport_discovery::{DiscoveryConfig, LocalNode};
use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::Error;
use crate::queue::Queue;
use crate::report::{Change, Moved, Report};
use crate::scenario::{Happening, Instance, Scenario};
use crate::trace::Trace;
use crate::tunnel::{INITIATION, MAX_ATTEMPTS, MAX_WAITING, OVERHEAD, RESPONSE, RETRY, Tunnel};

/// The service every simulated client wants.
pub const SERVICE: &str = "kube-apiserver";
/// Sites whose first node is a seed for all.
const SEED_SITES: usize = 3;
/// Nodes start within this time of each other.
const START_SPREAD: Duration = Duration::from_secs(1);
/// Events of one instant beyond which some node's timer is never satisfied: a bug in its core.
const MAX_EVENTS_AT_ONCE: u32 = 1_000_000;
/// How often a node saves its directory, as the daemon does.
const SAVE_INTERVAL: Duration = Duration::from_secs(60);
/// Wall time at the start: any moment at which the credentials are valid.
const WALL_START: u64 = 1_800_000_000;
/// Credentials outlive every run.
const CREDENTIAL_LIFETIME_S: u64 = 10 * 365 * 24 * 3600;

#[derive(Debug)]
enum Event {
    Happens(usize),
    Start(usize),
    Wake { node: usize, boot: u32 },
    Probed { node: usize, boot: u32, question: Question, outcome: Outcome },
    Initiation { from: usize, from_boot: u32, to: usize },
    Response { from: usize, from_boot: u32, to: usize, to_boot: u32 },
    Retry { from: usize, from_boot: u32, to: usize },
    Datagram { from: usize, from_boot: u32, to: usize, to_boot: u32, payload: Vec<u8> },
}

struct Node {
    name: String,
    site: usize,
    key: RecordKey,
    credential: Credential,
    seed: u64,
    /// `None` while crashed.
    core: Option<NodeCore>,
    /// Counts the starts of its process; 0 is "not yet".
    boot: u32,
    instance: Option<Instance>,
    tunnels: BTreeMap<usize, Tunnel>,
    /// Nodes whose address it knows.
    book: BTreeSet<usize>,
    wake: Option<Duration>,
    saved: (Duration, Vec<u8>),
}

/// A run in progress.
pub struct World {
    scenario: Scenario,
    happenings: Vec<(Duration, String, Happening)>,
    epoch: Instant,
    now: Duration,
    rng: ChaCha8Rng,
    queue: Queue<Event>,
    nodes: Vec<Node>,
    by_id: BTreeMap<NodeId, usize>,
    links: BTreeMap<(usize, usize), Link>,
    service: ServiceName,
    changes: Vec<Change>,
    trace: Trace,
    bytes: u64,
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World").field("now", &self.now).field("nodes", &self.nodes.len()).finish()
    }
}

impl World {
    /// A world before its first moment.
    ///
    /// # Errors
    /// [`Error::Scenario`] when the scenario's names or roles do not make a mesh.
    pub fn new(scenario: Scenario, seed: u64) -> Result<Self, Error> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let service: ServiceName = SERVICE.parse().expect("a valid service name");
        let authority = AuthorityKey::from_bytes(bytes32(&mut rng));
        let mut nodes = Vec::new();
        for (site, number) in scenario.nodes() {
            let is_origin = number <= scenario.sites[site].origins;
            let roles = is_origin.then(|| Role::Origin(service.clone()));
            let roles = roles.into_iter().chain([Role::Node]);
            nodes.push(node(&scenario, (site, number), roles, &authority, &mut rng)?);
        }
        let by_id = nodes.iter().enumerate().map(|(at, node)| (node.credential.node, at)).collect();
        let links = links(&scenario, &mut rng)?;
        let mut world = Self {
            happenings: scenario.happenings()?,
            scenario,
            #[expect(clippy::disallowed_methods, reason = "an origin for virtual time")]
            epoch: Instant::now(),
            now: Duration::ZERO,
            rng,
            queue: Queue::new(),
            nodes,
            by_id,
            links,
            service,
            changes: Vec::new(),
            trace: Trace::default(),
            bytes: 0,
        };
        for at in 0..world.nodes.len() {
            let start = world.rng.random_range(Duration::ZERO..START_SPREAD);
            world.queue.push(start, Event::Start(at));
        }
        for (place, (at, ..)) in world.happenings.iter().enumerate() {
            world.queue.push(*at, Event::Happens(place));
        }
        Ok(world)
    }

    /// Runs to the scenario's end.
    pub fn run(mut self) -> Report {
        let end = self.scenario.duration();
        let mut in_this_instant = 0;
        while let Some((at, event)) = self.queue.pop(end) {
            debug_assert!(at >= self.now, "time goes forward");
            in_this_instant = if at == self.now { in_this_instant + 1 } else { 0 };
            assert!(in_this_instant < MAX_EVENTS_AT_ONCE, "time stands still at {at:?}: {event:?}");
            self.now = at;
            self.handle(event);
        }
        self.now = end;
        self.report()
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Happens(place) => self.happen(place),
            Event::Start(node) => self.start(node),
            Event::Wake { node, boot } => {
                if self.is_running(node, boot) && self.nodes[node].wake == Some(self.now) {
                    self.nodes[node].wake = None;
                    self.save(node);
                    self.with_core(node, NodeCore::handle_timeout);
                }
            }
            Event::Probed { node, boot, question, outcome } => {
                if self.is_running(node, boot) {
                    let service = self.service.clone();
                    self.with_core(node, |core, now, _| {
                        core.handle_outcome(&service, question, outcome, now);
                    });
                }
            }
            Event::Initiation { from, from_boot, to } => self.respond(from, from_boot, to),
            Event::Response { from, from_boot, to, to_boot } => {
                if self.is_running(to, to_boot) {
                    self.complete(to, from, from_boot);
                }
            }
            Event::Retry { from, from_boot, to } => self.retry(from, from_boot, to),
            Event::Datagram { from, from_boot, to, to_boot, payload } => {
                if self.is_running(to, to_boot) {
                    self.receive(from, from_boot, to, &payload);
                }
            }
        }
    }

    fn happen(&mut self, place: usize) {
        let (at, words, happening) = self.happenings[place].clone();
        self.trace.note(at, &words);
        match happening {
            Happening::Instance(node, becomes) => self.nodes[node].instance = Some(becomes),
            Happening::Crash(node) => {
                let node = &mut self.nodes[node];
                node.core = None;
                node.tunnels.clear();
                node.wake = None;
            }
            Happening::Restart(node) => {
                if self.nodes[node].core.is_none() {
                    self.start(node);
                }
            }
            Happening::Path(a, b, up) => {
                for pair in [(a, b), (b, a)] {
                    if let Some(link) = self.links.get_mut(&pair) {
                        link.set_up(up);
                    }
                }
            }
        }
    }

    fn start(&mut self, at: usize) {
        let (now, wall) = (self.epoch + self.now, self.wall());
        let seeds = self.seeds();
        let node = &mut self.nodes[at];
        node.boot += 1;
        let health = node.instance.map(|_| HealthConfig {
            interval: Duration::from_secs(1),
            fall: 2,
            asks_ready: true,
        });
        let policy = Policy::Nearest { band: Duration::from_millis(1), band_percent: 15 };
        let service = ServiceConfig { policy, drift: DriftConfig::default(), health };
        let config = CoreConfig {
            discovery: DiscoveryConfig::default(),
            services: BTreeMap::from([(self.service.clone(), service)]),
        };
        let me = LocalNode { credential: node.credential.clone(), record_key: node.key.clone() };
        let mut rng = ChaCha8Rng::seed_from_u64(node.seed.wrapping_add(u64::from(node.boot)));
        let mut core = NodeCore::new(config, me, u64::from(node.boot), bytes32(&mut rng), now);
        if !node.saved.1.is_empty() {
            core.restore(&node.saved.1, now, wall).expect("what a node saved it can read");
        }
        let port = u16::try_from(at).expect("at most MAX_NODES nodes");
        core.set_endpoints(vec![([127, 0, 0, 1], port).into()], now);
        node.book.extend(seeds.iter().filter(|seed| **seed != at));
        let seeds = seeds.iter().filter(|seed| **seed != at);
        let seeds: Vec<NodeId> = seeds.map(|seed| self.nodes[*seed].credential.node).collect();
        core.set_seeds(seeds, now);
        self.nodes[at].core = Some(core);
        self.pump(at);
    }

    fn seeds(&self) -> Vec<usize> {
        let site = |site| self.nodes.iter().position(|node| node.site == site);
        (0..self.scenario.sites.len()).filter_map(site).take(SEED_SITES).collect()
    }

    fn with_core(&mut self, node: usize, act: impl FnOnce(&mut NodeCore, Instant, UnixSeconds)) {
        let (now, wall) = (self.epoch + self.now, self.wall());
        if let Some(core) = &mut self.nodes[node].core {
            act(core, now, wall);
            self.pump(node);
        }
    }

    /// Carries out what a node's core wants, then notes when it next needs the time.
    fn pump(&mut self, at: usize) {
        let now = self.epoch + self.now;
        loop {
            let Some(core) = &mut self.nodes[at].core else { return };
            if let Some(decision) = core.poll_event() {
                self.decide(at, decision);
            } else if let Some(transmit) = core.poll_transmit() {
                if let Some(to) = self.by_id.get(&transmit.to).copied() {
                    self.send(at, to, transmit.payload);
                }
            } else if let Some((_, question)) = core.poll_probe(now) {
                let instance = self.nodes[at].instance.unwrap_or(Instance::Down);
                let (delay, outcome) = instance.ask(question);
                let boot = self.nodes[at].boot;
                self.queue
                    .push(self.now + delay, Event::Probed { node: at, boot, question, outcome });
            } else {
                break;
            }
        }
        let node = &mut self.nodes[at];
        let wanted = node.core.as_ref().and_then(NodeCore::poll_timeout);
        let Some(wanted) = wanted.map(|wake| wake.saturating_duration_since(self.epoch)) else {
            return;
        };
        let wanted = wanted.max(self.now);
        if node.wake.is_none_or(|wake| wanted < wake) {
            node.wake = Some(wanted);
            self.queue.push(wanted, Event::Wake { node: at, boot: node.boot });
        }
    }

    fn decide(&mut self, at: usize, decision: Decision) {
        match decision {
            Decision::Route { route, first_changed, .. } => {
                if first_changed {
                    let first = route.first().filter(|first| first.standing < Standing::Down);
                    let to = first.and_then(|first| {
                        first.origin.line.origin().and_then(|node| self.by_id.get(&node)).copied()
                    });
                    let words = format!("{at}->{to:?}");
                    self.trace.note(self.now, &words);
                    self.changes.push(Change { at: self.now, node: at, to });
                }
            }
            Decision::Peer { node, .. } => {
                if let Some(peer) = self.by_id.get(&node) {
                    self.nodes[at].book.insert(*peer);
                }
            }
            Decision::Reset { .. }
            | Decision::Move { .. }
            | Decision::Own { .. }
            | Decision::Member { .. }
            | Decision::Ignored { .. } => {}
        }
    }

    fn send(&mut self, from: usize, to: usize, payload: Vec<u8>) {
        let now = self.now;
        let node = &mut self.nodes[from];
        let from_boot = node.boot;
        let knows_address = node.book.contains(&to);
        let tunnel = node.tunnels.entry(to).or_default();
        let stale = tunnel.is_stale(now);
        if let Some(to_boot) = tunnel.with_boot {
            tunnel.speak(now);
            let size = payload.len() + OVERHEAD;
            let event = Event::Datagram { from, from_boot, to, to_boot, payload };
            self.transmit(from, to, size, event);
        } else if knows_address && tunnel.waiting.len() < MAX_WAITING {
            tunnel.waiting.push(payload);
        }
        let tunnel = self.nodes[from].tunnels.entry(to).or_default();
        let wants_handshake = stale || (tunnel.with_boot.is_none() && knows_address);
        if wants_handshake && tunnel.attempts == 0 {
            self.initiate(from, to);
        }
    }

    fn initiate(&mut self, from: usize, to: usize) {
        let from_boot = self.nodes[from].boot;
        let tunnel = self.nodes[from].tunnels.entry(to).or_default();
        tunnel.attempts += 1;
        self.transmit(from, to, INITIATION, Event::Initiation { from, from_boot, to });
        let jitter = self.rng.random_range(Duration::ZERO..RETRY / 3);
        self.queue.push(self.now + RETRY + jitter, Event::Retry { from, from_boot, to });
    }

    fn retry(&mut self, from: usize, from_boot: u32, to: usize) {
        if !self.is_running(from, from_boot) {
            return;
        }
        let Some(tunnel) = self.nodes[from].tunnels.get_mut(&to) else { return };
        if tunnel.attempts == 0 {
            return;
        }
        if tunnel.attempts < MAX_ATTEMPTS {
            return self.initiate(from, to);
        }
        *tunnel = Tunnel::default();
        let peer = self.nodes[to].credential.node;
        self.with_core(from, |core, now, _| core.handle_session(peer, false, now));
    }

    fn respond(&mut self, from: usize, from_boot: u32, to: usize) {
        if self.nodes[to].core.is_some() {
            let to_boot = self.nodes[to].boot;
            let event =
                Event::Response { from: to, from_boot: to_boot, to: from, to_boot: from_boot };
            self.transmit(to, from, RESPONSE, event);
        }
    }

    /// The initiator's side of a handshake is done: what waited goes out, an empty datagram first,
    /// which completes the other side.
    fn complete(&mut self, at: usize, peer: usize, peer_boot: u32) {
        let tunnel = self.nodes[at].tunnels.entry(peer).or_default();
        let waiting = std::mem::take(&mut tunnel.waiting);
        *tunnel = Tunnel { with_boot: Some(peer_boot), ..Tunnel::default() };
        tunnel.hear(self.now);
        for payload in [Vec::new()].into_iter().chain(waiting) {
            self.send(at, peer, payload);
        }
        self.admit(at, peer);
    }

    fn receive(&mut self, from: usize, from_boot: u32, to: usize, payload: &[u8]) {
        let tunnel = self.nodes[to].tunnels.entry(from).or_default();
        tunnel.hear(self.now);
        if tunnel.with_boot != Some(from_boot) {
            tunnel.with_boot = Some(from_boot);
            tunnel.attempts = 0;
            let waiting = std::mem::take(&mut tunnel.waiting);
            self.nodes[to].book.insert(from);
            for payload in waiting {
                self.send(to, from, payload);
            }
            self.admit(to, from);
        }
        if !payload.is_empty() {
            let peer = self.nodes[from].credential.node;
            self.with_core(to, |core, now, wall| core.handle_datagram(peer, payload, now, wall));
        }
    }

    fn admit(&mut self, at: usize, peer: usize) {
        let credential = self.nodes[peer].credential.clone();
        self.with_core(at, |core, now, wall| {
            core.handle_credential(&credential, now, wall);
            core.handle_session(credential.node, true, now);
        });
    }

    fn transmit(&mut self, from: usize, to: usize, size: usize, event: Event) {
        let sites = (self.nodes[from].site, self.nodes[to].site);
        let link = self.links.get_mut(&sites).expect("every pair of sites has a link");
        let verdict = link.send(self.now, size);
        let lost = matches!(verdict, Verdict::Drop(_));
        self.trace.datagram(self.now, from, to, size, lost);
        self.bytes += size as u64;
        if let Verdict::Deliver(delivery) = verdict {
            self.queue.push(delivery.at, event);
        }
    }

    fn save(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        if self.now.saturating_sub(node.saved.0) >= SAVE_INTERVAL
            && let Some(core) = &node.core
        {
            node.saved = (self.now, core.discovery().snapshot());
        }
    }

    fn is_running(&self, node: usize, boot: u32) -> bool {
        self.nodes[node].core.is_some() && self.nodes[node].boot == boot
    }

    fn wall(&self) -> UnixSeconds {
        UnixSeconds(WALL_START + self.now.as_secs())
    }

    fn report(self) -> Report {
        let running = self.nodes.iter().enumerate().filter(|(_, node)| node.core.is_some());
        let routes: Vec<(usize, Option<usize>)> =
            running.map(|(at, _)| (at, self.chosen(at))).collect();
        let nearest = routes.iter().filter(|(at, chosen)| self.is_nearest(*at, *chosen)).count();
        Report {
            description: self.scenario.description.clone(),
            virtual_time: self.now,
            datagrams: self.trace.datagrams(),
            bytes: self.bytes,
            trace_hash: self.trace.hash(),
            sites: self.scenario.sites.iter().map(|site| site.name.to_string()).collect(),
            nodes: self.nodes.iter().map(|node| (node.name.clone(), node.site)).collect(),
            nearest,
            routes,
            moved: self.moved(),
        }
    }

    fn chosen(&self, at: usize) -> Option<usize> {
        let route = self.nodes[at].core.as_ref()?.route(&self.service)?;
        let first = route.first().filter(|first| first.standing < Standing::Down)?;
        debug_assert!(first.origin.path != PathView::Dead, "a dead path is down");
        self.by_id.get(&first.origin.line.origin()?).copied()
    }

    /// Whether no other ready and reachable origin is nearer than the chosen one by more than the
    /// band, by the scenario's own distances.
    fn is_nearest(&self, at: usize, chosen: Option<usize>) -> bool {
        let distance = |to: usize| {
            let sites = (self.nodes[at].site, self.nodes[to].site);
            let link = &self.links[&sites];
            let both_ready = self.nodes[to].core.is_some()
                && self.nodes[to].instance == Some(Instance::Ready)
                && link.config().up;
            both_ready.then(|| if to == at { Duration::ZERO } else { link.config().latency * 2 })
        };
        let best = (0..self.nodes.len()).filter_map(distance).min();
        match (best, chosen.and_then(distance)) {
            (Some(best), Some(own)) => {
                own <= best + (best * 15 / 100).max(Duration::from_millis(1))
            }
            (None, None) => true,
            _ => false,
        }
    }

    /// For each happening, how many nodes changed their first choice before the next, and when.
    fn moved(&self) -> Vec<Moved> {
        let ends = self.happenings.iter().skip(1).map(|(at, ..)| *at).chain([Duration::MAX]);
        let spans = self.happenings.iter().zip(ends);
        spans
            .map(|((from, words, _), until)| {
                let within = |change: &&Change| change.at >= *from && change.at < until;
                let last: BTreeMap<usize, Duration> = self
                    .changes
                    .iter()
                    .filter(within)
                    .map(|change| (change.node, change.at.saturating_sub(*from)))
                    .collect();
                let mut after: Vec<Duration> = last.into_values().collect();
                after.sort_unstable();
                Moved { at: *from, what: words.clone(), after }
            })
            .collect()
    }
}

fn bytes32(rng: &mut impl RngCore) -> [u8; 32] {
    let mut bytes = [0; 32];
    rng.fill_bytes(&mut bytes);
    bytes
}

fn node(
    scenario: &Scenario,
    (site, number): (usize, usize),
    roles: impl Iterator<Item = Role>,
    authority: &AuthorityKey,
    rng: &mut ChaCha8Rng,
) -> Result<Node, Error> {
    let config = &scenario.sites[site];
    let name = format!("{}-{number}", config.name);
    let wrong = |error: &dyn std::fmt::Display| Error::Scenario(format!("node {name}: {error}"));
    let key = RecordKey::from_bytes(bytes32(rng));
    let subject = Subject {
        node: NodeKey::from_bytes(bytes32(rng)).public(),
        record_key: key.public(),
        name: name.parse().map_err(|error| wrong(&error))?,
        site: config.name.clone(),
        roles: Roles::new(roles).map_err(|error| wrong(&error))?,
    };
    let from = UnixSeconds(WALL_START);
    let until = from.saturating_add(CREDENTIAL_LIFETIME_S);
    let credential = Credential::issue_by_authority(authority, subject, from, until)
        .map_err(|error| wrong(&error))?;
    Ok(Node {
        name,
        site,
        key,
        credential,
        seed: rng.next_u64(),
        core: None,
        boot: 0,
        instance: (number <= config.origins).then_some(Instance::Ready),
        tunnels: BTreeMap::new(),
        book: BTreeSet::new(),
        wake: None,
        saved: (Duration::ZERO, Vec::new()),
    })
}

fn links(
    scenario: &Scenario,
    rng: &mut ChaCha8Rng,
) -> Result<BTreeMap<(usize, usize), Link>, Error> {
    let one_way = |rtt_ms: f64| Duration::from_secs_f64(rtt_ms / 2000.0);
    // Each datagram of a site pair is on its own: the link stands for many separate flows.
    let link = |rtt_ms: f64, loss_percent: f64| LinkConfig {
        loss: Loss::independent(loss_percent / 100.0),
        overtaking: 1.0,
        ..LinkConfig::delay(one_way(rtt_ms))
    };
    let mut configs = BTreeMap::new();
    for (a, site) in scenario.sites.iter().enumerate() {
        for b in 0..scenario.sites.len() {
            let rtt_ms = if a == b { site.rtt_ms } else { scenario.default_rtt_ms };
            configs.insert((a, b), link(rtt_ms, scenario.loss_percent));
        }
    }
    for path in &scenario.paths {
        let [a, b] = &path.between;
        let (a, b) = (scenario.site(a)?, scenario.site(b)?);
        let mut config = link(path.rtt_ms, path.loss_percent.unwrap_or(scenario.loss_percent));
        if path.jitter_ms > 0.0 {
            config.jitter = Jitter::Exponential { mean: one_way(path.jitter_ms * 2.0) };
        }
        configs.insert((a, b), config.clone());
        configs.insert((b, a), config);
    }
    let seeded = |(pair, config)| (pair, Link::new(config, rng.next_u64()));
    Ok(configs.into_iter().map(seeded).collect())
}
