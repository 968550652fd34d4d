//! The lab: a scenario in real time, with a real daemon as a process for every node.
//!
//! Between the daemons lies the emulated network of [`meshport_demo::wan`], which lets the
//! simulator's own link model decide about every datagram; each daemon has a loopback address of
//! its own, so no privileges are needed. Apiservers are the demo's stand-ins, with TLS, and clients
//! speak HTTP to them through their node. What the nodes chose is read from their logs.
//!
//! Time counts from when every node that starts at once has a route to every origin. Bounds:
//! [`MAX_NODES`] processes; a minute until all have found each other.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use meshport_config::{Endpoint, Seed, UnixSeconds};
use meshport_daemon::admin::queries::StatusRequest;
use meshport_demo::apiserver::{Authority, StandIn, StandInConfig};
use meshport_demo::wan::{Cut, LinkConfig, Shaper, ShaperConfig};
use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::Error;
use crate::identity::Mesh;
use crate::instance::Instance;
use crate::measure::Measures;
use crate::report::{Run, Violation};
use crate::scenario::timeline::{self, Planned};
use crate::scenario::{Happening, Overrides, Scenario, paths};

mod clients;
mod guard;
mod log;
mod node;
mod operator;
mod result;

use guard::Guard;
use node::{Node, Place};
use operator::Starved;
use result::Watched;

/// Daemons of one run; two processor cores carry about so many.
pub const MAX_NODES: usize = 60;
/// How long all nodes together may take until each has a route to every origin.
const READY: Duration = Duration::from_secs(60);
/// From one look at what is awaited to the next.
const LOOK: Duration = Duration::from_millis(100);
/// The network inside which each lab has its loopback addresses: 127.64.0.0 to 127.191.255.255.
const FIRST_NET: u8 = 64;
/// How many labs have a network of their own at the same time.
const NETS: u32 = 128 * 256;

/// How a lab is run.
#[derive(Debug, Clone)]
pub struct Options {
    /// The program `meshport`.
    pub program: PathBuf,
    /// For logs, settings and state folders; made by the lab.
    pub folder: PathBuf,
    /// Ends the run at this second, if that is before the scenario's end.
    pub until: Option<Duration>,
}

/// Whether the lab can run a scenario.
///
/// # Errors
/// [`Error::Scenario`] with what it does not know, or that there are too many nodes.
pub fn check(scenario: &Scenario, plan: &[Planned]) -> Result<(), Error> {
    let nodes = scenario.nodes().count();
    if nodes > MAX_NODES {
        return Err(Error::Scenario(format!(
            "{nodes} nodes; the lab runs at most {MAX_NODES}, a process each. --nodes-per-site 3 \
             makes the sites smaller"
        )));
    }
    let sites = scenario.sites.iter().flat_map(|site| {
        [("nat", site.nat), ("access", site.access.is_some())].map(|(key, there)| (key, there))
    });
    let plan = plan.iter().map(|planned| match planned.happening {
        Happening::Pair(..) => ("cut of two nodes", true),
        Happening::Clock(..) => ("clock-step", true),
        Happening::Lie(..) => ("lie", true),
        Happening::Instance(_, Instance::Stalled) => ("stall", true),
        Happening::Rebind(_) => ("rebind", true),
        Happening::Roam(..) => ("roam", true),
        _ => ("", false),
    });
    let tuned = [("tuning", !scenario.tuning.is_usual())];
    let mut unknown: Vec<&str> =
        sites.chain(plan).chain(tuned).filter_map(|(key, there)| there.then_some(key)).collect();
    unknown.sort_unstable();
    unknown.dedup();
    if unknown.is_empty() {
        return Ok(());
    }
    Err(Error::Scenario(format!(
        "the lab does not know: {}. It knows kill, hang, unready, recover, crash, restart, \
         rolling-restart, join, leave, configure, starve, revoke, and cut, heal, isolate, degrade, \
         restore and flap between sites",
        unknown.join(", ")
    )))
}

/// Runs a scenario, and says what there was to see.
///
/// # Errors
/// [`check`]'s; [`Error::Machine`] when the nodes do not find each other; what the system refuses.
pub fn run(scenario: Scenario, seed: u64, options: Options) -> Result<Run, Error> {
    let plan = timeline::expand(&scenario, seed)?;
    check(&scenario, &plan)?;
    // Refuses settings that no daemon would take, before any is started.
    Overrides::new(&scenario)?;
    let failed = |error: std::io::Error| Error::Machine(format!("start a runtime: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(failed)?;
    runtime.block_on(async { World::new(scenario, plan, seed, options)?.run().await })
}

#[expect(clippy::disallowed_methods, reason = "the lab lives in real time")]
fn clock() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "the daemons' logs carry wall time")]
fn wall() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// A run in progress.
struct World {
    scenario: Scenario,
    plan: Vec<Planned>,
    seed: u64,
    options: Options,
    rng: ChaCha8Rng,
    nodes: Vec<Node>,
    instances: BTreeMap<usize, StandIn>,
    authority: Authority,
    links: BTreeMap<(usize, usize), LinkConfig>,
    shaper: Shaper,
    /// The clients of each node.
    clients: Vec<JoinSet<()>>,
    /// Daemons that take their leave.
    leaving: BTreeMap<usize, std::process::Child>,
    measures: Arc<Mutex<Measures>>,
    watched: Watched,
    guard: Guard,
    /// Who stands still again and again.
    starved: Vec<Starved>,
    start: Instant,
    violations: Vec<Violation>,
}

impl World {
    fn new(
        scenario: Scenario,
        plan: Vec<Planned>,
        seed: u64,
        options: Options,
    ) -> Result<Self, Error> {
        std::fs::create_dir_all(&options.folder).map_err(node::file(&options.folder))?;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mesh = Mesh::new(UnixSeconds(wall().as_secs()), &mut rng);
        let mut nodes = Vec::new();
        for (at, place) in scenario.nodes().enumerate() {
            let identity = mesh.member(&scenario, place, &mut rng)?;
            nodes.push(Node::new(&scenario, place, identity, &options.folder, loopback(at)));
        }
        let authority =
            Authority::in_folder(&options.folder.join("authority")).map_err(Error::Part)?;
        operator::keep_authority(&options.folder, &mesh)?;
        let shaper = Shaper::start(ShaperConfig { seed, ..ShaperConfig::default() });
        let links = paths::configs(&scenario)?;
        let guard = Guard::new(&scenario, &links);
        let mut world = Self {
            plan,
            seed,
            rng,
            instances: BTreeMap::new(),
            authority,
            links,
            shaper: shaper.map_err(Error::Part)?,
            clients: nodes.iter().map(|_| JoinSet::new()).collect(),
            leaving: BTreeMap::new(),
            measures: Arc::default(),
            watched: Watched::new(&nodes),
            guard,
            starved: Vec::new(),
            start: clock(),
            violations: Vec::new(),
            nodes,
            scenario,
            options,
        };
        world.prepare()?;
        Ok(world)
    }

    fn prepare(&mut self) -> Result<(), Error> {
        for ((a, b), link) in &self.links {
            self.shaper.set_link_one_way(self.site(*a), self.site(*b), link);
        }
        let mut publics = Vec::new();
        for node in &self.nodes {
            let site = self.site(node.site);
            publics.push(
                self.shaper.add_node(&node.name, site, Some(node.mesh())).map_err(Error::Part)?,
            );
        }
        let mut places = Vec::new();
        let ca = self.options.folder.join("authority").join("ca.crt");
        for (at, node) in self.nodes.iter().enumerate() {
            let instance = if node.hosts {
                let leaf = self.authority.issue_server(&node.name).map_err(Error::Part)?;
                let stand_in = StandIn::start(StandInConfig::new(leaf)).map_err(Error::Part)?;
                let address = stand_in.addr();
                self.instances.insert(at, stand_in);
                Some((address, ca.clone()))
            } else {
                None
            };
            places.push(Place { public: publics[at], instance });
        }
        for (at, place) in places.into_iter().enumerate() {
            let seeds = self.seeds(at, &publics)?;
            self.nodes[at].prepare(&self.scenario, &seeds, place)?;
        }
        Ok(())
    }

    fn seeds(&self, of: usize, publics: &[std::net::SocketAddr]) -> Result<Vec<Seed>, Error> {
        let wrong = |error: &dyn std::fmt::Display| Error::Scenario(format!("seed: {error}"));
        let sites = 0..self.scenario.sites.len();
        let first = |site| self.nodes.iter().position(|node| node.site == site);
        let seeds = sites.filter_map(first).filter(|seed| *seed != of);
        let seed = |at: usize| {
            let endpoint: Result<Endpoint, _> = publics[at].to_string().parse();
            let endpoint = endpoint.map_err(|error| wrong(&error))?;
            let id = self.nodes[at].identity.credential.node;
            Seed::new(id, vec![endpoint]).map_err(|error| wrong(&error))
        };
        seeds.take(self.scenario.seed_sites).map(seed).collect()
    }

    fn site(&self, site: usize) -> &str {
        self.scenario.sites[site].name.as_str()
    }

    async fn run(mut self) -> Result<Run, Error> {
        let places: Vec<(usize, usize)> = self.scenario.nodes().collect();
        let at_once = |at: &usize| places[*at].1 <= self.scenario.sites[places[*at].0].nodes;
        let first: Vec<usize> = (0..self.nodes.len()).filter(at_once).collect();
        for at in &first {
            self.nodes[*at].start(&self.options.program, true)?;
        }
        self.ready(&first).await?;
        self.start = clock();
        let began = wall();
        for at in first {
            self.clients_begin(at)?;
        }
        let until = self.options.until.unwrap_or(Duration::MAX);
        let end = self.scenario.duration().min(until);
        let plan = std::mem::take(&mut self.plan);
        for (place, planned) in plan.iter().enumerate() {
            self.wait_until(planned.at.min(end)).await?;
            if planned.at >= end {
                break;
            }
            self.watched.before(&plan[place..], self.start.elapsed());
            self.guard.happens(&planned.happening, self.start.elapsed());
            self.happen(&planned.happening).await?;
        }
        self.wait_until(end).await?;
        let mut run = self.finish(began, end);
        self.check_end(end).await?;
        run.violations = std::mem::take(&mut self.violations);
        Ok(run)
    }

    /// Waits until each of these nodes has a route to every origin.
    async fn ready(&mut self, first: &[usize]) -> Result<(), Error> {
        let deadline = clock() + READY;
        let origins = first.iter().filter(|at| self.nodes[**at].hosts).count();
        for at in first {
            loop {
                let status = self.nodes[*at].admin().ask(&StatusRequest).await.ok();
                let reached = status.and_then(|status| {
                    let service = status.services.into_iter().next()?;
                    let healthy = service.origins.iter().filter(|it| it.lacks.is_empty());
                    Some(healthy.count())
                });
                if reached.is_some_and(|reached| reached >= origins) {
                    break;
                }
                let node = &mut self.nodes[*at];
                let name = node.name.clone();
                if let Some(ended) = node.ended() {
                    return Err(Error::Machine(format!("{name}: {ended}")));
                }
                if clock() > deadline {
                    let (s, tail) = (READY.as_secs(), node.tail());
                    return Err(Error::Machine(format!(
                        "{name} reaches {} of {origins} origins after {s} s; the end of its \
                         log:\n{tail}",
                        reached.unwrap_or(0)
                    )));
                }
                sleep(LOOK).await;
            }
        }
        Ok(())
    }

    fn clients_begin(&mut self, at: usize) -> Result<(), Error> {
        let Some(load) = self.scenario.load.clone() else { return Ok(()) };
        if self.guard.is_revoked(at) {
            // Whoever is shut out gets nothing, as is meant.
            return Ok(());
        }
        let on = crate::scenario::target::Target::parse(&load.on, &self.scenario)?;
        if on.possible().contains(&at) {
            let shared = (self.start, self.measures.clone());
            let authority = self.authority.certificate_pem();
            let address = self.nodes[at].clients();
            let place = clients::Place::new(address, authority, load, shared)?;
            let rng = ChaCha8Rng::seed_from_u64(self.rng.next_u64());
            self.clients[at].spawn(crate::level::clients::run(place, rng));
        }
        Ok(())
    }

    /// Lets time pass, and notices daemons that end by themselves.
    async fn wait_until(&mut self, at: Duration) -> Result<(), Error> {
        loop {
            let left = at.saturating_sub(self.start.elapsed());
            sleep(left.min(LOOK)).await;
            let now = self.start.elapsed();
            for at in 0..self.nodes.len() {
                let Some(what) = self.nodes[at].ended() else { continue };
                if !self.guard.is_revoked(at) {
                    let (node, last) = (Some(self.nodes[at].name.clone()), Vec::new());
                    let rule = "no daemon ends by itself";
                    self.violations.push(Violation { at: now, rule, node, what, last });
                }
            }
            self.stall(now)?;
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
                self.clients[*at] = JoinSet::new();
            }
            Happening::Start { node, with_state } => self.restart(*node, *with_state)?,
            Happening::Leave(at) => {
                self.clients[*at] = JoinSet::new();
                if let Some(child) = self.nodes[*at].leave() {
                    self.leaving.insert(*at, child);
                }
            }
            Happening::Way(a, b, up) => {
                let (from, to) = (self.site(*a).to_owned(), self.site(*b).to_owned());
                self.shaper.set_down(Cut::OneWay { from, to }, !up);
            }
            Happening::Quality(a, b, quality) => {
                let usual = &self.links[&(*a, *b)];
                let link = quality.as_ref().unwrap_or(usual);
                self.shaper.set_link_one_way(self.site(*a), self.site(*b), link);
            }
            Happening::Starve { node, stall, until } => {
                self.starved.push(Starved::new(*node, *stall, *until));
            }
            Happening::Configure(at, event) => self.configure(*at, *event).await?,
            Happening::Revoke { node, through } => self.revoke(*node, *through).await?,
            // `check` has refused them.
            Happening::Pair(..)
            | Happening::Clock(..)
            | Happening::Rebind(_)
            | Happening::Roam(..)
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
            // `check` has refused it: the stand-in has no etcd.
            Instance::Stalled => {}
            Instance::Down => stand_in.kill().await,
        }
        Ok(())
    }

    fn restart(&mut self, at: usize, with_state: bool) -> Result<(), Error> {
        if self.nodes[at].is_running() {
            return Ok(());
        }
        if let Some(mut leaving) = self.leaving.remove(&at) {
            // Whoever starts a daemon anew ends the old one first. Both fail only when it is gone.
            let _ = leaving.kill();
            let _ = leaving.wait();
        }
        self.nodes[at].start(&self.options.program, with_state)?;
        self.clients_begin(at)
    }

    fn finish(&mut self, began: Duration, end: Duration) -> Run {
        self.clients.clear();
        let mut measures = std::mem::take(
            // Every change leaves the numbers consistent.
            &mut *self.measures.lock().unwrap_or_else(PoisonError::into_inner),
        );
        let counters = self.shaper.counters();
        measures.traffic.tunnel_packets = counters.received;
        // All headers counted, as in the simulations.
        measures.traffic.tunnel_bytes = counters.received_bytes + 28 * counters.received;
        let running: Vec<usize> =
            (0..self.nodes.len()).filter(|at| self.nodes[*at].is_running()).collect();
        let logs = self.nodes.iter().map(|node| {
            let text = std::fs::read_to_string(node.log()).unwrap_or_default();
            log::changes(&text, began.as_secs_f64() % 86_400.0)
        });
        let violations = Vec::new();
        let facts = result::Facts { seed: self.seed, end, running, counters, violations };
        let logs: Vec<Vec<log::Change>> = logs.collect();
        let watched = std::mem::replace(&mut self.watched, Watched::new(&[]));
        watched.finish(&self.scenario, &logs, measures, facts)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for mut child in std::mem::take(&mut self.leaving).into_values() {
            // Both fail only when it has ended and was waited for.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The loopback address of a node; each lab has a network of its own, by its process.
fn loopback(at: usize) -> Ipv4Addr {
    let net = std::process::id() % NETS;
    let [_, _, high, low] = net.to_be_bytes();
    let node = u8::try_from(at + 1).expect("at most MAX_NODES");
    Ipv4Addr::new(127, FIRST_NET + high, low, node)
}

/// The program `meshport` beside this one.
///
/// # Errors
/// [`Error::Machine`] when there is none, with how to build it.
pub fn program() -> Result<PathBuf, Error> {
    let here = std::env::current_exe().ok();
    let beside = here.as_deref().and_then(Path::parent).map(|folder| folder.join("meshport"));
    beside.filter(|path| path.exists()).ok_or_else(|| {
        let what = "there is no program meshport beside meshport-sim: build it in the same way \
                    (cargo build --release -p meshport), or name one with --meshport PATH";
        Error::Machine(what.into())
    })
}
