//! Paths whose MTU is less than QUIC needs: a quiet client that downloads, so that only the
//! origin's node can notice that its packets are lost, and clients that send requests all the time.

#![expect(clippy::print_stdout, reason = "figures for the reader of a test run")]

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use meshport_demo::wan::{LinkConfig, Rate};
use meshport_tests::series::{Load, failures};
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};

/// How long routes may take to settle, on a busy machine.
const SETTLE: Duration = Duration::from_secs(40);
/// How long a client may wait for data when the hole opens. Without word from the origin it takes
/// the next long probe, after 17 s.
const SILENCE: Duration = Duration::from_secs(4);
/// How long the download is watched.
const WATCHED: Duration = Duration::from_secs(15);
/// Clients that ask one after the other, on a new connection each time, and their pace.
const CLIENTS: usize = 4;
const PACE: Duration = Duration::from_millis(100);
/// Requests that are answered before the hole opens, and after the download continues.
const REQUESTS: usize = 10;
/// An MTU a little below the 1308 bytes that QUIC's smallest packet takes in a tunnel over IPv4.
const HOLE: usize = 1300;
/// The smallest MTU of IPv6, and the smallest at which fragments pass.
const NARROW: [usize; 2] = [1280, 736];
const LINKS: [(&str, &str, u64); 3] = [("a", "b", 5), ("a", "c", 80), ("b", "c", 80)];

/// The way from the origin to the client, slow enough for a download that outlasts the test.
fn way(mtu: usize) -> LinkConfig {
    let rate = Some(Rate::new(10_000_000, Duration::from_millis(20)));
    LinkConfig { rate, mtu, ..LinkConfig::delay(Duration::from_micros(2500)) }
}

fn download(world: &World) -> Child {
    let local = world.at("worker").local;
    let mut command = Command::new("curl");
    command.args(["--silent", "--noproxy", "*", "--output"]);
    command.arg(world.path("download")).arg("--cacert").arg(world.path("pki").join("ca.crt"));
    command.arg("--connect-to").arg(format!("localhost:{0}:{1}:{0}", local.port(), local.ip()));
    command.arg(format!("https://localhost:{}/bytes/1000000000", local.port()));
    command.stdin(Stdio::null()).spawn().expect("curl starts")
}

fn downloaded(world: &World) -> u64 {
    std::fs::metadata(world.path("download")).map_or(0, |file| file.len())
}

/// Two origins, and a worker that is near to the first and downloads from it; no packet is longer
/// than `mtu`.
fn world(mtu: usize) -> (World, Child) {
    let mut world = World::new();
    for (one, other, ms) in LINKS {
        world.distance(one, other, Duration::from_millis(ms));
        let link = LinkConfig { mtu, ..LinkConfig::delay(Duration::from_millis(ms) / 2) };
        world.shaper().set_link(one, other, &link);
    }
    world.shaper().set_link_one_way("b", "a", &way(mtu));
    for (name, site) in [("cp-b", "b"), ("cp-c", "c")] {
        world.origin(name, site);
    }
    world.node(&NodePlan::new("worker", "a"));
    world.meet();
    world.chooses("worker", "cp-b", SETTLE);
    let client = download(&world);
    let looks = || (downloaded(&world) > 100_000).then_some(());
    wait::until("the download is under way", SETTLE, looks);
    (world, client)
}

/// The download goes on, and its client never waits for long.
fn goes_on(world: &World, client: &mut Child) {
    let (mut last, mut since, mut longest) = (downloaded(world), wait::now(), Duration::ZERO);
    wait::throughout("the download runs", WATCHED, || {
        let size = downloaded(world);
        longest = longest.max(since.elapsed());
        if size > last {
            (last, since) = (size, wait::now());
        }
        client.try_wait().expect("a child").is_none()
    });
    println!("the download waited for {longest:?} at most");
    assert!(longest <= SILENCE, "its client was left waiting for {longest:?}");
}

/// Clients that send requests all the time.
fn loads(world: &World) -> Vec<Load> {
    let local = world.at("worker").local;
    let start = |_| {
        let curl = world.curl();
        Load::of(PACE, move || curl.ask(local, "/version"))
    };
    (0..CLIENTS).map(start).collect()
}

fn end(loads: Vec<Load>) {
    for load in loads {
        let requests = load.finish();
        let slowest = requests.iter().map(|request| request.took).max().unwrap_or_default();
        let lost = failures(&requests);
        println!("{} requests, the slowest took {slowest:?}", requests.len());
        assert!(lost.is_empty(), "{lost:?}");
        assert!(slowest <= SILENCE, "a request took {slowest:?}");
    }
}

/// Nothing is reset, and no other origin is needed.
#[test]
fn a_hole_in_the_mtu_costs_neither_a_download_nor_a_request() {
    let (world, mut client) = world(usize::MAX);
    let loads = loads(&world);
    loads.iter().for_each(|load| load.goes_on(REQUESTS, SETTLE));
    world.shaper().set_link_one_way("b", "a", &way(HOLE));
    goes_on(&world, &mut client);
    loads.iter().for_each(|load| load.goes_on(REQUESTS, SETTLE));
    world.shaper().set_link_one_way("b", "a", &way(usize::MAX));
    goes_on(&world, &mut client);
    client.kill().and_then(|()| client.wait()).expect("a child");
    end(loads);
}

/// Without other traffic only the origin's node can notice.
#[test]
fn a_quiet_download_outlives_a_hole_in_the_mtu() {
    let (world, mut client) = world(usize::MAX);
    world.shaper().set_link_one_way("b", "a", &way(HOLE));
    goes_on(&world, &mut client);
    client.kill().and_then(|()| client.wait()).expect("a child");
}

#[test]
fn a_mesh_on_networks_with_a_small_mtu_serves_like_any_other() {
    for mtu in NARROW {
        let (world, mut client) = world(mtu);
        let loads = loads(&world);
        goes_on(&world, &mut client);
        loads.iter().for_each(|load| load.goes_on(REQUESTS, SETTLE));
        client.kill().and_then(|()| client.wait()).expect("a child");
        end(loads);
    }
}
