//! Nodes that lie, and bytes that make no sense. The liar is an admitted member with a credential.

use meshport_config::NodeId;

use super::net::{Net, SERVICE, ms, secs};
use crate::Count;
use crate::core::{Discovery, Event};
use crate::directory::Liveness;
use crate::state::{Life, NodeState, OriginState, SignedState};
use crate::tests::{Mesh, WALL};
use crate::wire::{Claim, Item, Message, Short, Standing};

const LIAR: usize = 5;

fn quiet_mesh(seed: u8) -> Net {
    let mut net = Net::with_nodes(seed, 12, 2, 2);
    net.until(secs(10), "joining", Net::agreed);
    net.run(secs(20));
    net
}

fn item<'a>(net: &Net, about: usize) -> Item<'a> {
    Item::about(&net.id(about))
}

fn say(net: &mut Net, to: usize, message: &Message<'_>) {
    net.inject(LIAR, to, message.encode().unwrap());
}

fn state_of(net: &Net, observer: usize, about: usize) -> NodeState {
    net.get(observer).directory().get(&net.id(about)).unwrap().node_state().unwrap().clone()
}

fn member_downs(net: &Net) -> usize {
    net.running()
        .map(|it| net.count_events(it, secs(10), |event| matches!(event, Event::MemberDown(_))))
        .sum()
}

#[test]
fn a_forged_record_changes_nothing() {
    let mut net = quiet_mesh(51);
    let before = state_of(&net, 3, 1);
    let mut forged = before.clone();
    forged.version += 100;
    forged.services = vec![(SERVICE.parse().unwrap(), OriginState::Unready)];
    // Signed by the liar, unsigned, and the record of another node.
    let liar = &net.nodes[LIAR].member;
    let signed = SignedState::sign(forged, &liar.credential.mesh, &liar.record_key());
    let mut unsigned = signed.as_bytes().to_vec();
    let length = unsigned.len();
    unsigned[length - 64..].fill(0);
    for bytes in [signed.as_bytes(), &unsigned] {
        let item = Item { state: Some(bytes), ..item(&net, 1) };
        say(&mut net, 3, &Message::Rumours(vec![item]));
        say(&mut net, 3, &Message::Items(vec![item]));
        say(&mut net, 3, &Message::News(item));
    }
    net.run(secs(5));
    assert_eq!(state_of(&net, 3, 1), before);
    assert!(net.get(3).counters()[Count::RejectedStates] >= 4);
    assert!(net.count_events(3, secs(10), |event| matches!(event, Event::Ignored { .. })) >= 1);
}

/// Messages of a member of a later version.
#[test]
fn messages_of_a_later_version_are_named_and_counted() {
    let mut net = quiet_mesh(53);
    let from = net.id(LIAR);
    for (bytes, name) in [([1, 99], "gossip message 99"), ([2, 0], "gossip of version 2")] {
        net.inject(LIAR, 3, bytes.to_vec());
        net.run(secs(1));
        let told = Event::Unknown { from, what: name.to_owned() };
        assert_eq!(net.count_events(3, secs(10), |event| *event == told), 1, "{name}");
    }
    let counters = net.get(3).counters();
    let counted = [Count::DroppedUnknownKind, Count::DroppedVersion, Count::DroppedMalformed];
    assert_eq!(counted.map(|it| counters[it]), [1, 1, 0]);
}

#[test]
fn an_old_record_does_not_come_back() {
    let mut net = quiet_mesh(52);
    let old = net.get(3).directory().get(&net.id(1)).unwrap().state.clone().unwrap();
    net.with(1, Discovery::leave);
    net.run(secs(2));
    let farewell = net.get(3).directory().get(&net.id(1)).unwrap().state.clone().unwrap();
    assert!(farewell.get().left);
    net.crash(1);
    net.start(1, &[0]);
    net.until(secs(10), "a restart", Net::agreed);
    for replayed in [&old, &farewell] {
        let item = Item { state: Some(replayed.as_bytes()), ..item(&net, 1) };
        say(&mut net, 3, &Message::Rumours(vec![item]));
    }
    net.run(secs(5));
    assert_eq!(state_of(&net, 3, 1).generation, 2);
    assert_eq!(net.sees(3, 1), Some(Liveness::Alive));
}

#[test]
fn a_service_without_the_role_is_ignored_and_reported() {
    let mut net = quiet_mesh(53);
    // The honest code refuses at the source; a modified node signs anything.
    net.set_service(LIAR, OriginState::Ready);
    assert_eq!(net.get(LIAR).counters()[Count::DroppedOwn], 1);
    let mut claimed = state_of(&net, 3, LIAR);
    claimed.version += 1;
    claimed.services = vec![(SERVICE.parse().unwrap(), OriginState::Ready)];
    let signed = net.nodes[LIAR].member.sign(claimed);
    let item = Item { state: Some(signed.as_bytes()), ..item(&net, LIAR) };
    say(&mut net, 3, &Message::News(item));
    net.run(secs(5));
    let liar = net.id(LIAR);
    for observer in net.running().filter(|it| *it != LIAR) {
        let origins = net.get(observer).directory();
        let origins: Vec<_> = origins.origins(&SERVICE.parse().unwrap()).collect();
        assert_eq!(origins.len(), 2);
        assert!(origins.iter().all(|(entry, _)| entry.node() != liar));
        assert!(net.get(observer).paths().get(&liar).is_none());
    }
    let told = |event: &Event| matches!(event, Event::Ignored { node, .. } if *node == liar);
    assert_eq!(net.count_events(3, secs(10), told), 1);
}

#[test]
fn a_stranger_does_not_get_in_by_hearsay() {
    let mut net = quiet_mesh(54);
    let foreign = Mesh::new(99).member(77, "site-0", "node,origin:kube-apiserver");
    let expired =
        net.mesh.member_issued(78, "site-0", "node", meshport_config::UnixSeconds(WALL.0 - 900));
    let mut tampered = expired.credential.clone();
    tampered.expires_at = meshport_config::UnixSeconds(u64::MAX);
    for credential in [&foreign.credential, &tampered] {
        let bytes = credential.to_bytes();
        let claim = Claim { life: Life::default(), incarnation: 0, standing: Standing::Alive };
        let about = Item::about(&credential.node);
        let item = Item { credential: Some(&bytes), claim: Some(claim), ..about };
        say(&mut net, 3, &Message::Rumours(vec![item]));
    }
    net.run(secs(5));
    assert_eq!(net.get(3).directory().len(), 12);
    assert_eq!(net.get(3).counters()[Count::RejectedCredentials], 2);
}

/// The holder of an invite signs a later credential for an existing origin, with fewer roles, and a
/// member sends it. It counts only once that origin has signed it.
#[test]
fn a_later_credential_that_its_node_has_not_signed_takes_nothing_from_it() {
    let mut net = quiet_mesh(61);
    let service = SERVICE.parse().unwrap();
    let origins = |net: &Net, it: usize| net.get(it).directory().origins(&service).count();
    let later = meshport_config::UnixSeconds(WALL.0 + 60);
    let leaked = net.mesh.with_invite(9);
    let (issued, _) = leaked.issued(1, "site-1", "node", later);
    let known = net.nodes[1].member.credential.clone();
    let liar = net.nodes[LIAR].member.credential.to_bytes();
    let end = |bytes: &[u8]| bytes[bytes.len() - 64..].to_vec();
    let before = net.get(3).counters()[Count::RejectedCredentials];
    // With its earlier signature, another node's, an invalid one, and none.
    for end in [end(&known.to_bytes()), end(&liar), vec![0; 64], Vec::new()] {
        let forged = [issued.to_bytes(), end].concat();
        let item = Item { credential: Some(&forged), ..item(&net, 1) };
        for to in (0..12).filter(|it| *it != LIAR) {
            say(&mut net, to, &Message::Rumours(vec![item]));
            say(&mut net, to, &Message::Items(vec![item]));
        }
    }
    net.run(secs(60));
    assert!(net.agreed());
    for it in net.running() {
        assert_eq!(origins(&net, it), 2, "node {it}");
        let entry = net.get(it).directory().get(&known.node).unwrap();
        assert_eq!(*entry.credential, known, "node {it}");
    }
    // A truncated credential is not even verified.
    assert_eq!(net.get(3).counters()[Count::RejectedCredentials] - before, 6);
    let agreed = leaked.member_issued(1, "site-1", "node", later).credential.to_bytes();
    let item = Item { credential: Some(&agreed), ..item(&net, 1) };
    say(&mut net, 3, &Message::Rumours(vec![item]));
    net.run(secs(1));
    assert_eq!(origins(&net, 3), 1, "its own word counts");
}

#[test]
fn calling_everybody_down_evicts_nobody() {
    let mut net = quiet_mesh(55);
    for _ in 0..10 {
        for to in 0..12 {
            let mut items = Vec::new();
            for about in (0..12).filter(|it| *it != LIAR) {
                let life = state_of(&net, to, about).life();
                let claim = Claim { life, incarnation: 0, standing: Standing::Down };
                items.push(Item { claim: Some(claim), ..item(&net, about) });
            }
            if to != LIAR {
                say(&mut net, to, &Message::Rumours(items));
            }
        }
        net.run(secs(1));
    }
    net.run(secs(10));
    // Each victim hears it about itself and continues in a new life; no member believes the lie.
    assert!(net.agreed());
    assert_eq!(member_downs(&net), 0);
    assert!(
        net.running().map(|it| net.get(it).counters()[Count::SoftenedClaims]).sum::<u64>() > 100
    );
}

#[test]
fn a_life_that_was_never_lived_does_not_block_a_node() {
    let mut net = quiet_mesh(56);
    for standing in [Standing::Alive, Standing::Down] {
        let life = Life { generation: u64::MAX, renewal: u32::MAX };
        let claim = Claim { life, incarnation: u16::MAX, standing };
        for to in (0..12).filter(|it| *it != LIAR) {
            let item = Item { claim: Some(claim), ..item(&net, 1) };
            say(&mut net, to, &Message::Items(vec![item]));
        }
    }
    net.run(secs(10));
    assert!(net.agreed());
    assert_eq!(member_downs(&net), 0);
    assert!(net.get(3).counters()[Count::DroppedClaimsUnsigned] >= 2);
}

#[test]
fn a_flood_of_records_is_cut_off() {
    let mut net = quiet_mesh(57);
    let garbage = [1; 100];
    let flood: Vec<Item<'_>> =
        (0..9).map(|_| Item { state: Some(&garbage[..]), ..item(&net, 1) }).collect();
    for _ in 0..1000 {
        say(&mut net, 3, &Message::Items(flood.clone()));
    }
    net.run(secs(1));
    assert!(net.get(3).counters()[Count::DroppedFlood] > 5000);
    let reported = net.count_events(3, secs(10), |event| matches!(event, Event::Ignored { .. }));
    assert!(reported <= 4, "{reported} events for one peer in a second");
}

/// Ten thousand members without valid signatures, and as many claims about them, sent as fast as
/// possible: no node accepts one, and the cost is bounded.
#[test]
fn ten_thousand_invented_members_are_nobody() {
    let mut net = quiet_mesh(60);
    let before = net.get(3).counters()[Count::RejectedCredentials];
    let real = net.nodes[LIAR].member.credential.to_bytes();
    for number in 0..10_000_u32 {
        let mut forged = real.clone();
        // Another node's key, which the signature then does not cover.
        forged[33..37].copy_from_slice(&number.to_be_bytes());
        let mut short = [0; 8];
        short[1..5].copy_from_slice(&number.to_be_bytes());
        let claim = Claim { life: Life::default(), incarnation: 0, standing: Standing::Alive };
        let item = Item {
            short: Short(short),
            credential: Some(&forged),
            state: None,
            claim: Some(claim),
        };
        say(&mut net, 3, &Message::Rumours(vec![item]));
        if number % 1000 == 999 {
            net.run(ms(100));
        }
    }
    net.run(secs(5));
    assert!(net.agreed());
    assert!(net.running().all(|it| net.get(it).directory().len() == 12));
    // One second of it: the burst and the rate of one peer.
    let checked = net.get(3).counters()[Count::RejectedCredentials] - before;
    assert!((1000..4000).contains(&checked), "{checked} signatures were checked");
    assert!(net.get(3).counters()[Count::DroppedFlood] > 5000);
}

#[test]
fn oversized_foreign_and_cut_off_datagrams_are_counted() {
    let mut net = quiet_mesh(58);
    net.inject(LIAR, 3, vec![0; 1201]);
    net.inject(LIAR, 3, vec![9, 0, 0]);
    net.inject(LIAR, 3, Vec::new());
    net.inject(LIAR, 3, vec![1]);
    net.run(ms(10));
    assert_eq!(net.get(3).counters()[Count::DroppedMalformed], 3);
    assert_eq!(net.get(3).counters()[Count::DroppedVersion], 1);
}

#[test]
fn what_is_meant_for_a_stranger_is_not_sent_and_no_overflow() {
    let mut net = Net::with_nodes(29, 3, 1, 1);
    net.until(secs(20), "joining", Net::agreed);
    let stranger = NodeId::from_bytes([9; 32]);
    let sent = net.get(0).counters()[Count::SentPackets];
    net.with(0, |node, _| {
        node.send_bytes(stranger, vec![0]);
        assert_eq!(node.counters()[Count::SentPackets], sent);
    });
    let counters = net.get(0).counters();
    let dropped = [Count::DroppedUnknownReceiver, Count::DroppedTransmits].map(|it| counters[it]);
    assert_eq!(dropped, [1, 0]);
}
