//! Memory after a burst of sessions: real daemons return the memory of the sessions.

use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::time::Duration;

use meshport_tests::echo;
use meshport_tests::process::raise_descriptors;
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};

/// Sessions that are open at once. Each takes four descriptors of this process and of a daemon.
const SESSIONS: usize = 3_000;
/// At most one part in this many of a burst's memory may remain. It is about 1 % with the release
/// build (ADR 022); what the C library keeps by itself is nearly all.
const KEPT: u64 = 8;
/// A burst of this many sessions adds at least so much, in KiB for each: less would show nothing.
const LEAST_KIB: u64 = 4;
/// How soon it is given back.
const GIVEN_BACK: Duration = Duration::from_secs(60);
const SETTLE: Duration = Duration::from_secs(40);
/// How long the sessions may take to open, one after the other.
const OPEN: Duration = Duration::from_secs(90);
const NODES: [&str; 2] = ["cp-a", "worker-b"];

fn memory_kib(world: &mut World) -> [u64; 2] {
    NODES.map(|name| world.node_mut(name).process().anonymous_kib())
}

#[test]
fn memory_is_given_back_within_a_minute() {
    raise_descriptors();
    let (service, served) = echo::serve();
    let mut world = World::new();
    let plan = NodePlan::new("cp-a", "a").role("origin:echo").settings(&echo::offer(service));
    world.node(&plan);
    world.node(&NodePlan::new("worker-b", "b").settings(&echo::usage()));
    world.meet();
    drop(echo::session(&world, "worker-b"));
    let local = world.at("worker-b").service(echo::SERVICE).expect("it has answered");

    let idle = memory_kib(&mut world);
    let begun = wait::now();
    let mut sessions = Vec::new();
    while sessions.len() < SESSIONS {
        let mut session = TcpStream::connect(local).expect("it listens");
        session.set_read_timeout(Some(SETTLE)).expect("a socket");
        assert!(echo::answers(&mut session), "session {} is not answered", sessions.len());
        sessions.push(session);
        assert!(begun.elapsed() < OPEN, "{} sessions in {OPEN:?}", sessions.len());
    }
    let opened = begun.elapsed();
    let most = memory_kib(&mut world);
    for (most, idle) in most.into_iter().zip(idle) {
        let least = LEAST_KIB * SESSIONS as u64;
        assert!(most >= idle + least, "{idle} KiB became {most}: too few to show anything");
    }
    drop(sessions);

    let begun = wait::now();
    let open = served.load(Ordering::SeqCst);
    let mut now = memory_kib(&mut world);
    let given_back = wait::within(GIVEN_BACK, || {
        now = memory_kib(&mut world);
        let is_back = |((now, most), idle)| now <= idle + (most - idle) / KEPT;
        now.into_iter().zip(most).zip(idle).all(is_back).then(|| begun.elapsed())
    });
    println!(
        "KiB of {NODES:?}: {idle:?} idle, {most:?} with {SESSIONS} sessions (in {opened:?}), \
         {now:?} after {given_back:?}; {open} were open when they ended"
    );
    assert!(given_back.is_some(), "{now:?} KiB are kept");
    drop(echo::session(&world, "worker-b"));
}
