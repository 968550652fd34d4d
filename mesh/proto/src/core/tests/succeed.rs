//! A node continues under another key: losses, and which claims peers accept.

use meshport_config::{Revocations, Succession};

use super::*;

/// The credential of node `next`, which succeeds node `number`.
fn successor(next: u8, succession: Succession) -> Credential {
    let subject = Subject {
        node: id(next),
        record_key: RecordKey::from_bytes([8; 32]).public(),
        name: "node-2".parse().unwrap(),
        site: "fra".parse().unwrap(),
        roles: "node".parse().unwrap(),
        succession: Some(succession),
    };
    let until = UnixSeconds(WALL.0 + 86_400);
    let authority = AuthorityKey::from_bytes([1; 32]);
    let issued = Credential::issue_by_authority(&authority, subject, WALL, until).unwrap();
    issued.countersign(&key(next)).unwrap()
}

fn mesh() -> meshport_config::MeshId {
    AuthorityKey::from_bytes([1; 32]).public()
}

fn agreed(number: u8, next: u8) -> Credential {
    successor(next, Succession::agree(&key(number), &id(next), &mesh(), WALL))
}

/// Node `number` continues with the key of `next`.
fn succeed(net: &mut Net, number: u8, next: u8) {
    let (secret, credential) = (MeshSecret::from_bytes([1; 32]), agreed(number, next));
    let identity = Identity { key: key(next), credential, secret };
    net.node(number, |core, now| {
        let gate = core.gate_for(&identity);
        core.succeed(identity, gate, now).unwrap();
    });
    net.pump();
}

/// Sends a datagram to a node by its current id; whether it arrived, and what else happened.
fn exchange(net: &mut Net, from: u8, to: (u8, NodeId)) -> (bool, Vec<MeshEvent>) {
    net.node(from, |core, now| core.send_datagram(now, to.1, ports::GOSSIP, b"on")).unwrap();
    net.pump();
    let events = net.events(to.0);
    (events.iter().any(|it| matches!(it, MeshEvent::Datagram { .. })), events)
}

/// Sends a QUIC packet to `label`; the label under which it arrives.
fn stream(net: &mut Net, from: u8, to: u8, label: Ipv6Addr) -> Option<Ipv6Addr> {
    let mut out = Vec::new();
    let batch = net.node(from, |core, now| {
        let datagrams = Datagrams { bytes: b"quic", segment: 4 };
        core.seal_streams(now, &label, datagrams, &mut out, 0).expect("there is a session")
    });
    let mut opened = vec![0; 2048];
    let packet = net.node(to, |core, now| {
        core.handle_datagram(now, Route::from(at(from)), &out[..batch.length], &mut opened)
    });
    net.pump();
    packet.map(|packet| packet.from)
}

fn label(net: &Net, number: u8, node: NodeId) -> Option<Ipv6Addr> {
    net.nodes[&at(number)].address_of(&node).ok()
}

fn halves(net: &Net, number: u8, node: NodeId) -> String {
    format!("{:?}", net.nodes[&at(number)].peer(&node).unwrap().tunnel)
}

#[test]
fn nothing_is_lost_while_a_node_changes_its_key() {
    let mut net = Net::new(2);
    net.connect(1, 2);
    let labels = (label(&net, 1, id(2)).unwrap(), label(&net, 2, id(1)).unwrap());
    let mut other = id(2);
    for second in 0..600 {
        match second {
            10 => {
                succeed(&mut net, 2, 12);
                other = id(12);
            }
            20 => net.node(2, Core::retire),
            _ => {}
        }
        net.seconds(1);
        let (there, _) = exchange(&mut net, 1, (2, other));
        let (back, events) = exchange(&mut net, 2, (1, id(1)));
        assert!(there && back, "second {second}");
        for event in events {
            if let MeshEvent::Datagram { from, .. } = event {
                assert_eq!(from, other, "second {second}");
            }
        }
        // The old connections never notice.
        assert_eq!(stream(&mut net, 1, 2, labels.0), Some(labels.1), "second {second}");
        assert_eq!(stream(&mut net, 2, 1, labels.1), Some(labels.0), "second {second}");
    }
    assert_eq!((label(&net, 1, id(2)), label(&net, 1, id(12))), (None, Some(labels.0)));
    assert_eq!(net.nodes[&at(1)].node_at(&labels.0), Some(id(12)));
    let (one, two) = (net.counters(1), net.counters(2));
    assert_eq!((one[MeshCount::PeersSucceeded], two[MeshCount::PeersSucceeded]), (1, 0));
    let lost =
        |it: MeshCounters| it[MeshCount::DroppedUnauthentic] + it[MeshCount::DroppedInnerSource];
    assert_eq!((lost(one), lost(two)), (0, 0));
    assert!(halves(&net, 2, id(1)).contains("halves: 1"), "{}", halves(&net, 2, id(1)));
    assert!(halves(&net, 1, id(12)).contains("halves: 1"), "{}", halves(&net, 1, id(12)));
    let notices = net.notices(1);
    let cut = notices.iter().find(|it| matches!(it, Notice::Cut(..)));
    assert!(cut.is_none(), "{cut:?}");
    assert!(notices.iter().any(|it| matches!(it, Notice::Renamed(..))));
}

#[test]
fn a_peer_is_known_by_its_new_key_at_once() {
    let mut net = Net::new(2);
    net.connect(1, 2);
    net.seconds(1);
    net.events(1);
    succeed(&mut net, 2, 12);
    let events = net.events(1);
    let at = |is: fn(&MeshEvent) -> bool| events.iter().position(is).expect("it is reported");
    let succeeded = at(|it| matches!(it, MeshEvent::Succeeded { .. }));
    let down = at(|it| matches!(it, MeshEvent::SessionDown(_)));
    let up = at(|it| matches!(it, MeshEvent::SessionUp(_)));
    assert!(succeeded < down && down < up, "{events:?}");
    let MeshEvent::Succeeded { former, credential } = &events[succeeded] else { unreachable!() };
    assert_eq!((*former, credential.node), (id(2), id(12)));
    // A session with the new key is there already, made by its holder.
    let under = net.nodes[&super::at(1)].peer(&id(12)).unwrap().tunnel.under();
    assert_eq!((under.own, under.peer), (id(1), id(12)));
}

#[test]
fn a_peer_that_only_knows_the_previous_key_is_answered_until_the_end() {
    let mut net = Net::new(4);
    succeed(&mut net, 2, 12);
    net.connect(3, 2);
    assert!(net.nodes[&at(3)].peer(&id(12)).is_some_and(|peer| peer.admission.admitted));
    assert!(exchange(&mut net, 3, (2, id(12))).0);
    net.node(2, Core::retire);
    assert!(exchange(&mut net, 3, (2, id(12))).0, "the new key is agreed on");
    net.connect(4, 2);
    net.seconds(60);
    assert!(!net.up(4, 2) && net.nodes[&at(4)].peer(&id(12)).is_none());
    assert!(net.counters(2)[MeshCount::DroppedBadMac] > 0);
}

#[test]
fn a_stranger_that_turns_out_to_be_a_successor_is_that_peer() {
    let mut net = Net::new(2);
    let before = label(&net, 1, id(2)).unwrap();
    net.node(1, |core, _| core.set_narrow(&id(2), true));
    succeed(&mut net, 2, 12);
    // The successor makes the handshake, with an unknown key.
    net.node(2, |core, now| core.connect(now, &id(1))).unwrap();
    net.pump();
    assert!(exchange(&mut net, 1, (2, id(12))).0);
    assert_eq!((label(&net, 1, id(2)), label(&net, 1, id(12))), (None, Some(before)));
    assert_eq!(net.nodes[&at(1)].peer_count(), 1);
    let is_cautious = net.node(1, |core, now| core.caution.is_due(now.instant));
    assert!(!is_cautious, "what was known of the previous node's path is forgotten");
}

#[test]
fn hearsay_is_enough_when_it_is_signed_and_sessions_stay_either_way() {
    let mut net = Net::new(2);
    net.connect(1, 2);
    let before = label(&net, 1, id(2)).unwrap();
    let credential = agreed(2, 12);
    // The revocation comes first: a node that has a successor is not cut.
    let mut all = Revocations::default();
    all.add(credential.ends_former().unwrap());
    net.node(1, |core, now| core.set_revocations(all.clone(), now));
    assert!(net.up(1, 2));
    net.node(1, |core, now| {
        core.set_peer(now, id(12), &[at(2)], Some(&Arc::new(credential.clone())));
    });
    assert!(!net.up(1, 2) && net.up(1, 12));
    assert_eq!(label(&net, 1, id(12)), Some(before));
    assert_eq!(net.counters(1)[MeshCount::PeersRevoked], 0);
    // A node that was not informed, and has a session with a holder of the old key, cuts it once it
    // is informed.
    net.add(3, identity(3), MeshConfig::default());
    net.add(8, identity(2), MeshConfig::default());
    for (number, other) in [(3, 8), (8, 3)] {
        let node = if other == 8 { id(2) } else { id(3) };
        net.node(number, |core, now| core.set_peer(now, node, &[at(other)], None));
    }
    net.connect(3, 2);
    assert!(net.up(3, 2));
    net.node(3, |core, now| core.set_peer(now, id(12), &[at(2)], None));
    net.node(3, |core, now| core.set_revocations(all.clone(), now));
    assert!(!net.up(3, 2) && net.counters(3)[MeshCount::PeersRevoked] == 1);
    // A holder of the old key gets no handshake.
    net.add(9, identity(2), MeshConfig::default());
    net.node(9, |core, now| core.set_peer(now, id(1), &[at(1)], None));
    net.node(9, |core, now| core.connect(now, &id(1))).unwrap();
    net.pump();
    net.seconds(10);
    assert!(net.counters(1)[MeshCount::DroppedRevoked] > 0 && !net.up(1, 2));
}

#[test]
fn nobody_follows_a_stranger_that_only_claims_to_succeed_a_node() {
    let mut net = Net::new(3);
    net.connect(1, 2);
    let mut forged = Succession::agree(&key(3), &id(3), &mesh(), WALL);
    forged.former = id(2);
    let forged = successor(3, forged);
    net.events(1);
    net.node(3, |core, _| core.local.shown = forged.to_bytes());
    net.connect(3, 1);
    net.seconds(2);
    net.node(1, |core, now| core.set_peer(now, id(3), &[at(3)], Some(&Arc::new(forged.clone()))));
    let events = net.events(1);
    let refused = events.iter().find_map(|event| match event {
        MeshEvent::Refused { node, reason } if *node == id(3) => Some(reason.clone()),
        _ => None,
    });
    assert!(refused.is_some_and(|it| it.contains("consent")), "{events:?}");
    assert!(net.up(1, 2) && !net.up(1, 3));
    assert_eq!(net.counters(1)[MeshCount::PeersSucceeded], 0);
    // Nor does the node itself continue as a node that is not its successor.
    let secret = MeshSecret::from_bytes([1; 32]);
    let foreign = Identity { key: key(12), credential: agreed(2, 12), secret };
    let gate = net.nodes[&at(1)].gate_for(&foreign);
    assert!(net.node(1, |core, now| core.succeed(foreign, gate, now)).is_err());
}
