//! Membership, directory and path quality of a node.
//!
//! [`Discovery`] is one node's state machine: membership by SWIM, a directory of signed records,
//! fast news, and measured paths to all origins. It does no I/O and reads no clock: datagrams,
//! sessions and time go in by `handle_*`, datagrams and events come out by `poll_*`. The daemon
//! drives it over the mesh, the simulator in virtual time.
//!
//! Trust: a record counts only if it is signed by the key named in its node's verified credential;
//! each node writes only its own record; a membership claim counts only for a generation that the
//! node has signed or shown itself in. So others cannot change a node's own record, and the victim
//! refutes a false death.
//!
//! Everything is bounded by named constants, and what was dropped is counted in [`Counters`].

mod attach;
mod awareness;
mod config;
mod contacts;
mod core;
mod counters;
mod dependents;
mod dice;
mod directory;
mod error;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod local;
mod news;
mod paths;
mod queue;
mod rtt;
mod schedule;
mod seeds;
mod snapshot;
mod state;
mod swim;
mod sync;
mod table;
#[cfg(test)]
mod tests;
mod timers;
mod verify;
mod wire;

pub use crate::core::{
    Discovery, Event, LocalNode, MAX_EVENTS, MAX_LEAVES, MAX_TRANSMITS, Transmit,
};
pub use attach::MAX_ATTACHED;
pub use config::{DiscoveryConfig, Setup};
pub use counters::{Count, Counters};
pub use directory::{
    Crowding, Directory, Entry, Liveness, MAX_MEMBERS, MAX_OF_INVITE, MAX_TOMBSTONES,
};
pub use error::DiscoveryError;
pub use paths::{IDLE_PROBES_PER_S, MAX_PATHS, Path, PathState, PathUse, Paths};
pub use seeds::MAX_SEEDS;
pub use snapshot::{MAX_SNAPSHOT_BYTES, SavedMember, members_of, snapshot_of};
pub use state::{
    Distance, MAX_DISTANCES, MAX_ENDPOINTS, MAX_RELEASE_BYTES, MAX_SERVICES, MAX_STATE_BYTES,
    NodeState, OriginState, SignedState,
};
pub use verify::{MAX_MEMO, Memo, Rejected};
pub use wire::{Family, MAX_ASKED_SERVICES, MAX_DATAGRAM, VERSION, WIDE_DATAGRAM, family, kind};
