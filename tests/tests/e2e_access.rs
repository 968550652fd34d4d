//! A service for some nodes only: whoever its list means is served, whoever it does not is refused,
//! knows why, and is served as soon as the list says so.

use std::time::Duration;

use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};

const SETTLE: Duration = Duration::from_secs(40);
/// From the configuration that lets a node in to its first answer: the refused one looks again
/// every second.
const LET_IN: Duration = Duration::from_secs(20);

/// What an operator reads of the refusal, at the refused node.
#[track_caller]
fn is_told_why(world: &mut World, node: &str) {
    let said = |text: &str| text.contains("does not let this node in") && text.contains("allow");
    wait::until(&format!("the status of {node} says why"), SETTLE, || {
        let warnings = world.at(node).status()?["warnings"].to_string();
        said(&warnings).then_some(())
    });
    let explained = world.at(node).explain(&[]);
    assert!(explained.contains("lacks: permission for this node"), "{explained}");
    let log = world.node_mut(node).process().output();
    let line = log.lines().find(|line| line.contains("WARN") && said(line));
    assert!(line.is_some_and(|line| line.contains("cp-1")), "{log}");
}

fn refused(world: &World) -> f64 {
    world.at("cp-1").metrics().sum("meshport_served_streams_total", "answer=\"not-allowed\"")
}

#[test]
fn a_list_serves_one_site_and_refuses_the_other_with_a_reason() {
    let mut world = World::new();
    let address = world.apiserver("cp-1");
    let list = "allow = [\"site:fra\"]\n";
    world.node(&NodePlan::new("cp-1", "fra").origin(address).settings(list));
    world.node(&NodePlan::new("worker-fra", "fra"));
    world.node(&NodePlan::new("worker-ber", "ber"));
    world.meet();
    for node in ["worker-fra", "worker-ber"] {
        world.chooses(node, "cp-1", SETTLE);
    }
    assert_eq!(world.get("worker-fra", "/version").status, 200);
    let local = world.at("worker-ber").local;
    assert!(world.curl().get(local, "/version").is_err(), "site ber is not on the list");
    assert!(refused(&world) >= 1.0);
    is_told_why(&mut world, "worker-ber");
    assert_eq!(world.get("worker-fra", "/version").status, 200);

    world.reconfigure("cp-1", |text| text.replace(list, "allow = [\"role:node\"]\n"));
    wait::until("site ber is let in", LET_IN, || {
        let answer = world.curl().get(local, "/version").ok()?;
        (answer.status == 200).then_some(())
    });
    wait::until("nothing is left to warn of", SETTLE, || {
        let status = world.at("worker-ber").status()?;
        status["warnings"].as_array()?.is_empty().then_some(())
    });
}
