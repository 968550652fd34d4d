//! Bursts of dials next to thousands of open watches: slowing all origins, or this machine, changes
//! no route and cuts no session.

use std::fmt;
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
/// Fewer watches than a controller manager has, whose number depends on its version.
const LEAST_HERD: u64 = 40;
/// A controller manager has started when the number of watches stays the same for this long.
const STEADY: Duration = Duration::from_secs(10);
/// Wait before the effect of a burst is checked: a route may move within ten seconds.
const LOOK: Duration = Duration::from_secs(12);
/// The local port of meshport, as an `ss` filter.
const TO_MESHPORT: &str = "dport = :7445";

/// What a herd may have changed: the worker's route, and the sessions that its daemon ended.
struct Seen {
    routes: usize,
    cut: f64,
    moved: f64,
}

impl Seen {
    fn now(cluster: &mut Cluster) -> Self {
        let routes = cluster.process("worker").output().matches("route changed").count();
        let [cut, moved] = cluster.metrics(WORKER).ended();
        Self { routes, cut, moved }
    }

    fn since(&self, before: &Self) -> Self {
        let routes = self.routes - before.routes;
        Self { routes, cut: self.cut - before.cut, moved: self.moved - before.moved }
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { routes, cut, moved } = self;
        write!(f, "{routes} changes of the route, {cut} sessions cut, {moved} moved")
    }
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

/// The number of watches that the apiservers serve, above `least`, once it stays the same.
fn standing(cluster: &Cluster, least: u64) -> u64 {
    let (mut last, mut since) = (0, wait::now());
    let steady = wait::within(START_LIMIT, || {
        let watches = cluster.watches()?;
        if watches != last {
            (last, since) = (watches, wait::now());
        }
        (watches > least && since.elapsed() >= STEADY).then_some(watches)
    });
    steady.unwrap_or_else(|| panic!("the last count of watches is {last}, above {least} expected"))
}

fn dials_at_once(cluster: &mut Cluster, round: usize, at_once: u32) {
    let (begun, was) = (wait::now(), Seen::now(cluster));
    let answered = dial(cluster, at_once);
    let took = begun.elapsed();
    wait::moment(begun + took + LOOK);
    println!(
        "round {round}: {answered} of {DIALS} dials, {at_once} at once, answered in {:.1} s beside \
         {WATCHES} watches: {}",
        took.as_secs_f64(),
        Seen::now(cluster).since(&was)
    );
    assert_eq!(answered, DIALS as usize, "a dial failed");
}

/// `others` is the number of watches without those of the controllers.
fn controllers_come_back(cluster: &mut Cluster, round: usize, others: u64) {
    let accepted =
        |cluster: &Cluster| cluster.metrics(WORKER).sum("meshport_sessions_accepted_total", "");
    let many = standing(cluster, others + LEAST_HERD);
    let (was, dialled) = (Seen::now(cluster), accepted(cluster));
    let broken = break_controllers(cluster);
    let begun = wait::now();
    // Each watch needs a dial of its own. Until then, apiservers may still count the broken ones.
    let needed = f64::from(u32::try_from(many - others).expect("few watches"));
    let again = wait::within(START_LIMIT, || {
        let all = accepted(cluster) - dialled >= needed && cluster.watches()? >= many;
        all.then(|| begun.elapsed())
    });
    let dials = accepted(cluster) - dialled;
    let Some(took) = again else {
        let runs = cluster.process("controllers").is_running();
        panic!(
            "after {START_LIMIT:?} and {dials} dials there are {:?} watches, and were {many}, \
             {others} of them by others; the controllers run: {runs}",
            cluster.watches()
        );
    };
    wait::moment(begun + took + LOOK);
    println!(
        "round {round}: {broken} connections of a controller manager broken, {dials} dials, all \
         {needed} watches stand again after {:.1} s: {}",
        took.as_secs_f64(),
        Seen::now(cluster).since(&was)
    );
}

#[test]
#[ignore = "needs root and tests/kubernetes/build; ./tests/run kubernetes"]
fn herds_beside_two_thousand_watches_move_nothing() {
    let distances = DISTANCES_MS.map(Duration::from_millis).to_vec();
    let mut cluster = Cluster::new(Plan { distances, ..Plan::default() });
    let holds = Holds::start(&cluster, WORKER, LOCAL, WATCHES);
    cluster.settles();
    let before = Seen::now(&mut cluster);
    for round in 1..=rounds() {
        for at_once in AT_ONCE {
            dials_at_once(&mut cluster, round, at_once);
        }
    }

    let others = standing(&cluster, WATCHES as u64);
    cluster.start_controllers_without_http2("controllers", WORKER);
    for round in 1..=rounds() {
        controllers_come_back(&mut cluster, round, others);
    }
    let herds = Seen::now(&mut cluster).since(&before);
    if herds.routes != 0 {
        print_changes(&cluster);
    }
    assert!(herds.routes == 0 && herds.cut == 0.0 && herds.moved == 0.0, "{herds}");
    let held = holds.held();
    assert!(held.ended.is_empty(), "{} watches ended: {:?}", held.ended.len(), held.ended.first());
    holds.all_hear(&cluster);
    assert_eq!(cluster.chosen(WORKER), Some(origin(1)));
}
