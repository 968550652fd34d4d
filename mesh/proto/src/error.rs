//! The error type of this crate, grouped by who caused it.

use meshport_config::{Error, NodeId, Revoked};

/// Why a credential is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotBelieved {
    /// It is not signed for this mesh, or not valid now.
    #[error(transparent)]
    Invalid(#[from] Error),
    /// A revocation covers it.
    #[error("the authority has revoked {0}")]
    Revoked(Revoked),
}

/// Why the mesh could not do what was requested.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MeshError {
    // The caller.
    /// The identity is inconsistent or not valid now.
    #[error("this node's identity cannot be used: {0}")]
    Identity(String),
    /// The mesh does not accept this node's credential.
    #[error("this node's identity cannot be used: {0}")]
    NotBelieved(#[from] NotBelieved),
    /// A value in the configuration is out of its bounds.
    #[error("mesh configuration: {0}")]
    Config(&'static str),
    /// The peer was never configured and never connected.
    #[error("node {0} is not a known peer; it must be discovered or configured first")]
    UnknownPeer(NodeId),
    /// The peer is known, but not its address.
    #[error("no address is known for node {0}; wait for discovery or configure a seed")]
    NoEndpoint(NodeId),
    /// A node does not talk to itself through the mesh.
    #[error("node {0} is this node itself; use the local service directly")]
    OwnNode(NodeId),
    /// The datagram does not fit into one packet.
    #[error("datagram of {length} bytes is longer than {limit}; split it")]
    TooLarge {
        /// Given length in bytes.
        length: usize,
        /// Allowed length in bytes.
        limit: usize,
    },
    /// The mesh was closed.
    #[error("the mesh is closed")]
    Closed,

    // This machine.
    /// The UDP socket could not be used.
    #[error("UDP socket: {0}")]
    Socket(String),
    /// The queue for this peer's handshake is full; this packet was dropped.
    #[error("the queue for node {0} is full while its handshake runs; try again later")]
    QueueFull(NodeId),

    // The peer or the path to it.
    /// No handshake or no connection within the time allowed.
    #[error("timed out waiting for node {0}; check that it runs and its UDP port is reachable")]
    Unreachable(NodeId),
    /// The connection ended.
    #[error("connection to node {node} lost: {reason}")]
    ConnectionLost {
        /// The other side.
        node: NodeId,
        /// The reason of the end.
        reason: String,
    },
    /// The peer abandoned its sending half of the stream.
    #[error("the peer reset the stream (code {0})")]
    Reset(u64),
    /// The peer does not want more data on the stream.
    #[error("the peer stopped reading the stream (code {0})")]
    Stopped(u64),
    /// This half was finished, reset or stopped before.
    #[error("this half of the stream is already closed")]
    StreamClosed,
}
