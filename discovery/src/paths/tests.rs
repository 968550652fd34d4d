use std::collections::BTreeSet;

use super::*;
use crate::tests::{base, ms, node};

mod narrow;

/// A prober, and a peer that answers after `rtt` as long as `answers` is true.
struct Bench {
    paths: Paths,
    now: Instant,
    start: Instant,
    echoes: BTreeSet<(Instant, NodeId, [u8; 8])>,
    /// The same for long probes.
    wide_echoes: BTreeSet<(Instant, NodeId, [u8; 8])>,
    split_echoes: BTreeSet<(Instant, NodeId, [u8; 8])>,
    sent: Vec<Duration>,
    sent_wide: Vec<Duration>,
    sent_split: Vec<Duration>,
    /// Whether long probes are lost, and only those.
    narrow: bool,
    /// Whether the peer joins fragments.
    joins: bool,
    /// How many of a hundred small and long probes are lost by chance.
    loss: [usize; 2],
    dice: Dice,
    /// Whether data arrives at the peer, as the mesh would report.
    delivers: bool,
    changes: Vec<(Duration, PathState)>,
}

impl Bench {
    fn new() -> Self {
        let start = base();
        Self {
            paths: Paths::new(&DiscoveryConfig::default(), [1; 32], 0).with_width(),
            now: start,
            start,
            echoes: BTreeSet::new(),
            wide_echoes: BTreeSet::new(),
            split_echoes: BTreeSet::new(),
            sent: Vec::new(),
            sent_wide: Vec::new(),
            sent_split: Vec::new(),
            narrow: false,
            joins: false,
            loss: [0; 2],
            dice: Dice::new([3; 32], 1),
            delivers: false,
            changes: Vec::new(),
        }
    }

    fn run(&mut self, time: Duration, rtt: Duration, answers: bool) {
        let end = self.now + time;
        loop {
            let echo = self.echoes.first().map(|it| it.0);
            let wide = self.wide_echoes.first().map(|it| it.0);
            let due = self.paths.poll_timeout();
            let split = self.split_echoes.first().map(|it| it.0);
            let Some(next) = [echo, wide, split, due].into_iter().flatten().min() else { break };
            if next > end {
                break;
            }
            self.now = self.now.max(next);
            if echo == Some(next) {
                let (_, node, nonce) = self.echoes.pop_first().unwrap();
                self.paths.handle_echo(node, nonce, self.now);
            } else if wide == Some(next) {
                let (_, node, nonce) = self.wide_echoes.pop_first().unwrap();
                self.paths.handle_wide_echo(node, nonce, self.now);
            } else if split == Some(next) {
                let (_, node, nonce) = self.split_echoes.pop_first().unwrap();
                self.paths.handle_split_echo(node, nonce, self.now);
            } else {
                let overdue: Vec<NodeId> = self.paths.overdue().collect();
                for node in overdue.into_iter().filter(|_| self.delivers) {
                    self.paths.handle_delivery(node);
                }
                self.paths.handle_timeout(self.now);
            }
            while let Some(Probe { to, nonce, length }) = self.paths.poll_send() {
                let (sent, echoes, is_stopped) = match length {
                    Length::Small => (&mut self.sent, &mut self.echoes, false),
                    Length::Wide => (&mut self.sent_wide, &mut self.wide_echoes, self.narrow),
                    Length::Split => {
                        let is_split = self.joins && self.paths.is_split(&to);
                        (&mut self.sent_split, &mut self.split_echoes, !is_split)
                    }
                };
                sent.push(self.now - self.start);
                let lost = self.dice.below(100) < self.loss[usize::from(length != Length::Small)];
                if answers && !lost && !is_stopped {
                    echoes.insert((self.now + rtt, to, nonce));
                }
            }
            while self.paths.poll_split().is_some() {}
            while let Some(node) = self.paths.poll_change() {
                let state = self.paths.get(&node).unwrap().state;
                self.changes.push((self.now - self.start, state));
            }
        }
        self.now = end;
    }

    fn state(&self) -> PathState {
        self.paths.get(&node(1)).unwrap().state
    }

    fn loss_percent(&self) -> u8 {
        self.paths.get(&node(1)).unwrap().loss_percent
    }

    fn sent_since(&self, since: Duration) -> usize {
        self.sent.iter().filter(|at| **at >= since).count()
    }
}

#[test]
fn the_first_probe_goes_at_once_and_the_rate_follows_the_use() {
    let mut bench = Bench::new();
    assert!(bench.paths.set(node(1), Some(PathUse::Idle), true, bench.now));
    bench.run(ms(20), ms(10), true);
    assert_eq!(bench.sent, [ms(0)]);
    assert_eq!(bench.state(), PathState::Up);
    assert_eq!(bench.paths.get(&node(1)).unwrap().rtt, Some(ms(10)));
    bench.run(ms(10_000), ms(10), true);
    let before = bench.sent.len();
    bench.run(ms(60_000), ms(10), true);
    assert!((11..=13).contains(&(bench.sent.len() - before)), "every 5 s");
    bench.paths.set(node(1), Some(PathUse::Active), true, bench.now);
    let before = bench.sent.len();
    bench.run(ms(30_000), ms(10), true);
    assert!((55..=66).contains(&(bench.sent.len() - before)), "every 500 ms");
    bench.paths.set(node(1), None, true, bench.now);
    assert!(bench.paths.is_empty() && bench.paths.poll_timeout().is_none());
}

#[test]
fn an_active_path_dies_in_time_whatever_its_length() {
    for (rtt, limit) in [(1, 1300), (35, 1300), (120, 1600), (300, 2700)] {
        let mut bench = Bench::new();
        bench.paths.set(node(1), Some(PathUse::Active), true, bench.now);
        bench.run(ms(10_000), ms(rtt), true);
        bench.changes.clear();
        let silence = bench.now - bench.start;
        bench.run(ms(5000), ms(rtt), false);
        let (died, state) = bench.changes[0];
        assert_eq!(state, PathState::Dead);
        println!("{rtt} ms: dead after {:?}", died - silence);
        assert!(died - silence <= ms(limit), "{rtt} ms: {:?}", died - silence);
        bench.run(ms(30_000), ms(rtt), false);
        let before = bench.sent.len();
        bench.run(ms(10_000), ms(rtt), false);
        assert!((9..=12).contains(&(bench.sent.len() - before)), "tried on every second");
        bench.run(ms(1500 + 2 * rtt), ms(rtt), true);
        assert_eq!(bench.state(), PathState::Up);
    }
}

#[test]
fn a_path_on_which_data_arrives_is_not_dead_however_silent_its_probes() {
    let mut bench = Bench::new();
    bench.paths.set(node(1), Some(PathUse::Active), true, bench.now);
    bench.run(ms(10_000), ms(20), true);
    bench.changes.clear();
    bench.delivers = true;
    bench.run(ms(60_000), ms(20), false);
    assert_eq!(bench.state(), PathState::Up);
    bench.delivers = false;
    let end = bench.now - bench.start;
    bench.run(ms(5000), ms(20), false);
    let died = bench.changes.iter().find(|(_, state)| *state == PathState::Dead);
    let died = died.expect("nothing arrives any more").0 - end;
    assert!(died <= ms(1300), "{died:?}");
    bench.delivers = true;
    bench.run(ms(5000), ms(20), false);
    assert_eq!(bench.state(), PathState::Dead, "only an answer revives a path");
}

#[test]
fn a_dead_path_is_tried_often_enough_to_be_used_soon_after() {
    let mut bench = Bench::new();
    bench.paths.set(node(1), Some(PathUse::Idle), true, bench.now);
    bench.run(ms(20_000), ms(20), true);
    bench.run(ms(30_000), ms(20), false);
    assert_eq!(bench.state(), PathState::Dead);
    let before = bench.sent.len();
    bench.run(ms(20_000), ms(20), false);
    assert!((18..=22).contains(&(bench.sent.len() - before)), "every second");
    bench.run(ms(1_300), ms(20), true);
    assert_eq!(bench.state(), PathState::Up);
    assert_eq!(bench.paths.get(&node(1)).unwrap().loss_percent, 0, "a new path begins anew");
}

#[test]
fn a_path_that_loses_half_of_everything_is_lossy_and_not_dead() {
    let (mut deaths, mut lossy) = (0, 0);
    for seed in 0..100_u8 {
        let mut bench = Bench::new();
        let mut dice = Dice::new([seed; 32], 1);
        bench.paths.set(node(1), Some(PathUse::Active), true, bench.now);
        bench.run(ms(10_000), ms(20), true);
        bench.changes.clear();
        for _ in 0..1200 {
            let answered = dice.below(2) == 0;
            bench.run(ms(50), ms(20), answered);
        }
        deaths += bench.changes.iter().filter(|(_, state)| *state == PathState::Dead).count();
        lossy += u32::from(bench.loss_percent() > 20);
    }
    println!("{deaths} deaths in a hundred minutes, {lossy} of 100 lossy at the end");
    assert!(deaths <= 25, "{deaths} deaths in a hundred minutes");
    assert!(lossy >= 95, "{lossy} of 100");
}

/// A flap of two seconds on an idle path to a peer that measures this node closely.
#[test]
fn a_path_that_is_back_is_measured_within_round_trips_although_the_peer_asks_all_the_time() {
    let mut bench = Bench::new();
    bench.paths.set(node(1), Some(PathUse::Idle), true, bench.now);
    bench.run(ms(20_000), ms(10), true);
    bench.paths.wake(bench.now);
    bench.run(ms(4000), ms(10), false);
    assert_eq!(bench.state(), PathState::Dead);
    let since = bench.now;
    let measured = |bench: &Bench| bench.paths.get(&node(1)).unwrap().rtt == Some(ms(10));
    while bench.state() != PathState::Up {
        bench.run(ms(5), ms(10), true);
    }
    let (back, mut asked) = (bench.now, bench.now);
    while !measured(&bench) {
        bench.run(ms(5), ms(10), true);
        if bench.now - asked >= ms(200) {
            bench.paths.handle_probe(node(1), bench.now);
            asked = bench.now;
        }
        assert!(bench.now - since < ms(10_000), "never measured");
    }
    let took = bench.now - back;
    assert!(took <= ms(20), "measured {took:?} after the first answer");
}

#[test]
fn a_lost_probe_makes_the_next_ones_come_sooner() {
    let mut bench = Bench::new();
    bench.paths.set(node(1), Some(PathUse::Idle), true, bench.now);
    bench.run(ms(20_000), ms(20), true);
    let next = bench.paths.poll_timeout().unwrap() - bench.now;
    bench.run(next, ms(20), false);
    let lost = bench.now - bench.start;
    bench.run(ms(1000), ms(20), true);
    assert_eq!(bench.sent_since(lost), 2, "the lost one and one more, well before five seconds");
    assert_eq!(bench.state(), PathState::Up);
    assert!(bench.paths.get(&node(1)).unwrap().loss_percent > 0);
    bench.run(ms(10_000), ms(20), true);
    assert!(bench.sent_since(lost) <= 5, "and then the usual rate again");
}

#[test]
fn a_path_without_session_is_given_the_time_of_a_handshake() {
    for (session, dead_by) in [(true, 3000), (false, 4200)] {
        let mut bench = Bench::new();
        bench.paths.set(node(1), Some(PathUse::Active), session, bench.now);
        bench.run(ms(dead_by - 200), ms(1), false);
        assert_eq!(bench.state(), PathState::Unknown);
        bench.run(ms(700), ms(1), false);
        assert_eq!(bench.state(), PathState::Dead);
    }
    // The session is established: probed at once, and probes that waited for it measure nothing.
    let mut bench = Bench::new();
    bench.paths.set(node(1), Some(PathUse::Idle), false, bench.now);
    bench.run(ms(1200), ms(10), false);
    bench.paths.handle_session(node(1), true, bench.now);
    bench.run(ms(10), ms(10), true);
    assert_eq!(bench.state(), PathState::Up);
    assert_eq!(bench.paths.get(&node(1)).unwrap().rtt, Some(ms(10)));
}

#[test]
fn answers_that_nobody_asked_for_change_nothing() {
    let mut bench = Bench::new();
    bench.paths.set(node(1), Some(PathUse::Idle), true, bench.now);
    bench.paths.handle_echo(node(1), [0; 8], bench.now);
    bench.paths.handle_echo(node(2), [0; 8], bench.now);
    assert_eq!(bench.state(), PathState::Unknown);
    bench.run(ms(1), ms(0), false);
    bench.paths.handle_echo(node(1), [0; 8], bench.now);
    assert_eq!(bench.state(), PathState::Unknown);
}

#[test]
fn a_stall_blames_nobody() {
    let mut bench = Bench::new();
    bench.paths.set(node(1), Some(PathUse::Active), true, bench.now);
    bench.run(ms(5000), ms(10), true);
    bench.run(ms(300), ms(10), false);
    bench.now += ms(20_000);
    bench.paths.stalled(ms(20_100));
    bench.run(ms(2000), ms(10), true);
    assert_eq!(bench.state(), PathState::Up);
    assert!(bench.changes.iter().all(|(_, state)| *state == PathState::Up));
}

#[test]
fn changes_of_the_round_trip_time_are_reported_when_they_are_noticeable() {
    let mut bench = Bench::new();
    bench.paths.set(node(1), Some(PathUse::Active), true, bench.now);
    bench.run(ms(10_000), ms(40), true);
    bench.changes.clear();
    bench.run(ms(20_000), Duration::from_micros(40_200), true);
    assert!(bench.changes.is_empty(), "half a percent");
    bench.run(ms(5000), ms(60), true);
    assert!(!bench.changes.is_empty());
}

#[test]
fn paths_and_idle_probes_are_bounded() {
    let mut bench = Bench::new();
    let nodes: Vec<NodeId> = (0..=MAX_PATHS)
        .map(|number| {
            let mut bytes = [0; 32];
            bytes[..8].copy_from_slice(&(number as u64).to_be_bytes());
            NodeId::from_bytes(bytes)
        })
        .collect();
    let taken =
        nodes.iter().filter(|it| bench.paths.set(**it, Some(PathUse::Idle), true, bench.now));
    assert_eq!(taken.count(), MAX_PATHS);
    bench.run(ms(600_000), ms(10), true);
    let before = bench.sent.len();
    bench.run(ms(600_000), ms(10), true);
    let rate = (bench.sent.len() - before) as f64 / 600.0;
    assert!((1.5..2.5).contains(&rate), "{rate} probes a second");
}

#[test]
fn a_peer_that_was_stopped_does_not_look_far_away_afterwards() {
    let mut bench = Bench::new();
    bench.paths.set(node(1), Some(PathUse::Active), true, bench.now);
    bench.run(ms(5_000), ms(2), true);
    // It is suspended for four seconds and then answers everything that is queued.
    bench.run(ms(4_000), ms(3_600_000), true);
    assert_eq!(bench.state(), PathState::Dead);
    let waited = std::mem::take(&mut bench.echoes);
    let in_order = waited
        .into_iter()
        .zip(1..)
        .map(|((_, node, nonce), place)| (bench.now + Duration::from_micros(place), node, nonce));
    bench.echoes = in_order.collect();
    bench.run(ms(3_000), ms(2), true);
    assert_eq!(bench.state(), PathState::Up);
    let rtt = bench.paths.get(&node(1)).expect("measured").rtt.expect("answers");
    assert!(rtt < ms(10), "{rtt:?}");
}

#[test]
fn of_two_that_watch_each_other_one_asks() {
    let mut bench = Bench::new();
    let (peer, rtt) = (node(1), ms(1));
    assert!(bench.paths.set(peer, Some(PathUse::Active), true, bench.now));
    bench.run(ms(5000), rtt, true);
    let asked = bench.sent.len();
    // It probes more often than this node would.
    for _ in 0..50 {
        bench.paths.handle_probe(peer, bench.now);
        bench.run(ms(400), rtt, true);
    }
    assert_eq!(bench.sent.len(), asked);
    // It falls silent.
    bench.run(ms(1500), rtt, false);
    assert_eq!(bench.state(), PathState::Dead);
    // A probe from it is no answer to this node's own.
    bench.paths.handle_probe(peer, bench.now);
    assert_eq!(bench.state(), PathState::Dead);
}

#[test]
fn a_peer_that_another_member_misses_is_probed_at_once() {
    let mut bench = Bench::new();
    let (peer, rtt) = (node(1), ms(1));
    assert!(bench.paths.set(peer, Some(PathUse::Active), true, bench.now));
    bench.run(ms(5100), rtt, true);
    let asked = bench.sent.len();
    bench.paths.hurry(peer, bench.now);
    bench.paths.hurry(node(2), bench.now);
    bench.run(Duration::ZERO, rtt, true);
    assert_eq!(bench.sent.len(), asked + 1);
    bench.paths.hurry(peer, bench.now);
    bench.run(Duration::ZERO, rtt, true);
    assert_eq!(bench.sent.len(), asked + 1, "a question is under way");
}

#[test]
fn a_path_that_has_become_narrow_is_dead_until_it_is_wide_again() {
    for (rtt, limit) in [(1, 18_500), (120, 19_000)] {
        let mut bench = Bench::new();
        bench.paths.set(node(1), Some(PathUse::Active), true, bench.now);
        bench.run(ms(30_000), ms(rtt), true);
        let tries = bench.sent_wide.len();
        assert!((2..=3).contains(&tries), "{tries} in half a minute");
        bench.changes.clear();
        bench.narrow = true;
        // The data that arrives is in small packets.
        bench.delivers = true;
        let narrow = bench.now - bench.start;
        bench.run(ms(20_000), ms(rtt), true);
        let (died, state) = bench.changes[0];
        assert_eq!(state, PathState::Dead);
        assert!(died - narrow <= ms(limit), "{rtt} ms: {:?}", died - narrow);
        let path = bench.paths.get(&node(1)).expect("measured");
        assert!(path.narrow);
        bench.run(ms(20_000), ms(rtt), true);
        assert_eq!(bench.state(), PathState::Dead, "small answers do not revive it");
        bench.narrow = false;
        bench.run(ms(1500 + 2 * rtt), ms(rtt), true);
        let path = bench.paths.get(&node(1)).expect("measured");
        assert!(path.state == PathState::Up && !path.narrow);
        assert_eq!(path.rtt, Some(ms(rtt)));
    }
}

#[test]
fn a_dead_path_keeps_nothing_of_the_loss_before() {
    for (narrow, loss_percent) in [(false, 0), (true, 100)] {
        let mut bench = Bench::new();
        bench.paths.set(node(1), Some(PathUse::Active), true, bench.now);
        bench.run(ms(30_000), ms(20), true);
        bench.narrow = narrow;
        bench.paths.doubt(node(1), bench.now);
        bench.run(ms(4000), ms(20), narrow);
        assert_eq!((bench.state(), bench.loss_percent()), (PathState::Dead, loss_percent));
    }
}

#[test]
fn what_sessions_find_slow_is_tried_at_once_and_not_too_often() {
    let mut bench = Bench::new();
    bench.paths.set(node(1), Some(PathUse::Active), true, bench.now);
    bench.run(ms(30_000), ms(20), true);
    bench.narrow = true;
    bench.changes.clear();
    let narrow = bench.now - bench.start;
    bench.paths.doubt(node(1), bench.now);
    bench.run(ms(4000), ms(20), true);
    let (died, state) = bench.changes[0];
    assert!(state == PathState::Dead && died - narrow <= ms(3500), "{:?}", died - narrow);
    bench.narrow = false;
    bench.run(ms(3000), ms(20), true);
    let before = bench.sent_wide.len();
    for _ in 0..100 {
        bench.paths.doubt(node(1), bench.now);
        bench.run(ms(100), ms(20), true);
    }
    let tries = bench.sent_wide.len() - before;
    assert!((4..=6).contains(&tries), "{tries} in ten seconds");
}

#[test]
fn chance_makes_no_path_narrow() {
    let mut bench = Bench::new();
    let mut dice = Dice::new([3; 32], 1);
    bench.paths.set(node(1), Some(PathUse::Active), true, bench.now);
    bench.run(ms(10_000), ms(20), true);
    bench.changes.clear();
    for _ in 0..12_000 {
        let answered = dice.below(5) > 0;
        bench.run(ms(50), ms(20), answered);
    }
    assert!(bench.changes.iter().all(|(_, state)| *state == PathState::Up));
}

#[test]
fn a_path_that_loses_most_of_what_is_long_loses_most() {
    for seed in 0..20 {
        let mut bench = Bench::new();
        bench.dice = Dice::new([seed; 32], 1);
        bench.paths.set(node(1), Some(PathUse::Active), true, bench.now);
        bench.run(ms(30_000), ms(20), true);
        bench.loss = [25, 70];
        let begun = bench.now;
        while bench.state() == PathState::Up && bench.loss_percent() < 50 {
            bench.paths.doubt(node(1), bench.now);
            bench.run(ms(500), ms(20), true);
            assert!(bench.now - begun < ms(15_000), "seed {seed}: {}", bench.loss_percent());
        }
        println!("seed {seed}: after {:?}", bench.now - begun);
        bench.loss = [0; 2];
        bench.run(ms(12_000), ms(20), true);
        assert_eq!(bench.loss_percent(), 0, "seed {seed}");
        let tries = bench.sent_wide.len();
        bench.run(ms(30_000), ms(20), true);
        assert!(bench.sent_wide.len() - tries <= 3, "seed {seed}: nothing is left to look at");
        assert_eq!(bench.state(), PathState::Up);
    }
}

#[test]
fn what_loses_a_fifth_is_not_taken_for_useless() {
    let mut useless = 0;
    for seed in 0..20 {
        let mut bench = Bench::new();
        bench.dice = Dice::new([seed; 32], 1);
        bench.paths.set(node(1), Some(PathUse::Active), true, bench.now);
        bench.loss = [20; 2];
        for _ in 0..600 {
            bench.paths.doubt(node(1), bench.now);
            bench.run(ms(1000), ms(20), true);
            useless += u32::from(bench.loss_percent() >= 50);
        }
    }
    println!("{useless} of 12,000 s");
    assert!(useless <= 120);
}

#[test]
fn idle_paths_are_tried_for_their_width_when_they_come_up_and_when_used() {
    let mut bench = Bench::new();
    bench.paths.set(node(1), Some(PathUse::Idle), true, bench.now);
    bench.run(ms(600_000), ms(20), true);
    assert_eq!(bench.sent_wide.len(), 1);
    bench.narrow = true;
    bench.paths.set(node(1), Some(PathUse::Active), true, bench.now);
    bench.run(ms(2000), ms(20), true);
    assert_eq!(bench.state(), PathState::Dead, "a user of the path finds out at once");
    // A path that is narrow from the start is detected at once.
    let mut bench = Bench::new();
    bench.narrow = true;
    bench.paths.set(node(1), Some(PathUse::Idle), true, bench.now);
    bench.run(ms(2000), ms(20), true);
    assert_eq!(bench.state(), PathState::Dead);
}
