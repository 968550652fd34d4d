//! A path whose MTU drops below what QUIC needs: a quiet client that downloads, so that only the
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
/// How soon a session is reset whose long packets are lost. Without word from the origin it takes
/// the next long probe, after 17 s.
const RESET: Duration = Duration::from_secs(4);
/// Clients that ask one after the other, on a new connection each time, and their pace.
const CLIENTS: usize = 4;
const PACE: Duration = Duration::from_millis(100);
/// Requests that are answered before the hole opens, and after the download continues.
const REQUESTS: usize = 10;
/// An MTU a little below the 1308 bytes that QUIC's smallest packet takes in a tunnel over IPv4.
const NARROW: usize = 1300;

/// The way from the origin to the client, slow enough for a download that outlasts the test.
fn way() -> LinkConfig {
    let rate = Some(Rate::new(10_000_000, Duration::from_millis(20)));
    LinkConfig { rate, ..LinkConfig::delay(Duration::from_micros(2500)) }
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

/// Two origins, and a worker that is near to the first and downloads from it.
fn world() -> (World, Child) {
    let mut world = World::new();
    for (one, other, ms) in [("a", "b", 5), ("a", "c", 80), ("b", "c", 80)] {
        world.distance(one, other, Duration::from_millis(ms));
    }
    world.shaper().set_link_one_way("b", "a", &way());
    for (name, site) in [("cp-b", "b"), ("cp-c", "c")] {
        world.origin(name, site);
    }
    world.node(&NodePlan::new("worker", "a"));
    world.meet();
    world.chooses("worker", "cp-b", SETTLE);
    let client = download(&world);
    arrives(&world);
    (world, client)
}

/// Waits until the download has started.
fn arrives(world: &World) {
    let looks = || (downloaded(world) > 100_000).then_some(());
    wait::until("the download is under way", SETTLE, looks);
}

/// The path to the origin is unchanged, and small packets pass both ways. The download is reset in
/// time; its client starts it again, and it continues.
fn falls_into_a_hole(world: &World, mut client: Child) {
    world.shaper().set_link_one_way("b", "a", &LinkConfig { mtu: NARROW, ..way() });
    let begun = wait::now();
    let status = wait::until("the download ends", SETTLE, || client.try_wait().expect("a child"));
    let reset = begun.elapsed();
    assert!(!status.success(), "a download that is cut must not look complete");
    std::fs::remove_file(world.path("download")).expect("some of it came");
    let mut again = download(world);
    arrives(world);
    println!("reset after {reset:?}: {status}; it goes on after {:?}", begun.elapsed());
    again.kill().and_then(|()| again.wait()).expect("a child");
    assert!(reset <= RESET, "its client was left waiting for {reset:?}");
}

#[test]
fn a_download_into_a_hole_in_the_mtu_is_reset_within_seconds_and_continues() {
    let (world, client) = world();
    falls_into_a_hole(&world, client);
    world.chooses("worker", "cp-c", SETTLE);
}

/// A client that has part of its answer when the hole opens is reset, since no other origin can
/// continue its TLS session: at most one request of each. It asks again, as clients of apiservers
/// do. No other request fails, and none waits for its timeout.
#[test]
fn a_hole_in_the_mtu_costs_no_request_but_those_half_answered() {
    let (world, client) = world();
    let local = world.at("worker").local;
    let start = |_| {
        let curl = world.curl();
        Load::of(PACE, move || curl.ask(local, "/version"))
    };
    let loads: Vec<Load> = (0..CLIENTS).map(start).collect();
    loads.iter().for_each(|load| load.goes_on(REQUESTS, SETTLE));
    falls_into_a_hole(&world, client);
    world.chooses("worker", "cp-c", SETTLE);
    loads.iter().for_each(|load| load.goes_on(REQUESTS, SETTLE));
    for load in loads {
        let requests = load.finish();
        let slowest = requests.iter().map(|request| request.took).max().unwrap_or_default();
        let lost = failures(&requests);
        println!("{} requests, the slowest took {slowest:?}, failed: {lost:?}", requests.len());
        assert!(lost.len() <= 1, "a client that asks again fails again: {lost:?}");
        let is_reset = |said: &String| said.contains("reset");
        assert!(lost.iter().all(is_reset), "not reset: {lost:?}");
        assert!(slowest <= RESET, "a request took {slowest:?}");
    }
}
