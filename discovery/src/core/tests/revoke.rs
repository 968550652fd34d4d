//! Revocations: how fast all nodes learn of one, and that it lasts.

use meshport_config::{Added, AuthorityKey, NodeKey, Revocation, Revoked, Succession};

use super::net::{Net, ms, secs};
use crate::Count;
use crate::core::Event;
use crate::directory::Entry;
use crate::state::OriginState;
use crate::tests::WALL;
use crate::wire::Message;

fn revocation(net: &Net, number: usize) -> Revocation {
    Revocation::issue(&net.mesh.authority, Revoked::Node(net.id(number)), WALL)
}

/// Whether no running node knows this node.
fn is_forgotten(net: &Net, number: usize) -> bool {
    let mut others = net.running().filter(|it| *it != number);
    others.all(|it| net.sees(it, number).is_none())
}

#[test]
fn a_revoked_node_is_forgotten_by_all_at_once_and_does_not_come_back() {
    let mut net = Net::with_nodes(21, 60, 5, 3);
    net.links.loss_percent = 1;
    net.run(secs(30));
    let (now, revocation) = (net.now(), revocation(&net, 1));
    net.with(7, |discovery, now| {
        assert_eq!(discovery.handle_revocation(&revocation, now), Ok(Added::New));
        assert_eq!(discovery.handle_revocation(&revocation, now), Ok(Added::Known));
    });
    net.until(ms(1500), "a revocation", |net| is_forgotten(net, 1));
    let told = |event: &Event| matches!(event, Event::Revoked(it) if *it == revocation);
    net.until(secs(2), "every node knows", |net| {
        net.running().filter(|it| *it != 1).all(|it| net.count_events(it, now, told) == 1)
    });
    // It keeps sending, and restarts: it is ignored.
    net.run(secs(60));
    assert!(is_forgotten(&net, 1));
    net.crash(1);
    net.start(1, &[0, 7]);
    net.run(secs(60));
    assert!(is_forgotten(&net, 1));
    let all = net.running().filter(|it| *it != 1);
    assert!(all.map(|it| net.get(it).directory().alive()).all(|alive| alive == 59));
}

#[test]
fn a_node_that_was_away_learns_of_it_by_comparison() {
    let mut net = Net::with_nodes(22, 12, 2, 1);
    net.run(secs(30));
    net.crash(5);
    net.run(secs(10));
    let snapshot = net.get(0).snapshot();
    let revocation = revocation(&net, 3);
    net.with(0, |discovery, now| {
        discovery.handle_revocation(&revocation, now).expect("the authority's");
    });
    net.crash(3);
    net.run(secs(10));
    // It starts with its old snapshot, the revoked node included.
    net.boot(5, &[], Some(&snapshot));
    net.until(secs(15), "one that was away", |net| is_forgotten(net, 3));
    assert_eq!(net.get(5).revocations().len(), 1);
}

#[test]
fn an_invite_takes_its_nodes_along_and_nobody_else_revokes() {
    let mut net = Net::with_nodes(23, 8, 2, 1);
    net.run(secs(20));
    // All nodes here joined with one delegation, so all forget each other.
    let key = net.nodes[0].member.credential.delegation.as_ref().expect("joined").key;
    let stranger = AuthorityKey::from_bytes([77; 32]);
    let forged = Revocation::issue(&stranger, Revoked::Invite(key), WALL);
    net.with(2, |discovery, now| {
        assert!(discovery.handle_revocation(&forged, now).is_err());
    });
    let bytes = forged.to_bytes();
    net.inject(1, 2, Message::Revoked(vec![&bytes, &[1, 2, 3]]).encode().expect("small"));
    net.run(secs(1));
    assert_eq!(net.get(2).counters()[Count::RejectedRevocations], 2);
    assert_eq!(net.get(2).directory().alive(), 8);
    let real = Revocation::issue(&net.mesh.authority, Revoked::Invite(key), WALL);
    net.with(2, |discovery, now| {
        discovery.handle_revocation(&real, now).expect("the authority's");
    });
    assert_eq!(net.get(2).directory().len(), 1, "itself");
}

#[test]
fn a_node_with_another_key_is_that_node_to_all_and_the_old_one_never_comes_back() {
    let mut net = Net::with_nodes(24, 40, 4, 3);
    net.links.loss_percent = 1;
    net.run(secs(30));
    let (former, begun) = (net.id(1), net.now());
    net.succeed(1);
    let new = net.id(1);
    assert_ne!(new, former);
    net.until(secs(3), "all know the new key", |net| {
        net.running().all(|it| {
            let directory = net.get(it).directory();
            let known = directory.get(&new).is_some_and(Entry::is_alive);
            known && directory.get(&former).is_none()
        })
    });
    net.until(secs(3), "and where the service is", |net| {
        net.running().all(|it| it == 1 || net.sees_service(it, 1) == Some(OriginState::Ready))
    });
    net.run(secs(60));
    assert!(net.running().all(|it| net.get(it).directory().alive() == 40));
    let (end, other) = (net.get(7).revocations().successor_of(&former), net.id(2));
    assert_eq!((end, net.get(7).revocations().successor_of(&other)), (new, other));
    let told = |event: &Event| matches!(event, Event::Revoked(it) if it.successor() == Some(new));
    assert!(net.running().all(|it| net.count_events(it, begun, told) == 1));
}

#[test]
fn made_up_keys_that_succeed_each_other_fill_no_table() {
    let mut net = Net::with_nodes(25, 3, 1, 1);
    net.run(secs(10));
    let mesh = net.mesh.authority.public();
    for number in 0..50_u8 {
        let [one, other] = [number, 100 + number].map(|it| NodeKey::from_bytes([it; 32]));
        let agreed = Succession::agree(&one, &other.public(), &mesh, WALL);
        let statement = Revocation::of_succession(&mesh, &other.public(), &agreed);
        statement.verify(&mesh).expect("it is signed");
        let bytes = statement.to_bytes();
        net.inject(1, 2, Message::Revoked(vec![&bytes]).encode().expect("small"));
    }
    net.run(secs(2));
    assert_eq!(net.get(2).revocations().iter().count(), 0);
    assert_eq!(
        net.get(2).counters()[Count::RejectedRevocations],
        0,
        "who passes it on may know more"
    );
}
