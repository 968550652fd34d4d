#![expect(clippy::disallowed_methods, reason = "an origin for virtual time")]

use std::collections::BTreeSet;

use meshport_config::NodeId;
use proptest::prelude::*;

use super::memory::SETTLING;
use super::*;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn node(number: u8) -> NodeId {
    NodeId::from_bytes([number; 32])
}

fn number(line: &Line) -> u8 {
    line.origin().expect("all are in the mesh").as_bytes()[0]
}

pub(crate) fn origin(number: u8, state: OriginState, path: PathView) -> OriginView {
    let site = "fra".parse().expect("a valid name");
    let view = OriginView::of_node(node(number), format!("cp-{number}"), site, state);
    OriginView { path, ..view }
}

fn ready(number: u8, rtt_ms: u64) -> OriginView {
    origin(number, OriginState::Ready, PathView::Up(ms(rtt_ms)))
}

fn nearest_policy() -> Policy {
    Policy::Nearest { band: ms(1), band_percent: 15 }
}

/// The memory of a node that has used the best of `origins` for a while.
fn settled(origins: Vec<OriginView>, at: Instant) -> Preference {
    let long_ago = at.checked_sub(SETTLING).expect("the machine has been up for a while");
    let (_, memory) = choose(origins.clone(), &nearest_policy(), &Preference::default(), long_ago);
    choose(origins, &nearest_policy(), &memory, at).1
}

fn names(route: &Route) -> Vec<String> {
    route.candidates.iter().map(|candidate| candidate.origin.name.to_string()).collect()
}

#[test]
fn nearest_ready_first_then_by_standing_and_cost() {
    let origins = vec![
        origin(1, OriginState::Refusing, PathView::Up(ms(1))),
        origin(2, OriginState::Ready, PathView::Dead),
        origin(3, OriginState::Unready, PathView::Up(ms(2))),
        ready(4, 35),
        ready(5, 120),
        origin(6, OriginState::Ready, PathView::Unmeasured),
    ];
    let (route, _) = choose(origins, &nearest_policy(), &Preference::default(), Instant::now());
    assert_eq!(names(&route), ["cp-4", "cp-5", "cp-6", "cp-3", "cp-1", "cp-2"]);
    assert_eq!(route.why, "nearest ready");
    assert!(route.is_usable());
}

#[test]
fn own_node_goes_first_and_alone() {
    let own = origin(9, OriginState::Ready, PathView::Own);
    let (route, _) =
        choose(vec![ready(1, 0), own], &nearest_policy(), &Preference::default(), Instant::now());
    assert_eq!(names(&route), ["cp-9", "cp-1"]);
    assert_eq!(route.sharing, 1);
}

#[test]
fn an_unready_own_node_does_not_go_first() {
    let own = origin(9, OriginState::Unready, PathView::Own);
    let (route, _) =
        choose(vec![own, ready(1, 80)], &nearest_policy(), &Preference::default(), Instant::now());
    assert_eq!(names(&route), ["cp-1", "cp-9"]);
}

#[test]
fn a_lasting_gain_is_followed_and_a_short_one_is_not() {
    let start = Instant::now();
    let policy = nearest_policy();
    let memory = settled(vec![ready(1, 20), ready(2, 40)], start);
    let nearer = || vec![ready(1, 20), ready(2, 5)];
    let (route, memory) = choose(nearer(), &policy, &memory, start + ms(100));
    assert_eq!(names(&route)[0], "cp-1");
    assert_eq!(memory.poll_timeout(), Some(start + ms(10_100)));
    let (route, memory) = choose(nearer(), &policy, &memory, start + ms(10_099));
    assert_eq!(names(&route)[0], "cp-1");
    // The gain disappears and comes back: the count starts over.
    let (_, memory) =
        choose(vec![ready(1, 20), ready(2, 40)], &policy, &memory, start + ms(10_100));
    assert_eq!(memory.poll_timeout(), None);
    let (_, memory) = choose(nearer(), &policy, &memory, start + ms(11_000));
    let (route, memory) = choose(nearer(), &policy, &memory, start + ms(21_000));
    assert_eq!(names(&route)[0], "cp-2");
    assert_eq!(memory.preferred, Some((Line::Direct(node(2)), start + ms(21_000))));
}

/// A second of load on this machine is measured on the path in use, and smoothed over ten.
#[test]
fn a_burst_of_load_is_no_reason_to_leave() {
    let start = Instant::now();
    let slow = |usual_ms| OriginView { usual_rtt: Some(ms(usual_ms)), ..ready(1, 60) };
    let mut memory = settled(vec![ready(1, 2), ready(2, 14)], start);
    for (second, usual_ms, expected) in
        [(1, 2, "cp-1"), (12, 2, "cp-1"), (13, 60, "cp-1"), (22, 60, "cp-1"), (23, 60, "cp-2")]
    {
        let (origins, at) = (vec![slow(usual_ms), ready(2, 14)], start + ms(second * 1000));
        let (route, next) = choose(origins, &nearest_policy(), &memory, at);
        memory = next;
        assert_eq!(names(&route)[0], expected, "after {second} s");
        if usual_ms == 2 {
            let why = "kept: cp-2 is clearly nearer only while cp-1 is slower than usual";
            assert_eq!(route.why, why, "after {second} s");
        }
    }
    let (route, _) = choose(
        vec![ready(1, 15), ready(2, 14)],
        &nearest_policy(),
        &settled(vec![ready(1, 2), ready(2, 14)], start),
        start + ms(100),
    );
    assert_eq!(route.why, "kept: cp-2 is hardly nearer");
}

#[test]
fn with_less_damping_less_is_followed_sooner() {
    let start = Instant::now();
    let policy = nearest_policy();
    let damping = Damping { gain: ms(1), gain_lasting: ms(500), ..Damping::default() };
    let mut first = Vec::new();
    for damping in [Damping::default(), damping] {
        let (_, mut memory) = choose(Vec::new(), &policy, &Preference::new(damping), start);
        for (second, rtt_ms) in [(0, 40), (10, 40), (11, 18), (12, 18), (30, 18)] {
            let origins = vec![ready(1, 20), ready(2, rtt_ms)];
            let (route, next) = choose(origins, &policy, &memory, start + ms(second * 1000));
            memory = next;
            first.push(names(&route)[0].clone());
        }
    }
    assert_eq!(first[..5], ["cp-1"; 5], "2 ms are no gain");
    assert_eq!(first[5..], ["cp-1", "cp-1", "cp-1", "cp-2", "cp-2"]);
}

#[test]
fn a_fresh_node_takes_the_nearest_as_soon_as_it_learns_of_it() {
    let start = Instant::now();
    let policy = nearest_policy();
    let (_, memory) = choose(vec![ready(1, 20)], &policy, &Preference::default(), start);
    let (route, memory) =
        choose(vec![ready(1, 20), ready(2, 2)], &policy, &memory, start + ms(250));
    assert_eq!(names(&route), ["cp-2", "cp-1"]);
    let nearer = vec![ready(1, 20), ready(2, 2), ready(3, 0)];
    let (route, _) = choose(nearer, &policy, &memory, start + ms(5000));
    assert_eq!(names(&route)[0], "cp-2", "by now it is worth keeping");
}

#[test]
fn a_small_gain_never_moves_anything() {
    let start = Instant::now();
    let policy = nearest_policy();
    let mut memory = settled(vec![ready(1, 20)], start);
    for second in 1..60 {
        let origins = vec![ready(1, 20), ready(2, 17)];
        let (route, next) = choose(origins, &policy, &memory, start + ms(second * 1000));
        assert_eq!(names(&route)[0], "cp-1");
        memory = next;
    }
}

/// The observations and choices of a node, second by second.
struct Story {
    memory: Preference,
    start: Instant,
}

impl Story {
    /// A node at home at origin 1, 2 ms away; origin 2 is 35 ms away.
    fn at_home() -> Self {
        let start = Instant::now();
        Self { memory: settled(both(OriginState::Ready), start), start }
    }

    fn first(&mut self, origins: Vec<OriginView>, at_ms: u64) -> String {
        let (route, memory) =
            choose(origins, &nearest_policy(), &self.memory, self.start + ms(at_ms));
        self.memory = memory;
        names(&route).swap_remove(0)
    }
}

fn both(first: OriginState) -> Vec<OriginView> {
    vec![origin(1, first, PathView::Up(ms(2))), ready(2, 35)]
}

#[test]
fn a_refusing_home_is_left_at_once_and_gone_back_to_after_a_second() {
    let mut story = Story::at_home();
    assert_eq!(story.first(both(OriginState::Refusing), 1), "cp-2");
    assert_eq!(story.first(both(OriginState::Ready), 500), "cp-2");
    assert_eq!(story.first(both(OriginState::Ready), 1499), "cp-2");
    assert_eq!(story.first(both(OriginState::Ready), 1500), "cp-1");
}

#[test]
fn a_home_that_comes_and_goes_is_gone_back_to_later_and_later() {
    let mut story = Story::at_home();
    let (mut changes, mut before) = (0, "cp-1".to_owned());
    for flap in 0..10 {
        for at in (0..6000).step_by(250) {
            let state = if at < 3000 { OriginState::Refusing } else { OriginState::Ready };
            let first = story.first(both(state), flap * 6000 + at);
            changes += u32::from(first != before);
            before = first;
        }
    }
    assert_eq!(changes, 5, "away and back twice, away, and then it has to last longer");
    let calm = 61_000;
    assert_eq!(story.first(both(OriginState::Ready), calm), "cp-1");
    assert_eq!(story.first(both(OriginState::Hung), calm + 70_000), "cp-2");
    assert_eq!(story.first(both(OriginState::Ready), calm + 71_000), "cp-2");
    assert_eq!(story.first(both(OriginState::Ready), calm + 72_000), "cp-1", "it was calm");
}

#[test]
fn home_is_remembered_when_the_stand_in_fails_too() {
    let mut story = Story::at_home();
    let three = |one, two| {
        let two = origin(2, two, PathView::Up(ms(35)));
        vec![origin(1, one, PathView::Up(ms(2))), two, ready(3, 80)]
    };
    let (up, down) = (OriginState::Ready, OriginState::Refusing);
    assert_eq!(story.first(three(down, up), 100), "cp-2");
    assert_eq!(story.first(three(down, down), 200), "cp-3");
    assert_eq!(story.first(three(up, down), 300), "cp-3");
    assert_eq!(story.first(three(up, down), 1300), "cp-1");
}

#[test]
fn an_unready_home_is_left_after_a_moment_unless_the_others_are_unready_too() {
    let mut story = Story::at_home();
    assert_eq!(story.first(both(OriginState::Unready), 0), "cp-1");
    assert_eq!(story.memory.poll_timeout(), Some(story.start + ms(750)));
    assert_eq!(story.first(both(OriginState::Unready), 749), "cp-1");
    assert_eq!(story.first(both(OriginState::Unready), 750), "cp-2");
    // All become unready, each noticed at another time, and then all are ready again.
    let mut story = Story::at_home();
    let each = |one, two| {
        let two = origin(2, two, PathView::Up(ms(35)));
        vec![origin(1, one, PathView::Up(ms(2))), two]
    };
    let (up, down) = (OriginState::Ready, OriginState::Unready);
    let seen = [(down, up, 0), (down, down, 700), (down, down, 9000), (down, up, 20_000)];
    for (one, two, at) in seen.into_iter().chain([(up, up, 20_700), (up, up, 60_000)]) {
        assert_eq!(story.first(each(one, two), at), "cp-1", "at {at}");
    }
}

/// K3: sessions find a near origin slow for a while; and origins that are hardly nearer.
#[test]
fn a_session_is_moved_only_where_it_is_worth_it() {
    let policy = Policy::Nearest { band: Duration::ZERO, band_percent: 0 };
    let away = |home: OriginView, other: OriginView, from: u8| {
        let views = vec![home, other];
        let (route, _) = choose(views, &policy, &Preference::default(), Instant::now());
        route.is_away(&origin(from, OriginState::Ready, PathView::Own).line)
    };
    assert!(away(ready(1, 2), ready(2, 35), 2));
    assert!(!away(ready(1, 30), ready(2, 35), 2), "14 %");
    let micros = |it| origin(2, OriginState::Ready, PathView::Up(Duration::from_micros(it)));
    assert!(!away(ready(1, 1), micros(1900), 2), "0.9 ms");
    let own = origin(1, OriginState::Ready, PathView::Own);
    assert!(away(own, micros(400), 2), "the local instance is always worth it");
    let slow = OriginView { suspect: true, ..ready(1, 2) };
    assert!(!away(slow, ready(2, 35), 1), "nearer, and only slow");
}

#[test]
fn a_draining_home_is_left_at_once() {
    let mut story = Story::at_home();
    assert_eq!(story.first(both(OriginState::Draining), 1), "cp-2");
}

#[test]
fn home_is_regained_though_two_there_are_the_nearest_by_turns() {
    let start = Instant::now();
    let policy = nearest_policy();
    let mut memory = settled(vec![ready(3, 120)], start);
    for second in 0..=10 {
        let (one, two) = if second % 2 == 0 { (2, 3) } else { (3, 2) };
        let origins = vec![ready(1, one), ready(2, two), ready(3, 120)];
        let (route, next) = choose(origins, &policy, &memory, start + ms(second * 1000));
        assert_eq!(names(&route)[0] == "cp-3", second < 10, "after {second} s");
        memory = next;
    }
}

#[test]
fn a_home_whose_path_loses_most_is_left_at_once() {
    let start = Instant::now();
    let lossy = |broken| vec![OriginView { broken, ..ready(1, 2) }, ready(2, 80)];
    let memory = settled(lossy(false), start);
    let first = |broken, memory: &Preference| {
        let (route, _) = choose(lossy(broken), &nearest_policy(), memory, start + ms(1));
        (names(&route)[0].clone(), route.candidates[0].standing)
    };
    assert_eq!(first(false, &memory), ("cp-1".into(), Standing::Healthy));
    assert_eq!(first(true, &memory), ("cp-2".into(), Standing::Healthy));
    let alone = vec![OriginView { broken: true, ..ready(1, 2) }];
    let (route, _) = choose(alone, &nearest_policy(), &memory, start);
    assert!(route.is_usable() && route.why.contains("loses most"), "{}", route.why);
}

#[test]
fn all_unready_together_stay_usable() {
    let origins = vec![
        origin(1, OriginState::Unready, PathView::Up(ms(30))),
        origin(2, OriginState::Unready, PathView::Up(ms(3))),
    ];
    let (route, _) = choose(origins, &nearest_policy(), &Preference::default(), Instant::now());
    assert_eq!(names(&route), ["cp-2", "cp-1"]);
    assert!(route.is_usable());
    assert_eq!(route.why, "nearest, though unready: none is ready");
}

/// Two apiservers are unready while the operator drains the third, which still serves.
#[test]
fn a_draining_origin_goes_before_all_that_are_not_ready() {
    let at = |number, state, rtt| origin(number, state, PathView::Up(ms(rtt)));
    let origins = || {
        vec![
            at(1, OriginState::Unready, 1),
            at(2, OriginState::Stalled, 1),
            at(3, OriginState::Draining, 2),
            at(4, OriginState::Unknown, 1),
        ]
    };
    for policy in [nearest_policy(), Policy::Spread, Policy::LeastSessions, Policy::Source] {
        let (route, _) = choose(origins(), &policy, &Preference::default(), Instant::now());
        let firsts = (0..30_u64).map(|turn| {
            let ticket = route.draw().ticket(turn, || turn);
            route.attempt_order(ticket, |_| 0)[0].origin.name.to_string()
        });
        assert!(firsts.clone().all(|first| first == "cp-3"), "{policy:?}: {firsts:?}");
    }
    let (route, _) = choose(origins(), &nearest_policy(), &Preference::default(), Instant::now());
    assert_eq!(route.why, "nearest, though it drains: no other is ready");
    let slow = OriginView { suspect: true, ..at(3, OriginState::Draining, 2) };
    let (route, _) = choose(
        vec![at(1, OriginState::Unready, 1), slow],
        &nearest_policy(),
        &Preference::default(),
        Instant::now(),
    );
    assert_eq!(names(&route), ["cp-1", "cp-3"], "sessions find it silent");
    // The preferred one turns unready: it is left for the draining one after a moment.
    let mut story = Story::at_home();
    let left = || vec![at(1, OriginState::Unready, 2), at(2, OriginState::Draining, 35)];
    assert_eq!(story.first(left(), 0), "cp-1");
    assert_eq!(story.first(left(), 750), "cp-2");
}

#[test]
fn a_stalled_origin_goes_last_of_those_that_are_not_ready() {
    use OriginState::{Stalled, Unready};
    let at = |number, state, rtt| origin(number, state, PathView::Up(ms(rtt)));
    let origins = || vec![at(1, Stalled, 1), at(2, Unready, 1), at(3, Unready, 80)];
    let pinned = Policy::Pinned(vec!["cp-1".into(), "cp-3".into()]);
    for (policy, used) in [
        (nearest_policy(), vec!["cp-2"]),
        (pinned, vec!["cp-3"]),
        (Policy::Spread, vec!["cp-2", "cp-3"]),
        (Policy::LeastSessions, vec!["cp-2", "cp-3"]),
        (Policy::Source, vec!["cp-2", "cp-3"]),
    ] {
        let (route, _) = choose(origins(), &policy, &Preference::default(), Instant::now());
        assert_eq!(names(&route)[2], "cp-1", "{policy:?}");
        let firsts = (0..30_u64).map(|turn| {
            let ticket = route.draw().ticket(turn, || turn);
            route.attempt_order(ticket, |_| 0)[0].origin.name.to_string()
        });
        let firsts: BTreeSet<String> = firsts.collect();
        assert_eq!(firsts.iter().collect::<Vec<_>>(), used, "{policy:?}");
    }
    let (all, _) = choose(
        vec![at(1, Stalled, 1), at(2, Stalled, 1)],
        &nearest_policy(),
        &Preference::default(),
        Instant::now(),
    );
    assert_eq!(all.sharing, 2, "none is better");
}

#[test]
fn a_stalled_home_is_left_for_an_unready_origin_that_does_not_stall_too() {
    use OriginState::{Ready, Stalled, Unready};
    let each = |one, two| {
        let two = origin(2, two, PathView::Up(ms(35)));
        vec![origin(1, one, PathView::Up(ms(2))), two]
    };
    let mut story = Story::at_home();
    for at in [0, 1000, 6999] {
        let one = if at == 0 { Unready } else { Stalled };
        assert_eq!(story.first(each(one, Unready), at), "cp-1", "at {at}");
    }
    assert_eq!(story.memory.poll_timeout(), Some(story.start + ms(7000)));
    assert_eq!(story.first(each(Stalled, Unready), 7000), "cp-2");
    assert_eq!(story.first(each(Stalled, Unready), 60_000), "cp-2", "nearness does not count");
    assert_eq!(story.first(each(Ready, Unready), 60_001), "cp-2");
    assert_eq!(story.first(each(Ready, Unready), 60_751), "cp-1");
    // The other one is ready before that.
    let mut story = Story::at_home();
    for (two, at) in [(Unready, 0), (Unready, 5000), (Ready, 5500), (Ready, 5999)] {
        assert_eq!(story.first(each(Stalled, two), at), "cp-1", "at {at}");
    }
    assert_eq!(story.first(each(Stalled, Ready), 6000), "cp-2");
    // The other one stalls too, and is the last to report it and the first to be better.
    let mut story = Story::at_home();
    let seen = [(Unready, Unready, 0), (Stalled, Unready, 1000), (Stalled, Stalled, 6500)];
    let ends = [(Stalled, Unready, 70_000), (Stalled, Stalled, 71_000), (Ready, Ready, 90_000)];
    for (one, two, at) in seen.into_iter().chain(ends) {
        assert_eq!(story.first(each(one, two), at), "cp-1", "at {at}");
    }
}

/// The preferred origin is no longer the nearest when all turn unready.
#[test]
fn that_no_origin_is_ready_is_the_reason_also_where_one_is_kept() {
    use OriginState::{Draining, Ready, Refusing, Stalled, Unknown, Unready};
    let mut story = Story::at_home();
    let all = |one, two, rtt| {
        [(1, one, 2), (2, two, rtt)]
            .map(|(it, state, rtt)| origin(it, state, PathView::Up(ms(rtt))))
    };
    let mut route = |origins: [OriginView; 2], at_ms| {
        story.first(origins.to_vec(), at_ms);
        let now = story.start + ms(at_ms);
        choose(origins.to_vec(), &nearest_policy(), &story.memory, now).0
    };
    let kept = route(all(Unready, Unready, 1), 0);
    assert_eq!(names(&kept)[0], "cp-1");
    assert_eq!(kept.why, "kept, though unready: none is ready");
    let name = |route: &Route| route.unready_choice().map(|it| it.origin.name.clone());
    assert_eq!(name(&kept).as_deref(), Some("cp-1"));
    assert_eq!(name(&route(all(Stalled, Refusing, 1), 0)).as_deref(), Some("cp-1"));
    // It is left after a moment, or serves, or is not known, or none answers.
    for (one, two) in [(Unready, Ready), (Unready, Draining), (Unknown, Unready)] {
        assert_eq!(name(&route(all(one, two, 35), 0)), None, "{one} {two}");
    }
    assert_eq!(name(&route(all(Refusing, Refusing, 35), 0)), None);
}

#[test]
fn the_band_shares_by_two_choices_and_never_leaves_it() {
    let origins = vec![ready(1, 10), ready(2, 11), ready(3, 30)];
    let (route, _) = choose(origins, &nearest_policy(), &Preference::default(), Instant::now());
    assert_eq!(route.sharing, 2);
    let loads = |line: &Line| if *line == Line::Direct(node(1)) { 7 } else { 3 };
    for ticket in 0..64_u64 {
        let ticket = ticket.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let order = route.attempt_order(ticket, loads);
        assert_eq!(order[0].origin.name, "cp-2", "the lighter of the two");
        assert_eq!(order[2].origin.name, "cp-3");
    }
}

#[test]
fn spread_takes_turns_over_the_healthy_ones() {
    let origins =
        vec![ready(1, 10), ready(2, 90), ready(3, 30), origin(4, OriginState::Hung, PathView::Own)];
    let (route, _) = choose(origins, &Policy::Spread, &Preference::default(), Instant::now());
    let firsts: Vec<String> =
        (0..6).map(|turn| route.attempt_order(turn, |_| 0)[0].origin.name.to_string()).collect();
    assert_eq!(firsts, ["cp-1", "cp-2", "cp-3", "cp-1", "cp-2", "cp-3"]);
}

#[test]
fn spread_keeps_its_order_when_round_trip_times_move() {
    let start = Instant::now();
    let route = |one, two| {
        choose(vec![ready(1, one), ready(2, two)], &Policy::Spread, &Preference::default(), start).0
    };
    assert_eq!(names(&route(10, 11)), names(&route(11, 10)));
}

#[test]
fn pinned_follows_the_list_among_the_healthy() {
    let list = Policy::Pinned(vec!["cp-3".into(), NodeId::from_bytes([2; 32]).to_string()]);
    let now = Instant::now();
    let all = vec![ready(1, 1), ready(2, 50), ready(3, 100)];
    let (route, _) = choose(all, &list, &Preference::default(), now);
    assert_eq!(names(&route), ["cp-3", "cp-2", "cp-1"]);
    let third_down = vec![ready(1, 1), ready(2, 50), origin(3, OriginState::Hung, PathView::Own)];
    let (route, _) = choose(third_down, &list, &Preference::default(), now);
    assert_eq!(names(&route), ["cp-2", "cp-1", "cp-3"]);
    assert_eq!(route.why, "pinned as number 2");
}

fn any_origin() -> impl Strategy<Value = OriginView> {
    let state = prop_oneof![
        Just(OriginState::Ready),
        Just(OriginState::Unready),
        Just(OriginState::Stalled),
        Just(OriginState::Draining),
        Just(OriginState::Refusing),
        Just(OriginState::Hung),
        Just(OriginState::Unknown),
    ];
    let path = prop_oneof![
        Just(PathView::Own),
        (0_u64..300).prop_map(|rtt| PathView::Up(ms(rtt))),
        Just(PathView::Unmeasured),
        Just(PathView::Dead),
    ];
    (any::<u8>(), state, path, any::<bool>()).prop_map(|(number, state, path, present)| {
        OriginView { present, ..origin(number, state, path) }
    })
}

fn any_policy() -> impl Strategy<Value = Policy> {
    prop_oneof![
        Just(nearest_policy()),
        Just(Policy::Spread),
        Just(Policy::Pinned(vec!["cp-7".into(), "cp-200".into()])),
    ]
}

proptest! {
    #[test]
    fn the_order_is_a_permutation_and_never_puts_the_unhealthy_first(
        origins in proptest::collection::btree_map(any::<u8>(), any_origin(), 0..9),
        policy in any_policy(),
        ticket in any::<u64>(),
    ) {
        let origins: Vec<OriginView> = origins
            .into_iter()
            .map(|(number, view)| OriginView { line: Line::Direct(node(number)), ..view })
            .collect();
        let start = Instant::now();
        let mut memory = Preference::default();
        for step in 0..3_u64 {
            let (route, next) = choose(origins.clone(), &policy, &memory, start + ms(step * 6000));
            let order = route.attempt_order(ticket, |line| u64::from(number(line)));
            prop_assert_eq!(order.len(), origins.len());
            let mut nodes: Vec<_> = order.iter().map(|candidate| candidate.origin.line).collect();
            nodes.sort_unstable();
            nodes.dedup();
            prop_assert_eq!(nodes.len(), origins.len());
            prop_assert!(order.is_sorted_by_key(|candidate| rank(&candidate.origin)));
            prop_assert_eq!(next.preferred.is_some(), !origins.is_empty());
            memory = next;
        }
    }
}
