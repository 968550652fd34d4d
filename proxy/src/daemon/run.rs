//! Joins the daemon's parts, waits for a signal, and takes them apart again.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use meshport_config::{Endpoint, NodeId, Seed, ServiceName, Settings};
use meshport_mesh::{Incoming, Mesh};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::Error;
use crate::admin::AdminServer;
use crate::core::node::NodeCore;
use crate::core::route::Route;

use super::driver::{Driver, Order, Snapshot};
use super::egress::{Egress, Offers};
use super::fallback::Fallbacks;
use super::log_budget::LogBudget;
use super::reload::Reload;
use super::report::{self, Reporter, ServiceFacts};
use super::session::{Ingress, MAX_FINDINGS, Place, SessionLimits};
use super::sessions::Sessions;
use super::state::{Identity, StateDir};
use super::{Handle, clock, descriptors, endpoints, fallback, listen, parts};

/// How long open sessions may go on after SIGTERM. Long-lived watches never end by themselves, and
/// clients reconnect elsewhere within a second.
const DRAIN_TIME: Duration = Duration::from_secs(10);
/// How long the daemon goes on at least after its goodbye, which is repeated until it is
/// acknowledged.
const FAREWELL: Duration = Duration::from_millis(500);
/// How often a draining daemon looks whether its sessions have ended.
const DRAIN_LOOK: Duration = Duration::from_millis(50);
/// From one writing of the directory to the next.
const SAVE_INTERVAL: Duration = Duration::from_secs(60);
/// Orders on their way to the driver; they come from timers and people.
const MAX_ORDERS: usize = 16;

/// Reads the effective configuration again.
pub type Reread = Box<dyn Fn() -> Result<Settings, Error> + Send>;

/// What `meshport run` was given.
pub struct Options {
    /// The effective configuration.
    pub settings: Settings,
    /// How to read it again on SIGHUP; `None` when it came from no file.
    pub reread: Option<Reread>,
    /// Keys, credential and what was known before.
    pub state: StateDir,
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { settings, state, .. } = self;
        f.debug_struct("Options")
            .field("settings", settings)
            .field("state", state)
            .finish_non_exhaustive()
    }
}

/// The channels into the running parts.
pub(super) struct Controls {
    pub(super) orders: mpsc::Sender<Order>,
    pub(super) limits: BTreeMap<ServiceName, watch::Sender<Arc<SessionLimits>>>,
    pub(super) offers: watch::Sender<Arc<Offers>>,
    pub(super) advertise: watch::Sender<Vec<Endpoint>>,
    pub(super) fallbacks: watch::Sender<Fallbacks>,
}

/// Runs until SIGTERM or SIGINT, then drains and leaves.
///
/// # Errors
/// The state folder, a file the settings name, or an address does not serve. Once started it only
/// ends by a signal.
pub async fn run(options: Options) -> Result<(), Error> {
    let Options { settings, reread, state } = options;
    let _lock = state.lock()?;
    let identity = state.identity(clock::wall())?;
    descriptors::raise(settings.services.values().map(|it| u64::from(it.max_sessions)).sum());
    let daemon = Daemon::start(&settings, &identity, state).await?;
    wait_for_end(Reload::new(settings, reread), &daemon.controls).await?;
    daemon.stop().await;
    Ok(())
}

/// Everything that runs.
struct Daemon {
    mesh: Mesh,
    sessions: Sessions,
    state: StateDir,
    controls: Controls,
    leaving: watch::Sender<bool>,
    /// Accept clients; the sessions end with them.
    listeners: JoinSet<()>,
    tasks: JoinSet<()>,
    admin: JoinHandle<()>,
    stop_admin: oneshot::Sender<()>,
}

impl Daemon {
    async fn start(
        settings: &Settings,
        identity: &Identity,
        state: StateDir,
    ) -> Result<Self, Error> {
        parts::warn_of_missing_roles(settings, &identity.credential);
        let generation = state.next_generation(clock::wall())?;
        let (mesh, Incoming { events, streams }) = parts::start_mesh(settings, identity)?;
        let sessions = Sessions::default();
        let mut services = Services::bind(settings)?;
        let admin = AdminServer::bind(&settings.admin.socket, settings.admin.http).await?;
        let reporter = Reporter {
            me: report::of_credential(&identity.credential),
            credential: identity.credential.clone(),
            started: clock::now(),
            mesh_listen: mesh.local_addr(),
            admin_http: admin.http_addr(),
            sessions: sessions.clone(),
            services: services.facts(settings),
        };
        announce_start(&reporter);

        let (handle, questions) = Handle::new();
        let (orders, orders_receiver) = mpsc::channel(MAX_ORDERS);
        let (findings, findings_receiver) = mpsc::channel(MAX_FINDINGS);
        let (offers, offers_receiver) = watch::channel(Arc::new(parts::offers(settings)));
        let (leaving, leaving_receiver) = watch::channel(false);
        let mut driver = Driver {
            core: parts::build_core(settings, identity, generation)?,
            mesh: mesh.clone(),
            events,
            questions,
            orders: orders_receiver,
            findings: findings_receiver,
            routes: BTreeMap::new(),
            probers: parts::probers(settings)?,
            seeds: BTreeMap::new(),
            sessions: sessions.clone(),
            cut_windows: parts::cut_windows(settings),
            reporter,
            refusals: LogBudget::new(clock::now()),
        };
        restore(&state, &mut driver.core);
        let seeds = parts::all_seeds(settings, &state)?;
        locate(settings, &mut driver, &seeds);

        let me = identity.credential.node;
        let mut listeners = JoinSet::new();
        let place = Place { me, mesh: mesh.clone(), sessions: sessions.clone(), findings };
        let limits = services.serve(settings, &place, &mut driver, &mut listeners);
        let egress = Egress {
            me,
            roles: identity.credential.roles.clone(),
            mesh: mesh.clone(),
            sessions: sessions.clone(),
            findings: place.findings.clone(),
            offers: offers_receiver,
            max_relayed: u64::from(settings.mesh.max_relayed),
            leaving: leaving_receiver,
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(egress.run(streams));
        tasks.spawn(driver.run());
        let (advertise, advertised) = watch::channel(settings.mesh.advertise.clone());
        tasks.spawn(endpoints::follow(seeds, advertised, orders.clone()));
        let (fallbacks, wanted) = watch::channel(fallback::of(settings));
        tasks.spawn(fallback::follow(wanted, orders.clone()));
        tasks.spawn(save_directory(state.clone(), orders.clone()));
        let (stop_admin, admin_stopped) = oneshot::channel::<()>();
        let admin = tokio::spawn(admin.serve(handle, async {
            let _ = admin_stopped.await;
        }));
        let controls = Controls { orders, limits, offers, advertise, fallbacks };
        Ok(Self { mesh, sessions, state, controls, leaving, listeners, tasks, admin, stop_admin })
    }

    /// Says goodbye, lets sessions end for a while, saves, and goes.
    async fn stop(mut self) {
        let drain_s = DRAIN_TIME.as_secs();
        info!(drain_s, "leaving: no new sessions for other nodes; open ones may go on for a while");
        self.leaving.send_replace(true);
        let orders = &self.controls.orders;
        let (left, has_left) = oneshot::channel();
        if orders.send(Order::Leave(left)).await.is_ok() {
            let _ = has_left.await;
        }
        tokio::join!(drain(&self.sessions), sleep(FAREWELL));
        self.listeners.shutdown().await;
        save(&self.state, orders).await;
        self.mesh.close().await;
        self.tasks.shutdown().await;
        let _ = self.stop_admin.send(());
        let _ = self.admin.await;
        info!("stopped");
    }
}

/// The local addresses of all services, bound before anything starts: what cannot be bound fails
/// the start as a whole.
struct Services {
    bound: BTreeMap<ServiceName, Vec<TcpListener>>,
}

impl Services {
    fn bind(settings: &Settings) -> Result<Self, Error> {
        let mut bound = BTreeMap::new();
        for (name, service) in &settings.services {
            bound.insert(name.clone(), listen::bind_all(&service.listen)?);
        }
        Ok(Self { bound })
    }

    fn facts(&self, settings: &Settings) -> BTreeMap<ServiceName, ServiceFacts> {
        let of = |(name, service): (&ServiceName, &meshport_config::ServiceSettings)| {
            let bound = self.bound.get(name).into_iter().flatten();
            let facts = ServiceFacts {
                listen: bound.filter_map(|listener| listener.local_addr().ok()).collect(),
                policy: parts::policy(service),
                origin: service.origin.as_ref().map(ToString::to_string),
            };
            (name.clone(), facts)
        };
        settings.services.iter().map(of).collect()
    }

    /// Starts accepting; the driver is told where to publish routes.
    fn serve(
        &mut self,
        settings: &Settings,
        place: &Place,
        driver: &mut Driver,
        listeners: &mut JoinSet<()>,
    ) -> BTreeMap<ServiceName, watch::Sender<Arc<SessionLimits>>> {
        let mut limits = BTreeMap::new();
        for (name, service) in &settings.services {
            driver.sessions.register(name);
            let route = driver.core.route(name).cloned().unwrap_or_default();
            let (route, routes) = watch::channel::<Arc<Route>>(route);
            let (limit, current) = watch::channel(Arc::new(parts::session_limits(service)));
            let ingress = Ingress::new(place.clone(), name.clone(), routes, current);
            let ingress = Arc::new(ingress);
            for listener in self.bound.remove(name).unwrap_or_default() {
                listeners.spawn(listen::serve(listener, ingress.clone()));
            }
            driver.routes.insert(name.clone(), route);
            limits.insert(name.clone(), limit);
        }
        limits
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

/// Tells the core where this node and its seeds are, before the first turn of the loop. Names are
/// left to the task that follows them: a resolver may be slow.
fn locate(settings: &Settings, driver: &mut Driver, seeds: &[Seed]) {
    let plain = seeds.iter().map(|seed| (seed.node, endpoints::plain(&seed.endpoints)));
    let plain: Vec<(NodeId, Vec<SocketAddr>)> = plain.collect();
    let own = if settings.mesh.advertise.is_empty() {
        endpoints::guess(driver.mesh.local_addr(), &plain)
    } else {
        endpoints::plain(&settings.mesh.advertise)
    };
    driver.obey(Order::Endpoints(own));
    driver.obey(Order::Seeds(plain));
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
    let Ok(Snapshot { directory, generation }) = snapshot.await else { return };
    let state = state.clone();
    // fsync takes milliseconds and must not hold up the data path.
    let saved = tokio::task::spawn_blocking(move || {
        state.keep_generation(generation)?;
        state.store_directory(&directory)
    });
    let saved = saved.await;
    if let Ok(Err(error)) = saved {
        warn!(%error, "cannot save the directory; the next start relies on the seeds");
    }
}

async fn wait_for_end(mut reload: Reload, controls: &Controls) -> Result<(), Error> {
    let listen = |kind| signal(kind).map_err(Error::io("listen for signals"));
    let mut terminate = listen(SignalKind::terminate())?;
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut hangup = listen(SignalKind::hangup())?;
    loop {
        tokio::select! {
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
            _ = hangup.recv() => reload.run(controls).await,
        }
    }
}

/// Waits for the open sessions to end, for a bounded time or until a second signal.
async fn drain(sessions: &Sessions) {
    let over = async {
        while sessions.count() > 0 {
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
            let open = sessions.count();
            info!(open, "the drain time is over: sessions that are still open are reset now");
        },
        () = again => info!("a second signal: open sessions are reset now"),
    }
}
