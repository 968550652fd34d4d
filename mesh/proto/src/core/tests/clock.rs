//! A wall clock that is wrong for a while and then correct again.

use super::*;

const DAY_S: i64 = 24 * 3600;

/// Gossip both ways each second; whether the last of it arrived.
fn talk(net: &mut Net, seconds: u64) -> bool {
    let mut reached = false;
    for _ in 0..seconds {
        net.seconds(1);
        reached = net.reaches(1, 2) && net.reaches(2, 1);
    }
    reached
}

#[test]
fn a_peer_is_admitted_again_when_the_clock_is_right_again() {
    // Credentials of the tests last from an hour ago to tomorrow. Sessions are renewed in between,
    // and end.
    for length in [5, 20, 150, 400] {
        for size_s in [400 * DAY_S, -400 * DAY_S, 30_000 * DAY_S, -20_000 * DAY_S] {
            let mut net = Net::new(2);
            net.connect(1, 2);
            assert!(talk(&mut net, 3));
            net.ahead_s.insert(at(1), size_s);
            let reached = talk(&mut net, length);
            assert_eq!(reached, size_s < 0 || length < 100, "{size_s} s for {length} s");
            net.ahead_s.clear();
            assert!(talk(&mut net, 2), "{size_s} s for {length} s");
            assert!(net.up(1, 2) && net.up(2, 1));
        }
    }
}

#[test]
fn a_clock_that_goes_back_ends_no_session_and_the_peer_speaks_against_it() {
    let mut net = Net::new(2);
    net.connect(1, 2);
    assert!(talk(&mut net, 3));
    net.ahead_s.insert(at(1), -400 * DAY_S);
    net.notices(1);
    let mut told = Vec::new();
    // Longer than any session, so each has been renewed.
    for second in 0..400 {
        net.seconds(1);
        net.send(2, 1, b"on and on").unwrap();
        net.pump();
        let events = net.events(1);
        let arrived = |event: &MeshEvent| matches!(event, MeshEvent::Datagram { .. });
        assert!(events.iter().any(arrived), "second {second}");
        assert!(!events.iter().any(|it| matches!(it, MeshEvent::SessionDown(_))), "{second}");
        told.extend(events.into_iter().filter_map(|event| match event {
            MeshEvent::NotYetValid(begins) => Some(begins),
            _ => None,
        }));
    }
    assert!(!net.notices(1).iter().any(|it| matches!(it, Notice::Cut(..))));
    // A relay may present it too.
    net.node(1, |core, now| core.check_credential(&good(2), now)).unwrap();
    net.node(1, |core, now| core.check_credential(&good(3), now)).unwrap_err();
    assert!(!told.is_empty() && told.iter().all(|it| *it == good(2).issued_at), "{told:?}");
}

#[test]
fn a_credential_that_begins_later_than_the_clock_is_refused_and_speaks_against_it() {
    let mut net = Net::new(2);
    net.ahead_s.insert(at(1), -400 * DAY_S);
    let other = Arc::new(good(2));
    net.node(1, |core, now| core.set_peer(now, id(2), &[], Some(&other)));
    let told = net.events(1);
    let is_told =
        |it: &MeshEvent| matches!(it, MeshEvent::NotYetValid(at) if *at == other.issued_at);
    assert!(told.iter().any(is_told), "{told:?}");
    assert_eq!(net.nodes[&at(1)].peer(&id(2)).unwrap().admission.credential, None);
}

#[test]
fn a_peer_that_was_refused_by_a_wrong_clock_shows_its_credential_again() {
    let mut net = Net::new(2);
    net.ahead_s.insert(at(1), 400 * DAY_S);
    net.connect(1, 2);
    // Longer than a hello is repeated.
    assert!(!talk(&mut net, 100));
    assert_eq!(net.nodes[&at(1)].peer(&id(2)).unwrap().admission.credential, None);
    net.ahead_s.clear();
    assert!(talk(&mut net, 3));
}
