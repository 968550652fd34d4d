//! Exhausted resources and held connections: the daemon keeps serving, reports the problem, and
//! recovers once it is over.

#![expect(clippy::print_stdout, reason = "figures and messages for the reader of a test run")]

mod clocks;

use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use meshport_tests::echo::{self, SERVICE, answers, session};
use meshport_tests::identity::Identity;
use meshport_tests::metrics::Metrics;
use meshport_tests::process::{Process, meshport, run, run_ok};
use meshport_tests::series::{Load, failures};
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};

const SETTLE: Duration = Duration::from_secs(40);
/// Connections that one listener of the admin server takes at once, and some more.
const HOLDERS: usize = 40;
/// How long clients that never finish a request may occupy a listener: its own limit is 5 s.
const HELD: Duration = Duration::from_secs(20);
/// Clients beyond the number of descriptors.
const CLIENTS: usize = 60;
/// Descriptors left to a daemon: enough for its own work.
const LEFT: usize = 24;
/// Files that an origin may open in total: some seventy sessions of one node.
const FEW: usize = 200;
/// Address space left to a daemon beyond what it has mapped when idle, in bytes.
const HEADROOM: u64 = 64 << 20;
/// How long a daemon without descriptors is watched.
const CROWDED: Duration = Duration::from_secs(3);
/// Requests that a load must make before and after something happens.
const SOME: usize = 10;

/// An origin, and a node that uses it.
fn two_nodes() -> World {
    let mut world = World::new();
    world.origin("cp-a", "a");
    world.node(&NodePlan::new("worker-b", "b"));
    world.meet();
    world.chooses("worker-b", "cp-a", SETTLE);
    world
}

fn load(world: &World) -> Load {
    let load = world.load(world.at("worker-b").local, Duration::from_millis(50));
    load.goes_on(SOME, SETTLE);
    load
}

#[track_caller]
fn unharmed(load: Load) {
    load.goes_on(SOME, SETTLE);
    let failed = failures(&load.finish());
    assert!(failed.is_empty(), "{failed:?}");
}

/// Sets a limit of a running daemon (prlimit, of util-linux).
fn limit(world: &mut World, node: &str, limit: &str) {
    let id = world.node_mut(node).process().id().to_string();
    run_ok("prlimit", &["--pid", &id, limit]);
}

#[test]
fn doors_of_the_admin_server_that_are_held_open_again() {
    let mut world = World::new();
    let address = world.apiserver("cp-a");
    world.make(&NodePlan::new("cp-a", "a").origin(address));
    let config = world.path("cp-a.toml");
    let text = fs::read_to_string(&config).expect("the node has settings");
    fs::write(&config, text.replace("http = \"off\"", "http = \"127.0.0.1:0\"")).expect("ours");
    world.start("cp-a");
    let status = world.at("cp-a").status().expect("it answers");
    let door: SocketAddr =
        status["admin_http"].as_str().and_then(|it| it.parse().ok()).expect("on");
    let socket = world.at("cp-a").state().join("meshport.sock");

    // A byte of a request at each check, from more clients than the port accepts.
    let connect = |_| TcpStream::connect(door).expect("the port is open");
    let mut slow: Vec<TcpStream> = (0..HOLDERS).map(connect).collect();
    let mut drip = b"GET /metrics HTTP/1.1\r\nX: ".iter().chain(std::iter::repeat(&b'a'));
    wait::until("the port answers while it is held", HELD, || {
        let byte = *drip.next().expect("it is endless");
        // Writes to cut connections fail; the test waits for that.
        slow.iter_mut().for_each(|stream| _ = stream.write(&[byte]));
        let asked = Command::new("curl")
            .args(["-sS", "-f", "-m", "1", &format!("http://{door}/healthz")])
            .output();
        asked.expect("curl runs").status.success().then_some(())
    });
    // Meanwhile the other door was open all the time, and now the other way round.
    assert!(world.at("cp-a").status().is_some(), "the socket is shut");
    let connect = |_| UnixStream::connect(&socket).expect("the socket is open");
    let held: Vec<UnixStream> = (0..HOLDERS).map(connect).collect();
    run_ok("curl", &["-sS", "-f", "-m", "2", &format!("http://{door}/healthz")]);
    wait::until("the socket answers while it is held", HELD, || world.at("cp-a").status());
    drop(held);
}

/// An origin that also offers an echo, and a node that uses both.
fn two_nodes_with_an_echo() -> World {
    let mut world = World::new();
    let (address, (echo, _)) = (world.apiserver("cp-a"), echo::serve());
    let origin = NodePlan::new("cp-a", "a").origin(address).role(&format!("origin:{SERVICE}"));
    world.node(&origin.settings(&echo::offer(echo)));
    world.node(&NodePlan::new("worker-b", "b").settings(&echo::usage()));
    world.meet();
    world.chooses("worker-b", "cp-a", SETTLE);
    world
}

fn descriptors(process: u32) -> usize {
    fs::read_dir(format!("/proc/{process}/fd")).expect("it runs").count()
}

/// Uses up the descriptors of a node with clients of `worker-b`, then releases them once it has
/// said this; a session answers all the while. Returns the node's output.
fn without_descriptors(node: &str, says: &str) -> (World, String) {
    let mut world = two_nodes_with_an_echo();
    let mut open = session(&world, "worker-b");
    let load = load(&world);
    unharmed(load);
    let local = world.at("worker-b").local;
    let id = world.node_mut(node).process().id();
    let allowed = descriptors(id) + LEFT;
    limit(&mut world, node, &format!("--nofile={allowed}:"));
    let connect = |_| TcpStream::connect(local).expect("the kernel queues it");
    let crowd: Vec<TcpStream> = (0..CLIENTS).map(connect).collect();
    wait::until("the descriptors are used up", SETTLE, || {
        (descriptors(id) + 1 >= allowed).then_some(())
    });
    let (begun, mut asked) = (wait::now(), 0);
    wait::until(&format!("{node} says {says}"), SETTLE, || {
        asked += 1;
        let process = world.node_mut(node).process();
        assert!(answers(&mut open) && process.is_running(), "after {asked} answers");
        let watched = begun.elapsed() >= CROWDED && asked > SOME;
        (watched && process.output().contains(says)).then_some(())
    });
    assert!(descriptors(id) + 1 >= allowed, "there is room");
    drop(crowd);
    serves_again(&world, local);
    assert!(answers(&mut open));
    println!("{node} without descriptors: {asked} answers on the open session");
    let said = world.node_mut(node).process().output();
    (world, said)
}

#[test]
fn a_daemon_without_descriptors_keeps_its_sessions_and_recovers() {
    without_descriptors("worker-b", "Too many open files");
}

#[test]
fn an_origin_without_descriptors_keeps_its_sessions_and_recovers() {
    let says = "cannot probe the local apiserver";
    let (world, said) = without_descriptors("cp-a", says);
    let line = said.lines().find(|line| line.contains(says));
    let line = line.unwrap_or_else(|| panic!("nothing is said of it: {said}"));
    println!("{line}");
    assert!(line.contains("WARN") && line.contains("Too many open files"), "{line}");
    let page = world.at("cp-a").metrics();
    let failed = page.sum("meshport_served_streams_total", "answer=\"failed\"");
    assert!(failed >= 1.0, "no stream found its instance out of reach");
}

/// Starts a node that may open few files. Its daemon reads the limit when it starts.
fn with_few_descriptors(world: &World, node: &str) -> Process {
    let mut command = Command::new("prlimit");
    command.arg(format!("--nofile={FEW}:{FEW}")).arg(meshport()).args(["run", "--config"]);
    command.arg(world.path(&format!("{node}.toml")));
    Process::start(node, &mut command, &world.path(&format!("{node}-few.log")))
}

#[test]
fn a_node_that_opens_all_it_can_leaves_room_at_an_origin_with_few_descriptors() {
    let mut world = two_nodes_with_an_echo();
    world.node(&NodePlan::new("worker-c", "b"));
    world.kill("cp-a");
    let daemon = with_few_descriptors(&world, "cp-a");
    let [greedy, other] = ["worker-b", "worker-c"].map(|name| world.at(name).local);
    serves_again(&world, greedy);
    serves_again(&world, other);
    let mut open = session(&world, "worker-b");
    let connect = |_| TcpStream::connect(greedy).expect("the local address is open");
    let crowd: Vec<TcpStream> = (0..2 * FEW).map(connect).collect();
    for mut client in &crowd {
        // Looks like TLS, so that the origin is dialled for it. Those without a place are reset.
        let _ = client.write_all(b"\x16\x03\x01\x02\x00\x01");
    }
    let answers_of =
        |answer: &str| world.at("cp-a").metrics().sum("meshport_served_streams_total", answer);
    wait::until("the origin refuses its next ones", SETTLE, || {
        (answers_of("answer=\"overloaded\"") > 0.0).then_some(())
    });
    let load = world.load(other, Duration::from_millis(50));
    load.goes_on(5 * SOME, SETTLE);
    unharmed(load);
    assert!(answers(&mut open), "what is open goes on");
    let warnings = world.at("cp-a").status().expect("it answers")["warnings"].to_string();
    println!("{warnings}");
    for words in ["most have worker-b ", "LimitNOFILE"] {
        assert!(warnings.contains(words), "{words}: {warnings}");
    }
    let told = daemon.output();
    assert!(told.contains("a node has used up its share of sessions here"), "{told}");
    assert!(answers_of("answer=\"failed\"") < 1.0, "the descriptors were used up");
    drop(crowd);
    serves_again(&world, greedy);
    assert!(answers(&mut open));
}

#[test]
fn a_user_that_opens_all_it_can_leaves_room_at_its_node_with_few_descriptors() {
    let mut world = two_nodes_with_an_echo();
    world.kill("worker-b");
    let daemon = with_few_descriptors(&world, "worker-b");
    let local = world.at("worker-b").local;
    serves_again(&world, local);
    let connect = |_| TcpStream::connect(local).expect("the local address is open");
    let crowd: Vec<TcpStream> = (0..2 * FEW).map(connect).collect();
    for mut client in &crowd {
        // Looks like TLS, so that the origin is dialled for it. Those without a place are reset.
        let _ = client.write_all(b"\x16\x03\x01\x02\x00\x01");
    }
    let mut next = wait::now();
    wait::throughout("it answers its operator", CROWDED, || {
        wait::pace(&mut next, Duration::from_millis(200));
        world.at("worker-b").status().is_some()
    });
    let told = daemon.output();
    assert!(!told.contains("Too many open files"), "{told}");
    drop(crowd);
    serves_again(&world, local);
}

#[test]
fn a_daemon_with_little_memory_left_serves_many_clients() {
    let mut world = two_nodes();
    for node in ["cp-a", "worker-b"] {
        let id = world.node_mut(node).process().id();
        let status = fs::read_to_string(format!("/proc/{id}/status")).expect("it runs");
        let size = status.lines().find_map(|line| line.strip_prefix("VmSize:"));
        let size: u64 = size
            .and_then(|it| it.split_whitespace().next()?.parse().ok())
            .expect("the system says it");
        limit(&mut world, node, &format!("--as={}:", size * 1024 + HEADROOM));
    }
    let load = load(&world);
    let local = world.at("worker-b").local;
    let connect = |_| TcpStream::connect(local).expect("the local address is open");
    let crowd: Vec<TcpStream> = (0..4 * CLIENTS).map(connect).collect();
    for mut client in &crowd {
        // Looks like TLS, so that the origin is dialled for it.
        client.write_all(b"\x16\x03\x01\x02\x00\x01").expect("it is taken");
    }
    load.goes_on(5 * SOME, SETTLE);
    drop(crowd);
    unharmed(load);
    for node in ["cp-a", "worker-b"] {
        assert!(world.node_mut(node).process().is_running(), "{node} ended");
    }
}

/// Starts a node with its state folder on its own small disk, which only it sees.
fn on_a_small_disk(world: &World, node: &str) -> Process {
    let (state, copy) = (world.at(node).state().to_owned(), world.path("copy"));
    run_ok("cp", &["-a", &state.to_string_lossy(), &copy.to_string_lossy()]);
    let script = "mount --make-rprivate / && mount -t tmpfs -o size=256k,mode=0700 small \"$1\" && \
                  cp -a \"$2/.\" \"$1\" && exec \"$3\" run --config \"$4\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]).arg(&state).arg(&copy);
    command.arg(meshport()).arg(world.path(&format!("{node}.toml")));
    Process::start(node, &mut command, &world.path(&format!("{node}-disk.log")))
}

/// Runs a command where a process has its mounts.
fn beside(process: &Process, command: &[&str]) -> bool {
    let id = process.id().to_string();
    let arguments = [&["--mount", "--target", &id][..], command].concat();
    run("nsenter", &arguments).status.success()
}

#[test]
#[ignore = "needs root for a file system of its own: ./tests/run e2e"]
fn a_full_disk_and_a_read_only_folder_stop_nothing() {
    let mut world = two_nodes();
    world.kill("worker-b");
    let daemon = on_a_small_disk(&world, "worker-b");
    let state = world.at("worker-b").state().to_owned();
    let local = world.at("worker-b").local;
    serves_again(&world, local);
    world.node(&NodePlan::new("worker-c", "b"));
    let fill = state.join("fill");
    // dd fails when the disk is full.
    beside(&daemon, &["dd", "if=/dev/zero", &format!("of={}", fill.display()), "bs=4k"]);
    revoke(&world, "worker-c");
    said(&daemon, "cannot store a revocation");
    assert!(daemon.output().contains("No space left on device"), "the reason is not told");
    stays_out_though_it_forgets(&mut world, &daemon, "worker-c");
    serves_again(&world, local);

    assert!(beside(&daemon, &["rm", &fill.to_string_lossy()]));
    let folder = state.to_string_lossy();
    assert!(beside(&daemon, &["mount", "-o", "remount,bind,ro", &folder]), "it has a file open");
    serves_again(&world, local);
    // It stops cleanly and reports what it could not save.
    daemon.signal("TERM");
    wait::until("it ends", SETTLE, || daemon.arguments().is_empty().then_some(()));
    said(&daemon, "cannot save the directory");
    assert!(daemon.output().contains("Read-only file system"), "the reason is not told");
    drop(daemon);
    starts_without_room(&world, &state);
    starts_without_inodes(&world, &state);
    starts_without_writing(&world, &state);
}

/// The value on the metrics page of a daemon, requested within its mount namespace.
fn sum_beside(daemon: &Process, socket: &Path, name: &str, label: &str) -> f64 {
    let (id, socket) = (daemon.id().to_string(), socket.to_string_lossy());
    let asks = ["curl", "-sS", "-f", "--unix-socket", &*socket, "http://meshport/metrics"];
    let page = run_ok("nsenter", &[&["--mount", "--target", &id][..], &asks].concat());
    Metrics::parse(&page).sum(name, label)
}

/// A revoked node that has lost its revocation starts, and the daemon that could not save the
/// revocation still ignores it.
fn stays_out_though_it_forgets(world: &mut World, daemon: &Process, revoked: &str) {
    let socket = world.at("worker-b").state().join("meshport.sock");
    let ended = world.node_mut(revoked).process().ended(SETTLE);
    assert_eq!(ended.code(), Some(4), "it was told");
    let state = world.at(revoked).state();
    fs::remove_file(state.join("revocations")).expect("it kept it");
    let node = Identity::read(world.at("worker-b").state()).node();
    let address = world.shaper().public_addr("worker-b").expect("it has one");
    fs::write(state.join("seeds"), format!("{node}@{address}\n")).expect("written");
    world.start(revoked);
    let refused = || {
        let (name, label) = ("meshport_mesh_dropped_total", "reason=\"revoked\"");
        sum_beside(daemon, &socket, name, label)
    };
    let before = refused();
    wait::until("it tries at the node with the full disk", SETTLE, || {
        (refused() > before).then_some(())
    });
    wait::throughout("it stays out there", Duration::from_secs(5), || {
        sum_beside(daemon, &socket, "meshport_members", "liveness=\"alive\"") == 2.0
    });
    world.kill(revoked);
}

/// Starts the node after a script has changed its view of the state folder, which is `$1`; returns
/// its output. `$2` is the program, `$3` its configuration, `$4` a copy of the folder. It serves.
fn serves_with(world: &World, state: &Path, script: &str) -> String {
    // The socket is elsewhere, as root's is.
    let text = fs::read_to_string(world.path("worker-b.toml")).expect("it was written");
    let socket = format!("[admin]\nsocket = {:?}\n", world.path("worker-b.sock"));
    let config = world.path("worker-b-elsewhere.toml");
    fs::write(&config, text.replace("[admin]\n", &socket)).expect("written");
    let script = format!("mount --make-rprivate / && {script} && exec \"$2\" run --config \"$3\"");
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script, "sh"]).arg(state).arg(meshport());
    command.arg(config).arg(world.path("copy"));
    let log = world.path("worker-b-elsewhere.log");
    let daemon = Process::start("worker-b", &mut command, &log);
    serves_again(world, world.at("worker-b").local);
    let said = daemon.output();
    println!("{}", said.trim_end());
    daemon.kill();
    said
}

/// A start whose folder exists but cannot be written to, as on a disk with errors.
fn starts_without_writing(world: &World, state: &Path) {
    let script = "mount --bind \"$1\" \"$1\" && mount -o remount,bind,ro \"$1\"";
    let said = serves_with(world, state, script);
    for words in ["WARN", "cannot save the generation (the start counter)", "Read-only file system"]
    {
        assert!(said.contains(words), "{words}: {said}");
    }
}

/// The origin has the authority's key.
fn revoke(world: &World, target: &str) {
    let config = world.path("cp-a.toml");
    let config = config.to_string_lossy();
    run_ok(&meshport().to_string_lossy(), &["revoke", target, "--config", &config]);
}

/// A start whose folder has no room for the number of the start.
fn starts_without_room(world: &World, state: &Path) {
    let script = "mount -t tmpfs -o size=64k,mode=0700 small \"$1\" && cp -a \"$4/.\" \"$1\" && \
                  { cat /dev/zero >\"$1/fill\" 2>/dev/null || true; }";
    let said = serves_with(world, state, script);
    for words in
        ["WARN", "cannot save the generation (the start counter)", "No space left on device"]
    {
        assert!(said.contains(words), "{words}: {said}");
    }
}

/// A start whose folder has room, but no inode for the lock file.
fn starts_without_inodes(world: &World, state: &Path) {
    let script = "mount -t tmpfs -o nr_inodes=64,mode=0700 small \"$1\" && cp -a \"$4/.\" \"$1\" \
                  && rm -f \"$1/lock\" && { i=0; while touch \"$1/fill$i\" 2>/dev/null; do \
                  i=$((i+1)); done; true; }";
    let said = serves_with(world, state, script);
    for words in
        ["WARN", "cannot save the generation (the start counter)", "No space left on device"]
    {
        assert!(said.contains(words), "{words}: {said}");
    }
}

#[track_caller]
fn said(daemon: &Process, words: &str) {
    wait::until(words, SETTLE, || daemon.output().contains(words).then_some(()));
}

#[track_caller]
fn serves_again(world: &World, local: SocketAddr) {
    wait::until("the node serves", SETTLE, || {
        world.curl().get(local, "/version").ok().filter(|answer| answer.status == 200)
    });
}
