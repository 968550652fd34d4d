//! Stalls of etcd. When all apiservers depend on the same etcd, nothing is cut; when each has its
//! own member, clients leave the apiserver next to the stalled member. Also: all apiservers are
//! down for a moment.

#![expect(clippy::print_stdout, reason = "figures for the reader of a test run")]

use std::time::Duration;

use meshport_tests::kubernetes::{
    Beat, Call, Cluster, Kubectl, Plan, START_LIMIT, Volley, WORKER, Watch, member, origin,
};
use meshport_tests::series::Series;
use meshport_tests::wait;

/// Length of the stall of etcd.
const STALL: Duration = Duration::from_secs(20);
/// How long all apiservers refuse.
const GAP: Duration = Duration::from_secs(3);
/// Time from the start of the gap to the call: a connection is held for the whole gap, and on a
/// busy machine the gap ends late.
const CALL: Duration = Duration::from_millis(500);
/// How long after its start a daemon always uses the best origin, in seconds.
const NEWCOMER_S: u64 = 6;
/// A list that apiservers answer from their caches.
const CACHED: &str = "/api/v1/namespaces/default/configmaps?resourceVersion=0";

/// Length of the stall of a member of a stacked etcd, and the calls during it.
const MEMBER_STALL: Duration = Duration::from_secs(30);
const CALLS: u32 = 150;
/// One call in this many writes: a hanging write is lost when it is cut, a read is retried.
const WRITES: u32 = 10;
/// How many of [`CALLS`] may fail: the writes that began before the stall could be known, and one
/// more beside other suites. `long::stall` holds the bar of 5 of 300.
const MAX_FAILED: usize = 3;
/// How long a watch may be silent. Detection takes 2.5 s, cutting up to 0.5 s, and restarting
/// kubectl the rest. Without a cut the watch is silent for the whole stall.
const MAX_SILENCE: Duration = Duration::from_secs(4);
/// Interval between starts of a program that needs no cluster: the slowest of them, compared with
/// the quickest, is how late this machine was.
const IDLE: Duration = Duration::from_secs(1);
/// What a late machine adds to [`MAX_SILENCE`] at most: the watch needs two starts, kubectl's and
/// that of its session, and more would hide a second look of the detection.
const MAX_LATE: Duration = Duration::from_secs(2);
const STARTS: u32 = 2;

/// TLS connections of a herd, and how many of them at once.
const DIALS: u32 = 2000;
const AT_ONCE: u32 = 200;

/// Makes every apiserver refuse new connections, as if it were down, or accept them again: all at
/// the same moment, as far as possible.
fn refuse(cluster: &Cluster, on: bool) {
    let rules = if on {
        "add table ip gone; \
         add chain ip gone input { type filter hook input priority 0 ; }; \
         add rule ip gone input tcp dport 6443 reject with tcp reset"
    } else {
        "delete table ip gone"
    };
    let start = |number| cluster.host(number).command("nft").arg(rules).spawn();
    let all: Vec<_> = (1..=cluster.origins()).map(start).collect();
    for started in all {
        let done = started.and_then(|mut started| started.wait());
        assert!(done.expect("nft can be run").success(), "nft {rules}");
    }
}

#[test]
#[ignore = "needs root and tests/kubernetes/build; ./tests/run kubernetes-smoke"]
fn a_stalled_etcd_cuts_nothing_and_a_gap_of_three_seconds_costs_nothing() {
    let mut cluster = Cluster::new(Plan::default());
    let kubectl = cluster.kubectl(WORKER);
    let _beat = Beat::start(&cluster, 3);
    let watch = Watch::start(&kubectl);
    kubectl.ok(&["get", "--raw", CACHED]);
    wait::until("the worker is no newcomer any more", START_LIMIT, || {
        (cluster.status(WORKER)?["uptime_s"].as_u64()? > NEWCOMER_S).then_some(())
    });
    let routes =
        |cluster: &mut Cluster| cluster.process("worker").output().matches("route changed").count();
    let (before, cuts) = (routes(&mut cluster), cluster.metrics(WORKER));

    cluster.process("etcd").signal("STOP");
    let stalled = wait::now();
    let mut served = 0;
    wait::until("the stall is over", STALL * 2, || {
        let list = kubectl.call(&["get", "--raw", CACHED, "--request-timeout=5s"]);
        assert!(list.succeeded, "after {:?}: {}", stalled.elapsed(), list.said);
        served += 1;
        (stalled.elapsed() >= STALL).then_some(())
    });
    println!("{served} cached lists were served while etcd stood still for {STALL:?}");
    cluster.process("etcd").signal("CONT");
    let continued = wait::now();
    wait::until("the watch sees events again", START_LIMIT, || {
        (watch.arrivals().after(continued) > 2).then_some(())
    });
    println!("events again {:.2} s after etcd", continued.elapsed().as_secs_f64());
    assert!(watch.ends().is_empty(), "kubectl's watch ended");
    assert_eq!(routes(&mut cluster), before, "a route changed");
    let cut = "meshport_sessions_cut_total";
    assert_eq!(cluster.metrics(WORKER).sum(cut, ""), cuts.sum(cut, ""), "a session was cut");

    cluster.all_are_ready();
    drop(watch);
    let gone = wait::now();
    refuse(&cluster, true);
    wait::moment(gone + CALL);
    let (get, create) = (kubectl.clone(), kubectl.clone());
    let calls = [
        std::thread::spawn(move || get.call(&["get", "ns"])),
        std::thread::spawn(move || create.call(&["create", "configmap", "in-the-gap"])),
    ];
    wait::moment(gone + GAP);
    refuse(&cluster, false);
    for call in calls {
        let call = call.join().expect("a call does not panic");
        println!("a call in the gap took {:.2} s", call.took.as_secs_f64());
        assert!(call.succeeded, "{}", call.said);
        assert!(call.took >= GAP - (call.at - gone), "the gap was none: {:?}", call.took);
    }
}

/// Dials from the worker, each on its own connection, that keep the machine busy. This slows every
/// origin, which is no reason to leave one.
fn a_herd_moves_nothing(cluster: &mut Cluster) -> bool {
    let routes =
        |cluster: &mut Cluster| cluster.process("worker").output().matches("route changed").count();
    let before = (routes(cluster), cluster.metrics(WORKER).ended());
    let begun = wait::now();
    let mut curl = cluster.host(WORKER).command("curl");
    curl.args(["-sk", "--noproxy", "*", "--http1.1", "-H", "Connection: close", "-Z"]);
    curl.args(["--parallel-immediate", "--parallel-max", &AT_ONCE.to_string()]);
    curl.args(["-o", "/dev/null", "-w", "%{http_code}\\n"]);
    curl.arg(format!("https://127.0.0.1:7445/version?n=[1-{DIALS}]"));
    let said = curl.output().expect("curl can be run").stdout;
    let answered = String::from_utf8_lossy(&said).lines().filter(|it| *it == "200").count();
    let after = (routes(cluster), cluster.metrics(WORKER).ended());
    println!(
        "{answered} of {DIALS} dials, {AT_ONCE} at once, were answered in {:.1} s; {} changes of \
         the route, {} sessions cut, {} moved",
        begun.elapsed().as_secs_f64(),
        after.0 - before.0,
        after.1[0] - before.1[0],
        after.1[1] - before.1[1]
    );
    after == before && answered == DIALS as usize
}

/// Waits for them: a controller manager that is still starting gives up at any error.
fn controllers_work(kubectl: &Kubectl) {
    kubectl.ok(&["create", "namespace", "warm"]);
    wait::until("the controllers work", START_LIMIT, || {
        let account = kubectl.run(&["get", "serviceaccount", "default", "-n", "warm"]);
        account.status.success().then_some(())
    });
}

/// How much longer the slowest start of a program took than the quickest.
fn lateness(starts: &[Duration]) -> Duration {
    let slowest = starts.iter().max().copied().unwrap_or_default();
    slowest - starts.iter().min().copied().unwrap_or_default()
}

#[test]
#[ignore = "needs root and tests/kubernetes/build; ./tests/run kubernetes-smoke"]
fn an_apiserver_whose_etcd_member_stalls_is_left() {
    let mut cluster = Cluster::new(Plan { stacked: true, ..Plan::default() });
    wait::until("the worker is no newcomer any more", START_LIMIT, || {
        (cluster.status(WORKER)?["uptime_s"].as_u64()? > NEWCOMER_S).then_some(())
    });
    cluster.chooses(WORKER, &origin(1));
    cluster.start_controllers("controllers", WORKER);
    let kubectl = cluster.kubectl(WORKER);
    let _beat = Beat::start(&cluster, 3);
    let watch = Watch::start(&kubectl);
    kubectl.ok(&["get", "ns"]);
    controllers_work(&kubectl);
    cluster.chooses(WORKER, &origin(1));
    let herd_is_calm = a_herd_moves_nothing(&mut cluster);

    // Where the leader stalls, all apiservers stall until another one is elected.
    cluster.lead(2);
    cluster.settles();
    let idle = kubectl.clone();
    let idle = Series::start(IDLE, move |_| idle.call(&["version", "--client"]).took);
    cluster.process(&member(1)).signal("STOP");
    let stalled = wait::now();
    let calls = Volley::fire(&kubectl, "stalled", CALLS, MEMBER_STALL / CALLS, WRITES).finish();
    wait::moment(stalled + MEMBER_STALL);
    cluster.process(&member(1)).signal("CONT");
    let failed: Vec<&Call> = calls.iter().filter(|call| !call.succeeded).collect();
    let silence = watch.arrivals().longest_gap(stalled, stalled + MEMBER_STALL);
    let late = lateness(&idle.finish());
    println!(
        "{} of {CALLS} calls failed, the watch was silent for {:.2} s, kubectl ended {} times; the \
         machine was {:.2} s late",
        failed.len(),
        silence.as_secs_f64(),
        watch.ends().len(),
        late.as_secs_f64()
    );
    for call in &failed {
        let (began, took) = ((call.at - stalled).as_secs_f64(), call.took.as_secs_f64());
        println!("failed: began at {began:.2} s, took {took:.2} s: {}", call.said.trim());
    }
    let lost = cluster.process("controllers").output().matches("lost lease").count();
    let leads = cluster.process("controllers").is_running() && lost == 0;
    println!("the controllers kept their lease: {leads}");
    let said = cluster.process("controllers").output();
    // The reason if it gave up.
    said.lines().filter(|line| line.starts_with('F')).for_each(|line| println!("{line}"));
    assert!(herd_is_calm, "a herd is no evidence");
    let allowed = MAX_SILENCE + (late * STARTS).min(MAX_LATE);
    assert!(silence <= allowed, "silent for {silence:?}, {allowed:?} allowed");
    assert!(failed.len() <= MAX_FAILED && leads);
    cluster.settles();
}
