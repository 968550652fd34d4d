//! A service for some nodes only: a node on its list is served; another one is refused, learns why,
//! and is served as soon as the list names it; and the audit log's entries about it.

use std::fs;
use std::process::Command;
use std::time::Duration;

use meshport_tests::process::{Process, meshport, run_ok};
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};
use serde_json::Value;

const SETTLE: Duration = Duration::from_secs(40);
/// Time from the configuration that admits a node to its first answer: a refused node retries every
/// second.
const LET_IN: Duration = Duration::from_secs(20);

/// The refusal that an operator sees on the refused node.
#[track_caller]
fn is_told_why(world: &mut World, node: &str) {
    let said = |text: &str| text.contains("refuses this node") && text.contains("allow");
    wait::until(&format!("the status of {node} says why"), SETTLE, || {
        let warnings = world.at(node).status()?["warnings"].to_string();
        said(&warnings).then_some(())
    });
    let explained = world.at(node).explain(&[]);
    assert!(explained.contains("this node may not use it"), "{explained}");
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

/// The fields of the audit log of a node, of one event.
fn audit(world: &mut World, node: &str, event: &str) -> Vec<Value> {
    let log = world.node_mut(node).process().output();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let audit = lines.filter(|line| line["target"] == "audit");
    audit.map(|line| line["fields"].clone()).filter(|it| it["event"] == event).collect()
}

/// The first entry of that event in which `field` is `value`.
#[track_caller]
fn is_told(world: &mut World, event: &str, field: &str, value: &str) -> Value {
    wait::until(&format!("cp-1 tells: {event}, {field} {value}"), SETTLE, || {
        audit(world, "cp-1", event).into_iter().find(|it| it[field] == value)
    })
}

#[test]
fn admissions_refusals_and_operator_sessions_are_in_the_log() {
    let mut world = World::new();
    let address = world.apiserver("cp-1");
    // The level of the other lines is no matter.
    let settings = "allow = [\"role:operator\"]\n\n[log]\nformat = \"json\"\nlevel = \"error\"\n";
    world.node(&NodePlan::new("cp-1", "fra").origin(address).settings(settings));
    world.node(&NodePlan::new("worker", "fra"));
    world.meet();
    let admitted = is_told(&mut world, "admitted", "name", "worker");
    assert_eq!((&admitted["site"], &admitted["roles"]), (&"fra".into(), &"node".into()));

    world.chooses("worker", "cp-1", SETTLE);
    assert!(world.curl().get(world.at("worker").local, "/version").is_err());
    let refused = is_told(&mut world, "stream-refused", "name", "worker");
    assert_eq!(refused["service"], "kube-apiserver");
    assert!(refused["reason"].as_str().is_some_and(|it| it.contains("allow")), "{refused}");

    let invite = world.path("laptop.invite");
    let line = world.invite("cp-1", &NodePlan::operator("laptop", "fra"));
    fs::write(&invite, line).expect("the world's folder can be written");
    let udp = world.place("laptop", "fra").to_string();
    let mut command = Command::new(meshport());
    command.args(["forward", "--name", "laptop", "--mesh-listen", &udp]);
    command.args(["--listen", "127.0.0.1:0", "--invite"]).arg(&invite);
    command.arg("--credential").arg(world.path("laptop"));
    let mut forward = Process::start("forward", &mut command, &world.path("forward.log"));
    let local = wait::until("the forward is ready", SETTLE, || {
        let output = forward.output();
        let line = output.lines().find(|line| line.contains(" leads to "))?;
        line.split(' ').next()?.parse().ok()
    });
    let answer = world.curl().get(local, "/version").expect("operators may");
    assert_eq!(answer.status, 200);
    let started = is_told(&mut world, "operator-session-started", "name", "laptop");
    let ended = is_told(&mut world, "operator-session-ended", "name", "laptop");
    assert_eq!((&started["node"], &ended["service"]), (&ended["node"], &"kube-apiserver".into()));
    assert!(ended["sent_bytes"].as_u64() > Some(0) && ended["received_bytes"].as_u64() > Some(0));
    forward.signal("TERM");
    assert!(forward.ended(SETTLE).success());

    let state = world.at("cp-1").state().to_string_lossy().into_owned();
    run_ok(&meshport().to_string_lossy(), &["revoke", "worker", "--state-dir", &state]);
    let node = admitted["node"].as_str().expect("a node id");
    is_told(&mut world, "revoked", "revoked", &format!("node {node}"));
    let written = world.at("cp-1").metrics().sum("meshport_audit_lines_total", "written");
    assert!(written >= 5.0, "{written} lines");
}
