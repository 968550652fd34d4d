//! A state folder is copied and runs twice: every affected node reports it, with the remedy.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use meshport_tests::echo;
use meshport_tests::process::{Process, meshport, run};
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};
use serde_json::Value;

/// Time from the start of the copy until all report it.
const SAID: Duration = Duration::from_secs(10);
/// How long it takes the daemon of a copy to start on a busy machine.
const START: Duration = Duration::from_secs(20);

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir(to).expect("the world's folder can be written");
    for entry in fs::read_dir(from).expect("a state folder").flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_file()) {
            fs::copy(entry.path(), to.join(entry.file_name())).expect("a file can be copied");
        }
    }
    let rights = fs::metadata(from).expect("a state folder").permissions();
    fs::set_permissions(to, rights).expect("it is ours");
}

fn warnings(config: &Path) -> Option<String> {
    let words = ["status", "--json", "--config", &config.to_string_lossy()];
    let output = run(&meshport().to_string_lossy(), &words);
    let status: Value = serde_json::from_slice(&output.stdout).ok()?;
    Some(status["warnings"].to_string())
}

#[test]
fn a_state_folder_that_runs_twice_is_named_by_both_and_by_others_with_the_remedy() {
    let mut world = World::new();
    let (address, _open) = echo::serve();
    let origin = NodePlan::new("cp", "fra").role(&format!("origin:{}", echo::SERVICE));
    world.node(&origin.settings(&echo::offer(address)));
    world.node(&NodePlan::new("real", "fra").settings(&echo::usage()));
    world.meet();

    // The copy runs on another machine, so with other addresses.
    let udp = world.place("copy", "fra");
    copy_folder(world.at("real").state(), &world.path("copied"));
    let text = fs::read_to_string(world.path("real.toml")).expect("the node has settings");
    let (real, state) = (world.at("real"), world.path("copied"));
    let text = text.replace(&real.state().to_string_lossy()[..], &state.to_string_lossy());
    let text = text.replace(&real.udp.to_string(), &udp.to_string());
    let text = text.replace(&real.local.to_string(), "127.0.0.1:0");
    let config = world.path("copied.toml");
    fs::write(&config, text).expect("the world's folder can be written");
    let mut command = Command::new(meshport());
    command.arg("run").arg("--config").arg(&config);
    let copy = Process::start("copy", &mut command, &world.path("copied.log"));
    wait::until("the copy answers", START, || warnings(&config));

    let begun = wait::now();
    let configs = [world.path("cp.toml"), world.path("real.toml"), config];
    let said = wait::until("all three say so", SAID, || {
        let said: Vec<String> = configs.iter().filter_map(|it| warnings(it)).collect();
        let all = said.len() == 3 && said.iter().all(|it| it.contains("was copied"));
        all.then_some(said)
    });
    println!("said by all {:?} after the copy answers", begun.elapsed());
    said.iter().for_each(|said| println!("{said}"));
    assert!(said[0].contains("two processes use the key of real"), "{}", said[0]);
    for own in &said[1..] {
        assert!(own.contains("another process uses this node's key"), "{own}");
    }
    for words in ["meshport rotate-key", "meshport revoke real"] {
        assert!(said.iter().all(|it| it.contains(words)), "{words}");
    }
    for name in ["cp", "real"] {
        let duplicates = world.at(name).metrics().sum("meshport_duplicate_identities", "");
        assert!(duplicates >= 1.0, "{name}: {duplicates}");
    }
    let [cp, real] = ["cp", "real"].map(|name| world.node_mut(name).process().output());
    let logs = [cp, real, copy.output()];
    for log in logs {
        assert!(log.contains("duplicate-identity"), "{log}");
        assert!(log.contains("two processes use one node's key"), "{log}");
    }
}
