//! Twenty thousand handshake initiations a second from addresses that never answer: noise, and then
//! good ones of nodes that do not exist.

#![expect(clippy::print_stdout, reason = "figures for the reader of a test run")]

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use meshport_mesh::MeshCount;
use meshport_tests::flood::{self, Flood};
use meshport_tests::identity::Identity;
use meshport_tests::series::{Request, failures};
use meshport_tests::ticks::{self, Watch};
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};

const SETTLE: Duration = Duration::from_secs(40);
/// Initiations per second.
const RATE: u32 = 20_000;
/// Addresses that they come from; each has its own port.
const SOURCES: u8 = 200;
/// Interval between requests, and how many are compared.
const INTERVAL: Duration = Duration::from_millis(50);
const REQUESTS: usize = 50;
const PHASE: Duration = Duration::from_secs(60);
/// A node that joins during the flood must be served within this.
const JOIN_LIMIT: Duration = Duration::from_secs(10);
/// The slowest request but one may be this much slower than without a flood...
const SLOWER: u32 = 5;
/// ...or this, on a machine where other work makes requests slow by itself.
const NOTICED: Duration = Duration::from_secs(2);
/// Limit on the growth of a daemon's memory.
const GROWTH_KIB: u64 = 4096;
/// Fewest valid initiations of strangers that a daemon under load answers in a second: it accepts
/// 200 without a cookie, and those that its socket has no room for are lost.
const ANSWERED: f64 = 100.0;
/// The finding that the operator sees, in the status and once in the log.
const TOLD: &str = "more handshakes arrive than this node answers";
/// A watch receives a message every 20 ms; a silence this much longer than that of a watch which
/// goes straight to the service is a session that stalls.
const SILENCE: Duration = Duration::from_secs(2);

/// Fifty requests, none of which fails; the slowest but one.
fn slowest_but_one(world: &World, local: SocketAddr) -> Duration {
    let load = world.load(local, INTERVAL);
    load.goes_on(REQUESTS, PHASE);
    let requests = load.finish();
    let failed = failures(&requests);
    assert!(failed.is_empty(), "of {} failed:\n{}", requests.len(), failed.join("\n"));
    let mut took: Vec<Duration> = requests.iter().map(|request: &Request| request.took).collect();
    took.sort_unstable();
    took[took.len() - 2]
}

/// Figures of the flooded node.
struct Flooded {
    /// Initiations answered per second.
    answered: f64,
    resident_kib: u64,
}

/// Floods `cp-a` with these while requests continue and `newcomer` joins, and judges both.
fn flooded(
    world: &mut World,
    what: &str,
    newcomer: &str,
    initiations: Vec<Vec<u8>>,
    quiet: Duration,
) -> Flooded {
    let event = |world: &World, event| world.at("cp-a").metrics().count(event);
    let count = |world: &World| {
        [MeshCount::CookiesSent, MeshCount::InitiationsAccepted].map(|it| event(world, it))
    };
    let source = |host| {
        let source = IpAddr::V4(Ipv4Addr::new(127, 9, 9, host));
        UdpSocket::bind((source, 0)).expect("loopback has this address")
    };
    let sources = (1..=SOURCES).map(source).collect();
    let local = world.at("worker-b").service("kube-apiserver").expect("it listens");
    let before = count(world);
    let begun = wait::now();
    let flood = Flood::start(initiations, world.at("cp-a").udp, sources, RATE);
    let slowest = slowest_but_one(world, local);
    let joined = wait::now();
    world.node(&NodePlan::new(newcomer, "c"));
    wait::until("a new node is served during the flood", JOIN_LIMIT, || {
        let local = world.at(newcomer).service("kube-apiserver")?;
        world.curl().get(local, "/version").ok().filter(|answer| answer.status == 200)
    });
    let joined = joined.elapsed();
    let (sent, span) = (flood.sent() as f64, begun.elapsed().as_secs_f64());
    let after = count(world);
    let resident_kib = world.node_mut("cp-a").process().resident_kib();
    let status = world.at("cp-a").status().expect("it answers");
    assert!(status["warnings"].to_string().contains(TOLD), "{what}: {}", status["warnings"]);
    drop(flood);

    let [cookies, answered] = [after[0] - before[0], after[1] - before[1]];
    let rate = sent / span;
    println!("{what}: {rate:.0} initiations a second for {span:.1} s, {cookies} cookies");
    println!("{what}: slowest but one of {REQUESTS}: {quiet:?} before, {slowest:?} then");
    println!("{what}: a new node was served {joined:?} after its first step");
    assert!(rate >= f64::from(RATE) / 2.0, "the flood was none: {rate:.0} a second");
    // On a busy machine most do not fit into the socket; without cookies there would be none.
    assert!(cookies > sent / 10.0, "{what}: {cookies} cookies for {sent} initiations");
    assert!(slowest <= NOTICED.max(quiet * SLOWER), "{what}: {quiet:?}, then {slowest:?}");
    assert!(joined <= JOIN_LIMIT, "{what}: {joined:?}");
    Flooded { answered: answered / span, resident_kib }
}

#[test]
fn spoofed_initiations_neither_stop_nor_slow_members() {
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
    let straight = Watch::start(ticks);
    straight.silent_after(wait::now(), SETTLE);

    let quiet = slowest_but_one(&world, local);
    let before = world.node_mut("cp-a").process().resident_kib();
    let node = Identity::read(world.at("cp-a").state()).node();
    let begun = wait::now();
    let noisy = flooded(&mut world, "noise", "worker-c", flood::noise(&node), quiet);
    let invented = flooded(&mut world, "invented", "worker-d", flood::invented(&node), quiet);
    for (what, answered) in [("noise", noisy.answered), ("invented", invented.answered)] {
        println!("{what}: {answered:.0} initiations a second were answered");
    }
    assert!(noisy.answered < ANSWERED / 10.0, "noise was answered");
    assert!(invented.answered > ANSWERED, "good initiations were none");
    for (what, after) in [("noise", noisy.resident_kib), ("invented", invented.resident_kib)] {
        println!("memory {before} KiB before, {after} KiB after {what}");
        assert!(after <= before + GROWTH_KIB, "{what}: {before} to {after} KiB");
    }
    let log = world.node_mut("cp-a").process().output();
    let told: Vec<&str> = log.lines().filter(|line| line.contains(TOLD)).collect();
    assert!(matches!(told[..], [line] if line.contains("WARN")), "two floods, at once: {told:?}");
    assert_eq!(watch.connections(), 1, "the session that was open has failed");
    let [silence, usual] = [&watch, &straight].map(|it| it.longest_gap(begun));
    println!("the longest silence of the open session in {:?}: {silence:?}", begun.elapsed());
    println!("and of one that goes straight to the service: {usual:?}");
    assert!(silence <= usual + SILENCE, "the open session was silent for {silence:?}");
}
