//! The answer of `meshport explain --node`: how an apiserver of this node reaches a node.

use std::path::PathBuf;

use meshport_config::Endpoint;
use serde::{Deserialize, Serialize};

use super::request::{Kind, Request};
use crate::Error;

/// The request of `meshport explain --node`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct WayRequest {
    /// The name of a Node object or of a member.
    pub node: String,
}

impl Request for WayRequest {
    const PATH: &'static str = "/way";
    const KIND: Kind = Kind::Command;
    type Reply = WayReport;

    fn check(&self) -> Result<(), Error> {
        let is_name = format!("{}:1", self.node).parse::<Endpoint>().is_ok();
        let said = || Error::Usage(format!("{:?} is not a valid node name", self.node));
        if is_name { Ok(()) } else { Err(said()) }
    }
}

/// The way back from this node's apiserver to other nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WayBackStatus {
    /// The socket that the apiserver connects to.
    pub socket: PathBuf,
    /// Nodes of the cluster that are reached through the mesh.
    pub nodes_there: u64,
    /// Nodes of the cluster that are down.
    pub nodes_down: u64,
    /// Nodes of the cluster that are not in the mesh.
    pub nodes_missing: u64,
    /// Open streams.
    pub streams_open: u64,
    /// Connections refused since the start.
    pub refused: u64,
}

/// How an apiserver of this node reaches a node's kubelet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WayReport {
    /// The kubelet's port, if known.
    pub kubelet_port: u16,
    /// Addresses of the node.
    pub addresses: Vec<String>,
    /// Networks of its pods.
    pub pod_cidrs: Vec<String>,
    /// The member that is the node: `worker-7 in fra`.
    pub who: Option<String>,
    /// Paths to it, in the order of attempts: `direct`, `through relay-1`.
    #[serde(rename = "ways")]
    pub paths: Vec<String>,
    /// Why it cannot be reached, if known without an attempt.
    pub problem: Option<String>,
    /// Whether this node has a socket for apiservers.
    pub has_socket: bool,
    /// Nodes of the cluster known to this node.
    pub known_nodes: u64,
}
