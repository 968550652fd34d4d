//! All exposed listeners of a node; they can change while it runs.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use meshport_config::counters::Counter;
use meshport_config::{ExposeSettings, ListenerName, ServiceName, Settings};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tracing::{info, warn};

use super::listener::{self, Config, Door, Exposed};
use crate::admin::api::ExposedStatus;
use crate::audit::Audit;
use crate::sessions::claim::{Claim, IfTaken, Loss, Place};
use crate::sessions::exposed::{ExposeCount, ListenerTotals, is_refusal};
use crate::sessions::ingress::Ingress;
use crate::tcp::Host;
use crate::{Error, clock};

/// The exposed listeners of a node. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Exposures(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    host: Host,
    audit: Audit,
    ingresses: Mutex<BTreeMap<ServiceName, Arc<Ingress>>>,
    running: Mutex<Running>,
}

#[derive(Debug, Default)]
struct Running {
    listeners: BTreeMap<ListenerName, Arc<Exposed>>,
    addresses: Vec<Address>,
}

/// An address that clients connect to.
#[derive(Debug)]
struct Address {
    name: ListenerName,
    /// The address as configured.
    asked: SocketAddr,
    bound: SocketAddr,
    door: watch::Receiver<Door>,
    /// The listener that serves its clients.
    owner: watch::Sender<Arc<Exposed>>,
    task: AbortHandle,
}

impl Address {
    /// Whether it is this configured address. Port 0 differs for each listener.
    fn is(&self, name: &ListenerName, asked: SocketAddr) -> bool {
        self.asked == asked && (asked.port() != 0 || self.name == *name)
    }

    /// Why it is lost, if it is.
    fn loss(&self) -> Option<Loss> {
        match *self.door.borrow() {
            Door::Lost(loss) => Some(loss),
            Door::Open | Door::Closed => None,
        }
    }
}

/// The listeners that new settings add, bound in advance so that applying the settings cannot fail.
#[derive(Debug, Default)]
pub(crate) struct Prepared(Vec<Bound>);

#[derive(Debug)]
struct Bound {
    name: ListenerName,
    /// The address as configured.
    place: Place,
    claim: Claim,
}

/// Ends the listeners and their sessions when dropped.
#[derive(Debug)]
pub(crate) struct ExposeOwner(pub(crate) Exposures);

impl Drop for ExposeOwner {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// The counters of one listener, for the metrics.
#[derive(Debug)]
pub(crate) struct ExposedCounts {
    pub(crate) name: ListenerName,
    pub(crate) open: u64,
    pub(crate) limit: u64,
    pub(crate) totals: Arc<ListenerTotals>,
}

impl Exposures {
    /// No listeners yet.
    pub(crate) fn new(host: Host, audit: Audit) -> Self {
        let (ingresses, running) = (Mutex::default(), Mutex::default());
        Self(Arc::new(Inner { host, audit, ingresses, running }))
    }

    /// Adds a service that listeners may use.
    pub(crate) fn add_service(&self, ingress: &Arc<Ingress>) {
        let mut all = self.0.ingresses.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(ingress.service.clone(), ingress.clone());
    }

    /// Whether short connections to that address of this node are open.
    pub(crate) fn is_busy(&self, address: IpAddr) -> bool {
        let now = clock::now();
        self.running().listeners.values().any(|exposed| exposed.is_busy(address, now))
    }

    /// Binds the addresses that `settings` add. Nothing has changed until [`Exposures::apply`].
    ///
    /// # Errors
    /// An address cannot be bound. `if_taken` decides whether that may be so for now.
    pub(crate) fn prepare(
        &self,
        settings: &Settings,
        if_taken: IfTaken,
    ) -> Result<Prepared, Error> {
        let running = self.running();
        let mut bound = Vec::new();
        for (name, exposed) in &settings.expose {
            for asked in &exposed.listen {
                if running.addresses.iter().any(|address| address.is(name, *asked)) {
                    continue;
                }
                // A virtual address may appear after the start; until then a finding reports it.
                let mut addresses = settings.virtual_addresses.values();
                let is_virtual = addresses.any(|it| it.address == asked.ip());
                let place = Place { host: self.0.host.clone(), address: *asked, is_virtual };
                let claim = place.claim(if_taken).map_err(|source| {
                    // At a reload, also if another listener of this node has the port's wildcard
                    // address, or has not released this one yet.
                    Error::Io { what: format!("listen on {asked} (expose.{name}.listen)"), source }
                })?;
                bound.push(Bound { name: name.clone(), place, claim });
            }
        }
        Ok(Prepared(bound))
    }

    /// Starts the listeners of `settings`, which were prepared; they end when the returned value is
    /// dropped.
    pub(crate) fn start(&self, prepared: Prepared, settings: &Settings) -> ExposeOwner {
        self.apply(prepared, settings);
        ExposeOwner(self.clone())
    }

    /// Applies `settings` with the listeners prepared for them.
    pub(crate) fn apply(&self, Prepared(bound): Prepared, settings: &Settings) {
        let services = self.0.ingresses.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut running = self.running();
        let Running { listeners, addresses } = &mut *running;
        for (name, it) in &settings.expose {
            warn_of(name, it);
            let config = Config::new(it, &services);
            match listeners.get(name) {
                Some(exposed) => exposed.set_config(config),
                None => {
                    let exposed = Exposed::new(name.clone(), config, self.0.audit.clone());
                    listeners.insert(name.clone(), Arc::new(exposed));
                }
            }
        }
        let is_wanted = |name: &ListenerName, address: &Address| {
            settings.expose.get(name).is_some_and(|it| it.listen.contains(&address.asked))
        };
        addresses.retain_mut(|address| {
            let mut names = settings.expose.keys();
            let owner =
                names.find(|name| is_wanted(name, address) && address.is(name, address.asked));
            let Some(owner) = owner else {
                address.task.abort();
                info!(listener = %address.name, address = %address.bound, "no longer exposed");
                return false;
            };
            if *owner != address.name {
                address.name = owner.clone();
                if let Some(exposed) = listeners.get(owner) {
                    address.owner.send_replace(exposed.clone());
                }
            }
            true
        });
        listeners.retain(|name, exposed| {
            let stays = settings.expose.contains_key(name);
            if !stays {
                exposed.close();
            }
            stays
        });
        for Bound { name, place, claim } in bound {
            if let Some(exposed) = listeners.get(&name) {
                addresses.extend(open(exposed, place, claim));
            }
        }
    }

    /// Stops accepting clients and ends all sessions.
    pub(crate) fn close(&self) {
        let Running { listeners, addresses } = std::mem::take(&mut *self.running());
        addresses.iter().for_each(|address| address.task.abort());
        listeners.values().for_each(|exposed| exposed.close());
    }

    /// The services that clients of the listeners use.
    pub(crate) fn services(&self) -> BTreeSet<ServiceName> {
        let running = self.running();
        let names = |exposed: &Arc<Exposed>| exposed.config().ingresses.keys().cloned().collect();
        running.listeners.values().flat_map::<Vec<ServiceName>, _>(names).collect()
    }

    /// Each listener, for the status.
    pub(crate) fn status(&self) -> Vec<ExposedStatus> {
        let running = self.running();
        let one = |exposed: &Arc<Exposed>| {
            let own = || running.addresses.iter().filter(|it| it.name == exposed.name);
            let behind = |door| own().filter(move |it| *it.door.borrow() == door);
            let refused = ExposeCount::ALL.iter().filter(|count| is_refusal(**count));
            let refused = refused
                .map(|count| (count.row().value.to_owned(), exposed.totals.counts.get(*count)));
            ExposedStatus {
                name: exposed.name.clone(),
                listen: own().map(|it| it.bound).collect(),
                closed: behind(Door::Closed).map(|it| it.bound).collect(),
                lost: own().filter(|it| it.loss().is_some()).map(|it| it.bound).collect(),
                services: exposed.config().ingresses.keys().cloned().collect(),
                sessions_open: exposed.open().into(),
                sessions_total: exposed.totals.counts.get(ExposeCount::Served),
                refused: refused.filter(|(_, count)| *count > 0).collect(),
            }
        };
        running.listeners.values().map(one).collect()
    }

    /// The lost addresses.
    pub(crate) fn lost(&self) -> Vec<(ListenerName, SocketAddr, Loss)> {
        let one = |it: &Address| Some((it.name.clone(), it.bound, it.loss()?));
        self.running().addresses.iter().filter_map(one).collect()
    }

    /// Each listener, for the metrics.
    pub(crate) fn counts(&self) -> Vec<ExposedCounts> {
        let one = |exposed: &Arc<Exposed>| ExposedCounts {
            name: exposed.name.clone(),
            open: exposed.open().into(),
            limit: exposed.config().rules.max_sessions().into(),
            totals: exposed.totals.clone(),
        };
        self.running().listeners.values().map(one).collect()
    }

    fn running(&self) -> MutexGuard<'_, Running> {
        self.0.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts to accept at an address.
fn open(exposed: &Arc<Exposed>, place: Place, claim: Claim) -> Option<Address> {
    let (asked, bound) = (place.address, claim.address()?);
    let owner = watch::Sender::new(exposed.clone());
    // If it cannot be opened, its task reports it as lost.
    let is_open = matches!(claim, Claim::Bound(_));
    let (sender, door) = watch::channel(if is_open { Door::Open } else { Door::Closed });
    let place = Place { address: bound, ..place };
    let serving = listener::serve(claim, place, owner.subscribe(), sender);
    let task = tokio::spawn(serving).abort_handle();
    if is_open {
        let services: Vec<String> =
            exposed.config().ingresses.keys().map(ToString::to_string).collect();
        info!(listener = %exposed.name, address = %bound, services = services.join(","), "exposed");
    }
    Some(Address { name: exposed.name.clone(), asked, bound, door, owner, task })
}

/// Warns of an `allow` list that admits no client.
fn warn_of(name: &ListenerName, settings: &ExposeSettings) {
    if let Some(doubt) = settings.doubt() {
        warn!(listener = %name, "allow under [[expose]] {name}: {doubt}");
    }
}

#[cfg(test)]
mod tests;
