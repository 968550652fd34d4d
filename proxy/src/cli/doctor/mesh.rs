//! Checks of the mesh: seeds, this node's credential, and everything that only the daemon knows.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use meshport_config::{Endpoint, Host, NodeId, Revocations, Seed};
use meshport_core::findings::{
    AUTHORITY_KEY_HERE, BOTH_BEHIND_NAT, CLIENT_IDLES, CLIENT_OVER_SHARE, CREDENTIAL_ENDS,
    DIRECTORY_FULL, EGRESS_UNUSED, EVENTS_NOT_POSTED, FLOOD, Finding, KEY_USED_TWICE, Kind,
    MANDATE_ENDS, NEEDS_RESTART, NO_ANSWERS, NO_ORIGIN, NO_ORIGIN_ANSWERS, NONE_READY, NOT_ALLOWED,
    OFFERS_NOTHING, OVERLOADED, PROBE_REFUSED, RENEWAL_FAILS, ROLE_MISSING, ROSTER_DIFFERS,
    SAME_NAMES, SECRET_LAGGING, SEED_NAME, SEED_SILENT, SESSIONS_FULL, STATE_NOT_STORED, STOPPING,
    UNKNOWN_MESSAGES, VIRTUAL_ADDRESS_ALONE, VIRTUAL_ADDRESS_OBSTACLE, WRONG_CLOCK,
};
use tokio::net::UdpSocket;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::checks::{Check, Looked};
use super::facts::{Daemon, Facts};
use super::report::Skip;
use meshport_daemon::admin::api::PeerRow;
use meshport_daemon::findings;

/// The kinds that only the daemon can detect.
const REPORTED: [&Kind; 28] = [
    &BOTH_BEHIND_NAT,
    &NEEDS_RESTART,
    &STOPPING,
    &SESSIONS_FULL,
    &CLIENT_OVER_SHARE,
    &CLIENT_IDLES,
    &OVERLOADED,
    &STATE_NOT_STORED,
    &EVENTS_NOT_POSTED,
    &VIRTUAL_ADDRESS_OBSTACLE,
    &VIRTUAL_ADDRESS_ALONE,
    &KEY_USED_TWICE,
    &SAME_NAMES,
    &ROLE_MISSING,
    &FLOOD,
    &DIRECTORY_FULL,
    &SECRET_LAGGING,
    &RENEWAL_FAILS,
    &MANDATE_ENDS,
    &UNKNOWN_MESSAGES,
    &PROBE_REFUSED,
    &ROSTER_DIFFERS,
    &EGRESS_UNUSED,
    &NO_ORIGIN,
    &NO_ORIGIN_ANSWERS,
    &NOT_ALLOWED,
    &OFFERS_NOTHING,
    &NONE_READY,
];
/// How long to wait for an ICMP refusal of a datagram: two round trips around the world.
const REFUSAL: Duration = Duration::from_millis(600);
/// The maximum number of endpoints tried in parallel: 64 seeds with 8 each.
const MAX_TRIED: usize = 512;

pub(super) fn checks(facts: &Arc<Facts>) -> Vec<Check> {
    let of_names = facts.clone();
    let of_seeds = facts.clone();
    vec![
        Check::new(&[&SEED_NAME], async move { Ok(names(&of_names.seeds()?).await) }),
        Check::new(&[&NO_ANSWERS, &SEED_SILENT], async move { seeds(&of_seeds).await }),
        Check::of_files(&[&CREDENTIAL_ENDS, &AUTHORITY_KEY_HERE], facts, own),
        Check::of_files(&REPORTED, facts, |facts| {
            let daemon = facts.daemon()?;
            Ok(REPORTED.iter().flat_map(|kind| daemon.found(kind)).collect())
        }),
    ]
}

/// Seeds whose name does not resolve; without another seed the node does not find the mesh.
async fn names(seeds: &[Seed]) -> Vec<Finding> {
    let endpoints: Vec<&Endpoint> = seeds.iter().flat_map(|seed| &seed.endpoints).collect();
    let mut asked = JoinSet::new();
    for endpoint in endpoints.iter().take(MAX_TRIED) {
        if let Host::Name(name) = endpoint.host() {
            let (name, port) = (name.clone(), endpoint.port());
            asked.spawn(async move {
                let looked_up = tokio::net::lookup_host((name.as_str(), port)).await;
                looked_up.err().map(|error| (name, error))
            });
        }
    }
    let mut failed: Vec<(String, io::Error)> =
        asked.join_all().await.into_iter().flatten().collect();
    failed.sort_by(|(a, _), (b, _)| a.cmp(b));
    failed.dedup_by(|(a, _), (b, _)| a == b);
    let is_lost = |endpoint: &&Endpoint| match endpoint.host() {
        Host::Name(name) => failed.iter().any(|(lost, _)| lost == name),
        Host::Ip(_) => false,
    };
    let none_is_left = endpoints.iter().all(is_lost);
    let found = |(name, error): &(String, io::Error)| {
        let text = format!("the seed {name} does not resolve: {error}");
        if none_is_left { SEED_NAME.broken(text) } else { SEED_NAME.found(text) }
    };
    failed.iter().map(found).collect()
}

async fn seeds(facts: &Facts) -> Looked {
    match &facts.daemon {
        Ok(daemon) => Ok(known_silent(facts, daemon)),
        Err(_) => refused(&facts.seeds()?).await,
    }
}

/// The daemon's findings, and the seeds that are silent while others answer.
fn known_silent(facts: &Facts, daemon: &Daemon) -> Vec<Finding> {
    let mut found = daemon.found(&NO_ANSWERS);
    found.extend(daemon.found(&SEED_SILENT));
    if found.is_empty() {
        let seeds = facts.seeds().unwrap_or_default();
        found = silent(&seeds, daemon.status.me.node, &daemon.peers, &revocations(facts));
    }
    found
}

/// Those in the state folder; none if they cannot be read.
fn revocations(facts: &Facts) -> Revocations {
    let read = || {
        let state = facts.state().ok()?;
        state.revocations(&state.credential().ok()??.mesh).ok()
    };
    read().unwrap_or_default()
}

/// A seed is listed with the key that it had when this node joined; it may have another one now.
fn silent(seeds: &[Seed], me: NodeId, peers: &[PeerRow], all: &Revocations) -> Vec<Finding> {
    let answers = |node: NodeId| {
        let row = peers.iter().find(|row| row.node == node);
        row.is_some_and(|row| match row.liveness.as_str() {
            "down" | "left" => false,
            "alive" => true,
            _ => row.handshake_age_s.is_some(),
        })
    };
    let seeds = seeds.iter().map(|seed| (all.successor_of(&seed.node), seed));
    let mut found: Vec<Finding> = Vec::new();
    for (node, seed) in seeds.filter(|(node, _)| *node != me && !answers(*node)) {
        let row = peers.iter().find(|row| row.node == node);
        let name = row.and_then(|row| row.name.as_ref().map(ToString::to_string));
        let name = name.unwrap_or_else(|| node.short());
        let at: Vec<String> = seed.endpoints.iter().map(Endpoint::to_string).collect();
        let text = format!("the seed {name} at {} does not answer", at.join(", "));
        if found.iter().all(|it| it.detail != text) {
            found.push(SEED_SILENT.found(text));
        }
    }
    found
}

/// Without a daemon there is no handshake, but a datagram shows whether a route exists and whether
/// the target reports a closed port.
async fn refused(seeds: &[Seed]) -> Looked {
    let mut tried = JoinSet::new();
    let endpoints = seeds.iter().flat_map(|seed| &seed.endpoints).take(MAX_TRIED);
    for endpoint in endpoints {
        let endpoint = endpoint.clone();
        tried.spawn(async move {
            let address = resolve(&endpoint).await?;
            Some((address, send(address).await))
        });
    }
    let tried: Vec<(SocketAddr, io::Result<()>)> =
        tried.join_all().await.into_iter().flatten().collect();
    let is_unsendable = |it: &io::Result<()>| {
        it.as_ref().is_err_and(|error| error.kind() != ErrorKind::ConnectionRefused)
    };
    if tried.is_empty() {
        return Err("no seed has an address".into());
    }
    if tried.iter().all(|(_, it)| is_unsendable(it)) {
        let said =
            tried.iter().filter_map(|(at, it)| Some(format!("{at}: {}", it.as_ref().err()?)));
        let mut said: Vec<String> = said.collect();
        said.sort();
        said.dedup();
        let said = format!("cannot send UDP to any seed: {}", said.join("; "));
        return Ok(vec![NO_ANSWERS.found(said)]);
    }
    let refusal = |(at, it): (SocketAddr, io::Result<()>)| {
        let refuses = it.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused);
        refuses.then(|| SEED_SILENT.found(format!("nothing listens at the seed's address {at}")))
    };
    let mut found: Vec<Finding> = tried.into_iter().filter_map(refusal).collect();
    found.sort_by(|a, b| a.detail.cmp(&b.detail));
    found.dedup();
    Ok(found)
}

/// An endpoint that does not resolve is reported by [`names`].
async fn resolve(endpoint: &Endpoint) -> Option<SocketAddr> {
    match endpoint.host() {
        Host::Ip(ip) => Some(SocketAddr::new(*ip, endpoint.port())),
        Host::Name(name) => {
            tokio::net::lookup_host((name.as_str(), endpoint.port())).await.ok()?.next()
        }
    }
}

/// Sends one byte, which no WireGuard node accepts as a message, and waits for a refusal.
async fn send(to: SocketAddr) -> io::Result<()> {
    let any: SocketAddr = match to {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(to).await?;
    socket.send(&[0]).await?;
    match timeout(REFUSAL, socket.recv(&mut [0; 1])).await {
        Ok(Err(error)) => Err(error),
        // An answer, or silence.
        Ok(Ok(_)) | Err(_) => Ok(()),
    }
}

/// The running daemon's view, if any: its credential may be newer than the one on disk.
fn own(facts: &Facts) -> Looked {
    if let Ok(daemon) = &facts.daemon {
        let kinds = [&CREDENTIAL_ENDS, &AUTHORITY_KEY_HERE];
        return Ok(kinds.into_iter().flat_map(|kind| daemon.found(kind)).collect());
    }
    let of_credential = of_credential(facts)?.filter(|it| *it.kind == CREDENTIAL_ENDS);
    let key = meshport_state::authority_key_in(facts.state_dir()?);
    Ok(of_credential.into_iter().chain(findings::of_authority_key(&key)).collect())
}

/// Whether the credential shows that this machine's clock is wrong.
pub(super) fn clock(facts: &Facts) -> Looked {
    if let Ok(daemon) = &facts.daemon {
        return Ok(daemon.found(&WRONG_CLOCK));
    }
    Ok(of_credential(facts)?.into_iter().filter(|it| *it.kind == WRONG_CLOCK).collect())
}

fn of_credential(facts: &Facts) -> Result<Option<Finding>, Skip> {
    let credential = facts.state()?.credential().map_err(|error| error.to_string())?;
    Ok(credential.and_then(|own| findings::of_credential(&own, facts.now)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshport_config::{AuthorityKey, NodeKey, Revocation, Succession, UnixSeconds};
    use meshport_core::findings::Severity;

    fn run<T>(work: impl Future<Output = T>) -> T {
        crate::cli::runtime().expect("a runtime").block_on(work)
    }

    fn seed(number: u8, endpoints: &[&str]) -> Seed {
        let endpoints = endpoints.iter().map(|it| it.parse().expect("an endpoint")).collect();
        Seed::new(NodeId::from_bytes([number; 32]), endpoints).expect("a seed")
    }

    fn peer(number: u8, liveness: &str) -> PeerRow {
        PeerRow {
            lacks: None,
            way_back: None,
            node: NodeId::from_bytes([number; 32]),
            name: Some(format!("cp-{number}").parse().expect("a name")),
            site: None,
            roles: None,
            invite: None,
            authority: None,
            liveness: liveness.into(),
            endpoint: None,
            handshake_age_s: None,
            rtt_ms: None,
            rx_bytes: 0,
            tx_bytes: 0,
        }
    }

    #[test]
    fn a_name_that_does_not_resolve_is_reported_and_is_worse_alone() {
        let good = seed(1, &["127.0.0.1:1", "localhost:1"]);
        assert_eq!(run(names(std::slice::from_ref(&good))), []);
        let bad = seed(2, &["seed.invalid:1", "seed.invalid:2"]);
        let [alone] = &run(names(std::slice::from_ref(&bad)))[..] else { panic!("one finding") };
        assert_eq!((alone.kind.id, alone.severity), ("MP201", Severity::Error));
        assert!(alone.detail.starts_with("the seed seed.invalid does not resolve"), "{alone}");
        let [beside] = &run(names(&[good, bad]))[..] else { panic!("one finding") };
        assert_eq!(beside.severity, Severity::Warning);
    }

    #[test]
    fn a_seed_that_is_down_or_unknown_is_reported() {
        let seeds = [seed(1, &["10.0.0.1:1"]), seed(2, &["10.0.0.2:1"]), seed(3, &["10.0.0.3:1"])];
        let me = NodeId::from_bytes([3; 32]);
        let silent =
            |seeds: &[Seed], peers: &[PeerRow]| silent(seeds, me, peers, &Revocations::default());
        assert_eq!(silent(&seeds, &[peer(1, "alive"), peer(2, "alive")]), []);
        let found = silent(&seeds, &[peer(1, "down")]);
        let [down, unknown] = &found[..] else { panic!("{found:?}") };
        assert_eq!(down.detail, "the seed cp-1 at 10.0.0.1:1 does not answer");
        assert!(unknown.detail.contains("10.0.0.2:1") && unknown.kind.id == "MP202", "{unknown}");
        let handshake = PeerRow { handshake_age_s: Some(3), ..peer(1, "unknown") };
        assert_eq!(silent(&seeds[..1], &[handshake]), []);
    }

    #[test]
    fn a_seed_with_a_new_key_is_looked_for_under_that() {
        let mesh = AuthorityKey::from_bytes([9; 32]).public();
        let former = NodeKey::from_bytes([1; 32]);
        let listed = Seed::new(former.public(), vec!["10.0.0.1:1".parse().expect("an endpoint")]);
        let (seeds, me) = ([listed.expect("a seed")], NodeId::from_bytes([3; 32]));
        let now = NodeId::from_bytes([2; 32]);
        let agreed = Succession::agree(&former, &now, &mesh, UnixSeconds(1));
        let mut all = Revocations::default();
        all.add(Revocation::of_succession(&mesh, &now, &agreed));
        assert_eq!(silent(&seeds, me, &[peer(2, "alive")], &all), []);
        assert_eq!(silent(&seeds, now, &[], &all), [], "it is this node");
        let found = silent(&seeds, me, &[peer(2, "down")], &all);
        assert!(matches!(&found[..], [it] if it.detail.contains("seed cp-2 at")), "{found:?}");
    }

    #[test]
    fn a_closed_port_and_a_missing_network_are_reported() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
        let address = socket.local_addr().expect("an address").to_string();
        let of_socket = [seed(1, &[&address])];
        let refused = |seeds: &[Seed]| run(refused(seeds)).expect("they have addresses");
        assert_eq!(refused(&of_socket), []);
        drop(socket);
        let found = refused(&of_socket);
        assert!(matches!(&found[..], [it] if it.kind.id == "MP202"), "{found:?}");
        // The system does not permit sending to the broadcast address.
        let found = refused(&[seed(2, &["255.255.255.255:1"])]);
        assert!(matches!(&found[..], [it] if it.kind.id == "MP104"), "{found:?}");
    }
}
