//! Virtual addresses (`[[virtual-address]]`): this node's part in each.
//!
//! [`contest`](meshport_core::vip::contest) decides; a [`task`] for each address gives it what is
//! heard on the LAN ([`packet`]) and over the mesh ([`board`]), and the state of this machine
//! ([`station`]). The kernel has the address on its loopback interface and never answers for it on
//! the LAN: that is done through the packet socket, so an address ends with the process that holds
//! it. What else has to follow the address does so by commands in a process of their own
//! ([`hooks`]).

pub(crate) mod board;
pub mod hooks;
pub(crate) mod packet;
pub(crate) mod sockets;
pub(crate) mod start;
pub(crate) mod station;
mod task;
