//! The full level: tens of nodes, with everything above the socket real.
//!
//! Each node is the daemon's own [`meshport_daemon::Node`]: boringtun's handshakes and timers,
//! QUIC, the driver, sessions, egress, probes. Simulated are the layers below and the environment:
//! UDP between the sites (`wire`), local connections in memory, the apiservers and kubelets
//! (`instance`), their clients (`clients`, `callers`), and time itself ([`machine`]). One thread
//! runs everything.
//!
//! It accepts the same scenarios as the wide level and gives the same results, except for events it
//! does not support, with at most [`MAX_NODES`] nodes.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use meshport_config::{AuthorityKey, Revocations, UnixSeconds};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use crate::Error;
use crate::identity::Mesh;
use crate::instance::Instance;
use crate::level::{Account, Camera, Follow, Level, Limits, Scene, Story, film};
use crate::network::Network;
use crate::report::Run;
use crate::scenario::timeline::Planned;
use crate::scenario::{Happening, Scenario};
use crate::world::Options;

mod book;
mod callers;
mod clients;
mod guard;
mod instance;
pub mod machine;
mod node;
mod revoked;
mod saved;
mod socket;
mod wire;

use book::Book;
use node::Node;
use saved::Reader;
use socket::Waiting;

/// Nodes in one run: each has real cryptography and a real connection to every other.
pub const MAX_NODES: usize = 100;
/// Interval at which a node's directory is saved, as in the daemon.
const SAVE_INTERVAL: Duration = Duration::from_secs(60);
/// How long a leaving node drains its sessions.
const DRAIN: Duration = Duration::from_secs(10);
/// Interval between progress messages.
const PROGRESS: Duration = Duration::from_secs(1);

/// Locks the book at the current time. Every change leaves it consistent, so a panic elsewhere does
/// not corrupt it.
fn lock(book: &Mutex<Book>) -> MutexGuard<'_, Book> {
    let mut book = book.lock().unwrap_or_else(PoisonError::into_inner);
    book.scene.now = machine::now();
    book
}

/// Refuses scenarios that this level does not support.
fn check(story: &Story) -> Result<(), Error> {
    let unknown = |happening: &Happening| match happening {
        Happening::Clock(..) => Some("clock-step"),
        Happening::Lie(..) => Some("lie"),
        _ => None,
    };
    let limits = Limits {
        level: "the full level",
        most: MAX_NODES,
        why: "since everything in them is real",
        instead: "All its nodes run the real daemon, which cannot lie, on one machine with one \
                  clock; the wide level (without --full) supports all",
    };
    story.fit(&limits, unknown, &[])
}

/// Runs a scenario and prints the result. Call it on a fresh thread, once per process: some of the
/// runtime's random state is initialised with them.
///
/// # Errors
/// [`Error::Scenario`] for unsupported features; [`Error::Machine`] outside `meshport-sim`;
/// [`Error::Node`] if a node does not start.
pub fn run(scenario: Scenario, seed: u64, options: Options) -> Result<Run, Error> {
    let story = Story::new(scenario, seed, options.until)?;
    check(&story)?;
    let _machine = machine::begin(seed)?;
    let failed = |error: std::io::Error| Error::Machine(format!("start a runtime: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(failed)?;
    runtime.block_on(async { Simulation::new(story, options)?.run().await })
}

/// A run in progress.
struct Simulation {
    story: Story,
    epoch: Instant,
    rng: ChaCha8Rng,
    nodes: Vec<Node>,
    authority: AuthorityKey,
    /// The callers of kubelets.
    callers: JoinSet<()>,
    /// Instances, kubelets, and tasks that stop processes or record suspicions.
    tasks: JoinSet<()>,
    book: Arc<Mutex<Book>>,
    reader: Reader,
    progress: Option<Box<dyn FnMut(Duration) + Send>>,
}

impl Simulation {
    fn new(story: Story, options: Options) -> Result<Self, Error> {
        let (scenario, seed) = (&story.scenario, story.seed);
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mesh = Mesh::new(UnixSeconds(machine::WALL_START_S), &mut rng);
        let mut nodes = Vec::new();
        for member in scenario.nodes() {
            nodes.push(Node::new(scenario, member, &mesh, &mut rng)?);
        }
        let network = Network::new(scenario, &mut rng)?;
        // With its own random numbers: observation does not change the run.
        let mut eyes = ChaCha8Rng::seed_from_u64(seed ^ u64::MAX);
        let ids = nodes.iter().map(|node| node.identity.credential.node).collect();
        let account = Account::new(scenario, ids, &mut eyes);
        let mut tasks = JoinSet::new();
        for at in account.origins() {
            let (state, states) = watch::channel(Instance::Ready);
            let number = u16::try_from(*at).expect("at most MAX_NODES");
            let host = nodes[*at].host.clone();
            tasks.spawn(instance::run(host, instance::ADDRESS, states, number));
            nodes[*at].instance = Some(state);
        }
        let film = options.film.then(|| film::film(scenario, &network));
        let scene = Scene { film, ..Scene::new(account, network, options.trace) };
        let book = Arc::new(Mutex::new(Book::new(scene)));
        machine::set_events(Box::new(Waiting(book.clone())));
        #[expect(clippy::disallowed_methods, reason = "the origin of virtual time")]
        let epoch = Instant::now();
        Ok(Self {
            epoch,
            rng,
            reader: Reader::new(scenario, &mesh)?,
            authority: mesh.issuer.key,
            nodes,
            callers: JoinSet::new(),
            tasks,
            book,
            progress: options.progress,
            story,
        })
    }

    async fn run(mut self) -> Result<Run, Error> {
        let plan = self.schedule();
        self.start_way_back();
        for (index, planned) in plan.iter().enumerate() {
            self.wait_until(planned.at).await;
            if planned.at > self.story.end || self.has_enough() {
                break;
            }
            lock(&self.book).begins(&plan[index..]);
            self.happen(planned.happening.clone()).await?;
        }
        self.wait_until(self.story.end).await;
        let is_whole = !self.has_enough();
        if is_whole {
            self.check_end().await;
        }
        let mut run = self.finish();
        if is_whole {
            self.check_sessions().await;
        }
        self.tasks.abort_all();
        run.violations = std::mem::take(&mut lock(&self.book).scene.account.violations);
        // Violations found after the end are dated to the end, so that a repeated run finds them
        // too.
        run.violations.iter_mut().for_each(|it| it.at = it.at.min(self.story.end));
        Ok(run)
    }

    /// Starts the kubelets that apiservers call, and their callers. They are independent of a
    /// node's process.
    fn start_way_back(&mut self) {
        let apiservers = self.nodes.iter().enumerate().filter(|(_, node)| node.instance.is_some());
        let apiservers: Arc<[_]> = apiservers.map(|(at, node)| (at, node.host.clone())).collect();
        for (to, node) in self.nodes.iter().enumerate() {
            let Some(load) = self.story.way_back(to).filter(|_| !apiservers.is_empty()) else {
                continue;
            };
            let (host, number) = (node.host.clone(), u16::try_from(to).expect("at most MAX_NODES"));
            self.tasks.spawn(async move {
                let (_state, states) = watch::channel(Instance::Ready);
                instance::run(host, callers::KUBELET, states, number).await;
            });
            let callers = callers::Callers {
                to,
                name: node.identity.credential.name.clone(),
                apiservers: apiservers.clone(),
                load: load.clone(),
                book: self.book.clone(),
                turn: Arc::new(AtomicUsize::new(to)),
            };
            let rng = ChaCha8Rng::seed_from_u64(self.rng.random());
            self.callers.spawn(crate::level::clients::run(callers, rng));
        }
    }

    fn has_enough(&self) -> bool {
        lock(&self.book).scene.account.has_enough()
    }

    /// The first starts and the scenario's plan, in order of time.
    fn schedule(&mut self) -> Vec<Planned> {
        let starts = self.story.first_starts(&mut self.rng);
        let starts = starts.into_iter().map(|(at, node)| {
            let happening = Happening::Start { node, with_state: true };
            let words = format!("start: {}", self.nodes[node].identity.credential.name);
            // Not an event of the plan.
            Planned { at, words, happening, event: usize::MAX, fault: None }
        });
        let mut all: Vec<Planned> = starts.collect();
        all.extend(self.story.plan.iter().cloned());
        all.sort_by_key(|planned| planned.at);
        all
    }

    /// Advances to `at`, saving nodes' directories periodically and printing progress.
    async fn wait_until(&mut self, at: Duration) {
        let at = at.min(self.story.end);
        while machine::now() < at && !self.has_enough() {
            let step = (machine::now() + PROGRESS).min(at);
            sleep_until(self.epoch + step).await;
            let now = machine::now();
            if let Some(progress) = &mut self.progress {
                progress(now);
            }
            self.look(now).await;
        }
    }

    /// Runs once per second: traffic, running nodes and state folders.
    async fn look(&mut self, now: Duration) {
        self.keep_revocations();
        self.check(now).await;
        let running = self.nodes.iter().filter(|node| node.process.is_some()).count();
        {
            let mut book = lock(&self.book);
            let (sum, measures) = (std::mem::take(&mut book.wire.sum), &mut book.scene.measures);
            let second = measures.second(now);
            second.running = u32::try_from(running).unwrap_or(u32::MAX);
            second.tunnel_bytes += sum.bytes;
            measures.traffic.tunnel_bytes += sum.bytes;
            measures.traffic.tunnel_packets += sum.datagrams;
            measures.traffic.handshakes += sum.handshakes;
            book.film();
        }
        if !now.as_secs().is_multiple_of(SAVE_INTERVAL.as_secs()) {
            return;
        }
        for node in &mut self.nodes {
            if let Some(process) = &node.process
                && let Some(snapshot) = process.snapshot().await
            {
                node.directory = Some(snapshot.directory);
            }
        }
    }

    async fn happen(&mut self, happening: Happening) -> Result<(), Error> {
        lock(&self.book).happens(&happening);
        match happening {
            Happening::Instance(node, becomes) => {
                if let Some(instance) = &self.nodes[node].instance {
                    instance.send_replace(becomes);
                }
            }
            Happening::Crash(node) => self.crash(node),
            Happening::Start { node, with_state } => self.start(node, with_state).await?,
            Happening::Leave(node) => self.leave(node),
            Happening::Starve { node, stall, until } => {
                lock(&self.book).stands_still(node, stall, until + stall);
                self.tasks.spawn(starve(self.book.clone(), node, stall, until, self.rng.random()));
            }
            Happening::Configure(node, event) => {
                self.nodes[node].configured = Some(event);
                let settings = self.nodes[node].file(&self.story)?;
                self.nodes[node].reload(settings).await?;
            }
            Happening::Revoke { node, through } => self.revoke(node, through).await,
            // Links are changed above, and `check` has refused the others.
            Happening::Path(..)
            | Happening::Pair(..)
            | Happening::Quality(..)
            | Happening::Rebind(_)
            | Happening::Roam(..)
            | Happening::Clock(..)
            | Happening::Lie(..) => {}
        }
        Ok(())
    }

    async fn start(&mut self, at: usize, with_state: bool) -> Result<(), Error> {
        if self.nodes[at].process.is_some() {
            return Ok(());
        }
        if let Some(leaving) = self.nodes[at].leaving.take() {
            // A new process replaces one that is still leaving, which is ended first.
            leaving.abort();
            let _ = leaving.await;
        }
        let seeds = self.seeds(at)?;
        let node = &mut self.nodes[at];
        let settings = node.file(&self.story)?;
        if !with_state {
            node.directory = None;
            lock(&self.book).revocations[at] = Revocations::default();
        }
        let known = lock(&self.book).revocations[at].clone();
        if known.covering(&node.identity.credential).is_some() {
            let words = "does not start: the authority has revoked it".into();
            lock(&self.book).says(at, words);
            return Ok(());
        }
        node.start(at, &settings, &self.book, seeds, known)?;
        lock(&self.book).starts(at, node.boot);
        self.follow_revocations(at);
        self.follow_suspicions(at);
        let node = &mut self.nodes[at];
        let service = crate::scenario::service();
        if let Some(mut route) = node.process.as_ref().and_then(|it| it.route(&service)) {
            let book = self.book.clone();
            lock(&book).routes[at] = Some(route.borrow().clone());
            node.company.spawn(async move {
                loop {
                    let now = route.borrow_and_update().clone();
                    lock(&book).routed(at, now);
                    if route.changed().await.is_err() {
                        return;
                    }
                }
            });
        }
        if let Some(load) = self.story.load(at).cloned() {
            let (host, book) = (node.host.clone(), self.book.clone());
            let rng = ChaCha8Rng::seed_from_u64(self.rng.random());
            let context = clients::ClientContext { node: at, host, load, book };
            node.clients.spawn(crate::level::clients::run(context, rng));
        }
        Ok(())
    }

    fn seeds(&self, of: usize) -> Result<Vec<meshport_config::Seed>, Error> {
        self.story.seeds(of).map(|at| self.nodes[at].as_seed(at)).collect()
    }

    /// Kills its process: its socket sends nothing more, and its state in memory is gone.
    fn crash(&mut self, at: usize) {
        let Some(process) = self.nodes[at].process.take() else { return };
        lock(&self.book).wire.close(at);
        drop(process);
        self.gone(at);
    }

    fn gone(&mut self, at: usize) {
        self.nodes[at].company = JoinSet::new();
        self.nodes[at].clients = JoinSet::new();
        let mut book = lock(&self.book);
        book.routes[at] = None;
        book.process_ends(at);
    }

    fn leave(&mut self, at: usize) {
        let Some(process) = self.nodes[at].process.take() else { return };
        self.gone(at);
        let (book, boot) = (self.book.clone(), self.nodes[at].boot);
        self.nodes[at].leave(process, move || lock(&book).wire.close_process(at, boot));
    }

    fn finish(&mut self) -> Run {
        let mut book = lock(&self.book);
        let outcome = self.story.outcome(&*book);
        let mut measures = std::mem::take(&mut book.scene.measures);
        let is_used = self.story.scenario.way_back.is_some();
        measures.way_back = is_used.then(|| Box::new(book.take_back()));
        book.film();
        Run { outcome, measures, violations: Vec::new(), film: book.scene.film.take() }
    }
}

/// Stops a process briefly at intervals; meanwhile nothing enters or leaves its socket.
async fn starve(book: Arc<Mutex<Book>>, node: usize, stall: Duration, until: Duration, seed: u64) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    while machine::now() < until {
        lock(&book).wire.stand_still(node, machine::now() + stall);
        sleep(stall + rng.random_range(Duration::ZERO..stall * 2)).await;
    }
}
