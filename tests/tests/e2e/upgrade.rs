//! A running daemon hands over to the program on disk, and keeps serving if that cannot run.

mod requests;
mod sessions;

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use meshport_tests::process::{meshport, run};
use meshport_tests::series::{Load, Series, failures};
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};
use serde_json::Value;

const SETTLE: Duration = Duration::from_secs(40);
const INTERVAL: Duration = Duration::from_millis(20);
/// Between two knocks at a port: less than it takes to close and bind a socket.
const KNOCKS: Duration = Duration::from_micros(500);
/// Interval of those at the loopback port, where a user may open 100 connections a second.
const SCRAPES: Duration = Duration::from_millis(12);
/// Requests before, between and after the events of a test, and how long they may take.
const REQUESTS: usize = 30;
const PHASE: Duration = Duration::from_secs(60);

/// A successor is not a child of this test; it is killed on drop.
struct Successor(u64);

impl Successor {
    fn is_running(&self) -> bool {
        Path::new(&format!("/proc/{}", self.0)).exists()
    }

    fn signal(&self, signal: &str) {
        run("kill", &["-s", signal, &self.0.to_string()]);
    }
}

impl Drop for Successor {
    fn drop(&mut self) {
        self.signal("KILL");
    }
}

/// An origin far away, and a worker whose program is a link that the test can replace.
fn world() -> (World, PathBuf) {
    let mut world = World::new();
    world.distance("a", "b", Duration::from_millis(20));
    world.origin("cp", "b");
    let program = world.path("program");
    link(&program);
    world.node(&NodePlan::new("worker", "a").program(&program));
    world.meet();
    world.chooses("worker", "cp", SETTLE);
    (world, program)
}

fn upgrade(world: &World, node: &str) -> Output {
    let config = world.at(node).config().to_string_lossy().into_owned();
    run(&meshport().to_string_lossy(), &["upgrade", "--json", "--config", &config])
}

/// The successor that serves now.
#[track_caller]
fn succeeded(output: &Output) -> Successor {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "the upgrade failed: {said}");
    let said: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    Successor(said["process"].as_u64().expect("the process"))
}

#[track_caller]
fn none_failed(load: Load) {
    let requests = load.finish();
    let failed = failures(&requests);
    assert!(failed.is_empty(), "of {} failed:\n{}", requests.len(), failed.join("\n"));
}

#[test]
fn an_upgrade_refuses_no_client_and_can_be_repeated() {
    let (mut world, _) = world();
    let load = world.load(world.at("worker").local, INTERVAL);
    load.goes_on(REQUESTS, PHASE);
    let first = succeeded(&upgrade(&world, "worker"));
    let status = world.node_mut("worker").process().ended(SETTLE);
    assert!(status.success(), "the previous daemon: {status}");
    load.goes_on(REQUESTS, PHASE);

    // The successor starts one in turn.
    let second = succeeded(&upgrade(&world, "worker"));
    assert_ne!(first.0, second.0);
    wait::until("the first successor ends", SETTLE, || (!first.is_running()).then_some(()));
    load.goes_on(REQUESTS, PHASE);
    none_failed(load);

    second.signal("TERM");
    wait::until("the successor ends by a signal", SETTLE, || (!second.is_running()).then_some(()));
}

/// One request at the admin port.
/// The process that starts the successors of the daemon with this configuration.
fn starter_of(config: &Path) -> Option<String> {
    let config = config.to_string_lossy();
    let is_it = |words: &str| {
        words.starts_with("meshport-starter\0serve\0") && words.split('\0').any(|it| it == config)
    };
    let mut processes = fs::read_dir("/proc").expect("it is there").flatten();
    let found = processes
        .find(|it| fs::read_to_string(it.path().join("cmdline")).is_ok_and(|words| is_it(&words)));
    found.map(|it| it.file_name().to_string_lossy().into_owned())
}

#[test]
fn signals_for_the_daemon_do_not_end_its_starter() {
    let (world, _program) = world();
    let starter = starter_of(world.at("worker").config()).expect("it has one");
    for signal in ["HUP", "INT", "USR1", "USR2", "WINCH"] {
        run("kill", &["-s", signal, &starter]);
    }
    let _successor = succeeded(&upgrade(&world, "worker"));
}

fn ask(admin: SocketAddr) -> io::Result<()> {
    let mut stream = TcpStream::connect(admin)?;
    stream.set_read_timeout(Some(PHASE))?;
    stream.write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let is_good = answer.starts_with("HTTP/1.1 200");
    if is_good { Ok(()) } else { Err(io::Error::other(format!("answer {answer:?}"))) }
}

#[test]
fn neither_a_datagram_nor_a_scraper_finds_a_closed_port_in_an_upgrade() {
    let (mut world, program) = world();
    let free = TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a port");
    let plan = NodePlan::new("second", "a").program(&program);
    world.make(&plan);
    let config = world.at("second").config().to_owned();
    let text = fs::read_to_string(&config).expect("a node has settings");
    let text = text.replace("http = \"off\"", &format!("http = \"{free}\""));
    fs::write(&config, &text).expect("it can be written");
    world.start("second");
    let listen = text.split_once("listen = \"").and_then(|(_, rest)| rest.split_once('"'));
    let mesh: Option<SocketAddr> = listen.and_then(|(address, _)| address.parse().ok());
    let mesh = mesh.expect("the mesh's address");
    let udp = UdpSocket::bind((mesh.ip(), 0)).expect("a socket");
    udp.connect(mesh).expect("an address");
    // The refusal of one datagram is reported to the sender of the next.
    let knocks = [
        Series::start(KNOCKS, move |_| udp.send(&[0]).map(drop)),
        Series::start(SCRAPES, move |_| ask(free)),
    ];
    let successor = succeeded(&upgrade(&world, "second"));
    world.node_mut("second").process().ended(SETTLE);
    script(&program, "exit 1");
    let failed = upgrade(&world, "second");
    assert_eq!(failed.status.code(), Some(7), "{failed:?}");
    for (at, knocks) in ["the mesh", "the admin port"].into_iter().zip(knocks) {
        let knocks = knocks.finish();
        let count = knocks.len();
        assert!(count > REQUESTS, "{count} times");
        let failed: Vec<io::Error> = knocks.into_iter().filter_map(Result::err).collect();
        let (number, first) = (failed.len(), failed.first());
        assert!(failed.is_empty(), "{at} refused {number} of {count}, the first {first:?}");
    }
    assert!(successor.is_running());
}

#[test]
fn no_other_process_can_take_a_closed_local_address_in_an_upgrade() {
    let (mut world, program) = world();
    let local = world.at("worker").local;
    world.kill_apiserver("cp");
    let refused = || {
        let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
        TcpStream::connect(local).is_err_and(refused).then_some(())
    };
    wait::until("the address is closed", SETTLE, refused);
    let thief = Series::start(KNOCKS, move |_| TcpListener::bind(local).map(drop));
    // The first successor fails and gives the address back.
    script(&program, "printf 'ready %s\\n' $$ >&0; head -c 1 >&2");
    assert_eq!(upgrade(&world, "worker").status.code(), Some(7));
    wait::until("the address is closed again", SETTLE, refused);
    fs::remove_file(&program).expect("it is there");
    link(&program);
    let successor = succeeded(&upgrade(&world, "worker"));
    world.node_mut("worker").process().ended(SETTLE);
    let binds = thief.finish();
    assert!(binds.len() > REQUESTS, "{} times", binds.len());
    let taken = binds.iter().filter(|it| it.is_ok()).count();
    assert_eq!(taken, 0, "of {}", binds.len());
    world.start_apiserver("cp");
    wait::until("the address serves again", SETTLE, || {
        world.curl().get(local, "/version").is_ok_and(|it| it.status == 200).then_some(())
    });
    assert!(successor.is_running());
}

/// Also while the previous process serves again because its successor has failed.
#[test]
fn a_drained_origin_stays_drained_through_upgrades() {
    let mut world = World::new();
    let origin = world.apiserver("cp");
    let program = world.path("program");
    link(&program);
    world.node(&NodePlan::new("cp", "b").origin(origin).program(&program));
    world.node(&NodePlan::new("worker", "a"));
    world.meet();
    world.chooses("worker", "cp", SETTLE);
    world.at("cp").ask("drain", &[]);
    let offers = || Some(world.at("cp").status()?["services"][0]["offering"]["state"].clone());
    let announces = || {
        let status = world.at("worker").status()?;
        Some(status["services"][0]["origins"][0]["state"].clone())
    };
    let is = |state: &str| {
        wait::until(&format!("it is {state}"), SETTLE, || (announces()? == state).then_some(()));
        assert_eq!(offers(), Some(state.into()));
    };
    is("draining");
    script(&program, "printf 'ready %s\n' $$ >&0; head -c 1 >&2");
    assert_eq!(upgrade(&world, "cp").status.code(), Some(7));
    assert_eq!(offers(), Some("draining".into()), "after an upgrade that failed");
    fs::remove_file(&program).expect("it is there");
    link(&program);
    let _successors = [(); 2].map(|()| {
        let successor = succeeded(&upgrade(&world, "cp"));
        assert_eq!(offers(), Some("draining".into()), "after one that did not");
        successor
    });
    is("draining");
    world.at("cp").ask("undrain", &[]);
    is("ready");
}

#[test]
fn a_successor_that_cannot_start_leaves_the_daemon_as_it_is() {
    let (mut world, program) = world();
    let config = world.at("worker").config().to_owned();
    let good = fs::read_to_string(&config).expect("a node has settings");
    let load = world.load(world.at("worker").local, INTERVAL);

    fs::write(&config, format!("{good}\n[nonsense]\n")).expect("it can be written");
    // The verb reads the same file for the daemon's socket, so the signal asks.
    world.node_mut("worker").process().signal("USR2");
    let output = wait::until("the daemon says why", SETTLE, || {
        let output = world.node_mut("worker").process().output();
        output.contains("no upgrade; this daemon keeps serving").then_some(output)
    });
    assert!(output.contains("nonsense"), "{output}");
    fs::write(&config, good).expect("it can be written");

    script(&program, "exit 1");
    let output = upgrade(&world, "worker");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "{said}");
    assert!(said.contains("the successor exited without an answer"), "{said}");
    load.goes_on(REQUESTS, PHASE);
    none_failed(load);
    assert!(world.node_mut("worker").process().is_running());
}

#[test]
fn a_successor_that_ends_in_its_first_seconds_gives_the_place_back() {
    let (mut world, program) = world();
    let load = world.load(world.at("worker").local, INTERVAL);
    // It takes the sockets, and in the second case claims to serve.
    for serves in ["", "printf 'serving\\n' >&0"] {
        script(&program, &format!("printf 'ready %s\\n' $$ >&0; head -c 1 >&2; {serves}"));
        let output = upgrade(&world, "worker");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(7), "{said}");
        assert!(said.contains("the daemon keeps serving: the successor exited"), "{said}");
        assert!(world.node_mut("worker").process().is_running());
        load.goes_on(REQUESTS, PHASE);
    }

    // An upgrade can succeed after it has failed twice.
    fs::remove_file(&program).expect("it is there");
    link(&program);
    let _successor = succeeded(&upgrade(&world, "worker"));
    load.goes_on(REQUESTS, PHASE);
    none_failed(load);
}

/// Makes the program a link to the program under test.
fn link(program: &Path) {
    symlink(meshport(), program).expect("a link");
}

/// Replaces the program with a shell script.
fn script(program: &Path, text: &str) {
    fs::remove_file(program).expect("it is there");
    fs::write(program, format!("#!/bin/sh\n{text}\n")).expect("a file");
    fs::set_permissions(program, fs::Permissions::from_mode(0o755)).expect("its mode");
}
