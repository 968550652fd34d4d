//! The daemon: all of the product's I/O in one process, with a thread for each shard of the mesh.
//!
//! [`run()`] is the process around one [`Node`]. Data flows one way: clients are accepted and
//! carried in [`sessions`], streams of other nodes arrive in `egress`, decisions are made by the
//! core, which only `node::driver` touches, and `admin` answers requests. Sessions run on the
//! thread of the peer they go to or come from; everything else runs on the main one.
//!
//! - `sessions`: local listeners and the life of a client's connection
//! - `expose`: listeners for clients that run no meshport
//! - `egress`: streams of other nodes, to local instances or on to another node
//! - `health`: probes of the local instances, certificates of all origins
//! - `inquiry`: questions of members to each other, for `meshport doctor`
//! - `renewal`: requests of members for their next credential
//! - `node`: the mesh, the core and their feeds, joined
//! - `admin`: the admin socket and HTTP address, and their answers
//! - `vip`: addresses of a LAN that this node holds in turn with others
//! - `wayback`: from apiservers to kubelets, pods and services of other nodes
//! - `findings`: faults of this machine, for a daemon and for a check without one
//! - `lifecycle`: start, reload, sandbox and end of the process

pub mod admin;
mod audit;
#[doc(hidden)]
pub mod bench;
pub mod clock;
mod egress;
mod error;
mod exchange;
mod expose;
pub mod findings;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod health;
mod inquiry;
pub mod lifecycle;
mod log_budget;
mod node;
mod renewal;
pub mod sessions;
pub mod tcp;
#[cfg(test)]
pub(crate) mod testing;
mod unix;
mod vip;
mod wayback;

pub use error::Error;
pub use lifecycle::leaf::Leaf;
pub use lifecycle::reload::Source;
pub use lifecycle::run::{Options, run};
pub use lifecycle::starter::{self, Starter};
pub use node::handle::Handle;
pub use node::write_queue::Snapshot;
pub use node::{Environment, Node};
pub use tcp::store::Inherited;
pub use vip::hooks as vip_hooks;
pub use vip::sockets::VipSockets;
