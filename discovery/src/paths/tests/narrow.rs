//! Paths that lose long packets, to peers that join fragments.

use super::*;

/// A path with sessions, up for half a minute, to a peer that joins fragments.
fn bench(rtt: u64) -> Bench {
    let mut bench = Bench::new();
    bench.joins = true;
    bench.paths.set(node(1), Some(PathUse::Active), true, bench.now);
    bench.run(ms(30_000), ms(rtt), true);
    assert!(bench.sent_split.is_empty() && !is_split(&bench), "a wide path needs none");
    bench.changes.clear();
    bench
}

fn is_split(bench: &Bench) -> bool {
    bench.paths.is_split(&node(1))
}

fn is_narrow(bench: &Bench) -> bool {
    bench.paths.get(&node(1)).unwrap().narrow
}

/// Runs until the condition holds; how long that took.
fn until(bench: &mut Bench, limit: u64, rtt: u64, holds: impl Fn(&Bench) -> bool) -> Duration {
    let begun = bench.now;
    while !holds(bench) {
        bench.run(ms(10), ms(rtt), true);
        assert!(bench.now - begun <= ms(limit), "not after {limit} ms");
    }
    bench.now - begun
}

fn stays_up(bench: &Bench) -> bool {
    bench.changes.iter().all(|(_, state)| *state == PathState::Up)
}

#[test]
fn a_path_that_carries_fragments_is_narrow_and_not_dead_until_it_is_wide_again() {
    for rtt in [1, 20, 120] {
        let mut bench = bench(rtt);
        bench.narrow = true;
        bench.paths.doubt(node(1), bench.now);
        let split = until(&mut bench, 1500, rtt, is_split);
        let known = split + until(&mut bench, 3500, rtt, is_narrow);
        println!("{rtt} ms: split after {split:?}, narrow after {known:?}");
        assert_eq!(bench.loss_percent(), 0, "what passes in fragments is not lost");
        // For an hour, with its sessions.
        let sent = bench.sent_split.len();
        bench.run(ms(3_600_000), ms(rtt), true);
        assert!(is_narrow(&bench) && is_split(&bench) && stays_up(&bench));
        let probes = bench.sent_split.len() - sent;
        assert!((200..300).contains(&probes), "{probes} in an hour");
        bench.narrow = false;
        until(&mut bench, 19_500, rtt, |bench| !is_narrow(bench));
        assert!(!is_split(&bench) && stays_up(&bench) && bench.loss_percent() == 0);
        let sent = bench.sent_split.len();
        bench.run(ms(60_000), ms(rtt), true);
        assert_eq!(bench.sent_split.len(), sent, "it is tried whole only");
    }
}

#[test]
fn a_narrow_path_whose_fragments_are_lost_is_dead_until_some_pass() {
    for whole in [false, true] {
        let mut bench = bench(20);
        bench.narrow = true;
        bench.paths.doubt(node(1), bench.now);
        until(&mut bench, 5000, 20, is_narrow);
        bench.run(ms(500), ms(20), true);
        bench.joins = false;
        bench.paths.doubt(node(1), bench.now);
        until(&mut bench, 5000, 20, |bench| bench.state() == PathState::Dead);
        assert!(is_narrow(&bench) && is_split(&bench));
        bench.run(ms(20_000), ms(20), true);
        assert_eq!(bench.state(), PathState::Dead, "small answers do not revive it");
        (bench.joins, bench.narrow) = (!whole, !whole);
        until(&mut bench, 2000, 20, |bench| bench.state() == PathState::Up);
        assert_eq!((is_narrow(&bench), is_split(&bench)), (!whole, !whole));
        bench.run(ms(60_000), ms(20), true);
        assert_eq!((bench.state(), is_narrow(&bench)), (PathState::Up, !whole));
        assert_eq!(bench.loss_percent(), 0);
    }
}

/// As when a new mesh starts on a network with a small MTU.
#[test]
fn a_path_that_was_never_wide_is_narrow_at_once() {
    let mut bench = Bench::new();
    (bench.joins, bench.narrow) = (true, true);
    bench.paths.set(node(1), Some(PathUse::Idle), true, bench.now);
    until(&mut bench, 3500, 20, is_narrow);
    let sent = bench.sent_split.len();
    bench.run(ms(600_000), ms(20), true);
    assert!(is_split(&bench) && stays_up(&bench));
    let probes = bench.sent_split.len() - sent;
    assert!((17..=24).contains(&probes), "{probes} in ten minutes without sessions");
    bench.narrow = false;
    until(&mut bench, 35_000, 20, |bench| !is_narrow(bench));
    let sent = bench.sent_wide.len();
    bench.run(ms(600_000), ms(20), true);
    assert!(!is_split(&bench) && bench.sent_wide.len() - sent <= 1, "nothing is left to look at");
    bench.narrow = true;
    bench.paths.doubt(node(1), bench.now);
    until(&mut bench, 3500, 20, is_narrow);
    bench.paths.set(node(1), None, true, bench.now);
    assert!(!is_split(&bench));
    assert_eq!(bench.paths.poll_split(), Some(node(1)));
}

#[test]
fn a_narrow_path_dies_of_silence_and_revives_with_a_small_answer() {
    let mut bench = bench(20);
    bench.narrow = true;
    bench.paths.doubt(node(1), bench.now);
    until(&mut bench, 5000, 20, is_narrow);
    bench.run(ms(10_000), ms(20), false);
    assert_eq!((bench.state(), is_narrow(&bench)), (PathState::Dead, false));
    until(&mut bench, 2000, 20, |bench| bench.state() == PathState::Up);
    until(&mut bench, 5000, 20, is_narrow);
    assert_eq!(bench.state(), PathState::Up);
}

/// The mesh may have forgotten the peer, and that it has to split for it.
#[test]
fn a_new_session_is_told_that_its_path_is_narrow() {
    let mut bench = bench(20);
    bench.paths.handle_session(node(1), true, bench.now);
    assert_eq!(bench.paths.poll_split(), None);
    bench.narrow = true;
    bench.paths.doubt(node(1), bench.now);
    until(&mut bench, 5000, 20, is_narrow);
    bench.paths.handle_session(node(1), false, bench.now);
    assert_eq!(bench.paths.poll_split(), None);
    bench.paths.handle_session(node(1), true, bench.now);
    assert_eq!(bench.paths.poll_split(), Some(node(1)));
}

/// A single whole packet may pass by chance.
#[test]
fn a_path_is_wide_again_when_several_whole_packets_pass_in_a_row() {
    let mut bench = bench(20);
    bench.narrow = true;
    bench.paths.doubt(node(1), bench.now);
    until(&mut bench, 5000, 20, is_narrow);
    for passing in [1, 2] {
        // A gap between the long probes.
        bench.run(ms(1000), ms(20), true);
        bench.narrow = false;
        let sent = bench.sent_wide.len();
        until(&mut bench, 18_000, 20, |bench| bench.sent_wide.len() >= sent + passing);
        bench.narrow = true;
        bench.run(ms(5000), ms(20), true);
        assert!(is_narrow(&bench) && stays_up(&bench), "{passing} passed");
        let sent = bench.sent_split.len();
        bench.run(ms(160_000), ms(20), true);
        let probes = bench.sent_split.len() - sent;
        assert!((8..=14).contains(&probes), "{probes} in 160 s");
    }
}

/// The loss stays known, whatever length of probes counts.
#[test]
fn a_path_that_loses_most_of_what_is_long_is_not_forgiven_when_it_becomes_narrow_or_wide() {
    for loss in [[0, 70], [50, 75]] {
        let mut cleared = 0;
        for seed in 0..20 {
            let mut bench = bench(20);
            bench.dice = Dice::new([seed; 32], 1);
            bench.loss = loss;
            let (mut last, mut state) = (0, bench.state());
            for step in 0..1200 {
                if step % 10 == 0 {
                    bench.paths.doubt(node(1), bench.now);
                }
                bench.run(ms(50), ms(20), true);
                let (percent, is_up) = (bench.loss_percent(), bench.state() == PathState::Up);
                let was_bad = is_up && state == PathState::Up && last >= 50;
                cleared += u32::from(was_bad && percent + 20 < last);
                (last, state) = (percent, bench.state());
            }
        }
        println!("{loss:?}: forgiven {cleared} times in 20 minutes");
        assert!(cleared <= 8, "{loss:?}: forgiven {cleared} times");
    }
}

/// Loss is no reason to call a path narrow, and splitting ends when whole packets pass again.
#[test]
fn chance_makes_no_path_narrow_or_not_for_long() {
    for (percent, most) in [(2, 0), (10, 5), (30, 120)] {
        let (mut narrow, mut split) = (0, 0);
        for seed in 0..20 {
            let mut bench = bench(20);
            bench.dice = Dice::new([seed; 32], 1);
            bench.loss = [percent; 2];
            for _ in 0..300 {
                bench.paths.doubt(node(1), bench.now);
                bench.run(ms(1000), ms(20), true);
                narrow += u32::from(is_narrow(&bench));
                split += u32::from(is_split(&bench));
            }
        }
        println!("{percent} %: narrow {narrow}, split {split} of 6,000 s");
        assert!(narrow <= most && split <= 2 * most, "{percent} %");
    }
}
