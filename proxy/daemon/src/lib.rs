//! The daemon: all of the product's I/O in one process, with a thread for each shard of the mesh.
//!
//! [`run()`] is the process around one [`Node`]. Data flows one way: clients are accepted and
//! carried in [`sessions`], streams of other nodes arrive in `egress`, decisions are made by the
//! core, which only `driver` touches, and `server` answers requests. Sessions run on the thread of
//! the peer they go to or come from; everything else runs on the main one.
//!
//! From the bottom up; a module uses only those above it in this list:
//!
//! - `tcp`, `unix`, `clock`, `random`, `descriptors`: what the operating system offers
//! - `files`: the files that settings name
//! - `colour`, `log_lines`: whether output has colours; the lines of the programs' logs
//! - `http`: a request over HTTP/1.1, and how TLS clients are set up
//! - `exchange`, `renewal`: a question to another member and its answer; of renewals what a node
//!   keeps
//! - `sessions`: local listeners and the life of a client's connection
//! - `wayback`: from apiservers to kubelets, pods and services of other nodes: its shared state
//! - `admin`: requests and replies of the admin interface, its client, metrics and pages
//! - `audit`: the lines of the audit log
//! - `findings`: faults of this machine, for a daemon and for a check without one
//! - `health`: probes of the local instances, certificates of all origins
//! - `identity`: this node's credential, key and secrets, and their changes
//! - `inquiry`: questions of members to each other, for `meshport doctor`
//! - `expose`: listeners for clients that run no meshport
//! - `vip`: addresses of a LAN that this node holds in turn with others
//! - `report`: what a node knows about itself beside its core, and the replies made of it
//! - `driver`: the loop around the core: events, commands and requests in one order
//! - `egress`: streams of other nodes, to local instances or on to another node, and the socket of
//!   an apiserver's node
//! - `kubernetes`: what is read from the cluster
//! - `server`: the admin socket and HTTP address
//! - `succession`: sessions of an earlier process that go on
//! - `node`: all of these, joined
//! - `lifecycle`: start, reload, sandbox and end of the process

pub mod admin;
mod audit;
#[doc(hidden)]
pub mod bench;
pub mod clock;
pub mod colour;
mod descriptors;
mod driver;
mod egress;
mod error;
mod exchange;
mod expose;
pub mod files;
pub mod findings;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod health;
mod http;
mod identity;
mod inquiry;
mod kubernetes;
pub mod lifecycle;
mod log_budget;
pub mod log_lines;
mod node;
mod random;
mod renewal;
pub mod report;
mod server;
pub mod sessions;
mod succession;
pub mod tcp;
#[cfg(test)]
pub(crate) mod testing;
mod unix;
mod vip;
mod wayback;

pub use driver::handle::Handle;
pub use driver::write_queue::Snapshot;
pub use error::Error;
pub use lifecycle::leaf::Leaf;
pub use lifecycle::reload::Source;
pub use lifecycle::run::{Options, run};
pub use lifecycle::starter::{self, Starter};
pub use node::{Environment, Node};
pub use tcp::store::Inherited;
pub use vip::hooks as vip_hooks;
pub use vip::sockets::VipSockets;
