//! The ready scenario, run as a user runs it, and what must come out of it.

use meshport_simulations::report::Report;
use meshport_simulations::scenario::Scenario;
use meshport_simulations::world::World;

const THREE_SITES: &str = include_str!("../scenarios/three-sites.toml");

fn run(text: &str, seed: u64) -> Report {
    let scenario = Scenario::parse(text).expect("a good scenario");
    World::new(scenario, seed).expect("a possible world").run()
}

/// The scenario's text up to its first event at or after a time.
fn until(seconds: f64) -> String {
    let head = THREE_SITES.split("[[event]]").next().expect("text before the first event");
    let events = THREE_SITES.split("[[event]]").skip(1).filter(|event| {
        let at = event.split("at-s = ").nth(1).and_then(|rest| rest.split_whitespace().next());
        at.and_then(|at| at.parse::<f64>().ok()).is_some_and(|at| at < seconds)
    });
    let head = head.replace("duration-s = 260", &format!("duration-s = {seconds}"));
    events.fold(head, |text, event| format!("{text}[[event]]{event}"))
}

#[test]
fn same_seed_same_trace_and_other_seed_other_trace() {
    let text = until(60.0);
    assert_eq!(run(&text, 7).trace_hash, run(&text, 7).trace_hash);
    assert_ne!(run(&text, 7).trace_hash, run(&text, 8).trace_hash);
}

#[test]
fn everybody_uses_the_own_site_when_all_is_well() {
    let report = run(&until(40.0), 3);
    for name in ["fra-5", "ams-10", "iad-2"] {
        let origin = report.route_of(name).expect("a route");
        assert_eq!(origin[..3], name[..3], "{name} goes to {origin}");
    }
    assert!((report.nearest_share() - 1.0).abs() < f64::EPSILON, "{report}");
}

#[test]
fn a_dead_instance_is_left_within_seconds_and_found_again() {
    let report = run(&until(70.0), 3);
    assert_eq!(report.route_of("fra-5"), Some("ams-1"), "{report}");
    let moved = &report.moved[0];
    assert_eq!(moved.after.len(), 10, "all of Frankfurt and nobody else: {report}");
    assert!(moved.after.last().expect("ten").as_secs_f64() < 3.0, "{report}");
    let report = run(&until(110.0), 3);
    assert_eq!(report.route_of("fra-5"), Some("fra-1"), "{report}");
}

#[test]
fn a_crashed_node_is_noticed_and_taken_up_again() {
    let report = run(&until(150.0), 3);
    assert_eq!(report.route_of("ams-5"), Some("fra-1"), "{report}");
    let report = run(&until(200.0), 3);
    assert_eq!(report.route_of("ams-5"), Some("ams-1"), "{report}");
}

#[test]
fn the_whole_story_ends_with_everybody_at_home() {
    for seed in 1..=3 {
        let report = run(THREE_SITES, seed);
        assert!((report.nearest_share() - 1.0).abs() < f64::EPSILON, "seed {seed}: {report}");
    }
}
