//! A standard WireGuard peer in a network namespace of its own.

mod namespaces;
mod wireguard;
