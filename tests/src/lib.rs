//! Shared code of the tests: reading the repository, building and running the real binary, waiting
//! for conditions, and small worlds of sites, nodes and apiservers for the end-to-end tests.
//!
//! The helpers panic with a full sentence when something fails: their callers are tests. Every
//! process that is started here is also ended here, by its own handle.

pub mod clients;
pub mod curl;
pub mod doctor;
pub mod echo;
pub mod flood;
pub mod http;
pub mod identity;
pub mod instances;
pub mod kubelet;
pub mod kubernetes;
pub mod machine;
pub mod manual;
pub mod metrics;
pub mod net;
pub mod netns;
pub mod page;
pub mod process;
pub mod repository;
pub mod sbom;
pub mod series;
pub mod sessions;
pub mod tap;
pub mod ticks;
pub mod transfer;
pub mod wait;
pub mod wireguard;
pub mod witness;
pub mod world;
