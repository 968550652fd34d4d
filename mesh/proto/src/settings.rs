//! Settings and limits of a mesh.

use std::time::Duration;

use meshport_config::{Credential, MeshSecret, NodeKey};

use crate::MeshError;

/// This node's identity. Its credential names the mesh it belongs to.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The node's X25519 key; its public half is the `NodeId`.
    pub key: NodeKey,
    /// The authority's statement about that key.
    pub credential: Credential,
    /// The mesh secret, from which every pre-shared key is derived. To rotate it:
    /// `Mesh::set_secrets`.
    pub secret: MeshSecret,
}

/// Smallest outer MTU supported: the minimum of IPv6.
pub const MIN_MTU: u16 = 1280;
/// Largest outer MTU supported: jumbo frames.
pub const MAX_MTU: u16 = 9200;

/// Settings and limits of a `Mesh`. `Default` is right for a product node.
#[derive(Debug, Clone)]
pub struct MeshConfig {
    /// Largest packet sent and received, in bytes, IP header included; [`MIN_MTU`]`..=`[`MAX_MTU`].
    /// The path MTU to a peer is discovered, up to this or the first link's MTU, whichever is less.
    /// Below 1328 QUIC's smallest datagram does not fit; then bind the socket with
    /// `UdpOuter::bind_for_mtu`.
    pub mtu: u16,
    /// Interval of empty packets to configured peers, for NATs that drop idle mappings; `None`
    /// sends none.
    pub keepalive: Option<Duration>,
    /// Handshake initiations per second beyond which initiators must prove their address with a
    /// cookie, with a burst of a quarter. One costs about 0.28 ms of CPU.
    pub handshakes_per_second: u32,
    /// Maximum peers of a shard, of all kinds. One takes about 1 KiB, and 12 more from the first
    /// handshake until its last session has ended.
    pub max_peers: usize,
    /// Maximum unknown initiators that have not presented a credential.
    pub max_provisional: usize,
    /// How long an unknown initiator may take to present a credential.
    pub provisional_life: Duration,
    /// How long opening a stream may take in total if the peer does not answer.
    pub connect_timeout: Duration,
    /// Events that may wait for the consumer.
    pub max_events: usize,
    /// Incoming streams of a shard that may wait for the consumer.
    pub max_waiting_streams: usize,
    /// Streams a peer may have open at once on its connection to this node.
    pub max_streams_per_peer: u32,
}

impl Default for MeshConfig {
    fn default() -> Self {
        Self {
            mtu: MAX_MTU,
            keepalive: None,
            handshakes_per_second: 200,
            // All nodes of a full directory (16,383), all leaves (4,096), and peers that have not
            // yet presented a credential.
            max_peers: 20_736,
            max_provisional: 256,
            provisional_life: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(10),
            max_events: 1024,
            max_waiting_streams: 256,
            max_streams_per_peer: 16_384,
        }
    }
}

impl MeshConfig {
    /// Checks the bounds.
    ///
    /// # Errors
    /// [`MeshError::Config`] names the first value out of its bounds.
    pub fn check(&self) -> Result<(), MeshError> {
        let bound = |good: bool, what| if good { Ok(()) } else { Err(MeshError::Config(what)) };
        bound((MIN_MTU..=MAX_MTU).contains(&self.mtu), "mtu must be 1280 to 9200 bytes")?;
        bound(self.handshakes_per_second > 0, "handshakes-per-second must be at least 1")?;
        bound((1..=MAX_PEERS).contains(&self.max_peers), "max-peers must be 1 to 65535")?;
        bound(self.max_provisional > 0, "max-provisional must be at least 1")?;
        bound(self.max_events > 0, "max-events must be at least 1")?;
        bound(self.max_waiting_streams > 0, "max-waiting-streams must be at least 1")?;
        bound(
            self.max_streams_per_peer >= FIRST_STREAMS,
            "max-streams-per-peer must be at least 28",
        )?;
        let keepalive = self.keepalive.is_none_or(|every| every >= Duration::from_secs(1));
        bound(keepalive, "keepalive must be at least 1 s")
    }
}

/// Upper bound of [`MeshConfig::max_peers`]: one less than the 16 bits a receiver index has for
/// peers, since a newcomer is added before another one is removed.
const MAX_PEERS: usize = 65_535;
/// Streams a peer may open before the limit is raised on demand. A connection allocates a slot per
/// permitted stream, in two hash tables with a load factor of seven eighths: one more stream would
/// double both.
pub const FIRST_STREAMS: u32 = 28;
