//! Encrypted datagrams and streams to a `NodeId`, over one UDP socket and without root.
//!
//! On the wire this is WireGuard. Inside the tunnels travel IPv6/UDP packets: control messages
//! that admit a peer, datagrams by port, and QUIC for streams. [`Mesh`] is the handle, [`Incoming`]
//! what comes from peers.
//!
//! Everything outside `io` is a state machine without sockets, clocks or a runtime; `io` drives it
//! with tokio and quinn. Every queue and table has a bound and a drop counter in [`MeshCounters`].

mod admission;
mod core;
mod counters;
mod error;
mod event;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod inner;
mod io;
mod peer;
mod peers;
mod processes;
mod settings;
mod shard;
mod tunnel;

pub use counters::MeshCounters;
pub use error::MeshError;
pub use event::{MeshEvent, PeerStatus};
pub use io::{
    Delivery, Incoming, Mesh, OuterMeta, OuterSocket, OuterTransmit, RecvHalf, SendHalf,
    ShardStatus, ShardStreams, Shards, Stream, UdpOuter, WallClock,
};
pub use settings::{Identity, MAX_MTU, MIN_MTU, MeshConfig};
pub use shard::{MAX_SHARDS, is_same_shard};

#[doc(hidden)]
pub use io::testing;

/// UDP ports inside the tunnel.
pub mod ports {
    /// Admission.
    pub const CONTROL: u16 = 7400;
    /// QUIC.
    pub const STREAMS: u16 = 7401;
    /// Discovery.
    pub const GOSSIP: u16 = 7402;
}

/// Longest datagram, in bytes: as long as the smallest one that QUIC may rely on, so that a probe
/// shows whether QUIC's pass. With all headers it takes 1328 bytes of an IPv6 path.
pub const MAX_DATAGRAM: usize = 1200;
