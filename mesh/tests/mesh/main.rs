//! The mesh as its users see it: on a network in memory, mostly in stopped time, and over real UDP
//! sockets on loopback.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod common;

mod batches;
mod blocked;
mod delivery;
mod distance;
mod flood_rekey;
mod long;
mod narrow;
mod restart;
mod session;
mod shards;
mod succession;
mod transfer;
