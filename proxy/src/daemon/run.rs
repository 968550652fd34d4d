//! Builds the daemon's parts, joins them, and takes them apart again.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use meshport_config::{
    Credential, DiscoverySettings, NodeId, Role, Seed, ServiceName, ServiceSettings, Settings,
};
use meshport_discovery::{DiscoveryConfig, LocalNode};
use meshport_mesh::{Incoming, Mesh, MeshConfig, UdpOuter};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::Error;
use crate::admin::AdminServer;
use crate::core::node::{CoreConfig, NodeCore, ServiceConfig};
use crate::core::route::{Policy, Route};

use super::driver::{Driver, Order};
use super::egress::{Egress, Offers};
use super::endpoints;
use super::probe::Prober;
use super::reload::Reload;
use super::report::{self, Reporter, ServiceFacts};
use super::session::{Ingress, SessionLimits};
use super::sessions::{Sessions, Side};
use super::state::{Identity, StateDir};
use super::{Handle, clock, listen};

/// How long open sessions may go on after SIGTERM. Long-lived watches never end by themselves, and
/// clients reconnect elsewhere within a second.
const DRAIN_TIME: Duration = Duration::from_secs(10);
/// How often a draining daemon looks whether its sessions have ended.
const DRAIN_LOOK: Duration = Duration::from_millis(50);
/// From one writing of the directory to the next.
const SAVE_INTERVAL: Duration = Duration::from_secs(60);
/// Orders on their way to the driver; they come from timers and people.
const MAX_ORDERS: usize = 16;

/// What `meshport run` was given.
#[derive(Debug)]
pub struct Options {
    /// The effective configuration.
    pub settings: Settings,
    /// The file it came from; read again on SIGHUP.
    pub config_path: Option<PathBuf>,
    /// Keys, credential and what was known before.
    pub state: StateDir,
}

/// The channels into the running parts.
pub(super) struct Controls {
    pub(super) orders: mpsc::Sender<Order>,
    pub(super) limits: BTreeMap<ServiceName, watch::Sender<Arc<SessionLimits>>>,
    pub(super) offers: watch::Sender<Arc<Offers>>,
}

/// Runs until SIGTERM or SIGINT, then drains and leaves.
///
/// # Errors
/// The state folder, a file the settings name, or an address does not serve. Once started it only
/// ends by a signal.
pub async fn run(options: Options) -> Result<(), Error> {
    let Options { settings, config_path, state } = options;
    let _lock = state.lock()?;
    let identity = state.identity(clock::wall())?;
    let generation = state.next_generation(clock::wall())?;
    warn_of_missing_roles(&settings, &identity.credential);

    let (mesh, incoming) = start_mesh(&settings, &identity)?;
    let sessions = Sessions::default();
    let core = build_core(&settings, &identity, generation)?;
    let (handle, questions) = Handle::new();
    let (orders, orders_receiver) = mpsc::channel(MAX_ORDERS);
    let (offers, offers_receiver) = watch::channel(Arc::new(offers(&settings)));
    let (leaving, leaving_receiver) = watch::channel(false);
    let admin = AdminServer::bind(&settings.admin.socket, settings.admin.http).await?;

    let mut tasks = JoinSet::new();
    let mut routes = BTreeMap::new();
    let mut limits = BTreeMap::new();
    let mut facts = BTreeMap::new();
    let mut listeners = JoinSet::new();
    for (name, service) in &settings.services {
        sessions.register(name);
        let (route, route_receiver) = watch::channel(Arc::<Route>::default());
        let (limit, limit_receiver) = watch::channel(Arc::new(session_limits(service)));
        let bound =
            service.listen.iter().map(|at| listen::bind(*at)).collect::<Result<Vec<_>, _>>()?;
        let listen = bound.iter().filter_map(|listener| listener.local_addr().ok()).collect();
        let id = (identity.credential.node, name.clone());
        let ingress = Arc::new(Ingress::new(
            id,
            mesh.clone(),
            route_receiver,
            limit_receiver,
            sessions.clone(),
        ));
        for listener in bound {
            listeners.spawn(listen::accept(listener, ingress.clone()));
        }
        routes.insert(name.clone(), route);
        limits.insert(name.clone(), limit);
        let origin = service.origin.as_ref().map(ToString::to_string);
        facts.insert(name.clone(), ServiceFacts { listen, policy: policy(service), origin });
    }

    let reporter = Reporter {
        me: report::of_credential(&identity.credential),
        credential: identity.credential.clone(),
        started: clock::now(),
        mesh_listen: mesh.local_addr(),
        admin_http: admin.http_addr(),
        sessions: sessions.clone(),
        services: facts,
    };
    announce_start(&reporter);
    let Incoming { events, streams } = incoming;
    let egress = Egress {
        me: identity.credential.node,
        mesh: mesh.clone(),
        sessions: sessions.clone(),
        offers: offers_receiver,
        leaving: leaving_receiver,
    };
    tasks.spawn(egress.run(streams));
    let mut driver = Driver {
        core,
        mesh: mesh.clone(),
        events,
        questions,
        orders: orders_receiver,
        routes,
        probers: probers(&settings)?,
        sessions: sessions.clone(),
        reporter,
    };
    restore(&state, &mut driver.core);
    let seeds = all_seeds(&settings, &state)?;
    place(&settings, &mut driver, &seeds).await;
    tasks.spawn(driver.run());
    tasks.spawn(endpoints::follow_seeds(seeds, orders.clone()));
    tasks.spawn(save_directory(state.clone(), orders.clone()));
    let (stop_admin, admin_stopped) = oneshot::channel::<()>();
    let admin = tokio::spawn(admin.serve(handle, async {
        let _ = admin_stopped.await;
    }));

    let controls = Controls { orders: orders.clone(), limits, offers };
    wait_for_end(Reload::new(settings, config_path), controls).await?;

    info!("leaving: no new sessions; open ones may go on for {} s", DRAIN_TIME.as_secs());
    leaving.send_replace(true);
    let (left, has_left) = oneshot::channel();
    if orders.send(Order::Leave(left)).await.is_ok() {
        let _ = has_left.await;
    }
    drain(&sessions).await;
    listeners.shutdown().await;
    save(&state, &orders).await;
    mesh.close().await;
    tasks.shutdown().await;
    let _ = stop_admin.send(());
    let _ = admin.await;
    info!("stopped");
    Ok(())
}

fn start_mesh(settings: &Settings, identity: &Identity) -> Result<(Mesh, Incoming), Error> {
    let address = settings.mesh.listen;
    let socket = UdpOuter::bind(address).map_err(|error| Error::Io {
        what: format!("bind the mesh to UDP {address} (mesh.listen)"),
        source: std::io::Error::other(error),
    })?;
    let config = MeshConfig {
        mtu: settings.mesh.mtu,
        keepalive: settings.mesh.keepalive,
        ..MeshConfig::default()
    };
    let mesh_identity = meshport_mesh::Identity {
        key: identity.node_key.clone(),
        credential: identity.credential.clone(),
        secret: identity.secret.clone(),
    };
    Ok(Mesh::start(mesh_identity, config, Arc::new(socket), seed()?, clock::wall)?)
}

fn build_core(
    settings: &Settings,
    identity: &Identity,
    generation: u64,
) -> Result<NodeCore, Error> {
    let me = LocalNode {
        credential: identity.credential.clone(),
        record_key: identity.record_key.clone(),
    };
    let config = core_config(settings);
    Ok(NodeCore::new(config, me, generation, seed()?, clock::now()))
}

/// The pure part of the settings.
pub(crate) fn core_config(settings: &Settings) -> CoreConfig {
    let service = |(name, service): (&ServiceName, &ServiceSettings)| {
        let health = service.origin.as_ref().map(|_| (&service.health).into());
        (name.clone(), ServiceConfig { policy: policy(service), health })
    };
    CoreConfig {
        discovery: discovery_config(&settings.discovery),
        services: settings.services.iter().map(service).collect(),
    }
}

fn discovery_config(settings: &DiscoverySettings) -> DiscoveryConfig {
    DiscoveryConfig {
        probe_interval: settings.probe_interval,
        probe_timeout: settings.probe_timeout,
        suspicion: settings.suspicion,
        path_probe_active: settings.path_probe_active,
        path_probe_idle: settings.path_probe_idle,
        sync_interval: settings.sync_interval,
        ..DiscoveryConfig::default()
    }
}

pub(super) fn policy(service: &ServiceSettings) -> Policy {
    match service.policy {
        meshport_config::Policy::Nearest => {
            Policy::Nearest { band: service.band, band_percent: u32::from(service.band_percent) }
        }
        meshport_config::Policy::Spread => Policy::Spread,
        meshport_config::Policy::Pinned => {
            Policy::Pinned(service.pinned.iter().map(ToString::to_string).collect())
        }
    }
}

pub(super) fn session_limits(service: &ServiceSettings) -> SessionLimits {
    SessionLimits {
        connect_timeout: service.connect_timeout,
        hold: service.hold,
        max_sessions: u64::from(service.max_sessions),
        own: service.origin.as_ref().map(ToString::to_string),
    }
}

pub(super) fn offers(settings: &Settings) -> Offers {
    let services = settings.services.iter();
    services.filter_map(|(name, s)| Some((name.clone(), s.origin.as_ref()?.to_string()))).collect()
}

fn probers(settings: &Settings) -> Result<BTreeMap<ServiceName, Prober>, Error> {
    let services = settings.services.iter();
    let offered = services.filter_map(|(name, s)| Some((name, s.origin.as_ref()?, &s.health)));
    offered
        .map(|(name, origin, health)| {
            Ok((name.clone(), Prober::new(origin.to_string(), health.clone())?))
        })
        .collect()
}

/// A service that is offered without the role for it is ignored by every other node: say so here,
/// where it can be mended.
fn warn_of_missing_roles(settings: &Settings, credential: &Credential) {
    for (name, service) in &settings.services {
        if service.origin.is_some() && !credential.roles.contains(&Role::Origin(name.clone())) {
            warn!(
                service = %name,
                "this node's credential lacks the role origin:{name}, so other nodes will ignore \
                 its offer; join again with an invite that has it"
            );
        }
    }
}

fn announce_start(reporter: &Reporter) {
    let me = &reporter.me;
    info!(
        name = %me.name, site = %me.site, node = %me.node.short(), mesh = %reporter.mesh_listen,
        version = env!("CARGO_PKG_VERSION"), "started"
    );
    for (service, facts) in &reporter.services {
        for address in &facts.listen {
            info!(%service, %address, "clients connect here");
        }
    }
}

fn all_seeds(settings: &Settings, state: &StateDir) -> Result<Vec<Seed>, Error> {
    let mut seeds = settings.mesh.seeds.clone();
    for seed in state.seeds()? {
        if !seeds.iter().any(|known| known.node == seed.node) {
            seeds.push(seed);
        }
    }
    Ok(seeds)
}

/// Tells the core where this node and its seeds are, before the first turn of the loop.
async fn place(settings: &Settings, driver: &mut Driver, seeds: &[Seed]) {
    let mut resolved: Vec<(NodeId, Vec<SocketAddr>)> = Vec::new();
    for seed in seeds {
        // Names are left to the task that follows them: a resolver may be slow.
        let plain = seed.endpoints.iter().filter_map(meshport_config::Endpoint::socket_addr);
        resolved.push((seed.node, plain.collect()));
    }
    let own = if settings.mesh.advertise.is_empty() {
        endpoints::guess(driver.mesh.local_addr(), &resolved)
    } else {
        endpoints::resolve(&settings.mesh.advertise).await
    };
    driver.obey(Order::Endpoints(own));
    driver.obey(Order::Seeds(resolved));
}

fn restore(state: &StateDir, core: &mut NodeCore) {
    let taken = match state.directory() {
        Ok(Some(bytes)) => core.restore(&bytes, clock::now(), clock::wall()),
        Ok(None) => return,
        Err(error) => {
            warn!(%error, "starting without the saved directory; seeds will fill it");
            return;
        }
    };
    match taken {
        Ok(nodes) => info!(nodes, "took up the saved directory"),
        Err(error) => warn!(%error, "the saved directory is damaged; seeds will fill it"),
    }
}

async fn save_directory(state: StateDir, orders: mpsc::Sender<Order>) {
    loop {
        sleep(SAVE_INTERVAL).await;
        save(&state, &orders).await;
    }
}

async fn save(state: &StateDir, orders: &mpsc::Sender<Order>) {
    let (answer, snapshot) = oneshot::channel();
    if orders.send(Order::Snapshot(answer)).await.is_err() {
        return;
    }
    let Ok(bytes) = snapshot.await else { return };
    let state = state.clone();
    // fsync takes milliseconds and must not hold up the data path.
    let saved = tokio::task::spawn_blocking(move || state.store_directory(&bytes)).await;
    if let Ok(Err(error)) = saved {
        warn!(%error, "cannot save the directory; the next start relies on the seeds");
    }
}

async fn wait_for_end(mut reload: Reload, controls: Controls) -> Result<(), Error> {
    let listen = |kind| signal(kind).map_err(Error::io("listen for signals"));
    let mut terminate = listen(SignalKind::terminate())?;
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut hangup = listen(SignalKind::hangup())?;
    loop {
        tokio::select! {
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
            _ = hangup.recv() => reload.run(&controls).await,
        }
    }
}

/// Waits for the open sessions to end, for a bounded time or until a second signal.
async fn drain(sessions: &Sessions) {
    let over = async {
        while sessions.count_all(Side::Client) + sessions.count_all(Side::Served) > 0 {
            sleep(DRAIN_LOOK).await;
        }
    };
    let again = async {
        let Ok(mut terminate) = signal(SignalKind::terminate()) else { return };
        let Ok(mut interrupt) = signal(SignalKind::interrupt()) else { return };
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    tokio::select! {
        ended = timeout(DRAIN_TIME, over) => if ended.is_err() {
            warn!("sessions are still open after the drain time; they are reset now");
        },
        () = again => warn!("a second signal: open sessions are reset now"),
    }
}

fn seed() -> Result<[u8; 32], Error> {
    let mut seed = [0; 32];
    rand_core::RngCore::try_fill_bytes(&mut rand_core::OsRng, &mut seed).map_err(|error| {
        let source = std::io::Error::other(error.to_string());
        Error::Io { what: "draw random bytes".into(), source }
    })?;
    Ok(seed)
}
