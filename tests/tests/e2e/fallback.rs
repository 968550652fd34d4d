//! An apiserver outside the mesh: used while no origin in the mesh answers, and not after.

use std::time::Duration;

use meshport_tests::series::failures;
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};

const SETTLE: Duration = Duration::from_secs(40);
const INTERVAL: Duration = Duration::from_millis(200);
const REQUESTS: usize = 15;

/// Waits until `server` answers a new connection, by its certificate.
#[track_caller]
fn serves(world: &World, server: &str) {
    wait::until(&format!("{server} serves"), SETTLE, || {
        let answer = world.get("worker-a", "/version");
        answer.subject().contains(server).then_some(())
    });
}

#[test]
fn the_outside_serves_while_the_mesh_cannot() {
    let mut world = World::new();
    world.distance("a", "b", Duration::from_millis(4));
    let address = world.apiserver("cp-b");
    let outside = world.apiserver("outside");
    world.node(&NodePlan::new("cp-b", "b").origin(address));
    let fallback = format!("fallback = [\"localhost:{}\"]\n", outside.port());
    world.node(&NodePlan::new("worker-a", "a").settings(&fallback));
    world.meet();
    world.chooses("worker-a", "cp-b", SETTLE);
    serves(&world, "cp-b");
    let load = world.load(world.at("worker-a").local, INTERVAL);
    load.goes_on(REQUESTS, SETTLE);

    let paused = load.pause();
    world.kill_apiserver("cp-b");
    drop(paused);
    world.chooses("worker-a", &outside.to_string(), SETTLE);
    serves(&world, "outside");
    println!("{}", world.at("worker-a").explain(&[]));
    load.goes_on(REQUESTS, SETTLE);

    world.start_apiserver("cp-b");
    world.chooses("worker-a", "cp-b", SETTLE);
    serves(&world, "cp-b");
    load.goes_on(REQUESTS, SETTLE);
    let requests = load.finish();
    let failed = failures(&requests);
    assert!(failed.is_empty(), "of {} failed:\n{}", requests.len(), failed.join("\n"));

    // Live on reload: without it nothing is left.
    world.reconfigure("worker-a", |text| text.replace(&fallback, ""));
    wait::until("the outside is forgotten", SETTLE, || {
        let status = world.at("worker-a").status()?;
        (status["services"][0]["origins"].as_array()?.len() == 1).then_some(())
    });
}
