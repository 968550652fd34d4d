//! The authority has a second key: nodes join and are revoked with it while the first one is away,
//! and once it is stolen the first one revokes it with all it signed.

use std::fs;
use std::process::Output;
use std::time::Duration;

use meshport_tests::echo::{self, Flow, SERVICE, session};
use meshport_tests::process::{meshport, run};
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};
use serde_json::Value;

const SETTLE: Duration = Duration::from_secs(40);

fn verb(world: &World, node: &str, words: &[&str]) -> Output {
    let state = world.at(node).state().to_string_lossy();
    run(&meshport().to_string_lossy(), &[words, &["--state-dir", &state]].concat())
}

#[track_caller]
fn ok(world: &World, node: &str, words: &[&str]) -> String {
    let output = verb(world, node, words);
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[track_caller]
fn refused(world: &World, node: &str, words: &[&str]) -> String {
    let output = verb(world, node, words);
    assert!(!output.status.success(), "{words:?} was accepted");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("it is JSON")
}

#[test]
fn a_second_key_works_without_the_first_and_is_revoked_with_what_it_signed() {
    let mut world = World::new();
    let (address, _open) = echo::serve();
    let origin = NodePlan::new("cp", "fra").role(&format!("origin:{SERVICE}"));
    world.node(&origin.settings(&echo::offer(address)));
    let usage = echo::usage();
    for name in ["worker-1", "worker-2"] {
        world.node(&NodePlan::new(name, "fra").settings(&usage));
    }
    world.meet();
    let flow = Flow::start(session(&world, "worker-2"));

    let (first, second) = (world.path("first.key"), world.path("second.key"));
    let at = second.to_string_lossy().into_owned();
    let shown = json(&ok(&world, "cp", &["authority", "--add", &at, "--json"]));
    let key = shown["key"].as_str().expect("a key").to_owned();
    let again = refused(&world, "cp", &["authority", "--add", &at]);
    assert!(again.contains("exists"), "no key is overwritten: {again}");

    // The first one is away: the state folder has the second one.
    let folder = world.at("cp").state().join("authority.key");
    fs::rename(&folder, &first).expect("moved");
    fs::rename(&second, &folder).expect("moved");
    world.node(&NodePlan::new("worker-3", "fra").settings(&usage));
    let joined = Flow::start(session(&world, "worker-3"));
    let shown = json(&ok(&world, "cp", &["authority", "--json"]));
    assert_eq!((&shown["credentials"], &shown["key"]), (&1.into(), &key.clone().into()), "{shown}");
    let said = ok(&world, "worker-2", &["credentials", "--json"]);
    assert_eq!(said.matches(&key).count(), 1, "the others know it, too: {said}");
    ok(&world, "cp", &["revoke", "worker-1"]);
    wait::until("it is out", SETTLE, || {
        let kept = world.at("worker-3").state().join("revocations").exists();
        kept.then_some(())
    });

    // It is stolen. Without the first key nobody takes it back but itself.
    let target = format!("authority:{key}");
    let first = first.to_string_lossy().into_owned();
    let spared = refused(&world, "cp", &["revoke", &target, "--authority", &first]);
    assert!(spared.contains("worker-3"), "{spared}");
    let said = ok(&world, "cp", &["revoke", &target, "--authority", &first, "--with-nodes"]);
    assert!(said.contains("one member is shut out"), "{said}");
    wait::until("what it signed counts no more", SETTLE, || (!joined.goes_on()).then_some(()));
    assert!(flow.goes_on(), "what the first one signed is not touched");
    let root = json(&ok(&world, "cp", &["authority", "--authority", &first, "--json"]));
    let own = format!("authority:{}", root["key"].as_str().expect("a key"));
    let kept = refused(&world, "cp", &["revoke", &own, "--authority", &first, "--with-nodes"]);
    assert!(kept.contains("cannot be revoked"), "{kept}");
}
