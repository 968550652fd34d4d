//! Crashes, partitions, loss and starvation.

use std::time::Duration;

use super::net::{Net, SERVICE, ms, secs};
use crate::Count;
use crate::core::Event;
use crate::directory::Liveness;
use crate::paths::{PathState, PathUse};
use crate::state::OriginState;
use crate::tests::WALL;
use crate::wire::{Claim, Standing};

#[test]
fn a_crash_is_known_everywhere_within_seconds() {
    for (seed, victim) in [(11, 9), (12, 1), (13, 30)] {
        let mut net = Net::with_nodes(seed, 60, 5, 3);
        net.links.loss_percent = 1;
        net.run(secs(40));
        net.crash(victim);
        net.until(secs(8), "death", |net| {
            net.running().all(|it| net.sees(it, victim) == Some(Liveness::Down))
        });
    }
}

#[test]
fn loss_of_two_percent_evicts_nobody() {
    let mut net = Net::with_nodes(14, 40, 4, 3);
    net.links.loss_percent = 2;
    net.run(secs(40));
    let start = net.now();
    net.run(secs(1800));
    let downs: usize = net
        .running()
        .map(|it| net.count_events(it, start, |event| matches!(event, Event::MemberDown(_))))
        .sum();
    let sum = |of: Count| -> u64 { net.running().map(|it| net.get(it).counters()[of]).sum() };
    println!("suspicions {} refutations {}", sum(Count::Suspicions), sum(Count::Refutations));
    assert_eq!(downs, 0);
    assert_eq!(sum(Count::Renewals), 0);
}

#[test]
fn a_starved_node_evicts_nobody_and_is_not_evicted_for_long() {
    let mut net = Net::with_nodes(15, 30, 3, 2);
    net.until(secs(20), "joining", Net::agreed);
    net.run(secs(5));
    let start = net.now();
    for _ in 0..20 {
        net.freeze(4, ms(2500));
        net.run(ms(3500));
    }
    let others = |net: &Net, of: usize| {
        net.count_events(
            of,
            start,
            |event| matches!(event, Event::MemberDown(node) if *node != net.id(4)),
        )
    };
    assert!(net.running().all(|it| others(&net, it) == 0));
    assert!(net.get(4).counters()[Count::Stalls] >= 20);
    net.until(secs(10), "calm", Net::agreed);
    // A long freeze counts as a death, and the node survives it.
    let start = net.now();
    net.freeze(4, secs(30));
    net.run(secs(20));
    assert_eq!(net.sees(0, 4), Some(Liveness::Down));
    net.run(secs(10));
    net.until(secs(15), "awake", Net::agreed);
    assert_eq!(net.count_events(4, start, |event| matches!(event, Event::MemberDown(_))), 0);
}

#[test]
fn a_site_of_nodes_starved_for_200_ms_at_a_time_evicts_nobody() {
    let mut net = Net::with_nodes(16, 30, 3, 2);
    net.until(secs(20), "joining", Net::agreed);
    let start = net.now();
    for _ in 0..300 {
        for number in (0..30).step_by(3) {
            net.freeze(number, ms(200));
        }
        net.run(ms(400));
    }
    let downs = |it| net.count_events(it, start, |event| matches!(event, Event::MemberDown(_)));
    assert_eq!(net.running().map(downs).sum::<usize>(), 0);
}

#[test]
fn a_partition_is_noticed_by_both_sides_and_heals() {
    let mut net = Net::with_nodes(17, 24, 2, 2);
    net.until(secs(20), "joining", Net::agreed);
    let (even, odd): (Vec<usize>, Vec<usize>) = (0..24).partition(|it| it % 2 == 0);
    net.partition(&even, &odd);
    net.until(secs(30), "partition", |net| {
        even.iter().all(|it| net.sees(*it, 1) == Some(Liveness::Down))
            && odd.iter().all(|it| net.sees(*it, 0) == Some(Liveness::Down))
    });
    net.run(secs(60));
    net.heal();
    net.until(secs(30), "healing", Net::agreed);
}

#[test]
fn a_death_that_the_others_deny_is_taken_back_and_a_true_one_is_not() {
    let mut net = Net::with_nodes(20, 12, 3, 2);
    net.until(secs(20), "joining", Net::agreed);
    net.partition(&[4], &[7]);
    net.run(secs(5));
    let (victim, dead) = (net.id(7), net.id(9));
    net.with(4, |node, now| {
        let life = node.peers.directory.get(&victim).and_then(|it| it.life).unwrap();
        let claim = Claim { life, incarnation: 1, standing: Standing::Down };
        node.apply_claims(vec![(victim, claim)], false, now);
    });
    assert_eq!(net.sees(4, 7), Some(Liveness::Down));
    net.crash(9);
    net.until(secs(10), "death", |net| {
        net.running().all(|it| net.sees(it, 9) == Some(Liveness::Down))
    });
    let start = net.now();
    net.until(secs(60), "second thoughts", |net| net.sees(4, 7) == Some(Liveness::Alive));
    net.run(secs(20));
    assert_eq!(net.sees(4, 7), Some(Liveness::Alive));
    net.run(secs(120));
    let ups = |it| {
        net.count_events(it, start, |event| matches!(event, Event::MemberUp(node) if *node == dead))
    };
    assert_eq!(net.running().map(ups).sum::<usize>(), 0, "the dead stay dead");
}

#[test]
fn a_peer_without_a_session_is_not_blamed() {
    // Sessions are made on first use here, and each first packet waits for a round trip of 560 ms.
    let mut net = Net::new(18);
    net.links.latency = |a, b| if a == b { 1 } else { 140 };
    for number in 0..30 {
        net.add(number % 2, "node");
    }
    for number in 0..30 {
        net.start(number, &[0]);
    }
    net.until(secs(30), "joining over a slow link", Net::agreed);
    let start = net.now();
    net.run(secs(120));
    let downs = |it| net.count_events(it, start, |event| matches!(event, Event::MemberDown(_)));
    assert_eq!(net.running().map(downs).sum::<usize>(), 0);
    let suspicions: u64 = net.running().map(|it| net.get(it).counters()[Count::Suspicions]).sum();
    assert_eq!(suspicions, 0);
}

#[test]
fn an_active_path_dies_in_about_a_second_and_comes_back() {
    let mut net = Net::with_nodes(19, 6, 3, 2);
    net.until(secs(20), "joining", Net::agreed);
    let origin = net.id(1);
    net.with(5, |node, now| node.set_path_interest(origin, Some(PathUse::Active), now));
    net.run(secs(20));
    let state = |net: &Net| net.get(5).paths().get(&origin).unwrap().state;
    assert_eq!(state(&net), PathState::Up);
    net.partition(&[5], &[1]);
    net.until(ms(1500), "path death", |net| state(net) == PathState::Dead);
    net.run(secs(20));
    assert_eq!(net.sees(5, 1), Some(Liveness::Alive), "others still reach it, so it lives");
    net.heal();
    net.until(ms(1500), "path life", |net| state(net) == PathState::Up);
    assert_eq!(net.get(5).counters()[Count::DroppedTransmits], 0);
}

/// What they send goes to its former address, so the origin has nothing to answer.
#[test]
fn the_users_of_an_origin_keep_their_paths_when_its_address_changes() {
    let mut net = Net::with_nodes(19, 6, 3, 2);
    net.until(secs(20), "joining", Net::agreed);
    let (origin, users) = (net.id(1), [0, 3, 4, 5]);
    for user in users {
        net.with(user, |node, now| node.set_path_interest(origin, Some(PathUse::Active), now));
    }
    for phase in 0..25 {
        net.run(secs(5) + ms(phase * 21));
        net.links.rebind(1, &[0, 2, 3, 4, 5]);
        for _ in 0..100 {
            net.run(ms(20));
            for user in users {
                let path = net.get(user).paths().get(&origin).expect("measured");
                assert_eq!(path.state, PathState::Up, "{user}, phase {phase}, {:?}", net.now());
            }
        }
    }
}

/// Small packets pass, and the client sends nothing long: the origin notices.
#[test]
fn an_origin_whose_long_packets_are_lost_has_its_users_try_the_path() {
    let mut net = Net::with_nodes(19, 6, 3, 2);
    net.run(secs(40));
    let origin = net.id(0);
    net.with(5, |node, now| node.set_path_interest(origin, Some(PathUse::Active), now));
    net.run(secs(2));
    let state = |net: &Net| net.get(5).paths().get(&origin).expect("measured").state;
    net.links.narrow = Some((0, 5));
    net.run(secs(4));
    assert_eq!(state(&net), PathState::Up, "nothing long was sent yet");
    let user = net.id(5);
    net.with(0, |node, now| node.handle_unacknowledged(user, now));
    net.until(ms(1500), "the user leaves the path", |net| state(net) == PathState::Dead);
    assert!(net.get(5).paths().get(&origin).expect("measured").narrow);
    let is_split = |event: &Event| *event == Event::Split { node: origin, on: true };
    let told = net.count_events(5, secs(40), is_split);
    assert_eq!(told, 2, "on trial, and because it is narrow");
    // A node that is heard directly needs no reports of others, and a healthy path stays up.
    let other = net.id(1);
    net.with(5, |node, now| node.set_path_interest(other, Some(PathUse::Active), now));
    net.run(secs(2));
    net.with(1, |node, now| node.handle_unacknowledged(user, now));
    net.run(secs(2));
    net.links.narrow = Some((5, 1));
    net.with(5, |node, now| node.handle_unacknowledged(other, now));
    let path = |net: &Net| net.get(5).paths().get(&other).expect("measured").state;
    assert_eq!(path(&net), PathState::Up);
    net.until(ms(3500), "it leaves that one too", |net| path(net) == PathState::Dead);
}

#[test]
fn a_path_that_nobody_needs_is_measured_while_long_packets_are_lost_on_it() {
    let mut net = Net::with_nodes(23, 4, 1, 1);
    net.run(secs(40));
    let member = net.id(3);
    let is_measured = |net: &Net| net.get(2).paths().get(&member).is_some();
    assert!(!is_measured(&net), "it is no origin");
    net.links.narrow = Some((2, 3));
    net.with(2, |node, now| node.handle_unacknowledged(member, now));
    let on = Event::Split { node: member, on: true };
    net.run(secs(2));
    assert!(net.count_events(2, secs(40), |event| *event == on) > 0, "fragments are tried");
    net.links.narrow = None;
    net.run(secs(30));
    net.with(2, |node, now| node.handle_unacknowledged(member, now));
    net.run(secs(50));
    assert!(is_measured(&net), "a minute after the last word of it");
    net.until(secs(60), "nobody needs it any more", |net| !is_measured(net));
    // One that was asked for stays.
    net.with(2, |node, now| {
        node.handle_unacknowledged(member, now);
        node.set_path_interest(member, Some(PathUse::Idle), now);
    });
    net.run(secs(120));
    assert!(is_measured(&net));
}

#[test]
fn loss_of_two_percent_kills_no_path() {
    let mut net = Net::with_nodes(20, 6, 3, 3);
    net.links.loss_percent = 2;
    net.until(secs(20), "joining", Net::agreed);
    for number in 0..6 {
        for origin in (0..3).filter(|it| *it != number) {
            let origin = net.id(origin);
            net.with(number, |node, now| {
                node.set_path_interest(origin, Some(PathUse::Active), now);
            });
        }
    }
    net.run(secs(5));
    let deaths = |net: &Net| {
        let paths = net.running().flat_map(|it| net.get(it).paths().iter().map(|it| it.1));
        paths.filter(|path| path.state == PathState::Dead).count()
    };
    for _ in 0..3600 {
        net.run(ms(500));
        assert_eq!(deaths(&net), 0, "at {:?}", net.now());
    }
}

/// Credentials last 300 days.
const DAY_S: i64 = 24 * 3600;

fn puts_its_clock_right(size_s: i64, length: Duration, victim: usize, seeds: &[usize]) {
    let mut net = Net::new(17);
    // Some of the lengths exceed it, and exceed the lifetime of tombstones.
    net.config.forget_after = secs(30);
    for number in 0..12 {
        net.add(number % 3, if number < 2 { "node,origin:kube-apiserver" } else { "node" });
        net.start(number, if number == victim { seeds } else { &[0] });
    }
    net.set_service(0, OriginState::Ready);
    net.until(secs(30), "joining", Net::agreed);
    net.run(secs(5));
    net.set_clock(victim, size_s);
    net.run(length);
    if size_s > 300 * DAY_S {
        let alone = net.get(victim).directory().len() == 1;
        assert!(alone, "by its clock all others have ended");
    }
    net.set_clock(victim, 0);
    let what = format!("{size_s} s for {length:?}");
    net.until(secs(10), &what, Net::agreed);
    net.until(secs(5), "its service", |net| net.sees_service(victim, 0).is_some());
}

#[test]
fn a_clock_that_was_wrong_isolates_nobody_once_it_is_right() {
    for length in [secs(20), secs(60)] {
        for size_s in [400 * DAY_S, 40_000 * DAY_S, -400 * DAY_S, -19_000 * DAY_S, DAY_S] {
            puts_its_clock_right(size_s, length, 7, &[0]);
        }
    }
    // The first node has no seeds, and the others have only that one.
    puts_its_clock_right(400 * DAY_S, secs(20), 0, &[]);
    puts_its_clock_right(400 * DAY_S, secs(300), 0, &[]);
}

/// A clock that is wrong only at a start costs no member, whichever way it is wrong.
#[test]
fn a_directory_read_while_the_clock_is_wrong_is_whole_when_it_is_right() {
    for ahead_s in [400 * DAY_S, -400 * DAY_S] {
        let mut net = Net::with_nodes(19, 6, 2, 1);
        net.until(secs(20), "joining", Net::agreed);
        let saved = net.get(3).snapshot();
        net.crash(3);
        net.set_clock(3, ahead_s);
        net.boot(3, &[], Some(&saved));
        assert_eq!(net.get(3).directory().len(), 1);
        // What is saved meanwhile has them too.
        let saved = net.get(3).snapshot();
        net.crash(3);
        net.boot(3, &[], Some(&saved));
        net.set_clock(3, 0);
        net.until(secs(10), "back without seeds", Net::agreed);
    }
}

#[test]
fn a_directory_saved_while_the_clock_is_wrong_is_whole() {
    let mut net = Net::with_nodes(18, 6, 2, 1);
    net.until(secs(20), "joining", Net::agreed);
    net.set_clock(3, 400 * DAY_S);
    net.run(secs(30));
    assert_eq!(net.get(3).directory().len(), 1);
    let saved = net.get(3).snapshot();
    net.crash(3);
    net.set_clock(3, 0);
    net.boot(3, &[], Some(&saved));
    assert_eq!(net.get(3).directory().len(), 6);
    net.until(secs(10), "back without seeds", Net::agreed);
}

/// Two of three clocks are ahead while one of the two gets a credential, and are right again. Its
/// node returns to one that counts now, with fewer roles.
#[test]
fn a_credential_from_the_future_is_forgotten_once_its_node_shows_another() {
    let mut net = Net::with_nodes(20, 3, 1, 1);
    net.until(secs(20), "joining", Net::agreed);
    net.run(secs(5));
    let show = |net: &mut Net, roles: &str, at: u64, to: &[usize]| {
        let at = meshport_config::UnixSeconds(at);
        let credential = net.mesh.member_issued(0, "site-0", roles, at).credential;
        net.show(0, &credential, to);
    };
    let origins =
        |net: &Net, it: usize| net.get(it).directory().origins(&SERVICE.parse().unwrap()).count();
    assert_eq!([0, 1, 2].map(|it| origins(&net, it)), [1; 3]);
    // An invite signs for this long.
    let ahead_s = 900;
    net.set_clock(0, ahead_s);
    net.set_clock(1, ahead_s);
    net.run(secs(5));
    show(&mut net, "node,origin:kube-apiserver", WALL.0 + ahead_s.unsigned_abs(), &[1]);
    net.run(secs(5));
    net.set_clock(0, 0);
    net.set_clock(1, 0);
    show(&mut net, "node", WALL.0 + 60, &[1, 2]);
    net.run(secs(5));
    assert_eq!([0, 1, 2].map(|it| origins(&net, it)), [0; 3]);
    let rejected =
        |net: &Net| [0, 1, 2].map(|it| net.get(it).counters()[Count::RejectedCredentials]);
    let before = rejected(&net);
    net.run(secs(120));
    assert!(net.identical());
    assert_eq!(rejected(&net), before, "nobody offers it any more");
}
