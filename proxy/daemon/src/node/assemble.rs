//! Builds the parts of a daemon from its settings; nothing runs yet.

use std::collections::BTreeMap;
use std::thread::available_parallelism;

use meshport_config::{
    Allow, Credential, HealthSettings, NamedSeed, Period, ServiceName, ServiceSettings, Settings,
};
use meshport_discovery::{DiscoveryConfig, LocalNode};
use meshport_mesh::{Incoming, MAX_SHARDS, Mesh, MeshConfig, Shards};
use tracing::warn;

use crate::Error;
use meshport_core::inquiry::Setting;
use meshport_core::journal::Kind;
use meshport_core::node::{CoreConfig, NodeCore, ServiceConfig};
use meshport_core::outbox::{Outbox, Receiver};
use meshport_core::route::Damping;

use crate::clock;
use crate::descriptors;
use crate::findings;
use crate::health::probe::Prober;
use crate::sessions::ingress::SessionLimits;
use crate::tcp::{Host, store};
use meshport_core::egress::{Offer, Offers};
use meshport_state::{Identity, StateDir};

/// How many shards the mesh of a daemon has.
pub(crate) fn shards(settings: &Settings) -> usize {
    match settings.mesh.shards {
        0 => available_parallelism().map_or(1, usize::from).min(MAX_SHARDS),
        set => usize::try_from(set).unwrap_or(MAX_SHARDS),
    }
}

/// Binds the mesh's sockets.
pub(crate) fn bind_mesh(settings: &Settings, shards: usize) -> Result<Shards, Error> {
    let address = settings.mesh.listen;
    store::mesh_sockets(address, || Shards::open(address, shards))
        .and_then(|group| Shards::on(group, settings.mesh.mtu))
        .map_err(Error::io(format!("bind the mesh to UDP {address} (mesh.listen)")))
}

/// Starts the mesh on its sockets.
pub(crate) fn start_mesh(
    settings: &Settings,
    identity: &Identity,
    shards: Shards,
    seed: [u8; 32],
) -> Result<(Mesh, Incoming), Error> {
    let config = MeshConfig {
        mtu: settings.mesh.mtu,
        keepalive: settings.mesh.keepalive,
        ..MeshConfig::default()
    };
    let mesh_identity = meshport_mesh::Identity {
        key: identity.node_key.clone(),
        credential: identity.credential.clone(),
        secret: identity.secrets.current().clone(),
    };
    let (mesh, incoming) = Mesh::start_on(shards, &mesh_identity, &config, seed, clock::wall)?;
    mesh.set_secrets(&identity.secrets);
    Ok((mesh, incoming))
}

/// The node's core in its initial state; with these services, that of a leaf. Logs services that
/// cannot work.
pub(crate) fn build_core(
    settings: &Settings,
    identity: &Identity,
    generation: u64,
    seed: [u8; 32],
    leaf_of: Option<Vec<ServiceName>>,
) -> NodeCore {
    warn_of_missing_roles(settings, &identity.credential);
    warn_of_lists(settings);
    let me = LocalNode {
        credential: identity.credential.clone(),
        record_key: identity.record_key.clone(),
    };
    let mut config = core_config(settings);
    config.discovery.leaf_of = leaf_of;
    NodeCore::new(config, me, generation, seed, clock::now())
}

/// The pure part of the settings.
fn core_config(settings: &Settings) -> CoreConfig {
    let services = settings.services.iter();
    CoreConfig {
        discovery: DiscoveryConfig::from(&settings.discovery).into(),
        services: services.map(|(name, it)| (name.clone(), service_config(it))).collect(),
    }
}

/// The pure part of a service's settings.
pub(crate) fn service_config(service: &ServiceSettings) -> ServiceConfig {
    ServiceConfig {
        policy: service.into(),
        weights: service.into(),
        damping: Damping::default(),
        drift: service.into(),
        health: service.origin.as_ref().map(|_| (&service.health).into()),
    }
}

/// The limits of the sessions of a service of these settings.
pub(crate) fn session_limits(
    service: &ServiceSettings,
    settings: &Settings,
    host: &Host,
) -> SessionLimits {
    let limits = settings.services.values().map(|it| it.max_sessions.into()).collect();
    SessionLimits {
        connect: service.into(),
        max_sessions: descriptors::share(limits, host).min(service.max_sessions.into()),
        local_instance: service.origin.as_ref().map(ToString::to_string),
    }
}

/// Settings that must be the same on all nodes: members use them to suspect silent members.
pub(crate) fn agreeing(settings: &Settings) -> Vec<Setting> {
    let discovery = &settings.discovery;
    let all = [
        ("probe-interval", discovery.probe_interval),
        ("probe-timeout", discovery.probe_timeout),
        ("suspicion", discovery.suspicion),
    ];
    let setting =
        |(key, time)| Setting { key: format!("discovery.{key}"), value: Period(time).to_string() };
    all.map(setting).into()
}

/// Outgoing events, for each configured receiver.
pub(crate) fn outboxes(settings: &Settings) -> BTreeMap<Receiver, Outbox> {
    let events = &settings.events;
    let new = || Outbox::new(events.per_minute, clock::now());
    let url = events.url.as_ref().map(|_| (Receiver::Url, new()));
    let kubernetes = events.kubernetes.then(|| new().of(Kind::is_of_this_node));
    url.into_iter().chain(kubernetes.map(|it| (Receiver::Kubernetes, it))).collect()
}

/// The addresses at which services of the settings are dialled, and the nodes that may use each.
pub(crate) fn offers(settings: &Settings) -> Offers {
    let offer = |(name, service): (&ServiceName, &ServiceSettings)| {
        let addresses = vec![service.origin.as_ref()?.to_string()];
        Some((name.clone(), Offer { addresses, allow: service.allow.clone() }))
    };
    settings.services.iter().filter_map(offer).collect()
}

/// The probers of the offered services, each made by `make`.
pub(crate) fn probers(
    host: &Host,
    settings: &Settings,
    make: impl Fn(Host, String, HealthSettings) -> Result<Prober, Error>,
) -> Result<BTreeMap<ServiceName, Prober>, Error> {
    let services = settings.services.iter();
    let offered = services.filter_map(|(name, s)| Some((name, s.origin.as_ref()?, &s.health)));
    offered
        .map(|(name, origin, health)| {
            Ok((name.clone(), make(host.clone(), origin.to_string(), health.clone())?))
        })
        .collect()
}

/// Logs which services of this node are offered without their roles.
fn warn_of_missing_roles(settings: &Settings, credential: &Credential) {
    for (name, service) in &settings.services {
        if service.origin.is_some() {
            findings::warn_of_missing_role(name, credential);
        }
    }
}

/// Logs services with an `allow` list that admits no node, or fewer than probably intended.
pub(crate) fn warn_of_lists(settings: &Settings) {
    for (service, ServiceSettings { allow, .. }) in &settings.services {
        if let Some(doubt) = Allow::doubt(allow) {
            warn!(%service, "allow under [service.{service}]: {doubt}");
        }
    }
}

/// The seeds of the settings, then those of the state folder. If those cannot be read, logs that
/// and continues: a former member knows others from its directory.
pub(crate) fn all_seeds(settings: &Settings, state: &StateDir) -> Vec<NamedSeed> {
    let mut seeds = settings.mesh.seeds.clone();
    let stored = state.seeds().unwrap_or_else(|error| {
        warn!(%error, "ignoring the seeds in the state folder");
        Vec::new()
    });
    for seed in stored {
        let is_it =
            |known: &NamedSeed| matches!(known, NamedSeed::Whole(it) if it.node == seed.node);
        if !seeds.iter().any(is_it) {
            seeds.push(seed.into());
        }
    }
    seeds
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn the_settings_file_and_the_code_agree_on_defaults() {
        let settings = Settings::defaults("fra".parse().expect("a site"));
        assert_eq!(DiscoveryConfig::from(&settings.discovery), DiscoveryConfig::default());
        assert_eq!(settings.mesh.mtu, MeshConfig::default().mtu);
        assert_eq!(settings.mesh.keepalive, MeshConfig::default().keepalive);
    }
}
