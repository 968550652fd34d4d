//! A standard WireGuard peer in its own network namespace.

mod namespaces;
mod setup;
mod wireguard;
