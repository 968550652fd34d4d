//! Members with a mandate renew the credentials of others: sessions continue, one of two issuers
//! may be gone, and the signatures of a stolen one are revoked.

mod hour;
mod relayed;

use std::fs;
use std::time::Duration;

use meshport_tests::echo::{self, Flow, SERVICE, session};
use meshport_tests::process::{meshport, run, run_ok};
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};
use serde_json::Value;

const SETTLE: Duration = Duration::from_secs(40);
/// Lifetime of a renewed credential. Renewal is due when a third is left.
const LIFETIME: &str = "24s";
/// Time from one renewal to the next on a busy machine.
const NEXT: Duration = Duration::from_secs(30);

#[track_caller]
fn ok(world: &World, node: &str, words: &[&str]) -> String {
    let state = world.at(node).state().to_string_lossy().into_owned();
    let all = [words, &["--state-dir", &state]].concat();
    run_ok(&meshport().to_string_lossy(), &all)
}

/// Two issuers, of which the first has the authority's key and the service. The second is the
/// nearer one for site `near`.
fn issuers(lifetime: &str) -> World {
    let mut world = World::new();
    let (address, _open) = echo::serve();
    world.distance("fra", "near", Duration::from_millis(10));
    let origin = NodePlan::new("cp-a", "fra").role("issuer").role(&format!("origin:{SERVICE}"));
    world.node(&origin.settings(&echo::offer(address)));
    // Nodes measure their distance to a relay, as to an origin.
    world.node(&NodePlan::new("cp-b", "near").role("issuer").role("relay"));
    world.meet();
    for issuer in ["cp-a", "cp-b"] {
        delegate(&world, "cp-a", issuer, &["--credential-ttl", lifetime]);
    }
    // The line for one of them is of no use to the other.
    let line = world.path("mandate-cp-a").to_string_lossy().into_owned();
    let state = world.at("cp-b").state().to_string_lossy().into_owned();
    let words = ["delegate", "--install", &*line, "--state-dir", &state];
    let refused = run(&meshport().to_string_lossy(), &words);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("is for node"), "{said}");
    world
}

/// Gives a member a mandate, signed where the authority's key is.
#[track_caller]
pub(crate) fn delegate(world: &World, signer: &str, issuer: &str, flags: &[&str]) {
    let flags = [&["delegate", issuer, "--ttl", "4h"], flags].concat();
    let file = world.path(&format!("mandate-{issuer}"));
    fs::write(&file, ok(world, signer, &flags)).expect("written");
    let said = ok(world, issuer, &["delegate", "--install", &file.to_string_lossy()]);
    assert!(said.contains(&format!("{issuer} may renew credentials")), "{said}");
}

pub(crate) fn expires_at(world: &World, node: &str) -> u64 {
    let status = world.at(node).status().expect("the daemon answers");
    status["credential_expires_at"].as_u64().expect("a time")
}

/// Waits for the next credential of the worker; when that ends.
#[track_caller]
fn renewed(world: &World, before: u64) -> u64 {
    wait::until("the worker has its next credential", NEXT, || {
        Some(expires_at(world, "worker")).filter(|it| *it > before)
    })
}

#[test]
fn nodes_are_renewed_by_members_and_not_by_a_stolen_one() {
    let mut world = issuers(LIFETIME);
    let worker = NodePlan::new("worker", "near").lifetime(LIFETIME);
    world.node(&worker.settings(&echo::usage()));
    world.meet();
    let flow = Flow::start(session(&world, "worker"));
    wait::until("the worker knows both issuers", SETTLE, || {
        (world.at("worker").status()?["renewal"]["issuers"] == 2).then_some(())
    });
    let first = renewed(&world, expires_at(&world, "worker"));

    // One issuer is gone: the other one renews.
    world.kill("cp-b");
    let second = renewed(&world, first);
    assert!(flow.goes_on(), "a renewal ends no session");
    let output = world.node_mut("cp-a").process().output();
    assert!(output.contains("event=\"issued\""), "an issuer keeps account: {output}");

    // The signatures of the remaining issuer are revoked: the worker returns to its previous
    // credential, and no issuer renews it any more.
    let said = ok(&world, "cp-a", &["revoke", "cp-a", "--issuer", "--json"]);
    let reports: Value = serde_json::from_str(&said).expect("reports");
    assert!(reports.as_array().is_some_and(|all| !all.is_empty()), "{said}");
    wait::until("what the stolen issuer signed counts no more", SETTLE, || {
        let now = world.at("worker").status();
        now.is_none_or(|it| it["credential_expires_at"].as_u64() < Some(second)).then_some(())
    });
}
