//! Verbs that only ask the daemon.

use std::fs;
use std::os::unix::fs::chown;
use std::process::Command;
use std::time::Duration;

use meshport_tests::process::{Process, meshport, run, run_ok};
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};
use serde_json::Value;

const SETTLE: Duration = Duration::from_secs(40);

fn one_node() -> World {
    let mut world = World::new();
    let address = world.apiserver("cp");
    world.node(&NodePlan::new("cp", "fra").origin(address));
    world.chooses("cp", "cp", SETTLE);
    world
}

#[test]
fn the_version_of_the_daemon_is_told_and_its_status_watched() {
    let mut world = one_node();
    let state = world.at("cp").state().to_string_lossy().into_owned();
    let binary = meshport().to_string_lossy().into_owned();
    let said = run_ok(&binary, &["version", "--state-dir", &state]);
    assert!(said.starts_with("meshport ") && said.contains(" (cp in fra), up "), "{said}");
    let json = run_ok(&binary, &["version", "--json", "--state-dir", &state]);
    let json: Value = serde_json::from_str(&json).expect("an answer");
    assert_eq!(
        (&json["daemon"]["name"], &json["daemon"]["version"]),
        (&"cp".into(), &json["version"])
    );

    let watch = |format: &[&str], log: &str| {
        let mut command = Command::new(&binary);
        command.args(["status", "--watch=100ms", "--state-dir", &state]).args(format);
        Process::start("the watch", &mut command, &world.path(log))
    };
    let (mut pages, mut lines) = (watch(&[], "pages"), watch(&["--json"], "lines"));
    wait::until("three pages", SETTLE, || {
        (pages.output().matches(", every 100ms\n\ncp in site fra").count() >= 3).then_some(())
    });
    wait::until("three lines", SETTLE, || (lines.output().lines().count() > 3).then_some(()));
    for process in [&mut pages, &mut lines] {
        process.signal("INT");
        assert!(process.ended(SETTLE).success(), "{}", process.output());
    }
    let output = lines.output();
    let first: Value = serde_json::from_str(output.lines().next().expect("a line")).expect("whole");
    assert_eq!(first["me"]["name"], "cp");

    // A watch outlives the daemon, and says that it is away.
    let pages = watch(&[], "on");
    wait::until("a page", SETTLE, || pages.output().contains("cp in site fra").then_some(()));
    world.kill("cp");
    wait::until("it says so", SETTLE, || {
        pages.output().contains("no daemon answers").then_some(())
    });
}

fn two_origins() -> World {
    let mut world = World::new();
    ["cp-1", "cp-2"].into_iter().for_each(|name| world.origin(name, "fra"));
    world.meet();
    world.chooses("cp-1", "cp-1", SETTLE);
    world
}

#[test]
fn an_origin_by_itself_is_compared_with_the_one_that_is_chosen() {
    let world = two_origins();
    let explain = |arguments: &[&str]| world.at("cp-1").explain(arguments);
    let compared = " more than cp-1; ";
    wait::until("cp-2 is measured", SETTLE, || explain(&[]).contains(compared).then_some(()));
    let said = explain(&["cp-2"]);
    assert!(said.contains(compared), "{said}");
}

#[test]
fn a_name_that_a_certificate_lacks_is_warned_of_before_the_hosts_file_maps_it() {
    let world = two_origins();
    let (binary, state) = (meshport().to_string_lossy(), world.at("cp-1").state());
    let told = |name: &str| {
        let state = state.to_string_lossy();
        let output = run(&binary, &["hosts", "--name", name, "--state-dir", &state]);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let lacking = "warning: cp-1 is not in the certificate of cp-2; clients fail when it answers";
    wait::until("cp-2 is asked too", SETTLE, || told("cp-1").contains(lacking).then_some(()));
    let shared = told("kubernetes.default.svc");
    assert!(!shared.contains("warning"), "{shared}");
}

/// The user that owns nothing.
const USER: u32 = 65534;

#[test]
#[ignore = "needs root for another user: ./tests/run e2e"]
fn another_user_is_told_to_ask_as_the_user_of_the_daemon() {
    let world = one_node();
    let home = tempfile::tempdir().expect("a folder");
    chown(home.path(), Some(USER), Some(USER)).expect("root may");
    let (user, program) = (USER.to_string(), home.path().join("program"));
    // The checkout may be closed to other users.
    fs::copy(meshport(), &program).expect("copied");
    let state = world.at("cp").state();
    let ask = |words: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]).arg(&program);
        command.args(words).arg("--state-dir").arg(state);
        command.env("HOME", home.path()).current_dir(home.path()).output().expect("it runs")
    };
    let verbs = [
        "status",
        "routes",
        "stats",
        "explain",
        "peers",
        "peers --seeds",
        "ping cp",
        "credentials",
        "drain",
        "undrain",
        "reload",
        "upgrade",
        "health",
        "wait --timeout 1s",
        "version",
        "doctor",
        "support-bundle",
        "renew",
        "rotate-key",
        "rotate-secret",
        "revoke cp",
        "delegate cp",
        "leave",
    ];
    for verb in verbs {
        let output = ask(&verb.split(' ').collect::<Vec<_>>());
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        let remedies =
            ["Run this as the user of the daemon, or as root", "as the same user or as root"];
        assert!(remedies.iter().any(|it| said.contains(it)), "{verb}: {said}");
        for wrong in ["panicked", "no daemon runs", "Start the daemon", "has stopped"] {
            assert!(!said.contains(wrong), "{verb}: {wrong}: {said}");
        }
        let done = ["version", "doctor", "support-bundle"].contains(&verb);
        assert!(
            matches!(output.status.code(), Some(0..=6)) && output.status.success() == done,
            "{verb}: {}",
            output.status
        );
        // At once: it gives up with 1.
        assert!(!verb.starts_with("wait") || output.status.code() == Some(6), "{}", output.status);
    }
}
