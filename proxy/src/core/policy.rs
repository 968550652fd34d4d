//! What bad news about an origin means for the sessions that are open to it: a pure function.
//!
//! Dead is not draining is not refused. A session is worth resetting only when nothing can come
//! through it any more; everything else is left to end by itself, since a terminating apiserver
//! serves its open watches for a minute.
//!
//! | news | open sessions |
//! | --- | --- |
//! | the path is dead | reset: their clients cannot know |
//! | the instance hangs, and another origin is healthy | reset: no answer will come |
//! | the instance hangs, and so do all others | stay: there is nothing better |
//! | unready, refusing, draining, unknown | stay |

use meshport_discovery::OriginState;

use super::route::{OriginView, PathView, Route, Standing};

/// What becomes of the sessions open to an origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// They stay.
    Stay,
    /// They are reset, within the service's window if their clients have somewhere to go, else at
    /// once.
    Reset {
        /// Whether another origin is healthy, so that a herd of returning clients would hit it.
        spread: bool,
        /// Why, as a phrase.
        why: &'static str,
    },
}

/// The fate of the sessions on the line of `view`, while new ones follow `route`.
pub fn fate(view: &OriginView, route: &Route) -> Fate {
    let healthy = |line| {
        let mut others = route.candidates.iter().filter(|other| other.origin.line != line);
        others.any(|other| other.standing == Standing::Healthy)
    };
    let spread = healthy(view.line);
    if view.path == PathView::Dead {
        return Fate::Reset { spread, why: "its path is dead" };
    }
    if view.state == OriginState::Hung && spread {
        return Fate::Reset { spread, why: "its instance hangs" };
    }
    Fate::Stay
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "an origin for virtual time")]

    use std::time::{Duration, Instant};

    use super::*;
    use crate::core::route::tests::origin;
    use crate::core::route::{Policy, Preference, choose};

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
        assert_eq!(dead, Fate::Reset { spread: true, why: "its path is dead" });
        assert_eq!(healthy, Fate::Stay);
    }

    #[test]
    fn two_dead_paths_are_cut_at_once() {
        let both = fates([(OriginState::Ready, PathView::Dead); 2]);
        assert!(both.iter().all(|fate| matches!(fate, Fate::Reset { spread: false, .. })));
    }

    #[test]
    fn a_hung_instance_is_cut_only_while_another_answers() {
        let [hung, healthy] = fates([(OriginState::Hung, UP), (OriginState::Ready, UP)]);
        assert_eq!(hung, Fate::Reset { spread: true, why: "its instance hangs" });
        assert_eq!(healthy, Fate::Stay);
        assert_eq!(fates([(OriginState::Hung, UP); 2]), [Fate::Stay; 2]);
        assert_eq!(fates([(OriginState::Hung, UP), (OriginState::Unready, UP)])[0], Fate::Stay);
    }

    #[test]
    fn draining_refusing_and_unready_ones_stay() {
        for state in [
            OriginState::Draining,
            OriginState::Refusing,
            OriginState::Unready,
            OriginState::Unknown,
        ] {
            assert_eq!(fates([(state, UP), (OriginState::Ready, UP)]), [Fate::Stay; 2]);
        }
    }
}
