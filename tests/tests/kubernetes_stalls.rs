//! What is no reason to cut anything: a stalled etcd, and apiservers that are all gone for a
//! moment.

use std::time::Duration;

use meshport_tests::kubernetes::{Beat, Cluster, Plan, START_LIMIT, WORKER, Watch};
use meshport_tests::wait;

/// How long etcd stands still.
const STALL: Duration = Duration::from_secs(20);
/// How long all apiservers refuse.
const GAP: Duration = Duration::from_secs(3);
/// Into the gap before somebody calls: a connection is held for as long as the gap takes, and on a
/// busy machine the gap's end is late.
const CALL: Duration = Duration::from_millis(500);
/// How long a daemon that has just started follows whatever is best, in seconds.
const NEWCOMER_S: u64 = 6;
/// A list that apiservers answer from their caches.
const CACHED: &str = "/api/v1/namespaces/default/configmaps?resourceVersion=0";

/// Makes every apiserver refuse new connections, as if it were gone, or be there again: all at the
/// same moment, as well as that goes.
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
