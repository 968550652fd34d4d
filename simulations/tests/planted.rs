//! The checks check: for each planted bug, the hunt finds a world in which a rule is violated, and
//! the same world without the bug violates none.

use meshport_config::planted::{Bug, plant};
use meshport_simulations::scenario::Scenario;
use meshport_simulations::storm;
use meshport_simulations::world::{Options, World};

/// Seeds within which each bug has to be found.
const SEEDS: u64 = 200;

/// The rules that a world of the hunt violates with this bug.
fn violated(seed: u64, bug: Option<Bug>) -> Vec<&'static str> {
    let scenario = Scenario::parse(&storm::scenario(seed)).expect("a good scenario");
    plant(bug);
    let run = World::new(scenario, seed, Options::default()).expect("a possible world").run();
    plant(None);
    run.violations.iter().map(|it| it.rule).collect()
}

fn found(bug: Bug, rules: &[&str]) {
    let is_it = |rule: &&'static str| rules.contains(rule);
    let hit = (1..=SEEDS).find_map(|seed| {
        let rule = violated(seed, Some(bug)).into_iter().find(is_it)?;
        Some((seed, rule))
    });
    let (seed, rule) = hit.unwrap_or_else(|| panic!("{bug:?} is not found within {SEEDS} seeds"));
    println!("{bug:?}: seed {seed} violates \"{rule}\"");
    let without = violated(seed, None);
    assert!(!without.contains(&rule), "seed {seed} without {bug:?}: {without:?}");
}

#[test]
fn the_last_record_instead_of_the_newest() {
    found(Bug::MergeLaw, &["a directory never goes back", "after a quiet time all agree"]);
}

#[test]
fn a_stream_through_two_relays() {
    found(Bug::RelayLoop, &["one relay at most"]);
}

#[test]
fn a_preferred_origin_that_is_not_healthy() {
    let rules = ["no session to a dead origin", "after a quiet time routes are good"];
    found(Bug::RouteChoice, &rules);
}

#[test]
fn all_sessions_home_at_once() {
    found(Bug::RebalancingRate, &["sessions go home slowly"]);
}
