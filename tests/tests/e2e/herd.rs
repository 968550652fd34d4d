//! A herd of clients that dial at once, as the informers of many controllers do when they come
//! back: it slows the origin it goes to, and is no reason to leave it.

use std::time::Duration;

use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};

const SETTLE: Duration = Duration::from_secs(40);
/// How long a daemon that has just started always uses the best origin, in seconds.
const NEWCOMER_S: u64 = 6;
/// How often the herd comes, and how many dial at once then.
const WAVES: usize = 6;
const AT_ONCE: usize = 250;
/// Where the machine is busy, a race gives a dial to the farther origin now and then. If it is
/// quiet when sessions return to the nearest one, every 10 s, it ends cleanly: two of 1,500 beside
/// twelve busy loops.
const MOST_MOVED: f64 = 8.0;

#[test]
fn a_herd_of_dials_changes_no_route_and_ends_no_session() {
    let mut world = World::new();
    world.distance("a", "b", Duration::from_millis(2));
    world.distance("a", "c", Duration::from_millis(20));
    for (name, site) in [("cp-b", "b"), ("cp-c", "c")] {
        world.origin(name, site);
    }
    world.node(&NodePlan::new("worker", "a"));
    world.meet();
    world.chooses("worker", "cp-b", SETTLE);
    wait::until("the worker is no newcomer any more", SETTLE, || {
        (world.at("worker").status()?["uptime_s"].as_u64()? > NEWCOMER_S).then_some(())
    });
    world.chooses("worker", "cp-b", SETTLE);
    let seen = |world: &mut World| {
        let metrics = world.at("worker").metrics();
        let ended =
            ["cut", "moved"].map(|how| metrics.sum(&format!("meshport_sessions_{how}_total"), ""));
        let log = world.node_mut("worker").process().output();
        (log.matches("route changed").count(), ended)
    };
    let before = seen(&mut world);
    let begun = wait::now();
    let local = world.at("worker").local;
    for _ in 0..WAVES {
        let answered = world.curl().patient(SETTLE).get_at_once(local, "/version", AT_ONCE);
        let answered = answered.expect("every dial is answered");
        assert!(answered.len() == AT_ONCE && answered.iter().all(|status| *status == 200));
    }
    let after = seen(&mut world);
    println!(
        "{} dials, {AT_ONCE} at once, in {:.1} s: {} changes of the route; cut and moved: {:?}",
        WAVES * AT_ONCE,
        begun.elapsed().as_secs_f64(),
        after.0 - before.0,
        after.1
    );
    let log = world.node_mut("worker").process().output();
    let changes = log.lines().filter(|line| line.contains("route changed"));
    changes.skip(before.0).for_each(|line| println!("{line}"));
    let [cut, moved] = [0, 1].map(|how| after.1[how] - before.1[how]);
    assert_eq!((after.0, cut), (before.0, 0.0), "a herd is no evidence");
    assert!(moved <= MOST_MOVED, "{moved} sessions moved");
}
