//! Credentials of a minute for an hour: every worker has a session that must not end, and the
//! nearer issuer is killed again and again and comes back after some minutes.

use std::time::Duration;

use meshport_tests::echo::{self, Flow, session};
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};

use super::issuers;

/// Length of the run, an hour by default.
const MINUTES: &str = "MESHPORT_TEST_MINUTES";
/// Seconds for which a credential is valid, a minute by default: longer than the run, and the bytes
/// are those without renewals.
const LIFETIME: &str = "MESHPORT_TEST_LIFETIME";
const WORKERS: [&str; 4] = ["worker-1", "worker-2", "worker-3", "worker-4"];
/// Between two bytes of a session.
const BETWEEN_BYTES: Duration = Duration::from_secs(1);
/// Between two looks at the credentials: a small part of their life.
const BETWEEN_LOOKS: Duration = Duration::from_secs(5);
/// How often the nearer issuer is killed; it is down for a third of the time. A shorter run has one
/// cycle.
const CYCLE: Duration = Duration::from_secs(600);

fn given(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).ok().and_then(|it| it.parse().ok()).unwrap_or(otherwise)
}

/// A worker and what is known of its credentials.
struct Worker {
    name: &'static str,
    flow: Flow,
    expires_at: u64,
    renewals: u64,
    /// The least that one of its credentials had left, in seconds.
    least_left_s: u64,
}

impl Worker {
    fn new(world: &World, name: &'static str) -> Self {
        let flow = Flow::every(BETWEEN_BYTES, session(world, name));
        let expires_at = expires_at(world, name);
        Self { name, flow, expires_at, renewals: 0, least_left_s: u64::MAX }
    }

    fn look(&mut self, world: &World) {
        assert!(self.flow.goes_on(), "{}: the session ended", self.name);
        let expires_at = expires_at(world, self.name);
        self.renewals += u64::from(expires_at > self.expires_at);
        self.expires_at = expires_at;
        self.least_left_s = self.least_left_s.min(expires_at.saturating_sub(wait::unix_now()));
    }
}

fn expires_at(world: &World, node: &str) -> u64 {
    let metrics = world.at(node).metrics();
    let seconds = metrics.sum("meshport_credential_expiry_timestamp_seconds", "");
    Duration::from_secs_f64(seconds).as_secs()
}

fn count(world: &mut World, node: &str, text: &str) -> usize {
    world.node_mut(node).process().output().matches(text).count()
}

/// Whether the nearer issuer is down at this time: in the second third of each cycle.
fn is_down(elapsed: Duration, cycle: Duration) -> bool {
    let turn = elapsed.as_secs_f64() / cycle.as_secs_f64();
    (1.0 / 3.0..2.0 / 3.0).contains(&turn.fract())
}

#[test]
#[ignore = "takes an hour; run it by name"]
fn an_hour_of_renewals_cuts_nothing() {
    let span = Duration::from_secs(60 * given(MINUTES, 60));
    let lifetime_s = given(LIFETIME, 60);
    let lifetime: &'static str = format!("{lifetime_s}s").leak();
    let mut world = issuers(lifetime);
    for name in WORKERS {
        world.node(&NodePlan::new(name, "near").lifetime(lifetime).settings(&echo::usage()));
    }
    world.meet();
    let mut workers = WORKERS.map(|name| Worker::new(&world, name));
    let bytes_before = world.shaper().counters().received_bytes;
    let (begun, mut next, mut is_up) = (wait::now(), wait::now(), true);
    while begun.elapsed() < span {
        let down = is_down(begun.elapsed(), CYCLE.min(span));
        match (down, is_up) {
            (true, true) => world.kill("cp-b"),
            (false, false) => world.start("cp-b"),
            _ => {}
        }
        is_up = !down;
        workers.iter_mut().for_each(|worker| worker.look(&world));
        wait::pace(&mut next, BETWEEN_LOOKS);
    }
    let bytes = world.shaper().counters().received_bytes - bytes_before;

    let signed = ["cp-a", "cp-b"].map(|node| count(&mut world, node, "event=\"issued\""));
    let failed: usize = WORKERS
        .map(|node| count(&mut world, node, "an issuer did not renew this node's credential"))
        .into_iter()
        .sum();
    let renewals: Vec<u64> = workers.iter().map(|it| it.renewals).collect();
    let least_left_s = workers.iter().map(|it| it.least_left_s).min();
    println!(
        "{span:?}, lifetime {lifetime_s} s: renewals {renewals:?}, signed by the farther issuer \
         {} and by the nearer one {}, {failed} requests failed, at least {least_left_s:?} s \
         left, {bytes} bytes between all nodes",
        signed[0], signed[1]
    );
    for worker in workers {
        let least = span.as_secs() / lifetime_s;
        assert!(worker.renewals >= least, "{}: only {} renewals", worker.name, worker.renewals);
        println!("{}: {} bytes through one session", worker.name, worker.flow.end());
    }
    assert!(least_left_s > Some(0), "a credential ended before its renewal");
    assert!(span.as_secs() < lifetime_s || signed.iter().all(|it| *it > 0), "{signed:?}");
}
