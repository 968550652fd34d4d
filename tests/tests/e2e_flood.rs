//! Twenty thousand handshake initiations a second from addresses that never answer.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use meshport_tests::flood::Flood;
use meshport_tests::identity::Identity;
use meshport_tests::load::{Load, Request, failures};
use meshport_tests::ticks::{self, Watch};
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};

const SETTLE: Duration = Duration::from_secs(40);
/// Initiations a second.
const RATE: u32 = 20_000;
/// Addresses that they come from; each has a port of its own.
const SOURCES: u8 = 200;
/// One request each, and how many are compared.
const INTERVAL: Duration = Duration::from_millis(50);
const REQUESTS: usize = 100;
const PHASE: Duration = Duration::from_secs(60);
/// A node that joins during the flood has to be served within this.
const JOIN_LIMIT: Duration = Duration::from_secs(10);
/// The 99th percentile may be this much worse than without a flood.
const SLOWER: u32 = 5;
/// What a daemon may grow by.
const GROWTH_KIB: u64 = 4096;
/// A watch hears a word every 20 ms; this long a silence is a session that failed.
const SILENCE: Duration = Duration::from_secs(1);

/// A hundred requests, none of which fails; the slowest but one.
fn slowest_but_one(world: &World, local: SocketAddr) -> Duration {
    let load = Load::start(&world.curl(), local, "/version", INTERVAL);
    load.goes_on(REQUESTS, PHASE);
    let requests = load.finish();
    let failed = failures(&requests);
    assert!(failed.is_empty(), "of {} failed:\n{}", requests.len(), failed.join("\n"));
    let mut took: Vec<Duration> = requests.iter().map(|request: &Request| request.took).collect();
    took.sort_unstable();
    took[took.len() * 99 / 100 - 1]
}

#[test]
fn spoofed_initiations_neither_stop_nor_slow_those_who_belong_here() {
    let ticks = ticks::serve();
    let mut world = World::new();
    let address = world.apiserver("cp-a");
    let offer = format!("\n[service.ticks]\nlisten = []\norigin = \"{ticks}\"\n");
    let origin = NodePlan::new("cp-a", "a").origin(address).role("origin:ticks");
    world.node(&origin.settings(&offer));
    let listen = "\n[service.ticks]\nlisten = [\"127.0.0.1:0\"]\n";
    world.node(&NodePlan::new("worker-b", "b").settings(listen));
    world.meet();
    world.chooses("worker-b", "cp-a", SETTLE);
    let local = world.at("worker-b").service("kube-apiserver").expect("it listens");
    let watch = Watch::start(world.at("worker-b").service("ticks").expect("it listens"));
    watch.silent_after(wait::now(), SETTLE);

    let quiet = slowest_but_one(&world, local);
    let before = world.node_mut("cp-a").process().resident_kib();
    let identity = Identity::read(world.at("cp-a").state());
    let events = |world: &World, event: &str| {
        let event = format!("event=\"{event}\"");
        world.at("cp-a").metrics().sum("meshport_mesh_events_total", &event)
    };
    let begun = wait::now();
    let source = |host| {
        let source = IpAddr::V4(Ipv4Addr::new(127, 9, 9, host));
        UdpSocket::bind((source, 0)).expect("loopback has this address")
    };
    let sources = (1..=SOURCES).map(source).collect();
    let flood = Flood::start(identity.node(), world.at("cp-a").udp, sources, RATE);
    let flooded = slowest_but_one(&world, local);
    let joined = wait::now();
    world.node(&NodePlan::new("worker-c", "c"));
    wait::until("a new node is served during the flood", JOIN_LIMIT, || {
        let local = world.at("worker-c").service("kube-apiserver")?;
        world.curl().get(local, "/version").ok().filter(|answer| answer.status == 200)
    });
    let joined = joined.elapsed();
    let (sent, span) = (flood.sent(), begun.elapsed());
    let cookies = events(&world, "cookies_sent");
    drop(flood);
    let after = world.node_mut("cp-a").process().resident_kib();

    let rate = sent as f64 / span.as_secs_f64();
    println!("{rate:.0} initiations a second for {span:.1?}, {cookies} answered with a cookie");
    println!("slowest but one of {REQUESTS}: {quiet:?} before, {flooded:?} during the flood");
    println!(
        "a new node was served {joined:?} after its first step; memory {before} to {after} KiB"
    );
    assert!(rate >= f64::from(RATE) * 0.9, "the flood was none: {rate:.0} a second");
    assert!(cookies > sent as f64 / 2.0, "{cookies} cookies for {sent} initiations");
    assert!(flooded <= quiet * SLOWER, "{quiet:?}, then {flooded:?}");
    assert!(joined <= JOIN_LIMIT, "{joined:?}");
    assert!(after <= before + GROWTH_KIB, "{before} to {after} KiB");
    assert_eq!(watch.connections(), 1, "the session that was open has failed");
    let silence = watch.silent_after(wait::now(), SETTLE);
    assert!(silence <= SILENCE, "{silence:?}");
}
