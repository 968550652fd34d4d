//! Commands to the driver, and what they carry.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use meshport_config::{Credential, NodeId, ServiceName};
use meshport_core::drift::DriftConfig;
use meshport_core::health::HealthConfig;
use meshport_core::node::ServiceConfig;
use meshport_core::reach::OwnEndpoints;
use meshport_core::route::{Policy, Route, Weights};
use tokio::sync::watch;

use crate::admin::api::SettingChange;
use crate::admin::report::ServiceFacts;
use crate::health::probe::Prober;
use crate::node::write_queue::{Snapshot, Write};

/// Commands from the rest of the daemon.
#[derive(Debug)]
pub(crate) enum Command {
    /// Announce to these nodes, which are reached there.
    Seeds(Vec<(NodeId, Vec<SocketAddr>)>),
    /// This node is reached there.
    Endpoints(OwnEndpoints),
    /// Spread a service's sessions so from now on.
    Policy(ServiceName, Policy, Weights),
    /// Reset a service's sessions within this time from now on.
    CutWindow(ServiceName, Duration),
    /// Move a service's sessions at this pace from now on.
    Drift(ServiceName, DriftConfig),
    /// Reach a service there when no origin of the mesh answers.
    Fallback(ServiceName, Vec<SocketAddr>),
    /// The cluster's own list of a service's instances, or that it could not be read.
    Listed(ServiceName, Option<BTreeSet<SocketAddr>>),
    /// Take up one more service.
    Service(Box<Addition>),
    /// Store the nodes of the cluster, as the way back knows them, for the next start.
    StoreNodes(Vec<u8>),
    /// These settings wait for a restart.
    NeedsRestart(Vec<SettingChange>),
    /// An upgrade failed, for this reason; this process goes on.
    FailedUpgrade(String),
    /// Ask a service's instance so from now on.
    Instance(ServiceName, Instance),
    /// This machine has slept for that long, or moved to another network.
    Wake(Duration),
    /// Show this credential from now on.
    Credential(Box<Credential>),
    /// This is stored: use it.
    Stored(Write),
    /// This could not be stored, for this reason.
    NotStored(Write, String),
    /// Say goodbye; answered when the last datagram is handed over.
    Leave(tokio::sync::oneshot::Sender<()>),
    /// Asks for the present state, for the next start.
    Snapshot(tokio::sync::oneshot::Sender<Snapshot>),
}

/// How a service's local instance is reached and asked.
#[derive(Debug)]
pub(crate) struct Instance {
    pub(crate) address: String,
    pub(crate) health: HealthConfig,
    pub(crate) prober: Prober,
}

/// A service that a running node is to have.
#[derive(Debug)]
pub(crate) struct Addition {
    pub(crate) name: ServiceName,
    pub(crate) config: ServiceConfig,
    pub(crate) facts: ServiceFacts,
    pub(crate) cut_window: Duration,
    pub(crate) prober: Option<Prober>,
    pub(crate) route: watch::Sender<Arc<Route>>,
}
