//! A state folder, or the saved credential of a forward, is copied and runs twice: every affected
//! node reports it, with the remedy.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use meshport_tests::echo;
use meshport_tests::process::{Process, meshport, run, run_ok};
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
        let copy = to.join(entry.file_name());
        match entry.file_type().expect("the type of an entry") {
            kind if kind.is_dir() => copy_folder(&entry.path(), &copy),
            kind if kind.is_file() => drop(fs::copy(entry.path(), copy).expect("it is ours")),
            _ => {}
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

/// Starts a forward with a saved credential, or with an invite that saves one.
fn forward(udp: SocketAddr, credential: &Path, log: &Path, invite: Option<&Path>) -> Process {
    let mut command = Command::new(meshport());
    command.args(["forward", "--service", echo::SERVICE, "--listen", "127.0.0.1:0"]);
    command.args(["--mesh-listen", &udp.to_string(), "--log-level", "error", "--credential"]);
    command.arg(credential);
    if let Some(invite) = invite {
        command.args(["--name", "laptop", "--invite"]).arg(invite);
    }
    let process = Process::start("forward", &mut command, log);
    let leads = || process.output().contains(" leads to ").then_some(());
    wait::until("the forward is ready", START, leads);
    process
}

#[test]
fn an_operators_credential_that_runs_twice_is_named_by_both_and_by_members_with_the_remedy() {
    let mut world = World::new();
    let (address, _open) = echo::serve();
    let origin = NodePlan::new("cp", "fra").role(&format!("origin:{}", echo::SERVICE));
    world.node(&origin.settings(&echo::offer(address)));
    world.meet();
    let invite = world.path("laptop.invite");
    let line = world.invite("cp", &NodePlan::operator("laptop", "fra"));
    fs::write(&invite, line).expect("the world's folder can be written");
    let [saved, copied] = ["saved", "copied"].map(|name| world.path(name));
    let [here, there] = ["laptop", "thief"].map(|name| world.place(name, "fra"));
    let real = forward(here, &saved, &world.path("real.log"), Some(&invite));
    let complete = || saved.join("3/credential").exists().then_some(());
    wait::until("the credential is saved", START, complete);
    copy_folder(&saved, &copied);
    let copy = forward(there, &copied, &world.path("copied.log"), None);

    let begun = wait::now();
    let config = world.path("cp.toml");
    let mut forwards = [real, copy];
    let said = wait::until("all three say so", SAID, || {
        let [real, copy] = forwards.each_ref().map(Process::output);
        let said = [warnings(&config)?, real, copy];
        said.iter().all(|it| it.contains("was copied")).then_some(said)
    });
    println!("said by all {:?} after the copy is ready", begun.elapsed());
    said.iter().for_each(|said| println!("{said}"));
    let [member, real, copy] = &said;
    assert!(member.contains("two processes use the operator credential of laptop"), "{member}");
    for own in [real, copy] {
        assert!(own.contains("another process uses this machine's operator credential"), "{own}");
        assert!(own.contains("seen by cp"), "{own}");
        assert!(!own.contains(" INFO "), "{own}");
    }
    assert!(said.iter().all(|it| !it.contains("rotate-key")), "a leaf has none: {member}");
    let log = world.node_mut("cp").process().output();
    let logged = log.lines().find(|line| line.contains("two processes use one node's key"));
    assert!(logged.is_some_and(|line| line.contains("name=laptop")), "{log}");

    // The remedy works as printed.
    let command = member.split("`meshport ").find(|it| it.starts_with("revoke ")).expect("it");
    let command = command.split('`').next().expect("its end");
    let state = world.at("cp").state().to_string_lossy().into_owned();
    let words: Vec<&str> = command.split(' ').chain(["--state-dir", &state]).collect();
    run_ok(&meshport().to_string_lossy(), &words);
    let again = run_ok(&meshport().to_string_lossy(), &words);
    assert!(again.contains("already revoked"), "{again}");
    for forward in &mut forwards {
        // Members do not answer the one that has no tunnel, so it does not learn why.
        wait::until("the forward is shut out", START, || {
            let output = forward.output();
            let last = output.lines().last()?;
            (last.contains("was revoked at") || last.contains(" is closed until ")).then_some(())
        });
    }
}
