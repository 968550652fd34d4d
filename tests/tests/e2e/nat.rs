//! Nodes behind a real NAT: a Linux router in a network namespace that masquerades and forgets UDP
//! mappings after some seconds. From outside a node is reachable only while its mapping lasts,
//! which the node's packets keep alive: probes of paths to origins by default, `mesh.keepalive`
//! elsewhere.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::process::Output;
use std::thread;
use std::time::Duration;

use meshport_tests::netns::{self, Namespace};
use meshport_tests::process::{Process, meshport, run, run_ok};
use meshport_tests::wait;
use serde_json::Value;
use tempfile::TempDir;

mod both;

const SETTLE: Duration = Duration::from_secs(40);
/// The node outside, which is an origin.
const OUTSIDE: &str = "198.51.100.1";
/// The router's address towards it: where it sees the nodes inside.
const ROUTER: &str = "198.51.100.2";
const INSIDE: &str = "192.168.7.2";
/// How long the router keeps the mapping of a silent flow, in seconds: more than lies between two
/// probes of an idle path (5 s by default), less than the 10 s after which WireGuard speaks.
const MAPPING_S: u64 = 8;
/// No gossip that would keep a mapping for another reason than the one under test.
const NO_GOSSIP: &str = "[discovery]\nprobe-interval = \"60s\"\nprobe-timeout = \"5s\"\n\
                         suspicion = \"5m\"\nsync-interval = \"1h\"\n";
/// No probes of paths either.
const NO_PROBES: &str = "path-probe-active = \"60s\"\npath-probe-idle = \"5m\"\n";

/// A node inside.
#[derive(Clone, Copy)]
struct Plan {
    name: &'static str,
    /// Of its mesh.
    port: u16,
    /// Settings of the table `mesh`.
    mesh: &'static str,
    /// Settings of the table `discovery`.
    discovery: &'static str,
}

/// All paths that default settings can reach.
const PROBING: Plan = Plan { name: "probing", port: 51820, mesh: "", discovery: "" };
const KEPT: Plan =
    Plan { name: "kept", port: 51821, mesh: "keepalive = \"2s\"\n", discovery: NO_PROBES };
const SILENT: Plan = Plan { name: "silent", port: 51822, mesh: "", discovery: NO_PROBES };

/// The daemons of a test, and the folder of their files.
struct Daemons {
    running: Vec<Process>,
    folder: TempDir,
}

impl Daemons {
    fn new() -> Self {
        netns::remove_stale();
        let folder = tempfile::tempdir().expect("a temporary folder");
        Self { running: Vec::new(), folder }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_string_lossy().into_owned()
    }

    /// Makes a node of the mesh of `first`, or that node itself.
    fn join(&self, name: &str, first: &str, roles: &[&str]) {
        let (state, first) = (self.path(name), self.path(first));
        let roles = roles.iter().flat_map(|role| ["--role", role]).collect::<Vec<_>>();
        let of = |verb: &[&str]| run_ok(&meshport().to_string_lossy(), &[verb, &roles].concat());
        if state == first {
            of(&["init", "--site", "x", "--name", name, "--state-dir", &state]);
            return;
        }
        let invite = of(&["invite", "--site", "x", "--state-dir", &first]);
        let join = ["join", invite.trim(), "--name", name, "--state-dir", &state];
        run_ok(&meshport().to_string_lossy(), &join);
    }

    /// Starts a node's daemon with settings that follow `[mesh]`.
    fn start(&mut self, name: &str, host: &Namespace, mesh: &str) {
        let (state, config) = (self.path(name), self.path(&format!("{name}.toml")));
        let text = format!(
            "site = \"x\"\nstate-dir = \"{state}\"\n[admin]\nhttp = \"off\"\n[mesh]\n{mesh}"
        );
        fs::write(&config, text).expect("the folder can be written");
        let mut command = host.command(&meshport().to_string_lossy());
        command.arg("run").arg("--config").arg(&config);
        let log = self.folder.path().join(format!("{name}.log"));
        self.running.push(Process::start(name, &mut command, &log));
        wait::until("it answers", SETTLE, || self.ask(name, &["status"]));
    }

    fn run(&self, name: &str, verb: &[&str]) -> Output {
        let state = self.path(name);
        run(&meshport().to_string_lossy(), &[verb, &["--state-dir", &state]].concat())
    }

    /// The answer of a daemon to a command that succeeds.
    fn ask(&self, name: &str, verb: &[&str]) -> Option<Value> {
        let output = self.run(name, &[verb, &["--json"]].concat());
        serde_json::from_slice(&output.stdout).ok().filter(|_| output.status.success())
    }

    /// Whether a node reaches another one now, at the first attempt.
    fn is_reached(&self, from: &str, to: &str) -> bool {
        self.ask(from, &["ping", to, "--count", "1"]).is_some()
    }
}

/// A router between two networks, that masquerades what comes from inside. `rules` go before.
fn masquerade(daemons: &Daemons, router: &Namespace, wan: &str, rules: &str, how: &str) {
    let rules = format!(
        "table ip nat {{\n chain out {{\n type nat hook postrouting priority srcnat;\n{rules}\
         oifname \"{wan}\" masquerade {how}\n }}\n}}\n"
    );
    let file = daemons.path(&format!("{}.nft", router.name()));
    fs::write(&file, rules).expect("the folder can be written");
    router.run("nft", &["-f", &file]);
    router.run("sh", &["-ec", "echo 1 >/proc/sys/net/ipv4/ip_forward"]);
}

/// Processes end before their namespaces do.
struct Nat {
    daemons: Daemons,
    outside: Namespace,
    inside: Namespace,
    router: Namespace,
}

impl Nat {
    fn new() -> Self {
        let daemons = Daemons::new();
        let (outside, inside, router) = (Namespace::new(), Namespace::new(), Namespace::new());
        let ends = [format!("{OUTSIDE}/24"), format!("{ROUTER}/24")];
        let [_, wan] = netns::cable(&outside, &ends[0], &router, &ends[1]);
        netns::cable(&inside, &format!("{INSIDE}/24"), &router, "192.168.7.1/24");
        inside.ip(&["route", "add", "default", "via", "192.168.7.1"]);
        // A chain of nat sees the first packet of each flow only, so that it counts mappings.
        let counters = [PROBING, KEPT, SILENT]
            .map(|it| format!("ip saddr {INSIDE} udp sport {} counter\n", it.port));
        masquerade(&daemons, &router, &wan, &counters.concat(), "random");
        let forget = ["udp_timeout", "udp_timeout_stream"]
            .map(|name| format!("echo {MAPPING_S} >/proc/sys/net/netfilter/nf_conntrack_{name}"));
        router.run("sh", &["-ec", &forget.join("; ")]);
        Self { daemons, outside, inside, router }
    }

    /// Makes and starts the node outside, an origin with these further settings.
    fn start_outside(&mut self, discovery: &str, rest: &str) {
        self.daemons.join("outside", "outside", &["node", "origin:kube-apiserver"]);
        let settings = format!(
            "advertise = [\"{OUTSIDE}:51820\"]\n{NO_GOSSIP}{discovery}\
             [service.kube-apiserver]\nlisten = []\norigin = \"127.0.0.1:6443\"\n{rest}"
        );
        self.daemons.start("outside", &self.outside, &settings);
    }

    /// Makes and starts a node inside.
    fn start_inside(&mut self, plan: Plan) {
        let Plan { name, port, mesh, discovery } = plan;
        self.daemons.join(name, "outside", &["node"]);
        let settings = format!(
            "listen = \"0.0.0.0:{port}\"\n{mesh}{NO_GOSSIP}{discovery}\
             [service.kube-apiserver]\nlisten = []\n"
        );
        self.daemons.start(name, &self.inside, &settings);
    }

    /// How many mappings the router has made for a node.
    fn mappings(&self, plan: Plan) -> u64 {
        let port = plan.port;
        let rules = self.router.run("nft", &["list", "table", "ip", "nat"]);
        let (_, after) = rules.split_once(&format!("sport {port} counter packets ")).expect("set");
        let count = after.split(' ').next().and_then(|count| count.parse().ok());
        count.expect("a counter has a number")
    }
}

#[test]
#[ignore = "needs root for network namespaces, and nft: ./tests/run e2e"]
fn what_a_node_behind_nat_sends_keeps_it_in_reach() {
    let mut nat = Nat::new();
    nat.start_outside(NO_PROBES, "");
    let nodes = [PROBING, KEPT, SILENT];
    for plan in nodes {
        nat.start_inside(plan);
    }
    let is_reached = |nat: &Nat, name: &str| nat.daemons.is_reached("outside", name);
    for Plan { name, .. } in nodes {
        let what = format!("the node outside reaches {name}");
        wait::until(&what, SETTLE, || is_reached(&nat, name).then_some(()));
    }
    // Both nodes know, for `doctor`, what is between them.
    let seen =
        |name: &str| nat.daemons.ask(name, &["status"]).expect("it answers")["reach"].clone();
    let of_router = &seen("probing")["seen_at"][0];
    assert_eq!(seen("probing")["nat"], "one-report", "{of_router}");
    assert!(of_router.as_str().is_some_and(|it| it.starts_with(ROUTER)), "{of_router}");
    assert_eq!(seen("outside")["nat"], "advertised");
    let begun = wait::now();
    wait::until(
        "the mapping of a silent node ends, and its next word makes another",
        SETTLE,
        || (nat.mappings(SILENT) > 1).then_some(()),
    );
    println!("the mapping of the silent node had ended within {:?}", begun.elapsed());
    for plan in [PROBING, KEPT] {
        assert_eq!(nat.mappings(plan), 1, "{}: its mapping has ended", plan.name);
        assert!(is_reached(&nat, plan.name), "{} is out of reach", plan.name);
    }
}

/// The node outside is an apiserver's, and the worker's only way in is the tunnel it keeps open.
#[test]
#[ignore = "needs root for network namespaces, and nft: ./tests/run e2e"]
fn an_apiserver_reaches_a_kubelet_behind_nat() {
    let mut nat = Nat::new();
    let socket = nat.daemons.folder.path().join("egress").join("egress.sock");
    nat.start_outside("", &format!("[egress]\nsocket = {socket:?}\n"));
    nat.start_inside(Plan { name: "worker", ..PROBING });
    let kubelet = nat.inside.inside(|| TcpListener::bind("127.0.0.1:10250"));
    speaks(kubelet.expect("the port is free inside"), "the kubelet inside");
    let answer = wait::until("the apiserver reaches the kubelet inside", SETTLE, || {
        let mut stream = UnixStream::connect(&socket).ok()?;
        stream.write_all(b"CONNECT worker:10250 HTTP/1.1\r\nHost: a\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.starts_with("HTTP/1.1 200 ").then_some(answer)
    });
    assert_eq!(answer, "HTTP/1.1 200 OK\r\n\r\nthe kubelet inside");
}

/// A server that says this to each of its clients.
fn speaks(server: TcpListener, word: &'static str) {
    thread::spawn(move || {
        for mut client in server.incoming().flatten() {
            // The client may be gone.
            let _ = client.write_all(word.as_bytes());
        }
    });
}
