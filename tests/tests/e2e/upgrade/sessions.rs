//! Open sessions continue while the daemons that carry them are upgraded.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use meshport_tests::echo::{self, Flow, SERVICE, session};
use meshport_tests::process::{meshport, run_ok};
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};

use super::{SETTLE, link, script, succeeded, upgrade};

/// How long sessions are watched: longer than the drain time of 10 s, after which a restart would
/// have ended them.
const LASTS: Duration = Duration::from_secs(12);
/// How long sessions may take to end once there is a reason.
const ENDS: Duration = Duration::from_secs(5);
/// Sessions opened at each step.
const SESSIONS: usize = 5;

/// An origin 20 ms away, which can revoke the worker, and a worker whose program is a link that the
/// test can replace. Returns the number of sessions at the origin's instance too.
fn world() -> (World, PathBuf, Arc<AtomicUsize>) {
    let mut world = World::new();
    world.distance("a", "b", Duration::from_millis(20));
    let (address, open) = echo::serve();
    let origin = NodePlan::new("cp", "b").role(&format!("origin:{SERVICE}"));
    world.node(&origin.settings(&echo::offer(address)));
    let program = world.path("program");
    link(&program);
    world.node(&NodePlan::new("worker", "a").program(&program).settings(&echo::usage()));
    world.meet();
    (world, program, open)
}

fn flows(world: &World) -> Vec<Flow> {
    (0..SESSIONS).map(|_| Flow::start(session(world, "worker"))).collect()
}

/// Watches sessions for [`LASTS`]; none may end.
#[track_caller]
fn go_on(flows: &[Flow], when: &str) {
    let (until, mut next) = (wait::now() + LASTS, wait::now());
    while wait::now() < until {
        let broken = flows.iter().filter(|flow| !flow.goes_on()).count();
        assert_eq!(broken, 0, "of {} sessions have ended {when}", flows.len());
        wait::pace(&mut next, Duration::from_millis(100));
    }
}

#[test]
fn sessions_outlive_upgrades_of_both_ends_and_their_processes_end_with_them() {
    let (mut world, _, open) = world();
    let mut all = flows(&world);
    let first = succeeded(&upgrade(&world, "worker"));
    all.extend(flows(&world));
    go_on(&all, "after the upgrade of the worker");
    let second = succeeded(&upgrade(&world, "worker"));
    let origin = succeeded(&upgrade(&world, "cp"));
    all.extend(flows(&world));
    go_on(&all, "after a second one, and one of the origin");
    let status = world.at("worker").status().expect("it runs");
    let sessions = status["services"][0]["sessions_open"].as_u64();
    assert_eq!(sessions, Some(all.len() as u64), "{status}");
    assert!(world.node_mut("worker").process().is_running(), "it carries the first sessions");
    assert!(world.node_mut("cp").process().is_running(), "it serves them");
    assert!(first.is_running(), "it carries the second ones");

    for flow in all {
        assert!(flow.end() > 100, "it went on all the time");
    }
    for node in ["worker", "cp"] {
        let status = world.node_mut(node).process().ended(SETTLE);
        assert!(status.success(), "the previous daemon of {node}: {status}");
    }
    wait::until("the first successor ends", SETTLE, || (!first.is_running()).then_some(()));
    wait::until("no session is open", SETTLE, || (open.load(Ordering::SeqCst) == 0).then_some(()));
    assert!(second.is_running() && origin.is_running());
}

#[test]
fn sessions_outlive_a_successor_that_fails() {
    let (mut world, program, _) = world();
    let all = flows(&world);
    // It takes the sockets and ends.
    script(&program, "printf 'ready %s\\n' $$ >&0; head -c 1 >&2");
    assert_eq!(upgrade(&world, "worker").status.code(), Some(7));
    let said = wait::until("it says so", SETTLE, || {
        let output = world.node_mut("worker").process().output();
        output.contains("the upgrade failed").then_some(output)
    });
    go_on(&all, &format!("after an upgrade that failed: {said}"));
    fs::remove_file(&program).expect("it is there");
    link(&program);
    // All sessions of its second time have ended before it is succeeded; the first go on.
    for flow in flows(&world) {
        flow.end();
    }
    let _successor = succeeded(&upgrade(&world, "worker"));
    go_on(&all, "after one that did not");
    for flow in all {
        flow.end();
    }
    assert!(world.node_mut("worker").process().ended(SETTLE).success());
}

#[test]
fn a_revoked_node_and_a_killed_successor_end_the_sessions_of_the_process_before() {
    let (mut world, _, open) = world();
    let all = flows(&world);
    let _origin = succeeded(&upgrade(&world, "cp"));
    let state = world.at("cp").state().to_string_lossy().into_owned();
    run_ok(&meshport().to_string_lossy(), &["revoke", "worker", "--state-dir", &state]);
    wait::until("its sessions end", ENDS, || {
        let all_ended = all.iter().all(|flow| !flow.goes_on());
        (all_ended && open.load(Ordering::SeqCst) == 0).then_some(())
    });
    assert!(world.node_mut("cp").process().ended(SETTLE).success(), "it has no session left");

    let plan = NodePlan::new("other", "a").settings(&echo::usage());
    world.node(&plan);
    let other = Flow::start(session(&world, "other"));
    let successor = succeeded(&upgrade(&world, "other"));
    successor.signal("KILL");
    wait::until("its session ends", ENDS, || (!other.goes_on()).then_some(()));
    assert!(world.node_mut("other").process().ended(ENDS).success());
}

#[test]
fn peers_hear_at_once_of_a_draining_process_that_is_stopped() {
    let (mut world, _, open) = world();
    let all = flows(&world);
    let _idle = session(&world, "worker");
    let _next = succeeded(&upgrade(&world, "worker"));
    world.node_mut("worker").process().signal("TERM");
    wait::until("its sessions end", ENDS, || {
        let all_ended = all.iter().all(|flow| !flow.goes_on());
        all_ended.then_some(())
    });
    wait::until("at the origin too", ENDS, || (open.load(Ordering::SeqCst) == 0).then_some(()));
}
