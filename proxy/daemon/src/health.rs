//! Health of the local instances, and the certificates of all origins.

pub mod certificate;
pub mod certificates;
pub mod handshake;
pub(crate) mod load;
pub(crate) mod probe;
