//! A node leaves permanently by its own statement, and one takes another name and site with its
//! keys.

use std::fs;
use std::path::Path;
use std::time::Duration;

use meshport_tests::echo::{self, SERVICE, answers, session};
use meshport_tests::process::{meshport, run, run_ok};
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};
use serde_json::Value;

const SETTLE: Duration = Duration::from_secs(40);
/// Time from the command until no other node lists the one that left.
const GONE: Duration = Duration::from_secs(3);
/// How long the test watches that the node does not return.
const WATCHED: Duration = Duration::from_secs(10);
const OTHERS: [&str; 2] = ["cp", "worker"];

/// An origin with the authority and two nodes.
fn world() -> World {
    let mut world = World::new();
    let (address, _open) = echo::serve();
    let origin = NodePlan::new("cp", "fra").role(&format!("origin:{SERVICE}"));
    world.node(&origin.settings(&echo::offer(address)));
    for name in ["worker", "guest"] {
        world.node(&NodePlan::new(name, "fra").settings(&echo::usage()));
    }
    world.meet();
    world
}

fn words<'a>(verb: &[&'a str], state: &'a str) -> Vec<&'a str> {
    [verb, &["--state-dir", state]].concat()
}

/// Name and site of all that a node knows to be alive.
fn known(world: &World, at: &str) -> Vec<(String, String)> {
    let state = world.at(at).state().to_string_lossy().into_owned();
    let peers = run_ok(&meshport().to_string_lossy(), &words(&["peers", "--json"], &state));
    let rows: Vec<Value> = serde_json::from_str(&peers).expect("a list");
    let text = |row: &Value, key: &str| row[key].as_str().unwrap_or_default().to_owned();
    rows.iter().map(|row| (text(row, "name"), text(row, "site"))).collect()
}

fn copy_folder(from: &Path, to: &Path) {
    run_ok("cp", &["-a", &from.to_string_lossy(), &to.to_string_lossy()]);
}

#[test]
fn a_node_that_leaves_is_gone_everywhere_and_its_key_is_worth_nothing() {
    let mut world = world();
    let mut open = session(&world, "guest");
    let folder = world.at("guest").state().to_owned();
    let (state, copy) = (folder.to_string_lossy().into_owned(), world.path("copy"));
    copy_folder(&folder, &copy);
    let binary = meshport().to_string_lossy().into_owned();

    // There is no terminal to ask on, so nothing happens.
    let refused = run(&binary, &words(&["leave"], &state));
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{text}");
    assert!(text.contains("--yes") && answers(&mut open), "{text}");
    // With another socket it does not advise to start the daemon, which runs.
    let elsewhere = world.path("other.sock").to_string_lossy().into_owned();
    let unheard = ["leave", "--yes", "--socket", &*elsewhere];
    let refused = run(&binary, &words(&unheard, &state));
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(6), "{text}");
    assert!(text.contains("uses the state folder") && !text.contains("Start it"), "{text}");
    // An authority is not erased by the way.
    let cp = world.at("cp").state().to_string_lossy().into_owned();
    let refused = run(&binary, &words(&["leave", "--erase", "--yes"], &cp));
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && text.contains("authority"), "{text}");

    let begun = wait::now();
    let said = run_ok(&binary, &words(&["leave", "--erase", "--yes", "--json"], &state));
    let said: Value = serde_json::from_str(&said).expect("an outcome");
    assert_eq!(said["name"], "guest", "{said}");
    let status = world.node_mut("guest").process().ended(SETTLE);
    assert!(status.success(), "it has left, which is no failure: {status}");
    assert!(!answers(&mut open), "its sessions have ended");
    assert_eq!(fs::read_dir(&folder).expect("the folder stays").count(), 0);
    for name in OTHERS {
        wait::until(&format!("{name} knows it no more"), GONE, || {
            let names = known(&world, name);
            (world.at(name).alive() == 2 && names.iter().all(|(it, _)| it != "guest")).then_some(())
        });
    }
    println!("nobody knows it any more {:?} after the command began", begun.elapsed());
    let log = world.node_mut("worker").process().output();
    assert!(log.lines().any(|it| it.contains("member down") && it.contains("name=guest")), "{log}");

    // A copy of its former state is refused.
    copy_folder(&copy, &world.path("again"));
    for entry in fs::read_dir(world.path("again")).expect("copied").flatten() {
        let _ = fs::copy(entry.path(), folder.join(entry.file_name()));
    }
    world.start("guest");
    wait::throughout("the others are two", WATCHED, || {
        OTHERS.iter().all(|it| world.at(it).alive() == 2)
    });
    world.kill("guest");

    // As a new node it may use its name again.
    run_ok(&binary, &words(&["reset", "--yes"], &state));
    let line = world.invite("cp", &NodePlan::new("guest", "fra"));
    run_ok(&binary, &words(&["join", &line, "--name", "guest"], &state));
    world.start("guest");
    world.meet();
    assert!(answers(&mut session(&world, "guest")));
}

#[test]
fn without_a_daemon_nobody_leaves_and_with_one_nothing_is_erased() {
    let mut world = world();
    let state = world.at("guest").state().to_string_lossy().into_owned();
    let binary = meshport().to_string_lossy().into_owned();
    let refused = |verb: &[&str], code: i32| {
        let output = run(&binary, &words(verb, &state));
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let text = refused(&["reset", "--yes"], 4);
    assert!(text.contains("Stop it first"), "{text}");
    world.kill("guest");
    let text = refused(&["leave", "--yes"], 6);
    assert!(text.contains("meshport reset"), "{text}");
    assert!(world.at("guest").state().join("node.key").exists());
}

#[test]
fn a_node_takes_another_name_and_site_under_its_keys() {
    let mut world = world();
    let state = world.at("guest").state().to_string_lossy().into_owned();
    let key = fs::read(world.at("guest").state().join("node.key")).expect("it has one");
    let line = world.invite("cp", &NodePlan::new("host", "nyc"));
    let join = ["join", &line, "--force", "--name", "host"];
    // The daemon locks the folder, so it must end first.
    world.node_mut("guest").process().signal("TERM");
    world.node_mut("guest").process().ended(SETTLE);
    // Credentials count seconds, and of two of the same second either may count.
    let first = wait::unix_now();
    wait::until("the next second", SETTLE, || (wait::unix_now() > first).then_some(()));
    run_ok(&meshport().to_string_lossy(), &words(&join, &state));
    let config = world.path("guest.toml");
    let text = fs::read_to_string(&config).expect("it has settings");
    fs::write(&config, text.replace("site = \"fra\"", "site = \"nyc\"")).expect("written");
    world.start("guest");
    world.meet();
    for name in OTHERS {
        wait::until(&format!("{name} knows the new name and site alone"), SETTLE, || {
            let rows = known(&world, name);
            let host = rows.iter().filter(|row| **row == ("host".into(), "nyc".into())).count();
            let former = rows.iter().filter(|(name, _)| name == "guest").count();
            (host == 1 && former == 0).then_some(())
        });
        let status = world.at(name).status().expect("it answers");
        assert!(!status["findings"].to_string().contains("MP208"), "{}", status["findings"]);
        assert!(!status.to_string().contains("guest"), "{status}");
    }
    assert_eq!(fs::read(world.at("guest").state().join("node.key")).expect("it has one"), key);
    assert!(answers(&mut session(&world, "guest")));
}
