//! What an operator does to a running daemon: SIGTERM, and SIGHUP after a change of its settings.

use std::time::Duration;

use meshport_tests::load::{Load, failures};
use meshport_tests::transfer::{self, Open};
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};

const SETTLE: Duration = Duration::from_secs(40);
const INTERVAL: Duration = Duration::from_millis(50);
/// Requests before, between and after the events of a test, and how long they may take.
const REQUESTS: usize = 30;
const PHASE: Duration = Duration::from_secs(60);
/// A node that stops tells the others before it goes, so nobody waits for a timeout; the rest of
/// this is a busy machine.
const HANDOVER: Duration = Duration::from_secs(2);
const BYTES: u64 = 100_000;

/// Two sites with an origin each, and a node in the first.
fn two_sites() -> World {
    let service = transfer::serve();
    let mut world = World::new();
    world.distance("a", "b", Duration::from_millis(20));
    for site in ["a", "b"] {
        let name = format!("cp-{site}");
        let address = world.apiserver(&name);
        let mut plan = NodePlan::new(&name, site).origin(address);
        if site == "b" {
            let offer = format!("\n[service.blob]\nlisten = []\norigin = \"{service}\"\n");
            plan = plan.role("origin:blob").settings(&offer);
        }
        world.node(&plan);
    }
    let listen = "\n[service.blob]\nlisten = [\"127.0.0.1:0\"]\n";
    world.node(&NodePlan::new("worker", "a").settings(listen));
    world.meet();
    world.chooses("worker", "cp-a", SETTLE);
    world
}

#[test]
fn a_node_that_is_stopped_hands_over_and_comes_back() {
    let mut world = two_sites();
    let load = Load::start(&world.curl(), world.at("worker").local, "/version", INTERVAL);
    load.goes_on(REQUESTS, PHASE);

    world.node_mut("cp-a").process().signal("TERM");
    world.chooses("worker", "cp-b", HANDOVER);
    let status = world.node_mut("cp-a").process().ended(SETTLE);
    assert!(status.success(), "a stopped daemon says {status}");
    load.goes_on(REQUESTS, PHASE);

    world.start("cp-a");
    world.chooses("worker", "cp-a", SETTLE);
    load.goes_on(REQUESTS, PHASE);
    let requests = load.finish();
    let failed = failures(&requests);
    assert!(failed.is_empty(), "of {} failed:\n{}", requests.len(), failed.join("\n"));
}

#[test]
fn a_reload_changes_what_it_can_and_keeps_what_runs() {
    let mut world = two_sites();
    let blob = wait::until("the worker listens for the transfer service", SETTLE, || {
        let local = world.at("worker").service("blob")?;
        transfer::transfer(local, transfer::Way::Down, 0).ok().map(|_| local)
    });
    let open = Open::download(blob, BYTES).expect("a session opens");

    world.reconfigure("worker", |text| {
        let pinned = "policy = \"pinned\"\npinned = [\"cp-b\"]\n\n[service.blob]";
        text.replace("[service.blob]", pinned)
    });
    world.chooses("worker", "cp-b", SETTLE);

    // A file with a mistake changes nothing and is complained about.
    world.reconfigure("worker", |text| text.replace("policy = \"pinned\"", "polcy = \"pinned\""));
    wait::until("the mistake is named", SETTLE, || {
        let output = world.node_mut("worker").process().output();
        (output.contains("not reloaded") && output.contains("polcy")).then_some(())
    });
    let answer = world.get("worker", "/version");
    assert!(answer.subject().contains("cp-b"), "the worker met {}", answer.subject());
    open.read().expect("a session outlives a reload");
}
