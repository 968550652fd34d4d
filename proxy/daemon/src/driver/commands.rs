//! Commands to the driver, and their contents.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use meshport_config::{Credential, NodeId, ServiceName};
use meshport_core::drift::DriftConfig;
use meshport_core::health::HealthConfig;
use meshport_core::node::ServiceConfig;
use meshport_core::reach::OwnEndpoints;
use meshport_core::route::{Policy, Route, Weights};
use tokio::sync::{oneshot, watch};

use crate::admin::api::SettingChange;
use crate::driver::write_queue::{Snapshot, Write};
use crate::health::probe::Prober;
use crate::report::ServiceFacts;

/// The services whose local instance an operator drains, and since when.
pub(crate) type Drained = BTreeMap<ServiceName, Instant>;

/// Commands from the rest of the daemon.
#[derive(Debug)]
pub(crate) enum Command {
    /// Announce this node to these nodes, at these addresses.
    Seeds(Vec<(NodeId, Vec<SocketAddr>)>),
    /// This node can be reached at these addresses.
    Endpoints(OwnEndpoints),
    /// Change a service.
    Service(ServiceName, ServiceChange),
    /// The cluster's own list of a service's instances, or why it could not be read.
    Listed(ServiceName, Option<BTreeSet<SocketAddr>>),
    /// Add a service.
    AddService(Box<Addition>),
    /// Store the cluster's nodes, as the way back encodes them, for the next start.
    StoreNodes(Vec<u8>),
    /// A reload applied the settings except these, which wait for a restart; or it was refused for
    /// this reason.
    Reloaded(Result<Vec<SettingChange>, String>),
    /// An upgrade failed for this reason, and this process continues; `None` when one begins.
    FailedUpgrade(Option<String>),
    /// This machine slept for this long, or moved to another network.
    Wake(Duration),
    /// Measure every path again now.
    Probe,
    /// Present the stored credential, or why it cannot be read; answered with the reason if the one
    /// in use stays.
    Credential(Result<Box<Credential>, String>, oneshot::Sender<Option<String>>),
    /// This value is stored: use it.
    Stored(Write),
    /// This value could not be stored, for this reason.
    NotStored(Write, String),
    /// Announce that this node leaves; answered once the last datagram is handed over.
    Leave(oneshot::Sender<()>),
    /// Return the services whose local instance is drained, for the successor, and answer no more
    /// requests: another drain would be lost.
    Retire(oneshot::Sender<Drained>),
    /// Return the current state, for the next start.
    Snapshot(oneshot::Sender<Snapshot>),
}

/// A change of a running service.
#[derive(Debug)]
pub(crate) enum ServiceChange {
    /// How to spread its sessions.
    Policy(Policy, Weights),
    /// The pace at which its sessions move.
    Drift(DriftConfig),
    /// Addresses to use when no origin in the mesh answers.
    Fallback(Vec<SocketAddr>),
    /// How to reach and probe its local instance.
    Instance(Instance),
}

/// How a service's local instance is reached and probed.
#[derive(Debug)]
pub(crate) struct Instance {
    pub(crate) address: String,
    pub(crate) health: HealthConfig,
    pub(crate) prober: Prober,
}

/// A service to add to a running node.
#[derive(Debug)]
pub(crate) struct Addition {
    pub(crate) name: ServiceName,
    pub(crate) config: ServiceConfig,
    pub(crate) facts: ServiceFacts,
    pub(crate) prober: Option<Prober>,
    pub(crate) route: watch::Sender<Arc<Route>>,
}
