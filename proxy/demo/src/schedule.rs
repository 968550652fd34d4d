//! The times of the demo's steps, for a given length: pure.
//!
//! The full demo has a calm phase, the stop of the nearest apiserver, its return, and the return of
//! traffic. An origin that is back is used once that has lasted a second, and up to ten on a
//! machine that is too busy for its probes (see `route` of the core). A shorter demo ends earlier
//! in the schedule and reports that.

use std::time::Duration;

/// The shortest calm before the stop: a younger node remembers no origin to return to, and would
/// take ten seconds instead of one.
const CALM_MIN: Duration = Duration::from_secs(5);
/// The shortest time without the nearest apiserver.
const GONE_MIN: Duration = Duration::from_secs(3);
/// From the restart to the end: the longest hysteresis (10 s), the probe that finds the apiserver
/// ready, and a moment after the return.
const HOMECOMING: Duration = Duration::from_secs(12);
/// The longest calm and absence: more of the same shows nothing new.
const CHAPTER_MAX: Duration = Duration::from_secs(20);
/// The shortest demo that stops an apiserver at all.
const FAILOVER_MIN: Duration = Duration::from_secs(6);

/// The shortest demo that shows everything.
pub const WHOLE: Duration = CALM_MIN.saturating_add(GONE_MIN).saturating_add(HOMECOMING);

/// Times since requests began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// The end.
    pub length: Duration,
    /// The nearest apiserver stops; never, in a demo that is too short.
    pub stop_at: Option<Duration>,
    /// It starts again; never, in a demo that is too short.
    pub restart_at: Option<Duration>,
}

impl Schedule {
    /// The longest part of the schedule that fits `length`.
    pub fn of(length: Duration) -> Self {
        let Some(spare) = length.checked_sub(WHOLE) else {
            let stop_at = (length >= FAILOVER_MIN).then(|| CALM_MIN.min(length / 2));
            return Self { length, stop_at, restart_at: None };
        };
        let stop_at = (CALM_MIN + spare * 3 / 10).min(CHAPTER_MAX);
        let gone = (GONE_MIN + spare * 3 / 10).min(CHAPTER_MAX);
        Self { length, stop_at: Some(stop_at), restart_at: Some(stop_at + gone) }
    }

    /// The steps that are left out for lack of time, as a sentence.
    pub fn shortened(&self) -> Option<String> {
        let left_out = match (self.stop_at, self.restart_at) {
            (Some(_), Some(_)) => return None,
            (Some(_), None) => "the stopped apiserver does not come back",
            (None, _) => "no apiserver is stopped",
        };
        Some(format!(
            "{} s are too short for everything: {left_out}. --for {} shows all of it.",
            self.length.as_secs(),
            WHOLE.as_secs()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(seconds: u64) -> Schedule {
        Schedule::of(Duration::from_secs(seconds))
    }

    #[test]
    fn the_default_tells_everything() {
        let Schedule { length, stop_at, restart_at } = schedule(30);
        assert_eq!(
            (length.as_secs(), stop_at, restart_at),
            (30, Some(Duration::from_secs(8)), Some(Duration::from_secs(14)))
        );
        assert_eq!(schedule(30).shortened(), None);
    }

    #[test]
    fn a_whole_demo_leaves_time_for_the_way_home() {
        assert_eq!(WHOLE.as_secs(), 20);
        for seconds in 20..200 {
            let Schedule { length, stop_at, restart_at } = schedule(seconds);
            let (stop_at, restart_at) = (stop_at.unwrap(), restart_at.unwrap());
            assert!(stop_at >= CALM_MIN && restart_at - stop_at >= GONE_MIN, "{seconds}");
            assert!(length - restart_at >= HOMECOMING, "{seconds}");
            assert!(restart_at <= 2 * CHAPTER_MAX, "{seconds}");
        }
    }

    #[test]
    fn what_is_left_out_is_said() {
        assert_eq!((schedule(19).stop_at.is_some(), schedule(19).restart_at), (true, None));
        assert!(schedule(19).shortened().unwrap().contains("--for 20"));
        assert_eq!((schedule(5).stop_at, schedule(5).restart_at), (None, None));
        assert!(schedule(5).shortened().unwrap().contains("no apiserver is stopped"));
    }
}
