//! What happens to open sessions when an origin changes: a pure function.
//!
//! A session is reset only if its path or instance no longer works; all others end normally, since
//! a terminating apiserver serves its open watches for a minute.
//!
//! | news | open sessions |
//! | --- | --- |
//! | the path is dead | reset: their clients cannot know |
//! | the path loses most of what is sent, and another origin is healthy | reset, likewise |
//! | the instance hangs, and another origin is healthy | reset: no answer will come |
//! | the instance stalls (what it depends on stands still), and another origin is healthy | reset |
//! | the instance hangs or stalls, and so do all others | stay: there is nothing better |
//! | the same, and the best other is unready | stay: it may stall too, or just start |
//! | unready, refusing, unknown | stay |
//! | draining, and another origin is healthy | move there, within the drain window |
//! | none, but a better origin has been healthy for a while | move there, slowly |
//!
//! Resets are spread over a window, so that clients do not all reconnect at once. A client that is
//! waiting for an answer has waited since the fault began, so its session goes first
//! ([`reset_after`]).

use std::time::Duration;

use meshport_discovery::OriginState;

use super::drift::Cause;
use super::route::{Line, OriginView, PathView, Route, Standing};

/// The decision about the sessions open to an origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// They stay.
    Stay,
    /// They move elsewhere, a few at a time.
    Move(Cause),
    /// They are reset, within the service's window if their clients have an alternative, else at
    /// once.
    Reset {
        /// How much of the window is used, in percent: none if there is no other healthy origin to
        /// protect from a reconnect storm.
        spread_percent: u32,
        /// Whether a session continues if its origin answers after all, which proves the news
        /// outdated. On a lossy path an answer proves nothing.
        forgives: bool,
        /// Why, as a phrase.
        why: &'static str,
    },
}

/// The part of the window in which sessions of waiting clients are reset: one in this many.
const WAITING_PART: f64 = 10.0;

/// Delay of a session's reset. `place` is its position in the window, from 0 to 1; `waits` tells
/// whether its client is waiting for an answer.
pub fn reset_after(window: Duration, place: f64, waits: bool) -> Duration {
    let place = place.clamp(0.0, 1.0);
    window.mul_f64(if waits { place / WAITING_PART } else { place })
}

/// The fate of the sessions on the line of `view`, while new ones follow `route`.
pub fn fate(view: &OriginView, route: &Route) -> Fate {
    let any_other = |serves: &dyn Fn(Standing) -> bool| {
        let mut others = route.candidates.iter().filter(|other| other.origin.line != view.line);
        others.any(|other| serves(other.standing))
    };
    let healthy = any_other(&|it| it == Standing::Healthy);
    // A drained origin still serves, so it is better than one whose requests hang.
    let spread = healthy || any_other(&|it| it == Standing::Draining);
    if view.path == PathView::Dead {
        let spread_percent = if spread { 100 } else { 0 };
        return Fate::Reset { spread_percent, forgives: true, why: "its path is dead" };
    }
    if view.broken && spread {
        let why = "its path loses most packets";
        return Fate::Reset { spread_percent: 100, forgives: false, why };
    }
    match view.state {
        // Detection took two probes, and controllers soon lose their lease.
        OriginState::Hung if spread => {
            Fate::Reset { spread_percent: 50, forgives: true, why: "its instance hangs" }
        }
        // Detection takes over two seconds. The instance still answers, which proves nothing.
        OriginState::Stalled if spread => {
            Fate::Reset { spread_percent: 50, forgives: false, why: "its instance stalls" }
        }
        OriginState::Draining if healthy => Fate::Move(Cause::Drain),
        OriginState::Ready if route.is_away(&view.line) => Fate::Move(Cause::Home),
        // An address outside the mesh announces no state.
        _ if is_outside(view) && route.is_away(&view.line) => Fate::Move(Cause::Home),
        _ => Fate::Stay,
    }
}

fn is_outside(view: &OriginView) -> bool {
    matches!(view.line, Line::Outside(_))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "an origin for virtual time")]

    use std::time::Instant;

    use super::*;
    use crate::route::tests::origin;
    use crate::route::{Policy, Preference, choose};

    const UP: PathView = PathView::Up(Duration::from_millis(2));

    /// The fates of two origins, in the order given.
    fn fates(states: [(OriginState, PathView); 2]) -> [Fate; 2] {
        let [one, two] = states;
        let origins = vec![origin(1, one.0, one.1), origin(2, two.0, two.1)];
        let policy = Policy::Spread;
        let (route, _) = choose(origins.clone(), &policy, &Preference::default(), Instant::now());
        [0, 1].map(|at: usize| fate(&origins[at], &route))
    }

    #[test]
    fn a_dead_path_is_cut_and_the_healthy_one_is_not() {
        let [dead, healthy] =
            fates([(OriginState::Ready, PathView::Dead), (OriginState::Ready, UP)]);
        let why = "its path is dead";
        assert_eq!(dead, Fate::Reset { spread_percent: 100, forgives: true, why });
        assert_eq!(healthy, Fate::Stay);
    }

    #[test]
    fn a_path_that_loses_most_is_cut_only_while_another_is_healthy() {
        let near = |broken| OriginView { broken, ..origin(1, OriginState::Ready, UP) };
        let fate_beside = |broken, other| {
            let origins = vec![near(broken), origin(2, other, UP)];
            let memory = Preference::default();
            let (route, _) = choose(origins, &Policy::Spread, &memory, Instant::now());
            fate(&near(broken), &route)
        };
        let reset = fate_beside(true, OriginState::Ready);
        let is_reset = matches!(reset, Fate::Reset { spread_percent: 100, forgives: false, .. });
        assert!(is_reset, "{reset:?}");
        assert_eq!(fate_beside(false, OriginState::Ready), Fate::Stay);
        assert_eq!(fate_beside(true, OriginState::Unready), Fate::Stay);
    }

    #[test]
    fn two_dead_paths_are_cut_at_once() {
        let both = fates([(OriginState::Ready, PathView::Dead); 2]);
        assert!(both.iter().all(|fate| matches!(fate, Fate::Reset { spread_percent: 0, .. })));
    }

    #[test]
    fn a_hung_instance_is_cut_only_while_another_answers() {
        let [hung, healthy] = fates([(OriginState::Hung, UP), (OriginState::Ready, UP)]);
        let why = "its instance hangs";
        assert_eq!(hung, Fate::Reset { spread_percent: 50, forgives: true, why });
        assert_eq!(healthy, Fate::Stay);
        assert_eq!(fates([(OriginState::Hung, UP); 2]), [Fate::Stay; 2]);
        assert_eq!(fates([(OriginState::Hung, UP), (OriginState::Unready, UP)])[0], Fate::Stay);
    }

    #[test]
    fn a_stalled_instance_is_cut_only_while_another_is_ready() {
        let stalled = (OriginState::Stalled, UP);
        let [fate, healthy] = fates([stalled, (OriginState::Ready, UP)]);
        assert!(matches!(fate, Fate::Reset { forgives: false, .. }), "{fate:?}");
        assert_eq!(healthy, Fate::Stay);
        assert_eq!(fates([stalled; 2]), [Fate::Stay; 2]);
        // The other one is in doubt: a common dependency may have stalled.
        assert_eq!(fates([stalled, (OriginState::Unready, UP)]), [Fate::Stay; 2]);
    }

    #[test]
    fn a_drained_origin_takes_the_sessions_of_one_whose_requests_hang() {
        for state in [OriginState::Stalled, OriginState::Hung] {
            let [fate, drained] = fates([(state, UP), (OriginState::Draining, UP)]);
            assert!(matches!(fate, Fate::Reset { spread_percent: 50, .. }), "{state}: {fate:?}");
            assert_eq!(drained, Fate::Stay, "no other serves");
        }
    }

    #[test]
    fn the_outside_is_left_once_the_mesh_is_healthy() {
        let outside = OriginView::outside(([192, 0, 2, 1], 6443).into());
        let fate_with = |state| {
            let origins = vec![outside.clone(), origin(1, state, UP)];
            let policy = Policy::Spread;
            let (route, _) = choose(origins, &policy, &Preference::default(), Instant::now());
            fate(&outside, &route)
        };
        assert_eq!(fate_with(OriginState::Ready), Fate::Move(Cause::Home));
        assert_eq!(fate_with(OriginState::Unready), Fate::Stay);
        assert_eq!(fate_with(OriginState::Refusing), Fate::Stay);
    }

    #[test]
    fn refusing_and_unready_ones_stay() {
        for state in [OriginState::Refusing, OriginState::Unready, OriginState::Unknown] {
            assert_eq!(fates([(state, UP), (OriginState::Ready, UP)]), [Fate::Stay; 2]);
        }
    }

    #[test]
    fn a_draining_one_is_left_for_a_healthy_one_only() {
        let draining = (OriginState::Draining, UP);
        let healthy = (OriginState::Ready, UP);
        assert_eq!(fates([draining, healthy]), [Fate::Move(Cause::Drain), Fate::Stay]);
        assert_eq!(fates([draining, (OriginState::Unready, UP)])[0], Fate::Stay);
        assert_eq!(fates([draining; 2]), [Fate::Stay; 2]);
    }

    #[test]
    fn a_healthy_one_that_is_not_preferred_is_left_slowly() {
        let near = origin(1, OriginState::Ready, UP);
        let far = origin(2, OriginState::Ready, PathView::Up(Duration::from_millis(80)));
        let policy = Policy::Nearest { band: Duration::ZERO, band_percent: 15 };
        let fates = |near: &OriginView| {
            let origins = vec![near.clone(), far.clone()];
            let (route, _) = choose(origins, &policy, &Preference::default(), Instant::now());
            [near, &far].map(|view| fate(view, &route))
        };
        assert_eq!(fates(&near), [Fate::Stay, Fate::Move(Cause::Home)]);
        // Back, but not yet known to be ready: no session moves.
        let back = OriginView { state: OriginState::Unknown, ..near.clone() };
        assert_eq!(fates(&back), [Fate::Stay, Fate::Stay]);
        let suspect = OriginView { suspect: true, ..near };
        assert_eq!(fates(&suspect)[1], Fate::Stay);
    }

    #[test]
    fn an_origin_that_waits_to_be_preferred_again_is_not_left() {
        let policy = Policy::Nearest { band: Duration::ZERO, band_percent: 15 };
        let near = |state| origin(1, state, UP);
        let far = origin(2, OriginState::Ready, PathView::Up(Duration::from_millis(80)));
        let start = Instant::now();
        let mut memory = Preference::default();
        let mut decide = |state, after_s| {
            let now = start + Duration::from_secs(after_s);
            let (route, next) = choose(vec![near(state), far.clone()], &policy, &memory, now);
            memory = next;
            [near(state), far.clone()].map(|view| fate(&view, &route))
        };
        assert_eq!(decide(OriginState::Unready, 0), [Fate::Stay; 2]);
        decide(OriginState::Unready, 20);
        // Ready again: new sessions keep using the far one for a while, and no session moves either
        // way.
        assert_eq!(decide(OriginState::Ready, 21), [Fate::Stay; 2]);
        assert_eq!(decide(OriginState::Ready, 32), [Fate::Stay, Fate::Move(Cause::Home)]);
    }

    #[test]
    fn sessions_are_reset_throughout_the_window_and_waiting_ones_first() {
        let window = Duration::from_secs(1);
        let ms = |place, waits| reset_after(window, place, waits).as_millis();
        assert_eq!([0.0, 0.5, 1.0].map(|place| ms(place, false)), [0, 500, 1000]);
        assert_eq!([0.0, 0.5, 1.0].map(|place| ms(place, true)), [0, 50, 100]);
        assert_eq!(ms(7.0, false), 1000, "no place is outside of the window");
    }
}
