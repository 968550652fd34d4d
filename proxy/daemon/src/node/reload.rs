//! Changes the settings of a running node.
//!
//! A setting that needs a restart keeps its old value.

use std::sync::Arc;

use meshport_config::{EgressSettings, ExposeSettings, MAX_SERVICES, ServiceSettings, Settings};

use crate::Error;
use crate::admin::api::{ReloadReport, SettingChange};
use crate::driver::commands::{Command, Instance, ServiceChange};
use crate::health::probe::Prober;
use crate::node::assemble::{offers, session_limits};
use crate::node::controls::{Controls, lock};
use crate::node::fallback;
use crate::node::services::{self, Services};
use crate::sessions::claim::IfTaken;
use crate::tcp::Host;
use meshport_core::drift::DriftConfig;
use meshport_core::route::Policy;

/// The setting that a variable may override.
const LOG_LEVEL: &str = "log.level";

/// Applies the settings of `new` that can change in a running node, all or none; the caller applies
/// the log level if `sets_level`, else a variable overrides it. Returns the settings then in force.
///
/// # Errors
/// A configured file is unusable, or an address cannot be bound.
pub(crate) async fn apply(
    old: &Settings,
    new: &Settings,
    sets_level: bool,
    controls: &Controls,
) -> Result<(Settings, ReloadReport), Error> {
    let next = in_force(old, new);
    let report = report(old, &next, new, sets_level);
    // All steps that can fail come first, so that a reload applies entirely or not at all.
    let mut commands = vec![Command::Reloaded(Ok(report.needs_restart.clone()))];
    let mut added = next.clone();
    for (name, service) in &next.services {
        let Some(old) = old.services.get(name) else { continue };
        added.services.remove(name);
        let changes = changes_of(&controls.context.host, old, service)?;
        commands.extend(changes.into_iter().map(|it| Command::Service(name.clone(), it)));
    }
    let services = Services::bind(&controls.context.host, &added, IfTaken::Fail, services::key)?;
    let prepared = controls.exposed.0.prepare(&next, IfTaken::Fail)?;
    commands.extend(services.join(&added, controls)?);
    controls.exposed.0.apply(prepared, &next);
    for command in commands {
        let _ = controls.commands.send(command).await;
    }
    for (name, limits) in &*lock(&controls.limits) {
        if let Some(service) = next.services.get(name) {
            let now = session_limits(service, &next, &controls.context.host);
            limits.send_replace(Arc::new(now));
        }
    }
    controls.offers.send_replace(Arc::new(offers(&next)));
    if (&next.egress, &next.kubelet) != (&old.egress, &old.kubelet) {
        controls.back.set_settings(&next.egress, &next.kubelet);
    }
    if next.mesh.advertise != old.mesh.advertise {
        controls.names.advertise.send_replace(next.mesh.advertise.clone());
    }
    let fallbacks = fallback::of(&next);
    controls.names.fallbacks.send_if_modified(|known| {
        let changed = *known != fallbacks;
        *known = fallbacks;
        changed
    });
    Ok((next, report))
}

/// What becomes of each change from `old` to `new`, if `next` is in force.
fn report(old: &Settings, next: &Settings, new: &Settings, sets_level: bool) -> ReloadReport {
    let changes = |old: &Settings, new: &Settings| -> Vec<SettingChange> {
        old.differences(new).into_iter().map(Into::into).collect()
    };
    let takes_effect = |it: &SettingChange| sets_level || it.key != LOG_LEVEL;
    let (applied, overridden) = changes(old, next).into_iter().partition(takes_effect);
    ReloadReport { applied, needs_restart: changes(next, new), overridden, kept_credential: None }
}

/// The settings of a daemon that runs with `old`, after the changes in `new` that need no restart.
fn in_force(old: &Settings, new: &Settings) -> Settings {
    let mut next = old.clone();
    next.log.level = new.log.level;
    // Without a configured list, a node detects its addresses at its start.
    if !new.mesh.advertise.is_empty() {
        next.mesh.advertise.clone_from(&new.mesh.advertise);
    }
    next.kubelet.clone_from(&new.kubelet);
    // The socket is created before the sandbox, which prevents the daemon from creating another.
    let EgressSettings { socket, mode, .. } = old.egress.clone();
    next.egress = EgressSettings { socket, mode, ..new.egress.clone() };
    for (name, wanted) in &new.services {
        let mut service = wanted.clone();
        match old.services.get(name) {
            Some(before) => keep_fixed(&mut service, before),
            // A service removed from the file keeps its slot until a restart.
            None if next.services.len() >= MAX_SERVICES => continue,
            // The task that reads the cluster's list starts only with the daemon.
            None => service.cluster_kubeconfig = None,
        }
        next.services.insert(name.clone(), service);
    }
    // An `expose` entry waits for a restart if one of its services waits for one.
    let known = |it: &ExposeSettings| it.services().all(|name| next.services.contains_key(name));
    next.expose = new.expose.clone().into_iter().filter(|(_, it)| known(it)).collect();
    next
}

/// Keeps the settings of a service that cannot change while it runs.
fn keep_fixed(service: &mut ServiceSettings, before: &ServiceSettings) {
    service.listen.clone_from(&before.listen);
    service.allow_remote_clients = before.allow_remote_clients;
    service.cluster_kubeconfig.clone_from(&before.cluster_kubeconfig);
    // The core is built with or without an instance of the service.
    if before.origin.is_some() != service.origin.is_some() {
        service.origin.clone_from(&before.origin);
        service.allow.clone_from(&before.allow);
        service.health.clone_from(&before.health);
    }
}

/// The driver's changes of a service. They always replace its prober, because the files named in
/// the settings may have changed even if the settings have not.
fn changes_of(
    host: &Host,
    old: &ServiceSettings,
    new: &ServiceSettings,
) -> Result<Vec<ServiceChange>, Error> {
    let mut changes = Vec::new();
    if Policy::from(old) != Policy::from(new) || old.weights != new.weights {
        changes.push(ServiceChange::Policy(new.into(), new.into()));
    }
    if DriftConfig::from(old) != DriftConfig::from(new) {
        changes.push(ServiceChange::Drift(new.into()));
    }
    if let Some(origin) = &new.origin {
        let address = origin.to_string();
        let prober = Prober::new(host.clone(), address.clone(), new.health.clone())?;
        let instance = Instance { address, health: (&new.health).into(), prober };
        changes.push(ServiceChange::Instance(instance));
    }
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use meshport_config::ServiceName;

    use super::*;

    fn settings(text: &str) -> Settings {
        meshport_config::parse(text).expect("valid settings")
    }

    fn keys(old: &Settings, new: &Settings) -> Vec<String> {
        old.differences(new).into_iter().map(|it| it.key).collect()
    }

    #[test]
    fn a_setting_that_needs_a_restart_keeps_its_value() {
        let old = settings("site = \"fra\"\n[service.kube-apiserver]\norigin = \"127.0.0.1:1\"\n");
        let new = settings(
            "site = \"ber\"\n[mesh]\nmtu = 1400\n[log]\nlevel = \"debug\"\nformat = \"json\"\n\
             [service.kube-apiserver]\nhold = \"1s\"\nlisten = [\"127.0.0.1:1\"]\n\
             [service.other]\nlisten = [\"127.0.0.1:2\"]\n",
        );
        let next = in_force(&old, &new);
        let applied = ["log.level", "service.kube-apiserver.hold", "service.other"];
        assert_eq!(keys(&old, &next), applied);
        let waiting = [
            "log.format",
            "mesh.mtu",
            "service.kube-apiserver.listen",
            "service.kube-apiserver.origin",
            "site",
        ];
        assert_eq!(keys(&next, &new), waiting);
        // Nothing is pending when the file matches again.
        assert_eq!(keys(&in_force(&next, &next), &next), Vec::<String>::new());
        // A service removed from the file stays until the daemon ends.
        assert_eq!(keys(&in_force(&next, &old), &old), ["service.other"]);
    }

    #[test]
    fn a_level_that_a_variable_sets_waits_for_nothing() {
        let old = settings("site = \"fra\"\n");
        let new = settings("site = \"fra\"\n[log]\nlevel = \"debug\"\nformat = \"json\"\n");
        let next = in_force(&old, &new);
        let keys = |changes: &[SettingChange]| -> Vec<String> {
            changes.iter().map(|it| it.key.clone()).collect()
        };
        for sets_level in [true, false] {
            let report = report(&old, &next, &new, sets_level);
            let (effective, idle) = if sets_level {
                (&report.applied, &report.overridden)
            } else {
                (&report.overridden, &report.applied)
            };
            assert_eq!((keys(effective), keys(idle)), (vec!["log.level".into()], Vec::new()));
            assert_eq!(keys(&report.needs_restart), ["log.format"]);
        }
    }

    #[test]
    fn only_the_socket_of_the_way_back_needs_a_restart() {
        let old = settings("site = \"fra\"\n[egress]\nsocket = \"/run/egress.sock\"\n");
        let new = settings(
            "site = \"fra\"\n[egress]\nsocket = \"/run/other.sock\"\nmode = \"0600\"\n\
             uids = [\"0\"]\nservice-cidrs = [\"10.96.0.0/12\"]\nnodes = [\"a=10.0.0.7\"]\n\
             outside = [\"hooks.example.com:443\"]\nmax-streams = 7\n\
             [kubelet]\nserve = false\nport = 10251\naddresses = [\"10.0.0.7\"]\n\
             pod-cidrs = [\"10.244.7.0/24\"]\n",
        );
        let next = in_force(&old, &new);
        assert_eq!(keys(&next, &new), ["egress.mode", "egress.socket"]);
        assert_eq!(keys(&old, &next).len(), 9);
    }

    #[test]
    fn a_changed_origin_is_used_and_probed() {
        let old = settings("site = \"fra\"\n[service.kube-apiserver]\norigin = \"127.0.0.1:1\"\n");
        let new = settings("site = \"fra\"\n[service.kube-apiserver]\norigin = \"127.0.0.1:2\"\n");
        let next = in_force(&old, &new);
        assert_eq!(next, new);
        let name = ServiceName::kube_apiserver();
        let changes = changes_of(&Host::Kernel, &old.services[&name], &next.services[&name]);
        let changes = changes.expect("no file is named");
        let [ServiceChange::Instance(instance)] = changes.as_slice() else { panic!("{changes:?}") };
        assert_eq!(instance.address, "127.0.0.1:2");
        assert!(instance.health.asks_ready);
    }
}
