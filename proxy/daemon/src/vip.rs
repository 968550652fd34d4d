//! Virtual addresses (`[[virtual-address]]`): this node's part in each of them.
//!
//! [`contest`](meshport_core::vip::contest) makes the decisions. A [`task`] per address feeds it
//! frames from the LAN ([`packet`]), claims from the mesh ([`board`]) and the state of this machine
//! ([`station`]). The kernel has the address on its loopback interface and never answers for it on
//! the LAN; the packet socket does, so the node gives up an address when the process ends. Commands
//! in a separate process update anything else that must follow the address ([`hooks`]).

pub(crate) mod board;
pub mod hooks;
pub(crate) mod packet;
pub(crate) mod sockets;
pub(crate) mod start;
pub(crate) mod station;
mod task;
