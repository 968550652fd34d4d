//! Sessions of local clients, from the local address to the serving or relaying node.

pub(crate) mod arrived;
pub(crate) mod attempt;
pub(crate) mod claim;
pub mod client;
pub(crate) mod durations;
pub(crate) mod exposed;
pub(crate) mod ingress;
pub(crate) mod listen;
pub(crate) mod origins;
pub(crate) mod pacing;
pub(crate) mod quota;
pub(crate) mod registry;
pub(crate) mod splice;
pub(crate) mod totals;
