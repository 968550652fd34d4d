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
            assert_eq!(reached, length < 100, "a renewal judges by the clock");
            net.ahead_s.clear();
            assert!(talk(&mut net, 2), "{size_s} s for {length} s");
            assert!(net.up(1, 2) && net.up(2, 1));
        }
    }
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
