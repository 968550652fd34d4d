//! What the authority takes back: how fast all know, and that it stays so.

use meshport_config::{Added, AuthorityKey, Revocation, Revoked};

use super::net::{Net, ms, secs};
use crate::core::Event;
use crate::tests::WALL;
use crate::wire::Message;

fn revocation(net: &Net, number: usize) -> Revocation {
    Revocation::issue(&net.mesh.authority, Revoked::Node(net.id(number)), WALL)
}

/// Whether nobody who runs knows a node any more.
fn is_forgotten(net: &Net, number: usize) -> bool {
    let mut others = net.running().filter(|it| *it != number);
    others.all(|it| net.sees(it, number).is_none())
}

#[test]
fn a_revoked_node_is_forgotten_by_all_at_once_and_does_not_come_back() {
    let mut net = Net::with_nodes(21, 60, 5, 3);
    net.loss_percent = 1;
    net.run(secs(30));
    let (now, revocation) = (net.now(), revocation(&net, 1));
    net.with(7, |discovery, now| {
        assert_eq!(discovery.handle_revocation(&revocation, now), Ok(Added::New));
        assert_eq!(discovery.handle_revocation(&revocation, now), Ok(Added::Known));
    });
    net.until(ms(1500), "a revocation", |net| is_forgotten(net, 1));
    let told = |event: &Event| matches!(event, Event::Revoked(it) if *it == revocation);
    net.until(secs(2), "everybody is told", |net| {
        net.running().filter(|it| *it != 1).all(|it| net.count_events(it, now, told) == 1)
    });
    // It talks on, and starts anew: nobody listens.
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
fn who_was_away_learns_of_it_by_comparison() {
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
    // It starts with what it knew before, the revoked node included.
    net.boot(5, &[], Some(&snapshot));
    net.until(secs(15), "one that was away", |net| is_forgotten(net, 3));
    assert_eq!(net.get(5).revocations().len(), 1);
}

#[test]
fn an_invite_takes_its_nodes_along_and_nobody_else_revokes() {
    let mut net = Net::with_nodes(23, 8, 2, 1);
    net.run(secs(20));
    // Everybody here joined with one delegation, so that everybody forgets everybody.
    let key = net.nodes[0].member.credential.delegation.as_ref().expect("joined").key;
    let stranger = AuthorityKey::from_bytes([77; 32]);
    let forged = Revocation::issue(&stranger, Revoked::Invite(key), WALL);
    net.with(2, |discovery, now| {
        assert!(discovery.handle_revocation(&forged, now).is_err());
    });
    let bytes = forged.to_bytes();
    net.inject(1, 2, Message::Revoked(vec![&bytes, &[1, 2, 3]]).encode().expect("small"));
    net.run(secs(1));
    assert_eq!(net.get(2).counters().rejected_revocations, 2);
    assert_eq!(net.get(2).directory().alive(), 8);
    let real = Revocation::issue(&net.mesh.authority, Revoked::Invite(key), WALL);
    net.with(2, |discovery, now| {
        discovery.handle_revocation(&real, now).expect("the authority's");
    });
    assert_eq!(net.get(2).directory().len(), 1, "itself");
}
