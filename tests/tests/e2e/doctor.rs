//! `meshport doctor` on real nodes: it finds nothing in a healthy mesh, and each planted fault by
//! its id, with a daemon and without one.

mod readiness;
mod renewals;

use std::fs;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use meshport_demo::wan::Cut;
use meshport_tests::doctor::{self, Examined};
use meshport_tests::identity;
use meshport_tests::process::{Process, meshport, run_ok};
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};
use serde_json::Value;

const SETTLE: Duration = Duration::from_secs(40);
/// Limit for a whole report, with faults too: its own is 10 s, and the rest is the machine's.
const LIMIT: Duration = Duration::from_secs(20);
/// Nodes in the mesh.
const NODES: u64 = 5;
/// Few enough for the limit on open files of any machine that runs the tests.
const SETTINGS: &str = "max-sessions = 500\n";
/// The id of a node that does not exist.
const NOBODY: &str = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";

/// A world, the findings in it, and the time in seconds.
struct Lab {
    world: World,
    said: Vec<String>,
}

/// Two origins, a node between them and two more. The authority's key is where it should be:
/// elsewhere.
fn lab() -> Lab {
    let mut world = World::new();
    world.distance("a", "b", Duration::from_millis(30));
    for (name, site) in [("cp-a", "a"), ("cp-b", "b")] {
        let address = world.apiserver(name);
        world.node(&NodePlan::new(name, site).origin(address).settings(SETTINGS));
    }
    for (name, site) in [("worker", "a"), ("edge", "b"), ("depot", "c")] {
        world.node(&NodePlan::new(name, site).settings(SETTINGS));
    }
    world.meet();
    world.chooses("worker", "cp-a", SETTLE);
    let key = world.at("cp-a").state().join("authority.key");
    fs::rename(key, world.path("authority.key")).expect("it is there");
    Lab { world, said: Vec::new() }
}

fn command(world: &World, node: &str, flags: &[&str]) -> Command {
    doctor::command(meshport(), world, node, flags)
}

#[track_caller]
fn examine(lab: &mut Lab, node: &str, what: &str) -> Examined {
    let begun = wait::now();
    let examined = doctor::examine(meshport(), &lab.world, node);
    let took = begun.elapsed();
    lab.said.push(format!("{what}: {:?} in {:.2} s", examined.ids(), took.as_secs_f64()));
    assert!(took < LIMIT, "{what}: {took:?}");
    let errors = examined.report["errors"].as_u64().expect("a number");
    assert_eq!(examined.code, Some(i32::from(errors > 0)), "{what}");
    examined
}

/// A kubeconfig whose current context has this server and verifies this name.
fn kubeconfig(world: &World, server: &str, name: &str) {
    let cluster = format!("{{server: 'https://{server}', tls-server-name: {name}}}");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: here\nclusters:\n- name: here\n  \
         cluster: {cluster}\ncontexts:\n- name: here\n  \
         context: {{cluster: here, user: nobody}}\n"
    );
    fs::write(world.path("kubeconfig"), text).expect("written");
}

/// A kubeconfig that uses the worker's local address.
fn through_us(lab: &Lab, name: &str) {
    kubeconfig(&lab.world, &lab.world.at("worker").local.to_string(), name);
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is ours");
}

/// The same with one more seed under [mesh] in the worker's file.
#[track_caller]
fn examine_with_seed(lab: &mut Lab, at: &str, what: &str) -> Examined {
    let file = lab.world.path("worker.toml");
    let text = fs::read_to_string(&file).expect("its settings");
    let changed = text.replace("[mesh]\n", &format!("[mesh]\nseeds = [\"{NOBODY}@{at}\"]\n"));
    fs::write(&file, changed).expect("written");
    let examined = examine(lab, "worker", what);
    fs::write(&file, text).expect("written");
    examined
}

fn finds_nothing(lab: &mut Lab) {
    through_us(lab, "kubernetes.default.svc");
    for node in ["cp-a", "cp-b", "worker", "edge", "depot"] {
        let healthy = examine(lab, node, &format!("{node} in a healthy mesh"));
        assert_eq!(healthy.ids(), [] as [&str; 0], "{:#}", healthy.report);
        assert!(healthy.report["success"] == true && healthy.report["daemon"] == true);
        let reach = &healthy.report["reach"];
        assert!(reach["nat"].is_string() && reach["seen_at"][0].is_string(), "{reach}");
        let strict = command(&lab.world, node, &["--strict"]).output().expect("it runs");
        assert_eq!(strict.status.code(), Some(0));
    }
}

fn finds_faults_beside_a_daemon(lab: &mut Lab) {
    let state = lab.world.at("worker").state().to_owned();
    set_mode(&state, 0o755);
    let open = examine(lab, "worker", "a state folder with mode 0755");
    assert_eq!(open.ids(), ["MP102"]);
    let strict = command(&lab.world, "worker", &["--strict", "--short"]).output().expect("it runs");
    let said = String::from_utf8_lossy(&strict.stdout).into_owned();
    assert_eq!(strict.status.code(), Some(1));
    assert!(said.starts_with("warning MP102 ") && said.contains("(mode 0755)"), "{said}");
    set_mode(&state, 0o700);

    chown(state.join("seeds"), Some(12_345), None).expect("this is root");
    let foreign = examine(lab, "worker", "a file owned by another user");
    assert_eq!(foreign.ids(), ["MP102"]);
    assert!(foreign.detail("MP102").contains("belongs to user 12345"));
    chown(state.join("seeds"), Some(0), None).expect("this is root");

    let lost = examine_with_seed(lab, "seed.invalid:51820", "a seed's name");
    assert_eq!(lost.ids(), ["MP201", "MP202"], "nobody has seen that seed either");
    assert!(lost.detail("MP201").contains("seed.invalid"));
    let silent = examine_with_seed(lab, "192.0.2.1:51820", "a silent seed");
    assert_eq!(silent.ids(), ["MP202"]);
    assert!(silent.detail("MP202").contains("192.0.2.1:51820"));

    kubeconfig(&lab.world, "kubernetes.default.svc:6443", "kubernetes.default.svc");
    let past = examine(lab, "worker", "a kubeconfig that bypasses meshport");
    assert_eq!(past.ids(), ["MP304"]);
    through_us(lab, "cp-a.example.com");
    let other = examine(lab, "worker", "a server name in no certificate");
    assert_eq!(other.ids(), ["MP301"]);
    // The nearest first, which may just have changed.
    let (_, lacking) = other.detail("MP301").split_once("the certificate of ").expect("named");
    assert!(["cp-a, cp-b", "cp-b, cp-a"].contains(&lacking), "{lacking}");
    through_us(lab, "kubernetes.default.svc");

    let pid = lab.world.node_mut("worker").process().id().to_string();
    run_ok("prlimit", &["--pid", &pid, "--nofile=512:1000"]);
    let few = examine(lab, "worker", "a low limit of open files");
    assert_eq!(few.ids(), ["MP108"]);
    assert!(
        few.detail("MP108").starts_with("the limit on open files is 1000;"),
        "{}",
        few.detail("MP108")
    );
    // A limit is never raised again.
    restart(&mut lab.world, "worker", str::to_owned);
}

/// Waits until the daemon of the node knows of it.
#[track_caller]
fn until_known(world: &World, node: &str, id: &str) {
    wait::until(&format!("{node} reports {id}"), SETTLE, || {
        let status = world.at(node).status()?;
        let found = status["findings"].as_array()?;
        found.iter().any(|row| row["id"] == id).then_some(())
    });
}

/// Rewrites the settings of a node and restarts it; returns its previous settings.
#[track_caller]
fn restart(world: &mut World, node: &str, change: impl FnOnce(&str) -> String) -> String {
    let file = world.path(&format!("{node}.toml"));
    let former = fs::read_to_string(&file).expect("its settings");
    world.kill(node);
    fs::write(&file, change(&former)).expect("written");
    world.start(node);
    settle(world);
    former
}

/// All nodes are back, and the worker uses the origin next to it.
fn settle(world: &World) {
    world.meet();
    world.chooses("worker", "cp-a", SETTLE);
}

/// The first report for which members made call-backs: they do not repeat them at once.
#[track_caller]
fn when_called(lab: &mut Lab, node: &str, what: &str) -> Examined {
    wait::until("members call back again", SETTLE, || {
        let examined = examine(lab, node, what);
        let members = examined.report["members"].as_array().expect("rows");
        let calls = members.iter().any(|it| it["call"] == "arrived" || it["call"] == "lost");
        calls.then_some(examined)
    })
}

fn finds_what_only_members_know(lab: &mut Lab) {
    lab.world.shaper().set_strangers(false);
    let deaf = when_called(lab, "worker", "a firewall that lets in only answers");
    assert_eq!(deaf.ids(), ["MP105"]);
    assert!(deaf.detail("MP105").contains(&lab.world.at("worker").udp.port().to_string()));
    lab.world.shaper().set_strangers(true);

    let slow = |text: &str| format!("{text}\n[discovery]\nsuspicion = \"9s\"\n");
    let former = restart(&mut lab.world, "worker", slow);
    let differ = examine(lab, "worker", "a `suspicion` that differs from the members'");
    assert_eq!(differ.ids(), ["MP205"]);
    let detail = differ.detail("MP205");
    assert!(detail.starts_with("discovery.suspicion is 9s here and "), "{detail}");
    assert!(["cp-a", "cp-b", "edge", "depot"].iter().all(|it| detail.contains(it)), "{detail}");
    restart(&mut lab.world, "worker", |_| former);

    let members = when_called(lab, "worker", "members that answer").report["members"].clone();
    let members = members.as_array().expect("rows");
    assert_eq!(members.len(), 4);
    for it in members {
        assert!(it["outcome"] == "answered" && it["version"].is_string(), "{it:#}");
        assert!(it["mtu_to_bytes"].as_u64() >= Some(1280), "{it:#}");
        assert!(it["mtu_from_bytes"].as_u64() >= Some(1280), "{it:#}");
        assert!(it["clock_ahead_s"].as_i64().is_some_and(|it| it.abs() <= 1), "{it:#}");
    }
    assert!(members.iter().any(|it| it["call"] == "arrived"), "{members:#?}");
}

/// Seconds by which a clock is set ahead: less than what breaks credentials.
const AHEAD_S: &str = "120";

/// Starts the daemon of a node with a clock that is ahead, by a library between it and the kernel.
fn with_wrong_clock(world: &mut World, node: &str) -> Process {
    let (source, library) = (world.path("clock.c"), world.path("clock.so"));
    fs::write(
        &source,
        "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <time.h>\n\
         int clock_gettime(clockid_t id, struct timespec *at) {\n\
         int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, \"clock_gettime\");\n\
         int done = real(id, at);\n\
         if (done == 0 && id == CLOCK_REALTIME) at->tv_sec += AHEAD_S;\n\
         return done;\n}\n",
    )
    .expect("written");
    let (from, to) = (source.to_string_lossy(), library.to_string_lossy());
    run_ok("cc", &["-shared", "-fPIC", &format!("-DAHEAD_S={AHEAD_S}"), "-o", &to, &from, "-ldl"]);
    world.kill(node);
    let mut command = Command::new(meshport());
    command.args(["run", "--config"]).arg(world.path(&format!("{node}.toml")));
    command.env("LD_PRELOAD", &library);
    let process = Process::start(node, &mut command, &world.path(&format!("{node}.ahead.log")));
    // The world does not count a process that it has not started.
    wait::until("all are there", SETTLE, || {
        let all = ["cp-a", "worker", node].map(|it| world.at(it).alive());
        (all == [NODES; 3]).then_some(())
    });
    world.chooses("worker", "cp-a", SETTLE);
    process
}

fn finds_wrong_clocks(lab: &mut Lab) {
    let ahead = with_wrong_clock(&mut lab.world, "depot");
    let other = examine(lab, "worker", "a wrong clock on a member");
    drop(ahead);
    lab.world.start("depot");
    settle(&lab.world);
    assert_eq!(other.ids(), ["MP103"]);
    let detail = other.detail("MP103");
    let of_depot = detail.starts_with("the clock of depot is 1") && detail.contains(" s ahead of ");
    assert!(of_depot, "{detail}");

    let ahead = with_wrong_clock(&mut lab.world, "worker");
    let own = examine(lab, "worker", "a wrong clock on this machine");
    drop(ahead);
    lab.world.start("worker");
    settle(&lab.world);
    assert_eq!(own.ids(), ["MP103"]);
    let detail = own.detail("MP103");
    assert!(detail.starts_with("this machine's clock is 1"), "{detail}");
    assert!(detail.contains(" s ahead of those of "), "{detail}");
}

fn finds_faults_of_services(lab: &mut Lab) {
    for name in ["cp-a", "cp-b"] {
        lab.world.kill_apiserver(name);
    }
    until_known(&lab.world, "worker", "MP307");
    let none = examine(lab, "worker", "no apiserver runs");
    assert_eq!((none.ids(), none.code), (vec!["MP307"], Some(1)));
    for name in ["cp-a", "cp-b"] {
        lab.world.start_apiserver(name);
    }
    settle(&lab.world);

    let (file, state) = (lab.world.path("worker.toml"), lab.world.at("worker").state().to_owned());
    let former = fs::read_to_string(&file).expect("its settings");
    fs::write(&file, former.replace("[mesh]\n", "[mesh]\nmtu = 1400\n")).expect("written");
    let socket = state.join("meshport.sock").display().to_string();
    run_ok(&meshport().to_string_lossy(), &["reload", "--socket", &socket]);
    let waits = examine(lab, "worker", "a setting that waits for a restart");
    assert_eq!(waits.ids(), ["MP112"]);
    assert!(waits.detail("MP112").contains("mesh.mtu"), "{}", waits.detail("MP112"));
    fs::write(&file, &former).expect("written");
    run_ok(&meshport().to_string_lossy(), &["reload", "--socket", &socket]);
}

fn finds_a_network_that_is_gone(lab: &mut Lab) {
    lab.world.shaper().set_down(Cut::Node("worker".into()), true);
    until_known(&lab.world, "worker", "MP104");
    let alone = examine(lab, "worker", "a lost network");
    lab.world.shaper().set_down(Cut::Node("worker".into()), false);
    assert!(alone.ids().contains(&"MP104"), "{:?}", alone.ids());
    settle(&lab.world);
}

fn finds_a_credential_that_ends(lab: &mut Lab) {
    let world = &mut lab.world;
    let seed = world.shaper().public_addr("cp-a").expect("it has one").to_string();
    let (authority, worker) = (world.path("authority.key"), world.at("worker").state().to_owned());
    let [authority, worker] = [&authority, &worker].map(|it| it.to_string_lossy().into_owned());
    let state = world.at("cp-a").state().to_string_lossy().into_owned();
    let flags = ["--site", "a", "--ttl", "1h", "--endpoint", &*seed];
    let of_state = ["invite", "--state-dir", &*state, "--authority", &*authority];
    let program = meshport().to_string_lossy();
    let line = run_ok(&program, &[&of_state[..], &flags].concat());
    world.kill("worker");
    run_ok(&program, &["join", &*line, "--state-dir", &*worker, "--name", "worker", "--force"]);
    let hours = |hours: u64| Duration::from_secs(hours * 3600);
    let key = world.path("authority.key");
    identity::age(world.at("worker").state(), &key, hours(362 * 24), hours(73));
    world.start("worker");
    world.meet();
    world.chooses("worker", "cp-a", SETTLE);
    let ends = examine(lab, "worker", "a credential that expires in 3 days");
    assert_eq!(ends.ids(), ["MP203"]);
    assert!(ends.detail("MP203").contains("expires in 3 d"), "{}", ends.detail("MP203"));
    let renew = ["renew", "--credential-ttl", "90d", "--authority", &*authority];
    run_ok(&program, &[&renew[..], &["--state-dir", &*worker]].concat());
    let renewed = examine(lab, "worker", "the same, renewed");
    assert_eq!(renewed.ids(), [] as [&str; 0]);
}

/// With only its socket named, the settings and the state folder of this user, which need not
/// exist, are not judged.
fn judges_no_other_state_folder(lab: &Lab) {
    let socket = lab.world.at("worker").state().join("meshport.sock");
    let mut command = Command::new(meshport());
    command.args(["doctor", "--json", "--socket"]).arg(socket);
    command.env("KUBECONFIG", lab.world.path("kubeconfig")).env("HOME", lab.world.path("home"));
    let output = command.output().expect("it runs");
    let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
    let rows = report["checks"].as_array().expect("rows");
    let row = |id: &str| rows.iter().find(|row| row["id"] == id).expect("a row");
    for id in ["MP111", "MP203", "MP204"] {
        assert_eq!(row(id)["status"], "ok", "{report:#}");
    }
    for id in ["MP102", "MP108", "MP109", "MP110", "MP201"] {
        assert_eq!(row(id)["status"], "skipped", "{report:#}");
        let why = row(id)["detail"].as_str().unwrap_or_default();
        assert!(why.starts_with("only --socket was given, so"), "{id}: {why}");
    }
}

/// A hung daemon holds its ports and its folder; the only finding is that it hangs.
fn finds_a_daemon_that_hangs(lab: &mut Lab) {
    lab.world.node_mut("worker").process().signal("STOP");
    let hangs = examine(lab, "worker", "a daemon that hangs");
    lab.world.node_mut("worker").process().signal("CONT");
    assert_eq!(hangs.ids(), ["MP111"]);
    assert!(hangs.detail("MP111").contains("timed out; process "), "{}", hangs.detail("MP111"));
}

fn finds_faults_without_a_daemon(lab: &mut Lab) {
    let (local, udp) = (lab.world.at("worker").local, lab.world.at("worker").udp);
    lab.world.kill("worker");
    let none = examine(lab, "worker", "no daemon");
    assert_eq!(none.ids(), ["MP111"]);

    let holders: (TcpListener, UdpSocket) =
        (TcpListener::bind(local).expect("it is free"), UdpSocket::bind(udp).expect("it is free"));
    let taken = examine(lab, "worker", "ports in use");
    assert_eq!(taken.ids(), ["MP101", "MP111"]);
    let holder = format!("(pid {}) uses TCP {local}", std::process::id());
    assert!(taken.detail("MP101").ends_with(&holder), "{}", taken.detail("MP101"));
    drop(holders);

    let free = UdpSocket::bind(SocketAddr::new(udp.ip(), 0)).expect("a port");
    let refusing = free.local_addr().expect("an address");
    drop(free);
    let refused = examine_with_seed(lab, &refusing.to_string(), "a closed port");
    assert_eq!(refused.ids(), ["MP111", "MP202"]);
    assert!(refused.detail("MP202").ends_with(&refusing.to_string()));

    let mut few = Command::new("prlimit");
    few.arg("--nofile=512:512").arg(meshport()).args(["doctor", "--short", "--config"]);
    let output = few.arg(lab.world.path("worker.toml")).output().expect("prlimit is there");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("warning MP108 the limit on open files is 512;"), "{said}");

    let key = lab.world.at("worker").state().join("authority.key");
    fs::copy(lab.world.path("authority.key"), &key).expect("copied");
    set_mode(&key, 0o600);
    let here = examine(lab, "worker", "the authority's key on a node");
    assert_eq!(here.ids(), ["MP111", "MP204"]);
    fs::remove_file(key).expect("removed");

    let state = lab.world.at("worker").state().to_owned();
    fs::rename(state.join("credential"), state.join("elsewhere")).expect("renamed");
    let nobody = examine(lab, "worker", "a state folder without its credential");
    assert_eq!(nobody.ids(), ["MP109", "MP111"]);
    fs::rename(state.join("elsewhere"), state.join("credential")).expect("renamed");

    fs::write(lab.world.path("worker.toml"), "site = \"a\"\nnonsense = 1\n").expect("written");
    let broken = examine(lab, "worker", "an invalid configuration");
    assert_eq!(broken.ids(), ["MP110", "MP111"]);
}

#[test]
fn a_healthy_mesh_has_no_findings_and_each_planted_fault_is_found() {
    let mut lab = lab();
    finds_nothing(&mut lab);
    finds_faults_beside_a_daemon(&mut lab);
    finds_what_only_members_know(&mut lab);
    finds_wrong_clocks(&mut lab);
    finds_faults_of_services(&mut lab);
    finds_a_network_that_is_gone(&mut lab);
    renewals::finds_renewals_that_fail(&mut lab);
    finds_a_credential_that_ends(&mut lab);
    judges_no_other_state_folder(&lab);
    finds_a_daemon_that_hangs(&mut lab);
    finds_faults_without_a_daemon(&mut lab);
    lab.said.iter().for_each(|line| println!("{line}"));
}
