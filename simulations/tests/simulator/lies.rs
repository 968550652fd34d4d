//! One member lies, in every position and in every way that the simulator knows: no other node
//! changes its choice among the origins it can reach.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::{Arc, Mutex};

use meshport_simulations::report::Run;
use meshport_simulations::scenario::Scenario;
use meshport_simulations::world::{Options, World};

/// Two sites with an origin and a relay each, one with two relays, and one with neither an origin
/// nor a path to the nearest one, which needs those relays.
const MESH: &str = r#"
description = "Thirteen nodes, one of which lies"
duration-s = 125
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
name = "par"
at = [48.9, 2.4]
nodes = 3
relays = 2

[[site]]
name = "lis"
at = [38.7, -9.1]
nodes = 4
relays = 1

[[event]]
at-s = 10
cut = ["lis", "fra"]
"#;
const NODES: [&str; 13] = [
    "fra-1", "fra-2", "fra-3", "iad-1", "iad-2", "iad-3", "par-1", "par-2", "par-3", "lis-1",
    "lis-2", "lis-3", "lis-4",
];
const ORIGINS: [&str; 2] = ["fra-1", "iad-1"];
/// The lie begins then, and lasts.
const BEGINS_S: f64 = 40.0;
/// End of the run.
const ENDS_S: f64 = 125.0;
const SEED: u64 = 7;

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

/// Nodes without a direct path to their origin. For them another relay is not another choice; for
/// all others another first hop is.
const CUT_OFF: [&str; 4] = ["lis-1", "lis-2", "lis-3", "lis-4"];
/// A relay's claim may draw nodes through it that go in that direction anyway, until sessions have
/// timed it; after this long, with one session every five seconds, they use the direct path again.
const DRAWN_S: f64 = 30.0;

/// Requests that a relay may lose by sending what it carries to the wrong node: those that were in
/// flight on its sessions when it began to.
const MAX_MISDIRECTED: u64 = 3;

/// Another first choice of a node.
#[derive(Debug, PartialEq)]
struct Move {
    node: &'static str,
    at_s: f64,
    /// Its origin, and the relay if there is one.
    way: String,
}

/// A run: the first choice of every node when the lie began, and all later ones.
struct Played {
    run: Run,
    /// How often the trace names a first hop that is not the origin.
    relayed: usize,
    chosen: BTreeMap<&'static str, String>,
    moves: Vec<Move>,
}

fn run(events: &str) -> Played {
    let scenario = Scenario::parse(&format!("{MESH}{events}")).expect("a good scenario");
    let lines = Lines::default();
    let options = Options { trace: Some(Box::new(lines.clone())), ..Options::default() };
    let run = World::new(scenario, SEED, options).expect("a possible world").run();
    let text = String::from_utf8(lines.0.lock().expect("one thread").clone()).expect("text");
    let (mut chosen, mut moves) = (BTreeMap::new(), Vec::new());
    let (mut relayed, mut last) = (0, BTreeMap::new());
    for line in text.lines() {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        let [at, "node", node, what] = words[..] else { continue };
        if !what.starts_with("goes to") && !what.starts_with("has nowhere to go") {
            continue;
        }
        let node = *NODES.iter().find(|name| **name == node).expect("a node");
        relayed += usize::from(what.contains(" by "));
        let (origin, at_s) = (what.split(" by ").next(), at.parse().expect("seconds"));
        let way = origin.filter(|_| CUT_OFF.contains(&node)).unwrap_or(what).to_owned();
        if last.insert(node, way.clone()) == Some(way.clone()) {
            continue;
        }
        if at_s > BEGINS_S {
            moves.push(Move { node, at_s, way });
        } else {
            chosen.insert(node, way);
        }
    }
    Played { run, relayed, chosen, moves }
}

fn lie(who: &str, how: &str) -> String {
    format!("\n[[event]]\nat-s = {BEGINS_S}\nlie = \"{who}\"\nhow = \"{how}\"\n")
}

/// The instance of an origin dies, so that the origin's announcement matters.
fn kill(who: &str) -> String {
    format!("\n[[event]]\nat-s = 50\nkill = \"{who}\"\n")
}

/// Streams that a node has relayed for others.
fn carried(run: &Run, name: &str) -> u64 {
    let place = NODES.iter().position(|node| *node == name).expect("a node");
    run.measures.carried.get(&place).copied().unwrap_or(0)
}

/// Tries a lie in these positions: each time it is really sent, and no node that does not use the
/// liar itself changes its origin or its path.
fn changes_nobody_elses_choice(how: &str, positions: &[&str], besides: impl Fn(&str) -> String) {
    let quiet = run("");
    assert_eq!(quiet.moves, [], "without a lie nothing moves, or this test shows nothing");
    for who in positions {
        let besides = besides(who);
        let other = (!besides.is_empty()).then(|| run(&besides).run);
        let honest = other.as_ref().unwrap_or(&quiet.run);
        assert_eq!(honest.measures.lies, 0);
        let Played { run, moves, .. } = run(&format!("{}{besides}", lie(who, how)));
        let place = format!("{who} lies: {how}");
        assert!(run.measures.lies > 0, "{place}: it was never told");
        let hash = |run: &Run| run.outcome.trace_hash.to_string();
        assert_ne!(hash(&run), hash(honest), "{place}: nobody heard it");
        assert!(run.violations.is_empty(), "{place}: {:#?}", run.violations);
        for node in NODES.iter().filter(|node| *node != who) {
            let home = quiet.run.route_of(node).expect("everybody has a route");
            // A node that uses the liar itself may leave it for one that serves.
            if home == *who {
                assert!(run.route_of(node).is_some(), "{place}: {node}");
                continue;
            }
            assert_eq!(run.route_of(node), Some(home), "{place}: {node}");
            let moved: Vec<&Move> = moves.iter().filter(|it| it.node == *node).collect();
            let drawn = how == "near" && is_drawn(&moved, &quiet.chosen[node], who);
            assert!(drawn || moved.is_empty(), "{place}: {moved:?}");
        }
        let most = if how == "relay" { MAX_MISDIRECTED } else { 0 };
        assert!(run.measures.requests.failed <= most, "{place}: {:?}", run.measures.requests);
    }
}

/// Whether a node used the liar, a relay of its own site, for the origin it uses anyway, and soon
/// returned to the direct path, if the run did not end before.
fn is_drawn(moved: &[&Move], way: &str, liar: &str) -> bool {
    let (there, back_at_s) = match moved {
        [there] => (there, ENDS_S),
        [there, back] if back.way == way => (there, back.at_s),
        _ => return false,
    };
    let same = there.way == format!("{way} by {liar}");
    let near = there.node[..3] == liar[..3];
    same && near && back_at_s - there.at_s <= DRAWN_S
}

fn nothing(_: &str) -> String {
    String::new()
}

#[test]
fn without_a_lie_relays_are_used_and_a_dead_origin_is_left() {
    let Played { run: honest, relayed, chosen, moves } = run("");
    assert_eq!(moves, []);
    assert!(relayed >= CUT_OFF.len(), "the trace shows no first hop: {relayed}");
    for node in CUT_OFF {
        assert_eq!(honest.route_of(node), Some("fra-1"), "{node} has no way there of its own");
    }
    let straight = |way: &String| ORIGINS.iter().any(|it| *way == format!("goes to {it}"));
    assert_eq!(chosen.len(), NODES.len());
    assert!(chosen.values().all(straight), "with a way of their own they take it: {chosen:?}");
    assert!(honest.measures.sessions.relayed > 20, "{:?}", honest.measures.sessions);
    let Played { moves, .. } = run(&kill("fra-1"));
    assert!(!moves.is_empty(), "a dead origin is left, and that is seen here");
}

#[test]
fn garbage_changes_nobody_elses_choice() {
    changes_nobody_elses_choice("garbage", &NODES, nothing);
}

#[test]
fn old_datagrams_change_nobody_elses_choice() {
    changes_nobody_elses_choice("replay", &NODES, nothing);
}

#[test]
fn silence_changes_nobody_elses_choice() {
    changes_nobody_elses_choice("silent", &NODES, nothing);
}

#[test]
fn accusations_change_nobody_elses_choice() {
    changes_nobody_elses_choice("accuse", &NODES, nothing);
}

/// The only lie that may draw sessions to another path, to their usual origin: as long as it takes
/// to time a few.
#[test]
fn invented_distances_change_nobody_elses_choice() {
    changes_nobody_elses_choice("near", &NODES, nothing);
}

/// Only a node that relays streams can relay them to a wrong node.
#[test]
fn relaying_elsewhere_changes_nobody_elses_choice() {
    let Played { run: honest, .. } = run("");
    let relays: Vec<&str> = NODES.into_iter().filter(|node| carried(&honest, node) > 0).collect();
    assert!(!relays.is_empty());
    changes_nobody_elses_choice("relay", &relays, nothing);
}

/// A node announces its dead instance as ready: sessions find out, and no request fails. A node
/// without an instance has nothing to announce, and a record that does so anyway is rejected.
#[test]
fn saying_that_a_dead_instance_is_ready_changes_nobody_elses_choice() {
    changes_nobody_elses_choice("ready", &ORIGINS, kill);
}
