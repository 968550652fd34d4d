//! Sessions that return: after a flap, and the clients' messages when their sessions are moved.

use std::time::Duration;

use meshport_tests::kubernetes::{
    Beat, Cluster, LOCAL, Plan, START_LIMIT, WORKER, Watch, Watchers, origin, rounds,
};
use meshport_tests::wait;

/// How long paths are cut.
const FLAP: Duration = Duration::from_secs(2);
/// How long the route may take to return after that: a dead path is probed once a second, a gain
/// must last another second, and the machine may be busy.
const MAX_HOME: Duration = Duration::from_secs(4);
/// Quiet time before a flap: an origin that flapped recently is used again only later.
const CALM: Duration = Duration::from_secs(61);
/// Watches of each client library.
const WATCHES: usize = 10;
/// How long sessions may take to move back, half of them every ten seconds.
const HOMECOMING: Duration = Duration::from_secs(120);

/// A flapping link, and how it is cut and restored.
struct Flap {
    what: &'static str,
    cut: fn(&Cluster, bool),
}

/// The worker's path to the nearest, and all of its paths.
const FLAPS: [Flap; 2] = [
    Flap {
        what: "the path to the nearest",
        cut: |cluster, cut| cluster.network.cut(WORKER, 1, cut),
    },
    Flap { what: "the worker", cut: |cluster, cut| cluster.network.isolate(WORKER, cut) },
];

#[test]
#[ignore = "needs root and tests/kubernetes/build; ./tests/run kubernetes"]
fn after_a_flap_the_nearest_is_used_again_at_once() {
    let mut cluster = Cluster::new(Plan::default());
    let kubectl = cluster.kubectl(WORKER);
    // Sessions, so that their path is watched.
    let _beat = Beat::start(&cluster, 3);
    let watch = Watch::start(&kubectl);
    for round in 1..=rounds() {
        for Flap { what, cut } in FLAPS {
            wait::moment(wait::now() + CALM);
            cluster.chooses(WORKER, &origin(1));
            let logged = cluster.process("worker").output().lines().count();
            let begun = wait::now();
            cut(&cluster, true);
            wait::moment(begun + FLAP);
            cut(&cluster, false);
            let healed = wait::now();
            // The route may not have moved at all.
            wait::moment(healed + Duration::from_millis(100));
            cluster.chooses(WORKER, &origin(1));
            let took = healed.elapsed();
            println!(
                "round {round}: {what} gone for {FLAP:?}: home after {:.2} s",
                took.as_secs_f64()
            );
            let output = cluster.process("worker").output();
            let changes = output.lines().skip(logged).filter(|it| it.contains("route changed"));
            changes.for_each(|line| println!("    {line}"));
            assert!(took <= MAX_HOME, "{what}: home after {took:?}");
            wait::until("the watch sees events again", START_LIMIT, || {
                (watch.arrivals().after(healed) > 2).then_some(())
            });
        }
    }
}

/// Counts the log lines about connections, without times and object names.
fn print_kinds(client: &str, lines: &[String]) {
    let mut kinds = std::collections::BTreeMap::<String, usize>::new();
    for line in lines {
        *kinds.entry(line.clone()).or_default() += 1;
    }
    println!("{client}: {} lines", lines.len());
    kinds.iter().for_each(|(line, count)| println!("    {count} x {line}"));
}

/// The message of a klog line without its time, and the kind of object.
fn message(line: &str) -> Option<String> {
    let (head, said) = line.split_once("] ")?;
    let of_connections = ["watch", "connection", "EOF", "reset"];
    let is_worse = head.starts_with('W') || head.starts_with('E');
    (is_worse || of_connections.iter().any(|it| said.contains(it))).then(|| said.to_owned())
}

#[test]
#[ignore = "needs root and tests/kubernetes/build; ./tests/run kubernetes"]
fn what_clients_say_when_their_sessions_go_home() {
    let settings = "drift-percent = 50\n".to_owned();
    let mut cluster = Cluster::new(Plan { settings, ..Plan::default() });
    let _beat = Beat::start(&cluster, 3);
    for round in 1..=rounds() {
        cluster.network.isolate(1, true);
        cluster.chooses(WORKER, &origin(2));
        let watch = Watch::start(&cluster.kubectl(WORKER));
        let python = Watchers::start(&cluster, WORKER, LOCAL, WATCHES);
        let javascript = Watchers::start_javascript(&cluster, WORKER, LOCAL, WATCHES);
        cluster.start_controllers("controllers", WORKER);
        let direct = cluster.kubectl_direct(3);
        let namespace = format!("home-{round}");
        direct.ok(&["create", "namespace", &namespace]);
        wait::until("the controllers work", START_LIMIT, || {
            let account = ["get", "serviceaccount", "default", "-n", &namespace];
            direct.run(&account).status.success().then_some(())
        });
        let logged = cluster.process("controllers").output().lines().count();
        let before = cluster.metrics(WORKER).ended();

        cluster.network.isolate(1, false);
        cluster.chooses(WORKER, &origin(1));
        let begun = wait::now();
        wait::until("all sessions are home", HOMECOMING, || {
            let status = cluster.status(WORKER)?;
            let origins = status["services"][0]["origins"].as_array()?;
            let away = origins.iter().filter(|it| it["name"] != "cp-1");
            (away.filter_map(|it| it["sessions"].as_u64()).sum::<u64>() == 0).then_some(())
        });
        let after = cluster.metrics(WORKER).ended();
        println!(
            "round {round}: home after {:.1} s; {} sessions moved, {} reset",
            begun.elapsed().as_secs_f64(),
            after[1] - before[1],
            after[0] - before[0]
        );
        let now = wait::now();
        let silence = |all: &Watchers| {
            all.arrivals().iter().map(|it| it.longest_gap(begun, now)).max().unwrap_or_default()
        };
        println!(
            "kubectl --watch ended {} times, silence {:.1} s",
            watch.ends().len(),
            watch.arrivals().longest_gap(begun, now).as_secs_f64()
        );
        for (client, watchers) in [("Python", &python), ("JavaScript", &javascript)] {
            let Some(watchers) = watchers else { continue };
            println!("{client}: silence {:.1} s", silence(watchers).as_secs_f64());
            let said = watchers.problems();
            // `watch 7: ` and the rest of the line.
            let said = said.iter().map(|it| match it.split_once(": ") {
                Some((watch, said)) if watch.starts_with("watch ") => said.to_owned(),
                _ => it.clone(),
            });
            print_kinds(client, &said.collect::<Vec<_>>());
        }
        let output = cluster.process("controllers").output();
        let said: Vec<String> = output.lines().skip(logged).filter_map(message).collect();
        print_kinds("client-go (controller manager)", &said);
        assert!(cluster.process("controllers").is_running(), "the controllers gave up");
        assert_eq!(after[0], before[0], "a session was reset on its way home");
        cluster.kill("controllers");
    }
}
