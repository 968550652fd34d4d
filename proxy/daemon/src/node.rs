//! A complete node without its process: mesh, core, sessions and local addresses.
//!
//! The daemon gives it UDP, the kernel's TCP, a state folder, an admin socket and signals; a
//! simulation gives it memory. The node itself is the same. Dropping it ends all its tasks at once,
//! like a crash.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use meshport_config::{Credential, NamedSeed, NodeId, Revocations, Seed, ServiceName, Settings};
use meshport_mesh::{Incoming, Mesh, ShardStreams, Shards, Stream};
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::{info, warn};

use crate::Error;
use meshport_core::egress::Offers;
use meshport_core::ledger::Entry;
use meshport_core::node::NodeCore;
use meshport_core::reach::OwnEndpoints;
use meshport_core::route::Route;

use crate::Handle;
use crate::clock;
use crate::descriptors;
use crate::driver::answers::ProcessRequest;
use crate::driver::commands::{Command, Drained};
use crate::driver::write_queue::{Snapshot, Write};
use crate::driver::{Channels, Components, Driver};
use crate::driver::{endpoints, seeds};
use crate::egress::Egress;
use crate::egress::socket::{self, OpenStreams};
use crate::health::probe::Prober;
use crate::kubernetes::nodes;
use crate::kubernetes::roster::{self, Source};
use crate::node::controls::{Controls, Names};
use crate::node::postbox::Destination;
use crate::node::services::Services;
use crate::random;
use crate::renewal::state::Renewals;
use crate::report::{AdminFacts, LocalState};
use crate::sessions::claim::IfTaken;
use crate::sessions::ingress::Context;
use crate::sessions::registry::Sessions;
use crate::succession::Predecessor;
use crate::tcp::Host;
use crate::vip::sockets::VipSockets;
use crate::vip::start as vip;
use crate::wayback::WayBack;
use meshport_state::{Identity, KnownRenewals};

pub(crate) mod assemble;
pub(crate) mod controls;
pub(crate) mod fallback;
pub(crate) mod postbox;
pub(crate) mod reload;
pub(crate) mod services;
pub(crate) mod state_writer;

/// Minimum time a node keeps running after it announces that it leaves; the announcement is
/// repeated until acknowledged.
const FAREWELL: Duration = Duration::from_millis(500);
/// Interval at which a leaving node checks for open sessions.
const DRAIN_LOOK: Duration = Duration::from_millis(50);

/// The inputs of a node, in addition to settings and identity.
#[derive(Debug)]
pub struct Environment {
    /// The mesh's sockets, and the runtimes that serve their peers.
    pub shards: Shards,
    /// The host of its local addresses.
    pub host: Host,
    /// Seeds all randomness; new at every start.
    pub seed: [u8; 32],
    /// Higher than at every earlier start.
    pub generation: u64,
    /// Nodes to announce to, including those of the settings.
    pub seeds: Vec<NamedSeed>,
    /// The directory that an earlier process saved.
    pub directory: Option<Vec<u8>>,
    /// The revocations known before.
    pub revocations: Revocations,
    /// Its data for renewals by issuers, and as an issuer.
    pub renewals: KnownRenewals,
    /// The nodes of the cluster that an earlier process knew, for the way back.
    pub nodes: Option<Vec<u8>>,
    /// Sockets for its virtual addresses; empty without any.
    pub vip_sockets: VipSockets,
}

/// The parts of a node that need a separate process.
#[derive(Debug, Default)]
pub(crate) struct Process {
    /// Stores durable values, and answers each [`Write`] with a command.
    pub(crate) writer: Option<mpsc::Sender<Write>>,
    /// What the admin server reports of itself.
    pub(crate) admin: Option<Arc<AdminFacts>>,
    /// Earlier processes with open sessions.
    pub(crate) predecessors: Vec<Predecessor>,
    /// The drains of the process before.
    pub(crate) drained: Drained,
}

/// See the module's description.
#[derive(Debug)]
pub struct Node {
    mesh: Mesh,
    sessions: Sessions,
    handle: Handle,
    /// Requests to the process, until it takes the queue.
    process: Option<mpsc::Receiver<ProcessRequest>>,
    routes: BTreeMap<ServiceName, watch::Receiver<Arc<Route>>>,
    pub(crate) controls: Controls,
    leaving: watch::Sender<bool>,
    revocations: watch::Receiver<Revocations>,
    credential: watch::Receiver<Arc<Credential>>,
    suspected: broadcast::Sender<NodeId>,
    release: vip::Release,
    /// Open streams of the way back.
    back_streams: OpenStreams,
    /// Serves the streams of peers.
    serving: JoinSet<()>,
    /// Everything else.
    tasks: JoinSet<()>,
}

/// What remains of a node after another process took over its mesh: its open sessions.
#[derive(Debug)]
pub(crate) struct Remains {
    mesh: Mesh,
    pub(crate) sessions: Sessions,
    /// Whether new streams of peers are refused.
    pub(crate) leaving: watch::Sender<bool>,
    controls: Controls,
    _back_streams: OpenStreams,
    serving: JoinSet<()>,
}

impl Node {
    /// Starts a node on the current runtime. It has no disk: durable values count as stored at
    /// once.
    ///
    /// # Errors
    /// An address cannot be bound (one in use by another process is retried later), a configured
    /// file is unusable, or the identity is not valid now.
    pub fn start(
        settings: &Settings,
        identity: &Identity,
        env: Environment,
    ) -> Result<Self, Error> {
        Self::start_with(settings, identity, env, Process::default())
    }

    /// Starts a node in a separate process.
    pub(crate) fn start_with(
        settings: &Settings,
        identity: &Identity,
        env: Environment,
        process: Process,
    ) -> Result<Self, Error> {
        let (seeds, seed_names) = seeds::split(env.seeds);
        let [mesh_seed, core_seed, ticket_seed] = random::seeds(env.seed);
        let started = assemble::start_mesh(settings, identity, env.shards, mesh_seed)?;
        let (mesh, Incoming { events, streams, others }) = started;
        let sessions = Sessions::within(descriptors::for_sessions(&env.host));
        let mut services = Services::bind(&env.host, settings, IfTaken::Wait, services::key)?;
        let mut state =
            LocalState::new(identity, &mesh, &sessions, services.facts(settings), &env.host);
        let prepared = state.process.exposures.prepare(settings, IfTaken::Wait)?;
        state.renewals = Renewals::new(env.renewals, &identity.credential);
        describe(settings, env.nodes.as_deref(), process.admin, &mut state);
        services.announce();
        let sources = sources(settings, &state, &env.host);
        let (mut driver, channels) = Driver::new(Components {
            core: assemble::build_core(settings, identity, env.generation, core_seed, None),
            mesh: mesh.clone(),
            events,
            sessions: sessions.clone(),
            state,
            probers: assemble::probers(&env.host, settings, Prober::at_start)?,
            seed_names,
            writer: process.writer,
            revocations: env.revocations,
        });
        locate(settings, &mut driver, &seeds, env.directory.as_deref());
        driver.continue_drains(process.drained);

        let Channels { questions, commands, findings, credential, revocations, .. } = channels;
        let context = Context {
            mesh: mesh.clone(),
            host: env.host,
            sessions: sessions.clone(),
            findings,
            first_ticket: random::number(ticket_seed),
        };
        let (limits, listeners) = services.serve(settings, &context, &mut driver);
        let exposed = driver.state.process.exposures.start(prepared, settings);
        let (offers, offered) = watch::channel(Arc::new(assemble::offers(settings)));
        let (leaving, is_leaving) = watch::channel(false);
        let handle = Handle::new(questions);
        let egress = egress(settings, &driver, &context, &handle, offered, is_leaving);
        let routes = subscribe(&driver.outputs.routes);
        let serving = serve_streams(&egress, streams, others);
        let mut tasks = JoinSet::new();
        continue_sessions(process.predecessors, &egress, &mut tasks);
        let release = serve_vips(settings, env.vip_sockets, env.generation, &driver, &mut tasks);
        tasks.spawn(driver.run());
        follow_nodes(settings, &egress, &sources, &commands, &mut tasks);
        let back_streams = socket::start(&egress, &mut tasks);
        write_events(settings, &sources, &handle, &mut tasks);
        let names = follow(settings, seeds, sources, &commands, &mut tasks);
        let back = egress.back.clone();
        let controls =
            Controls { commands, context, limits, listeners, exposed, offers, back, names };
        Ok(Self {
            mesh,
            sessions,
            handle,
            process: Some(channels.process),
            routes,
            controls,
            leaving,
            revocations,
            credential,
            suspected: channels.suspected,
            release,
            back_streams,
            serving,
            tasks,
        })
    }

    /// A handle for requests.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Requests to the process around it; a closed queue if taken already.
    pub(crate) fn take_process_requests(&mut self) -> mpsc::Receiver<ProcessRequest> {
        self.process.take().unwrap_or_else(|| mpsc::channel(1).1)
    }

    /// Its mesh.
    pub fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// The route of a service, and every later one; none for a service that the settings lack.
    pub fn route(&self, service: &ServiceName) -> Option<watch::Receiver<Arc<Route>>> {
        self.routes.get(service).cloned()
    }

    /// The revocations, and every later state of them.
    pub fn revocations(&self) -> watch::Receiver<Revocations> {
        self.revocations.clone()
    }

    /// This node's own credential, and every later one.
    pub fn credential(&self) -> watch::Receiver<Arc<Credential>> {
        self.credential.clone()
    }

    /// The members that it suspects from now on, each when the suspicion begins. At most 64 are
    /// queued for a receiver, which learns how many it missed.
    pub fn suspicions(&self) -> broadcast::Receiver<NodeId> {
        self.suspected.subscribe()
    }

    /// Sessions that are open, of all kinds.
    pub fn open_sessions(&self) -> u64 {
        self.sessions.count()
    }

    /// See [`Sessions::take_peak`].
    pub(crate) fn take_peak(&self) -> (u64, u64) {
        self.sessions.take_peak()
    }

    /// The state for the next start; `None` if the node is about to end.
    pub async fn snapshot(&self) -> Option<Snapshot> {
        snapshot(&self.controls.commands).await
    }

    /// Applies those settings of `new` that can change in a running node, as on SIGHUP; returns the
    /// effective settings, the basis of the next reload.
    ///
    /// # Errors
    /// A configured file is unusable. Nothing has changed then.
    pub async fn reload(&self, old: Settings, new: Settings) -> Result<Settings, Error> {
        let (settings, _) = reload::apply(&old, &new, false, &self.controls).await?;
        Ok(settings)
    }

    /// Releases its virtual addresses, announces that it leaves, and accepts no new sessions from
    /// other nodes. Resolves when all sessions have ended, or with `over`. Local clients are served
    /// until [`Node::close`].
    pub async fn leave(&mut self, over: impl Future<Output = ()>) {
        // First, while the other members of each group can still be notified.
        self.release.run().await;
        self.leaving.send_replace(true);
        let (left, has_left) = oneshot::channel();
        if self.controls.commands.send(Command::Leave(left)).await.is_ok() {
            let _ = has_left.await;
        }
        let ended = async {
            while self.sessions.count() > 0 {
                sleep(DRAIN_LOOK).await;
            }
        };
        let drained = async {
            tokio::select! {
                () = ended => {}
                () = over => {
                    let open = self.sessions.count();
                    info!(open, "the drain time has expired: open sessions are reset");
                }
            }
        };
        tokio::join!(drained, sleep(FAREWELL));
    }

    /// Resets the clients' sessions and accepts no more, without announcing that it leaves, since
    /// no member would receive that.
    pub async fn abandon(&mut self) {
        self.leaving.send_replace(true);
        self.controls.exposed.0.close();
        let listeners = self.controls.listeners.get_mut();
        listeners.expect("no holder of this lock can panic").shutdown().await;
    }

    /// Gives its virtual addresses to other nodes. The successor does not inherit them.
    pub(crate) async fn release_addresses(&mut self) {
        self.release.run().await;
    }

    /// Answers no more requests; returns its drains, for a successor.
    pub(crate) async fn retire(&self) -> Drained {
        let (answer, drained) = oneshot::channel();
        // A node that is about to end has none to continue.
        let _ = self.controls.commands.send(Command::Retire(answer)).await;
        drained.await.unwrap_or_default()
    }

    /// Hands everything to a successor except the open sessions, which continue through the
    /// successor's mesh. Returns the sockets for [`Shards::continuing`].
    ///
    /// # Errors
    /// No descriptors are left; the sessions end.
    pub(crate) async fn detach(mut self) -> std::io::Result<(Remains, Vec<OwnedFd>)> {
        // From here on the successor decides.
        self.tasks.shutdown().await;
        let sockets = self.mesh.detach()?;
        let Self { mesh, sessions, leaving, controls, back_streams, serving, .. } = self;
        let _back_streams = back_streams;
        Ok((Remains { mesh, sessions, leaving, controls, _back_streams, serving }, sockets))
    }

    /// Notifies all peers and stops, closing the local addresses last: clients retry a reset
    /// connection longer than a refused one.
    pub async fn close(mut self) {
        self.mesh.close().await;
        self.tasks.shutdown().await;
        self.serving.shutdown().await;
        self.controls.exposed.0.close();
        let listeners = self.controls.listeners.into_inner();
        listeners.expect("no holder of this lock can panic").shutdown().await;
    }
}

impl Remains {
    /// The peers of these sessions, with the addresses from which their packets came.
    pub(crate) fn peers_of(&self, entries: &[Entry]) -> Vec<(NodeId, SocketAddr)> {
        let peers = entries.iter().filter_map(|entry| entry.line.first_hop());
        let peers: BTreeSet<NodeId> = peers.filter(|node| !self.mesh.is_own(node)).collect();
        peers.into_iter().filter_map(|node| Some((node, self.mesh.endpoint(&node)?))).collect()
    }

    /// Resets the sessions that are still open.
    pub(crate) async fn close(mut self) {
        self.mesh.close().await;
        self.serving.shutdown().await;
        self.controls.exposed.0.close();
        let listeners = self.controls.listeners.into_inner();
        listeners.expect("no holder of this lock can panic").shutdown().await;
    }
}

/// Continues the sessions of earlier processes.
fn continue_sessions(predecessors: Vec<Predecessor>, egress: &Egress, tasks: &mut JoinSet<()>) {
    for predecessor in predecessors {
        predecessor.connect(&egress.context.mesh);
        tasks.spawn(predecessor.follow(egress.clone()));
    }
}

/// Builds the server of peers' streams.
fn egress(
    settings: &Settings,
    driver: &Driver,
    context: &Context,
    asked: &Handle,
    offers: watch::Receiver<Arc<Offers>>,
    leaving: watch::Receiver<bool>,
) -> Egress {
    Egress {
        asked: asked.clone(),
        context: context.clone(),
        credential: driver.outputs.credential.subscribe(),
        audit: driver.state.audit.clone(),
        offers,
        offered: driver.outputs.offered.subscribe(),
        turn: Arc::default(),
        revoked: driver.outputs.revoked.subscribe(),
        max_relayed: u64::from(settings.mesh.max_relayed),
        leaving,
        back: driver.state.process.way_back.clone(),
    }
}

/// Serves the streams of all peers; those of other shards run on their shard's thread.
fn serve_streams(
    egress: &Egress,
    streams: mpsc::Receiver<(NodeId, Stream)>,
    others: Vec<ShardStreams>,
) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    tasks.spawn(egress.clone().run(streams));
    for ShardStreams { runtime, streams } in others {
        tasks.spawn_on(egress.clone().run(streams), &runtime);
    }
    tasks
}

/// Starts the virtual addresses of the settings.
fn serve_vips(
    settings: &Settings,
    sockets: VipSockets,
    generation: u64,
    driver: &Driver,
    tasks: &mut JoinSet<()>,
) -> vip::Release {
    let context = vip::Context {
        board: &driver.state.process.board,
        mesh: &driver.mesh,
        credential: driver.outputs.credential.subscribe(),
        routes: &subscribe(&driver.outputs.routes),
        exposures: &driver.state.process.exposures,
        generation,
    };
    vip::start(settings, sockets, &context, tasks)
}

/// The receiving ends of all routes.
fn subscribe(
    routes: &BTreeMap<ServiceName, watch::Sender<Arc<Route>>>,
) -> BTreeMap<ServiceName, watch::Receiver<Arc<Route>>> {
    routes.iter().map(|(name, route)| (name.clone(), route.subscribe())).collect()
}

/// See [`Node::snapshot`].
pub(crate) async fn snapshot(commands: &mpsc::Sender<Command>) -> Option<Snapshot> {
    let (answer, snapshot) = oneshot::channel();
    commands.send(Command::Snapshot(answer)).await.ok()?;
    snapshot.await.ok()
}

/// Starts the periodic lookups of names in the settings and seeds, and of the cluster's lists of
/// apiservers.
fn follow(
    settings: &Settings,
    seeds: Vec<Seed>,
    sources: Vec<(ServiceName, Source)>,
    commands: &mpsc::Sender<Command>,
    tasks: &mut JoinSet<()>,
) -> Names {
    let (advertise, advertised) = watch::channel(settings.mesh.advertise.clone());
    tasks.spawn(endpoints::follow(seeds, advertised, commands.clone()));
    let (fallbacks, wanted) = watch::channel(fallback::of(settings));
    tasks.spawn(fallback::follow(wanted, commands.clone()));
    roster::start(sources, commands, tasks);
    Names { advertise, fallbacks }
}

/// Starts to read the Node objects for the way back, if it needs any.
fn follow_nodes(
    settings: &Settings,
    egress: &Egress,
    sources: &[(ServiceName, Source)],
    commands: &mpsc::Sender<Command>,
    tasks: &mut JoinSet<()>,
) {
    let source = nodes::source(settings, &egress.credential.borrow(), sources);
    if let Some((source, whose)) = source {
        tasks.spawn(nodes::follow(source, whose, egress.back.clone(), commands.clone()));
    }
}

/// Writes events of this node to the cluster, if configured.
fn write_events(
    settings: &Settings,
    sources: &[(ServiceName, Source)],
    handle: &Handle,
    tasks: &mut JoinSet<()>,
) {
    let source = sources.first().filter(|_| settings.events.kubernetes);
    if let Some((_, source)) = source {
        tasks.spawn(postbox::follow(Destination::Kubernetes(source.clone()), handle.clone()));
    }
}

/// Sources of the cluster's own lists, for services with a kubeconfig.
fn sources(settings: &Settings, state: &LocalState, host: &Host) -> Vec<(ServiceName, Source)> {
    let each = settings.services.iter().filter_map(|(name, service)| {
        let kubeconfig = service.cluster_kubeconfig.clone()?;
        let local = *state.services.get(name)?.listen.first()?;
        Some((name.clone(), Source { host: host.clone(), local, kubeconfig }))
    });
    each.collect()
}

/// Takes over the settings, and logs that the node starts.
fn describe(
    settings: &Settings,
    nodes: Option<&[u8]>,
    admin: Option<Arc<AdminFacts>>,
    state: &mut LocalState,
) {
    state.process.admin = admin;
    state.process.way_back = WayBack::new(settings, nodes);
    state.process.agreeing = assemble::agreeing(settings);
    state.outboxes = assemble::outboxes(settings);
    state.process.authority_key = Some(meshport_state::authority_key_in(&settings.state_dir));
    announce_start(state);
}

fn announce_start(state: &LocalState) {
    let (me, mesh) = (&state.identity.me, state.process.mesh_listen);
    info!(
        name = %me.name, site = %me.site, node = %me.node.short(), %mesh,
        version = env!("CARGO_PKG_VERSION"), "started"
    );
}

/// Passes the addresses of this node, its seeds and the saved directory's nodes to the core before
/// the loop starts. Names are resolved by a separate task, since a resolver may be slow.
fn locate(settings: &Settings, driver: &mut Driver, seeds: &[Seed], directory: Option<&[u8]>) {
    restore(directory, &mut driver.core);
    let plain = seeds.iter().map(|seed| (seed.node, endpoints::plain(&seed.endpoints)));
    let plain: Vec<(NodeId, Vec<SocketAddr>)> = plain.collect();
    driver.set_own_endpoints(match settings.mesh.advertise.as_slice() {
        [] => OwnEndpoints::Guessed(endpoints::guess(driver.mesh.local_addr(), &plain)),
        set => OwnEndpoints::Advertised(endpoints::plain(set)),
    });
    driver.set_seeds(plain);
    driver.warn_of_unknown_seeds();
}

pub(crate) fn restore(directory: Option<&[u8]>, core: &mut NodeCore) {
    let Some(bytes) = directory else { return };
    match core.restore(bytes, clock::now(), clock::wall()) {
        Ok(nodes) => info!(nodes, "restored the saved directory"),
        Err(error) => warn!(
            %error,
            "ignoring the file directory in the state folder; the next save replaces it"
        ),
    }
}
