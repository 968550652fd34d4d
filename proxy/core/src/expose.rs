//! Listeners for clients outside the mesh: who may use them, and which service they reach.
//!
//! [`gate`] judges a client at accept, before a byte of it is read; [`header`] reads and writes the
//! PROXY protocol of balancers; [`names`] chooses the service by TLS server name.

pub mod gate;
pub mod header;
pub mod names;
