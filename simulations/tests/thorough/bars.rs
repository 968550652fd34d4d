//! Limits for runs with hours of rekeys, revocations, hundreds of nodes under faults, hours of
//! starvation, and growing meshes. They take minutes unless the program is optimised:
//! `./tests/run sim` names an optimised one in `MESHPORT_SIM`. Suite hunt plays the largest whole:
//! a thousand nodes, six and ten hours.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

/// Pairs of nodes in the bar of rekeys.
const PAIRS: u64 = 3;
/// Hours of rekeys: in suite hunt, and in the checks.
const REKEY_HOURS: [u64; 2] = [6, 2];
/// Handshakes of a pair in an hour: each session is renewed at an age of 110 to 120 s, which gives
/// 30 to 32.8, and a few more where one was lost or both ends started one.
const HANDSHAKES: std::ops::RangeInclusive<u64> = 30..=36;
/// Nodes that must learn of each revocation: the thousand without those revoked or gone.
const CONCERNED: u64 = 990;
/// 99 % of them know within this.
const KNOWN_S: f64 = 3.0;

/// 99 % of all nodes know of an unready origin within this, of a crashed node within that, and of
/// one in their own site within the last.
const UNREADY_S: f64 = 1.5;
const CRASH_S: f64 = 8.0;
const NEAR_CRASH_S: f64 = 5.0;
/// Gossip and probes of a node over all faults, in bytes a second, with all headers.
const BYTES_PER_S: f64 = 2048.0;
/// A route takes at most this much longer than the best one where nothing has failed, in 99 % of
/// all choices.
const STRETCH: f64 = 1.1;
/// Traffic of an idle node in a larger mesh, relative to a small one.
const FLAT: std::ops::RangeInclusive<f64> = 0.75..=1.25;

/// Nodes with clients in each of five sites, under faults: in suite hunt, and in the checks.
const NODES_PER_SITE: [u64; 2] = [200, 100];
/// Requests that those of one site send at least in ten minutes, for each of its nodes.
const REQUESTS_PER_NODE: u64 = 100;
/// How many nodes of the starvation run take part, and for how many seconds: in suite hunt, and in
/// the checks.
const STARVED: [(u64, u64); 2] = [(60, 36_000), (30, 10_800)];
/// Settings under which nodes judge too quickly, with ten times the loss, for a fraction of the
/// time.
const HASTY: [&str; 4] = [
    "discovery.suspicion=500ms",
    "discovery.probe-interval=500ms",
    "discovery.probe-timeout=200ms",
    "scenario.loss-percent=20",
];
const HASTY_S: &str = "600";

/// The result of a run of a bar, with the seed of all runs in the suite.
fn result(bar: &str, level: &[&str]) -> Value {
    result_with_seed("7", bar, level)
}

/// The result of a run of a bar. It keeps every rule.
fn result_with_seed(seed: &str, bar: &str, level: &[&str]) -> Value {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("bars/{bar}.toml"));
    let mut command = Command::new(crate::program());
    command.arg("run").arg(file).args(level).args(["--seed", seed, "--json", "-"]);
    let output = command.stdin(Stdio::null()).output().expect("the program starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{bar}: {errors}");
    let result: Value = serde_json::from_slice(&output.stdout).expect("a result");
    assert_eq!(result["violations"], Value::Array(Vec::new()), "{bar}");
    result
}

/// The first in suite hunt, the second in the checks.
fn whole_or_less<T>([whole, less]: [T; 2]) -> T {
    if crate::plays_all() { whole } else { less }
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number of things"))
}

/// An absent value exceeds every limit, since it never happened.
fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(f64::INFINITY)
}

#[test]
#[ignore = "hours, optimised: ./tests/run sim"]
fn hours_of_rekeys_cost_no_request() {
    let hours = whole_or_less(REKEY_HOURS);
    let result = result("rekeys", &["--full", "--until", &(hours * 3600).to_string()]);
    let handshakes = count(&result["handshakes"]);
    let [failed, total] = ["failed", "total"].map(|it| count(&result["requests"][it]));
    println!(
        "{hours} hours of rekeys: {handshakes} handshakes, {failed} of {total} requests failed"
    );
    assert_eq!(failed, 0);
    assert!(total > 16 * hours, "{total} requests show nothing");
    let expected = PAIRS * hours * HANDSHAKES.start()..=PAIRS * hours * HANDSHAKES.end();
    assert!(expected.contains(&handshakes), "{handshakes} handshakes, not {expected:?}");
}

#[test]
#[ignore = "a thousand nodes, optimised: ./tests/run sim"]
fn a_revocation_is_known_to_all_but_one_in_a_hundred_within_three_seconds() {
    let result = result("revoke", &[]);
    let faults = result["faults"].as_array().expect("a list");
    assert_eq!(faults.len(), 3);
    for fault in faults {
        let what = fault["what"].as_str().expect("words");
        let known_s = fault["detected_p99_s"].as_f64();
        println!("{what}: 99 % know after {} s", known_s.unwrap_or(f64::INFINITY));
        assert!(count(&fault["concerned"]) > CONCERNED, "{fault}");
        assert!(known_s.is_some_and(|known_s| known_s <= KNOWN_S), "{fault}");
    }
}

#[test]
#[ignore = "hundreds of nodes for ten minutes, optimised: ./tests/run sim"]
fn nodes_with_clients_keep_every_bar_through_eight_faults() {
    let nodes = whole_or_less(NODES_PER_SITE);
    let result = result("busy", &["--nodes-per-site", &nodes.to_string()]);
    assert_eq!(count(&result["nodes"]), 5 * nodes);
    assert_eq!(count(&result["requests"]["failed"]), 0, "{}", result["requests"]);
    let least = REQUESTS_PER_NODE * 5 * nodes;
    assert!(count(&result["requests"]["total"]) > least, "{}", result["requests"]);
    assert_eq!(count(&result["false_evictions"]), 0);
    let bytes = number(&result["bytes_per_node_per_s"]);
    let stretch = number(&result["stretch_quiet"]["p99"]);
    println!("{} nodes: {bytes:.0} B/s a node, quiet stretch {stretch}", 5 * nodes);
    assert!(bytes <= BYTES_PER_S, "{bytes} B/s a node");
    assert!(stretch <= STRETCH, "99 % of quiet routes: {stretch}");
    let mut judged = 0;
    for fault in result["faults"].as_array().expect("a list") {
        let known = number(&fault["detected_p99_s"]);
        match fault["kind"].as_str() {
            Some("unready") => assert!(known <= UNREADY_S, "{fault}"),
            Some("crash") => {
                assert!(known <= CRASH_S, "{fault}");
                assert!(number(&fault["detected_same_site_p99_s"]) <= NEAR_CRASH_S, "{fault}");
            }
            _ => continue,
        }
        judged += 1;
        println!("{}: 99 % know after {known:.2} s", fault["what"]);
    }
    assert_eq!(judged, 4);
}

/// With these seeds the rumour of a death once died out before three nodes of its site had it.
#[test]
#[ignore = "a thousand nodes, optimised: ./tests/run sim"]
fn a_death_is_known_in_its_own_site_within_five_seconds() {
    let seeds = if crate::plays_all() { &["2", "6"][..] } else { &["2"] };
    for seed in seeds {
        let result = result_with_seed(seed, "crash", &[]);
        let faults = result["faults"].as_array().expect("a list");
        assert_eq!(faults.len(), 3);
        for fault in faults {
            let near = number(&fault["detected_same_site_p99_s"]);
            println!("{}, seed {seed}: 99 % of its site know after {near:.2} s", fault["what"]);
            assert!(near <= NEAR_CRASH_S, "{fault}");
        }
    }
}

/// Settings for five sites with this many nodes.
fn five_sites(nodes: u64) -> Vec<String> {
    let sites = (0..5).map(|site| format!("--set=scenario.site.{site}.nodes={}", nodes / 5));
    sites.collect()
}

/// A site whose nodes stall for 200 ms again and again, and 2 % loss everywhere: for hours no node
/// is considered down by mistake. Nodes that wait for a sixth of the time, with ten times the loss,
/// show that the count would notice it.
#[test]
#[ignore = "hours of thirty nodes, optimised: ./tests/run sim"]
fn hours_of_starved_nodes_evict_nobody_by_mistake() {
    let (nodes, until_s) = whole_or_less(STARVED);
    let sites = five_sites(nodes);
    let sites: Vec<&str> = sites.iter().map(String::as_str).collect();
    let until = until_s.to_string();
    let calm: Vec<&str> = sites.iter().copied().chain(["--until", &until]).collect();
    let calm = result("starved", &calm);
    assert_eq!(count(&calm["nodes"]), nodes);
    assert!(number(&calm["virtual_s"]) >= until_s as f64, "{}", calm["virtual_s"]);
    let hasty = HASTY.iter().flat_map(|set| ["--set", set]).chain(["--until", HASTY_S]);
    let hasty = result("starved", &sites.iter().copied().chain(hasty).collect::<Vec<_>>());
    let [kept, lost] = [&calm, &hasty].map(|it| count(&it["false_evictions"]));
    let suspected = count(&calm["false_suspicions"]);
    println!(
        "{until_s} s of {nodes} nodes: {suspected} suspected by mistake, {kept} evicted by \
         mistake; in haste {lost} in {HASTY_S} s"
    );
    assert_eq!(kept, 0);
    // No node is down, so every eviction is a mistake, whatever excuses it.
    assert_eq!(count(&calm["evictions"]), 0);
    assert!(lost > 0, "false evictions are not counted: {hasty}");
}

#[test]
#[ignore = "five hundred nodes, optimised: ./tests/run sim"]
fn what_a_node_costs_does_not_grow_with_the_mesh() {
    let of = |nodes: u64| {
        let sites = five_sites(nodes);
        let sites: Vec<&str> = sites.iter().map(String::as_str).collect();
        number(&result("quiet", &sites)["bytes_per_node_per_s"])
    };
    let (small, large) = (of(100), of(500));
    println!("100 nodes: {small:.0} B/s a node, 500: {large:.0}");
    assert!(FLAT.contains(&(large / small)), "{small} and {large} B/s");
}
