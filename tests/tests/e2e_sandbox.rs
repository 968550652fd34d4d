//! What a running daemon has given up, and what it can still do.

use std::fs;
use std::time::Duration;

use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};

const SETTLE: Duration = Duration::from_secs(40);

/// The lines `Name:\tvalue` of all threads' statuses that have this name.
fn of_all_threads(process: u32, name: &str) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).expect("the daemon runs");
    let status =
        tasks.map(|task| fs::read_to_string(task.expect("a thread").path().join("status")));
    let find = |text: String| {
        let line = text.lines().find(|line| line.starts_with(name)).map(str::to_owned);
        let line = line.unwrap_or_else(|| panic!("the kernel says nothing of {name}"));
        line.split_once('\t').expect("a value").1.to_owned()
    };
    // A thread may end while the list is read.
    status.filter_map(Result::ok).map(find).collect()
}

fn one_origin(settings: &str) -> World {
    let mut world = World::new();
    let address = world.apiserver("cp");
    world.node(&NodePlan::new("cp", "a").origin(address).settings(settings));
    world.chooses("cp", "cp", SETTLE);
    world
}

#[test]
fn a_daemon_gives_up_what_it_does_not_need_and_serves_on() {
    let mut world = one_origin("");
    let id = world.node_mut("cp").process().id();
    for value in of_all_threads(id, "NoNewPrivs:") {
        assert_eq!(value, "1");
    }
    for value in of_all_threads(id, "Seccomp:") {
        assert_eq!(value, "2", "2 is a filter");
    }
    for name in ["CapEff:", "CapPrm:", "CapInh:", "CapAmb:"] {
        for value in of_all_threads(id, name) {
            let held = u64::from_str_radix(&value, 16).expect("a number");
            assert_eq!(held & !(1 << 10), 0, "{name} has more than CAP_NET_BIND_SERVICE: {value}");
        }
    }
    let output = world.node_mut("cp").process().output();
    assert!(output.contains("in a sandbox"), "it says so:\n{output}");
    world.get("cp", "/version");

    // Its settings can be read again, and files in a folder it never knew cannot.
    let elsewhere = tempfile::tempdir().expect("a folder");
    let ca = elsewhere.path().join("ca.crt");
    fs::write(&ca, "").expect("a file");
    let health = format!("\n[service.kube-apiserver.health]\nca-file = \"{}\"\n", ca.display());
    world.reconfigure("cp", |text| format!("{text}{health}"));
    wait::until("the new folder is named", SETTLE, || {
        let output = world.node_mut("cp").process().output();
        let named = output.contains(&*ca.to_string_lossy()) && output.contains("Restart it");
        (named && output.contains("not reloaded")).then_some(())
    });
    world.reconfigure("cp", |text| text.replace(&health, ""));
    wait::until("the former settings are taken", SETTLE, || {
        world.node_mut("cp").process().output().contains("configuration reloaded").then_some(())
    });
    world.get("cp", "/version");
}

#[test]
fn without_a_sandbox_it_says_so() {
    let mut world = World::new();
    let address = world.apiserver("cp");
    world.make(&NodePlan::new("cp", "a").origin(address));
    let config = world.path("cp.toml");
    let text = fs::read_to_string(&config).expect("a node has settings");
    fs::write(&config, format!("sandbox = false\n{text}")).expect("written");
    world.start("cp");
    let id = world.node_mut("cp").process().id();
    assert!(of_all_threads(id, "Seccomp:").iter().all(|value| value == "0"));
    let output = world.node_mut("cp").process().output();
    assert!(output.contains("without a sandbox"), "it says so:\n{output}");
}
