//! Tests on a real control plane: kubectl, controllers and the Python client through every fault.

mod beside;
mod control_plane;
mod drill;
mod faults;
mod forward;
mod gateway;
mod long;
mod routes;
mod stalls;
mod strict;
mod virtual_address;
mod watches;
mod wayback;
mod worker;
