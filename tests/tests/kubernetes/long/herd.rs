//! Bursts of dials next to thousands of open watches: slowing all origins, or this machine, changes
//! no route and ends no session.

use std::process::Stdio;
use std::time::Duration;

use meshport_tests::kubernetes::{
    Cluster, Holds, LOCAL, Plan, START_LIMIT, WORKER, origin, rounds,
};
use meshport_tests::wait;

/// The worker's round trips: so near each other that a herd's noise could move a route.
const DISTANCES_MS: [u64; 3] = [2, 10, 14];
/// Watches that are open throughout.
const WATCHES: usize = 2000;
/// TLS connections of a herd, and how many of them at once.
const DIALS: u32 = 2000;
const AT_ONCE: [u32; 3] = [100, 200, 300];
/// The least number of connections of a controller manager without HTTP/2: one for each kind.
const LEAST_HERD: usize = 40;
/// Wait before the effect of a burst is checked: a route may move within ten seconds.
const LOOK: Duration = Duration::from_secs(12);
/// The local port of meshport, as an `ss` filter.
const TO_MESHPORT: &str = "dport = :7445";

/// Values that must not change: the worker's route, and the number of sessions that the daemon
/// ended.
fn changes(cluster: &mut Cluster) -> (usize, f64) {
    let routes = cluster.process("worker").output().matches("route changed").count();
    let metrics = cluster.metrics(WORKER);
    let ended = metrics.sum("meshport_sessions_cut_total", "")
        + metrics.sum("meshport_sessions_moved_total", "");
    (routes, ended)
}

/// Prints the last changes of the route, with their reasons.
fn print_changes(cluster: &Cluster) {
    let output = cluster.meshport(WORKER, &["explain"]).output().expect("meshport runs");
    println!("{}", String::from_utf8_lossy(&output.stdout));
}

/// Dials from the worker, each on its own connection; returns how many were answered.
fn dial(cluster: &Cluster, at_once: u32) -> usize {
    let mut curl = cluster.host(WORKER).command("curl");
    curl.args(["-sk", "--noproxy", "*", "--http1.1", "-H", "Connection: close", "-Z"]);
    curl.args(["--parallel-immediate", "--parallel-max", &at_once.to_string()]);
    curl.args(["-o", "/dev/null", "-w", "%{http_code}\\n"]);
    curl.arg(format!("{LOCAL}/version?n=[1-{DIALS}]"));
    let said = curl.output().expect("curl can be run").stdout;
    String::from_utf8_lossy(&said).lines().filter(|it| *it == "200").count()
}

/// The local ports of a process's connections to meshport, as an `ss` filter.
fn connections(cluster: &mut Cluster, name: &str) -> Vec<String> {
    let id = format!("pid={},", cluster.process(name).id());
    let mut ss = cluster.host(WORKER).command("ss");
    let output = ss.args(["-Htnp", "state", "established", TO_MESHPORT]).output();
    let output = String::from_utf8_lossy(&output.expect("ss can be run").stdout).into_owned();
    let own = output.lines().filter(|line| line.contains(&id));
    let local = own.filter_map(|line| line.split_whitespace().nth(2));
    local.filter_map(|it| Some(format!("sport = :{}", it.rsplit_once(':')?.1))).collect()
}

/// Breaks all connections of the controllers at once; they reconnect as one herd.
fn break_controllers(cluster: &mut Cluster) -> usize {
    let all = connections(cluster, "controllers");
    let filter = format!("{TO_MESHPORT} and ( {} )", all.join(" or "));
    let mut ss = cluster.host(WORKER).command("ss");
    let status = ss.args(["-4", "-K", &filter]).stdout(Stdio::null()).status();
    assert!(status.expect("ss can be run").success(), "ss -K: is CONFIG_INET_DIAG_DESTROY set?");
    all.len()
}

#[test]
#[ignore = "needs root and tests/kubernetes/build; ./tests/run kubernetes"]
fn herds_beside_two_thousand_watches_move_nothing() {
    let distances = DISTANCES_MS.map(Duration::from_millis).to_vec();
    let mut cluster = Cluster::new(Plan { distances, ..Plan::default() });
    let holds = Holds::start(&cluster, WORKER, LOCAL, WATCHES);
    cluster.settles();
    let before = changes(&mut cluster);
    for round in 1..=rounds() {
        for at_once in AT_ONCE {
            let (begun, was) = (wait::now(), changes(&mut cluster));
            let answered = dial(&cluster, at_once);
            let took = begun.elapsed();
            wait::moment(begun + took + LOOK);
            let now = changes(&mut cluster);
            println!(
                "round {round}: {answered} of {DIALS} dials, {at_once} at once, answered in \
                 {:.1} s beside {WATCHES} watches: {} changes of the route, {} sessions ended",
                took.as_secs_f64(),
                now.0 - was.0,
                now.1 - was.1
            );
            assert_eq!(answered, DIALS as usize, "a dial failed");
        }
    }

    cluster.start_controllers_without_http2("controllers", WORKER);
    for round in 1..=rounds() {
        let many = wait::until("the controllers watch everything", START_LIMIT, || {
            let many = connections(&mut cluster, "controllers").len();
            (many >= LEAST_HERD).then_some(many)
        });
        let accepted =
            |cluster: &Cluster| cluster.metrics(WORKER).sum("meshport_sessions_accepted_total", "");
        let (was, dialled) = (changes(&mut cluster), accepted(&cluster));
        let broken = break_controllers(&mut cluster);
        let begun = wait::now();
        wait::until("the controllers watch everything again", START_LIMIT, || {
            (connections(&mut cluster, "controllers").len() >= many).then_some(())
        });
        let took = begun.elapsed();
        wait::moment(begun + took + LOOK);
        let now = changes(&mut cluster);
        println!(
            "round {round}: {broken} connections of a controller manager broken, {} dials, all \
             watched again after {:.1} s: {} changes of the route, {} sessions ended",
            accepted(&cluster) - dialled,
            took.as_secs_f64(),
            now.0 - was.0,
            now.1 - was.1
        );
    }
    let after = changes(&mut cluster);
    if after != before {
        print_changes(&cluster);
    }
    assert_eq!(after, before, "changes of the route, sessions ended");
    let held = holds.held();
    assert!(held.ended.is_empty(), "{} watches ended: {:?}", held.ended.len(), held.ended.first());
    holds.all_hear(&cluster);
    assert_eq!(cluster.chosen(WORKER), Some(origin(1)));
}
