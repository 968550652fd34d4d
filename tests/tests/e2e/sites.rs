//! The main job, with the real binary as separate processes: five nodes in three sites, every
//! client served by the nearest healthy apiserver, and no failed request while that one dies and
//! returns.

#![expect(clippy::print_stdout, reason = "figures for the reader of a test run")]

use std::time::Duration;

use meshport_tests::series::{Load, Request, failures};
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};

/// How long routes may take to settle after something came or went, on a busy machine.
const SETTLE: Duration = Duration::from_secs(40);
/// How often each client asks.
const INTERVAL: Duration = Duration::from_millis(250);
/// How many requests each client makes before, between and after the events of a test.
const REQUESTS_PER_PHASE: usize = 12;
/// How long that may take when every request needs the client's whole patience.
const PHASE: Duration = Duration::from_secs(90);

/// Pairs of a node and the origin whose apiserver is nearest to it.
const NEAREST: [(&str, &str); 5] = [
    ("cp-fra", "cp-fra"),
    ("cp-ams", "cp-ams"),
    ("cp-sin", "cp-sin"),
    ("worker-fra", "cp-fra"),
    ("worker-ams", "cp-ams"),
];

fn three_sites() -> World {
    let mut world = World::new();
    world.distance("fra", "ams", Duration::from_millis(40));
    world.distance("fra", "sin", Duration::from_millis(90));
    world.distance("ams", "sin", Duration::from_millis(100));
    for site in ["fra", "ams", "sin"] {
        let name = format!("cp-{site}");
        world.origin(&name, site);
    }
    world.node(&NodePlan::new("worker-fra", "fra"));
    world.node(&NodePlan::new("worker-ams", "ams"));
    world.meet();
    world
}

fn everyone_is_served_by_the_nearest(world: &World) {
    for (node, origin) in NEAREST {
        world.chooses(node, origin, SETTLE);
        serves(world, node, origin);
    }
}

/// Waits until `node` is served by `origin`, by the presented certificate, and returns how long it
/// took. Every answer until then must be valid, but may come from elsewhere: on a busy machine the
/// nearest is slow to answer, and a connection goes to the winner of the race.
fn serves(world: &World, node: &str, origin: &str) {
    let begun = wait::now();
    let what = format!("{node} is served by {origin}");
    wait::until(&what, SETTLE, || {
        let answer = world.get(node, "/version");
        assert_eq!(answer.status, 200, "{node}: {}", answer.body);
        assert_eq!(answer.version, "2", "{node} speaks HTTP/{}", answer.version);
        answer.subject().contains(origin).then_some(())
    });
    println!("{what} after {:?}", begun.elapsed());
}

/// Lets every load continue for a phase.
fn go_on(loads: &[(String, Load)]) {
    let goals: Vec<usize> =
        loads.iter().map(|(_, load)| load.done().len() + REQUESTS_PER_PHASE).collect();
    for ((node, load), goal) in loads.iter().zip(goals) {
        wait::until(&format!("{node} asks on"), PHASE, || {
            (load.done().len() >= goal).then_some(())
        });
    }
}

/// Does this while no request is in progress: an answer in progress is lost with its sender.
fn between_two_requests(loads: &[(String, Load)], work: impl FnOnce()) {
    let _none: Vec<_> = loads.iter().map(|(_, load)| load.pause()).collect();
    work();
}

fn no_request_failed(node: &str, requests: &[Request]) {
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
    let start = |node: &str| {
        let (curl, local) = (world.curl(), world.at(node).local);
        (node.to_owned(), Load::of(INTERVAL, move || curl.ask(local, "/version")))
    };
    let mut loads: Vec<_> =
        ["cp-fra", "cp-ams", "cp-sin", "worker-fra", "worker-ams"].into_iter().map(start).collect();
    go_on(&loads);

    between_two_requests(&loads, || world.kill_apiserver("cp-fra"));
    serves(&world, "worker-fra", "cp-ams");
    serves(&world, "cp-fra", "cp-ams");
    go_on(&loads);
    world.start_apiserver("cp-fra");
    serves(&world, "worker-fra", "cp-fra");
    serves(&world, "cp-fra", "cp-fra");
    go_on(&loads);

    // A node whose daemon is killed has no local address, so its own client must stop before.
    let (node, own) = loads.remove(0);
    no_request_failed(&node, &own.finish());
    between_two_requests(&loads, || world.kill("cp-fra"));
    serves(&world, "worker-fra", "cp-ams");
    go_on(&loads);
    world.start("cp-fra");
    serves(&world, "worker-fra", "cp-fra");
    go_on(&loads);
    everyone_is_served_by_the_nearest(&world);
    for (node, load) in loads {
        no_request_failed(&node, &load.finish());
    }
}

#[test]
fn an_invite_lets_a_node_in_while_the_one_that_made_it_is_down() {
    let mut world = World::new();
    for site in ["fra", "ams"] {
        let name = format!("cp-{site}");
        world.origin(&name, site);
    }
    world.meet();
    world.chooses("cp-fra", "cp-fra", SETTLE);
    world.make(&NodePlan::new("late", "ams"));
    world.kill("cp-fra");
    world.start("late");
    world.chooses("late", "cp-ams", SETTLE);
    assert_eq!(world.get("late", "/version").status, 200);
}
