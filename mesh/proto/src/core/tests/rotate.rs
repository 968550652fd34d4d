//! Rotation of the mesh secret: which nodes get it, which one a handshake uses, and what is lost.

use meshport_config::{MeshSecrets, NextSecret, Revocation, Revocations, Revoked, SecretId};

use super::*;
use crate::admission::RevocationSummary;

/// The overlap, in seconds.
const OVERLAP: u64 = 3600;

fn secret(number: u8) -> MeshSecret {
    MeshSecret::from_bytes([number + 1; 32])
}

/// Secret `number` of the mesh of authority 1; that of `identity` has number 0.
fn next(number: u8) -> NextSecret {
    let until = UnixSeconds(WALL.0 + OVERLAP);
    let authority = AuthorityKey::from_bytes([1; 32]);
    NextSecret::issue(&authority, u64::from(number), secret(number), WALL, until)
}

/// The secrets of a node that had the previous one and accepted this one.
fn both(number: u8) -> MeshSecrets {
    let mesh = AuthorityKey::from_bytes([1; 32]).public();
    let before = MeshSecrets::from(secret(number - 1));
    before.take(&next(number), &mesh).unwrap().expect("it is newer")
}

fn hold(net: &mut Net, number: u8, secrets: &MeshSecrets) {
    net.node(number, |core, now| core.set_secrets(secrets.clone(), now));
}

/// The secrets that a node was asked to store, stored at once.
fn keep(net: &mut Net, number: u8) -> bool {
    let offered = net.events(number).into_iter().find_map(|event| match event {
        MeshEvent::Rotated { secrets, .. } => Some(secrets),
        _ => None,
    });
    offered.iter().for_each(|secrets| hold(net, number, secrets));
    net.pump();
    offered.is_some()
}

/// Under which secret the session of two nodes was agreed.
fn agreed(net: &Net, number: u8, other: u8) -> SecretId {
    net.nodes[&at(number)].peer(&id(other)).unwrap().tunnel.under().secret
}

fn of(number: u8) -> SecretId {
    SecretId::of(&secret(number))
}

/// The secret's number that a node has heard from another.
fn heard(net: &Net, number: u8, other: u8) -> Option<u64> {
    net.nodes[&at(number)].peer(&id(other)).unwrap().secret.number
}

/// A node whose process begins with these secrets.
fn start(net: &mut Net, number: u8, secrets: &MeshSecrets, peers: &[u8]) {
    net.add(number, identity(number), MeshConfig::default());
    hold(net, number, secrets);
    for other in peers {
        net.node(number, |core, now| core.set_peer(now, id(*other), &[at(*other)], None));
    }
}

#[test]
fn nothing_is_lost_while_one_secret_follows_the_other() {
    let mut net = Net::new(2);
    net.connect(1, 2);
    let mut sent = 0;
    for second in 0..900 {
        match second {
            10 => hold(&mut net, 1, &both(1)),
            // The end of the overlap.
            500 => net.now.wall = UnixSeconds(WALL.0 + OVERLAP),
            505 | 508 => {
                let mut secrets = both(1);
                assert!(secrets.retire(net.now.wall));
                hold(&mut net, if second == 505 { 1 } else { 2 }, &secrets);
            }
            _ => {}
        }
        net.seconds(1);
        for (from, to) in [(1, 2), (2, 1)] {
            net.send(from, to, b"on and on").unwrap();
            net.pump();
            sent += 1;
            let events = net.events(to);
            let arrived = |event: &MeshEvent| matches!(event, MeshEvent::Datagram { .. });
            assert_eq!(events.iter().filter(|it| arrived(it)).count(), 1, "second {second}");
            for event in events {
                assert!(!matches!(event, MeshEvent::SessionDown(_)), "second {second}");
                if let MeshEvent::Rotated { secrets, from } = event {
                    assert_eq!((to, from), (2, id(1)));
                    hold(&mut net, 2, &secrets);
                }
            }
        }
        if second == 130 {
            assert_eq!((agreed(&net, 1, 2), agreed(&net, 2, 1)), (of(1), of(1)), "at the rekey");
        }
    }
    let (one, two) = (net.counters(1), net.counters(2));
    assert_eq!((sent, heard(&net, 1, 2), heard(&net, 2, 1)), (1800, Some(1), Some(1)));
    assert!(one[MeshCount::HandshakesCompleted] >= 6, "{one:?}");
    assert_eq!(
        (one[MeshCount::InitiationsOtherSecret], two[MeshCount::InitiationsOtherSecret]),
        (0, 0)
    );
    assert_eq!((one[MeshCount::DroppedUnauthentic], two[MeshCount::DroppedUnauthentic]), (0, 0));
    // One half each: that of the previous secret is gone.
    let tunnel = format!("{:?}", net.nodes[&at(1)].peer(&id(2)).unwrap().tunnel);
    assert!(tunnel.contains("halves: 1"), "{tunnel}");
}

#[test]
fn a_session_lives_on_under_a_secret_that_is_gone() {
    let mut net = Net::new(2);
    net.connect(1, 2);
    for number in [1, 2] {
        let mut secrets = both(1);
        secrets.retire(UnixSeconds(WALL.0 + OVERLAP));
        hold(&mut net, number, &secrets);
    }
    net.pump();
    assert!(net.reaches(1, 2) && net.reaches(2, 1));
    assert_eq!(agreed(&net, 1, 2), of(0));
    for _ in 0..150 {
        net.seconds(1);
        assert!(net.reaches(1, 2) && net.reaches(2, 1));
    }
    assert_eq!((agreed(&net, 1, 2), agreed(&net, 2, 1)), (of(1), of(1)));
}

#[test]
fn all_get_it_even_if_much_is_lost() {
    let mut net = Net::new(4);
    let mut count = 0_u32;
    net.keep = Box::new(move |_| {
        count += 1;
        // Three of ten, without a pattern.
        count.wrapping_mul(2_654_435_761) >> 16 & 0x3ff >= 300
    });
    for (from, to) in [(1, 2), (2, 3), (3, 4)] {
        net.connect(from, to);
    }
    net.seconds(5);
    hold(&mut net, 1, &both(1));
    let mut kept = [false; 5];
    for _ in 0..60 {
        net.run(Duration::from_millis(500));
        for number in 2..=4 {
            kept[usize::from(number)] |= keep(&mut net, number);
        }
    }
    assert_eq!(kept, [false, false, true, true, true]);
    assert_eq!([heard(&net, 1, 2), heard(&net, 2, 3), heard(&net, 3, 4)], [Some(1); 3]);
}

#[test]
fn a_node_with_only_one_of_two_secrets_gets_in_at_once() {
    let old = MeshSecrets::from(secret(0));
    let mut new = both(1);
    new.retire(UnixSeconds(WALL.0 + OVERLAP));
    for (one, meets) in [(&old, of(0)), (&new, of(1))] {
        let mut net = Net::new(2);
        hold(&mut net, 2, &both(1));
        start(&mut net, 1, one, &[2]);
        net.connect(1, 2);
        assert!(net.up(1, 2) && net.up(2, 1), "as initiator");
        assert_eq!((agreed(&net, 1, 2), agreed(&net, 2, 1)), (meets, meets));
        assert_eq!(net.since_start(net.now.instant), Duration::ZERO);

        let mut net = Net::new(2);
        hold(&mut net, 2, &both(1));
        start(&mut net, 1, one, &[2]);
        net.connect(2, 1);
        net.run(Duration::from_millis(100));
        assert!(net.up(1, 2) && net.up(2, 1), "as responder");
        assert_eq!((agreed(&net, 1, 2), agreed(&net, 2, 1)), (meets, meets));
    }
}

#[test]
fn a_peer_that_says_nothing_is_met_by_what_worked_last() {
    let mut net = Net::new(2);
    hold(&mut net, 1, &both(1));
    // Like wireguard-go or a kernel with one pre-shared key: it shows no credential and sends no
    // messages.
    net.node(2, |core, now| {
        let slot = core.peers.of_node(&id(1)).unwrap();
        let _ = (core.connect(now, &id(1)), slot);
    });
    net.pump();
    net.node(1, |core, _| {
        let slot = core.peers.of_node(&id(2)).unwrap();
        core.peers.get_mut(slot).unwrap().secret.number = None;
    });
    assert_eq!(agreed(&net, 1, 2), of(0));
    net.seconds(200);
    let before = net.counters(1)[MeshCount::InitiationsOtherSecret];
    net.connect(1, 2);
    assert!(net.up(1, 2));
    assert_eq!(net.counters(1)[MeshCount::InitiationsOtherSecret], before, "no attempt was wasted");
}

#[test]
fn a_member_with_an_older_backup_is_found_under_the_other_secret() {
    let mut net = Net::new(2);
    hold(&mut net, 1, &both(1));
    hold(&mut net, 2, &both(1));
    net.connect(1, 2);
    assert_eq!((heard(&net, 1, 2), agreed(&net, 1, 2)), (Some(1), of(1)));
    net.seconds(200);
    start(&mut net, 2, &MeshSecrets::from(secret(0)), &[]);
    net.connect(1, 2);
    net.run(Duration::from_millis(100));
    assert!(net.up(1, 2), "{:?}", net.counters(1));
    assert_eq!(net.counters(1)[MeshCount::InitiationsOtherSecret], 1);
    assert!(keep(&mut net, 2), "and it is given the newer one again");
    net.seconds(1);
    assert_eq!(heard(&net, 1, 2), Some(1));
}

#[test]
fn a_cookie_is_used_under_the_secret_that_earned_it() {
    let mut net = Net::new(1);
    let limited = MeshConfig { handshakes_per_second: 1, ..MeshConfig::default() };
    net.add(2, identity(2), limited);
    net.add(3, identity(3), MeshConfig::default());
    for (from, to) in [(1, 2), (3, 2)] {
        net.node(from, |core, now| core.set_peer(now, id(to), &[at(to)], None));
    }
    hold(&mut net, 1, &both(1));
    net.connect(3, 2);
    net.connect(1, 2);
    net.run(Duration::from_secs(2));
    assert!(net.up(1, 2));
    assert!(net.counters(1)[MeshCount::CookiesReceived] >= 1);
    assert_eq!(agreed(&net, 1, 2), of(0));
}

#[test]
fn the_former_secret_leads_nowhere_after_the_end() {
    let mut net = Net::new(3);
    net.now.wall = UnixSeconds(WALL.0 + OVERLAP);
    // It has not been erased yet, but no longer opens anything.
    hold(&mut net, 1, &both(1));
    hold(&mut net, 2, &both(1));
    net.node(3, |core, now| core.connect(now, &id(1))).unwrap();
    net.node(2, |core, now| core.connect(now, &id(3))).unwrap();
    net.seconds(30);
    assert!(!net.up(1, 3) && !net.up(3, 1) && !net.up(2, 3) && !net.up(3, 2));
    net.connect(1, 2);
    assert!(net.up(1, 2));
}

#[test]
fn only_admitted_peers_are_handed_the_secret() {
    let mut net = Net::new(2);
    net.add(3, identity(3), MeshConfig::default());
    net.node(3, |core, now| {
        core.set_peer(now, id(1), &[at(1)], None);
        core.local.shown = b"not one".to_vec();
    });
    hold(&mut net, 1, &both(1));
    net.connect(3, 1);
    net.node(3, |core, now| {
        let slot = core.peers.of_node(&id(1)).unwrap();
        let number = Control::Number { number: 0, wants_yours: true };
        core.send_control(slot, now, ports::CONTROL, &number);
    });
    net.seconds(20);
    assert_eq!(net.counters(1)[MeshCount::SecretsHanded], 0);
    assert!(net.counters(1)[MeshCount::DroppedNotAdmitted] >= 1);
    net.connect(1, 2);
    net.seconds(1);
    assert!(keep(&mut net, 2));
    assert!(net.counters(1)[MeshCount::SecretsHanded] >= 1);
}

#[test]
fn a_node_with_fewer_revocations_learns_them_first() {
    let mut net = Net::new(2);
    let authority = AuthorityKey::from_bytes([1; 32]);
    let mut revoked = Revocations::default();
    revoked.add(Revocation::issue(&authority, Revoked::Node(id(9)), WALL));
    net.node(1, |core, now| core.set_revocations(revoked.clone(), now));
    net.connect(1, 2);
    hold(&mut net, 1, &both(1));
    net.seconds(10);
    assert!(!keep(&mut net, 2));
    assert!(net.counters(2)[MeshCount::DroppedEarlySecret] >= 3);
    // Another one with the same number is not the same.
    let mut other = Revocations::default();
    other.add(Revocation::issue(&authority, Revoked::Node(id(8)), WALL));
    net.node(2, |core, now| core.set_revocations(other, now));
    net.seconds(1);
    assert!(!keep(&mut net, 2));
    net.node(2, |core, now| core.set_revocations(revoked, now));
    net.seconds(1);
    assert!(keep(&mut net, 2));
}

#[test]
fn a_secret_that_the_authority_has_not_signed_is_dropped() {
    let mut net = Net::new(2);
    net.connect(1, 2);
    let stranger = AuthorityKey::from_bytes([2; 32]);
    let forged = NextSecret::issue(&stranger, 5, secret(5), WALL, WALL).to_bytes().unwrap();
    for next in [&forged[..], b"", b"noise"] {
        net.node(1, |core, now| {
            let slot = core.peers.of_node(&id(2)).unwrap();
            let revocations = RevocationSummary { count: 0, digest: 0 };
            let message = Control::Secret { revocations, next };
            core.send_control(slot, now, ports::CONTROL, &message);
        });
    }
    net.pump();
    assert_eq!(net.counters(2)[MeshCount::DroppedBadSecret], 3);
    assert!(!keep(&mut net, 2));
}

#[test]
fn a_mesh_that_never_rotated_says_nothing_of_it() {
    let mut net = Net::new(2);
    net.connect(1, 2);
    net.seconds(60);
    assert_eq!((heard(&net, 1, 2), heard(&net, 2, 1)), (None, None));
    // A liar costs a few datagrams and gets nothing.
    net.sent.clear();
    net.node(2, |core, now| {
        let slot = core.peers.of_node(&id(1)).unwrap();
        let lie = Control::Number { number: u64::MAX, wants_yours: true };
        core.send_control(slot, now, ports::CONTROL, &lie);
    });
    net.seconds(60);
    assert!(net.sent.len() <= 60, "{}", net.sent.len());
}
