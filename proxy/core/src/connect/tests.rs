#![expect(clippy::disallowed_methods, reason = "an origin for virtual time")]

use std::collections::BTreeSet;

use meshport_discovery::OriginState;
use proptest::prelude::*;

use super::attempts::LAG;
use super::rounds::ROUND_PAUSE;
use super::*;
use crate::route::tests::origin;
use crate::route::{OriginView, PathView, Policy, Preference, choose};

mod lost;

const UP: PathView = PathView::Up(Duration::from_millis(1));

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn spread(origins: Vec<OriginView>) -> Arc<Route> {
    Arc::new(choose(origins, &Policy::Spread, &Preference::default(), Instant::now()).0)
}

fn config() -> ConnectConfig {
    ConnectConfig { connect_timeout: ms(8000), hold: ms(3000), hedge: Some((ms(100), ms(500))) }
}

/// A route over origins at these round-trip times, all ready.
fn route(rtts: &[u64]) -> Arc<Route> {
    let origins = (1..).zip(rtts);
    let origins =
        origins.map(|(number, rtt)| origin(number, OriginState::Ready, PathView::Up(ms(*rtt))));
    let policy = Policy::Nearest { band: Duration::ZERO, band_percent: 0 };
    Arc::new(choose(origins.collect(), &policy, &Preference::default(), Instant::now()).0)
}

#[derive(Default)]
struct Context(Searches);

impl SearchContext for Context {
    fn open(&self, _: &Line) -> u64 {
        0
    }

    fn searches<T>(&mut self, look: impl FnOnce(&mut Searches) -> T) -> T {
        look(&mut self.0)
    }
}

struct Bench {
    connect: Connect,
    context: Context,
    now: Instant,
}

impl Bench {
    /// Of origins in this order, the first of which has been silent for its delay.
    fn late_at_the_first(origins: Vec<OriginView>) -> Self {
        let mut bench = Self::new(config(), &[1]);
        let policy = Policy::Nearest { band: Duration::ZERO, band_percent: 0 };
        let (route, _) = choose(origins, &policy, &Preference::default(), bench.now);
        bench.connect.handle_route(Arc::new(route), bench.now);
        assert_eq!(bench.started(), Some((0, 1)));
        bench.connect.handle_kind(Kind::Tls, bench.now);
        bench.sleep();
        bench
    }

    fn new(config: ConnectConfig, rtts: &[u64]) -> Self {
        let now = Instant::now();
        let connect = Connect::new(config, route(rtts), 0, now);
        Self { connect, context: Context::default(), now }
    }

    fn poll(&mut self) -> Option<Action> {
        self.connect.poll(self.now, &mut self.context)
    }

    /// Starts enough other searches to slow each other down.
    fn crowd(&mut self) {
        (0..=MAX_CALM_SEARCHES).for_each(|_| self.context.0.begin());
    }

    /// The attempt started now: its id and the number of its origin.
    fn started(&mut self) -> Option<(u32, u8)> {
        match self.poll()? {
            Action::Start { id, candidate, .. } => {
                let node = candidate.origin.line.origin().expect("all are in the mesh");
                Some((id, node.as_bytes()[0]))
            }
            other => panic!("{other:?} instead of a start"),
        }
    }

    /// The verdicts of attempts since the last call.
    fn verdicts(&mut self) -> Vec<(Line, Verdict)> {
        self.connect.take_verdicts().iter().map(|it| (it.line, it.verdict)).collect()
    }

    /// Sleeps until the search has its next action; returns how long that was.
    fn sleep(&mut self) -> Duration {
        let until = self.connect.poll_timeout().expect("it does not wait for the client");
        let slept = until - self.now;
        self.now = until;
        slept
    }
}

fn line(number: u8) -> Line {
    origin(number, OriginState::Ready, PathView::Own).line
}

#[test]
fn a_refusal_costs_no_time() {
    let mut bench = Bench::new(config(), &[1, 20, 40]);
    assert_eq!(bench.started(), Some((0, 1)));
    assert_eq!(bench.poll(), None);
    bench.connect.handle_failure(0, Some(Verdict::Refused));
    assert_eq!(bench.started(), Some((1, 2)));
    assert_eq!(bench.poll(), None, "one attempt replaces one");
    bench.connect.handle_answer(1);
    let verdicts = bench.verdicts();
    assert_eq!(verdicts, [(line(1), Verdict::Refused), (line(2), Verdict::Answered)]);
}

#[test]
fn a_silent_one_is_raced_after_its_delay_and_loses() {
    let mut bench = Bench::new(config(), &[1, 20, 40]);
    bench.started();
    bench.connect.handle_kind(Kind::Tls, bench.now);
    assert_eq!(bench.sleep(), ms(102), "two round trips and the usual time for an answer");
    assert_eq!(bench.started(), Some((1, 2)));
    assert_eq!(bench.sleep(), ms(140));
    assert_eq!(bench.started(), Some((2, 3)));
    assert_eq!(bench.poll(), None, "no fourth");
    bench.connect.handle_answer(2);
    let verdicts = bench.verdicts();
    let outrun = |number| (line(number), Verdict::Outrun);
    assert_eq!(verdicts, [outrun(1), outrun(2), (line(3), Verdict::Answered)]);
}

#[test]
fn a_client_that_was_silent_for_an_hour_does_not_pay_for_its_instance() {
    let mut bench = Bench::new(config(), &[1, 20]);
    bench.started();
    bench.connect.handle_connected(0, bench.now);
    assert_eq!(bench.poll(), None);
    bench.now += ms(3_600_000);
    bench.connect.handle_failure(0, Some(Verdict::Silent));
    assert_eq!(bench.started(), Some((1, 2)), "and not given up");
    assert_eq!(bench.connect.deadline(), bench.now + ms(8000));
}

#[test]
fn one_that_answers_after_all_is_not_blamed() {
    let mut bench = Bench::new(config(), &[1, 20]);
    bench.started();
    bench.connect.handle_kind(Kind::Tls, bench.now);
    bench.sleep();
    bench.started();
    bench.connect.handle_answer(0);
    assert_eq!(bench.verdicts(), [(line(1), Verdict::Answered)]);
}

#[test]
fn an_outrun_one_is_not_blamed_for_a_herd_or_for_this_machine() {
    for (crowded, lag) in [(true, Duration::ZERO), (false, LAG + ms(1))] {
        let mut bench = Bench::new(config(), &[1, 20]);
        if crowded {
            bench.crowd();
        }
        bench.started();
        bench.connect.handle_kind(Kind::Tls, bench.now);
        bench.sleep();
        bench.now += lag;
        assert_eq!(bench.started(), Some((1, 2)), "it is raced all the same");
        bench.connect.handle_answer(1);
        assert_eq!(bench.verdicts(), [(line(2), Verdict::Answered)]);
    }
}

#[test]
fn the_delay_is_bounded_both_ways() {
    let candidate = |rtt| route(&[rtt]).candidates[0].clone();
    let config = config();
    assert_eq!(config.hedge_delay(&candidate(0)), Some(ms(100)));
    assert_eq!(config.hedge_delay(&candidate(150)), Some(ms(400)));
    assert_eq!(config.hedge_delay(&candidate(900)), Some(ms(500)));
    let shaky = OriginViewAt(150, 20).candidate();
    assert_eq!(config.hedge_delay(&shaky), Some(ms(480)));
}

/// A candidate at a round-trip time with a deviation, both in milliseconds.
struct OriginViewAt(u64, u64);

impl OriginViewAt {
    fn candidate(&self) -> Candidate {
        let mut candidate = route(&[self.0]).candidates[0].clone();
        candidate.origin.deviation = ms(self.1);
        candidate
    }
}

#[test]
fn without_hedging_one_after_another_is_tried() {
    let mut bench = Bench::new(ConnectConfig { hedge: None, ..config() }, &[1, 20]);
    bench.started();
    bench.connect.handle_kind(Kind::Tls, bench.now);
    assert_eq!(bench.sleep(), ms(400), "the patience for an opening");
    assert_eq!(bench.poll(), Some(Action::Cancel { id: 0, overdue: true }));
    assert_eq!(bench.started(), Some((1, 2)));
    bench.now = bench.connect.deadline();
    assert_eq!(bench.poll(), Some(Action::GiveUp));
}

#[test]
fn a_spent_budget_leaves_the_search_to_its_first_candidate() {
    let mut bench = Bench::new(config(), &[1, 20]);
    while bench.context.0.take_hedge() {}
    bench.started();
    bench.sleep();
    assert_eq!(bench.poll(), None);
    bench.context = Context::default();
    bench.sleep();
    assert_eq!(bench.started(), Some((1, 2)));
}

#[test]
fn hedges_are_a_burst_and_a_fifth_of_all_searches() {
    let mut all = Searches::default();
    let taken = |all: &mut Searches| {
        std::iter::repeat_with(|| all.take_hedge()).take_while(|taken| *taken).count()
    };
    assert_eq!(taken(&mut all), 32);
    (0..100).for_each(|_| all.begin());
    assert_eq!(taken(&mut all), 20);
}

#[test]
fn in_a_crowd_one_that_answers_others_is_not_raced_until_it_is_silent_to_all() {
    let mut bench = Bench::new(config(), &[1, 20]);
    bench.crowd();
    bench.started();
    bench.connect.handle_kind(Kind::Tls, bench.now);
    bench.context.0.note_answer(line(1), bench.now + ms(50));
    let delay = bench.sleep();
    assert_eq!(bench.poll(), None, "it has just answered another search");
    assert_eq!(bench.sleep(), delay);
    bench.context.0.note_answer(line(1), bench.now);
    assert_eq!(bench.poll(), None, "and does so again");
    bench.sleep();
    assert_eq!(bench.started(), Some((1, 2)), "nobody has had an answer for a delay");
}

#[test]
fn an_answer_to_others_delays_no_race_when_few_are_searching() {
    let mut bench = Bench::new(config(), &[1, 20]);
    bench.started();
    bench.connect.handle_kind(Kind::Tls, bench.now);
    bench.context.0.note_answer(line(1), bench.now + ms(50));
    bench.sleep();
    assert_eq!(bench.started(), Some((1, 2)));
}

#[test]
fn the_first_connected_origin_gets_a_client_that_is_not_tls() {
    let mut bench = Bench::new(config(), &[1, 20]);
    bench.started();
    bench.sleep();
    assert_eq!(bench.started(), Some((1, 2)), "nobody has got any byte yet");
    bench.connect.handle_connected(1, bench.now);
    assert_eq!(bench.poll(), Some(Action::Cancel { id: 0, overdue: false }));
    assert_eq!(bench.poll(), None);
    bench.connect.handle_kind(Kind::Other, bench.now);
    assert_eq!(bench.sleep(), ms(1040), "no racing from here on, only the patience");
}

#[test]
fn a_client_that_says_hello_late_is_raced_from_then_on() {
    let mut bench = Bench::new(config(), &[1, 20]);
    bench.started();
    bench.connect.handle_connected(0, bench.now);
    bench.now += ms(60_000);
    assert_eq!(bench.poll(), None, "nothing was asked");
    assert_eq!(bench.connect.poll_timeout(), None);
    bench.connect.handle_kind(Kind::Tls, bench.now);
    assert_eq!(bench.sleep(), ms(102));
    assert_eq!(bench.started(), Some((1, 2)));
}

#[test]
fn all_are_tried_again_after_a_pause() {
    let mut bench = Bench::new(config(), &[1, 20]);
    for (id, number) in [(0, 1), (1, 2)] {
        assert_eq!(bench.started(), Some((id, number)));
        bench.connect.handle_failure(id, Some(Verdict::Refused));
    }
    assert_eq!(bench.poll(), None);
    assert_eq!(bench.sleep(), ROUND_PAUSE);
    match bench.poll() {
        Some(Action::Start { id: 2, hedge: false, .. }) => {
            assert_eq!(bench.connect.rounds.number(), 1);
        }
        other => panic!("{other:?} instead of the second round"),
    }
}

/// Waits until the attempt is overdue, through races with others; how long that was.
fn until_overdue(bench: &mut Bench, id: u32) -> Duration {
    let began = bench.now;
    loop {
        match bench.poll() {
            Some(Action::Cancel { id: over, overdue: true }) if over == id => {
                return bench.now - began;
            }
            Some(Action::GiveUp) => panic!("given up"),
            Some(_) => {}
            None => drop(bench.sleep()),
        }
    }
}

#[test]
fn patience_is_that_of_the_step_and_doubles_with_each_round() {
    let config = ConnectConfig { connect_timeout: ms(60_000), hold: ms(3000), hedge: None };
    let mut bench = Bench::new(config, &[200]);
    bench.connect.handle_kind(Kind::Tls, bench.now);
    assert_eq!(bench.started(), Some((0, 1)));
    assert_eq!(until_overdue(&mut bench, 0), ms(800), "four round trips");
    assert_eq!(bench.verdicts(), [(line(1), Verdict::Silent)]);
    for (id, open) in [(1, 1600), (2, 3200), (3, 6400), (4, 12_800), (5, 12_800)] {
        assert_eq!(bench.poll(), None);
        assert_eq!(bench.sleep(), ROUND_PAUSE);
        assert_eq!(bench.started(), Some((id, 1)));
        if id == 1 {
            bench.now += ms(1500);
            bench.connect.handle_connected(id, bench.now);
            assert_eq!(until_overdue(&mut bench, id), ms(2800), "two round trips and a second");
            continue;
        }
        assert_eq!(until_overdue(&mut bench, id), ms(open), "attempt {id}");
    }
}

#[test]
fn an_answer_that_may_lie_unread_gets_another_moment_once() {
    let mut bench = Bench::new(ConnectConfig { hedge: None, ..config() }, &[1, 20]);
    bench.connect.handle_kind(Kind::Tls, bench.now);
    assert_eq!(bench.started(), Some((0, 1)));
    bench.now += ms(2000);
    assert_eq!(bench.poll(), None, "this process stood still");
    assert_eq!(bench.sleep(), LAG);
    assert_eq!(bench.poll(), Some(Action::Cancel { id: 0, overdue: true }));
    assert_eq!(bench.started(), Some((1, 2)));
}

#[test]
fn a_silent_client_is_held_from_its_first_byte_on() {
    let mut bench = Bench::new(config(), &[1]);
    assert_eq!(bench.started(), Some((0, 1)));
    bench.connect.handle_connected(0, bench.now);
    bench.connect.handle_route(spread(vec![origin(1, OriginState::Refusing, UP)]), bench.now);
    bench.now += ms(3_600_000);
    assert_eq!(bench.poll(), None);
    bench.connect.handle_kind(Kind::Tls, bench.now);
    assert_eq!(bench.poll(), None, "it is not told at once that nobody answers");
    assert_eq!(bench.connect.deadline(), bench.now + ms(3000));
}

#[test]
fn slowness_is_no_reason_to_leave_the_mesh() {
    let mut bench = Bench::new(config(), &[1]);
    let near = origin(1, OriginState::Ready, UP);
    let line = Line::Outside(([192, 0, 2, 1], 6443).into());
    let outside = OriginView { line, ..origin(2, OriginState::Ready, UP) };
    let route = |near: &OriginView| {
        let origins = vec![near.clone(), outside.clone()];
        let policy = Policy::Nearest { band: Duration::ZERO, band_percent: 0 };
        Arc::new(choose(origins, &policy, &Preference::default(), Instant::now()).0)
    };
    bench.connect.handle_route(route(&near), bench.now);
    assert_eq!(bench.started(), Some((0, 1)));
    bench.connect.handle_kind(Kind::Tls, bench.now);
    assert_eq!(bench.sleep(), ms(102));
    assert_eq!(bench.poll(), None, "it is slow, not gone");
    let dead = OriginView { path: PathView::Dead, ..near };
    bench.connect.handle_route(route(&dead), bench.now);
    assert_eq!(bench.poll(), Some(Action::Cancel { id: 0, overdue: false }));
    assert!(matches!(bench.poll(), Some(Action::Start { id: 1, .. })));
}

#[test]
fn slowness_is_no_reason_for_an_origin_whose_requests_hang() {
    for (state, is_raced) in [(OriginState::Unready, true), (OriginState::Stalled, false)] {
        let origins = vec![origin(1, OriginState::Ready, UP), origin(2, state, UP)];
        let mut bench = Bench::late_at_the_first(origins);
        assert_eq!(bench.started().is_some(), is_raced, "{state}");
        bench.connect.handle_failure(0, Some(Verdict::Refused));
        assert_eq!(bench.started().is_none(), is_raced, "{state}: but if the others fail");
    }
}

#[test]
fn another_origin_is_raced_in_place_of_one_whose_requests_hang() {
    let mut bench = Bench::new(config(), &[1]);
    let route = |second: OriginState, more: &[OriginView]| {
        let mut origins = vec![origin(1, OriginState::Ready, UP), origin(2, second, UP)];
        origins.extend_from_slice(more);
        let policy = Policy::Nearest { band: Duration::ZERO, band_percent: 0 };
        Arc::new(choose(origins, &policy, &Preference::default(), Instant::now()).0)
    };
    let unready = origin(3, OriginState::Unready, PathView::Up(ms(20)));
    bench.connect.handle_route(route(OriginState::Stalled, &[unready]), bench.now);
    assert_eq!(bench.started(), Some((0, 1)));
    bench.connect.handle_kind(Kind::Tls, bench.now);
    bench.sleep();
    assert_eq!(bench.started(), Some((1, 3)), "it is farther, but its requests do not hang");

    let mut bench = Bench::new(config(), &[1]);
    bench.connect.handle_route(route(OriginState::Stalled, &[]), bench.now);
    assert_eq!(bench.started(), Some((0, 1)));
    bench.connect.handle_kind(Kind::Tls, bench.now);
    bench.sleep();
    assert_eq!(bench.started(), None);
    bench.connect.handle_route(route(OriginState::Ready, &[]), bench.now);
    bench.sleep();
    assert_eq!(bench.started(), Some((1, 2)), "it is ready again while the first is silent");
}

#[test]
fn an_origin_whose_requests_hang_waits_while_a_ready_one_may_answer() {
    let ready = |number, rtt| origin(number, OriginState::Ready, PathView::Up(ms(rtt)));
    for state in [OriginState::Stalled, OriginState::Hung] {
        let origins = vec![ready(1, 10), ready(2, 30), origin(3, state, UP)];
        let mut bench = Bench::late_at_the_first(origins);
        assert_eq!(bench.started(), Some((1, 2)), "raced");
        bench.connect.handle_failure(0, Some(Verdict::Silent));
        assert_eq!(bench.started(), None, "{state}: it would win with its hello");
        bench.connect.handle_failure(1, Some(Verdict::Refused));
        assert_eq!(bench.started(), Some((2, 3)), "no other is left");
    }
}

#[test]
fn where_no_origin_is_ready_a_stalled_one_is_not_raced_against_an_unready_one() {
    for (first, is_raced) in [(OriginState::Unready, false), (OriginState::Stalled, true)] {
        let origins = vec![origin(1, first, UP), origin(2, OriginState::Stalled, UP)];
        let mut bench = Bench::late_at_the_first(origins);
        assert_eq!(bench.started().is_some(), is_raced, "{first}");
        bench.connect.handle_failure(0, Some(Verdict::Refused));
        assert_eq!(bench.started().is_none(), is_raced, "{first}: but if the others fail");
    }
}

#[test]
fn a_client_that_has_waited_for_long_is_held_as_long_as_any() {
    let mut bench = Bench::new(config(), &[1]);
    bench.started();
    bench.connect.handle_kind(Kind::Tls, bench.now);
    bench.now += ms(4000);
    bench.connect.handle_failure(0, Some(Verdict::Refused));
    bench.connect.handle_route(Arc::default(), bench.now);
    assert_eq!(bench.poll(), None, "it is not given up at once");
    assert_eq!(bench.connect.deadline(), bench.now + ms(3000));
    bench.now += ms(2000);
    bench.connect.handle_route(Arc::default(), bench.now);
    assert_eq!(bench.connect.deadline(), bench.now + ms(1000), "nor held for longer");
    let whole = bench.now - ms(6000) + ms(8000);
    bench.connect.handle_route(route(&[1]), bench.now);
    assert_eq!(bench.connect.deadline(), whole);
}

#[derive(Debug, Clone, Copy)]
enum Happens {
    Time(u64),
    Fails(usize),
    Connects(usize),
    Speaks(bool),
    Moves(u8),
}

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        (0_u64..700).prop_map(Happens::Time),
        (0_usize..3).prop_map(Happens::Fails),
        (0_usize..3).prop_map(Happens::Connects),
        any::<bool>().prop_map(Happens::Speaks),
        (0_u8..8).prop_map(Happens::Moves),
    ]
}

proptest! {
    /// In all cases: never too many at once, no candidate twice in a round, at most one instance
    /// gets bytes that must not be sent twice, and the search ends at its deadline.
    #[test]
    fn a_search_keeps_its_bounds(
        steps in proptest::collection::vec(happens(), 0..60),
        rtts in proptest::collection::vec(0_u64..300, 0..5),
    ) {
        let mut bench = Bench::new(config(), &rtts);
        let mut running: Vec<(u32, bool)> = Vec::new();
        let mut seen = BTreeSet::new();
        let (mut kind, mut over) = (Kind::Open, false);
        for step in steps {
            match step {
                Happens::Time(time) => bench.now += ms(time),
                Happens::Fails(at) if at < running.len() => {
                    bench.connect.handle_failure(running.remove(at).0, Some(Verdict::Silent));
                }
                Happens::Connects(at) if at < running.len() => {
                    running[at].1 = true;
                    bench.connect.handle_connected(running[at].0, bench.now);
                }
                Happens::Speaks(tls) if kind == Kind::Open => {
                    kind = if tls { Kind::Tls } else { Kind::Other };
                    bench.connect.handle_kind(kind, bench.now);
                }
                Happens::Moves(count) => {
                    let rtts: Vec<u64> = (0..u64::from(count)).collect();
                    bench.connect.handle_route(route(&rtts), bench.now);
                }
                Happens::Fails(_) | Happens::Connects(_) | Happens::Speaks(_) => {}
            }
            while let Some(action) = bench.poll() {
                match action {
                    Action::Cancel { id, .. } => running.retain(|it| it.0 != id),
                    Action::GiveUp => {
                        prop_assert!(bench.now >= bench.connect.deadline());
                        over = true;
                        break;
                    }
                    Action::Start { id, candidate, left, .. } => {
                        let round = bench.connect.rounds.number();
                        prop_assert!(seen.insert((round, candidate.origin.line)));
                        prop_assert!(bench.now + left <= bench.connect.deadline());
                        running.push((id, false));
                    }
                }
            }
            if over {
                break;
            }
            prop_assert!(running.len() <= MAX_RACING);
            let connected = running.iter().filter(|it| it.1).count();
            if kind != Kind::Tls && connected > 0 {
                prop_assert_eq!((running.len(), connected), (1, 1));
            }
            let due = bench.connect.poll_timeout();
            prop_assert!(due >= Some(bench.now) || running.len() < MAX_RACING);
        }
        if !over && bench.connect.poll_timeout().is_some() {
            bench.now = bench.connect.deadline();
            while let Some(action) = bench.poll() {
                if action == Action::GiveUp {
                    over = true;
                    break;
                }
            }
            prop_assert!(over);
        }
    }
}
