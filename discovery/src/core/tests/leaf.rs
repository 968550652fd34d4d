//! Leaves: they know what they need, and no node has them as members.

use meshport_config::{NodeId, UnixSeconds};

use super::net::{Net, ms, secs};
use crate::Count;
use crate::attach::{Attach, MAX_ATTACHED};
use crate::core::{Discovery, Event};
use crate::directory::Liveness;
use crate::paths::PathState;
use crate::state::OriginState;
use crate::wire::{Ask, Item, Message};

/// Nine members in three sites, three of them origins, and a leaf whose only seed is not an origin.
fn with_leaf(seed: u8) -> (Net, usize) {
    let mut net = Net::with_nodes(seed, 9, 3, 3);
    net.run(secs(20));
    let leaf = net.add(3, "operator");
    net.start(leaf, &[5]);
    (net, leaf)
}

fn is_up(net: &Net, leaf: usize, number: usize) -> bool {
    let path = net.get(leaf).paths().get(&net.id(number));
    path.is_some_and(|path| path.state == PathState::Up && path.rtt.is_some())
}

/// The members that a leaf asks.
fn attached(net: &Net, leaf: usize) -> Vec<NodeId> {
    net.get(leaf).attach.iter().flat_map(Attach::attached).collect()
}

fn numbers(net: &Net, leaf: usize) -> Vec<usize> {
    let attached = attached(net, leaf);
    (0..net.nodes.len()).filter(|number| attached.contains(&net.id(*number))).collect()
}

#[test]
fn a_leaf_knows_the_origins_within_three_round_trips_and_measures_them() {
    let (mut net, leaf) = with_leaf(40);
    // Sites 3 and 2 are 2 x 45 ms apart; a session with the seed is needed before it can be asked.
    net.until(ms(3 * 95), "the origins are known", |net| {
        (0..3).all(|it| net.sees_service(leaf, it) == Some(OriginState::Ready))
    });
    net.until(ms(3 * 95), "the origins are measured", |net| (0..3).all(|it| is_up(net, leaf, it)));
    net.until(secs(5), "several members are asked", |net| {
        attached(net, leaf).len() == MAX_ATTACHED
    });
    assert_eq!(net.sees(leaf, 0), Some(Liveness::Alive));
}

#[test]
fn nobody_takes_a_leaf_for_a_member() {
    let (mut net, leaf) = with_leaf(41);
    net.run(secs(60));
    assert!(net.running().filter(|it| *it != leaf).all(|it| net.sees(it, leaf).is_none()));
    let known: usize = (0..9).map(|it| net.get(it).leaves()).sum();
    assert!(known >= MAX_ATTACHED, "{known} members have a tunnel with it");
    let suspicions: u64 = net.running().map(|it| net.get(it).counters()[Count::Suspicions]).sum();
    assert_eq!(suspicions, 0);
    net.crash(leaf);
    net.run(secs(30));
    let downs = |it| net.count_events(it, secs(20), |event| matches!(event, Event::MemberDown(_)));
    assert_eq!((0..9).map(downs).sum::<usize>(), 0, "nobody notices that it is gone");
}

#[test]
fn a_leaf_tries_a_path_on_which_an_origin_loses_long_packets() {
    let (mut net, leaf) = with_leaf(47);
    net.until(secs(5), "the origins are measured", |net| (0..3).all(|it| is_up(net, leaf, it)));
    net.run(secs(2));
    let (origin, person) = (net.id(0), net.id(leaf));
    net.links.narrow = Some((0, leaf));
    net.with(0, |node, now| node.handle_unacknowledged(person, now));
    net.until(ms(2500), "the leaf leaves the path", |net| !is_up(net, leaf, 0));
    // It serves no other node, so it does not answer.
    let dropped = net.get(0).counters()[Count::DroppedLeaf];
    net.with(leaf, |node, now| node.handle_unacknowledged(origin, now));
    net.run(secs(1));
    assert_eq!(net.get(0).counters()[Count::DroppedLeaf], dropped);
}

#[test]
fn what_a_leaf_announces_is_not_heard() {
    let (mut net, leaf) = with_leaf(42);
    net.run(secs(10));
    let member = &net.nodes[leaf].member;
    let mut state = member.state(1, 1);
    state.services = vec![(super::net::SERVICE.parse().unwrap(), OriginState::Ready)];
    let (signed, credential) = (member.sign(state), member.credential.to_bytes());
    let item = Item {
        credential: Some(&credential),
        state: Some(signed.as_bytes()),
        ..Item::about(&net.id(leaf))
    };
    let asked = attached(&net, leaf);
    let host = (0..9).find(|it| asked.contains(&net.id(*it))).expect("it asks a member");
    for message in [
        Message::Items(vec![item]),
        Message::Rumours(vec![item]),
        Message::News(item),
        Message::Swim(b"let me in"),
        Message::Root([1; 8]),
    ] {
        let before = net.get(host).counters()[Count::DroppedLeaf];
        net.inject(leaf, host, message.encode().expect("it fits"));
        net.run(ms(1));
        assert_eq!(net.get(host).counters()[Count::DroppedLeaf], before + 1, "{message:?}");
    }
    // A member that gets the leaf's record from another member does not accept it either.
    let other = (0..9).find(|it| *it != host).expect("there are nine");
    net.inject(host, other, Message::Items(vec![item]).encode().expect("it fits"));
    net.run(secs(30));
    assert!((0..9).all(|it| net.sees(it, leaf).is_none() && net.sees_service(it, leaf).is_none()));
}

#[test]
fn a_member_does_not_ask_as_a_leaf_does() {
    let mut net = Net::with_nodes(43, 3, 1, 1);
    net.run(secs(5));
    let ask = Ask {
        services: vec![super::net::SERVICE.parse().unwrap()],
        digest: [0; 8],
        revoked: [0; 8],
    };
    net.inject(1, 0, Message::Ask(ask).encode().expect("it fits"));
    net.run(secs(1));
    assert_eq!(net.get(0).counters()[Count::DroppedLeaf], 1);
    assert_eq!(net.get(0).counters()[Count::LeafQuestions], 0);
}

#[test]
fn urgent_news_reach_a_leaf_at_once_and_the_rest_within_seconds() {
    let (mut net, leaf) = with_leaf(44);
    net.run(secs(10));
    net.set_service(1, OriginState::Unready);
    net.until(ms(200), "news", |net| net.sees_service(leaf, 1) == Some(OriginState::Unready));
    net.crash(2);
    net.until(secs(20), "a death", |net| net.sees(leaf, 2) == Some(Liveness::Down));
    net.start(2, &[0]);
    net.set_service(2, OriginState::Ready);
    net.until(secs(20), "a return", |net| {
        net.sees(leaf, 2) == Some(Liveness::Alive) && is_up(net, leaf, 2)
    });
    net.with(0, Discovery::leave);
    net.until(ms(200), "a farewell", |net| net.sees(leaf, 0) == Some(Liveness::Left));
}

#[test]
fn a_leaf_outlives_everybody_it_asked() {
    let (mut net, leaf) = with_leaf(45);
    net.run(secs(10));
    let gone = numbers(&net, leaf);
    assert_eq!(gone.len(), MAX_ATTACHED);
    gone.iter().for_each(|it| net.crash(*it));
    net.until(secs(15), "others are asked", |net| {
        let asked = numbers(net, leaf);
        !asked.is_empty() && asked.iter().all(|it| !gone.contains(it))
    });
    assert_eq!(net.get(leaf).counters()[Count::Stalls], 0, "no timer is late");
    let origin = (0..3).find(|it| !gone.contains(it));
    if let Some(origin) = origin {
        net.set_service(origin, OriginState::Draining);
        net.until(secs(10), "what they say counts", |net| {
            net.sees_service(leaf, origin) == Some(OriginState::Draining)
        });
    }
}

#[test]
fn a_leaf_costs_a_quiet_mesh_next_to_nothing() {
    let (mut net, leaf) = with_leaf(46);
    net.run(secs(60));
    let sent = |net: &Net| net.get(leaf).counters()[Count::SentBytes];
    let received = |net: &Net| net.get(leaf).counters()[Count::ReceivedBytes];
    let before = (sent(&net), received(&net));
    net.run(secs(60));
    let (sent, received) = (sent(&net) - before.0, received(&net) - before.1);
    println!("a minute of a leaf: {sent} bytes sent, {received} received");
    assert!(sent < 60 * 60 && received < 60 * 100);
}

#[test]
fn a_leaf_starts_from_what_it_saved() {
    let (mut net, leaf) = with_leaf(47);
    net.run(secs(10));
    let saved = net.get(leaf).snapshot();
    net.crash(leaf);
    net.crash(5);
    net.run(secs(30));
    net.boot(leaf, &[5], Some(&saved));
    net.until(ms(4 * 95), "origins are measured, though the seed is gone", |net| {
        (0..3).filter(|it| *it != 5).all(|it| is_up(net, leaf, it))
    });
}

#[test]
fn after_a_sleep_everything_is_measured_at_once() {
    let (mut net, leaf) = with_leaf(48);
    net.run(secs(20));
    let at = net.instant();
    net.with(leaf, Discovery::wake);
    net.run(ms(150));
    for origin in 0..3 {
        let path = net.get(leaf).paths().get(&net.id(origin)).expect("origins are measured");
        assert!(path.last_answer.is_some_and(|answer| answer > at), "{origin}");
    }
}

#[test]
fn a_leaf_whose_credential_has_ended_gets_no_answer() {
    let (mut net, leaf) = with_leaf(49);
    net.run(secs(10));
    let ends = net.nodes[leaf].member.credential.expires_at;
    let host = numbers(&net, leaf)[0];
    let bytes = Message::Probe([1; 8]).encode().expect("it fits");
    let from = net.id(leaf);
    let before = net.get(host).counters()[Count::DroppedLeaf];
    net.with(host, |discovery, now| {
        discovery.handle_datagram(from, &bytes, now, UnixSeconds(ends.0));
    });
    assert_eq!(net.get(host).counters()[Count::DroppedLeaf], before + 1);
}
