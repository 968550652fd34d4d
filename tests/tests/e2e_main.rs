//! The main job, with the real binary as separate processes: five nodes in three sites, every client
//! served by the nearest healthy apiserver, and no failed request while that one dies and returns.

#![expect(clippy::print_stdout, reason = "figures for the reader of a test run")]

use std::time::Duration;

use meshport_tests::load::{Load, Request, failures};
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};

/// How long routes may take to settle after something came or went, on a busy machine.
const SETTLE: Duration = Duration::from_secs(40);
/// How often each client asks.
const INTERVAL: Duration = Duration::from_millis(250);
/// How many requests of a load show that it really ran.
const MIN_REQUESTS: usize = 20;

/// Who serves whom: the node, and the origin whose apiserver is nearest to it.
const NEAREST: [(&str, &str); 5] = [
    ("cp-fra", "cp-fra"),
    ("cp-ams", "cp-ams"),
    ("cp-sin", "cp-sin"),
    ("worker-fra", "cp-fra"),
    ("worker-ams", "cp-ams"),
];

fn three_sites() -> World {
    let mut world = World::new();
    world.distance("fra", "ams", Duration::from_millis(10));
    world.distance("fra", "sin", Duration::from_millis(90));
    world.distance("ams", "sin", Duration::from_millis(100));
    for site in ["fra", "ams", "sin"] {
        let name = format!("cp-{site}");
        let address = world.apiserver(&name);
        world.node(&NodePlan::new(&name, site).origin(address));
    }
    world.node(&NodePlan::new("worker-fra", "fra"));
    world.node(&NodePlan::new("worker-ams", "ams"));
    world.meet();
    world
}

fn everyone_is_served_by_the_nearest(world: &World) {
    for (node, origin) in NEAREST {
        world.chooses(node, origin, SETTLE);
        let answer = world.get(node, "/version");
        assert_eq!(answer.status, 200, "{node}: {}", answer.body);
        assert_eq!(answer.version, "2", "{node} speaks HTTP/{}", answer.version);
        assert!(answer.subject().contains(origin), "{node} met {}", answer.subject());
    }
}

/// Which apiserver gave the last answer through `node`, by its certificate.
fn serves(world: &World, node: &str, origin: &str) {
    let what = format!("{node} is served by {origin}");
    wait::until(&what, SETTLE, || {
        let answer = world.get(node, "/version");
        answer.subject().contains(origin).then_some(())
    });
}

fn no_request_failed(node: &str, requests: &[Request]) {
    assert!(requests.len() >= MIN_REQUESTS, "{node} asked only {} times", requests.len());
    let failed = failures(requests);
    let slowest = requests.iter().map(|request| request.took).max().unwrap_or_default();
    println!("{node}: {} requests, slowest {slowest:?}", requests.len());
    assert!(failed.is_empty(), "{node}: of {} failed:\n{}", requests.len(), failed.join("\n"));
}

#[test]
fn five_nodes_in_three_sites_reach_the_nearest_apiserver() {
    let world = three_sites();
    everyone_is_served_by_the_nearest(&world);
}

#[test]
fn no_request_fails_while_the_nearest_dies_and_returns() {
    let mut world = three_sites();
    everyone_is_served_by_the_nearest(&world);
    let (curl, path) = (world.curl(), "/version");
    let start =
        |node: &str| (node.to_owned(), Load::start(&curl, world.at(node).local, path, INTERVAL));
    // The node whose daemon is going to be killed has no local address for a while, so its own
    // client asks only while the apiserver is away.
    let own = start("cp-fra");
    let loads: Vec<_> =
        ["cp-ams", "cp-sin", "worker-fra", "worker-ams"].into_iter().map(start).collect();

    world.kill_apiserver("cp-fra");
    serves(&world, "worker-fra", "cp-ams");
    serves(&world, "cp-fra", "cp-ams");
    world.start_apiserver("cp-fra");
    serves(&world, "worker-fra", "cp-fra");
    serves(&world, "cp-fra", "cp-fra");
    no_request_failed(&own.0, &own.1.finish());

    world.kill("cp-fra");
    serves(&world, "worker-fra", "cp-ams");
    world.start("cp-fra");
    serves(&world, "worker-fra", "cp-fra");
    everyone_is_served_by_the_nearest(&world);
    for (node, load) in loads {
        no_request_failed(&node, &load.finish());
    }
}
