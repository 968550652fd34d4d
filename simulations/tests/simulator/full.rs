//! The full level, run as a user runs it: everything real above the socket, in virtual time.
//!
//! This level exists only in the program `meshport-sim`, so these tests run it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

fn here(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(file)
}

fn sim(arguments: &[&str], file: &Path) -> Command {
    let mut command = Command::new(crate::program());
    command.arg("run").arg(file).args(arguments).stdin(Stdio::null());
    command
}

fn output(arguments: &[&str], file: &Path) -> Output {
    sim(arguments, file).output().expect("the program starts")
}

/// The result of a run that breaks no rule.
fn result(arguments: &[&str], file: &Path) -> Value {
    let arguments = [arguments, &["--json", "-"]].concat();
    let output = output(&arguments, file);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?} of {}: {errors}", file.display());
    serde_json::from_slice(&output.stdout).expect("a result")
}

fn hash(seed: &str, file: &Path) -> String {
    let result = result(&["--full", "--until", "45", "--seed", seed], file);
    result["trace_hash"].as_str().expect("a hash").to_owned()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(f64::INFINITY)
}

/// Processes that keep the processors busy until dropped.
struct Load(Vec<Child>);

impl Load {
    fn new() -> Self {
        let spin = || Command::new("sh").arg("-c").arg("while :; do :; done").spawn();
        Self((0..4).map(|_| spin().expect("a shell")).collect())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // It may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn one_seed_is_one_trace_also_on_a_busy_machine_and_another_seed_another() {
    let [kill, black_hole] =
        ["kill", "black-hole"].map(|story| here(&format!("tests/compared/{story}.toml")));
    let first = hash("7", &kill);
    let load = Load::new();
    assert_eq!(first, hash("7", &kill), "a run on a busy machine differs");
    drop(load);
    assert_ne!(first, hash("8", &kill), "the seed does not matter");
    assert_eq!(hash("7", &black_hole), hash("7", &black_hole), "a second run differs");
}

#[test]
fn twice_compares_with_another_process() {
    let file = here("tests/compared/hang.toml");
    let output = output(&["--full", "--until", "35", "--twice"], &file);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Each fault leaves one healthy origin, so no request fails. The bounds are those of the product:
/// a refusal counts at once, a dead path is four silent probes, a hanging instance two unanswered
/// probes.
#[test]
fn sessions_leave_what_is_killed_dark_or_hanging() {
    for (story, noticed_s, left_s) in
        [("kill", 1.5, 1.5), ("black-hole", 8.0, 4.0), ("hang", 4.0, 4.0)]
    {
        for seed in ["1", "2", "3"] {
            let file = here(&format!("tests/compared/{story}.toml"));
            let result = result(&["--full", "--seed", seed], &file);
            let fault = &result["faults"][0];
            assert!(number(&fault["users"]) >= 2.0, "{story} {seed}: {fault}");
            assert_eq!(fault["noticed"], fault["concerned"], "{story} {seed}: {fault}");
            let (noticed, left) =
                (number(&fault["detected_p99_s"]), number(&fault["failover_p99_s"]));
            assert!(noticed <= noticed_s && left <= left_s, "{story} {seed}: {fault}");
            assert!(number(&result["requests"]["total"]) > 500.0, "{story} {seed}");
            assert_eq!(result["requests"]["failed"], 0, "{story} {seed}");
        }
    }
}

/// No suspicion of a crashed node is a mistake, neither the first nor those that follow; with six
/// datagrams in ten lost for half a minute, nodes that run are suspected too.
#[test]
fn suspicions_are_judged_by_their_subject() {
    let crash = result(&["--full", "--seed", "7"], &here("tests/compared/black-hole.toml"));
    let of = |result: &Value, key: &str| result[key].as_u64().expect("a count");
    assert!(of(&crash, "suspicions") > 0);
    assert_eq!((of(&crash, "false_suspicions"), of(&crash, "false_evictions")), (0, 0));
    let lossy = ["--full", "--seed", "7", "--set", "scenario.loss-percent=60"];
    let lossy = output(&[&lossy[..], &["--json", "-"]].concat(), &here("tests/compared/kill.toml"));
    let lossy = serde_json::from_slice(&lossy.stdout).expect("a result");
    let (all, wrong) = (of(&lossy, "suspicions"), of(&lossy, "false_suspicions"));
    assert!(0 < wrong && wrong <= all, "{wrong} of {all}");
    let still = result(&["--full", "--seed", "7"], &here("tests/compared/kill.toml"));
    assert_eq!((of(&still, "suspicions"), of(&still, "false_suspicions")), (0, 0));
}

/// Its users are Vienna's nodes, and the path to Vienna is not the first that goes down.
#[test]
fn a_lost_site_has_its_users() {
    let arguments = ["--full", "--nodes-per-site", "3", "--until", "90", "--seed", "3"];
    let result = result(&arguments, &here("scenarios/site-loss.toml"));
    let fault = &result["faults"][0];
    assert_eq!((fault["users"].as_u64(), fault["noticed"].as_u64()), (Some(3), Some(3)), "{fault}");
    let left = number(&fault["failover_p99_s"]);
    assert!(left > 0.5 && left <= 4.0, "{fault}");
}

/// Restarts with and without a state folder, partitions, paths that get worse, departures, a NAT
/// that rebinds: the end must be as if nothing had happened. With about every second seed the
/// access of the shop, a mobile network, has just made another origin look nearest to it: one node
/// of seven.
#[test]
fn all_ends_well_after_everything_this_level_knows() {
    let mut shares = Vec::new();
    for seed in ["5", "6", "7"] {
        let result = result(&["--full", "--seed", seed], &here("tests/full/everything.toml"));
        assert_eq!(result["requests"]["failed"], 0, "{seed}");
        // Each of its events is followed.
        assert_eq!(result["faults"].as_array().map(Vec::len), Some(12), "{seed}");
        shares.push(number(&result["nearest_share_at_end"]));
    }
    assert!(shares.iter().all(|share| *share >= 6.0 / 7.0 - f64::EPSILON), "{shares:?}");
    assert!(shares.contains(&1.0), "{shares:?}");
}

/// The origin probes the nodes that have fallen silent, and so tells them its new address before
/// they give up the path.
#[test]
fn sessions_outlast_a_change_of_their_origins_address() {
    for seed in ["1", "2", "3"] {
        let result = result(&["--full", "--seed", seed], &here("tests/full/rebind.toml"));
        assert!(number(&result["sessions"]["opened"]) > 300.0, "{seed}");
        assert_eq!(result["sessions"]["broken"], 0, "{seed}");
        assert_eq!(result["requests"]["retried"], 0, "{seed}");
    }
}

/// Nobody learns the state of an origin's instance once the origin has announced that it leaves, so
/// it ends the sessions of clients that would wait for an answer until the drain ends.
#[test]
fn no_client_waits_for_an_origin_that_leaves_while_its_instance_stalls() {
    for seed in ["1", "2", "3"] {
        let result = result(&["--full", "--seed", seed], &here("tests/full/leaves.toml"));
        assert!(number(&result["requests"]["total"]) > 3000.0, "{seed}");
        assert_eq!(result["requests"]["failed"], 0, "{seed}");
    }
}

/// Real tunnels, real directories: no node keeps a connection with a revoked one, even after a
/// restart that lost the revocation; and a starved or reconfigured node breaks nothing.
#[test]
fn revoked_nodes_are_shut_out() {
    let result = result(&["--full", "--seed", "5"], &here("tests/full/stolen.toml"));
    let faults = result["faults"].as_array().expect("a list");
    let revoked: Vec<_> = faults.iter().filter(|fault| fault["kind"] == "revoke").collect();
    assert_eq!(revoked.len(), 2);
    for fault in revoked {
        assert_eq!(fault["noticed"], fault["concerned"], "{fault}");
        assert!(number(&fault["detected_p99_s"]) < 1.0, "{fault}");
    }
    assert_eq!(result["requests"]["failed"], 0);
}

/// Half an hour with 15 rekeys of each tunnel, and one datagram in a hundred lost from each node to
/// each other, also within a site; `tests/full/day.toml` runs for 24 hours.
#[test]
fn rekeys_cost_no_request() {
    let name = format!("meshport-{}-rekeys.trace", std::process::id());
    let path = std::env::temp_dir().join(name);
    let arguments = ["--full", "--until", "1800", "--trace", path.to_str().expect("a name")];
    let result = result(&arguments, &here("tests/full/day.toml"));
    let text = std::fs::read_to_string(&path).expect("the trace");
    std::fs::remove_file(&path).expect("it is there");
    assert_eq!(result["requests"]["failed"], 0);
    assert!(number(&result["requests"]["total"]) > 120.0);
    // How many datagrams each node has sent to each other, and how many of them were lost.
    let mut paths = BTreeMap::<(&str, &str), (f64, f64)>::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        if let [_, _, from, to, _, fate @ ("sent" | "lost")] = words[..] {
            let (sent, lost) = paths.entry((from, to)).or_default();
            *sent += 1.0;
            *lost += f64::from(u8::from(fate == "lost"));
        }
    }
    assert_eq!(paths.len(), 4 * 3);
    for (path, (sent, lost)) in paths {
        assert!(sent > 500.0 && (0.005..0.02).contains(&(lost / sent)), "{path:?}: {lost}/{sent}");
    }
}

/// A datagram in a trace: its time, kind and sender; none for one that was lost.
fn datagram(line: &str) -> Option<(f64, &str, &str)> {
    let words: Vec<&str> = line.split(' ').collect();
    let [at, kind, from, _to, _size, "sent"] = words[..] else { return None };
    Some((at.parse().ok()?, kind, from))
}

/// For boringtun a tunnel without a session for 540 s has expired, and its own clock is virtual
/// here: the first handshake that passes afterwards is answered, and data follows it at once.
#[test]
fn a_peer_that_was_silent_for_eleven_minutes_is_reached_by_one_handshake() {
    let name = format!("meshport-{}-silent.trace", std::process::id());
    let path = std::env::temp_dir().join(name);
    let trace = path.to_str().expect("a name");
    let result = result(&["--full", "--trace", trace], &here("tests/full/silent.toml"));
    let text = std::fs::read_to_string(&path).expect("the trace");
    std::fs::remove_file(&path).expect("it is there");
    let passed: Vec<_> = text.lines().filter_map(datagram).collect();
    let (first, kind, initiator) = *passed.first().expect("the way is back");
    assert!(first >= 660.0, "something passed a way that is cut: {first}");
    assert_eq!(kind, "initiation");
    let after = |kind: &str, from_initiator: bool| {
        let is_it = |it: &&(f64, &str, &str)| it.1 == kind && (it.2 == initiator) == from_initiator;
        passed.iter().find(is_it).expect("it follows").0 - first
    };
    assert!(after("response", false) < 0.03, "{}", after("response", false));
    assert!(after("data", true) < 0.06, "{}", after("data", true));
    assert!(after("data", false) < 0.1, "{}", after("data", false));
    assert_eq!(number(&result["nearest_share_at_end"]), 1.0);
}

#[test]
fn what_this_level_does_not_know_is_said() {
    let ready = |name: &str| here(&format!("scenarios/{name}.toml"));
    for (key, value) in [("clock-step", "by-s = 60"), ("lie", "how = \"ready\"")] {
        let file = std::env::temp_dir().join(format!("meshport-{}-{key}.toml", std::process::id()));
        let kill = include_str!("../compared/kill.toml");
        let event = format!("{kill}\n[[event]]\nat-s = 20\n{key} = \"all any\"\n{value}\n");
        std::fs::write(&file, event).expect("a file");
        let output = output(&["--full"], &file);
        std::fs::remove_file(&file).expect("it is there");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{key}: {errors}");
        assert!(errors.contains("does not support these") && errors.contains(key), "{errors}");
    }
    let output = output(&["--full"], &ready("thousand-node-join-storm"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("--nodes-per-site"), "{errors}");
}
