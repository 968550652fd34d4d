//! The figures the README reports: size, memory and processor time of an idle node, time to the
//! first proxied byte. Prints them, and fails far beyond the aims, where something must be wrong.

use std::fs;
use std::time::Duration;

use meshport_tests::process::meshport;
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};

/// How long an idle node is watched.
const IDLE: Duration = Duration::from_secs(30);
/// How long a mesh gets to become idle: probes at their idle pace, caches warm.
const CALM: Duration = Duration::from_secs(10);
const SETTLE: Duration = Duration::from_secs(40);

/// Beyond these something is wrong; the aims are 10 MiB, 12 MiB, 0.5 % and 300 ms.
const MAX_BINARY_BYTES: u64 = 10 << 20;
const MAX_RESIDENT_KIB: u64 = 24 << 10;
const MAX_CORE_PERCENT: f64 = 2.0;
const MAX_FIRST_BYTE: Duration = Duration::from_secs(2);

#[test]
#[ignore = "a measurement of over 40 s that wants a quiet machine: ./tests/run figures"]
fn size_memory_processor_and_first_byte() {
    let binary_bytes = fs::metadata(meshport()).expect("the binary is there").len();
    println!("binary, stripped: {binary_bytes} bytes");

    let mut world = World::new();
    for name in ["cp-a", "cp-b"] {
        let address = world.apiserver(name);
        world.node(&NodePlan::new(name, &name[3..]).origin(address));
    }
    world.node(&NodePlan::new("worker-a", "a"));
    world.meet();
    world.chooses("worker-a", "cp-a", SETTLE);

    wait::throughout("the worker runs", CALM, || world.node_mut("worker-a").process().is_running());
    let process = world.node_mut("worker-a").process();
    let before = process.processor_time();
    let begun = wait::now();
    wait::throughout("the worker runs", IDLE, || process.is_running());
    let used = process.processor_time().saturating_sub(before);
    let percent = 100.0 * used.as_secs_f64() / begun.elapsed().as_secs_f64();
    let resident_kib = process.resident_kib();
    println!("idle node of three: {resident_kib} KiB resident, {percent:.2} % of a core");

    let mut first_bytes = [0; 5].map(|_| time_to_first_byte(&mut world));
    first_bytes.sort_unstable();
    let first_byte = first_bytes[first_bytes.len() / 2];
    println!("start to first proxied answer, warm directory: {first_byte:?} (median of 5)");

    assert!(binary_bytes <= MAX_BINARY_BYTES);
    assert!(resident_kib <= MAX_RESIDENT_KIB);
    assert!(percent <= MAX_CORE_PERCENT);
    assert!(first_byte <= MAX_FIRST_BYTE);
}

/// From the start of a stopped node, which knows the mesh from before, to an answer through it.
fn time_to_first_byte(world: &mut World) -> Duration {
    world.node_mut("worker-a").process().signal("TERM");
    world.node_mut("worker-a").process().ended(SETTLE);
    let (curl, local) = (world.curl(), world.at("worker-a").local);
    let begun = wait::now();
    world.spawn("worker-a");
    wait::until("an answer comes", SETTLE, || curl.get(local, "/version").ok());
    begun.elapsed()
}
