//! Ways around: a node that cannot reach the only origin is served through another one, and goes
//! straight again when it can.

#![expect(clippy::print_stdout, reason = "figures for the reader of a test run")]

use std::time::Duration;

use meshport_demo::wan::Cut;
use meshport_discovery::Count;
use meshport_tests::series::failures;
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};
use serde_json::Value;

/// How long routes may take to settle after something came or went, on a busy machine.
const SETTLE: Duration = Duration::from_secs(40);
/// How often the client asks, each time on a new connection.
const INTERVAL: Duration = Duration::from_millis(200);
/// How soon a way around is in use.
const AROUND: Duration = Duration::from_secs(4);
/// How soon after healing the direct way is.
const STRAIGHT: Duration = Duration::from_secs(20);
/// Requests before, between and after.
const REQUESTS: usize = 25;
const PHASE: Duration = Duration::from_secs(60);

/// The relay between the worker and the chosen origin; an empty name for the direct path.
fn relay(world: &World) -> Option<String> {
    let status = world.at("worker-a").status()?;
    let chosen = &status["services"][0]["chosen"];
    chosen["name"].as_str()?;
    Some(chosen["relay"].as_str().unwrap_or_default().to_owned())
}

#[track_caller]
fn goes(world: &World, through: &str, limit: Duration) {
    let begun = wait::now();
    let what = format!("worker-a goes through \"{through}\"");
    wait::until(&what, limit, || (relay(world)? == through).then_some(()));
    println!("{what} after {:?}", begun.elapsed());
}

fn explained(world: &World, node: &str) -> Value {
    let text = world.at(node).explain(&["--service", "kube-apiserver", "--json"]);
    let all: Value = serde_json::from_str(&text).expect("explain --json prints JSON");
    all[0].clone()
}

#[test]
fn an_asymmetric_partition_is_gone_around() {
    let mut world = World::new();
    for (one, other) in [("a", "b"), ("a", "c"), ("b", "c")] {
        world.distance(one, other, Duration::from_millis(4));
    }
    world.origin("cp-b", "b");
    // It offers nothing itself: its path is probed only because it may relay.
    world.node(&NodePlan::new("relay-c", "c").role("relay"));
    world.node(&NodePlan::new("worker-a", "a"));
    world.meet();
    world.chooses("worker-a", "cp-b", SETTLE);
    let told = |node: &str| world.at(node).metrics().count(Count::Published);
    wait::until("the relay has told its distances", SETTLE, || {
        (told("relay-c") >= 2.0).then_some(())
    });
    let load = world.load(world.at("worker-a").local, INTERVAL);
    load.goes_on(REQUESTS, PHASE);

    let partition = Cut::Between("a".to_owned(), "b".to_owned());
    // The rest of an answer that has begun does not arrive by another way.
    let paused = load.pause();
    world.shaper().set_down(partition.clone(), true);
    drop(paused);
    goes(&world, "relay-c", AROUND);
    load.goes_on(REQUESTS, PHASE);
    let relayed = || world.at("relay-c").metrics().sum("meshport_served_streams_total", "");
    println!("streams that the relay refused or served itself: {}", relayed());

    println!("{}", world.at("worker-a").explain(&[]));
    let told = explained(&world, "worker-a");
    let change = &told["changes"][0];
    assert_eq!(change["cause"], "path dead", "{change}");
    assert_eq!((&change["from"], &change["to"]), (&"cp-b".into(), &"cp-b through relay-c".into()));
    let relay = &told["candidates"][0]["relays"][0];
    assert_eq!(relay["name"], "relay-c", "{relay}");
    assert!(relay["used"] == true && relay["proven"] == true, "{relay}");

    world.shaper().set_down(partition, false);
    goes(&world, "", STRAIGHT);
    load.goes_on(REQUESTS, PHASE);
    let cause = explained(&world, "worker-a")["changes"][0]["cause"].clone();
    assert_eq!(cause, "the direct path works again");
    let requests = load.finish();
    let slowest = requests.iter().map(|request| request.took).max().unwrap_or_default();
    println!("{} requests, slowest {slowest:?}", requests.len());
    let failed = failures(&requests);
    assert!(failed.is_empty(), "of {} failed:\n{}", requests.len(), failed.join("\n"));
    assert!(slowest < AROUND, "none waited longer than the way around took: {slowest:?}");
}
