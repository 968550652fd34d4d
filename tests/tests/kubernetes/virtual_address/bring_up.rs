//! A cluster whose endpoint is the virtual address, from its first node on: the commands of
//! docs/kubeadm.md on emulated machines, with real apiservers and a kubelet.

use std::net::{Ipv4Addr, UdpSocket};
use std::thread;
use std::time::Duration;

use meshport_tests::kubernetes::{
    Cluster, Kubectl, SETTLE_LIMIT, START_LIMIT, WORKER, origin, program,
};
use meshport_tests::machine::Machine;
use meshport_tests::manual;
use meshport_tests::netns::Namespace;
use meshport_tests::wait;

use super::{ADDRESS, Lan, NAME, PORT};

const PAGE: &str = "kubeadm.md";
const TITLE: &str = "With a virtual address";
/// How long all commands of a machine may take, including the start of an apiserver.
const LIMIT: Duration = Duration::from_secs(150);
/// A stand-in for kubeadm's use of the endpoint: `init` has the apiserver started and waits for it
/// at the endpoint in its configuration, `join` first needs the cluster there.
const KUBEADM: &str = "verb=$1
eval \"file=\\${$#}\"
endpoint=$(sed -n 's/^ *\\(controlPlane\\|apiServer\\)Endpoint: \"\\(.*\\)\"/\\2/p' \"$file\")
answers() {
  while ! curl -s --cacert @CA@ --max-time 2 \"https://$1/readyz\"; do sleep 0.1; done
}
[ \"$verb\" = init ] || answers \"$endpoint\"
setsid apiserver >>$LAB/apiserver.log 2>&1 &
answers 127.0.0.1:6443
answers \"$endpoint\"
echo \"kubeadm $verb: $endpoint answers\"
";

/// A machine on one of the cluster's hosts, with all programs that the page's commands call.
fn boot(cluster: &Cluster, at: usize) -> Machine {
    let name = cluster.node_name(at);
    let machine = Machine::boot(&name, cluster.host(at).namespace(), &cluster.path(&name));
    let kubelet = format!(
        "[ ! -e kubelet.pid ] || kill $(cat kubelet.pid)\n\
         setsid {} --morph=kubelet --name={name} --kubeconfig={} >>kubelet.log 2>&1 &\n\
         echo $! >kubelet.pid\n",
        program("kubemark").display(),
        cluster.pki.text("kubelet.conf")
    );
    machine.put("start-kubelet", &kubelet);
    if at != WORKER {
        let flags = cluster.apiserver_flags(at).join(" ");
        machine
            .put("apiserver", &format!("exec {} {flags}\n", program("kube-apiserver").display()));
        machine.put("kubeadm", &KUBEADM.replace("@CA@", &cluster.pki.text("ca.crt")));
    }
    machine.run(&format!("echo nameserver {DNS} >/etc/resolv.conf"), LIMIT);
    machine
}

/// The name server of every machine.
const DNS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 100);

/// On a host, answers every query for an IPv4 address with the virtual address.
fn serve_names(host: &Namespace) {
    let socket = host.inside(|| UdpSocket::bind((DNS, 53)).expect("the port is free"));
    let address: Ipv4Addr = ADDRESS.parse().expect("an address");
    thread::spawn(move || {
        let mut buffer = [0; 512];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let answer = resolve(&buffer[..length], address);
            // The client may have ended.
            let _ = answer.map(|answer| socket.send_to(&answer, from));
        }
    });
}

/// The answer to a query of RFC 1035.
fn resolve(question: &[u8], address: Ipv4Addr) -> Option<Vec<u8>> {
    /// Length of the header; the name follows.
    const HEADER: usize = 12;
    const A: [u8; 2] = [0, 1];
    let name = question.get(HEADER..)?.iter().position(|byte| *byte == 0)? + 1;
    let end = HEADER + name + 4;
    let is_v4 = question.get(HEADER + name..HEADER + name + 2)? == A;
    let mut answer = question.get(..2)?.to_vec();
    // A response without error, one question, one answer or none.
    answer.extend([0x85, 0x80, 0, 1, 0, u8::from(is_v4), 0, 0, 0, 0]);
    answer.extend(question.get(HEADER..end)?);
    if is_v4 {
        // The name from the question, an address, a TTL of one second.
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4]);
        answer.extend(address.octets());
    }
    Some(answer)
}

/// The page's steps for another control-plane node.
fn commands_of_another(first: &str, joins: &str) -> String {
    let mut commands = String::new();
    let joins = manual::on("the new node", joins);
    let (join, kubeadm) = joins.split_once('\n').expect("a line for meshport, others for kubeadm");
    for line in first.lines() {
        match line {
            line if line.starts_with("meshport init") => commands += join,
            line if line.starts_with("meshport generate kubeadm-init") => break,
            line => commands += line,
        }
        commands.push('\n');
    }
    commands + kubeadm
}

/// The other ends of a host's connections to the port of the endpoint.
fn peers(host: &Namespace) -> Vec<String> {
    let port = format!(":{PORT}");
    let listed = host.run("ss", &["-Htn", "state", "established", "dport", "=", &port]);
    let peer = |line: &str| line.split_whitespace().nth(3).map(str::to_owned);
    listed.lines().filter_map(peer).collect()
}

/// Waits until the worker's kubelet has renewed its lease again.
fn lives(kubectl: &Kubectl) {
    let lease = ["-n", "kube-node-lease", "get", "lease", "worker", "-o"];
    let renewed = || {
        let output = kubectl.run(&[&lease[..], &["jsonpath={.spec.renewTime}"]].concat());
        output.status.success().then_some(output.stdout)
    };
    let before = wait::until("the kubelet has a lease", SETTLE_LIMIT, renewed);
    wait::until("the kubelet renews its lease", SETTLE_LIMIT, || {
        (renewed()? != before).then_some(())
    });
}

/// Waits until an apiserver answers a client that knows only the address.
fn answers(lan: &Lan) {
    let authority = lan.cluster.pki.text("ca.crt");
    let url = format!("https://{ADDRESS}:{PORT}/readyz");
    let ask = ["-sf", "--cacert", &authority, "--max-time", "2", &url];
    wait::until("the address answers", SETTLE_LIMIT, || {
        lan.client.succeeds("curl", &ask).then_some(())
    });
}

#[test]
#[ignore = "needs root and tests/kubernetes/build; ./tests/run kubernetes"]
fn the_pages_commands_make_a_cluster_whose_endpoint_is_the_address() {
    let lan = Lan::hosts();
    serve_names(&lan.client);
    let cluster = &lan.cluster;
    cluster.pki.client("kubelet", "system:node:worker", Some("system:nodes"));
    cluster.pki.kubeconfig("kubelet", &format!("https://{NAME}:{PORT}"), Some("kubelet"));
    let blocks = manual::under(PAGE, TITLE, "sh");
    let [first, joins, moves] = &blocks[..] else { panic!("three blocks") };

    // The first node, with nothing running anywhere.
    let one = boot(cluster, 1);
    let mut begun = wait::now();
    let mut tell = |what: &str| {
        println!("{:5.1} s: {what}", begun.elapsed().as_secs_f64());
        begun = wait::now();
    };
    let said = one.run(first, LIMIT);
    assert!(said.contains(&format!("kubeadm init: {NAME}:{PORT} answers")), "{said}");
    answers(&lan);
    tell("the first node, from its first command to an answer at the address");
    one.run(&manual::on("the first node", joins), LIMIT);

    // A worker without meshport uses the address.
    let worker = boot(cluster, WORKER);
    worker.run("systemctl enable --now kubelet", LIMIT);
    let kubectl = cluster.kubectl_direct(1);
    lives(&kubectl);
    tell("a kubelet by the address, with one renewal of its lease");
    let by_address = format!("{ADDRESS}:{PORT}");
    let host = cluster.host(WORKER).namespace();
    assert!(peers(host).iter().all(|peer| *peer == by_address), "{:?}", peers(host));

    // The second control-plane node: the address answers there before anything is set up.
    let two = boot(cluster, 2);
    let ask =
        format!("curl -sf --cacert {} https://{NAME}:{PORT}/readyz", cluster.pki.text("ca.crt"));
    two.run(&ask, LIMIT);
    std::fs::copy(one.path("vip.invite"), two.path("vip.invite")).expect("an invite was made");
    let said = two.run(&commands_of_another(first, joins), LIMIT);
    assert!(said.contains(&format!("kubeadm join: {NAME}:{PORT} answers")), "{said}");

    tell("the second control-plane node");

    // The worker switches to its local address.
    std::fs::copy(one.path("worker.invite"), worker.path("worker.invite")).expect("it was made");
    worker.run(moves, LIMIT);
    lives(&kubectl);
    let local = ["127.0.0.1", "[::1]"].map(|host| format!("{host}:{PORT}"));
    wait::until("the kubelet is connected to the local address alone", SETTLE_LIMIT, || {
        let peers = peers(host);
        (!peers.is_empty() && peers.iter().all(|peer| local.contains(peer))).then_some(())
    });

    tell("the worker at its own address, with one renewal of its lease");

    // The first node is permanently lost: the second has the address, and the kubelet continues.
    drop(one);
    answers(&lan);
    tell("the first node gone, an answer at the address");
    let kubectl = cluster.kubectl_direct(2);
    wait::until("the second apiserver answers", START_LIMIT, || {
        kubectl.run(&["get", "node", "worker"]).status.success().then_some(())
    });
    lives(&kubectl);
    let status = two.run("meshport status --json", LIMIT);
    assert!(status.contains("\"holding\""), "{} holds nothing: {status}", origin(2));
}
