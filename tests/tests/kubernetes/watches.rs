//! Many watches of one node that lose their apiserver together.

#![expect(clippy::print_stdout, reason = "figures for the reader of a test run")]

use std::time::Duration;

use meshport_tests::kubernetes::{
    Beat, Cluster, LOCAL, Plan, SETTLE_LIMIT, START_LIMIT, WORKER, Watchers,
};
use meshport_tests::wait;

/// Watches, each on its own connection.
const WATCHES: usize = 100;
/// Limit until all watches see events again.
const MAX_SILENCE: Duration = Duration::from_secs(5);
/// How far the number of watches on an origin may deviate from an even share.
const MAX_UNEVEN: f64 = 0.2;
/// Connections that a controller manager opens at once after its connection is cut.
const HERD: usize = 60;

/// The worker's open sessions on each origin, by name.
fn sessions(cluster: &Cluster) -> Vec<(String, u64)> {
    let status = cluster.status(WORKER).expect("the daemon answers");
    let origins = status["services"][0]["origins"].as_array().cloned().unwrap_or_default();
    let each = origins.iter().filter_map(|origin| {
        Some((origin["name"].as_str()?.to_owned(), origin["sessions"].as_u64()?))
    });
    each.collect()
}

/// A burst of requests like that of a controller manager whose connection was cut.
fn herd(cluster: &Cluster) -> String {
    let count = HERD.to_string();
    let url = format!("{LOCAL}/version?dial=[1-{HERD}]");
    let arguments = ["--http1.1", "--parallel", "--parallel-immediate", "--parallel-max", &count];
    let answer = ["-o", "/dev/null", "-w", "%{http_code}\n", &url, "--max-time", "20"];
    let all: Vec<String> =
        [&arguments[..], &answer].concat().into_iter().map(String::from).collect();
    cluster.curl(WORKER, &all).unwrap_or_default()
}

#[test]
#[ignore = "needs root and tests/kubernetes/build; ./tests/run kubernetes-smoke"]
fn a_hundred_watches_move_and_a_herd_is_absorbed() {
    let mut cluster = Cluster::new(Plan {
        distances: vec![Duration::from_millis(2); 3],
        // The origins are equally near, even on a busy machine, and nothing moves without a fault.
        settings: "band = \"100ms\"\ndrift-percent = 0\n".to_owned(),
        ..Plan::default()
    });
    let _beat = Beat::start(&cluster, 3);
    // All watches are on the first apiserver: the others have not started.
    for number in [2, 3] {
        cluster.process(&format!("cp-{number}")).signal("TERM");
        cluster.process(&format!("cp-{number}")).ended(SETTLE_LIMIT);
    }
    cluster.chooses(WORKER, "cp-1");
    let Some(watches) = Watchers::start(&cluster, WORKER, LOCAL, WATCHES) else { return };
    assert!(sessions(&cluster).iter().any(|(name, open)| name == "cp-1" && *open >= 100));
    cluster.start_node(2);
    cluster.start_node(3);
    cluster.all_are_ready();

    let begun = wait::now();
    cluster.kill_apiserver(1);
    wait::until("every watch sees events again", START_LIMIT, || {
        watches.arrivals().iter().all(|own| own.after(begun) > 2).then_some(())
    });
    let now = wait::now();
    let silence = watches.arrivals().iter().map(|own| own.longest_gap(begun, now)).max();
    let silence = silence.unwrap_or_default();
    let open = sessions(&cluster);
    println!(
        "{WATCHES} watches: longest silence {:.2} s; sessions {open:?}",
        silence.as_secs_f64()
    );
    assert!(silence <= MAX_SILENCE, "a watch saw nothing for {silence:?}");
    let even = WATCHES as f64 / 2.0;
    for (name, open) in open.iter().filter(|(name, _)| name != "cp-1") {
        let off = (*open as f64 - even).abs() / even;
        assert!(off <= MAX_UNEVEN, "{name} has {open} of {WATCHES} sessions");
    }

    // A burst from outside, and one from real controllers whose apiserver dies.
    let codes = herd(&cluster);
    assert_eq!(codes.lines().filter(|code| *code == "200").count(), HERD, "{codes}");
    drop(watches);
    cluster.start_apiserver(1, &[]);
    controllers_lose_their_apiserver(&mut cluster);
}

fn controllers_lose_their_apiserver(cluster: &mut Cluster) {
    cluster.start_controllers("controllers", WORKER);
    let direct = cluster.kubectl_direct(3);
    let filled = |name: &str| {
        direct.ok(&["create", "namespace", name]);
        wait::until("the controllers fill a new namespace", START_LIMIT, || {
            let account = ["-n", name, "get", "serviceaccount", "default"];
            direct.run(&account).status.success().then_some(())
        });
    };
    filled("before");
    let before = cluster.metrics(WORKER);
    let busy = sessions(cluster).into_iter().max_by_key(|(_, open)| *open);
    let (busy, _) = busy.expect("there are origins");
    // This test observes from the third host.
    let number = (1..3).find(|number| format!("cp-{number}") == busy);
    if let Some(number) = number {
        cluster.kill_apiserver(number);
    }
    filled("after");
    let after = cluster.metrics(WORKER);
    let grown = |name: &str, label: &str| after.sum(name, label) - before.sum(name, label);
    let dialled = grown("meshport_sessions_accepted_total", "");
    println!("the controllers on {busy} dialled {dialled} times");
    let refused = ["failed", "over-limit"].map(|outcome| grown("meshport_sessions_total", outcome));
    assert_eq!(refused, [0.0, 0.0], "a dial was refused");
    assert!(cluster.process("controllers").is_running(), "the controllers gave up");
    let status = cluster.status(WORKER).expect("the daemon answers");
    for origin in status["services"][0]["origins"].as_array().into_iter().flatten() {
        let dead = origin["name"] == *busy && number.is_some();
        assert!(dead || origin["usable"] == true, "counted against it: {origin}");
    }
}
