//! What takes too long for every run: the cluster's own list of apiservers, distance, a gibibyte,
//! and the same faults through haproxy and without anything in between.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use meshport_tests::kubernetes::{
    Beat, Call, Calls, Cluster, Fault, Kubectl, LOCAL, Plan, START_LIMIT, Streams, WORKER, Watch,
};
use meshport_tests::repository::root;
use meshport_tests::wait;

/// Two readings of the list and what they wait for.
const LIST_LIMIT: Duration = Duration::from_secs(120);
/// An emulated round trip between two cities.
const FAR: Duration = Duration::from_millis(35);
/// Calls of kubectl each way.
const CALLS: usize = 25;
/// Bytes of a very long answer.
const GIBIBYTE: u64 = 1 << 30;
/// Where haproxy listens on the worker.
const HAPROXY: &str = "https://127.0.0.1:8443";
/// The first apiserver as the worker reaches it without anything in between.
const DIRECT: &str = "https://10.77.0.11:6443";
/// How long a comparison looks: client-go alone needs up to 45 s to notice a hang.
const LOOK: Duration = Duration::from_secs(60);

#[test]
#[ignore = "needs root and tests/kubernetes/build; ./tests/run kubernetes"]
fn an_apiserver_that_the_mesh_does_not_know_is_told() {
    let mut cluster = Cluster::new(Plan {
        settings: "cluster-kubeconfig = \"@PKI@/lister.conf\"\n".to_owned(),
        ..Plan::default()
    });
    let figure = |cluster: &Cluster, name: &str| cluster.metrics(WORKER).sum(name, "");
    wait::until("the list is read and agrees", LIST_LIMIT, || {
        let listed = figure(&cluster, "meshport_cluster_apiservers");
        let differs = figure(&cluster, "meshport_cluster_differs");
        (listed == 3.0 && differs == 0.0).then_some(())
    });
    cluster.process("cp-3").signal("TERM");
    cluster.process("cp-3").ended(START_LIMIT);
    let begun = wait::now();
    let warning = wait::until("the difference is told", LIST_LIMIT, || {
        let status = cluster.status(WORKER)?;
        let warnings = status["warnings"].as_array()?.iter().filter_map(|it| it.as_str());
        warnings.filter(|it| it.contains("lists 3 apiservers")).map(str::to_owned).next()
    });
    println!("after {:.0} s: {warning}", begun.elapsed().as_secs_f64());
    assert!(warning.contains("10.77.0.13:6443"), "{warning}");
    assert_eq!(figure(&cluster, "meshport_cluster_differs"), 1.0);
    cluster.start_node(3);
    wait::until("they agree again", LIST_LIMIT, || {
        (figure(&cluster, "meshport_cluster_differs") == 0.0).then_some(())
    });
}

#[test]
#[ignore = "needs root and tests/kubernetes/build; ./tests/run kubernetes"]
fn kubectl_is_no_slower_than_straight_over_a_distance() {
    let plan = Plan { distances: vec![FAR], sites: vec!["fra".to_owned(); 1], ..Plan::default() };
    let cluster = Cluster::new(plan);
    let ways = [cluster.kubectl(WORKER), cluster.kubectl_to(WORKER, "straight", DIRECT)];
    // What kubectl asks only once, it has asked.
    ways.iter().for_each(|way| assert!(way.call(&["get", "ns"]).succeeded));
    let mut took = [Vec::new(), Vec::new()];
    for _ in 0..CALLS {
        for (way, took) in ways.iter().zip(&mut took) {
            let call = way.call(&["get", "ns"]);
            assert!(call.succeeded, "{}", call.said);
            took.push(call.took);
        }
    }
    // The least disturbed one of each: on a busy machine starting kubectl varies by more than what
    // is compared.
    let [through, straight] = took.map(|mut all| {
        all.sort();
        (all[0], all[CALLS / 2])
    });
    println!("kubectl get ns, {FAR:?} away, least and median: {through:?} through meshport");
    println!("and {straight:?} straight");
    assert!(through.0 <= straight.0, "meshport is slower");
}

/// haproxy on the worker, configured as the kubeadm guide has it.
fn start_haproxy(cluster: &mut Cluster) {
    let template = root().join("tests/arena/balancers/kubeadm-haproxy.cfg");
    let text = fs::read_to_string(template).expect("the arena has it");
    let text = (1..=3).fold(text.replace("@LISTEN@", "127.0.0.1:8443"), |text, number| {
        let address = format!("{}:6443", cluster.host(number).address);
        text.replace(&format!("@UP{number}@"), &address)
    });
    let file = cluster.path("haproxy.cfg");
    fs::write(&file, text).expect("the cluster's folder can be written");
    let file = file.to_string_lossy().into_owned();
    let flags = ["-db", "-f", &file].map(str::to_owned);
    cluster.start("haproxy", WORKER, Path::new("haproxy"), &flags);
    let ask = [format!("{HAPROXY}/version")];
    wait::until("haproxy answers", START_LIMIT, || cluster.curl(WORKER, &ask));
}

#[test]
#[ignore = "needs root and tests/kubernetes/build; ./tests/run kubernetes"]
fn a_gibibyte_is_the_same_and_costs_this_much() {
    let mut cluster = Cluster::new(Plan::default());
    start_haproxy(&mut cluster);
    let streams = Streams::start(&cluster);
    let expected = Streams::sum(GIBIBYTE);
    let ways: [(&str, &str, &[&str]); 3] = [
        ("meshport", LOCAL, &["worker", "cp-1"]),
        ("haproxy", HAPROXY, &["haproxy"]),
        ("nothing in between", DIRECT, &[]),
    ];
    for (name, server, processes) in ways {
        let used = |cluster: &mut Cluster| -> Duration {
            processes.iter().map(|it| cluster.process(it).processor_time()).sum()
        };
        let (before, begun) = (used(&mut cluster), wait::now());
        assert_eq!(streams.fetch(&cluster, WORKER, server, GIBIBYTE), expected, "{name}");
        let (took, used) = (begun.elapsed(), used(&mut cluster) - before);
        println!(
            "1 GiB through {name}: {:.1} s, {:.2} CPU-s/GiB",
            took.as_secs_f64(),
            used.as_secs_f64()
        );
    }
}

/// A way to the apiservers and its clients.
struct Way {
    name: &'static str,
    kubectl: Kubectl,
    watches: Vec<Watch>,
}

impl Way {
    /// What the objects that its calls make are named.
    fn objects(&self, fault: Fault) -> String {
        format!("{}-{fault:?}", self.name).to_lowercase()
    }

    /// The longest silence of any of its watches.
    fn silence(&self, from: Instant, until: Instant) -> Duration {
        let each = self.watches.iter().map(|watch| watch.arrivals().longest_gap(from, until));
        each.max().unwrap_or_default()
    }
}

#[test]
#[ignore = "needs root and tests/kubernetes/build; ./tests/run kubernetes"]
fn the_same_faults_through_haproxy_and_straight() {
    let mut cluster = Cluster::new(Plan::default());
    start_haproxy(&mut cluster);
    let _beat = Beat::start(&cluster, 3);
    for fault in [Fault::Kill, Fault::Hang, Fault::Vanish] {
        cluster.settles();
        let way = |name, server: &str, count: usize| {
            let kubectl = cluster.kubectl_to(WORKER, name, server);
            let watches = (0..count).map(|_| Watch::start(&kubectl)).collect();
            Way { name, kubectl, watches }
        };
        // haproxy takes its servers in turn: one of three watches is on the victim.
        let ways =
            [way("meshport", LOCAL, 1), way("haproxy", HAPROXY, 3), way("straight", DIRECT, 1)];
        let calls: Vec<Calls> =
            ways.iter().map(|way| Calls::start(&way.kubectl, &way.objects(fault))).collect();
        let begun = wait::now();
        fault.strike(&mut cluster, 1);
        wait::moment(begun + LOOK);
        let now = wait::now();
        let mut silences = Vec::new();
        for (way, calls) in ways.iter().zip(calls) {
            let calls = calls.finish();
            let failed = calls.iter().filter(|call: &&Call| !call.succeeded).count();
            let slowest = calls.iter().map(|call| call.took).max().unwrap_or_default();
            let silence = way.silence(begun, now);
            println!(
                "{:12} {:10} calls {:3}, failed {:3}, slowest {:5.2} s; silence of kubectl \
                 --watch {:.1} s",
                fault.name(),
                way.name,
                calls.len(),
                failed,
                slowest.as_secs_f64(),
                silence.as_secs_f64()
            );
            silences.push((failed, silence));
        }
        assert_eq!(silences[0].0, 0, "a call through meshport failed");
        assert!(silences[0].1 <= silences[1].1, "haproxy is better: {silences:?}");
        drop(ways);
        fault.heal(&mut cluster, 1, &[]);
    }
}
