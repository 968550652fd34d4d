//! A node that reaches the issuer only through a relay.

use std::time::Duration;

use meshport_demo::wan::Cut;
use meshport_tests::echo::{self, Flow, SERVICE, session};
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};

use super::{delegate, expires_at};

/// A third of it is left for the direct path, which is tried first, for the relay, and for the new
/// credential to reach the origin by gossip, before the former one ends there.
const LIFETIME: &str = "60s";
const NEXT: Duration = Duration::from_secs(80);

#[test]
fn a_node_that_reaches_its_issuer_only_through_a_relay_is_renewed() {
    let mut world = World::new();
    for (one, other) in [("a", "b"), ("a", "c"), ("b", "c")] {
        world.distance(one, other, Duration::from_millis(4));
    }
    let (address, _open) = echo::serve();
    let origin = NodePlan::new("cp", "b").role("issuer").role(&format!("origin:{SERVICE}"));
    world.node(&origin.settings(&echo::offer(address)));
    world.node(&NodePlan::new("relay", "c").role("relay"));
    delegate(&world, "cp", "cp", &["--credential-ttl", LIFETIME]);
    world.node(&NodePlan::new("worker", "a").lifetime(LIFETIME).settings(&echo::usage()));
    world.meet();
    world.shaper().set_down(Cut::Between("a".to_owned(), "b".to_owned()), true);

    let flow = Flow::start(session(&world, "worker"));
    let first = expires_at(&world, "worker");
    let ends = wait::until("a renewal comes through the relay", NEXT, || {
        Some(expires_at(&world, "worker")).filter(|it| *it > first)
    });
    wait::until("the first credential has ended", NEXT, || {
        (wait::unix_now() > first + 2).then_some(())
    });
    assert!(flow.goes_on(), "the session ended with the first credential");
    let issuer = world.node_mut("cp").process().output();
    let issued = issuer.lines().filter(|line| line.contains("event=\"issued\""));
    let relayed = issued.filter(|line| line.contains("relay=\"")).count();
    assert!(relayed >= 1, "the issuer names the relay: {issuer}");
    // What the worker has is a credential like any other.
    wait::until("the issuer knows the worker's last credential", NEXT, || {
        let rows = world.at("cp").ask("credentials", &["--json", "--within", "1s"]);
        rows.contains(&ends.to_string()).then_some(())
    });
}
