//! The way back compared with the usual alternatives: an apiserver with a route to the node, and
//! one that reaches the kubelet through `ssh -R`. Each has its own control-plane host, all equally
//! far from the worker; apiservers, kubelet and pods are the same.
//!
//! The worker's ssh runs in a loop and checks its server every 5 s, three times, like autossh and
//! its usual units; sshd does the same, or it would hold the port of a lost client for two hours.
//! On the control-plane host the node's address is redirected to sshd's port.

#![expect(clippy::print_stdout, reason = "figures for the reader of a test run")]

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use meshport_tests::kubernetes::{Cluster, Plan, SETTLE_LIMIT, START_LIMIT, WORKER, WORKER_NAME};
use meshport_tests::process::{run, run_ok};
use meshport_tests::wait;

use super::wayback::{Ongoing, copy, kubelet_client, pods, start_origin};

/// The paths, by control-plane host.
const MESHPORT: usize = 1;
const DIRECT: usize = 2;
const SSH: usize = 3;
const PATHS: [(usize, &str); 3] = [(MESHPORT, "meshport"), (DIRECT, "direct"), (SSH, "ssh -R")];

/// Requests whose first byte is timed.
const REQUESTS: usize = 30;
/// MiB of the file.
const FILE_MIB: u64 = 128;
/// How long a path is cut.
const CUT: Duration = Duration::from_secs(40);
/// How long after its end a supervisor restarts a daemon; the ssh loop uses the same pause.
const RESTART: Duration = Duration::from_secs(1);
/// How long a path may take until it works again; longer counts as not working.
const AGAIN: Duration = Duration::from_secs(120);

fn cluster() -> Cluster {
    let plan = Plan {
        distances: [10, 10, 10].map(Duration::from_millis).to_vec(),
        origin_roles: "node,origin:kube-apiserver,relay",
        kubelet_address: "0.0.0.0",
        ..Plan::default()
    };
    let mut cluster = Cluster::hosts(plan);
    start_origin(&mut cluster, "");
    let mut client = kubelet_client(&cluster);
    // As with kubeadm: a node's name does not resolve without a name server.
    client.push("--kubelet-preferred-address-types=InternalIP".to_owned());
    let flags: Vec<&str> = client.iter().map(String::as_str).collect();
    for number in [DIRECT, SSH] {
        cluster.start_apiserver(number, &flags);
        cluster.start_node(number);
    }
    cluster.start_node(WORKER);
    cluster.all_are_ready();
    cluster.start_real_kubelet(WORKER);
    start_ssh(&mut cluster);
    cluster
}

/// sshd on its control-plane host, the loop on the worker, and the way to its port.
fn start_ssh(cluster: &mut Cluster) {
    fs::create_dir_all("/run/sshd").expect("sshd wants its folder");
    let key = |name: &str| {
        let file = cluster.path(name).to_string_lossy().into_owned();
        run_ok("ssh-keygen", &["-q", "-t", "ed25519", "-N", "", "-f", &file]);
        file
    };
    let (host_key, client_key) = (key("ssh-host"), key("ssh-client"));
    let at = cluster.host(SSH).address;
    let text = format!(
        "Port 2222\nListenAddress {at}\nHostKey {host_key}\nAuthorizedKeysFile {client_key}.pub\n\
         StrictModes no\nPermitRootLogin yes\nPasswordAuthentication no\nUsePAM no\n\
         PidFile none\nClientAliveInterval 5\nClientAliveCountMax 3\n"
    );
    let config = cluster.path("sshd_config");
    fs::write(&config, text).expect("the cluster's folder can be written");
    let flags = ["-D", "-e", "-f", &config.to_string_lossy()].map(str::to_owned);
    cluster.start("sshd", SSH, Path::new("/usr/sbin/sshd"), &flags);

    let pid = cluster.path("ssh.pid");
    let script = format!(
        "while true; do setpriv --pdeathsig KILL ssh -N -F none -i {client_key} -p 2222 \
         -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o ConnectTimeout=5 \
         -o ExitOnForwardFailure=yes -o ServerAliveInterval=5 -o ServerAliveCountMax=3 \
         -R 127.0.0.1:10250:127.0.0.1:10250 root@{at} & echo $! >{pid}; wait $!; sleep {pause}; \
         done",
        pid = pid.display(),
        pause = RESTART.as_secs(),
    );
    let flags = ["-c".to_owned(), script];
    cluster.start("ssh", WORKER, Path::new("/bin/sh"), &flags);
    let node = cluster.host(WORKER).address;
    let rules = format!(
        "add table ip back; \
         add chain ip back out {{ type nat hook output priority -100; }}; \
         add rule ip back out ip daddr {node} tcp dport 10250 dnat to 127.0.0.1:10250"
    );
    cluster.host(SSH).namespace().run("nft", &[&rules]);
}

/// Seconds until the first byte of a pod's log, from the apiserver of a host; `None` without one.
fn first_byte(cluster: &Cluster, number: usize) -> Option<f64> {
    let url = "https://127.0.0.1:6443/api/v1/namespaces/default/pods/main/log?tailLines=1";
    let arguments =
        ["-f", "--max-time", "2", "-o", "/dev/null", "-w", "%{time_starttransfer}", url];
    cluster.curl(number, &arguments.map(str::to_owned))?.parse().ok()
}

/// The median and the maximum of many, in milliseconds.
fn latency(cluster: &Cluster, number: usize) -> String {
    let mut all: Vec<f64> = (0..REQUESTS).filter_map(|_| first_byte(cluster, number)).collect();
    all.sort_by(f64::total_cmp);
    let lost = REQUESTS - all.len();
    match all.as_slice() {
        [] => "none".to_owned(),
        [.., last] => {
            format!("{:.0} / {:.0} ms, {lost} lost", all[all.len() / 2] * 1e3, last * 1e3)
        }
    }
}

/// Waits until logs work again; the time since `begun`.
fn again(cluster: &Cluster, number: usize, begun: Instant, limit: Duration) -> Option<f64> {
    wait::within(limit, || first_byte(cluster, number)).map(|_| begun.elapsed().as_secs_f64())
}

fn seconds(took: Option<f64>) -> String {
    took.map_or_else(|| "not".to_owned(), |took| format!("after {took:.1} s"))
}

fn show(name: &str, what: &str, said: &str) {
    println!("| {name} | {what} | {said} |");
}

/// The cost of an intact path, alone and next to a log reader that has stopped reading.
fn costs(cluster: &Cluster, number: usize, name: &str) {
    let kubectl = cluster.kubectl_direct(number);
    show(name, "first byte of logs, median / maximum", &latency(cluster, number));
    let rates = |[there, back]: [f64; 2]| {
        let rate = |took: f64| f64::from(u32::try_from(FILE_MIB).expect("some MiB")) / took;
        format!("{:.0} / {:.0} MiB/s", rate(there), rate(back))
    };
    show(name, "cp there / back", &rates(copy(cluster, &kubectl, FILE_MIB)));
    let _stalled = Ongoing::start(&kubectl, &["logs", "-f", "loud"]);
    show(name, "beside a stalled reader: first byte", &latency(cluster, number));
    show(name, "beside a stalled reader: cp", &rates(copy(cluster, &kubectl, FILE_MIB)));
}

/// The node's daemon is killed and restarted by its supervisor.
fn killed(cluster: &mut Cluster) {
    let begun = wait::now();
    cluster.kill(WORKER_NAME);
    wait::moment(begun + RESTART);
    cluster.start_node(WORKER);
    let took = again(cluster, MESHPORT, begun, AGAIN);
    show("meshport", "logs after kill -9 of the node's daemon", &seconds(took));
    assert!(took.is_some_and(|took| took < SETTLE_LIMIT.as_secs_f64()), "{took:?}");

    let pid = || fs::read_to_string(cluster.path("ssh.pid")).expect("the loop writes it");
    let (former, begun) = (pid(), wait::now());
    run("kill", &["-9", former.trim()]);
    // A request that arrives before its end is noticed would still be served.
    wait::until("the loop starts ssh again", START_LIMIT, || (pid() != former).then_some(()));
    let took = again(cluster, SSH, begun, AGAIN);
    show("ssh -R", "logs after kill -9 of the node's daemon", &seconds(took));
}

/// The path between the worker and one control-plane host dies and is later restored.
fn cut(cluster: &Cluster, number: usize, name: &str) {
    let begun = wait::now();
    cluster.network.cut(WORKER, number, true);
    let during = again(cluster, number, begun, CUT);
    wait::moment(begun + CUT);
    cluster.network.cut(WORKER, number, false);
    let after = again(cluster, number, wait::now(), AGAIN);
    let said = format!("{} while it is cut, {} it is back", seconds(during), seconds(after));
    show(name, "logs when the path dies for 40 s", &said);
    assert!(number != MESHPORT || during.is_some(), "no relay was found");
}

#[test]
#[ignore = "needs root, cgroups of version 1, sshd and tests/kubernetes; ./tests/run kubernetes"]
fn the_way_back_beside_a_route_and_ssh() {
    let mut cluster = cluster();
    pods(&cluster.kubectl_direct(MESHPORT));
    for (number, name) in PATHS {
        let reached = wait::within(START_LIMIT, || first_byte(&cluster, number));
        assert!(reached.is_some(), "{name} never works");
    }
    PATHS.iter().for_each(|(number, name)| costs(&cluster, *number, name));
    killed(&mut cluster);
    PATHS.iter().for_each(|(number, name)| cut(&cluster, *number, name));
    cluster.kubectl_direct(MESHPORT).ok(&["delete", "pod", "--all", "--wait=true"]);
}
