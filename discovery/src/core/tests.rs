//! Complete nodes in a simulated network: virtual time, seeded loss, and a model of the mesh below.

mod budget;
mod crowd;
mod faults;
mod join;
mod leaf;
mod lies;
mod net;
mod revoke;
