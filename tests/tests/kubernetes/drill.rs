//! The drill of docs/drill.md, on real hosts of this machine: a control plane loses power, then a
//! whole site does, while `kubectl get --watch` continues. Prints the output that an operator would
//! check.

#![expect(clippy::print_stdout, reason = "the transcript is what it is for")]

use std::time::Duration;

use meshport_tests::kubernetes::{
    Beat, Calls, Cluster, Plan, SETTLE_LIMIT, START_LIMIT, WORKER, Watch, origin,
};
use meshport_tests::wait;

/// How long a watch may be silent.
const MAX_SILENCE: Duration = Duration::from_secs(4);
/// How long to observe after the power loss.
const LOOK: Duration = Duration::from_secs(10);
/// Length of the printed part of the watch.
const SHOWN: Duration = Duration::from_secs(3);

/// Prints the output of a meshport command on the worker.
fn show(cluster: &Cluster, verb: &str) {
    let output = cluster.meshport(WORKER, &[verb]).output().expect("meshport runs");
    assert!(output.status.success(), "meshport {verb}: {output:?}");
    println!("\nworker$ meshport {verb}\n{}", String::from_utf8_lossy(&output.stdout).trim_end());
}

/// Cuts the power of control-plane hosts: neither the apiserver nor the daemon signs off.
fn power_off(cluster: &mut Cluster, numbers: &[usize]) {
    for number in numbers {
        cluster.kill_apiserver(*number);
        cluster.kill(&origin(*number));
        println!("{}$ (power off)", origin(*number));
    }
}

fn power_on(cluster: &mut Cluster, numbers: &[usize]) {
    for number in numbers {
        cluster.spawn_apiserver(*number, &[]);
        cluster.start_node(*number);
        println!("{}$ (power on)", origin(*number));
    }
    numbers.iter().for_each(|number| cluster.apiserver_is_ready(*number));
    cluster.all_are_ready();
}

/// Cuts the power of these hosts while kubectl calls and watches run, and prints the effect.
fn play(cluster: &mut Cluster, title: &str, victims: &[usize], heir: &str) {
    println!("\n=== {title}");
    let kubectl = cluster.kubectl(WORKER);
    let watch = Watch::start(&kubectl);
    show(cluster, "status");
    let calls = Calls::begin(&kubectl, &format!("drill-{}", victims.len()));
    calls.pass(wait::now(), START_LIMIT);
    let logged = cluster.process("worker").output().lines().count();

    println!("\nworker$ kubectl get configmap beat --watch");
    let begun = wait::now();
    power_off(cluster, victims);
    calls.pass(begun + LOOK, START_LIMIT);
    let moments = watch.arrivals().moments(begun, SHOWN);
    let moments: Vec<String> =
        moments.iter().map(|moment| format!("+{:.2} s", moment.as_secs_f64())).collect();
    println!("events at {}", moments.join(", "));
    let silence = watch.arrivals().longest_gap(begun, begun + LOOK);
    println!("longest silence {:.2} s", silence.as_secs_f64());
    cluster.chooses(WORKER, heir);
    show(cluster, "status");
    show(cluster, "explain");
    println!("\nworker$ journalctl -u meshport");
    let output = cluster.process("worker").output();
    output.lines().skip(logged).for_each(|line| println!("{line}"));

    let calls = calls.finish();
    let failed = calls.iter().filter(|call| !call.succeeded).count();
    println!("\n{} kubectl calls meanwhile, {failed} failed", calls.len());
    assert_eq!(failed, 0, "a call failed");
    assert!(silence <= MAX_SILENCE, "the watch was silent for {silence:?}");
    drop(watch);

    println!("\n--- and back");
    power_on(cluster, victims);
    cluster.chooses(WORKER, "cp-1");
    show(cluster, "status");
}

#[test]
#[ignore = "needs root and tests/kubernetes/build; ./tests/run drill"]
fn the_drill() {
    let mut cluster = Cluster::new(Plan {
        sites: ["fra", "fra", "ams"].map(str::to_owned).to_vec(),
        distances: [1, 3, 12].map(Duration::from_millis).to_vec(),
        ..Plan::default()
    });
    let _beat = Beat::start(&cluster, 3);
    play(&mut cluster, "One control plane loses its power", &[1], "cp-2");
    play(&mut cluster, "A whole site loses the power of its control planes", &[1, 2], "cp-3");
    wait::until("both are members again", SETTLE_LIMIT, || {
        let status = cluster.status(WORKER)?;
        (status["members"]["alive"] == 4).then_some(())
    });
}
