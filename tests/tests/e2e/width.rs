//! A path whose MTU drops below what QUIC needs, while its only session is a download: the client
//! is quiet, and only the origin's node can notice that what it sends is lost.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use meshport_demo::wan::{LinkConfig, Rate};
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};

/// How long routes may take to settle, on a busy machine.
const SETTLE: Duration = Duration::from_secs(40);
/// How soon the download is reset once its long packets are lost: within 4 s, and half as much
/// again on a busy machine. Without word from the origin it takes the next long probe, after 17 s.
const RESET: Duration = Duration::from_secs(6);
/// Requests that are made after that.
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

#[test]
fn a_download_into_a_hole_in_the_mtu_is_reset_within_seconds() {
    let mut world = World::new();
    for (one, other, ms) in [("a", "b", 5), ("a", "c", 80), ("b", "c", 80)] {
        world.distance(one, other, Duration::from_millis(ms));
    }
    world.shaper().set_link_one_way("b", "a", &way());
    for (name, site) in [("cp-b", "b"), ("cp-c", "c")] {
        let address = world.apiserver(name);
        world.node(&NodePlan::new(name, site).origin(address));
    }
    world.node(&NodePlan::new("worker", "a"));
    world.meet();
    world.chooses("worker", "cp-b", SETTLE);

    let mut client = download(&world);
    wait::until("the download is under way", SETTLE, || {
        (downloaded(&world) > 100_000).then_some(())
    });
    // The way to the origin stays as it is, and small packets pass both ways.
    world.shaper().set_link_one_way("b", "a", &LinkConfig { mtu: NARROW, ..way() });
    let begun = wait::now();
    let status = wait::until("the download ends", SETTLE, || client.try_wait().expect("a child"));
    let took = begun.elapsed();
    println!("reset after {took:?}: {status}, {} bytes came", downloaded(&world));
    assert!(!status.success(), "a download that is cut must not look complete");
    assert!(took <= RESET, "its client was left waiting for {took:?}");

    world.chooses("worker", "cp-c", SETTLE);
    for _ in 0..REQUESTS {
        assert_eq!(world.get("worker", "/version").status, 200);
    }
}
