//! A member of a stacked etcd stalls, for clients of three routes at once: through meshport,
//! through haproxy, and directly to the apiserver next to it. Once as follower, once as leader.

use std::thread;
use std::time::{Duration, Instant};

use meshport_tests::kubernetes::{
    Beat, Call, Cluster, Plan, START_LIMIT, Volley, WORKER, member, origin, rounds,
};
use meshport_tests::wait;

use crate::routes::{Route, restart_haproxy};

/// Length of the stall.
const STALL: Duration = Duration::from_secs(30);
/// How often the first member stalls in each round; every second time it is the leader.
const STALLS: [bool; 4] = [false, true, false, true];
/// Calls during the stall, with the share of writes: more calls would be a load in themselves.
/// Fewer go directly to the stalled member, since nearly all of those hang until they time out.
const CALLS: u32 = 75;
const CALLS_STRAIGHT: u32 = 15;
const WRITES: u32 = 10;
/// How many of the 300 calls of a round may fail.
const MAX_FAILED: usize = 5;
/// How long a watch may be silent.
const MAX_SILENCE: Duration = Duration::from_secs(4);
/// etcd's default.
const ELECTION: Duration = Duration::from_secs(1);
/// What holds a lease, and the lease's name.
const LEADERS: [(&str, &str); 2] =
    [("controllers", "kube-controller-manager"), ("scheduler", "kube-scheduler")];

/// The observed effect of a stall on the clients of one route.
#[derive(Clone, Debug)]
struct Noticed {
    calls: Vec<Call>,
    silence: Duration,
}

impl Noticed {
    fn failed(&self) -> usize {
        self.calls.iter().filter(|call| !call.succeeded).count()
    }

    fn print(&self, stalled: Instant, at: &str, who: &str, route: &str) {
        println!(
            "{at}: {who} stalls, {route:9} {:3} of {:3} calls failed, silence of kubectl \
             --watch {:4.1} s",
            self.failed(),
            self.calls.len(),
            self.silence.as_secs_f64()
        );
        if route != "meshport" {
            return;
        }
        for call in self.calls.iter().filter(|call| !call.succeeded) {
            let (began, took) = ((call.at - stalled).as_secs_f64(), call.took.as_secs_f64());
            println!("    began at {began:.2} s, took {took:.2} s: {}", call.said.trim());
        }
    }
}

/// Stalls the first member for a while, and returns the effect on the clients of each route.
fn stall(cluster: &mut Cluster, at: &str, leads: bool) -> [Noticed; 3] {
    cluster.settles();
    restart_haproxy(cluster);
    let routes = Route::all(cluster);
    let who = if leads { "the leader" } else { "a follower" };
    cluster.lead(if leads { 1 } else { 2 });
    cluster.process(&member(1)).signal("STOP");
    let stalled = wait::now();
    let calls = routes.each_ref().map(|route| {
        let count = if route.name == "straight" { CALLS_STRAIGHT } else { CALLS };
        let name = format!("{}-{at}", route.name);
        let kubectl = route.kubectl.clone();
        thread::spawn(move || Volley::fire(&kubectl, &name, count, STALL / count, WRITES).finish())
    });
    wait::moment(stalled + STALL);
    cluster.process(&member(1)).signal("CONT");
    let mut calls = calls.map(|calls| calls.join().expect("a volley does not panic")).into_iter();
    let noticed = routes.each_ref().map(|route| Noticed {
        calls: calls.next().expect("one for each route"),
        silence: route.silence(stalled, stalled + STALL),
    });
    for (noticed, route) in noticed.iter().zip(&routes) {
        noticed.print(stalled, at, who, route.name);
    }
    noticed
}

#[test]
#[ignore = "needs root and tests/kubernetes/build; ./tests/run kubernetes"]
fn a_stalled_member_costs_few_calls_whether_it_leads_or_not() {
    let plan = Plan { stacked: true, election: ELECTION, ..Plan::default() };
    let mut cluster = Cluster::new(plan);
    cluster.chooses(WORKER, &origin(1));
    let _beat = Beat::start(&cluster, 3);
    cluster.start_controllers("controllers", WORKER);
    cluster.start_scheduler("scheduler", WORKER);
    let direct = cluster.kubectl_direct(3);
    direct.ok(&["create", "namespace", "warm"]);
    wait::until("the controllers work", START_LIMIT, || {
        let account = ["get", "serviceaccount", "default", "-n", "warm"];
        direct.run(&account).status.success().then_some(())
    });
    wait::until("the scheduler has its lease", START_LIMIT, || {
        let lease = ["get", "lease", "kube-scheduler", "-n", "kube-system"];
        direct.run(&lease).status.success().then_some(())
    });
    let leases = LEADERS.map(|(_, lease)| direct.lease(lease));
    for round in 1..=rounds() {
        let mut all = Vec::new();
        for (at, leads) in STALLS.into_iter().enumerate() {
            let [meshport, ..] = stall(&mut cluster, &format!("round-{round}-{at}"), leads);
            all.push(meshport);
        }
        let calls: usize = all.iter().map(|it| it.calls.len()).sum();
        let failed: usize = all.iter().map(Noticed::failed).sum();
        let silence = all.iter().map(|it| it.silence).max().unwrap_or_default();
        println!("round {round}: {failed} of {calls} calls failed, silence at most {silence:.1?}");
        for ((who, lease), before) in LEADERS.iter().zip(&leases) {
            assert!(cluster.process(who).is_running(), "{who} gave up");
            assert_eq!(&direct.lease(lease), before, "the lease of {who} changed hands");
        }
        assert!(failed <= MAX_FAILED, "{failed} of {calls} calls failed");
        assert!(silence <= MAX_SILENCE, "the watch was silent for {silence:?}");
    }
}
