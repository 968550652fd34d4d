//! One member lies, in every position and in every way the simulator knows: no other node's route
//! to an origin that it can reach changes.

use std::io::Write;
use std::sync::{Arc, Mutex};

use meshport_simulations::report::Run;
use meshport_simulations::scenario::Scenario;
use meshport_simulations::world::{Options, World};

/// Two sites with an origin and a relay each, and one with neither, which chooses between the two.
const MESH: &str = r#"
description = "Ten nodes, one of which lies"
duration-s = 75
warmup-s = 30

[load]
sessions-per-s = 0.2
hold-s = 20
requests-per-s = 0.2

[[site]]
name = "fra"
at = [50.1, 8.7]
nodes = 3
origins = 1
relays = 1

[[site]]
name = "iad"
at = [39.0, -77.5]
nodes = 3
origins = 1
relays = 1

[[site]]
name = "lis"
at = [38.7, -9.1]
nodes = 4
"#;
const NODES: [&str; 10] =
    ["fra-1", "fra-2", "fra-3", "iad-1", "iad-2", "iad-3", "lis-1", "lis-2", "lis-3", "lis-4"];
const LIES: [&str; 5] = ["ready", "garbage", "replay", "silent", "relay"];
/// The lie begins then, and lasts.
const BEGINS_S: f64 = 40.0;

/// A trace that can be read after the run.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("one thread").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A run, and who chose another first origin after the lie began: the node, and the line.
fn run(events: &str, seed: u64) -> (Run, Vec<(String, String)>) {
    let scenario = Scenario::parse(&format!("{MESH}{events}")).expect("a good scenario");
    let lines = Lines::default();
    let options = Options { trace: Some(Box::new(lines.clone())), ..Options::default() };
    let run = World::new(scenario, seed, options).expect("a possible world").run();
    let text = String::from_utf8(lines.0.lock().expect("one thread").clone()).expect("text");
    let mut rerouted = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        let [at, "node", node, what] = words[..] else { continue };
        let is_route = what.starts_with("goes to") || what.starts_with("has nowhere to go");
        let node: usize = node.parse().expect("the number of a node");
        if is_route && at.parse::<f64>().expect("seconds") > BEGINS_S {
            rerouted.push((NODES[node].to_owned(), line.to_owned()));
        }
    }
    (run, rerouted)
}

fn lie(who: &str, how: &str) -> String {
    format!("\n[[event]]\nat-s = {BEGINS_S}\nlie = \"{who}\"\nhow = \"{how}\"\n")
}

#[test]
fn a_liar_changes_nobody_elses_route_wherever_it_is() {
    let seed = 7;
    let (honest, rerouted) = run("", seed);
    assert_eq!(rerouted, [], "without a lie nothing moves, or this test shows nothing");
    let (_, rerouted) = run("\n[[event]]\nat-s = 50\nkill = \"fra-1\"\n", seed);
    assert!(!rerouted.is_empty(), "a dead origin is left, and that is seen here");
    for who in NODES {
        for how in LIES {
            let (run, rerouted) = run(&lie(who, how), seed);
            let place = format!("{who} lies: {how}");
            assert!(run.violations.is_empty(), "{place}: {:#?}", run.violations);
            for node in NODES.iter().filter(|node| **node != who) {
                let home = honest.route_of(node).expect("everybody has a route");
                // Who goes to the liar itself may leave it, for one that serves.
                if home == who {
                    assert!(run.route_of(node).is_some(), "{place}: {node}");
                    continue;
                }
                assert_eq!(run.route_of(node), Some(home), "{place}: {node}");
                let moved: Vec<_> = rerouted.iter().filter(|it| it.0 == *node).collect();
                assert!(moved.is_empty(), "{place}: {moved:?}");
            }
            assert_eq!(run.measures.requests.failed, 0, "{place}");
        }
    }
}

/// A dead instance that its node says is ready: sessions find out, and no request fails.
#[test]
fn who_says_a_dead_instance_is_ready_costs_no_request() {
    for who in ["fra-1", "iad-1"] {
        let kill = format!("\n[[event]]\nat-s = 50\nkill = \"{who}\"\n");
        let (run, rerouted) = run(&format!("{}{kill}", lie(who, "ready")), 7);
        for node in NODES.iter().filter(|node| node[..3] != who[..3] && node[..3] != *"lis") {
            assert!(!rerouted.iter().any(|it| it.0 == *node), "{who}: {rerouted:?}");
        }
        assert_eq!(run.measures.requests.failed, 0, "{who}");
    }
}
