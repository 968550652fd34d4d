//! SIGHUP: reads the configuration and the credential again, puts into force what can change in a
//! running daemon, and says what cannot.
//!
//! A file with problems changes nothing. No session is touched. What needs a restart is left as it
//! is, whole, and said again at every reload until the file agrees with what is in force.

use std::sync::Arc;

use meshport_config::{ServiceName, ServiceSettings, Settings};
use tracing::{error, info, warn};

use crate::Error;
use crate::admin::api::ReloadReport;

use super::clock;
use super::driver::{Instance, Order};
use super::fallback;
use super::node::Controls;
use super::parts::{offers, session_limits, warn_of_lists};
use super::probe::Prober;
use super::run::Reread;
use super::sandbox::Sandbox;
use super::state::StateDir;
use super::tcp::Host;
use crate::core::drift::DriftConfig;
use crate::core::route::Policy;

/// Remembers what is in force.
pub(super) struct Reload {
    settings: Settings,
    reread: Option<Reread>,
    /// Where the credential is read again; a node in a simulation has no folder.
    state: Option<StateDir>,
    sandbox: Option<Sandbox>,
}

impl Reload {
    pub(super) fn new(settings: Settings, reread: Option<Reread>, state: Option<StateDir>) -> Self {
        Self { settings, reread, state, sandbox: None }
    }

    /// The same in a process that can no longer read everything.
    pub(super) fn within(self, sandbox: Sandbox) -> Self {
        Self { sandbox: Some(sandbox), ..self }
    }

    /// Reads the credential and the file and applies them.
    pub(super) async fn run(&mut self, controls: &Controls) {
        match self.state.as_ref().map(|state| state.identity(clock::wall())) {
            Some(Ok(identity)) => {
                let order = Order::Credential(Box::new(identity.credential));
                let _ = controls.orders.send(order).await;
            }
            Some(Err(error)) => warn!(%error, "the credential in force stays"),
            None => {}
        }
        let read = self.read();
        let report = match read {
            Ok(new) => self.apply(new, controls).await,
            Err(error) => Err(error),
        };
        match report {
            Ok(report) => {
                info!(applied = report.applied.join(", "), "configuration reloaded");
                if !report.needs_restart.is_empty() {
                    let keys = report.needs_restart.join(", ");
                    warn!(keys, "changed in the file, but in force only after a restart");
                }
            }
            Err(error) => error!(%error, "configuration not reloaded; the old one stays in force"),
        }
    }

    fn read(&self) -> Result<Settings, Error> {
        let reread = self
            .reread
            .as_ref()
            .ok_or_else(|| Error::Usage("there is no configuration file to read again".into()))?;
        let settings = reread()?;
        if let Some(sandbox) = &self.sandbox {
            sandbox.admits(&settings)?;
        }
        Ok(settings)
    }

    /// What is in force.
    pub(super) fn into_settings(self) -> Settings {
        self.settings
    }

    /// Puts into force what can change in a running daemon.
    pub(super) async fn apply(
        &mut self,
        new: Settings,
        controls: &Controls,
    ) -> Result<ReloadReport, Error> {
        let (next, needs_restart) = in_force(&self.settings, &new);
        let mut report = ReloadReport { applied: Vec::new(), needs_restart };
        // Everything that can fail comes first, so that a reload happens whole or not at all.
        let mut orders = Vec::new();
        for (name, service) in &next.services {
            let old = self.settings.services.get(name);
            orders.extend(orders_for(&controls.host, name, old, service)?);
            if old != Some(service) {
                report.applied.push(format!("service.{name}"));
            }
        }
        for order in orders {
            let _ = controls.orders.send(order).await;
        }
        for (name, service) in &next.services {
            if let Some(limits) = controls.limits.get(name) {
                limits.send_replace(Arc::new(session_limits(service)));
            }
        }
        controls.offers.send_replace(Arc::new(offers(&next)));
        if next.mesh.advertise != self.settings.mesh.advertise {
            controls.advertise.send_replace(next.mesh.advertise.clone());
            report.applied.push("mesh.advertise".into());
        }
        let fallbacks = fallback::of(&next);
        controls.fallbacks.send_if_modified(|known| {
            let changed = *known != fallbacks;
            *known = fallbacks;
            changed
        });
        self.settings = next;
        warn_of_lists(&self.settings);
        Ok(report)
    }
}

/// What of `new` can be in force in a daemon that runs with `old`, and the keys for which it takes
/// a restart.
fn in_force(old: &Settings, new: &Settings) -> (Settings, Vec<String>) {
    let mut next = old.clone();
    let mut waiting = Vec::new();
    for (name, service) in &mut next.services {
        let Some(wanted) = new.services.get(name) else {
            waiting.push(format!("service.{name}"));
            continue;
        };
        let before = std::mem::replace(service, wanted.clone());
        if before.listen != wanted.listen {
            waiting.push(format!("service.{name}.listen"));
            service.listen = before.listen;
        }
        if before.cluster_kubeconfig != wanted.cluster_kubeconfig {
            waiting.push(format!("service.{name}.cluster-kubeconfig"));
            service.cluster_kubeconfig = before.cluster_kubeconfig;
        }
        // Becoming or ceasing to be an origin changes what the core is made of.
        if before.origin.is_some() != wanted.origin.is_some() {
            waiting.push(format!("service.{name}.origin"));
            service.origin = before.origin;
            service.allow = before.allow;
            service.health = before.health;
        }
    }
    let added = new.services.keys().filter(|name| !old.services.contains_key(*name));
    waiting.extend(added.map(|name| format!("service.{name}")));
    if new.mesh.advertise.is_empty() && !old.mesh.advertise.is_empty() {
        waiting.push("mesh.advertise".into());
    } else {
        next.mesh.advertise.clone_from(&new.mesh.advertise);
    }
    waiting.extend(fixed(old, new));
    (next, waiting)
}

/// What the driver has to do for a service. Its instance is asked in the new way even if no setting
/// differs: the files the settings name may.
fn orders_for(
    host: &Host,
    name: &ServiceName,
    old: Option<&ServiceSettings>,
    new: &ServiceSettings,
) -> Result<Vec<Order>, Error> {
    let mut orders = Vec::new();
    if old.map(Policy::from) != Some(Policy::from(new)) {
        orders.push(Order::Policy(name.clone(), new.into()));
    }
    if old.map(|old| old.cut_window) != Some(new.cut_window) {
        orders.push(Order::CutWindow(name.clone(), new.cut_window));
    }
    if old.map(DriftConfig::from) != Some(DriftConfig::from(new)) {
        orders.push(Order::Drift(name.clone(), new.into()));
    }
    if let Some(origin) = &new.origin {
        let address = origin.to_string();
        let prober = Prober::new(host.clone(), address.clone(), new.health.clone())?;
        let instance = Instance { address, health: (&new.health).into(), prober };
        orders.push(Order::Instance(name.clone(), instance));
    }
    Ok(orders)
}

/// Keys outside the services that differ and cannot change in a running daemon.
fn fixed(old: &Settings, new: &Settings) -> Vec<String> {
    let differs = [
        ("site", old.site != new.site),
        ("name", old.name != new.name),
        ("state-dir", old.state_dir != new.state_dir),
        ("sandbox", old.sandbox != new.sandbox),
        ("log", old.log != new.log),
        ("mesh.listen", old.mesh.listen != new.mesh.listen),
        ("mesh.seeds", old.mesh.seeds != new.mesh.seeds),
        ("mesh.mtu", old.mesh.mtu != new.mesh.mtu),
        ("mesh.keepalive", old.mesh.keepalive != new.mesh.keepalive),
        ("mesh.max-relayed", old.mesh.max_relayed != new.mesh.max_relayed),
        ("mesh.shards", old.mesh.shards != new.mesh.shards),
        ("admin", old.admin != new.admin),
        ("discovery", old.discovery != new.discovery),
    ];
    differs.iter().filter(|(_, differs)| *differs).map(|(key, _)| (*key).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> Settings {
        meshport_config::parse(text).expect("valid settings")
    }

    #[test]
    fn what_needs_a_restart_stays_as_it_is() {
        let old = settings("site = \"fra\"\n[service.kube-apiserver]\norigin = \"127.0.0.1:1\"\n");
        let new = settings(
            "site = \"ber\"\n[mesh]\nmtu = 1400\n\
             [service.kube-apiserver]\nhold = \"1s\"\nlisten = [\"127.0.0.1:1\"]\n\
             [service.other]\nlisten = [\"127.0.0.1:2\"]\n",
        );
        let (next, waiting) = in_force(&old, &new);
        let expected = [
            "service.kube-apiserver.listen",
            "service.kube-apiserver.origin",
            "service.other",
            "site",
            "mesh.mtu",
        ];
        assert_eq!(waiting, expected);
        let name = ServiceName::kube_apiserver();
        let (before, service) = (&old.services[&name], &next.services[&name]);
        assert_eq!((&service.origin, &service.listen), (&before.origin, &before.listen));
        assert_eq!(service.hold, new.services[&name].hold);
        assert_eq!((&next.site, next.services.len()), (&old.site, 1));
        // A file that agrees again has nothing waiting.
        let again = Settings { services: next.services.clone(), ..old.clone() };
        assert_eq!(in_force(&next, &again).1, Vec::<String>::new());
    }

    #[test]
    fn another_origin_and_its_probes_are_taken_up() {
        let old = settings("site = \"fra\"\n[service.kube-apiserver]\norigin = \"127.0.0.1:1\"\n");
        let new = settings("site = \"fra\"\n[service.kube-apiserver]\norigin = \"127.0.0.1:2\"\n");
        let (next, waiting) = in_force(&old, &new);
        assert!(waiting.is_empty());
        let name = ServiceName::kube_apiserver();
        let orders =
            orders_for(&Host::Kernel, &name, old.services.get(&name), &next.services[&name]);
        let orders = orders.expect("no file is named");
        let [Order::Instance(_, instance)] = orders.as_slice() else { panic!("{orders:?}") };
        assert_eq!(instance.address, "127.0.0.1:2");
        assert!(instance.health.asks_ready);
    }
}
