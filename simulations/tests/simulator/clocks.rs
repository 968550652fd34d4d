//! The wall clock of a node is wrong for a while, by more than the lifetime of credentials: the
//! node is back within seconds of the correction, whichever node it is and however long it took.

use meshport_simulations::scenario::Scenario;
use meshport_simulations::world::{Options, World};

const MESH: &str = r#"
description = "A clock that is wrong, and right again"
duration-s = 130
warmup-s = 30

[load]
sessions-per-s = 0.5
hold-s = 5
requests-per-s = 1

[[site]]
name = "fra"
at = [50.1, 8.7]
nodes = 4
origins = 1

[[site]]
name = "iad"
at = [39.0, -77.5]
nodes = 4
origins = 1
"#;
/// Credentials last ten years here.
const DAY_S: i64 = 24 * 3600;
const WRONG_AT_S: u64 = 40;
/// Seconds from the correction of its clock until no request of a client may fail.
const BACK_S: u64 = 10;

/// Applies it to a worker, an origin, or a whole site.
fn comes_back(who: &str, by_s: i64, for_s: u64) {
    let right_at_s = WRONG_AT_S + for_s;
    let back_s = -by_s;
    let events = format!(
        "[[event]]\nat-s = {WRONG_AT_S}\nclock-step = \"{who}\"\nby-s = {by_s}\n\
         [[event]]\nat-s = {right_at_s}\nclock-step = \"{who}\"\nby-s = {back_s}\n"
    );
    let scenario = Scenario::parse(&format!("{MESH}{events}")).expect("a good scenario");
    let run = World::new(scenario, 5, Options::default()).expect("a possible world").run();
    let what = format!("{who} by {by_s} s for {for_s} s");
    assert!(run.violations.is_empty(), "{what}: {:#?}", run.violations);
    let nodes = run.outcome.nodes.len();
    let seconds = run.measures.timeline.iter().zip(0u64..);
    let late = seconds.filter(|(second, at_s)| *at_s > right_at_s + BACK_S && second.failed > 0);
    let late: Vec<u64> = late.map(|(_, at_s)| at_s).collect();
    assert!(late.is_empty(), "{what}: requests fail at {late:?} s");
    let homeless = run.outcome.routes.iter().filter(|(_, chosen)| chosen.is_none()).count();
    assert_eq!((nodes, homeless), (8, 0), "{what}");
    assert_eq!(run.nearest_share(), 1.0, "{what}");
}

#[test]
fn a_clock_that_was_wrong_isolates_nobody_once_it_is_right() {
    for by_s in [4_000 * DAY_S, -4_000 * DAY_S] {
        for who in ["iad-3", "fra-1", "fra"] {
            comes_back(who, by_s, 20);
        }
    }
    comes_back("fra", 11_000 * DAY_S, 60);
}
