//! The local side of services: binds and serves their addresses, at startup and while the node
//! runs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use meshport_config::{ServiceName, ServiceSettings, Settings};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::info;

use crate::Error;
use meshport_core::route::Route;

use crate::driver::Driver;
use crate::driver::commands::{Addition, Command};
use crate::health::probe::Prober;
use crate::node::assemble;
use crate::node::controls::{Controls, Limits, Listeners, lock};
use crate::report::ServiceFacts;
use crate::sessions::claim::{Claim, IfTaken};
use crate::sessions::ingress::{Context, Ingress};
use crate::sessions::listen;
use crate::tcp::Host;

/// The setting with a service's local addresses.
pub(crate) fn key(service: &ServiceName) -> String {
    format!("service.{service}.listen")
}

/// The local addresses of all services, bound before anything starts: if one cannot be bound,
/// startup fails. Only an address in use by another process is retried later.
pub(crate) struct Services {
    claims: BTreeMap<ServiceName, Vec<Claim>>,
}

impl Services {
    /// `said` names the source of a service's addresses, for error messages.
    pub(crate) fn bind(
        host: &Host,
        settings: &Settings,
        if_taken: IfTaken,
        said: impl Fn(&ServiceName) -> String,
    ) -> Result<Self, Error> {
        let mut claims = BTreeMap::new();
        for (name, service) in &settings.services {
            let all = listen::bind_all(host, &service.listen, if_taken);
            let all = all.map_err(|error| match error {
                Error::Io { what, source } => {
                    Error::Io { what: format!("{what} ({})", said(name)), source }
                }
                error => error,
            });
            claims.insert(name.clone(), all?);
        }
        Ok(Self { claims })
    }

    /// Logs where clients connect.
    pub(crate) fn announce(&self) {
        for (service, claims) in &self.claims {
            for claim in claims.iter().filter(|it| matches!(it, Claim::Bound(_))) {
                if let Some(address) = claim.address() {
                    info!(%service, %address, "clients connect here");
                }
            }
        }
    }

    pub(crate) fn facts(&self, settings: &Settings) -> BTreeMap<ServiceName, ServiceFacts> {
        let of = |(name, service): (&ServiceName, &ServiceSettings)| {
            let claims = self.claims.get(name).into_iter().flatten();
            let facts = ServiceFacts {
                listen: claims.filter_map(Claim::address).collect(),
                policy: service.into(),
                origin: service.origin.as_ref().map(ToString::to_string),
                limits: None,
            };
            (name.clone(), facts)
        };
        settings.services.iter().map(of).collect()
    }

    /// Starts accepting; the driver learns where to publish routes.
    pub(crate) fn serve(
        &mut self,
        settings: &Settings,
        context: &Context,
        driver: &mut Driver,
    ) -> (Limits, Listeners) {
        let (mut limits, mut listeners) = (BTreeMap::new(), JoinSet::new());
        for (name, service) in &settings.services {
            context.sessions.register(name);
            let route = driver.core.route(name).cloned().unwrap_or_default();
            let (route, routes) = watch::channel::<Arc<Route>>(route);
            let (limit, current) = watch::channel(Arc::new(assemble::session_limits(
                service,
                settings,
                &context.host,
            )));
            if let Some(facts) = driver.state.services.get_mut(name) {
                facts.limits = Some(current.clone());
            }
            let ingress = Ingress::new(context.clone(), name.clone(), routes, current);
            let ingress = Arc::new(ingress);
            driver.state.process.exposures.add_service(&ingress);
            for claim in self.claims.remove(name).unwrap_or_default() {
                listeners.spawn(listen::serve(claim, ingress.clone()));
            }
            driver.outputs.routes.insert(name.clone(), route);
            limits.insert(name.clone(), limit);
        }
        (Mutex::new(limits), Mutex::new(listeners))
    }

    /// Starts accepting in a running node, whose driver gets the commands that are returned.
    pub(crate) fn join(
        mut self,
        settings: &Settings,
        controls: &Controls,
    ) -> Result<Vec<Command>, Error> {
        let (mut facts, mut probers) = (
            self.facts(settings),
            assemble::probers(&controls.context.host, settings, Prober::new)?,
        );
        self.announce();
        let mut commands = Vec::new();
        for (name, service) in &settings.services {
            controls.context.sessions.register(name);
            let (route, routes) = watch::channel::<Arc<Route>>(Arc::default());
            let (limit, current) = watch::channel(Arc::new(assemble::session_limits(
                service,
                settings,
                &controls.context.host,
            )));
            let mut facts = facts.remove(name).expect("there are facts for each");
            facts.limits = Some(current.clone());
            let ingress =
                Arc::new(Ingress::new(controls.context.clone(), name.clone(), routes, current));
            controls.exposed.0.add_service(&ingress);
            let mut listeners = lock(&controls.listeners);
            for claim in self.claims.remove(name).unwrap_or_default() {
                listeners.spawn(listen::serve(claim, ingress.clone()));
            }
            lock(&controls.limits).insert(name.clone(), limit);
            commands.push(Command::AddService(Box::new(Addition {
                name: name.clone(),
                config: assemble::service_config(service),
                facts,
                prober: probers.remove(name),
                route,
            })));
        }
        Ok(commands)
    }
}
