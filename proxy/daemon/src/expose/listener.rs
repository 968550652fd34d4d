//! One exposed listener, with any number of addresses.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use meshport_config::{ExposeSettings, ListenerName, ProxyHeader, ServiceName};
use meshport_core::expose::gate::{Gate, Rules, Source};
use meshport_core::expose::names::Names;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tracing::{info, warn};

use crate::audit::{Audit, ExposedBudgets};
use crate::clock;
use crate::sessions::claim::{Claim, Loss, Place};
use crate::sessions::client::ClientId;
use crate::sessions::exposed::ListenerTotals;
use crate::sessions::ingress::Ingress;
use crate::sessions::listen::LastLogged;
use crate::tcp::{Closed, Listener, store};

/// Connections younger than this may be short requests; older ones are long-lived.
const SHORT: Duration = Duration::from_secs(1);
/// Pause between attempts to accept.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// The settings of a listener; replaced as a whole on reload.
#[derive(Debug)]
pub(super) struct Config {
    pub(super) rules: Rules,
    pub(super) names: Names,
    pub(super) header: ProxyHeader,
    pub(super) idle_timeout: Option<Duration>,
    /// The services that its rules name.
    pub(super) ingresses: BTreeMap<ServiceName, Arc<Ingress>>,
}

impl Config {
    /// `all` has every service that the settings name.
    pub(super) fn new(
        settings: &ExposeSettings,
        all: &BTreeMap<ServiceName, Arc<Ingress>>,
    ) -> Self {
        let known = |name: &ServiceName| Some((name.clone(), all.get(name)?.clone()));
        Self {
            rules: settings.into(),
            names: settings.into(),
            header: settings.send_proxy,
            idle_timeout: settings.idle_timeout,
            ingresses: settings.services().filter_map(known).collect(),
        }
    }

    /// Resolves once none of its services has an origin that answers.
    async fn hopeless(&self) {
        loop {
            for ingress in self.ingresses.values() {
                ingress.hopeless().await;
            }
            if !self.ingresses.values().any(|ingress| ingress.is_usable()) {
                return;
            }
        }
    }

    /// Resolves once one of its services has an origin that answers.
    async fn hopeful(&self) {
        let mut each = JoinSet::new();
        for ingress in self.ingresses.values() {
            let ingress = ingress.clone();
            each.spawn(async move { ingress.hopeful().await });
        }
        // Fails only if the runtime is shutting down.
        let _ = each.join_next().await;
    }
}

/// See the module's doc.
#[derive(Debug)]
pub(super) struct Exposed {
    pub(super) name: ListenerName,
    pub(super) config: watch::Sender<Arc<Config>>,
    gate: Mutex<Gate>,
    pub(super) totals: Arc<ListenerTotals>,
    pub(super) audit: Audit,
    pub(super) budgets: ExposedBudgets,
    /// Its connections; they end with it.
    sessions: Mutex<JoinSet<()>>,
    /// Start and local address of each connection, oldest first.
    begun: Mutex<Begun>,
    /// One of them has ended.
    ended: Notify,
}

/// Bounded by the gate's slots.
#[derive(Debug, Default)]
struct Begun {
    next: u64,
    open: BTreeMap<u64, (Instant, IpAddr)>,
}

impl Exposed {
    pub(super) fn new(name: ListenerName, config: Config, audit: Audit) -> Self {
        let gate = Mutex::new(Gate::new(config.rules.clone()));
        Self {
            name,
            config: watch::Sender::new(Arc::new(config)),
            gate,
            totals: Arc::default(),
            audit,
            budgets: ExposedBudgets::new(clock::now()),
            sessions: Mutex::default(),
            begun: Mutex::default(),
            ended: Notify::new(),
        }
    }

    /// Applies new settings.
    pub(super) fn set_config(&self, config: Config) {
        self.gate().set_rules(config.rules.clone(), clock::now());
        self.config.send_replace(Arc::new(config));
    }

    /// The current settings.
    pub(super) fn config(&self) -> Arc<Config> {
        self.config.borrow().clone()
    }

    pub(super) fn gate(&self) -> MutexGuard<'_, Gate> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connections that hold a slot.
    pub(super) fn open(&self) -> u32 {
        self.gate().open()
    }

    /// Whether a connection younger than [`SHORT`] is open to that address of this node.
    pub(super) fn is_busy(&self, address: IpAddr, now: Instant) -> bool {
        let begun = self.begun();
        let is_young = |at: Instant| now.saturating_duration_since(at) < SHORT;
        begun.open.values().rev().take_while(|(at, _)| is_young(*at)).any(|(_, to)| *to == address)
    }

    fn begun(&self) -> MutexGuard<'_, Begun> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves a connection for as long as the listener lasts.
    pub(super) fn spawn(&self, session: impl Future<Output = ()> + Send + 'static) {
        self.sessions().spawn(session);
    }

    /// Ends all its connections.
    pub(super) fn close(&self) {
        self.sessions().abort_all();
    }

    fn sessions(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Frees what ended connections held.
    fn reap(&self) {
        let mut sessions = self.sessions();
        while sessions.try_join_next().is_some() {}
    }
}

/// A connection's slot in the gate; released on drop.
#[derive(Debug)]
pub(super) struct Permit {
    exposed: Arc<Exposed>,
    number: u64,
    pub(super) source: Option<Source>,
}

impl Permit {
    /// The slot of a connection to `local`.
    pub(super) fn new(exposed: &Arc<Exposed>, source: Option<Source>, local: IpAddr) -> Self {
        let mut begun = exposed.begun();
        let number = begun.next;
        begun.next += 1;
        begun.open.insert(number, (clock::now(), local.to_canonical()));
        drop(begun);
        Self { exposed: exposed.clone(), number, source }
    }

    /// Sets the client behind a load balancer.
    pub(super) fn identify(
        &mut self,
        client: IpAddr,
    ) -> Result<(), meshport_core::expose::gate::Refusal> {
        self.source = Some(self.exposed.gate().identify(client, clock::now())?);
        Ok(())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.exposed.begun().open.remove(&self.number);
        self.exposed.gate().leave(self.source);
        self.exposed.ended.notify_one();
    }
}

/// The state of an address, as clients see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Door {
    /// This node accepts them.
    Open,
    /// They are refused, since no origin answers.
    Closed,
    /// It is lost.
    Lost(Loss),
}

/// Accepts clients at one address for its current listener, until the next process takes over.
///
/// Like a service's own addresses, it is open only while one of its services may be reachable, so
/// that clients and load balancers switch to another node immediately. A lost address is opened
/// once possible.
pub(super) async fn serve(
    claim: Claim,
    place: Place,
    mut owner: watch::Receiver<Arc<Exposed>>,
    door: watch::Sender<Door>,
) {
    tokio::select! {
        biased;
        () = store::handed_over() => {}
        () = serve_at(claim, &place, &mut owner, &door) => {}
    }
}

async fn serve_at(
    claim: Claim,
    place: &Place,
    owner: &mut watch::Receiver<Arc<Exposed>>,
    door: &watch::Sender<Door>,
) {
    let address = place.address;
    let mut listener = match claim {
        Claim::Bound(listener) => listener,
        Claim::Taken(_) => {
            let listener = open(None, place, owner, door).await;
            let name = owner.borrow().name.clone();
            info!(listener = %name, %address, "exposed address open: accepting clients");
            listener
        }
    };
    loop {
        accept(&listener, owner).await;
        let name = owner.borrow().name.clone();
        let closed = listener.close();
        door.send_replace(Door::Closed);
        warn!(listener = %name, %address, "exposed address closed until an origin answers");
        listener = reopen(closed, place, owner, door).await;
        info!(listener = %name, %address, "exposed address open again: an origin answers");
    }
}

/// Accepts clients until none of its services may be reachable.
async fn accept(listener: &Listener, owner: &mut watch::Receiver<Arc<Exposed>>) {
    let mut logged = None;
    loop {
        let exposed = owner.borrow_and_update().clone();
        let mut configs = exposed.config.subscribe();
        let config = configs.borrow_and_update().clone();
        let mut hopeless = std::pin::pin!(config.hopeless());
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok(client) => {
                        exposed.meet(client);
                    }
                    Err(error) => {
                        if LastLogged::is_due(&mut logged, clock::now()) {
                            warn!(listener = %exposed.name, %error, "cannot accept connections; \
                                                                     retrying");
                        }
                        tokio::time::sleep(RETRY_INTERVAL).await;
                    }
                },
                () = exposed.ended.notified() => exposed.reap(),
                () = &mut hopeless => return,
                Ok(()) = owner.changed() => break,
                Ok(()) = configs.changed() => break,
            }
        }
    }
}

/// Waits until a service is reachable, then for the address if it was lost.
async fn reopen(
    closed: io::Result<Closed>,
    place: &Place,
    owner: &mut watch::Receiver<Arc<Exposed>>,
    door: &watch::Sender<Door>,
) -> Listener {
    loop {
        let exposed = owner.borrow_and_update().clone();
        let mut configs = exposed.config.subscribe();
        let config = configs.borrow_and_update().clone();
        tokio::select! {
            () = config.hopeful() => break,
            Ok(()) = owner.changed() => {}
            Ok(()) = configs.changed() => {}
        }
    }
    // If closing failed, the address was given up.
    open(closed.as_ref().ok(), place, owner, door).await
}

/// Opens the address once possible. Without a reserved socket it is bound again.
async fn open(
    closed: Option<&Closed>,
    place: &Place,
    owner: &watch::Receiver<Arc<Exposed>>,
    door: &watch::Sender<Door>,
) -> Listener {
    let address = place.address;
    let fails = |error: &io::Error, holder: Option<ClientId>| {
        let listener = owner.borrow().name.clone();
        if let Some(loss) = Loss::of(error) {
            door.send_replace(Door::Lost(loss));
            let holder = holder.map(tracing::field::display);
            let found = loss.finding("the exposed address", address.port());
            warn!(%listener, %address, holder, %error, "{found}");
        } else {
            door.send_replace(Door::Closed);
            warn!(%listener, %address, %error, "cannot open the exposed address; retrying");
        }
    };
    let listener = place.open(closed, fails).await;
    door.send_replace(Door::Open);
    listener
}
