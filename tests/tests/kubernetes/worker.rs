//! A worker of a real cluster: kubectl and a controller manager that know only
//! `https://127.0.0.1:7445`.

#![expect(clippy::print_stdout, reason = "figures for the reader of a test run")]

use std::fmt::Write as _;
use std::fs;
use std::process::Stdio;
use std::time::Duration;

use meshport_tests::kubernetes::{
    ADMIN_TOKEN, Beat, Cluster, LOCAL, Plan, SETTLE_LIMIT, START_LIMIT, Streams, WORKER, Watch,
    Watchers,
};
use meshport_tests::wait;

/// Objects of a large list.
const OBJECTS: usize = 5000;
/// Bytes of a long answer.
const STREAM_BYTES: u64 = 64 << 20;
/// One request in fifty is the last on its connection.
const GOAWAY: &str = "--goaway-chance=0.02";
/// Requests of one HTTP/2 client.
const REQUESTS: usize = 1000;
/// The address of kubectl proxy.
const PROXY: &str = "http://127.0.0.1:8001";

/// Creates [`OBJECTS`] config maps, many at once.
fn make_many(cluster: &Cluster) {
    cluster.kubectl_direct(1).ok(&["create", "namespace", "many"]);
    let mut all = String::new();
    for number in 0..OBJECTS {
        let _ = write!(
            all,
            "next\nurl = \"https://127.0.0.1:6443/api/v1/namespaces/many/configmaps\"\n\
             insecure\nsilent\nfail\nhttp1.1\noutput = \"/dev/null\"\n\
             header = \"Authorization: Bearer {ADMIN_TOKEN}\"\n\
             header = \"Content-Type: application/json\"\n\
             data = \"{{\\\"metadata\\\":{{\\\"name\\\":\\\"cm-{number}\\\"}},\
             \\\"data\\\":{{\\\"number\\\":\\\"{number}\\\"}}}}\"\n",
        );
    }
    let file = cluster.path("many.curl");
    fs::write(&file, all).expect("the cluster's folder can be written");
    let mut curl = cluster.host(1).command("curl");
    curl.args(["--parallel", "--parallel-max", "50", "--noproxy", "*", "--config"]).arg(&file);
    let status = curl.stdout(Stdio::null()).stderr(Stdio::null()).status();
    assert!(status.expect("curl can be run").success(), "not every object was made");
}

/// A large list has the same bytes through the mesh as directly from the apiserver.
fn large_list(cluster: &Cluster) {
    make_many(cluster);
    let (kubectl, direct) = (cluster.kubectl(WORKER), cluster.kubectl_direct(1));
    let version = "jsonpath={.metadata.resourceVersion}";
    let version = direct.ok(&["get", "configmap", "cm-4999", "-n", "many", "-o", version]);
    let path = format!(
        "/api/v1/namespaces/many/configmaps?limit={OBJECTS}&resourceVersion={version}\
         &resourceVersionMatch=Exact"
    );
    let (straight, through) =
        (direct.ok(&["get", "--raw", &path]), kubectl.call(&["get", "--raw", &path]));
    assert!(through.succeeded, "{}", through.said);
    assert_eq!(through.said.trim(), straight, "the lists differ");
    let names = kubectl.ok(&["get", "configmaps", "-n", "many", "-o", "name"]);
    let count = names.lines().count();
    assert!(count >= OBJECTS, "{count} names");
    println!("{count} objects, {} bytes in {:.2} s", straight.len(), through.took.as_secs_f64());
}

/// `kubectl proxy` sends requests over one HTTP/2 connection until the server sends GOAWAY.
fn reuse_and_goaway(cluster: &mut Cluster) {
    let accepted =
        |cluster: &Cluster| cluster.metrics(WORKER).sum("meshport_sessions_accepted_total", "");
    let kubectl = cluster.kubectl(WORKER);
    let mut proxy = kubectl.command(&["proxy", "--port", "8001"]);
    cluster.adopt("kubectl-proxy", &mut proxy);
    wait::until("kubectl proxy answers", START_LIMIT, || {
        cluster.curl(WORKER, &[format!("{PROXY}/version")])
    });
    let before = accepted(cluster);
    let url = format!("{PROXY}/api/v1/namespaces/default?request=[1-{REQUESTS}]");
    let arguments = ["-o", "/dev/null", "-w", "%{http_code}\n", &url, "--max-time", "120"];
    let codes = cluster.curl(WORKER, &arguments.map(str::to_owned)).expect("all are answered");
    assert_eq!(codes.lines().filter(|code| *code == "200").count(), REQUESTS, "{codes}");
    let used = accepted(cluster) - before;
    println!("{REQUESTS} requests used {used} connections");
    assert!(used > 1.0, "no connection was given up: {used}");
    assert!(used < REQUESTS as f64 / 5.0, "connections are not used again: {used}");
    cluster.kill("kubectl-proxy");
}

#[test]
#[ignore = "needs root and tests/kubernetes/build; ./tests/run kubernetes-smoke"]
fn kubectl_gets_applies_watches_lists_and_streams() {
    let mut cluster = Cluster::new(Plan { flags: vec![GOAWAY.to_owned()], ..Plan::default() });
    let kubectl = cluster.kubectl(WORKER);
    kubectl.apply("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: mine}\ndata: {a: b}\n");
    assert_eq!(kubectl.ok(&["get", "configmap", "mine", "-o", "jsonpath={.data.a}"]), "b");

    let beat = Beat::start(&cluster, 2);
    let watch = Watch::start(&kubectl);
    let python = Watchers::start(&cluster, WORKER, LOCAL, 2);
    drop(python);
    cluster.start_controllers("controllers", WORKER);
    kubectl.ok(&["create", "namespace", "made"]);
    wait::until("the controllers fill a new namespace", SETTLE_LIMIT, || {
        let account = ["-n", "made", "get", "serviceaccount", "default"];
        kubectl.run(&account).status.success().then_some(())
    });
    assert!(cluster.process("controllers").is_running());
    assert!(watch.ends().is_empty(), "kubectl ended by itself");
    let now = wait::now();
    let recent = watch.arrivals().longest_gap(now - Duration::from_secs(2), now);
    assert!(recent < Duration::from_secs(2), "the watch is silent");
    drop((watch, beat));
    cluster.kill("controllers");

    reuse_and_goaway(&mut cluster);
    large_list(&cluster);
    let streams = Streams::start(&cluster);
    let sum = streams.fetch(&cluster, WORKER, LOCAL, STREAM_BYTES);
    assert_eq!(sum, Streams::sum(STREAM_BYTES), "the stream differs");
}
