//! The answer of `meshport explain --node`: how an apiserver of this node reaches a node.

use std::path::PathBuf;

use meshport_config::Endpoint;
use serde::{Deserialize, Serialize};

use super::request::{Kind, Request};
use crate::Error;

/// `meshport explain --node` as asked.
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

/// The way back from the apiserver of this node to the others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WayBackStatus {
    /// The socket on which it asks.
    pub socket: PathBuf,
    /// Nodes of the cluster that are reached through the mesh.
    pub nodes_there: u64,
    /// Those that are down.
    pub nodes_down: u64,
    /// Those that are in the cluster and not in the mesh.
    pub nodes_missing: u64,
    /// Streams that are open.
    pub streams_open: u64,
    /// Connections that were refused since the start.
    pub refused: u64,
}

/// How an apiserver of this node reaches a node's kubelet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WayReport {
    /// Where the kubelet listens, as far as known.
    pub kubelet_port: u16,
    /// Addresses of the node.
    pub addresses: Vec<String>,
    /// Networks of its pods.
    pub pod_cidrs: Vec<String>,
    /// The member for the node: `worker-7 in fra`.
    pub who: Option<String>,
    /// Paths to it, in the order of attempts: `direct`, `through relay-1`.
    #[serde(rename = "ways")]
    pub paths: Vec<String>,
    /// Why it is not reached, if that is known without trying.
    pub problem: Option<String>,
    /// Whether this node has a socket for apiservers.
    pub has_socket: bool,
    /// Nodes of the cluster known to this node.
    pub known_nodes: u64,
}
