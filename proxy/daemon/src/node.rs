//! A whole node without the process around it: the mesh, the decisions, the sessions and the local
//! addresses, joined.
//!
//! The daemon gives it UDP, the kernel's TCP, a state folder, an admin socket and signals; a
//! simulation gives it memory. What happens inside is the same. Dropping a node ends all its tasks
//! at once, as a crash does.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use meshport_config::{
    Credential, Endpoint, MeshSecrets, NamedSeed, NodeId, Revocations, Seed, ServiceName, Settings,
};
use meshport_mesh::{Incoming, Mesh, ShardStreams, Shards, Stream};
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::{info, warn};

use crate::Error;
use meshport_core::duplicates::Duplicates;
use meshport_core::node::NodeCore;
use meshport_core::reach::{OwnEndpoints, Reach};
use meshport_core::route::Route;

use crate::Handle;
use crate::admin::report::{self, CrowdingLog, Reporter, ServiceFacts};
use crate::audit::Audit;
use crate::clock;
use crate::egress::Egress;
use crate::health::probe::Prober;
use crate::lifecycle::descriptors;
use crate::lifecycle::reload::Reload;
use crate::log_budget::LogBudgets;
use crate::node::controls::Controls;
use crate::node::driver::Driver;
use crate::node::driver::rotation::Rotating;
use crate::node::driver::seeds;
use crate::node::driver::succession::Succeeding;
use crate::node::fallback::Fallbacks;
use crate::node::floods::Floods;
use crate::node::orders::Next;
use crate::node::orders::{Order, Snapshot};
use crate::node::roster::Source;
use crate::node::services::Services;
use crate::sessions::ingress::{Context, MAX_FINDINGS};
use crate::sessions::registry::Sessions;
use crate::state::{self, Identity};
use crate::tcp::Host;
use meshport_core::egress::Offers;

pub(crate) mod assemble;
pub(crate) mod controls;
pub(crate) mod driver;
pub(crate) mod endpoints;
pub(crate) mod fallback;
pub(crate) mod floods;
pub(crate) mod orders;
pub(crate) mod roster;
pub(crate) mod services;

/// How long a node goes on at least after its goodbye, which is repeated until it is acknowledged.
const FAREWELL: Duration = Duration::from_millis(500);
/// How often a leaving node looks whether its sessions have ended.
const DRAIN_LOOK: Duration = Duration::from_millis(50);
/// Orders on their way to the driver; they come from timers and people.
const MAX_ORDERS: usize = 16;
/// Suspicions on their way to whoever looks on. A turn of the driver raises a few; who falls behind
/// by more than these is told how many it has missed.
const MAX_SUSPICIONS: usize = 64;

/// What a node is started with, beside settings and identity.
#[derive(Debug)]
pub struct Environment {
    /// The sockets under the mesh, and where their peers are served.
    pub shards: Shards,
    /// Where its local addresses are.
    pub host: Host,
    /// Everything random is drawn from it; new at every start.
    pub seed: [u8; 32],
    /// Above that of every earlier start.
    pub generation: u64,
    /// Nodes to announce to, those of the settings included.
    pub seeds: Vec<NamedSeed>,
    /// What an earlier process saved.
    pub directory: Option<Vec<u8>>,
    /// What the authority has taken back, as far as this node knew.
    pub revocations: Revocations,
    /// Where the admin server answers HTTP, for the status.
    pub admin_http: Option<SocketAddr>,
}

/// See the module's description.
#[derive(Debug)]
pub struct Node {
    mesh: Mesh,
    sessions: Sessions,
    handle: Handle,
    routes: BTreeMap<ServiceName, watch::Receiver<Arc<Route>>>,
    pub(crate) controls: Controls,
    leaving: watch::Sender<bool>,
    revocations: watch::Receiver<Revocations>,
    own: watch::Receiver<Arc<Credential>>,
    secrets: watch::Receiver<Option<MeshSecrets>>,
    keys: watch::Receiver<Option<Next>>,
    suspected: broadcast::Sender<NodeId>,
    tasks: JoinSet<()>,
}

impl Node {
    /// Starts it, on the runtime this is called in.
    ///
    /// # Errors
    /// An address cannot be bound, a file the settings name does not serve, or the identity is not
    /// valid now.
    pub fn start(
        settings: &Settings,
        identity: &Identity,
        env: Environment,
    ) -> Result<Self, Error> {
        let Environment { shards, host, seed, generation, seeds, .. } = env;
        let (seeds, seed_names) = seeds::split(seeds);
        let [mesh_seed, core_seed] = assemble::two_seeds(seed);
        let started = assemble::start_mesh(settings, identity, shards, mesh_seed)?;
        let (mesh, Incoming { events, streams, others }) = started;
        let sessions = Sessions::within(descriptors::for_sessions(&host));
        let mut services = Services::bind(&host, settings, services::key)?;
        let (credential, facts) = (&identity.credential, services.facts(settings));
        let reporter = reporter(settings, credential, &mesh, env.admin_http, &sessions, facts);
        let sources = sources(settings, &reporter, &host);

        let (handle, questions) = Handle::new();
        let (orders, orders_receiver) = mpsc::channel(MAX_ORDERS);
        let (findings, findings_receiver) = mpsc::channel(MAX_FINDINGS);
        let (offers, offers_receiver) = watch::channel(Arc::new(assemble::offers(settings)));
        let (leaving, leaving_receiver) = watch::channel(false);
        let (revoked, revocations) = watch::channel(env.revocations.clone());
        let (renewed, own) = watch::channel(Arc::new(credential.clone()));
        let (rotating, secrets) = Rotating::new(identity.secrets.clone());
        let (succeeding, keys) = Succeeding::new();
        let mut driver = Driver {
            core: assemble::build_core(settings, identity, generation, core_seed, None),
            mesh: mesh.clone(),
            events,
            questions,
            orders: orders_receiver,
            findings: findings_receiver,
            routes: BTreeMap::new(),
            probers: assemble::probers(&host, settings, Prober::at_start)?,
            seeds: BTreeMap::new(),
            seed_names,
            sessions: sessions.clone(),
            load: crate::health::load::Load::default(),
            deliveries: BTreeMap::new(),
            cut_windows: assemble::cut_windows(settings),
            reporter,
            refused: watch::Sender::new(None),
            budgets: LogBudgets::new(clock::now()),
            revoked,
            own: renewed,
            rotating,
            succeeding,
            suspected: broadcast::Sender::new(MAX_SUSPICIONS),
        };
        take_up(env.revocations, env.directory.as_deref(), &mut driver);
        locate(settings, &mut driver, &seeds);

        let context = Context { mesh: mesh.clone(), host, sessions: sessions.clone(), findings };
        let (limits, listeners) = services.serve(settings, &context, &mut driver);
        let watched = (own.clone(), offers_receiver, leaving_receiver);
        let egress =
            egress(settings, &context, &driver.reporter.audit, watched, revocations.clone());
        let (routes, suspected) = (subscribe(&driver.routes), driver.suspected.clone());
        let mut tasks = serve_streams(&egress, streams, others);
        tasks.spawn(driver.run());
        let (advertise, fallbacks) = follow(settings, seeds, sources, &orders, &mut tasks);
        let controls =
            Controls { orders, context, limits, listeners, offers, advertise, fallbacks };
        Ok(Self {
            mesh,
            sessions,
            handle,
            routes,
            controls,
            leaving,
            revocations,
            own,
            secrets,
            keys,
            suspected,
            tasks,
        })
    }

    /// Asks it.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Its mesh.
    pub fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// The route of a service, and every later one; none for a service that the settings lack.
    pub fn route(&self, service: &ServiceName) -> Option<watch::Receiver<Arc<Route>>> {
        self.routes.get(service).cloned()
    }

    /// What the authority has taken back, and every later state of that.
    pub fn revocations(&self) -> watch::Receiver<Revocations> {
        self.revocations.clone()
    }

    /// This node's own credential, and every later one.
    pub fn credential(&self) -> watch::Receiver<Arc<Credential>> {
        self.own.clone()
    }

    /// The members that it finds silent from now on, each when it begins to suspect it. At most 64
    /// wait for a receiver, which learns how many it has missed.
    pub fn suspicions(&self) -> broadcast::Receiver<NodeId> {
        self.suspected.subscribe()
    }

    /// New secrets of the mesh, to be kept and then ordered.
    pub(crate) fn offered_secrets(&self) -> watch::Receiver<Option<MeshSecrets>> {
        self.secrets.clone()
    }

    /// New keys of this node, to be kept and then ordered.
    pub(crate) fn offered_keys(&self) -> watch::Receiver<Option<Next>> {
        self.keys.clone()
    }

    /// Sessions that are open, of all kinds.
    pub fn open_sessions(&self) -> u64 {
        self.sessions.count()
    }

    /// What the next start wants to know; `None` when the node is about to end.
    pub async fn snapshot(&self) -> Option<Snapshot> {
        snapshot(&self.controls.orders).await
    }

    /// Puts into force what of `new` can change in a running node, as after a SIGHUP; what is in
    /// force then, which is what the next reload begins from.
    ///
    /// # Errors
    /// A file that the settings name does not serve. Nothing has changed then.
    pub async fn reload(&self, old: Settings, new: Settings) -> Result<Settings, Error> {
        let mut reload = Reload::new(old);
        reload.apply(new, &self.controls).await?;
        Ok(reload.into_settings())
    }

    /// Says goodbye and takes no new sessions of other nodes. Resolves when all sessions have
    /// ended, or with `over`. Clients of this node are served until [`Node::close`].
    pub async fn leave(&mut self, over: impl Future<Output = ()>) {
        self.leaving.send_replace(true);
        let (left, has_left) = oneshot::channel();
        if self.controls.orders.send(Order::Leave(left)).await.is_ok() {
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
                    info!(open, "the drain time is over: open sessions are reset");
                }
            }
        };
        tokio::join!(drained, sleep(FAREWELL));
    }

    /// Resets the clients' sessions and takes no more, without a goodbye: nobody listens.
    pub async fn abandon(&mut self) {
        self.leaving.send_replace(true);
        let listeners = self.controls.listeners.get_mut();
        listeners.expect("no holder of this lock can panic").shutdown().await;
    }

    /// Tells all peers and ends, the local addresses last: a client that is refused gives up sooner
    /// than one that is reset.
    pub async fn close(mut self) {
        self.mesh.close().await;
        self.tasks.shutdown().await;
        let listeners = self.controls.listeners.into_inner();
        listeners.expect("no holder of this lock can panic").shutdown().await;
    }
}

/// Who serves the streams of others.
fn egress(
    settings: &Settings,
    context: &Context,
    audit: &Audit,
    (own, offers, leaving): (
        watch::Receiver<Arc<Credential>>,
        watch::Receiver<Arc<Offers>>,
        watch::Receiver<bool>,
    ),
    revoked: watch::Receiver<Revocations>,
) -> Egress {
    let max_relayed = u64::from(settings.mesh.max_relayed);
    let (context, audit) = (context.clone(), audit.clone());
    Egress { context, own, audit, offers, revoked, max_relayed, leaving }
}

/// Goes on from what an earlier process knew.
fn take_up(revocations: Revocations, directory: Option<&[u8]>, driver: &mut Driver) {
    // First: they may cover what is in the directory.
    driver.mesh.set_revocations(&revocations);
    driver.core.restore_revocations(revocations, clock::now());
    restore(directory, &mut driver.core);
}

/// Who answers questions about the node.
fn reporter(
    settings: &Settings,
    credential: &Credential,
    mesh: &Mesh,
    admin_http: Option<SocketAddr>,
    sessions: &Sessions,
    services: BTreeMap<ServiceName, ServiceFacts>,
) -> Reporter {
    let reporter = Reporter {
        me: report::of_credential(credential),
        credential: credential.clone(),
        started: clock::now(),
        mesh_listen: mesh.local_addr(),
        admin_http,
        sessions: sessions.clone(),
        audit: Audit::default(),
        duplicates: Duplicates::default(),
        reach: Reach::default(),
        floods: Floods::new(clock::now()),
        crowding: CrowdingLog::default(),
        authority_key: Some(state::authority_key_in(&settings.state_dir)),
        services,
        rosters: BTreeMap::new(),
        former_key: None,
        needs_restart: Vec::new(),
        is_leaving: false,
    };
    announce_start(&reporter);
    reporter
}

/// Serves the streams of all peers, those of other shards on their threads.
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

/// The receiving ends of all routes.
fn subscribe(
    routes: &BTreeMap<ServiceName, watch::Sender<Arc<Route>>>,
) -> BTreeMap<ServiceName, watch::Receiver<Arc<Route>>> {
    routes.iter().map(|(name, route)| (name.clone(), route.subscribe())).collect()
}

/// As [`Node::snapshot`].
pub(crate) async fn snapshot(orders: &mpsc::Sender<Order>) -> Option<Snapshot> {
    let (answer, snapshot) = oneshot::channel();
    orders.send(Order::Snapshot(answer)).await.ok()?;
    snapshot.await.ok()
}

/// Begins to look up, again and again, the names in the settings and in the seeds, and the
/// cluster's lists of apiservers.
fn follow(
    settings: &Settings,
    seeds: Vec<Seed>,
    sources: Vec<(ServiceName, Source)>,
    orders: &mpsc::Sender<Order>,
    tasks: &mut JoinSet<()>,
) -> (watch::Sender<Vec<Endpoint>>, watch::Sender<Fallbacks>) {
    let (advertise, advertised) = watch::channel(settings.mesh.advertise.clone());
    tasks.spawn(endpoints::follow(seeds, advertised, orders.clone()));
    let (fallbacks, wanted) = watch::channel(fallback::of(settings));
    tasks.spawn(fallback::follow(wanted, orders.clone()));
    roster::start(sources, orders, tasks);
    (advertise, fallbacks)
}

/// Where the cluster's own lists are read, for the services that have a kubeconfig for it.
fn sources(settings: &Settings, reporter: &Reporter, host: &Host) -> Vec<(ServiceName, Source)> {
    let each = settings.services.iter().filter_map(|(name, service)| {
        let kubeconfig = service.cluster_kubeconfig.clone()?;
        let local = *reporter.services.get(name)?.listen.first()?;
        Some((name.clone(), Source { host: host.clone(), local, kubeconfig }))
    });
    each.collect()
}

fn announce_start(reporter: &Reporter) {
    let me = &reporter.me;
    info!(
        name = %me.name, site = %me.site, node = %me.node.short(), mesh = %reporter.mesh_listen,
        version = env!("CARGO_PKG_VERSION"), "started"
    );
    reporter.services.iter().for_each(|(service, facts)| facts.announce(service));
}

/// Tells the core where this node and its seeds are, before the first turn of the loop. Names are
/// left to the task that follows them: a resolver may be slow.
fn locate(settings: &Settings, driver: &mut Driver, seeds: &[Seed]) {
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
