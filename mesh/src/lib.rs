//! Encrypted datagrams and streams to a `NodeId`, over one UDP socket and without root.
//!
//! [`Mesh`] is the handle, [`Incoming`] the input from peers. `meshport-proto` is the state machine
//! of peers and tunnels; this crate drives it with sockets, tokio and, for streams, quinn.
//!
//! `link` joins the state machine with the outer socket; `quic_socket` is quinn's view of it;
//! `driver` does the work that is due without a packet; `streams` keeps the QUIC connections;
//! `mesh` is the handle. A node with several `shards` has all of these once per shard. `bridge` and
//! `carry` keep a process's connections alive after it has handed its sockets over to a successor.
//!
//! A shard runs on a current-thread runtime: it receives, encrypts and sends there. Everything is
//! still `Send` and `Sync`, so other threads may call it occasionally: each lock is held for one
//! turn, never across an await. Lock order: quinn's own locks, then the link's send lock, then its
//! core lock, then an inbox's.

mod backlog;
mod batched;
mod bridge;
mod carry;
mod congestion;
mod connection_id;
mod cubic;
mod driver;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod inbox;
mod link;
mod mesh;
mod null_crypto;
mod outer;
mod quic_config;
mod quic_socket;
mod shards;
mod steer;
mod streams;
#[doc(hidden)]
pub mod testing;
mod udp;
mod windows;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use connection_id::ProcessTag;
pub use link::WallClock;
pub use mesh::{Incoming, Mesh, ShardStatus, ShardStreams};
pub use meshport_proto::calls::{self, CallToken};
pub use meshport_proto::{
    Identity, MAX_DATAGRAM, MAX_MTU, MAX_SHARDS, MIN_MTU, MeshConfig, MeshCount, MeshCounters,
    MeshError, MeshEvent, NotBelieved, PeerStatus, inner, is_same_shard, ports,
};
pub use outer::{OuterMeta, OuterSocket, OuterTransmit};
pub use shards::Shards;
pub use streams::{Delivery, RecvHalf, SendHalf, Stream};
pub use udp::UdpOuter;

/// Locks, also after a panic elsewhere: every turn leaves the state consistent.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
