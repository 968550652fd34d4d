//! The local side of services: their addresses, bound and served, at the start of a node and while
//! it runs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use meshport_config::{ServiceName, ServiceSettings, Settings};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::info;

use crate::Error;
use meshport_core::node::ServiceConfig;
use meshport_core::route::Route;

use super::driver::{Driver, Order};
use super::node::Controls;
use super::probe::Prober;
use super::report::ServiceFacts;
use super::session::{Ingress, Place, SessionLimits};
use super::tcp::{Host, Listener};
use super::{listen, parts};

/// The key that says where clients of a service connect.
pub(super) fn key(service: &ServiceName) -> String {
    format!("service.{service}.listen")
}

/// What the sessions of each service may do.
pub(super) type Limits = Mutex<BTreeMap<ServiceName, watch::Sender<Arc<SessionLimits>>>>;
/// The tasks that accept clients; the sessions end with them.
pub(super) type Listeners = Mutex<JoinSet<()>>;

/// The local addresses of all services, bound before anything starts: what cannot be bound fails
/// the start as a whole.
pub(super) struct Services {
    bound: BTreeMap<ServiceName, Vec<Listener>>,
}

impl Services {
    /// `said` names what the addresses of a service come from, for the one who has to change it.
    pub(super) fn bind(
        host: &Host,
        settings: &Settings,
        said: impl Fn(&ServiceName) -> String,
    ) -> Result<Self, Error> {
        let mut bound = BTreeMap::new();
        for (name, service) in &settings.services {
            let listeners = listen::bind_all(host, &service.listen).map_err(|error| match error {
                Error::Io { what, source } => {
                    Error::Io { what: format!("{what} ({})", said(name)), source }
                }
                error => error,
            });
            bound.insert(name.clone(), listeners?);
        }
        Ok(Self { bound })
    }

    pub(super) fn facts(&self, settings: &Settings) -> BTreeMap<ServiceName, ServiceFacts> {
        let of = |(name, service): (&ServiceName, &ServiceSettings)| {
            let bound = self.bound.get(name).into_iter().flatten();
            let facts = ServiceFacts {
                listen: bound.filter_map(|listener| listener.local_addr().ok()).collect(),
                policy: service.into(),
                origin: service.origin.as_ref().map(ToString::to_string),
                limits: None,
            };
            (name.clone(), facts)
        };
        settings.services.iter().map(of).collect()
    }

    /// Starts accepting; the driver is told where to publish routes.
    pub(super) fn serve(
        &mut self,
        settings: &Settings,
        place: &Place,
        driver: &mut Driver,
    ) -> (Limits, Listeners) {
        let (mut limits, mut listeners) = (BTreeMap::new(), JoinSet::new());
        for (name, service) in &settings.services {
            place.sessions.register(name);
            let route = driver.core.route(name).cloned().unwrap_or_default();
            let (route, routes) = watch::channel::<Arc<Route>>(route);
            let (limit, current) = watch::channel(Arc::new(parts::session_limits(service)));
            if let Some(facts) = driver.reporter.services.get_mut(name) {
                facts.limits = Some(current.clone());
            }
            let ingress = Ingress::new(place.clone(), name.clone(), routes, current);
            let ingress = Arc::new(ingress);
            for listener in self.bound.remove(name).unwrap_or_default() {
                listeners.spawn(listen::serve(listener, ingress.clone()));
            }
            driver.routes.insert(name.clone(), route);
            limits.insert(name.clone(), limit);
        }
        (Mutex::new(limits), Mutex::new(listeners))
    }

    /// Starts accepting in a running node, whose driver gets the orders that are returned.
    pub(super) fn join(
        mut self,
        settings: &Settings,
        controls: &Controls,
    ) -> Result<Vec<Order>, Error> {
        let (mut facts, mut probers) =
            (self.facts(settings), parts::probers(&controls.place.host, settings, Prober::new)?);
        let mut orders = Vec::new();
        for (name, service) in &settings.services {
            controls.place.sessions.register(name);
            let (route, routes) = watch::channel::<Arc<Route>>(Arc::default());
            let (limit, current) = watch::channel(Arc::new(parts::session_limits(service)));
            let mut facts = facts.remove(name).expect("there are facts for each");
            facts.limits = Some(current.clone());
            facts.announce(name);
            let ingress =
                Arc::new(Ingress::new(controls.place.clone(), name.clone(), routes, current));
            let mut listeners = lock(&controls.listeners);
            for listener in self.bound.remove(name).unwrap_or_default() {
                listeners.spawn(listen::serve(listener, ingress.clone()));
            }
            lock(&controls.limits).insert(name.clone(), limit);
            orders.push(Order::Service(Box::new(Addition {
                name: name.clone(),
                config: parts::service_config(service),
                facts,
                cut_window: service.cut_window,
                prober: probers.remove(name),
                route,
            })));
        }
        Ok(orders)
    }
}

impl ServiceFacts {
    /// Says where its clients connect.
    pub(super) fn announce(&self, service: &ServiceName) {
        for address in &self.listen {
            info!(%service, %address, "clients connect here");
        }
    }
}

/// A service that a running node is to have.
#[derive(Debug)]
pub(super) struct Addition {
    name: ServiceName,
    config: ServiceConfig,
    facts: ServiceFacts,
    cut_window: Duration,
    prober: Option<Prober>,
    route: watch::Sender<Arc<Route>>,
}

impl Driver {
    /// Takes up one more service.
    pub(super) fn add_service(&mut self, addition: Addition, now: Instant) {
        let Addition { name, config, facts, cut_window, prober, route } = addition;
        if config.health.is_some() {
            parts::warn_of_missing_role(&name, &self.reporter.credential);
        }
        self.reporter.services.insert(name.clone(), facts);
        self.cut_windows.insert(name.clone(), cut_window);
        prober.and_then(|prober| self.probers.insert(name.clone(), prober));
        self.core.add_service(name.clone(), config, now);
        route.send_replace(self.core.route(&name).cloned().unwrap_or_default());
        self.routes.insert(name, route);
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no holder of this lock can panic")
}
