#![expect(clippy::disallowed_methods, reason = "an origin for virtual time")]

use meshport_discovery::OriginState;
use proptest::prelude::*;

use super::*;
use crate::evidence::{Attempted, Verdict};
use crate::route::tests::origin;
use crate::route::{Policy, Preference, Standing, choose};

const ORIGIN: u8 = 1;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn node(number: u8) -> NodeId {
    NodeId::from_bytes([number; 32])
}

fn direct(path: PathView) -> OriginView {
    origin(ORIGIN, OriginState::Ready, path)
}

/// A relay that is `rtt` away and reports the origin `onward` from it.
fn near(relay: u8, rtt: Duration, onward: Option<Duration>) -> Near {
    let micros = |it: Duration| u32::try_from(it.as_micros()).unwrap_or(u32::MAX);
    let distance = Distance { origin: node(ORIGIN), rtt_us: onward.map(micros), loss_percent: 0 };
    let (deviation, loss_percent) = (Duration::ZERO, 0);
    Near { relay: node(relay), rtt, deviation, loss_percent, onward: vec![distance] }
}

/// A node's knowledge of one origin and some relays, in virtual time.
struct Bench {
    paths: Paths,
    broken: BrokenLines,
    evidence: Evidence,
    timings: Timings,
    relays: Vec<Near>,
    now: Instant,
}

impl Bench {
    fn new(relays: Vec<Near>) -> Self {
        let (paths, broken) = (Paths::default(), BrokenLines::default());
        let (evidence, timings) = (Evidence::default(), Timings::default());
        Self { paths, broken, evidence, timings, relays, now: Instant::now() }
    }

    /// The path after `passed`, checked about every 100 ms.
    fn way(&mut self, direct: &OriginView, passed: Duration) -> OriginView {
        let until = self.now + passed;
        loop {
            let legs = self.relays.iter().map(|it| (Line::Direct(it.relay), it.loss_percent));
            self.broken.judge(legs);
            let (broken, evidence, timings) = (&self.broken, &self.evidence, &self.timings);
            let offers = self
                .relays
                .iter()
                .filter_map(|it| Offer::of(it, node(ORIGIN), broken, evidence, timings, self.now));
            let offers: Vec<Offer> = offers.collect();
            let view = self.paths.choose(direct, &offers, self.now);
            if self.now >= until {
                return view.unwrap_or_else(|| direct.clone());
            }
            self.now += ms(100).min(until - self.now);
        }
    }

    fn relay(&mut self, direct: &OriginView, passed: Duration) -> Option<u8> {
        match self.way(direct, passed).line {
            Line::Relayed { relay, .. } => Some(relay.as_bytes()[0]),
            Line::Direct(_) | Line::Outside(_) => None,
        }
    }

    fn attempted(&mut self, line: Line, verdict: Verdict) {
        self.evidence.handle(Attempted { line, verdict, began: self.now }, self.now);
    }

    fn line(relay: u8) -> Line {
        Line::Relayed { origin: node(ORIGIN), relay: node(relay) }
    }
}

const UP: PathView = PathView::Up(Duration::from_millis(2));

#[test]
fn a_dead_path_is_replaced_at_once_and_gone_back_to_when_it_lasts() {
    let mut bench = Bench::new(vec![near(2, ms(1), Some(ms(9))), near(3, ms(1), Some(ms(1)))]);
    assert_eq!(bench.relay(&direct(UP), GAIN_LASTING * 2), None);
    assert_eq!(bench.relay(&direct(PathView::Dead), Duration::ZERO), Some(3), "the nearer one");
    // A path that comes and goes is not followed.
    for _ in 0..3 {
        assert_eq!(bench.relay(&direct(UP), HOMECOMING / 2), Some(3));
        assert_eq!(bench.relay(&direct(PathView::Dead), ms(100)), Some(3));
    }
    assert_eq!(bench.relay(&direct(PathView::Unmeasured), HOMECOMING * 2), Some(3));
    assert_eq!(bench.relay(&direct(UP), HOMECOMING), None);
    assert_eq!(bench.paths.poll_timeout(), None);
    assert!(bench.paths.by_origin.is_empty(), "nothing is remembered of a usual path");
}

#[test]
fn a_burst_of_load_makes_no_relay_faster() {
    let mut bench = Bench::new(vec![near(2, ms(1), Some(ms(9)))]);
    let slow = |usual: u64| OriginView {
        usual_rtt: Some(ms(usual)),
        ..direct(PathView::Up(Duration::from_millis(60)))
    };
    assert_eq!(bench.relay(&slow(2), GAIN_LASTING * 2), None);
    assert_eq!(bench.relay(&slow(60), GAIN_LASTING), Some(2));
}

#[test]
fn after_a_death_a_relays_word_needs_proof_or_time() {
    let mut bench = Bench::new(vec![near(2, ms(1), Some(ms(1)))]);
    let standing = |view: OriginView| {
        let other = origin(9, OriginState::Ready, PathView::Up(ms(80)));
        let policy = Policy::Spread;
        let route = choose(vec![view, other], &policy, &Preference::default(), Instant::now()).0;
        let mut candidates = route.candidates.into_iter();
        candidates.find(|it| it.origin.line.origin() == Some(node(ORIGIN))).expect("it is there")
    };
    let dead = direct(PathView::Dead);
    assert_eq!(standing(bench.way(&dead, Duration::ZERO)).standing, Standing::Unproven);
    let due = bench.paths.poll_timeout().expect("it is not trusted yet");
    assert_eq!(due, bench.now + TRUST_AFTER);
    let candidate = standing(bench.way(&dead, TRUST_AFTER));
    assert_eq!(candidate.standing, Standing::Healthy);
    assert_eq!(candidate.cost, ms(2) + PENALTY);
    // A session got through: no need to wait.
    let mut bench = Bench::new(vec![near(2, ms(1), Some(ms(1)))]);
    bench.timings.add(Bench::line(2), ms(3), bench.now);
    assert_eq!(standing(bench.way(&dead, Duration::ZERO)).standing, Standing::Healthy);
    // A node that is no longer a member counts as dead, unless sessions get through.
    let gone = OriginView { present: false, ..dead };
    assert_eq!(bench.relay(&gone, Duration::ZERO), Some(2));
    let mut unproven = Bench::new(vec![near(2, ms(1), Some(ms(1)))]);
    assert_eq!(unproven.relay(&gone, TRUST_AFTER), None);
}

#[test]
fn a_clearly_faster_relay_is_used_once_that_lasts() {
    let mut bench = Bench::new(vec![near(2, ms(10), Some(ms(20)))]);
    // 35 ms with the penalty.
    assert_eq!(bench.relay(&direct(PathView::Up(ms(39))), GAIN_LASTING * 2), None);
    let slow = direct(PathView::Up(ms(60)));
    assert_eq!(bench.relay(&slow, GAIN_LASTING - ms(100)), None);
    assert_eq!(bench.relay(&slow, ms(100)), Some(2));
    assert!(bench.way(&slow, ms(0)).relaying.is_some_and(|it| it.trusted && !it.direct_dead));
    // It stays as long as it is cheaper at all.
    assert_eq!(bench.relay(&direct(PathView::Up(ms(36))), GAIN_LASTING), Some(2));
    assert_eq!(bench.relay(&direct(PathView::Up(ms(30))), HOMECOMING), None);
}

#[test]
fn a_relay_that_fails_is_left_for_another_or_for_the_direct_way() {
    let mut bench = Bench::new(vec![near(2, ms(1), Some(ms(1))), near(3, ms(1), Some(ms(9)))]);
    let dead = direct(PathView::Dead);
    assert_eq!(bench.relay(&dead, Duration::ZERO), Some(2));
    for _ in 0..2 {
        bench.attempted(Bench::line(2), Verdict::Refused);
    }
    assert_eq!(bench.relay(&dead, Duration::ZERO), Some(3));
    for _ in 0..2 {
        bench.attempted(Bench::line(3), Verdict::Silent);
    }
    assert_eq!(bench.relay(&direct(UP), Duration::ZERO), None, "it works, so at once");
    // The path to the relay is gone, or its record has lost the origin.
    assert_eq!(bench.relay(&dead, Duration::ZERO), Some(2), "a suspect one is better than none");
    bench.relays.remove(0);
    assert_eq!(bench.relay(&dead, Duration::ZERO), Some(3));
    bench.relays[0].onward[0].rtt_us = None;
    assert_eq!(bench.relay(&dead, Duration::ZERO), None);
}

#[test]
fn a_relay_that_loses_most_is_left_for_another_and_not_the_origin() {
    let mut bench = Bench::new(vec![near(2, ms(1), Some(ms(1))), near(3, ms(1), Some(ms(9)))]);
    let dead = direct(PathView::Dead);
    assert_eq!(bench.relay(&dead, Duration::ZERO), Some(2));
    bench.relays[0].loss_percent = 49;
    assert_eq!(bench.relay(&dead, GAIN_LASTING - ms(100)), Some(2), "a gain has to last");
    bench.relays[0].loss_percent = 50;
    assert_eq!(bench.relay(&dead, Duration::ZERO), Some(3), "at once");
    assert!(!bench.way(&dead, Duration::ZERO).broken);
    bench.relays[1].onward[0].loss_percent = 50;
    bench.relays[0].loss_percent = 25;
    assert_eq!(bench.relay(&dead, GAIN_LASTING * 2), Some(3), "the other is no better yet");
    assert_eq!(bench.relay(&direct(UP), Duration::ZERO), None, "it works, so at once");
}

#[test]
fn a_claim_holds_until_sessions_have_timed_it() {
    let mut bench = Bench::new(vec![near(2, ms(10), Some(Duration::ZERO))]);
    let far = direct(PathView::Up(ms(40)));
    assert_eq!(bench.relay(&far, GAIN_LASTING), Some(2), "10 ms and the penalty, it says");
    for _ in 0..3 {
        bench.timings.add(Bench::line(2), ms(55), bench.now);
    }
    assert_eq!(bench.relay(&far, HOMECOMING), None);
    assert_eq!(bench.relay(&far, ms(60_000)), None, "and it is remembered");
}

#[test]
fn a_claim_chooses_the_way_and_not_the_origin() {
    let mut bench = Bench::new(vec![near(2, ms(10), Some(Duration::ZERO))]);
    let first = |view: &OriginView| {
        let other = origin(9, OriginState::Ready, PathView::Up(ms(40)));
        let views = vec![view.clone(), other];
        let policy = Policy::Nearest { band: ms(1), band_percent: 15 };
        let route = choose(views, &policy, &Preference::default(), Instant::now()).0;
        route.candidates[0].origin.line.origin().expect("a node")
    };
    let far = direct(PathView::Up(ms(80)));
    let claimed = bench.way(&far, GAIN_LASTING);
    assert_eq!(claimed.line, Bench::line(2), "the claim is tried by those who go there anyway");
    assert_eq!(first(&claimed), node(9), "and draws nobody who does not");
    for _ in 0..3 {
        bench.timings.add(Bench::line(2), ms(12), bench.now);
    }
    assert_eq!(first(&bench.way(&far, ms(100))), node(ORIGIN), "12 ms is what sessions got");
    // Without a direct path there is nothing else to rely on.
    let mut lost = Bench::new(vec![near(2, ms(10), Some(Duration::ZERO))]);
    assert_eq!(first(&lost.way(&direct(PathView::Dead), TRUST_AFTER)), node(ORIGIN));
}

#[test]
fn loss_on_either_leg_counts() {
    let (evidence, timings, now) = (Evidence::default(), Timings::default(), Instant::now());
    let broken = BrokenLines::default();
    let mut relay = near(2, ms(1), Some(ms(1)));
    relay.loss_percent = 20;
    relay.onward[0].loss_percent = 50;
    let offer_to = |to| Offer::of(&relay, node(to), &broken, &evidence, &timings, now);
    let offer = offer_to(ORIGIN).expect("reached");
    assert_eq!((offer.loss_percent, offer.broken), (60, true));
    assert!(offer.cost() > ms(100));
    assert_eq!(offer_to(2), None, "not through itself");
}

fn prospect(number: u8, near: bool, path: Option<PathView>) -> RelayCandidate {
    let node = node(number);
    RelayCandidate {
        node,
        near,
        path,
        rescues: false,
        closest_us: Some(u32::from(number)),
        draw: 0,
    }
}

#[test]
fn few_relays_are_watched_and_those_that_answer_stay() {
    let all = |near: bool| (1..=9).map(move |it| prospect(it + 10 * u8::from(near), near, None));
    let first = watched(all(true).chain(all(false)).collect());
    let numbers =
        |set: &BTreeSet<NodeId>| -> Vec<u8> { set.iter().map(|node| node.as_bytes()[0]).collect() };
    assert_eq!(numbers(&first), [1, 2, 11, 12], "half of them elsewhere");
    // One of them is dead and another one far away, though alive.
    let path = |node: &NodeId| match node.as_bytes()[0] {
        12 => Some(PathView::Dead),
        _ if first.contains(node) => Some(PathView::Up(ms(80))),
        _ => None,
    };
    let again = all(true).chain(all(false));
    let again = again.map(|it| RelayCandidate { path: path(&it.node), ..it }).collect();
    assert_eq!(numbers(&watched(again)), [1, 2, 11, 13]);
    // A relay that claims to reach a lost origin goes first.
    let rescue = RelayCandidate { rescues: true, ..prospect(9, false, None) };
    let with_rescue = all(true).chain((1..9).map(|it| prospect(it, false, path(&node(it)))));
    let chosen = watched(with_rescue.chain([rescue]).collect());
    assert!(chosen.contains(&node(9)) && chosen.len() == MAX_WATCHED);
    assert_eq!(watched((1..=9).map(|it| prospect(it, true, None)).collect()).len(), MAX_WATCHED);
}

/// A mesh of some nodes: the measurements and the reports of each about each.
#[derive(Debug, Clone)]
struct Mesh {
    nodes: u8,
    paths: Vec<Option<u16>>,
    claims: Vec<Option<u32>>,
    may_relay: Vec<bool>,
}

impl Mesh {
    fn at(&self, from: u8, to: u8) -> usize {
        usize::from(from - 1) * usize::from(self.nodes) + usize::from(to - 1)
    }

    /// The line that `from` takes to `to` once everything has lasted.
    fn line(&self, from: u8, to: u8) -> Line {
        let path = |to: u8| match self.paths[self.at(from, to)] {
            _ if to == from => PathView::Own,
            Some(rtt) => PathView::Up(ms(rtt.into())),
            None => PathView::Dead,
        };
        let distances = |of: u8| (1..=self.nodes).map(move |to| (of, to));
        let near = |relay: u8| match path(relay) {
            PathView::Up(rtt) => Some(Near {
                relay: node(relay),
                rtt,
                deviation: Duration::ZERO,
                loss_percent: 0,
                onward: distances(relay)
                    .map(|(of, to)| Distance {
                        origin: node(to),
                        rtt_us: self.claims[self.at(of, to)],
                        loss_percent: 0,
                    })
                    .collect(),
            }),
            PathView::Own | PathView::Unmeasured | PathView::Dead => None,
        };
        let (evidence, timings) = (Evidence::default(), Timings::default());
        let (broken, start) = (BrokenLines::default(), Instant::now());
        let mut paths = Paths::default();
        let view = origin(to, OriginState::Ready, path(to));
        let mut line = view.line;
        for passed in [Duration::ZERO, GAIN_LASTING] {
            let now = start + passed;
            let near = (1..=self.nodes).filter_map(near);
            let offers =
                near.filter_map(|it| Offer::of(&it, node(to), &broken, &evidence, &timings, now));
            let offers: Vec<Offer> = offers.collect();
            line = paths.choose(&view, &offers, now).map_or(view.line, |view| view.line);
        }
        line
    }
}

fn meshes() -> impl Strategy<Value = Mesh> {
    (2..7_u8).prop_flat_map(|nodes| {
        let pairs = usize::from(nodes) * usize::from(nodes);
        let paths = proptest::collection::vec(proptest::option::of(0..500_u16), pairs);
        let claims = proptest::collection::vec(proptest::option::of(any::<u32>()), pairs);
        let may_relay = proptest::collection::vec(any::<bool>(), usize::from(nodes));
        (Just(nodes), paths, claims, may_relay).prop_map(|(nodes, paths, claims, may_relay)| Mesh {
            nodes,
            paths,
            claims,
            may_relay,
        })
    })
}

proptest! {
    /// Whatever records say: at most one node between, none twice, and the path ends at the origin.
    #[test]
    fn never_two_hops_and_never_a_loop(mesh in meshes()) {
        let all = 1..=mesh.nodes;
        for (from, to) in all.clone().flat_map(|from| all.clone().map(move |to| (from, to))) {
            let mut visited = vec![node(from)];
            let (mut at, mut target, mut hops) = match mesh.line(from, to) {
                Line::Relayed { origin, relay } => (relay, Some(origin), Hops::One),
                Line::Direct(origin) => (origin, None, Hops::None),
                Line::Outside(_) => unreachable!("there is nothing outside"),
            };
            if from == to {
                prop_assert_eq!(at, node(from));
                continue;
            }
            loop {
                prop_assert!(!visited.contains(&at), "{:?} comes to {} again", visited, at.short());
                let peer = *visited.last().expect("it began somewhere");
                visited.push(at);
                let may_relay = mesh.may_relay[usize::from(at.as_bytes()[0] - 1)];
                match receive(at, peer, target, hops, may_relay) {
                    Receive::Carry(next) => (at, target, hops) = (next, None, Hops::None),
                    Receive::Serve => {
                        prop_assert_eq!(at, node(to));
                        break;
                    }
                    Receive::Refuse => break,
                }
            }
            prop_assert!(visited.len() <= 3, "{visited:?}");
        }
    }

    /// Any header, even one that no honest node sends, is relayed at most once.
    #[test]
    fn any_header_is_carried_at_most_once(
        target in proptest::option::of(1..6_u8),
        one in any::<bool>(),
        from in 1..6_u8,
        at in 1..6_u8,
    ) {
        let hops = if one { Hops::One } else { Hops::None };
        let received = receive(node(at), node(from), target.map(node), hops, true);
        if let Receive::Carry(next) = received {
            prop_assert!(one && next != node(at) && next != node(from));
            prop_assert_eq!(receive(next, node(at), None, Hops::None, true), Receive::Serve);
        }
    }

    /// A lie draws sessions only from a path that is longer than the path to the liar alone.
    #[test]
    fn lies_do_not_change_a_direct_choice(
        rtt in 0..400_u64,
        relays in proptest::collection::vec((0..400_u64, proptest::option::of(any::<u32>())), 0..5),
    ) {
        let view = direct(PathView::Up(ms(rtt)));
        let numbered = (2..).zip(&relays);
        let claimed = |us: &Option<u32>| us.map(|us| Duration::from_micros(us.into()));
        let near = numbered.map(|(it, (rtt, claim))| near(it, ms(*rtt), claimed(claim))).collect();
        let mut bench = Bench::new(near);
        let worth = |it: u64| Damping::default().is_clear(ms(rtt), ms(it) + penalty(ms(it)));
        if let Some(relay) = bench.relay(&view, GAIN_LASTING * 2) {
            prop_assert!(worth(relays[usize::from(relay) - 2].0));
        }
    }
}
