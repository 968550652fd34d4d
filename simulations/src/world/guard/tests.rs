//! Rules for which no bug can be planted in a node's code, against forged states. For the others,
//! `tests/thorough/planted.rs` shows that they find something.

use std::time::Duration;

use meshport_config::{Revocation, Revoked};

use super::*;
use crate::scenario::Scenario;
use crate::tunnel::Tunnels;
use crate::world::{Options, number};

/// Two sites whose clients all go to `fra-1`, after 40 s.
fn played() -> World {
    let text = "description = \"Two sites\"\nduration-s = 40\n\
                [load]\nsessions-per-s = 1\nhold-s = 30\nrequests-per-s = 0.5\n\
                [[site]]\nname = \"fra\"\nnodes = 2\norigins = 1\n\
                [[site]]\nname = \"ams\"\nnodes = 2\n";
    let scenario = Scenario::parse(text).expect("a good scenario");
    let mut world = World::new(scenario, 7, Options::default()).expect("a possible world");
    world.play();
    assert_eq!(broken(&mut world), Vec::<&str>::new());
    world
}

/// The rules that were broken since the last call.
fn broken(world: &mut World) -> Vec<&'static str> {
    world.scene.account.violations.drain(..).map(|violation| violation.rule).collect()
}

#[test]
fn a_session_that_is_lost_or_made_up_is_noticed() {
    let mut world = played();
    assert!(world.nodes[3].clients.open() > 0);
    world.nodes[3].clients.sessions.clear();
    world.check_end();
    assert_eq!(broken(&mut world), [rules::SESSIONS]);
    let mut world = played();
    world.nodes[3].clients.opened += 1;
    world.check_end();
    assert_eq!(broken(&mut world), [rules::SESSIONS]);
}

#[test]
fn a_queue_or_a_table_that_overflows_is_noticed() {
    let mut world = played();
    let bound = MAX_TRANSMITS + 4 * MAX_MEMBERS;
    world.check_wishes(1, bound);
    world.check_sizes(1, MAX_MEMBERS, MAX_PATHS);
    assert_eq!(broken(&mut world), Vec::<&str>::new());
    world.check_wishes(1, bound + 1);
    world.check_sizes(1, MAX_MEMBERS + 1, MAX_PATHS);
    world.check_sizes(1, MAX_MEMBERS, MAX_PATHS + 1);
    assert_eq!(broken(&mut world), [rules::QUEUES; 3]);
}

/// Removes the connections that a node has with a revoked one, one after the other.
#[test]
fn any_trace_of_a_revoked_node_is_noticed() {
    let mut world = played();
    let (subject, at, teller) = (0, 3, 2);
    let id = world.nodes[subject].credential.node;
    let revocation =
        Revocation::issue(&world.mesh.authority, Revoked::Node(id), world.wall(subject));
    world.scene.account.revoked[subject] = Some(Duration::ZERO);
    let mut left = |change: &mut dyn FnMut(&mut World)| {
        change(&mut world);
        world.check_revoked();
        let found = world.scene.account.violations.pop();
        found.filter(|it| it.rule == rules::SHUT_OUT).map(|it| it.what).unwrap_or_default()
    };
    assert_eq!(left(&mut |_| {}), "", "nobody could tell anybody");
    // Only these two have a connection with it.
    let what = left(&mut |world| {
        world.stop(1);
        for node in [at, teller] {
            world.nodes[node].folder.revocations.add(revocation.clone());
        }
        world.forget(teller, &revocation);
    });
    assert_eq!(what, "its directory has an entry for fra-1");
    let what = left(&mut |world| {
        world.nodes[at].folder.revocations = meshport_config::Revocations::default();
    });
    assert_eq!(what, "it does not know of the revocation of fra-1");
    let what = left(&mut |world| world.scene.account.revoked[teller] = Some(world.scene.now));
    assert_eq!(what, "", "nobody listens to the only one that could tell");
    let what = left(&mut |world| {
        world.scene.account.revoked[teller] = None;
        world.nodes[at].folder.revocations.add(revocation.clone());
        let now = world.epoch + world.scene.now;
        world.nodes[at].brain.as_mut().expect("it runs").revoke(&revocation, now);
    });
    assert_eq!(what, "it has a tunnel to fra-1");
    let what = left(&mut |world| {
        world.nodes[at].tunnels.remove(number(subject));
    });
    assert_eq!(what, "it has a session to fra-1");
    let what = left(&mut |world| {
        world.nodes[at].clients.clear();
    });
    assert_eq!(what, "");
}

/// A failed request is a violation only if the scenario requires answers.
#[test]
fn a_request_that_fails_is_noticed_where_none_may() {
    let play = |may_fail: bool| {
        let text = format!(
            "description = \"One origin, which stops\"\nduration-s = 60\n\
             [load]\nsessions-per-s = 1\nmay-fail = {may_fail}\n\
             [[site]]\nname = \"fra\"\nnodes = 2\norigins = 1\n\
             [[event]]\nat-s = 40\nkill = \"fra-1\"\n"
        );
        let scenario = Scenario::parse(&text).expect("a good scenario");
        let mut world = World::new(scenario, 7, Options::default()).expect("a possible world");
        world.play();
        assert!(world.scene.measures.requests.failed > 0);
        broken(&mut world)
    };
    assert_eq!(play(true), Vec::<&str>::new());
    let told = play(false);
    assert!(!told.is_empty() && told.iter().all(|rule| *rule == rules::ANSWERED), "{told:?}");
}

impl World {
    /// A node knows of a revocation and has done everything it should.
    fn forget(&mut self, node: usize, revocation: &Revocation) {
        let now = self.instant();
        self.nodes[node].brain.as_mut().expect("it runs").revoke(revocation, now);
        self.nodes[node].tunnels = Tunnels::default();
        self.nodes[node].clients.clear();
    }
}
