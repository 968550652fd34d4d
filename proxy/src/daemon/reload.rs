//! SIGHUP: reads the configuration again, puts into force what can change in a running daemon, and
//! says what cannot.
//!
//! A file with problems changes nothing. No session is touched.

use std::sync::Arc;

use meshport_config::{ServiceName, ServiceSettings, Settings};
use tracing::{error, info, warn};

use crate::Error;
use crate::admin::api::ReloadReport;

use super::driver::Order;
use super::endpoints;
use super::parts::{offers, policy, session_limits};
use super::probe::Prober;
use super::run::{Controls, Reread};

/// Remembers what is in force.
pub(super) struct Reload {
    settings: Settings,
    reread: Option<Reread>,
}

impl Reload {
    pub(super) fn new(settings: Settings, reread: Option<Reread>) -> Self {
        Self { settings, reread }
    }

    /// Reads the file and applies it.
    pub(super) async fn run(&mut self, controls: &Controls) {
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
        reread()
    }

    async fn apply(&mut self, new: Settings, controls: &Controls) -> Result<ReloadReport, Error> {
        let mut report = ReloadReport::default();
        // Everything that can fail comes first, so that a reload happens whole or not at all.
        let mut changed = Vec::new();
        for (name, service) in &new.services {
            match self.settings.services.get(name) {
                Some(old) if old != service => changed.push(change(name, old, service)?),
                Some(_) => {}
                None => report.needs_restart.push(format!("service.{name}")),
            }
        }
        for name in self.settings.services.keys().filter(|name| !new.services.contains_key(*name)) {
            report.needs_restart.push(format!("service.{name}"));
        }
        for Change { name, orders, needs_restart } in changed {
            report.needs_restart.extend(needs_restart);
            report.applied.push(format!("service.{name}"));
            for order in orders {
                let _ = controls.orders.send(order).await;
            }
            if let Some(limits) = controls.limits.get(&name) {
                limits.send_replace(Arc::new(session_limits(&new.services[&name])));
            }
        }
        controls.offers.send_replace(Arc::new(offers(&new)));
        if new.mesh.advertise != self.settings.mesh.advertise {
            if new.mesh.advertise.is_empty() {
                report.needs_restart.push("mesh.advertise".into());
            } else {
                let addresses = endpoints::resolve(&new.mesh.advertise).await;
                let _ = controls.orders.send(Order::Endpoints(addresses)).await;
                report.applied.push("mesh.advertise".into());
            }
        }
        report.needs_restart.extend(fixed(&self.settings, &new));
        self.settings = new;
        Ok(report)
    }
}

struct Change {
    name: ServiceName,
    orders: Vec<Order>,
    needs_restart: Option<String>,
}

fn change(
    name: &ServiceName,
    old: &ServiceSettings,
    new: &ServiceSettings,
) -> Result<Change, Error> {
    let mut orders = Vec::new();
    if policy(old) != policy(new) {
        orders.push(Order::Policy(name.clone(), policy(new)));
    }
    if old.cut_window != new.cut_window {
        orders.push(Order::CutWindow(name.clone(), new.cut_window));
    }
    // Becoming or ceasing to be an origin changes what the core is made of.
    let same_kind = old.origin.is_some() == new.origin.is_some();
    if let (true, Some(origin)) = (same_kind, &new.origin)
        && (old.origin != new.origin || old.health != new.health)
    {
        let prober = Prober::new(origin.to_string(), new.health.clone())?;
        orders.push(Order::Prober(name.clone(), prober));
    }
    let needs_restart = if old.listen != new.listen {
        Some(format!("service.{name}.listen"))
    } else if !same_kind {
        Some(format!("service.{name}.origin"))
    } else {
        None
    };
    Ok(Change { name: name.clone(), orders, needs_restart })
}

/// Keys outside the services that differ and cannot change in a running daemon.
fn fixed(old: &Settings, new: &Settings) -> Vec<String> {
    let differs = [
        ("site", old.site != new.site),
        ("name", old.name != new.name),
        ("state-dir", old.state_dir != new.state_dir),
        ("log", old.log != new.log),
        ("mesh.listen", old.mesh.listen != new.mesh.listen),
        ("mesh.seeds", old.mesh.seeds != new.mesh.seeds),
        ("mesh.mtu", old.mesh.mtu != new.mesh.mtu),
        ("mesh.keepalive", old.mesh.keepalive != new.mesh.keepalive),
        ("admin", old.admin != new.admin),
        ("discovery", old.discovery != new.discovery),
    ];
    differs.iter().filter(|(_, differs)| *differs).map(|(key, _)| (*key).to_owned()).collect()
}
