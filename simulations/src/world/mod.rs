//! The event queue and what it acts on: nodes, tunnels, links, instances, clients.
//!
//! One loop takes the next event, hands it to its node at its time, and carries out the node's
//! requests. Nothing else advances time. Randomness comes from the seed alone: one generator for
//! the world, one per link, one per node, one per node's clients.

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use meshport_config::{AuthorityKey, Credential, Settings, UnixSeconds};
use meshport_core::health::{Outcome, Question};
use meshport_discovery::{Memo, SignedState};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::Error;
use crate::brain::{Birth, Brain, Wish};
use crate::flight::{Flight, Payload, SessionRef};
use crate::identity::{Issuer, bytes32};
use crate::instance::Instance;
use crate::level::{Account, Camera, Follow, Judge, Level, Scene, Story, film};
use crate::measure::Suspicions;
use crate::network::{Network, whose};
use crate::queue::Queue;
use crate::report::{Outcome as RunOutcome, Run};
use crate::scenario::{Happening, Lie, Scenario, service};

mod clients;
mod costs;
mod ends;
mod facts;
mod faults;
mod flights;
mod following;
mod guard;
mod journey;
mod known;
mod lies;
pub mod live;
mod moves;
mod node;
mod revoked;
mod sessions;
mod tunnels;

use costs::Costs;
use journey::Journey;
use moves::Pace;
use node::{Node, Process};
use sessions::Timer;

/// More events than this at one instant mean that some node's timer never advances: a bug in its
/// core.
const MAX_EVENTS_AT_ONCE: u32 = 5_000_000;
/// How often a node saves its directory, as the daemon does.
const SAVE_INTERVAL: Duration = Duration::from_secs(60);
/// Wall time at the start: any moment at which the credentials are valid.
const WALL_START: u64 = 1_800_000_000;
/// Credentials are older than any relevant jump back of a clock: 500 days.
const ISSUED_BEFORE_S: u64 = 500 * 24 * 3600;
/// Interval between checks of everything.
const LOOK: Duration = Duration::from_secs(1);
/// The end of a live world: some years.
const NO_END: Duration = Duration::from_secs(100_000_000);

#[derive(Debug, Clone)]
enum Event {
    Happens(usize),
    Start(usize),
    /// Its process leaves in order.
    Stop {
        node: usize,
        boot: u32,
    },
    Wake {
        node: usize,
        boot: u32,
    },
    Probed {
        node: usize,
        boot: u32,
        question: Question,
        outcome: Outcome,
    },
    Packet(Packet),
    /// Datagrams have reached a link where they may be queued.
    Onward(Box<Journey>),
    /// A timer of a tunnel is due.
    Tunnel {
        node: usize,
        boot: u32,
        peer: usize,
    },
    /// A client's connection.
    Arrival {
        node: usize,
        boot: u32,
    },
    Session {
        session: SessionRef,
        boot: u32,
        timer: Timer,
    },
    /// A flight is retransmitted.
    Repeat {
        node: usize,
        boot: u32,
        peer: usize,
        flight: Box<Flight>,
    },
    /// A peer does not acknowledge long packets.
    Unacknowledged {
        node: usize,
        boot: u32,
        peer: usize,
    },
    /// A process is stopped repeatedly until this time.
    Starve {
        node: usize,
        stall: Duration,
        until: Duration,
    },
    Look,
}

/// A node and its record.
type Known = (Arc<Credential>, Arc<SignedState>);

/// State that all nodes share.
struct Mesh {
    authority: AuthorityKey,
    memo: Memo,
    /// The nodes' knowledge of each other when they start for the first time.
    known: Vec<Known>,
}

/// A packet in transit.
#[derive(Debug, Clone)]
struct Packet {
    from: usize,
    from_boot: u32,
    to: usize,
    /// The process it is for; 0 for a handshake, which any process understands.
    to_boot: u32,
    /// Time at which the sender initiated the session, if it did: the first such packet tells the
    /// receiver.
    confirms: Duration,
    body: Body,
}

#[derive(Debug, Clone)]
enum Body {
    Initiation,
    Response,
    Data(Payload),
}

/// How a run is recorded and observed.
#[derive(Default)]
pub struct Options {
    /// Receives one line for each event.
    pub trace: Option<Box<dyn Write + Send>>,
    /// Ends the run at this virtual time, if that is before the scenario's end.
    pub until: Option<Duration>,
    /// Receives the virtual time, about once per virtual second.
    pub progress: Option<Box<dyn FnMut(Duration) + Send>>,
    /// Whether the run can be observed and changed while it runs, and has no end.
    pub live: bool,
    /// Films the run, for a report.
    pub film: bool,
    /// Measures processor time and memory of a few nodes of each role, which changes no decision.
    pub costs: bool,
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options").field("until", &self.until).finish_non_exhaustive()
    }
}

/// A run in progress.
pub struct World {
    story: Arc<Story>,
    epoch: Instant,
    rng: ChaCha8Rng,
    queue: Queue<Event>,
    nodes: Vec<Node>,
    scene: Scene,
    mesh: Mesh,
    pace: Pace,
    costs: Costs,
    progress: Option<Box<dyn FnMut(Duration) + Send>>,
    is_live: bool,
    /// The user's actions, as events of a scenario.
    done: Vec<String>,
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World")
            .field("now", &self.scene.now)
            .field("nodes", &self.nodes.len())
            .finish()
    }
}

impl World {
    /// A world before its first moment.
    pub fn new(scenario: Scenario, seed: u64, options: Options) -> Result<Self, Error> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut story = Story::new(scenario, seed, options.until)?;
        if options.live {
            story.end = NO_END;
        }
        let scenario = &story.scenario;
        let authority = AuthorityKey::from_bytes(bytes32(&mut rng));
        let issuer = Issuer { key: authority, from: UnixSeconds(WALL_START - ISSUED_BEFORE_S) };
        let mut nodes = Vec::new();
        for member in scenario.nodes() {
            nodes.push(node::make(scenario, member, &issuer, &mut rng)?);
        }
        let memo = Memo::default();
        node::share(&mut nodes, &memo)?;
        let network = Network::new(scenario, &mut rng)?;
        for planned in &*story.plan {
            if let Happening::Crash(node) | Happening::Leave(node) = planned.happening {
                nodes[node].folder.saves = true;
            }
        }
        let ids = nodes.iter().map(|node| node.credential.node).collect();
        let account = Account::new(scenario, ids, &mut rng);
        let mut scene = Scene::new(account, network, options.trace);
        scene.film = options.film.then(|| film::film(scenario, &scene.network));
        scene.measures.suspicions = Some(Suspicions::default());
        let mut world = Self {
            story: Arc::new(story),
            #[expect(clippy::disallowed_methods, reason = "an origin for virtual time")]
            epoch: Instant::now(),
            costs: Costs::new(options.costs, scene.account.origins(), nodes.len()),
            pace: Pace::default(),
            rng,
            queue: Queue::new(),
            nodes,
            mesh: Mesh { authority: issuer.key, memo, known: Vec::new() },
            scene,
            progress: options.progress,
            is_live: options.live,
            done: Vec::new(),
        };
        if world.story.scenario.known_at_start {
            world.mesh.known = world.first_records();
        }
        world.schedule();
        Ok(world)
    }

    fn schedule(&mut self) {
        for (start, at) in self.story.first_starts(&mut self.rng) {
            self.queue.push(start, Event::Start(at));
        }
        for (index, planned) in self.story.plan.iter().enumerate() {
            self.queue.push(planned.at, Event::Happens(index));
        }
        self.queue.push(LOOK, Event::Look);
    }

    /// Runs to the end and returns the results.
    pub fn run(mut self) -> Run {
        self.play();
        self.finish()
    }

    fn play(&mut self) {
        if self.advance(self.story.end) {
            self.scene.now = self.story.end;
            self.film();
            self.check_end();
        }
    }

    /// Runs until this time; false once too many rules are violated to continue.
    fn advance(&mut self, until: Duration) -> bool {
        let mut in_this_instant = 0;
        while !self.scene.account.has_enough()
            && let Some((at, event)) = self.queue.pop(until)
        {
            debug_assert!(at >= self.scene.now, "time goes forward");
            in_this_instant = if at == self.scene.now { in_this_instant + 1 } else { 0 };
            assert!(in_this_instant < MAX_EVENTS_AT_ONCE, "time stands still at {at:?}: {event:?}");
            self.scene.now = at;
            self.handle(event);
        }
        !self.scene.account.has_enough()
    }

    fn handle(&mut self, event: Event) {
        if let Some(node) = event.concerns()
            && self.nodes[node].still_until > self.scene.now
        {
            // Datagrams for a stopped process wait for it.
            let later = self.nodes[node].still_until;
            return self.queue.push(later, event);
        }
        match event {
            Event::Happens(index) => self.happen(index),
            Event::Start(node) => self.start(node, true),
            Event::Stop { node, boot } => {
                if self.nodes[node].is_running(boot) {
                    // It closes its connections cleanly, unlike after a crash.
                    self.break_sessions_to(node);
                    self.break_sessions_through(node);
                    self.stop(node);
                }
            }
            Event::Wake { node, boot } => {
                // Later than planned if the process was stopped.
                let is_due =
                    self.nodes[node].process.wake.is_some_and(|wake| wake <= self.scene.now);
                if self.nodes[node].is_running(boot) && is_due {
                    self.nodes[node].process.wake = None;
                    self.save(node);
                    self.wake(node);
                }
            }
            Event::Probed { node, boot, question, outcome } => {
                if self.nodes[node].is_running(boot) {
                    self.with_brain(node, |brain, now, _| brain.outcome(question, outcome, now));
                }
            }
            Event::Packet(packet) => self.arrive(packet),
            Event::Onward(journey) => self.onward(journey),
            Event::Tunnel { node, boot, peer } => {
                if self.nodes[node].is_running(boot) {
                    self.tunnel_due(node, peer);
                }
            }
            Event::Arrival { node, boot } => {
                if self.nodes[node].is_running(boot) {
                    self.client_arrives(node);
                }
            }
            Event::Session { session, boot, timer } => {
                if self.nodes[session.node].is_running(boot) {
                    self.session_timer(session, timer);
                }
            }
            Event::Repeat { node, boot, peer, flight } => {
                if self.nodes[node].is_running(boot) {
                    self.repeat(node, peer, flight);
                }
            }
            Event::Unacknowledged { node, boot, peer } => {
                if self.nodes[node].is_running(boot) {
                    let peer = self.nodes[peer].credential.node;
                    self.with_brain(node, |brain, now, _| brain.unacknowledged(peer, now));
                }
            }
            Event::Starve { node, stall, until } => self.starve(node, stall, until),
            Event::Look => {
                self.accuse();
                self.look();
                self.count_roles();
                self.film();
                if self.is_live {
                    self.keep_diaries();
                }
                self.queue.push(self.scene.now + LOOK, Event::Look);
            }
        }
    }

    fn start(&mut self, at: usize, with_state: bool) {
        if self.nodes[at].brain.is_some() {
            return;
        }
        let (now, wall) = (self.instant(), self.wall(at));
        let Some(revocations) = self.recalled(at, with_state) else { return };
        let seeds: Vec<usize> = self.story.seeds(at).collect();
        if !self.mesh.known.is_empty() && self.nodes[at].boot == 0 {
            self.nodes[at].folder.saved.1 = self.everybody_but(at);
        }
        let endpoints = self.endpoints(at);
        let memo = (!self.costs.is_weighed(at)).then(|| self.mesh.memo.clone());
        let node = &mut self.nodes[at];
        node.boot += 1;
        // The daemon keeps its generation in its state folder, or uses the clock.
        node.folder.generation =
            if with_state { node.folder.generation + 1 } else { u64::from(node.boot) };
        node.process = Process { started: self.scene.now, ..Process::default() };
        let mut rng = ChaCha8Rng::seed_from_u64(node.seed.wrapping_add(u64::from(node.boot)));
        node.book.clear();
        let generation = node.folder.generation;
        let mut brain = self.brain(at, generation, bytes32(&mut rng), memo);
        brain.restore_revocations(revocations, now);
        let saved = &self.nodes[at].folder.saved.1;
        if with_state && !saved.is_empty() {
            brain.restore(saved, now, wall);
        }
        let mut ids = Vec::new();
        for seed in seeds {
            let address = self.scene.network.address(seed);
            self.nodes[at].book.insert(seed, address);
            ids.push(self.nodes[seed].credential.node);
        }
        brain.introduce(endpoints, ids, now);
        if self.is_live {
            brain.keep_diary(now);
        }
        self.nodes[at].brain = Some(brain);
        if !self.mesh.known.is_empty() && !self.nodes[at].folder.saves {
            self.nodes[at].folder.saved.1 = Arc::default();
        }
        self.process_starts(at, self.nodes[at].boot);
        self.pump(at);
        self.clients_begin(at);
    }

    /// The decisions of a new process.
    fn brain(&self, at: usize, generation: u64, seed: [u8; 32], memo: Option<Memo>) -> Brain {
        let node = &self.nodes[at];
        Brain::new(Birth {
            credential: &node.credential,
            record_key: &node.key,
            settings: self.settings(at),
            tuning: self.story.scenario.tuning,
            hosts: self.scene.account.instances[at].is_some(),
            generation,
            seed,
            memo,
            now: self.instant(),
        })
    }

    fn settings(&self, node: usize) -> &Settings {
        let node = &self.nodes[node];
        self.story.settings(node.site, node.clients.configured)
    }

    fn endpoints(&self, node: usize) -> Vec<std::net::SocketAddr> {
        if self.scene.network.is_behind_nat(node) {
            return Vec::new();
        }
        vec![node::endpoint(self.scene.network.address(node), node)]
    }

    fn with_brain(&mut self, node: usize, act: impl FnOnce(&mut Brain, Instant, UnixSeconds)) {
        let (now, wall) = (self.instant(), self.wall(node));
        if let Some(brain) = &mut self.nodes[node].brain {
            self.costs.timed(node, || act(brain, now, wall));
            self.pump(node);
        }
    }

    /// Advances time for a node.
    fn tick(&mut self, node: usize) {
        let now = self.instant();
        let Node { brain, clients, .. } = &mut self.nodes[node];
        if let Some(brain) = brain {
            let open = |line: &_| clients.count(*line);
            self.costs.timed(node, || brain.counts(open, now));
        }
        self.with_brain(node, Brain::timeout);
    }

    /// Carries out a node's requests, then schedules its next call.
    fn pump(&mut self, at: usize) {
        let now = self.instant();
        let mut wishes = 0;
        while let Some(brain) = &mut self.nodes[at].brain
            && let Some(wish) = self.costs.timed(at, || brain.poll(now))
        {
            wishes += 1;
            self.carry_out(at, wish);
        }
        self.check_wishes(at, wishes);
        self.sleep(at);
    }

    fn carry_out(&mut self, at: usize, wish: Wish) {
        match wish {
            Wish::Send(to, payload) => {
                if let Some(to) = self.scene.account.number(&to) {
                    self.gossip(at, to, payload);
                }
            }
            Wish::Ask(question) => {
                let node = &self.nodes[at];
                let honest = self.scene.account.instances[at].unwrap_or(Instance::Down);
                let says = if node.lie == Some(Lie::Ready) { Instance::Ready } else { honest };
                self.scene.measures.lies += u64::from(says != honest);
                let health = &self.story.settings(node.site, None).services[&service()].health;
                let patience = match question {
                    Question::Alive => health.timeout,
                    Question::Ready | Question::Live => health.ready_timeout,
                };
                let (delay, outcome) = says.ask(question, patience);
                let event = Event::Probed { node: at, boot: node.boot, question, outcome };
                self.queue.push(self.scene.now + delay, event);
            }
            Wish::Route { first_changed } => self.reroutes(at, first_changed),
            Wish::Reset(reset) => {
                let (sessions, now) = (self.nodes[at].clients.count(reset.line), self.instant());
                if let Some(brain) = &mut self.nodes[at].brain {
                    brain.note_reset(reset.line, sessions, reset.why, now);
                }
                self.cut_sessions(at, &reset);
            }
            Wish::Move(leave) => self.move_sessions(at, leave),
            Wish::Own(state) => self.announced(at, state),
            Wish::Peer(node, at_endpoint) => {
                let address = at_endpoint.and_then(whose).map(|(address, _)| address);
                if let Some(peer) = self.scene.account.number(&node) {
                    self.needs(at, peer, address);
                }
            }
            Wish::Release(node) => self.releases(at, &node),
            Wish::Silent(node) => {
                if let Some(peer) = self.scene.account.number(&node) {
                    self.tunnel(at, peer).schedule.expect_answer();
                }
            }
            Wish::Split(node, on) => {
                if let Some(peer) = self.scene.account.number(&node) {
                    self.tunnel(at, peer).split = on;
                }
            }
            Wish::Member(node, up) => {
                if let Some(subject) = self.scene.account.number(&node) {
                    self.member_changed(at, subject, up);
                }
            }
            Wish::Suspect(node) => {
                if let Some(subject) = self.scene.account.number(&node) {
                    self.suspects(at, subject);
                }
            }
            Wish::Revoked(revocation) => self.revoked(at, &revocation),
            Wish::Ignored(reason) => self.says(at, format!("ignores: {reason}")),
        }
    }

    fn save(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        if node.folder.saves
            && self.scene.now.saturating_sub(node.folder.saved.0.max(node.process.started))
                >= SAVE_INTERVAL
            && let Some(brain) = &node.brain
        {
            node.folder.saved = (self.scene.now, brain.snapshot().into());
        }
    }

    /// The time on the nodes' monotonic clocks.
    fn instant(&self) -> Instant {
        self.epoch + self.scene.now
    }

    fn wall(&self, node: usize) -> UnixSeconds {
        let true_time = WALL_START + self.scene.now.as_secs();
        UnixSeconds(true_time.saturating_add_signed(self.nodes[node].ahead_s))
    }

    fn finish(mut self) -> Run {
        let outcome = self.story.outcome(&self);
        self.weigh();
        Run {
            outcome: RunOutcome { longest_queue: self.queue.longest(), ..outcome },
            measures: self.scene.measures,
            violations: self.scene.account.violations,
            film: self.scene.film,
        }
    }
}

impl Event {
    /// The node whose process must run for this event.
    fn concerns(&self) -> Option<usize> {
        match self {
            Self::Happens(_)
            | Self::Look
            | Self::Starve { .. }
            | Self::Start(_)
            | Self::Onward(_) => None,
            Self::Packet(packet) => Some(packet.to),
            Self::Stop { node, .. }
            | Self::Wake { node, .. }
            | Self::Probed { node, .. }
            | Self::Tunnel { node, .. }
            | Self::Arrival { node, .. }
            | Self::Repeat { node, .. }
            | Self::Unacknowledged { node, .. } => Some(*node),
            Self::Session { session, .. } => Some(session.node),
        }
    }
}

fn number(node: usize) -> u32 {
    u32::try_from(node).expect("at most MAX_NODES nodes")
}
