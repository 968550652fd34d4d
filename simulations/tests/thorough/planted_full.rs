//! The checks of the full level check: with a bug in the product each of these scenarios violates
//! the rule about it, and without one none.

use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Seeds to try for a bug that needs records to overtake each other: two of the first 60 show it,
/// and which ones changes with any timing of the product.
const MOST_SEEDS: u32 = 240;

/// A scenario's file, its seed, and the changes to it.
type Story<'a> = (&'a str, &'a str, &'a [&'a str]);

fn run((file, seed, sets): Story<'_>, bug: Option<&str>) -> Output {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(file);
    let mut command = Command::new(crate::program());
    command.arg("run").arg(file).args(["--full", "--seed", seed]).stdin(Stdio::null());
    for set in sets {
        command.arg("--set").arg(set);
    }
    command.args(bug.iter().flat_map(|bug| ["--planted", bug]));
    command.output().expect("the program starts")
}

fn found(bug: &str, story: Story<'_>, rule: &str) {
    let output = run(story, Some(bug));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{bug}: {said}");
    let violation = said.lines().find(|line| line.contains(rule));
    let violation = violation.unwrap_or_else(|| panic!("{bug} does not violate {rule}: {said}"));
    // As at the wide level: the time, the node, its last events, and the command.
    assert!(violation.starts_with("VIOLATION ") && violation.contains(" s at "), "{violation}");
    assert!(said.contains("last events of that node:"), "{said}");
    let again = said.lines().find(|line| line.trim().starts_with("again: "));
    assert!(again.is_some_and(|line| line.contains("--full")), "{said}");
    let output = run(story, None);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
#[ignore = "needs a program with planted-bugs, optimised: ./tests/run sim"]
fn the_last_record_instead_of_the_newest() {
    let file = "full/everything.toml";
    let rule = "a directory never goes back";
    let shows = |seed: &String| {
        let output = run((file, seed, &[]), Some("MergeLaw"));
        String::from_utf8_lossy(&output.stderr).contains(rule)
    };
    let seed = (1..=MOST_SEEDS).map(|seed| seed.to_string()).find(shows);
    let seed = seed.unwrap_or_else(|| panic!("none of {MOST_SEEDS} seeds shows it"));
    found("MergeLaw", (file, &seed, &[]), rule);
}

#[test]
#[ignore = "needs a program with planted-bugs, optimised: ./tests/run sim"]
fn a_preferred_origin_that_is_not_healthy() {
    found("RouteChoice", ("compared/black-hole.toml", "3", &[]), "no session to a dead origin");
}

#[test]
#[ignore = "needs a program with planted-bugs, optimised: ./tests/run sim"]
fn a_death_that_is_not_refuted() {
    found("Refutation", ("full/still.toml", "3", &[]), "no living node stays evicted");
}

#[test]
#[ignore = "needs a program with planted-bugs, optimised: ./tests/run sim"]
fn an_origin_that_is_kept_however_far_it_is() {
    let sets = &["scenario.event.0.for-s=10", "scenario.duration-s=115"];
    let rule = "after a quiet time routes are near";
    found("Nearness", ("compared/kill.toml", "3", sets), rule);
}

#[test]
#[ignore = "needs a program with planted-bugs, optimised: ./tests/run sim"]
fn an_instance_that_is_reported_ready_forever() {
    let sets = &["scenario.duration-s=100"];
    let rule = "after a quiet time routes are good";
    found("Health", ("compared/hang.toml", "3", sets), rule);
}

#[test]
#[ignore = "needs a program with planted-bugs, optimised: ./tests/run sim"]
fn revocations_that_nobody_hears_of() {
    found("Revocation", ("full/stolen.toml", "3", &[]), "revoked nodes are shut out");
}
