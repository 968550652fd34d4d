//! An issuer without a mandate, and a node that it does not renew.

use std::time::Duration;

use meshport_tests::identity;
use meshport_tests::process::{meshport, run_ok};

use super::{Lab, examine, until_known};

/// A third of the life of a credential is left, so it is due, and more than a quarter, so it does
/// not end soon.
const AGE: Duration = Duration::from_secs(840);
const LEFT: Duration = Duration::from_secs(360);

/// Runs a verb.
#[track_caller]
fn ok(words: &[&str]) -> String {
    run_ok(&meshport().to_string_lossy(), words)
}

/// An invite for a node in site `site`, by the authority.
fn invite(lab: &Lab, site: &str, roles: &str) -> String {
    let world = &lab.world;
    let seed = world.shaper().public_addr("cp-a").expect("it has one").to_string();
    let (state, authority) = (world.at("cp-a").state(), world.path("authority.key"));
    let (state, authority) = (state.to_string_lossy(), authority.to_string_lossy());
    let signed =
        ["invite", "--state-dir", &*state, "--authority", &*authority, "--endpoint", &*seed];
    ok(&[&signed[..], &["--site", site, "--role", roles, "--ttl", "1h"]].concat())
}

fn renew(lab: &Lab, node: &str, line: &str) {
    let state = lab.world.at(node).state().to_string_lossy().into_owned();
    ok(&["renew", line, "--state-dir", &state]);
}

pub(super) fn finds_renewals_that_fail(lab: &mut Lab) {
    let issuer = invite(lab, "b", "node,issuer");
    renew(lab, "edge", &issuer);
    let idle = examine(lab, "edge", "an issuer without a mandate");
    assert_eq!(idle.ids(), ["MP215"]);
    assert!(idle.detail("MP215").contains("no mandate"), "{}", idle.detail("MP215"));

    let line = invite(lab, "c", "node");
    let state = lab.world.at("depot").state().to_owned();
    lab.world.kill("depot");
    ok(&["join", &line, "--state-dir", &state.to_string_lossy(), "--name", "depot", "--force"]);
    identity::age(&state, &lab.world.path("authority.key"), AGE, LEFT);
    lab.world.start("depot");
    lab.world.meet();
    until_known(&lab.world, "depot", "MP214");
    let due = examine(lab, "depot", "a renewal that every issuer refuses");
    assert_eq!(due.ids(), ["MP214"]);
    assert!(due.detail("MP214").ends_with("it has no mandate"), "{}", due.detail("MP214"));

    for (node, site) in [("edge", "b"), ("depot", "c")] {
        let line = invite(lab, site, "node");
        renew(lab, node, &line);
        let after = examine(lab, node, &format!("{node} with a new credential"));
        assert_eq!(after.ids(), [] as [&str; 0]);
    }
}
