//! Peers, tunnels and admission: the mesh as a state machine, without sockets, clocks or a runtime.
//!
//! [`core::Core`] takes packets in (`handle_*`) and gives packets, events and the next timeout out
//! (`poll_*`). On the wire it speaks WireGuard; the tunnels carry IPv6/UDP packets. The crate
//! `meshport-mesh` drives it with tokio and quinn. Every queue and table has a bound and a drop
//! counter in [`MeshCounters`].

mod admission;
pub mod calls;
pub mod core;
mod counters;
mod error;
pub mod event;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod inner;
mod peer;
mod peers;
mod processes;
mod reassembly;
pub mod schedule;
pub mod settings;
pub mod shard;
mod split;
pub mod tunnel;
mod unacknowledged;

pub use counters::{MeshCount, MeshCounters, SharedMeshCounters};
pub use error::{MeshError, NotBelieved};
pub use event::{MeshEvent, PeerStatus};
pub use peer::QUEUE_LIMIT;
pub use settings::{Identity, MAX_MTU, MIN_MTU, MeshConfig};
pub use shard::{MAX_SHARDS, is_same_shard};
pub use split::{DEMAND_HOLD, NARROWEST_MTU};
pub use unacknowledged::Unacknowledged;

/// UDP ports inside the tunnel.
pub mod ports {
    /// Admission.
    pub const CONTROL: u16 = 7400;
    /// QUIC.
    pub const STREAMS: u16 = 7401;
    /// Discovery.
    pub const GOSSIP: u16 = 7402;
}

/// Longest datagram, in bytes: QUIC's minimum, so that a probe shows whether QUIC's datagrams pass.
/// With all headers it takes 1328 bytes on an IPv6 path.
pub const MAX_DATAGRAM: usize = 1200;
