//! A control plane from its first node on: nothing exists before it, its kubelet starts before its
//! apiserver, further nodes join and one leaves.

use std::process::Stdio;

use meshport_tests::kubernetes::{
    Call, Calls, Cluster, Plan, SETTLE_LIMIT, START_LIMIT, WORKER, origin,
};
use meshport_tests::wait;

/// Whether curl reports that the local address of a host refuses connections.
fn is_refused(cluster: &Cluster, at: usize) -> bool {
    let mut curl = cluster.host(at).command("curl");
    curl.args(["-sk", "--max-time", "8", "https://127.0.0.1:7445/version"]);
    // 7: could not connect.
    curl.stdout(Stdio::null()).status().expect("curl can be run").code() == Some(7)
}

/// Starts the apiserver of a host and checks that no session of another node reaches it before it
/// is ready; returns how many readiness probes got a status other than 200.
fn starts_without_visitors(cluster: &mut Cluster, number: usize) -> usize {
    let served = |cluster: &Cluster| {
        cluster.metrics(number).sum("meshport_served_streams_total", "answer=\"connected\"")
    };
    let ask = ["-o", "/dev/null", "-w", "%{http_code}", "https://127.0.0.1:6443/readyz"];
    let ask = ask.map(str::to_owned);
    let before = served(cluster);
    let mut early = 0;
    cluster.spawn_apiserver(number, &[]);
    wait::until("the apiserver is ready", START_LIMIT, || {
        // Counted before the query, so these arrived before the answer.
        let visitors = served(cluster) - before;
        let code = cluster.curl(number, &ask);
        if code.as_deref() == Some("200") {
            return Some(());
        }
        early += usize::from(code.is_some());
        assert_eq!(visitors, 0.0, "a session reached {} while it said {code:?}", origin(number));
        None
    });
    early
}

fn all_succeeded(calls: Calls) {
    let calls = calls.finish();
    let failed: Vec<&Call> = calls.iter().filter(|call| !call.succeeded).collect();
    assert!(failed.is_empty(), "of {} calls: {failed:?}", calls.len());
}

#[test]
#[ignore = "needs root and tests/kubernetes/build; ./tests/run kubernetes-smoke"]
fn a_control_plane_grows_from_one_node_and_shrinks() {
    let mut cluster = Cluster::hosts(Plan::default());

    // The first node alone: a daemon and a kubelet, without an apiserver.
    cluster.start_node(1);
    cluster.start_kubelet(1);
    wait::until("without an apiserver clients are refused", SETTLE_LIMIT, || {
        is_refused(&cluster, 1).then_some(())
    });
    let mut waiting = cluster.meshport(1, &["wait", "--timeout", "90s"]);
    let mut waiting = waiting.stdout(Stdio::null()).spawn().expect("meshport runs");
    assert!(waiting.try_wait().expect("a child").is_none(), "nothing is there to wait for");
    cluster.start_apiserver(1, &[]);
    let ready = wait::now();
    let ended = wait::until("meshport wait ends", SETTLE_LIMIT, || {
        waiting.try_wait().expect("a child can be waited for")
    });
    assert!(ended.success(), "meshport wait: {ended}");
    println!("meshport wait ended {:.2} s after the first 200", ready.elapsed().as_secs_f64());
    let kubectl = cluster.kubectl(1);
    wait::until("the kubelet registers its node", SETTLE_LIMIT, || {
        kubectl.run(&["get", "node", "cp-1"]).status.success().then_some(())
    });
    println!("the kubelet's node is there {:.2} s after it", ready.elapsed().as_secs_f64());
    assert!(cluster.process("kubelet-cp-1").is_running());

    // Other apiservers start; nothing is configured.
    cluster.start_node(WORKER);
    cluster.chooses(WORKER, "cp-1");
    for number in [2, 3] {
        cluster.start_node(number);
        let early = starts_without_visitors(&mut cluster, number);
        println!("{} answered {early} times before it was ready", origin(number));
        cluster.chooses(number, &origin(number));
    }
    cluster.all_are_ready();

    // It uses its own apiserver first, others when that is down, and sends it no requests before it
    // is ready again.
    let calls = Calls::begin(&cluster.kubectl(WORKER), "worker");
    let own = Calls::begin(&kubectl, "own");
    let paused = calls.pause();
    cluster.kill_apiserver(1);
    drop(paused);
    // The others are equally far from there.
    wait::until("cp-1 chooses another", SETTLE_LIMIT, || {
        cluster.chosen(1).filter(|name| *name != origin(1))
    });
    own.pass(wait::now(), START_LIMIT);
    let early = starts_without_visitors(&mut cluster, 1);
    println!("cp-1 answered {early} times before it was ready again");
    cluster.chooses(1, "cp-1");
    cluster.chooses(WORKER, "cp-1");
    drop(own);

    // One node leaves permanently.
    cluster.process("cp-1").signal("TERM");
    cluster.process("cp-1").ended(SETTLE_LIMIT);
    cluster.kill_apiserver(1);
    for at in [WORKER, 2, 3] {
        wait::until("the node that left is out of the rotation", SETTLE_LIMIT, || {
            (!cluster.ready(at).contains(&origin(1))).then_some(())
        });
    }
    cluster.chooses(WORKER, "cp-2");
    calls.pass(wait::now(), START_LIMIT);
    all_succeeded(calls);
}
