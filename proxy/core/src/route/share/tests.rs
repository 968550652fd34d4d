#![expect(clippy::disallowed_methods, reason = "tests begin somewhere in time")]

use std::collections::BTreeMap;
use std::time::Instant;

use proptest::prelude::*;

use super::*;
use crate::route::tests::origin;
use crate::route::{Draw, OriginState, PathView, Policy, Preference, Route, choose};

/// A route over ready origins with these numbers and weights.
fn route(policy: &Policy, weights: &[(u8, u32)]) -> Route {
    let views = weights.iter().map(|(number, weight)| {
        let path = PathView::Up(std::time::Duration::from_millis(u64::from(*number) + 1));
        OriginView { weight: *weight, ..origin(*number, OriginState::Ready, path) }
    });
    choose(views.collect(), policy, &Preference::default(), Instant::now()).0
}

/// The first candidate for each of these tickets.
fn firsts(route: &Route, tickets: impl Iterator<Item = u64>) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for ticket in tickets {
        let first = route.attempt_order(ticket, |_| 0)[0].origin.name.clone();
        *counts.entry(first).or_insert(0) += 1;
    }
    counts
}

#[test]
fn turns_are_as_many_as_weights() {
    let route = route(&Policy::Spread, &[(1, 1), (2, 3), (3, 1)]);
    assert_eq!(route.draw(), Draw::Turns);
    let mut counts: Vec<u64> = firsts(&route, 0..500).into_values().collect();
    counts.sort_unstable();
    assert_eq!(counts, [100, 100, 300]);
}

#[test]
fn the_fewest_sessions_win_for_their_weight() {
    for (weights, expected) in [([1, 1, 1], [34, 33, 33]), ([1, 3, 1], [20, 60, 20])] {
        let numbered: Vec<(u8, u32)> = (1..).zip(weights).collect();
        let route = route(&Policy::LeastSessions, &numbered);
        let mut open: BTreeMap<Line, u64> = BTreeMap::new();
        for ticket in 0..100 {
            let order =
                route.attempt_order(mix(ticket), |line| open.get(line).copied().unwrap_or(0));
            *open.entry(order[0].origin.line).or_insert(0) += 1;
        }
        let mut counts: Vec<u64> = open.into_values().collect();
        counts.sort_unstable();
        let mut expected = expected;
        expected.sort_unstable();
        assert_eq!(counts, expected);
    }
}

#[test]
fn a_client_stays_until_its_origin_goes_and_nobody_else_moves() {
    let all: Vec<(u8, u32)> = (1..=5).map(|number| (number, 1)).collect();
    let before = route(&Policy::Source, &all);
    assert_eq!(before.draw(), Draw::Source);
    let after = route(&Policy::Source, &all[1..]);
    let gone = origin(1, OriginState::Ready, PathView::Own).line;
    let mut moved = 0;
    for client in (0..10_000).map(mix) {
        let order = before.attempt_order(client, |_| 7);
        let next = after.attempt_order(client, |_| 0)[0].origin.line;
        if order[0].origin.line == gone {
            moved += 1;
            assert_eq!(next, order[1].origin.line, "the next of its own order takes over");
        } else {
            assert_eq!(next, order[0].origin.line);
        }
    }
    assert!((1_800..2_200).contains(&moved), "{moved} of 10,000 were with one of five");
}

#[test]
fn clients_are_shared_out_by_weight() {
    let route = route(&Policy::Source, &[(1, 1), (2, 3)]);
    let counts = firsts(&route, (0..10_000).map(mix));
    let most = counts.values().max().copied().unwrap_or(0);
    assert!((7_300..7_700).contains(&most), "{counts:?}");
}

#[test]
fn the_way_to_an_origin_is_no_matter_for_its_clients() {
    let direct = origin(1, OriginState::Ready, PathView::Own);
    let node = direct.line.origin().expect("a node");
    let relay = origin(9, OriginState::Ready, PathView::Own).line.origin().expect("a node");
    assert_eq!(hash_input(&direct.line), hash_input(&Line::Relayed { origin: node, relay }));
}

#[test]
fn weights_are_by_name_or_key() {
    let view = origin(1, OriginState::Ready, PathView::Own);
    let key = view.line.origin().expect("a node").to_string();
    let weights = |text: &str| Weights(vec![text.parse().expect("a weight")]);
    assert_eq!(weights(&format!("{key}=5")).of(&view), 5);
    assert_eq!(weights(&format!("{}=6", view.name)).of(&view), 6);
    assert_eq!(weights("elsewhere=7").of(&view), 1);
    assert_eq!(Weights::default().of(&view), 1);
}

proptest! {
    /// Whatever the draw, an order has each candidate once, and those that do not share stay last.
    #[test]
    fn an_order_is_a_permutation(
        ticket in any::<u64>(),
        weights in proptest::collection::vec(1_u32..100, 1..6),
        kind in 0..4_usize,
    ) {
        let policies = [
            Policy::Spread, Policy::LeastSessions, Policy::Source,
            Policy::Nearest { band: std::time::Duration::from_secs(1), band_percent: 100 },
        ];
        let numbered: Vec<(u8, u32)> = (1..).zip(weights).collect();
        let route = route(&policies[kind], &numbered);
        let order = route.attempt_order(ticket, |line| hash_input(line) % 5);
        let mut lines: Vec<Line> = order.iter().map(|it| it.origin.line).collect();
        lines.sort_unstable();
        lines.dedup();
        prop_assert_eq!(lines.len(), numbered.len());
    }
}
