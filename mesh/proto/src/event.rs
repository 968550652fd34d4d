//! Events of the mesh for its user.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use bytes::Bytes;
use meshport_config::{Credential, MeshSecrets, NodeId, NodeName, UnixSeconds};
use serde::Serialize;

use crate::calls::CallToken;

/// Both clocks, read once per turn at the edge.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// Monotonic time; drives every timer.
    pub instant: Instant,
    /// Wall time; for credentials only.
    pub wall: UnixSeconds,
}

/// A route to a peer's socket: its address, and our source address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Route {
    /// The peer's outer address. IPv4 is never written as mapped IPv6.
    pub remote: SocketAddr,
    /// The local address to send from, if packets of the peer showed one.
    pub local: Option<IpAddr>,
}

impl From<SocketAddr> for Route {
    fn from(remote: SocketAddr) -> Self {
        Self { remote, local: None }
    }
}

/// An event of the mesh.
#[derive(Debug)]
pub enum MeshEvent {
    /// A datagram of an admitted peer, sent to `port`.
    Datagram {
        /// The sender, proven by its session.
        from: NodeId,
        /// The inner port it was sent to.
        port: u16,
        /// At most [`MAX_DATAGRAM`](crate::MAX_DATAGRAM) bytes from another meshport.
        payload: Bytes,
        /// Time at which it was read from the socket.
        at: Instant,
    },
    /// A peer presented a valid credential that this node did not have.
    Admitted {
        /// The verified credential.
        credential: Box<Credential>,
    },
    /// A peer continues with another key, by its own consent, and keeps its sessions and streams.
    Succeeded {
        /// The peer's previous id.
        former: NodeId,
        /// Its credential, verified.
        credential: Box<Credential>,
    },
    /// An admitted peer without a WireGuard session now has one.
    SessionUp(NodeId),
    /// A peer that was up no longer has a session.
    SessionDown(NodeId),
    /// An admitted peer has sent a newer mesh secret, signed by the authority. Store these and then
    /// call `Mesh::set_secrets`; until then nothing changes.
    Rotated {
        /// The peer that sent it.
        from: NodeId,
        /// The secrets to store and to use from now on.
        secrets: Box<MeshSecrets>,
    },
    /// Handshakes in the name of a blocked node arrive and get no answer. Reported at most once in
    /// ten minutes per name.
    Knocked {
        /// The claimed node, which is not proven.
        node: NodeId,
        /// Why that node is blocked, as the rest of a sentence about it.
        why: String,
    },
    /// A peer has not acknowledged long packets of streams for a while, although short ones may get
    /// through: the path's MTU may have shrunk. Repeated while that lasts.
    Unacknowledged(NodeId),
    /// An admitted peer reports the source address of this node's packets: a hint, repeated only
    /// when it changes.
    SeenAt {
        /// The peer.
        by: NodeId,
        /// The address and port; behind NAT not this node's own.
        at: SocketAddr,
    },
    /// A datagram with an expected token arrived outside all tunnels.
    Called {
        /// The token.
        token: CallToken,
        /// Its source.
        from: SocketAddr,
    },
    /// Two processes run with one peer's key: each was heard after the other. Repeated at most
    /// every few seconds while they alternate.
    Duplicate {
        /// The node with that key.
        node: NodeId,
        /// Addresses of the two, the one heard last first.
        at: [SocketAddr; 2],
    },
    /// An admitted peer reports that another process runs with this node's own key.
    OwnDuplicate {
        /// The peer.
        by: NodeId,
        /// Address of the other one.
        at: SocketAddr,
    },
    /// An admitted peer sends control messages that this version does not know. Reported once a
    /// minute per peer at most.
    Unknown {
        /// The peer.
        from: NodeId,
        /// The message, as in "control message 9".
        what: String,
    },
    /// A credential was refused, the peer's by this node or this node's by the peer.
    Refused {
        /// The peer.
        node: NodeId,
        /// Which of the two, and why.
        reason: String,
    },
    /// A peer's verified credential is not valid before this time, which this node's clock has not
    /// reached.
    NotYetValid(UnixSeconds),
}

/// State of a peer for an operator.
#[derive(Debug, Clone, Serialize)]
pub struct PeerStatus {
    /// The peer.
    pub node: NodeId,
    /// Its name, once its credential is known.
    pub name: Option<NodeName>,
    /// Its inner address.
    pub address: Ipv6Addr,
    /// Source of its authenticated packets.
    pub endpoint: Option<SocketAddr>,
    /// Whether its credential is accepted.
    pub admitted: bool,
    /// Whether a WireGuard session exists.
    pub session: bool,
    /// Time since the current session was agreed.
    pub last_handshake: Option<Duration>,
    /// Time since the last authenticated packet of the peer.
    pub last_received: Option<Duration>,
    /// Inner bytes received from the peer.
    pub rx_bytes: u64,
    /// Inner bytes sent to the peer.
    pub tx_bytes: u64,
    /// Packets waiting for the handshake.
    pub queued: usize,
    /// Smoothed RTT of the QUIC connection this node opened, or of the peer's.
    pub quic_rtt: Option<Duration>,
    /// Streams open with the peer, both directions.
    pub streams: usize,
    /// The number of the mesh secret that the peer reports; `None` before that.
    pub secret_number: Option<u64>,
}
