//! The lab: a scenario in real time, with a real daemon as a process for every node.
//!
//! Between the daemons lies the emulated network of [`meshport_demo::wan`], in which the
//! simulator's own link model decides about every datagram; each daemon has its own loopback
//! address, so no privileges are needed. Apiservers are the demo's stand-ins, with TLS, and clients
//! speak HTTP to them through their node. The nodes' choices are read from their logs.
//!
//! It shows two things that no other level does: how fast real daemons follow a scenario, and the
//! effect of a process that gets no processor time. Operations on daemons are covered by the
//! end-to-end tests.
//!
//! At the end the checks are repeated every second until all hold, for at most a minute after the
//! last change; only failures that remain are violations.
//!
//! Time starts when every node that starts without an event has a route to every origin. Bounds:
//! [`MAX_NODES`] processes; a minute until all have found each other.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use meshport_config::{Endpoint, Seed, UnixSeconds};
use meshport_daemon::admin::queries::StatusRequest;
use meshport_demo::apiserver::{Authority, StandIn, StandInConfig};
use meshport_demo::wan::{Cut, LinkConfig, Shaper, ShaperConfig};
use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::Error;
use crate::identity::Mesh;
use crate::instance::Instance;
use crate::level::{Account, Judge, Limits, Scene, Story};
use crate::measure::Measures;
use crate::network::Network;
use crate::report::{Outcome, Run};
use crate::rules::{self, QUIET};
use crate::scenario::{Happening, Scenario, paths};
use crate::trace::TraceHash;

mod book;
mod clients;
mod log;
mod node;

use book::Book;
use node::{Location, Node};

/// Daemons of one run; about as many as two processor cores can carry.
pub const MAX_NODES: usize = 60;
/// How long all nodes together may take until each has a route to every origin.
const READY: Duration = Duration::from_secs(60);
/// Interval between checks while waiting for a condition.
const LOOK: Duration = Duration::from_millis(100);
/// Interval between checks of the rules at the end.
const NEXT_LOOK: Duration = Duration::from_secs(1);
/// Time limit for a request through a node at the end: the daemon's own limit plus a margin.
const PATIENCE: Duration = Duration::from_secs(5);
/// The network inside which each lab has its loopback addresses: 127.64.0.0 to 127.191.255.255.
const FIRST_NET: u8 = 64;
/// How many labs have their own network at the same time.
const NETS: u32 = 128 * 256;
/// The rule that only processes can violate.
const NO_DAEMON_ENDS: &str = "no daemon ends by itself";

/// How a lab is run.
#[derive(Debug, Clone)]
pub struct Options {
    /// The program `meshport`.
    pub program: PathBuf,
    /// Folder for logs, settings and state folders; created by the lab.
    pub folder: PathBuf,
    /// Ends the run at this second, if that is before the scenario's end.
    pub until: Option<Duration>,
}

/// Refuses a scenario that the lab cannot run.
fn check(story: &Story) -> Result<(), Error> {
    let unknown = |happening: &Happening| match happening {
        Happening::Pair(..) => Some("cut of two nodes"),
        Happening::Clock(..) => Some("clock-step"),
        Happening::Lie(..) => Some("lie"),
        Happening::Instance(_, Instance::Stalled) => Some("stall"),
        Happening::Rebind(_) => Some("rebind"),
        Happening::Roam(..) => Some("roam"),
        Happening::Configure(..) => Some("configure"),
        Happening::Revoke { .. } => Some("revoke"),
        _ => None,
    };
    let sites = &story.scenario.sites;
    let others = [
        ("nat", sites.iter().any(|site| site.nat)),
        ("access", sites.iter().any(|site| site.access.is_some())),
        ("way-back", story.scenario.way_back.is_some()),
        ("may-fail = false", story.scenario.load.as_ref().is_some_and(|load| !load.may_fail)),
    ];
    let limits = Limits {
        level: "the lab",
        most: MAX_NODES,
        why: "a process each",
        instead: "It knows kill, hang, unready, recover, crash, restart, rolling-restart, join, \
                  leave, starve, and cut, heal, isolate, degrade, restore and flap between sites",
    };
    story.fit(&limits, unknown, &others)
}

/// Runs a scenario and returns the results.
///
/// # Errors
/// [`Error::Scenario`] if the lab does not support a part of it or there are too many nodes;
/// [`Error::Machine`] if the nodes do not find each other; errors of the system.
pub fn run(scenario: Scenario, seed: u64, options: Options) -> Result<Run, Error> {
    let story = Story::new(scenario, seed, options.until)?;
    check(&story)?;
    let failed = |error: std::io::Error| Error::Machine(format!("start a runtime: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(failed)?;
    runtime.block_on(async { Testbed::new(story, options)?.run().await })
}

#[expect(clippy::disallowed_methods, reason = "the lab lives in real time")]
fn clock() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "the daemons' logs carry wall time")]
fn wall() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Every change leaves the numbers consistent.
fn lock(measures: &Mutex<Measures>) -> MutexGuard<'_, Measures> {
    measures.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A run in progress.
struct Testbed {
    story: Story,
    options: Options,
    rng: ChaCha8Rng,
    nodes: Vec<Node>,
    instances: BTreeMap<usize, StandIn>,
    links: BTreeMap<(usize, usize), LinkConfig>,
    shaper: Shaper,
    measures: Arc<Mutex<Measures>>,
    book: Book,
    /// The nodes whose process is stopped repeatedly.
    starved: Vec<Starved>,
    start: Instant,
}

/// A node whose process is stopped repeatedly.
#[derive(Debug)]
struct Starved {
    node: usize,
    stall: Duration,
    until: Duration,
    /// The next time at which it is stopped.
    next: Duration,
}

impl Testbed {
    fn new(story: Story, options: Options) -> Result<Self, Error> {
        let (scenario, seed) = (&story.scenario, story.seed);
        std::fs::create_dir_all(&options.folder).map_err(node::file(&options.folder))?;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mesh = Mesh::new(UnixSeconds(wall().as_secs()), &mut rng);
        let authority =
            Authority::in_folder(&options.folder.join("authority")).map_err(Error::Part)?;
        let mut nodes = Vec::new();
        for (at, member) in scenario.nodes().enumerate() {
            let identity = mesh.member(scenario, member, &mut rng)?;
            let (address, signer) = (loopback(at), authority.certificate_pem());
            nodes.push(Node::new(member.site, identity, &options.folder, address, signer)?);
        }
        let shaper = Shaper::start(ShaperConfig { seed, ..ShaperConfig::default() });
        let ids = nodes.iter().map(|node| node.identity.credential.node).collect();
        let account = Account::new(scenario, ids, &mut rng);
        let logs = nodes.iter().map(Node::log).collect();
        let network = Network::new(scenario, &mut rng)?;
        let mut world = Self {
            instances: BTreeMap::new(),
            links: paths::configs(scenario)?,
            shaper: shaper.map_err(Error::Part)?,
            measures: Arc::default(),
            book: Book::new(Scene::new(account, network, None), logs),
            starved: Vec::new(),
            start: clock(),
            rng,
            nodes,
            story,
            options,
        };
        world.prepare(&authority)?;
        Ok(world)
    }

    fn prepare(&mut self, authority: &Authority) -> Result<(), Error> {
        for ((a, b), link) in &self.links {
            self.shaper.set_link_one_way(self.site(*a), self.site(*b), link);
        }
        let mut publics = Vec::new();
        for node in &self.nodes {
            let public = self.shaper.add_node(node.name(), self.site(node.site), Some(node.mesh()));
            publics.push(public.map_err(Error::Part)?);
        }
        for at in self.book.scene.account.origins() {
            let leaf = authority.issue_server(self.nodes[*at].name()).map_err(Error::Part)?;
            let stand_in = StandIn::start(StandInConfig::new(leaf)).map_err(Error::Part)?;
            self.instances.insert(*at, stand_in);
        }
        let ca = self.options.folder.join("authority").join("ca.crt");
        for at in 0..self.nodes.len() {
            let instance = self.instances.get(&at).map(|it| (it.addr(), ca.as_path()));
            let location = Location { public: publics[at], instance };
            let seeds: Result<Vec<Seed>, Error> =
                self.story.seeds(at).map(|seed| self.seed(seed, publics[seed])).collect();
            self.nodes[at].prepare(&self.story.scenario, &seeds?, &location)?;
        }
        Ok(())
    }

    fn seed(&self, at: usize, public: SocketAddr) -> Result<Seed, Error> {
        let wrong = |error: &dyn std::fmt::Display| Error::Scenario(format!("seed: {error}"));
        let endpoint: Result<Endpoint, _> = public.to_string().parse();
        let endpoint = endpoint.map_err(|error| wrong(&error))?;
        let id = self.nodes[at].identity.credential.node;
        Seed::new(id, vec![endpoint]).map_err(|error| wrong(&error))
    }

    fn site(&self, site: usize) -> &str {
        self.story.scenario.sites[site].name.as_str()
    }

    async fn run(mut self) -> Result<Run, Error> {
        let first: Vec<usize> = self.story.first().collect();
        for at in &first {
            self.nodes[*at].start(&self.options.program, true)?;
            self.book.starts(*at);
        }
        self.ready(&first).await?;
        self.start = clock();
        let began = wall();
        for at in first {
            self.clients_begin(at);
        }
        let (plan, end) = (self.story.plan.clone(), self.story.end);
        let mut happened = Vec::new();
        for planned in plan.iter().take_while(|planned| planned.at < end) {
            self.wait_until(planned.at).await?;
            happened.push(self.start.elapsed());
            self.happen(&planned.happening).await?;
        }
        self.wait_until(end).await?;
        let outcome = self.finish(began, &happened);
        self.check_end(end).await?;
        let mut violations = std::mem::take(&mut self.book.scene.account.violations);
        // Violations found after the end are dated to the end.
        violations.iter_mut().for_each(|it| it.at = it.at.min(end));
        Ok(Run { outcome, measures: self.book.scene.measures, violations, film: None })
    }

    /// Waits until each of these nodes has a route to every origin.
    async fn ready(&mut self, first: &[usize]) -> Result<(), Error> {
        let deadline = clock() + READY;
        let origins = first.iter().filter(|at| self.instances.contains_key(at)).count();
        for at in first {
            loop {
                let node = &mut self.nodes[*at];
                let status = node.admin().ask(&StatusRequest).await.ok();
                let service = status.and_then(|status| status.services.into_iter().next());
                let healthy = service.map_or(0, |service| {
                    service.origins.iter().filter(|it| it.lacks.is_empty()).count()
                });
                if healthy >= origins {
                    break;
                }
                let s = READY.as_secs();
                let what = match node.ended() {
                    Some(ended) => ended,
                    None if clock() > deadline => {
                        format!("it reaches {healthy} of {origins} origins after {s} s")
                    }
                    None => {
                        sleep(LOOK).await;
                        continue;
                    }
                };
                let (name, tail) = (node.name(), node::tail(&node.log()));
                let what = format!("{name}: {what}; the end of its log:\n{tail}");
                return Err(Error::Machine(what));
            }
        }
        Ok(())
    }

    fn clients_begin(&mut self, at: usize) {
        let Some(load) = self.story.load(at).cloned() else { return };
        let patience = Duration::from_secs_f64(load.timeout_s);
        let (start, measures) = (self.start, self.measures.clone());
        let node = &mut self.nodes[at];
        let client = node.client.clone().with_timeout(patience);
        let door = clients::ClientContext { client, load, start, measures };
        let rng = ChaCha8Rng::seed_from_u64(self.rng.next_u64());
        node.clients.spawn(crate::level::clients::run(door, rng));
    }

    /// Waits, stops the processes when they are due, and notices daemons that have ended.
    async fn wait_until(&mut self, at: Duration) -> Result<(), Error> {
        loop {
            let left = at.saturating_sub(self.start.elapsed());
            sleep(left.min(LOOK)).await;
            let now = self.start.elapsed();
            for at in 0..self.nodes.len() {
                let Some(what) = self.nodes[at].ended() else { continue };
                self.book.scene.now = now;
                self.book.shown[at].runs = false;
                self.book.violates(NO_DAEMON_ENDS, at, what);
            }
            self.starved.retain(|it| now < it.until);
            for it in self.starved.iter_mut().filter(|it| now >= it.next) {
                self.nodes[it.node].stall(it.stall)?;
                it.next = now + it.stall + self.rng.random_range(Duration::ZERO..it.stall * 2);
            }
            if now >= at {
                return Ok(());
            }
        }
    }

    async fn happen(&mut self, happening: &Happening) -> Result<(), Error> {
        match happening {
            Happening::Instance(at, becomes) => self.instance(*at, *becomes).await?,
            Happening::Crash(at) => {
                self.nodes[*at].kill();
                self.nodes[*at].clients = JoinSet::new();
            }
            Happening::Start { node, with_state } => {
                if !self.nodes[*node].is_running() {
                    self.nodes[*node].start(&self.options.program, *with_state)?;
                    self.clients_begin(*node);
                }
            }
            Happening::Leave(at) => {
                self.nodes[*at].clients = JoinSet::new();
                self.nodes[*at].leave();
            }
            Happening::Path(a, b, up) => {
                let (from, to) = (self.site(*a).to_owned(), self.site(*b).to_owned());
                self.shaper.set_down(Cut::OneWay { from, to }, !up);
            }
            Happening::Quality(a, b, quality) => {
                let usual = &self.links[&(*a, *b)];
                let link = quality.as_ref().unwrap_or(usual);
                self.shaper.set_link_one_way(self.site(*a), self.site(*b), link);
            }
            Happening::Starve { node, stall, until } => {
                let (node, stall, until, next) = (*node, *stall, *until, Duration::ZERO);
                self.starved.push(Starved { node, stall, until, next });
            }
            // `check` has refused them.
            Happening::Pair(..)
            | Happening::Clock(..)
            | Happening::Rebind(_)
            | Happening::Roam(..)
            | Happening::Configure(..)
            | Happening::Revoke { .. }
            | Happening::Lie(..) => {}
        }
        Ok(())
    }

    async fn instance(&mut self, at: usize, becomes: Instance) -> Result<(), Error> {
        let Some(stand_in) = self.instances.get(&at) else { return Ok(()) };
        match becomes {
            Instance::Ready => {
                stand_in.unhang();
                stand_in.set_ready(true);
                stand_in.resume().map_err(Error::Part)?;
            }
            Instance::Unready => stand_in.set_ready(false),
            Instance::Hung => stand_in.hang(),
            // `check` has rejected it: the stand-in has no etcd.
            Instance::Stalled => {}
            Instance::Down => stand_in.kill().await,
        }
        Ok(())
    }

    /// Reads from the nodes' logs how they reacted to the events at these times.
    fn finish(&mut self, began: Duration, happened: &[Duration]) -> Outcome {
        let end = self.story.end;
        self.nodes.iter_mut().for_each(|node| node.clients = JoinSet::new());
        self.starved.clear();
        let counters = self.shaper.counters();
        self.book.scene.measures = std::mem::take(&mut *lock(&self.measures));
        let traffic = &mut self.book.scene.measures.traffic;
        traffic.tunnel_packets = counters.received;
        // With all headers, as in the simulations.
        traffic.tunnel_bytes = counters.received_bytes + 28 * counters.received;
        let mut changes = Vec::new();
        for (at, node) in self.nodes.iter().enumerate() {
            let text = std::fs::read_to_string(node.log()).unwrap_or_default();
            changes.extend(log::changes(&text, at, began.as_secs_f64() % 86_400.0));
        }
        changes.retain(|change| change.at < end);
        changes.sort_by_key(|change| change.at);
        self.book.replay(&self.story.plan, happened, changes);
        self.book.scene.now = end;
        let outcome = self.story.outcome(&self.book);
        Outcome { datagrams: counters.received, trace_hash: TraceHash::NONE, ..outcome }
    }

    /// Repeats the checks until all hold, or as long as recent changes excuse failures.
    async fn check_end(&mut self, end: Duration) -> Result<(), Error> {
        let deadline = self.book.scene.account.last_disturbed().min(end) + QUIET;
        loop {
            self.book.scene.account.violations.retain(|it| it.rule == NO_DAEMON_ENDS);
            let before = self.book.scene.account.violations.len();
            self.look().await;
            if self.book.scene.account.violations.len() == before || self.book.scene.now >= deadline
            {
                return Ok(());
            }
            self.wait_until(self.book.scene.now + NEXT_LOOK).await?;
        }
    }

    /// Checks the rules on the daemons' current state.
    async fn look(&mut self) {
        self.book.scene.now = self.start.elapsed();
        let mut answers = Vec::new();
        for at in 0..self.nodes.len() {
            let node = &self.nodes[at];
            self.book.shown[at].runs = node.is_running();
            if !node.is_running() {
                continue;
            }
            match node.admin().ask(&StatusRequest).await {
                Ok(status) => self.book.status(at, &status),
                Err(error) => {
                    let what = format!("its daemon does not answer: {error}");
                    self.book.violates(rules::AGREEMENT, at, what);
                    continue;
                }
            }
            let answer = node.client.clone().with_timeout(PATIENCE).whoami().await;
            answers.push((at, answer.map(|it| it.origin).map_err(|error| error.to_string())));
        }
        self.book.check_settled();
        for (at, answer) in answers {
            self.book.check_answer(at, answer);
        }
    }
}

/// The loopback address of a node; each lab has its own network, by its process.
fn loopback(at: usize) -> Ipv4Addr {
    let net = std::process::id() % NETS;
    let [_, _, high, low] = net.to_be_bytes();
    let node = u8::try_from(at + 1).expect("at most MAX_NODES");
    Ipv4Addr::new(127, FIRST_NET + high, low, node)
}

/// The program `meshport` in the folder of this program.
///
/// # Errors
/// [`Error::Machine`] if there is none, with how to build it.
pub fn program() -> Result<PathBuf, Error> {
    let here = std::env::current_exe().ok();
    let beside = here.as_deref().and_then(Path::parent).map(|folder| folder.join("meshport"));
    beside.filter(|path| path.exists()).ok_or_else(|| {
        let what = "no program meshport next to meshport-sim: build it in the same way \
                    (cargo build --release -p meshport), or name one with --meshport PATH";
        Error::Machine(what.into())
    })
}
