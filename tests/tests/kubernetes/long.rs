//! Tests that are too long for every run: the cluster's list of apiservers, distance, a gibibyte,
//! and the same faults through haproxy and without anything in between.

#![expect(clippy::print_stdout, reason = "figures for the reader of a test run")]

use std::path::PathBuf;
use std::time::Duration;

use meshport_tests::kubernetes::{
    Beat, Call, Calls, Cluster, Fault, LOCAL, Plan, START_LIMIT, Streams, WORKER, WORKER_NAME,
    median, rounds,
};
use meshport_tests::netns::Namespace;
use meshport_tests::process::Process;
use meshport_tests::wait;
use meshport_tests::wireguard::{End, INNER, tunnel, wireguard_go_at};

use crate::routes::{DIRECT, Route, haproxy, restart_haproxy, start_haproxy};

mod herd;
mod moves;
mod stall;

/// Two reads of the list and their delays.
const LIST_LIMIT: Duration = Duration::from_secs(120);
/// An emulated round trip between two cities.
const FAR: Duration = Duration::from_millis(35);
/// Calls of kubectl on each route.
const CALLS: usize = 25;
/// Bytes of a very long answer.
const GIBIBYTE: u64 = 1 << 30;
/// The address of the haproxy that goes through wireguard-go.
const OVER_WIREGUARD: &str = "127.0.0.1:8444";
/// MTU of the hosts' interfaces.
const MTU: u32 = 1500;
/// How long a comparison observes: client-go alone needs up to 45 s to notice a hang.
const LOOK: Duration = Duration::from_secs(60);

#[test]
#[ignore = "needs root and tests/kubernetes/build; ./tests/run kubernetes"]
fn an_apiserver_that_the_mesh_does_not_know_is_reported() {
    let mut cluster = Cluster::new(Plan {
        settings: "cluster-kubeconfig = \"@PKI@/lister.conf\"\n\n[events]\nkubernetes = true\n"
            .to_owned(),
        ..Plan::default()
    });
    let figure = |cluster: &Cluster, name: &str| cluster.metrics(WORKER).sum(name, "");
    wait::until("the list is read and agrees", LIST_LIMIT, || {
        let listed = figure(&cluster, "meshport_cluster_apiservers");
        let differs = figure(&cluster, "meshport_cluster_differs");
        (listed == 3.0 && differs == 0.0).then_some(())
    });
    let kubectl = cluster.kubectl(WORKER);
    let of_node = format!("involvedObject.kind=Node,involvedObject.name={WORKER_NAME}");
    let event = wait::until("the route is an Event of the Node", LIST_LIMIT, || {
        let listed = kubectl.call(&["get", "events", "--field-selector", &of_node]);
        let line = listed.said.lines().find(|line| line.contains("MeshRouteChanged"));
        line.map(str::to_owned)
    });
    println!("{event}");
    assert!(event.contains("kube-apiserver: "), "{event}");
    cluster.process("cp-3").signal("TERM");
    cluster.process("cp-3").ended(START_LIMIT);
    let begun = wait::now();
    let warning = wait::until("the status warns of the difference", LIST_LIMIT, || {
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
    let routes = [cluster.kubectl(WORKER), cluster.kubectl_to(WORKER, "straight", DIRECT)];
    // The first call makes kubectl's one-time requests.
    routes.iter().for_each(|route| assert!(route.call(&["get", "ns"]).succeeded));
    let mut took = [Vec::new(), Vec::new()];
    for _ in 0..CALLS {
        for (route, took) in routes.iter().zip(&mut took) {
            let call = route.call(&["get", "ns"]);
            assert!(call.succeeded, "{}", call.said);
            took.push(call.took);
        }
    }
    // The minimum of each: on a busy machine the start of kubectl varies by more than the compared
    // difference.
    let [through, straight] = took.map(|mut all| {
        all.sort();
        (all[0], all[CALLS / 2])
    });
    println!("kubectl get ns, {FAR:?} away, least and median: {through:?} through meshport");
    println!("and {straight:?} straight");
    assert!(through.0 <= straight.0, "meshport is slower");
}

/// wireguard-go between the worker and the nearest apiserver, and haproxy that goes through it.
fn start_wireguard(cluster: &mut Cluster) {
    let [worker, origin] = [cluster.host(WORKER), cluster.host(1)];
    let addresses = [worker, origin].map(|host| host.address.to_string());
    let ends = [
        End { host: worker.namespace(), address: &addresses[0], name: "wg-worker" },
        End { host: origin.namespace(), address: &addresses[1], name: "xg-origin" },
    ];
    // The newest available version, or else this system's own.
    let program = std::env::var_os("MESHPORT_BENCH_WIREGUARD_GO");
    let program = program.map_or_else(|| PathBuf::from("wireguard-go"), PathBuf::from);
    let command = |host: &Namespace, interface: &str| wireguard_go_at(&program, host, interface);
    let mut started = Vec::new();
    tunnel(ends, MTU, &cluster.path(""), command, |name, command| {
        let log = cluster.path(&format!("{name}.log"));
        started.push((name.to_owned(), Process::start(name, command, &log)));
    });
    for (name, process) in started {
        cluster.keep(&name, process);
    }
    start_haproxy(cluster, "haproxy-wg", OVER_WIREGUARD, [INNER[1]; 3]);
}

#[test]
#[ignore = "needs root and tests/kubernetes/build; ./tests/run kubernetes"]
fn a_gibibyte_is_the_same_and_costs_this_much() {
    let mut cluster = Cluster::new(Plan::default());
    restart_haproxy(&mut cluster);
    start_wireguard(&mut cluster);
    let streams = Streams::start(&cluster);
    let expected = Streams::sum(GIBIBYTE);
    let routes: [(&str, String, &[&str]); 4] = [
        ("meshport", LOCAL.to_owned(), &["worker", "cp-1"]),
        (
            "wireguard-go and haproxy",
            format!("https://{OVER_WIREGUARD}"),
            &["wg-worker", "xg-origin", "haproxy-wg"],
        ),
        ("haproxy", haproxy(), &["haproxy"]),
        ("nothing in between", DIRECT.to_owned(), &[]),
    ];
    let mut all: [Vec<(Duration, Duration)>; 4] = Default::default();
    for round in 1..=rounds() {
        for ((name, server, processes), all) in routes.iter().zip(&mut all) {
            let used = |cluster: &mut Cluster| -> Duration {
                processes.iter().map(|it| cluster.process(it).processor_time()).sum()
            };
            let (before, begun) = (used(&mut cluster), wait::now());
            let sum = streams.fetch(&cluster, WORKER, server, GIBIBYTE);
            assert_eq!(sum, expected, "round {round}, {name}");
            let (took, used) = (begun.elapsed(), used(&mut cluster) - before);
            println!("round {round}, 1 GiB through {name}: {took:.1?}, {used:.2?} of processors");
            all.push((took, used));
        }
    }
    for ((name, ..), all) in routes.iter().zip(all) {
        let (took, used) = all.into_iter().unzip();
        let (took, used) = (median(took), median(used).as_secs_f64());
        println!("median: 1 GiB through {name}: {took:.1?}, {used:.2} CPU-s/GiB");
    }
}

/// The observed effect of a fault on the clients of one route.
#[derive(Clone, Copy)]
struct Noticed {
    failed: usize,
    calls: usize,
    slowest: Duration,
    silence: Duration,
}

/// A fault of the first apiserver, for the clients of all routes at once.
fn compare(cluster: &mut Cluster, fault: Fault, round: usize) -> [Noticed; 3] {
    cluster.settles();
    restart_haproxy(cluster);
    let routes = Route::all(cluster);
    let calls = routes.each_ref().map(|route| {
        // Prefix of the objects that its calls create.
        let objects = format!("{}-{fault:?}-{round}", route.name).to_lowercase();
        Calls::begin(&route.kubectl, &objects)
    });
    let begun = wait::now();
    fault.strike(cluster, 1);
    wait::moment(begun + LOOK);
    let now = wait::now();
    let mut each = routes.iter().zip(calls).map(|(route, calls)| {
        let calls = calls.finish();
        let noticed = Noticed {
            failed: calls.iter().filter(|call: &&Call| !call.succeeded).count(),
            calls: calls.len(),
            slowest: calls.iter().map(|call| call.took).max().unwrap_or_default(),
            silence: route.silence(begun, now),
        };
        noticed.print(&format!("round {round}"), fault, route.name);
        noticed
    });
    let noticed = [(); 3].map(|()| each.next().expect("three routes"));
    drop(each);
    drop(routes);
    fault.heal(cluster, 1, &[]);
    noticed
}

impl Noticed {
    fn print(&self, which: &str, fault: Fault, route: &str) {
        println!(
            "{which}: {:12} {route:10} calls {:3}, failed {:3}, slowest {:5.2} s; silence of \
             kubectl --watch {:.1} s",
            fault.name(),
            self.calls,
            self.failed,
            self.slowest.as_secs_f64(),
            self.silence.as_secs_f64()
        );
    }

    /// The median of each figure.
    fn median(all: &[Self]) -> Self {
        let count = |of: fn(&Self) -> usize| median(all.iter().map(of).collect());
        let time = |of: fn(&Self) -> Duration| median(all.iter().map(of).collect());
        Self {
            failed: count(|it| it.failed),
            calls: count(|it| it.calls),
            slowest: time(|it| it.slowest),
            silence: time(|it| it.silence),
        }
    }
}

#[test]
#[ignore = "needs root and tests/kubernetes/build; ./tests/run kubernetes"]
fn the_same_faults_through_haproxy_and_straight() {
    let mut cluster = Cluster::new(Plan::default());
    let _beat = Beat::start(&cluster, 3);
    let mut worse = Vec::new();
    for fault in [Fault::Kill, Fault::Hang, Fault::Vanish] {
        let all: Vec<[Noticed; 3]> =
            (1..=rounds()).map(|round| compare(&mut cluster, fault, round)).collect();
        let [meshport, haproxy, straight] =
            [0, 1, 2].map(|route| all.iter().map(|round| round[route]).collect::<Vec<_>>());
        let failed = meshport.iter().map(|it| it.failed).sum::<usize>();
        assert_eq!(failed, 0, "a call through meshport failed");
        let middle = [&meshport, &haproxy, &straight].map(|all| Noticed::median(all));
        for (noticed, route) in middle.iter().zip(["meshport", "haproxy", "straight"]) {
            noticed.print("median", fault, route);
        }
        // A watch that is cut at once is restarted at kubectl's own pace.
        if middle[0].silence > middle[1].silence + Duration::from_millis(500) {
            worse.push(fault.name());
        }
    }
    assert!(worse.is_empty(), "haproxy is better at {worse:?}");
}
