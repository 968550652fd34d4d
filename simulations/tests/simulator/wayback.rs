//! Apiservers call kubelets at the full level: through cuts, NATs and restarts, each stream reaches
//! the node it names.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

const BEHIND_NAT: &str = "kubelets-behind-nat.toml";
const LOSE_POWER: &str = "kubelets-lose-power.toml";

fn command(scenario: &str, arguments: &[&str]) -> Command {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios").join(scenario);
    let mut command = Command::new(crate::program());
    command.arg("run").arg(file).args(arguments).args(["--json", "-"]).stdin(Stdio::null());
    command
}

fn output(mut command: Command) -> (Output, String) {
    let output = command.output().expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, said)
}

/// The way back's figures of a run that breaks no rule.
fn way_back(scenario: &str, arguments: &[&str]) -> Value {
    let (output, said) = output(command(scenario, arguments));
    assert!(output.status.success(), "{scenario} {arguments:?}: {said}");
    let result: Value = serde_json::from_slice(&output.stdout).expect("a result");
    result["way_back"].clone()
}

fn refused(back: &Value) -> u64 {
    let all = back["refused"].as_object().expect("counts by status");
    all.values().filter_map(Value::as_u64).sum()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no count"))
}

#[test]
fn kubelets_behind_nat_are_reached_through_a_relay_while_the_direct_path_is_cut() {
    let back = way_back(BEHIND_NAT, &["--seed", "7"]);
    // 11 workers, 0.2 streams a second, 200 s; a daemon is down for ten of them.
    assert!(number(&back["opened"]) > 350, "{back}");
    assert!(refused(&back) < 40, "{back}");
    let [total, failed] = ["total", "failed"].map(|key| number(&back["requests"][key]));
    assert!(failed * 500 < total, "{back}");
    let with = way_back(BEHIND_NAT, &["--seed", "1"]);
    let without = way_back(BEHIND_NAT, &["--seed", "1", "--set", "scenario.site.1.relays=0"]);
    assert!(
        refused(&without) > 2 * refused(&with),
        "a relay makes no difference: {without} {with}"
    );
}

#[test]
fn calls_are_refused_while_nodes_have_no_power_and_succeed_again_afterwards() {
    let back = way_back(LOSE_POWER, &["--seed", "7"]);
    // 8 workers, 0.4 streams a second, 330 s; six are down for 60 s at once, then 3 s each.
    assert!(number(&back["opened"]) > 750, "{back}");
    assert!((100..350).contains(&refused(&back)), "{back}");
    assert!(number(&back["broken"]) > 0, "{back}");
    // A call that hung would have waited for longer.
    let longest = back["latency_ms"]["max"].as_f64().expect("requests were answered");
    assert!(longest < 6_500.0, "{back}");
}

#[test]
fn other_levels_refuse_a_way_back() {
    let (output, said) = output(command(BEHIND_NAT, &["--set", "scenario.level=wide"]));
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("[way-back]") && said.contains("full level"), "{said}");
}

/// A relay that dials its own kubelet instead of relaying the stream.
#[cfg(feature = "planted-bugs")]
#[test]
fn a_stream_that_reaches_another_nodes_kubelet_breaks_a_rule() {
    let arguments = ["--seed", "1", "--planted", "OtherNode"];
    let (output, said) = output(command(BEHIND_NAT, &arguments));
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("a stream of the way back reaches the node it names"), "{said}");
    assert!(said.contains("its stream to the kubelet of shops-"), "{said}");
}
