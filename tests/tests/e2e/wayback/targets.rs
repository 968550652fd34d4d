//! Targets other than kubelets: pods on their node, services through the nearest node with the role
//! `egress`, and targets outside the mesh that the settings name.

use std::fs;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::Path;

use meshport_core::wayback::nodes::{NodeObject, Nodes};
use meshport_tests::netns::{self, Namespace};
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};

use super::kubelet::{self, ask, connect, of, whoami};
use super::{NEAR, SETTLE, refused};

/// The port of the servers of pods and services.
const PORT: u16 = 8443;
/// The pods' side of the cable, and the node's, which is the bridge of a real node.
const POD: &str = "10.244.7.9";
const BRIDGE: &str = "10.244.7.1";
/// A pod of the other worker.
const OTHER_POD: &str = "10.244.8.9";
/// An address that only the control plane's table counts to that worker's pods.
const CLAIMED: &str = "10.244.9.9";
/// A service; one that is none for the nodes with the role; one with the node's own address.
const SERVICE: &str = "10.96.0.10";
const OTHER_SERVICE: &str = "10.97.0.10";
const OWN_SERVICE: &str = "10.96.0.77";

fn at(ip: &str) -> String {
    format!("{ip}:{PORT}")
}

/// Whether a node's log has an entry of this event with all of these words.
fn is_audited(world: &mut World, node: &str, event: &str, words: &[&str]) -> bool {
    let log = world.node_mut(node).process().output();
    log.lines().any(|line| line.contains(event) && words.iter().all(|word| line.contains(word)))
}

/// How often a node has connected to a target of this kind.
fn connected(world: &World, node: &str, target: &str) -> f64 {
    let labels = format!("target=\"{target}\"");
    world.at(node).metrics().sum("meshport_wayback_connected_total", &labels)
}

/// Hosts of the nodes and of the pods and services, where each address here has a server that would
/// answer: only rules are in the way.
fn hosts() -> (Namespace, Namespace) {
    netns::remove_stale();
    let (nodes, pods) = (Namespace::new(), Namespace::new());
    netns::cable(&nodes, &format!("{BRIDGE}/24"), &pods, &format!("{POD}/24"));
    nodes.ip(&["addr", "add", &format!("{OWN_SERVICE}/32"), "dev", "lo"]);
    for ip in [OTHER_POD, CLAIMED, SERVICE, OTHER_SERVICE] {
        pods.ip(&["addr", "add", &format!("{ip}/32"), "dev", "lo"]);
        nodes.ip(&["route", "add", ip, "via", POD]);
    }
    let serve = |ip: &str| kubelet::serve_at(address(ip), ip);
    pods.inside(|| [POD, OTHER_POD, CLAIMED, SERVICE, OTHER_SERVICE].map(serve));
    nodes.inside(|| [BRIDGE, OWN_SERVICE].map(serve));
    (nodes, pods)
}

fn address(ip: &str) -> SocketAddr {
    SocketAddr::new(ip.parse().expect("an address"), PORT)
}

/// A control plane that knows its nodes from an earlier run, two workers with pods, and a node with
/// the role `egress` in each of two sites.
fn cluster(socket: &str) -> World {
    let mut world = World::new();
    world.distance("a", "b", NEAR);
    let origin = world.apiserver("cp-a");
    let egress = format!(
        "\n[egress]\nsocket = {:?}\nservice-cidrs = [\"10.96.0.0/12\"]\n",
        world.path(socket)
    );
    world.make(&NodePlan::new("cp-a", "a").origin(origin).settings(&egress));
    let object = |name: &str, pods: &[&str]| NodeObject {
        pod_cidrs: pods.iter().map(|net| net.parse().expect("a network")).collect(),
        ..NodeObject::named(name)
    };
    let known = Nodes::new([
        object("worker-b", &["10.244.7.0/24"]),
        object("worker-c", &["10.244.8.0/24", "10.244.9.0/24"]),
    ]);
    fs::write(world.at("cp-a").state().join("nodes"), known.to_bytes()).expect("written");
    world.start("cp-a");
    for (worker, pods) in [("worker-b", "10.244.7.0/24"), ("worker-c", "10.244.8.0/24")] {
        let settings = format!("\n[kubelet]\npod-cidrs = [\"{pods}\"]\n");
        world.node(&NodePlan::new(worker, "b").settings(&settings));
    }
    for (name, site) in [("egress-a", "a"), ("egress-b", "b")] {
        let settings = "\n[egress]\nservice-cidrs = [\"10.96.0.0/16\"]\n";
        world.node(&NodePlan::new(name, site).role("egress").settings(settings));
    }
    world.meet();
    world
}

#[test]
#[ignore = "needs root for network namespaces: ./tests/run e2e"]
fn pods_and_services_are_dialled_only_by_nodes_that_have_them() {
    let (nodes, _pods) = hosts();
    nodes.inside(|| {
        let mut world = cluster("egress.sock");
        let socket = world.path("egress.sock");
        pods_are_those_of_the_node(&mut world, &socket);
        services_go_to_the_nearest(&mut world, &socket);
    });
}

fn pods_are_those_of_the_node(world: &mut World, socket: &Path) {
    for (pod, worker) in [(POD, "worker-b"), (OTHER_POD, "worker-c")] {
        assert_eq!(whoami(socket, &at(pod)), Ok(pod.to_owned()));
        assert_eq!(connected(world, worker, "pod"), 1.0, "{worker}");
    }
    for (target, worker, rule, said) in [
        (CLAIMED, "worker-c", "pod", "not in its pod networks"),
        (BRIDGE, "worker-b", "own-address", "an address of the machine itself"),
    ] {
        is_refused_by(world, socket, target, worker, rule, said);
    }
    let answer = connect(socket, &format!("{POD}:1")).expect_err("nobody listens");
    assert!(answer.starts_with("HTTP/1.1 502 ") && answer.contains("refused there"), "{answer}");
    assert_eq!(refused(world, "worker-b", "stream", "connection"), 1.0);
}

fn services_go_to_the_nearest(world: &mut World, socket: &Path) {
    assert_eq!(whoami(socket, &at(SERVICE)), Ok(SERVICE.to_owned()));
    let by = |world: &World, node: &str| connected(world, node, "service");
    assert_eq!((by(world, "egress-a"), by(world, "egress-b")), (1.0, 0.0));
    for (target, rule, said) in [
        (OTHER_SERVICE, "service", "not in a service network"),
        (OWN_SERVICE, "own-address", "an address of the machine itself"),
    ] {
        is_refused_by(world, socket, target, "egress-a", rule, said);
    }
    world.kill("egress-a");
    assert_eq!(whoami(socket, &at(SERVICE)), Ok(SERVICE.to_owned()));
    assert_eq!(by(world, "egress-b"), 1.0);
    for worker in ["worker-b", "worker-c"] {
        assert_eq!(by(world, worker), 0.0, "{worker} lacks the role");
    }
}

/// The node at the end refuses a target, says why, counts it and writes it down.
fn is_refused_by(
    world: &mut World,
    socket: &Path,
    target: &str,
    node: &str,
    rule: &str,
    said: &str,
) {
    let before = refused(world, "cp-a", "socket", rule);
    let answer = connect(socket, &at(target)).expect_err(target);
    assert!(answer.starts_with("HTTP/1.1 502 ") && answer.contains(said), "{target}: {answer}");
    assert_eq!(refused(world, node, "stream", rule), 1.0, "{target}");
    assert_eq!(refused(world, "cp-a", "socket", rule), before + 1.0, "{target}");
    wait::until("the refusal is in the audit log", SETTLE, || {
        is_audited(world, node, "stream-refused", &[rule, "cp-a"]).then_some(())
    });
}

#[test]
fn targets_outside_are_those_that_the_settings_name_and_refusals_are_audited() {
    let mut world = World::new();
    let socket = world.path("egress.sock");
    let hook = kubelet::serve_at(SocketAddr::new(IpAddr::from([127, 0, 0, 1]), 0), "hook");
    // A reserved port on which nothing listens.
    let closed = TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a port");
    let origin = world.apiserver("cp-a");
    let egress = format!("\n[egress]\nsocket = {socket:?}\noutside = [\"{hook}\", \"{closed}\"]\n");
    world.node(&NodePlan::new("cp-a", "a").origin(origin).settings(&egress));

    assert_eq!(whoami(&socket, &hook.to_string()), Ok("hook".to_owned()));
    assert_eq!(connected(&world, "cp-a", "outside"), 1.0);
    let loop_back = world.at("cp-a").local.to_string();
    for (target, rule) in [
        (closed.to_string(), "failed"),
        (origin.to_string(), "loopback"),
        (loop_back, "loopback"),
        ("192.0.2.1:443".to_owned(), "unknown"),
        ("cp-a:22".to_owned(), "port"),
        (of("worker-z"), "unknown"),
    ] {
        let before = refused(&world, "cp-a", "socket", rule);
        let answer = connect(&socket, &target).expect_err(&target);
        assert!(answer.starts_with("HTTP/1.1 502 "), "{target}: {answer}");
        assert_eq!(refused(&world, "cp-a", "socket", rule), before + 1.0, "{target}");
        wait::until("the refusal is in the audit log", SETTLE, || {
            is_audited(&mut world, "cp-a", "way-back-refused", &[rule, &target]).then_some(())
        });
    }
    let long = [&b"CONNECT a:1 HTTP/1.1\r\nX: "[..], &vec![b'x'; 1 << 20]].concat();
    let (_, answer) = ask(&socket, &long).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    wait::until("the refusal is in the audit log", SETTLE, || {
        is_audited(&mut world, "cp-a", "way-back-refused", &["too-long"]).then_some(())
    });
    assert_eq!(connected(&world, "cp-a", "outside"), 1.0, "nothing else was reached");
}
