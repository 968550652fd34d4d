//! Where things are reachable: this node from outside, and the seeds from here.
//!
//! Names are looked up anew on a timer and before a seed is given up, since an address that was
//! right at the start need not be right for ever.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use meshport_config::{Endpoint, Host, NodeId, Seed};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use super::driver::Order;

/// From one look-up of the seeds' names to the next.
const REFRESH: Duration = Duration::from_secs(60);
/// From one look-up to the next while no name could be looked up at all.
const RETRY: Duration = Duration::from_secs(2);
/// How long one look-up may take.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);
/// Addresses used of one seed: more are not tried by the mesh at once either.
const MAX_ADDRESSES: usize = 8;
/// Addresses of documentation (RFC 5737, RFC 3849): the kernel's choice of a source address
/// towards them is its choice towards the internet. Nothing is sent there.
const ANYWHERE: [SocketAddr; 2] = [
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 9),
    SocketAddr::new(IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)), 9),
];

/// Looks the seeds up for ever and tells the driver whenever the addresses changed.
pub(super) async fn follow_seeds(seeds: Vec<Seed>, orders: mpsc::Sender<Order>) {
    let has_names = seeds
        .iter()
        .flat_map(|seed| &seed.endpoints)
        .any(|endpoint| matches!(endpoint.host(), Host::Name(_)));
    let mut known = None;
    loop {
        let mut found = Vec::new();
        for seed in &seeds {
            found.push((seed.node, resolve(&seed.endpoints).await));
        }
        let complete = found.iter().any(|(_, addresses)| !addresses.is_empty());
        if known.as_ref() != Some(&found) {
            known = Some(found.clone());
            if orders.send(Order::Seeds(found)).await.is_err() {
                return;
            }
        }
        if !has_names {
            return;
        }
        sleep(if complete { REFRESH } else { RETRY }).await;
    }
}

/// The addresses of some endpoints, each once, in order.
pub(super) async fn resolve(endpoints: &[Endpoint]) -> Vec<SocketAddr> {
    let mut addresses = Vec::new();
    for endpoint in endpoints {
        match endpoint.host() {
            Host::Ip(ip) => push(&mut addresses, SocketAddr::new(*ip, endpoint.port())),
            Host::Name(name) => {
                let lookup = tokio::net::lookup_host((name.as_str(), endpoint.port()));
                match timeout(LOOKUP_TIMEOUT, lookup).await {
                    Ok(Ok(found)) => found.for_each(|address| push(&mut addresses, address)),
                    Ok(Err(error)) => debug!(name, %error, "cannot look up a name"),
                    Err(_elapsed) => debug!(name, "looking up a name took too long"),
                }
            }
        }
    }
    addresses
}

fn push(addresses: &mut Vec<SocketAddr>, address: SocketAddr) {
    if addresses.len() < MAX_ADDRESSES && !addresses.contains(&address) {
        addresses.push(address);
    }
}

/// Where this node can be reached when the configuration does not say: its own addresses towards
/// the seeds and towards the internet, with the port of the mesh.
pub(super) fn guess(mesh: SocketAddr, seeds: &[(NodeId, Vec<SocketAddr>)]) -> Vec<SocketAddr> {
    if !mesh.ip().is_unspecified() {
        return vec![mesh];
    }
    let towards = seeds.iter().flat_map(|(_, addresses)| addresses).chain(&ANYWHERE);
    let ips: BTreeSet<IpAddr> = towards.filter_map(|to| source_towards(*to)).collect();
    let outward = ips.iter().any(|ip| !ip.is_loopback());
    let ips = ips.into_iter().filter(|ip| !outward || !ip.is_loopback());
    let mut guessed = Vec::new();
    ips.for_each(|ip| push(&mut guessed, SocketAddr::new(ip, mesh.port())));
    if guessed.is_empty() {
        warn!("this machine has no address others could reach; set mesh.advertise");
    }
    guessed
}

/// The address the kernel would send from. Connecting a UDP socket sends nothing.
fn source_towards(to: SocketAddr) -> Option<IpAddr> {
    let any: IpAddr =
        if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(to).ok()?;
    let ip = socket.local_addr().ok()?.ip();
    (!ip.is_unspecified()).then_some(ip)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_address_is_the_endpoint() {
        let bound: SocketAddr = "127.0.0.7:4000".parse().expect("an address");
        assert_eq!(guess(bound, &[]), [bound]);
    }

    #[test]
    fn on_loopback_the_way_to_the_seed_tells() {
        assert_eq!(
            source_towards("127.0.0.1:9".parse().expect("an address")),
            Some(Ipv4Addr::LOCALHOST.into())
        );
    }

    #[tokio::test]
    async fn names_and_addresses_resolve_once_each() {
        let endpoints = ["127.0.0.1:7", "localhost:7", "127.0.0.1:7", "name.invalid:7"];
        let endpoints: Vec<Endpoint> =
            endpoints.iter().map(|text| text.parse().expect("an endpoint")).collect();
        let addresses = resolve(&endpoints).await;
        let first: SocketAddr = "127.0.0.1:7".parse().expect("an address");
        assert_eq!(addresses.iter().filter(|address| **address == first).count(), 1);
    }
}
