//! The pure decisions of a node.
//!
//! [`node::NodeCore`] joins membership, the health of the local instances and the choice of routes
//! behind one interface; the daemon and the simulator drive the same code. Nothing here reads a
//! clock, opens a socket or asks the operating system for randomness: time and seeds are arguments.

pub mod access;
pub mod believed;
pub mod changes;
pub mod connect;
pub mod counter_hash;
pub mod credit;
mod damping;
pub mod drift;
pub mod duplicates;
pub mod egress;
pub mod evidence;
pub mod expose;
pub mod findings;
pub mod health;
pub mod history;
pub mod inquiry;
pub mod journal;
pub mod ledger;
pub mod names;
pub mod node;
pub mod offered;
pub mod opening;
pub mod outbox;
pub mod overlap;
pub mod pace;
pub mod patience;
pub mod policy;
pub mod quota;
pub mod reach;
pub mod relay;
pub mod remote_view;
pub mod renewal;
pub mod roster;
pub mod route;
pub mod seeds;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod timing;
pub mod units;
pub mod unknown;
pub mod view;
pub mod vip;
pub mod wayback;
pub mod wire;
