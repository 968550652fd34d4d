//! Endpoints: this node's addresses for others, and the seeds' addresses.
//!
//! Names are resolved repeatedly, since addresses may change. After a failed lookup the previous
//! addresses stay.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use meshport_config::{Endpoint, Host, NodeId, Seed};
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use meshport_core::reach::OwnEndpoints;

use crate::driver::commands::Command;

/// Interval between lookups of all names.
const REFRESH: Duration = Duration::from_secs(60);
/// The same after a failed lookup; doubles up to [`REFRESH`].
const RETRY: Duration = Duration::from_secs(2);
/// How long one lookup may take.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);
/// Addresses used of one seed: the mesh tries no more at once either.
const MAX_ADDRESSES: usize = 8;
/// Documentation addresses (RFC 5737, RFC 3849): the kernel picks the same source address for them
/// as for the internet. Nothing is sent there.
pub(crate) const ANYWHERE: [SocketAddr; 2] = [
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 9),
    SocketAddr::new(IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)), 9),
];

/// Periodically resolves the seeds and this node's advertised endpoints, and reports changed
/// addresses to the driver.
pub(crate) async fn follow(
    seeds: Vec<Seed>,
    mut advertise: watch::Receiver<Vec<Endpoint>>,
    commands: mpsc::Sender<Command>,
) {
    let mut own = Vec::new();
    let mut known: Vec<(NodeId, Vec<SocketAddr>)> =
        seeds.iter().map(|seed| (seed.node, Vec::new())).collect();
    let mut pause = RETRY;
    loop {
        let wanted = advertise.borrow_and_update().clone();
        let mut changed = Vec::new();
        let mut complete = true;
        // The driver's guess stays when nothing is advertised.
        if !wanted.is_empty() && refresh(&mut own, &wanted, MAX_ADDRESSES, &mut complete).await {
            changed.push(Command::Endpoints(OwnEndpoints::Advertised(own.clone())));
        }
        let mut moved = false;
        for (seed, (_, addresses)) in seeds.iter().zip(&mut known) {
            moved |= refresh(addresses, &seed.endpoints, MAX_ADDRESSES, &mut complete).await;
        }
        if moved {
            changed.push(Command::Seeds(known.clone()));
        }
        for command in changed {
            if commands.send(command).await.is_err() {
                return;
            }
        }
        let wait = if complete { REFRESH } else { pause };
        pause = if complete { RETRY } else { (pause * 2).min(REFRESH) };
        let named = seeds.iter().flat_map(|seed| &seed.endpoints).chain(&wanted).any(is_name);
        tokio::select! {
            () = sleep(wait), if named => {}
            changed = advertise.changed() => if changed.is_err() { return },
        }
    }
}

/// Looks up `endpoints` again; returns whether `addresses`, at most `most`, changed. Clears
/// `complete` if a name was not found; the addresses known before are then kept in addition to the
/// new ones.
pub(crate) async fn refresh(
    addresses: &mut Vec<SocketAddr>,
    endpoints: &[Endpoint],
    most: usize,
    complete: &mut bool,
) -> bool {
    let (mut found, all) = resolve(endpoints, most).await;
    if !all {
        *complete = false;
        addresses.iter().for_each(|address| push_up_to(most, &mut found, *address));
    }
    let changed = found != *addresses;
    *addresses = found;
    changed
}

/// The addresses of some endpoints, each once, in order, and whether all names were found.
async fn resolve(endpoints: &[Endpoint], most: usize) -> (Vec<SocketAddr>, bool) {
    let mut addresses = Vec::new();
    let mut all = true;
    for endpoint in endpoints {
        match endpoint.host() {
            Host::Ip(ip) => {
                push_up_to(most, &mut addresses, SocketAddr::new(*ip, endpoint.port()));
            }
            Host::Name(name) => {
                let lookup = tokio::net::lookup_host((name.as_str(), endpoint.port()));
                match timeout(LOOKUP_TIMEOUT, lookup).await {
                    Ok(Ok(found)) => {
                        found.for_each(|address| push_up_to(most, &mut addresses, address));
                        continue;
                    }
                    Ok(Err(error)) => debug!(name, %error, "cannot resolve a name"),
                    Err(_elapsed) => debug!(name, "timed out resolving a name"),
                }
                all = false;
            }
        }
    }
    (addresses, all)
}

/// The endpoints that are addresses already.
pub(crate) fn plain(endpoints: &[Endpoint]) -> Vec<SocketAddr> {
    let mut addresses = Vec::new();
    let known = endpoints.iter().filter_map(Endpoint::socket_addr);
    known.for_each(|address| push(&mut addresses, address));
    addresses
}

pub(crate) fn is_name(endpoint: &Endpoint) -> bool {
    matches!(endpoint.host(), Host::Name(_))
}

/// Addresses to try for a node, configured and announced ones in turn, since the mesh tries only
/// the first few and either kind may be unreachable from here.
pub(crate) fn hints(configured: &[SocketAddr], announced: &[SocketAddr]) -> Vec<SocketAddr> {
    let mut hints = Vec::new();
    for at in 0..configured.len().max(announced.len()) {
        let both = [configured.get(at), announced.get(at)];
        both.into_iter().flatten().for_each(|address| push(&mut hints, *address));
    }
    hints
}

fn push(addresses: &mut Vec<SocketAddr>, address: SocketAddr) {
    push_up_to(MAX_ADDRESSES, addresses, address);
}

fn push_up_to(most: usize, addresses: &mut Vec<SocketAddr>, address: SocketAddr) {
    if addresses.len() < most && !addresses.contains(&address) {
        addresses.push(address);
    }
}

/// This node's addresses if none are configured: its source addresses towards the seeds and the
/// internet, with the port of the mesh.
pub(crate) fn guess(mesh: SocketAddr, seeds: &[(NodeId, Vec<SocketAddr>)]) -> Vec<SocketAddr> {
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
        warn!("this machine has no address that other nodes could reach; set mesh.advertise");
    }
    guessed
}

/// The address the kernel would send from. Connecting a UDP socket sends nothing.
pub(crate) fn source_towards(to: SocketAddr) -> Option<IpAddr> {
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
    fn on_loopback_the_path_to_the_seed_decides() {
        assert_eq!(
            source_towards("127.0.0.1:9".parse().expect("an address")),
            Some(Ipv4Addr::LOCALHOST.into())
        );
    }

    fn address(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    fn endpoints(texts: &[&str]) -> Vec<Endpoint> {
        texts.iter().map(|text| text.parse().expect("an endpoint")).collect()
    }

    #[tokio::test]
    async fn names_and_addresses_resolve_once_each() {
        let wanted = endpoints(&["127.0.0.1:7", "localhost:7", "127.0.0.1:7"]);
        let (addresses, all) = resolve(&wanted, MAX_ADDRESSES).await;
        assert!(all);
        assert_eq!(addresses.iter().filter(|it| **it == address("127.0.0.1:7")).count(), 1);
    }

    #[tokio::test]
    async fn a_failed_look_up_takes_nothing_away() {
        let mut known = vec![address("192.0.2.1:7")];
        let mut complete = true;
        let wanted = endpoints(&["127.0.0.1:7", "name.invalid:7"]);
        assert!(refresh(&mut known, &wanted, MAX_ADDRESSES, &mut complete).await);
        assert_eq!(known, [address("127.0.0.1:7"), address("192.0.2.1:7")]);
        assert!(!complete);
    }

    #[test]
    fn configured_and_announced_addresses_take_turns() {
        let [one, two, three] = ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"].map(address);
        assert_eq!(hints(&[one], &[]), [one]);
        assert_eq!(hints(&[one, two], &[three, one]), [one, three, two]);
    }

    #[tokio::test]
    async fn what_is_advertised_follows_a_reload() {
        let (sender, advertise) = watch::channel(endpoints(&["192.0.2.1:7"]));
        let (commands, mut received) = mpsc::channel(1);
        tokio::spawn(follow(Vec::new(), advertise, commands));
        for wanted in ["192.0.2.1:7", "192.0.2.2:7"] {
            sender.send_replace(endpoints(&[wanted]));
            let command = timeout(LOOKUP_TIMEOUT, received.recv()).await.expect("soon");
            let Some(Command::Endpoints(OwnEndpoints::Advertised(own))) = command else {
                panic!("{command:?}")
            };
            assert_eq!(own, [address(wanted)]);
        }
    }
}
