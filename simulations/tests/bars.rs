//! What the bars of a day of rekeys and of revocations have to show. They take minutes unless the
//! program is optimised: `./tests/run sim` names that one in `MESHPORT_SIM`.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

/// Pairs of nodes in the bar of rekeys.
const PAIRS: u64 = 3;
/// Handshakes of one of them in a day: each session is renewed at an age of 110 to 120 s, so that
/// there are 720 to 786, and a few more where one was lost or both ends began.
const HANDSHAKES: std::ops::RangeInclusive<u64> = 720..=860;
/// Nodes that have to learn of each revocation: the thousand but who is revoked already or gone.
const CONCERNED: u64 = 990;
/// 99 % of them know within this.
const KNOWN_S: f64 = 3.0;

/// The result of a run of a bar, with the seed of all runs in the suite. It keeps every rule.
fn result(bar: &str, level: &[&str]) -> Value {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("bars/{bar}.toml"));
    let program = std::env::var_os("MESHPORT_SIM");
    let program = program.unwrap_or_else(|| env!("CARGO_BIN_EXE_meshport-sim").into());
    let mut command = Command::new(program);
    command.arg("run").arg(file).args(level).args(["--seed", "7", "--json", "-"]);
    let output = command.stdin(Stdio::null()).output().expect("the program starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{bar}: {errors}");
    let result: Value = serde_json::from_slice(&output.stdout).expect("a result");
    assert_eq!(result["violations"], Value::Array(Vec::new()), "{bar}");
    result
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number of things"))
}

#[test]
#[ignore = "a day, optimised: ./tests/run sim"]
fn a_day_of_rekeys_costs_no_request() {
    let result = result("rekeys", &["--full"]);
    let handshakes = count(&result["handshakes"]);
    let [failed, total] = ["failed", "total"].map(|it| count(&result["requests"][it]));
    println!("a day of rekeys: {handshakes} handshakes, {failed} of {total} requests failed");
    assert_eq!(failed, 0);
    assert!(total > 100, "{total} requests show nothing");
    let expected = PAIRS * HANDSHAKES.start()..=PAIRS * HANDSHAKES.end();
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
