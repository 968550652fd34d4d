//! Nodes get new keys one by one: as client, origin and relay of sessions with continuous traffic.
//! Then the old keys are useless, and a crash leaves a consistent node with either the old or the
//! new key.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use meshport_demo::wan::Cut;
use meshport_discovery::Count;
use meshport_mesh::MeshCount;
use meshport_tests::echo::{self, Flow, SERVICE, answers, session};
use meshport_tests::process::{meshport, run_ok};
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};
use serde_json::Value;

const SETTLE: Duration = Duration::from_secs(40);
/// Long enough to observe what happens within it.
const OVERLAP: &str = "12s";
/// Traffic continues for this long after the previous key is erased.
const AFTER: Duration = Duration::from_secs(5);
/// How long the test checks that the previous key stays useless.
const WATCHED: Duration = Duration::from_secs(8);
/// Times that a daemon is killed around a change of its key, each at another moment.
const CRASHES: u64 = 6;

fn state(world: &World, node: &str) -> String {
    world.at(node).state().to_string_lossy().into_owned()
}

/// Gives a node a new key; returns the command's output.
#[track_caller]
fn rotate(world: &World, node: &str, words: &[&str]) -> Value {
    let state = state(world, node);
    let words = [&["rotate-key", "--json", "--state-dir", &state], words].concat();
    let said = run_ok(&meshport().to_string_lossy(), &words);
    serde_json::from_str(&said).expect("an outcome")
}

fn status(world: &World, node: &str, key: &str) -> Value {
    world.at(node).status().map_or(Value::Null, |status| status[key].clone())
}

fn id(world: &World, node: &str) -> String {
    status(world, node, "me")["node"].as_str().unwrap_or_default().to_owned()
}

fn query(world: &World, at: &str, words: &[&str]) -> Value {
    let state = state(world, at);
    let words = [words, &["--json", "--state-dir", &state]].concat();
    serde_json::from_str(&run_ok(&meshport().to_string_lossy(), &words)).expect("a list")
}

/// All others know a node by its new key, and none by the previous.
#[track_caller]
fn known_as(world: &World, node: &str, new: &str, former: &str) {
    for other in world.names().iter().filter(|it| *it != node) {
        wait::until(&format!("{other} knows the new key of {node}"), SETTLE, || {
            let rows = query(world, other, &["credentials", "--within", "1s"]);
            let row = |id: &str| rows.as_array().into_iter().flatten().find(|it| it["node"] == *id);
            let replaced = row(former).is_some_and(|it| it["successor"] == new);
            (row(new)?["name"] == node && replaced).then_some(())
        });
    }
}

#[track_caller]
fn retired(world: &World, node: &str) {
    wait::until(&format!("{node} has erased its former key"), SETTLE, || {
        status(world, node, "former_key").is_null().then_some(())
    });
}

/// Changes the key of one node while others have sessions with it.
fn exchange(world: &World, node: &str, words: &[&str]) -> (String, String) {
    let (former, key) = (id(world, node), fs::read(world.at(node).state().join("node.key")));
    let said = rotate(world, node, &[words, &["--overlap", OVERLAP]].concat());
    let new = said["node"].as_str().expect("it says who").to_owned();
    assert!(said["in_force"] == true && said["is_new"] == true, "{said}");
    assert_eq!(said["former"]["node"], former.as_str());
    assert_eq!((id(world, node), new != former), (new.clone(), true));
    assert!(world.at(node).metrics().sum("meshport_former_key_expiry_timestamp_seconds", "") > 1.0);
    // During the overlap nothing changes.
    let again = rotate(world, node, words);
    assert!(again["is_new"] == false && again["node"] == new.as_str(), "{again}");
    known_as(world, node, &new, &former);
    retired(world, node);
    let key = key.expect("it had one");
    for file in fs::read_dir(world.at(node).state()).expect("a folder") {
        let path = file.expect("an entry").path();
        let has = fs::read(&path).is_ok_and(|it| it.windows(key.len()).any(|it| it == key));
        assert!(!has && !path.ends_with("node.next"), "{}", path.display());
    }
    (former, new)
}

#[test]
fn sessions_continue_while_nodes_get_new_keys() {
    let mut world = World::new();
    let (address, _open) = echo::serve();
    let origin = NodePlan::new("cp", "fra").role(&format!("origin:{SERVICE}"));
    world.node(&origin.settings(&echo::offer(address)));
    for name in ["worker-1", "worker-2", "worker-3", "worker-4"] {
        world.node(&NodePlan::new(name, "fra").settings(&echo::usage()));
    }
    world.meet();
    let flows = ["worker-1", "worker-2"].map(|node| Flow::start(session(&world, node)));
    let stolen = world.path("stolen");
    run_ok("cp", &["-a", &state(&world, "worker-1"), &stolen.to_string_lossy()]);

    // The origin, whose key and whose authority's are here; then a client, with an invite; then
    // the origin once more, so that its sessions have seen two.
    let (_, first) = exchange(&world, "cp", &[]);
    let invite = world.invite("cp", &NodePlan::new("worker-1", "fra"));
    exchange(&world, "worker-1", &[&invite]);
    let (former, _) = exchange(&world, "cp", &[]);
    assert_eq!(first, former);
    wait::throughout("bytes flow", AFTER, || flows.iter().all(Flow::goes_on));
    for node in ["worker-1", "worker-3"] {
        assert!(answers(&mut session(&world, node)), "a new session of {node}");
    }
    let bytes = flows.map(Flow::end);
    println!("{bytes:?} bytes came back on the sessions that were open all the time");
    assert!(bytes.iter().all(|it| *it > 1000));
    world.meet();

    // Seeds that name former keys are those of now.
    world.kill("worker-4");
    fs::remove_file(world.at("worker-4").state().join("directory")).ok();
    world.start("worker-4");
    world.meet();
    let log = world.node_mut("worker-2").process().output();
    assert!(!log.contains("sessions reset"), "{log}");
    assert_eq!(log.matches("succeeded").count(), 3, "{log}");
    let log = world.node_mut("worker-1").process().output();
    for event in ["key-rotated", "key-retired"] {
        assert!(log.contains(event), "{event}: {log}");
    }

    // The former key is useless even with all files of the state folder and a node's address.
    let listens = status(&world, "worker-2", "mesh_listen");
    let seed = format!("{}@{}\n", id(&world, "worker-2"), listens.as_str().expect("an address"));
    world.kill("worker-1");
    let folder = state(&world, "worker-1");
    fs::remove_dir_all(&folder).expect("it is there");
    run_ok("cp", &["-a", &stolen.to_string_lossy(), &folder]);
    fs::write(world.at("worker-1").state().join("seeds"), seed).expect("written");
    world.spawn("worker-1");
    let refused = |world: &World| world.at("worker-2").metrics().count(MeshCount::DroppedRevoked);
    wait::until("it tries", SETTLE, || (refused(&world) >= 1.0).then_some(()));
    wait::throughout("the former key opens nothing", WATCHED, || world.at("worker-1").alive() <= 1);
}

#[test]
fn a_relay_gets_a_new_key_under_the_sessions_it_carries() {
    let mut world = World::new();
    for (one, other) in [("a", "b"), ("a", "c"), ("b", "c")] {
        world.distance(one, other, Duration::from_millis(4));
    }
    let (address, _open) = echo::serve();
    let origin = NodePlan::new("cp", "b").role(&format!("origin:{SERVICE}"));
    world.node(&origin.settings(&echo::offer(address)));
    world.node(&NodePlan::new("relay", "c").role("relay"));
    world.node(&NodePlan::new("worker", "a").settings(&echo::usage()));
    world.meet();
    wait::until("the worker has a way to the relay, and that one to the origin", SETTLE, || {
        let peers = query(&world, "worker", &["peers"]);
        let relay = peers.as_array()?.iter().find(|it| it["name"] == "relay")?.clone();
        let told = world.at("relay").metrics().count(Count::Published);
        (relay["rtt_ms"].is_number() && told >= 2.0).then_some(())
    });
    world.shaper().set_down(Cut::Between("a".to_owned(), "b".to_owned()), true);
    let through = |world: &World| {
        let services = status(world, "worker", "services");
        let service = services.as_array()?.iter().find(|it| it["name"] == SERVICE)?.clone();
        (service["chosen"]["relay"] == "relay").then_some(())
    };
    wait::until("the worker goes through the relay", SETTLE, || through(&world));
    let flow = Flow::start(session(&world, "worker"));
    let invite = world.invite("cp", &NodePlan::new("relay", "c").role("relay"));
    exchange(&world, "relay", &[&invite]);
    wait::throughout("bytes flow", AFTER, || flow.goes_on());
    wait::until("the worker still goes through the relay", SETTLE, || through(&world));
    assert!(answers(&mut session(&world, "worker")));
    let bytes = flow.end();
    println!("{bytes} bytes came back through the relay");
    assert!(bytes > 500, "{bytes}");
}

#[test]
fn a_crash_leaves_the_old_node_or_the_new_one() {
    let mut world = World::new();
    let (address, _open) = echo::serve();
    let origin = NodePlan::new("cp", "fra").role(&format!("origin:{SERVICE}"));
    world.node(&origin.settings(&echo::offer(address)));
    world.node(&NodePlan::new("worker", "fra").settings(&echo::usage()));
    world.meet();
    let invite = world.invite("cp", &NodePlan::new("worker", "fra"));
    let (mut changed, mut told) = (0, 0);
    for crash in 0..=CRASHES {
        let (former, folder) = (id(&world, "worker"), state(&world, "worker"));
        let mut command = Command::new(meshport());
        command.args(["rotate-key", &invite, "--state-dir", &folder]);
        let command = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut command = command.expect("the binary can be run");
        if crash == CRASHES {
            // The last time it has its answer, and the crash is the daemon's alone.
            assert!(command.wait().expect("a child can be waited for").success());
        } else {
            wait::moment(wait::now() + Duration::from_millis(crash * 12));
        }
        world.kill("worker");
        // It may have got its answer or not; without a daemon it writes the key for the next one.
        let answered = command.wait().expect("a child can be waited for").success();
        world.start("worker");
        let now = id(&world, "worker");
        assert!(now != former || !answered, "what was said to be changed is not, crash {crash}");
        changed += u64::from(now != former);
        told += u64::from(answered);
        world.meet();
        assert!(answers(&mut session(&world, "worker")), "after crash {crash}");
    }
    println!("{changed} changes were made, {told} told, with {CRASHES} crashes; all nodes whole");
    assert!(told >= 1 && changed >= told, "{told} told, {changed} made");
    // If no daemon runs, the next one starts with the new key.
    let former = id(&world, "worker");
    world.kill("worker");
    let said = rotate(&world, "worker", &[&invite]);
    assert!(said["in_force"] == false && said["former"].is_null(), "{said}");
    world.start("worker");
    assert_eq!(
        (id(&world, "worker") == said["node"], id(&world, "worker") != former),
        (true, true)
    );
    world.meet();
    assert!(answers(&mut session(&world, "worker")));
}
