//! What `meshport demo` and the end-to-end tests are made of, next to the emulated WAN in
//! [`crate::wan`].
//!
//! * [`apiserver`] is a stand-in for a Kubernetes apiserver, with the faults real ones have.
//! * [`client`] is an HTTPS client that says which origin answered and how long it took.
//! * [`table`] renders the live table and the summary.

pub mod apiserver;
pub mod client;
pub mod table;
