//! Services between nodes other than sessions, with either release on each side: renewals by an
//! issuer, the way back to kubelets and services, and the call-backs of `meshport doctor`.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use meshport_tests::doctor;
use meshport_tests::echo::{self, Flow, SERVICE, session};
use meshport_tests::kubelet::{self, of, whoami};
use meshport_tests::netns::{self, Namespace};
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};

use crate::steps::{Version, nobody_was_misread, program, verb};

const SETTLE: Duration = Duration::from_secs(40);
/// Lifetime of a renewed credential. Renewal is due when a third is left.
const LIFETIME: &str = "45s";
/// Time from one renewal to the next on a busy machine.
const NEXT: Duration = Duration::from_secs(50);
/// A service of the cluster, its node's side of the cable to it, and the other side.
const CLUSTER_IP: &str = "10.96.0.10";
const NODE_SIDE: &str = "10.244.7.1";
const SERVICE_SIDE: &str = "10.244.7.9";
const PORT: u16 = 8443;

const PAIRS: [(Version, Version); 2] =
    [(Version::Current, Version::Previous), (Version::Previous, Version::Current)];

#[test]
#[ignore = "needs the previous release: tests/run versions"]
fn a_new_issuer_renews_an_old_node() {
    renews(Version::Current, Version::Previous);
}

#[test]
#[ignore = "needs the previous release: tests/run versions"]
fn an_old_issuer_renews_a_new_node() {
    renews(Version::Previous, Version::Current);
}

/// One release's program creates the mandate, the other's uses it.
fn renews(issuer: Version, node: Version) {
    let mut world = World::new();
    let origin = NodePlan::new("cp", "a").role("issuer").role(&format!("origin:{SERVICE}"));
    let origin = origin.settings(&echo::offer(echo::serve().0)).program(program(issuer));
    world.node(&origin);
    world.meet();
    let file = world.path("mandate");
    let flags = ["delegate", "cp", "--credential-ttl", LIFETIME, "--ttl", "4h"];
    fs::write(&file, verb(&world, "cp", node, &flags)).expect("written");
    verb(&world, "cp", issuer, &["delegate", "--install", &file.to_string_lossy()]);
    let worker = NodePlan::new("worker", "a").lifetime(LIFETIME).settings(&echo::usage());
    world.node(&worker.program(program(node)));
    world.meet();
    let flow = Flow::start(session(&world, "worker"));
    let ends = || world.at("worker").status()?["credential_expires_at"].as_u64();
    let mut before = wait::until("the worker answers", SETTLE, ends);
    for count in 1..=2 {
        let what = format!("a {issuer:?} issuer renews a {node:?} node, time {count}");
        before = wait::until(&what, NEXT, || ends().filter(|it| *it > before));
    }
    assert!(flow.goes_on(), "a renewal ends no session: {issuer:?}, {node:?}");
    nobody_was_misread(&mut world, &["cp", "worker"]);
}

/// Hosts with a service address that the nodes reach, as with kube-proxy.
fn hosts() -> (Namespace, Namespace) {
    netns::remove_stale();
    let (nodes, services) = (Namespace::new(), Namespace::new());
    let [here, there] = [NODE_SIDE, SERVICE_SIDE].map(|ip| format!("{ip}/24"));
    netns::cable(&nodes, &here, &services, &there);
    services.ip(&["addr", "add", &format!("{CLUSTER_IP}/32"), "dev", "lo"]);
    nodes.ip(&["route", "add", CLUSTER_IP, "via", SERVICE_SIDE]);
    let address = SocketAddr::new(CLUSTER_IP.parse().expect("an address"), PORT);
    services.inside(|| kubelet::serve_at(address, "service"));
    (nodes, services)
}

#[test]
#[ignore = "needs the previous release and root: tests/run versions"]
fn the_way_back_reaches_nodes_of_the_other_release() {
    let (nodes, _services) = hosts();
    for (origin, others) in PAIRS {
        nodes.inside(|| {
            let mut world = World::new();
            let (socket, apiserver) = (world.path("egress.sock"), world.apiserver("cp"));
            let cidrs = "service-cidrs = [\"10.96.0.0/16\"]\n";
            let egress = format!("\n[egress]\nsocket = {socket:?}\n{cidrs}");
            let cp = NodePlan::new("cp", "a").origin(apiserver).settings(&egress);
            world.node(&cp.program(program(origin)));
            let own = kubelet::settings(kubelet::start("worker"));
            let worker = NodePlan::new("worker", "a").settings(&own);
            world.node(&worker.program(program(others)));
            let exit = NodePlan::new("exit", "a").role("egress");
            let exit = exit.settings(&format!("\n[egress]\n{cidrs}"));
            world.node(&exit.program(program(others)));
            world.meet();
            let service = format!("{CLUSTER_IP}:{PORT}");
            for (target, name) in [(of("worker"), "worker"), (service, "service")] {
                wait::until(&format!("{origin:?} reaches {target} of {others:?}"), SETTLE, || {
                    (whoami(&socket, &target).as_deref() == Ok(name)).then_some(())
                });
            }
            nobody_was_misread(&mut world, &["cp", "worker", "exit"]);
        });
    }
}

/// A member whose role the other release does not know is still a member for it.
#[test]
#[ignore = "needs the previous release: tests/run versions"]
fn holders_of_later_roles_are_members_for_the_previous_release() {
    let mut world = World::new();
    let apiserver = world.apiserver("cp");
    world.node(&NodePlan::new("cp", "a").origin(apiserver).program(program(Version::Current)));
    for role in ["vip", "gateway", "no-kubelet"] {
        world.node(&NodePlan::new(role, "a").role(role).program(program(Version::Current)));
    }
    world.node(&NodePlan::new("worker", "a").program(program(Version::Previous)));
    world.meet();
    world.chooses("worker", "cp", SETTLE);
    assert_eq!(world.get("worker", "/version").status, 200);
    nobody_was_misread(&mut world, &["cp", "vip", "gateway", "no-kubelet", "worker"]);
}

/// First the doctor of the node's own release, while the member that calls back runs the other
/// release; then the other release's doctor. Each reports only that versions differ.
#[test]
#[ignore = "needs the previous release: tests/run versions"]
fn doctors_are_answered_by_the_other_release() {
    for (examined, members) in PAIRS {
        let mut world = World::new();
        let apiserver = world.apiserver("cp");
        let cp = NodePlan::new("cp", "a").origin(apiserver).settings("max-sessions = 500\n");
        world.node(&cp.program(program(members)));
        let worker = NodePlan::new("worker", "a").settings("max-sessions = 500\n");
        world.node(&worker.program(program(examined)));
        world.meet();
        world.chooses("worker", "cp", SETTLE);
        let key = world.at("cp").state().join("authority.key");
        fs::rename(key, world.path("authority.key")).expect("it is there");
        let own = wait::until("the member calls back", SETTLE, || {
            let own = doctor::examine(program(examined), &world, "worker");
            (own.report["members"][0]["call"] == "arrived").then_some(own)
        });
        let said = &own.report;
        assert_eq!(own.ids(), ["MP206"], "{examined:?} among {members:?}: {said:#}");
        let other = doctor::examine(program(members), &world, "worker");
        let said = &other.report;
        assert_eq!(other.ids(), ["MP206"], "{members:?} beside {examined:?}: {said:#}");
        nobody_was_misread(&mut world, &["cp", "worker"]);
    }
}
