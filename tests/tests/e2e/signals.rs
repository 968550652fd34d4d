//! Signals to a running daemon: SIGTERM, and SIGHUP after a change of its settings.

use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use meshport_tests::doctor;
use meshport_tests::echo;
use meshport_tests::process::{Process, meshport, run, run_ok};
use meshport_tests::series::failures;
use meshport_tests::transfer::{self, Open};
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};

const SETTLE: Duration = Duration::from_secs(40);
const INTERVAL: Duration = Duration::from_millis(50);
/// Requests before, between and after the events of a test, and how long they may take.
const REQUESTS: usize = 30;
const PHASE: Duration = Duration::from_secs(60);
/// A node that stops tells the others first, so no node waits for a timeout; the rest of this is
/// for a busy machine.
const HANDOVER: Duration = Duration::from_secs(2);
const BYTES: u64 = 100_000;
/// How often the test looks whether clients are accepted until the process ends.
const LOOK: Duration = Duration::from_millis(5);
/// Longest time from the last accepted client to the end of the process. On a busy machine, twice
/// the time that the test itself was late meanwhile is added: the process waits its turn as well.
const CLOSED: Duration = Duration::from_millis(150);
/// Requests for the dashboard whose answers, of some 80 KiB, exceed the buffers of a connection.
const UNREAD: usize = 200;

/// Two sites with an origin each, and a node in the first.
fn two_sites() -> World {
    let service = transfer::serve();
    let mut world = World::new();
    world.distance("a", "b", Duration::from_millis(20));
    for site in ["a", "b"] {
        let name = format!("cp-{site}");
        let address = world.apiserver(&name);
        let mut plan = NodePlan::new(&name, site).origin(address);
        if site == "b" {
            let offer = format!("\n[service.blob]\nlisten = []\norigin = \"{service}\"\n");
            plan = plan.role("origin:blob").settings(&offer);
        }
        world.node(&plan);
    }
    let listen = "\n[service.blob]\nlisten = [\"127.0.0.1:0\"]\n";
    world.node(&NodePlan::new("worker", "a").settings(listen).http());
    world.meet();
    world.chooses("worker", "cp-a", SETTLE);
    world
}

#[test]
fn a_node_that_is_stopped_hands_over_and_comes_back() {
    let mut world = two_sites();
    let load = world.load(world.at("worker").local, INTERVAL);
    load.goes_on(REQUESTS, PHASE);

    world.node_mut("cp-a").process().signal("TERM");
    world.chooses("worker", "cp-b", HANDOVER);
    let status = world.node_mut("cp-a").process().ended(SETTLE);
    assert!(status.success(), "a stopped daemon says {status}");
    load.goes_on(REQUESTS, PHASE);

    world.start("cp-a");
    world.chooses("worker", "cp-a", SETTLE);
    load.goes_on(REQUESTS, PHASE);
    let requests = load.finish();
    let failed = failures(&requests);
    assert!(failed.is_empty(), "of {} failed:\n{}", requests.len(), failed.join("\n"));
}

#[test]
fn a_reload_changes_what_it_can_and_keeps_what_runs() {
    let mut world = two_sites();
    let blob = wait::until("the worker listens for the transfer service", SETTLE, || {
        let local = world.at("worker").service("blob")?;
        transfer::transfer(local, transfer::Direction::Down, 0).ok().map(|_| local)
    });
    let open = Open::download(blob, BYTES).expect("a session opens");

    world.reconfigure("worker", |text| {
        let pinned = "policy = \"pinned\"\npinned = [\"cp-b\"]\n\n[service.blob]";
        text.replace("[service.blob]", pinned)
    });
    world.chooses("worker", "cp-b", SETTLE);

    // The result is reported key by key, and keys that need a restart stay in the status.
    let (config, echo) = (world.path("worker.toml"), echo::serve().0);
    let text = fs::read_to_string(&config).expect("the node has settings");
    let text = text.replace("[mesh]", "[mesh]\nmax-relayed = 7");
    let text = format!("{text}\n[log]\nlevel = \"debug\"\n{}", late(echo));
    fs::write(&config, text).expect("ours");
    let told = run_ok(&meshport().to_string_lossy(), &["reload", "--config", &text_of(&config)]);
    let (applied, waits) = told.split_once("waits for a restart of the daemon:").expect("both");
    for change in ["log.level: \"info\" -> \"debug\"", "service.late: not set -> { listen ="] {
        assert!(applied.contains(change), "{change} is not in {told}");
    }
    assert!(waits.contains("mesh.max-relayed: 1000 -> 7"), "{told}");
    let status = world.at("worker").status().expect("it answers");
    assert_eq!(status["needs_restart"][0]["key"], "mesh.max-relayed", "{status}");
    let output = world.node_mut("worker").process().output().to_owned();
    assert!(output.contains("setting changed") && output.contains("log.level"), "{output}");
    wait::until("the new service serves", SETTLE, || {
        let local = world.at("worker").service("late")?;
        echo::answers(&mut TcpStream::connect(local).ok()?).then_some(())
    });
    wait::until("the new level logs", SETTLE, || {
        // A client that disconnects before its end, which is logged at this level.
        drop(Open::download(blob, BYTES));
        world.node_mut("worker").process().output().contains("DEBUG").then_some(())
    });

    // A file with a mistake changes nothing and is complained about, until a reload succeeds.
    let whole = fs::read_to_string(&config).expect("the node has settings");
    world.reconfigure("worker", |text| text.replace("policy = \"pinned\"", "polcy = \"pinned\""));
    wait::until("the mistake is named", SETTLE, || {
        let output = world.node_mut("worker").process().output();
        (output.contains("not reloaded") && output.contains("polcy")).then_some(())
    });
    let refused = run(&meshport().to_string_lossy(), &["reload", "--config", &text_of(&config)]);
    assert_eq!(refused.status.code(), Some(3), "as \"check\" says: {refused:?}");
    // A restart into it would fail.
    let moved = whole.lines().filter(|line| !line.starts_with("site = "));
    let moved: Vec<&str> = ["site = \"elsewhere\""].into_iter().chain(moved).collect();
    fs::write(&config, moved.join("\n")).expect("ours");
    let refused = run(&meshport().to_string_lossy(), &["reload", "--config", &text_of(&config)]);
    assert_eq!(refused.status.code(), Some(3), "{refused:?}");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("but the configuration has \"elsewhere\""), "{said}");
    fs::write(&config, whole).expect("ours");
    let examined = || doctor::examine(meshport(), &world, "worker");
    wait::until("the refusal is reported", SETTLE, || {
        let (examined, refused) = (examined(), "the last reload was refused");
        let said = examined.detail("MP110");
        (said.starts_with(refused) && said.contains("elsewhere")).then_some(())
    });
    let status = world.at("worker").status().expect("it answers");
    assert!(status["warnings"].to_string().contains("(MP110)"), "{status}");
    assert_eq!(status["needs_restart"][0]["key"], "mesh.max-relayed", "{status}");
    run_ok(&meshport().to_string_lossy(), &["reload", "--config", &text_of(&config)]);
    assert!(!examined().ids().contains(&"MP110"), "the reload succeeded");
    let answer = world.get("worker", "/version");
    assert!(answer.subject().contains("cp-b"), "the worker met {}", answer.subject());
    open.read().expect("a session outlives a reload");
}

#[test]
fn a_damaged_credential_is_reported_until_a_reload_can_use_one() {
    let mut world = World::new();
    let origin = world.apiserver("cp-a");
    world.node(&NodePlan::new("cp-a", "fra").origin(origin));
    world.meet();
    let node = world.at("cp-a");
    let (credential, config) = (node.state().join("credential"), text_of(node.config()));
    let whole = fs::read(&credential).expect("a node has a credential");
    fs::write(&credential, "damaged").expect("ours");
    let settings = fs::read_to_string(&config).expect("the node has settings");
    fs::write(&config, settings + "\n[log]\nlevel = \"debug\"\n").expect("ours");
    let reload = || run(&meshport().to_string_lossy(), &["reload", "--config", &config]);

    let output = reload();
    let (said, told) =
        (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
    assert_eq!(output.status.code(), Some(6), "{said}");
    assert!(said.contains("the stored credential is not in use"), "{said}");
    assert!(told.contains("log.level: \"info\" -> \"debug\""), "{told}");
    let warnings = || world.at("cp-a").status().expect("it answers")["warnings"].to_string();
    assert!(warnings().contains("the stored credential is not in use"), "{}", warnings());
    assert!(warnings().contains("(MP109)"), "{}", warnings());
    assert!(doctor::examine(meshport(), &world, "cp-a").ids().contains(&"MP109"));

    fs::write(&credential, whole).expect("ours");
    assert!(reload().status.success(), "the credential is whole again");
    assert!(!warnings().contains("MP109"), "{}", warnings());
}

/// A service with an outside address only, which needs no role on any node.
fn late(echo: SocketAddr) -> String {
    format!("[service.late]\nlisten = [\"127.0.0.1:0\"]\nfallback = [\"{echo}\"]\n")
}

fn text_of(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Connects until the process has ended. Returns the time from the last accepted client to its end,
/// and how much of that the test was late.
fn accepts_to_its_end(process: &mut Process, local: SocketAddr) -> (Duration, Duration) {
    let begun = wait::now();
    let (mut accepted, mut look, mut late) = (begun, begun, Duration::ZERO);
    while process.is_running() {
        assert!(begun.elapsed() < SETTLE, "the first one does not end");
        let planned = look.max(wait::now());
        wait::pace(&mut look, LOOK);
        late += wait::now().saturating_duration_since(planned);
        if TcpStream::connect(local).is_ok() {
            (accepted, late) = (wait::now(), Duration::ZERO);
        }
    }
    (accepted.elapsed(), late)
}

#[test]
fn a_daemon_that_stops_accepts_clients_to_its_end_and_the_next_one_waits_for_it() {
    let mut world = two_sites();
    let blob = wait::until("the worker listens for the transfer service", SETTLE, || {
        let local = world.at("worker").service("blob")?;
        transfer::transfer(local, transfer::Direction::Down, 0).ok().map(|_| local)
    });
    let open = Open::download(blob, BYTES).expect("a session opens");
    let (local, config) = (world.at("worker").local, text_of(&world.path("worker.toml")));
    let is_leaving = |world: &World| world.at("worker").status()?["is_leaving"].as_bool();
    // A client that reads no answer must not delay the process once the address is closed.
    let http = world.at("worker").http().expect("it is on");
    let mut deaf = TcpStream::connect(http).expect("it listens");
    let requests = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(UNREAD);
    deaf.write_all(requests.as_bytes()).expect("it is read");

    world.node_mut("worker").process().signal("TERM");
    wait::until("it says that it stops", SETTLE, || (is_leaving(&world)?).then_some(()));
    let (program, log) = (meshport(), world.path("next.log"));
    let mut next =
        Process::start("next", Command::new(program).args(["run", "--config", &config]), &log);
    wait::until("the next one waits", SETTLE, || {
        assert!(next.is_running(), "it has given up: {}", next.output());
        next.output().contains("waiting for it to exit").then_some(())
    });
    TcpStream::connect(local).expect("clients are accepted meanwhile");
    drop(open);
    let (closed, late) = accepts_to_its_end(world.node_mut("worker").process(), local);
    println!("it ended {closed:?} after the last client; the test was {late:?} late");
    assert!(closed <= CLOSED + 2 * late, "clients were refused for {closed:?}, {late:?} late");
    let began = wait::now();
    wait::until("the next one serves", SETTLE, || {
        assert!(next.is_running(), "it has given up: {}", next.output());
        TcpStream::connect(local).ok()
    });
    println!("the next one accepted {:?} after that", began.elapsed());
    wait::until("the next one answers", SETTLE, || (!is_leaving(&world)?).then_some(()));
    assert!(next.is_running());
}
