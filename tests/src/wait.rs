//! Waiting for a condition with a deadline: the only place of this package that sleeps or reads the
//! clock.
//!
//! A test never sleeps and hopes that something has happened meanwhile. It polls until the
//! condition holds or the deadline passes, and then reports what it waited for.

#![expect(clippy::disallowed_methods, reason = "the one place of this package that may sleep")]

use std::time::{Duration, Instant};

/// Shortest and longest pause between two polls.
const PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(200)];
/// A pause is this many times as long as the poll before it. Many polls start a process, and
/// waiting tests must leave the processors to working ones.
const REST: u32 = 3;

/// Polls until `look` finds something, at most for `limit`.
///
/// # Panics
/// If the deadline passes, naming `what` was waited for.
#[track_caller]
pub fn until<T>(what: &str, limit: Duration, look: impl FnMut() -> Option<T>) -> T {
    match within(limit, look) {
        Some(found) => found,
        None => panic!("timed out after {limit:?} waiting for this: {what}"),
    }
}

/// Calls `look` until it finds something, at most for `limit`; the last call is after the deadline.
pub fn within<T>(limit: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = now() + limit;
    loop {
        let begun = now();
        let last = begun >= deadline;
        if let Some(found) = look() {
            return Some(found);
        }
        if last {
            return None;
        }
        let [shortest, longest] = PAUSES;
        std::thread::sleep((begun.elapsed() * REST).clamp(shortest, longest));
    }
}

/// Polls for the whole of `span` and panics as soon as `holds` returns false.
///
/// # Panics
/// If the condition `what` fails within the span.
#[track_caller]
pub fn throughout(what: &str, span: Duration, mut holds: impl FnMut() -> bool) {
    let broken = within(span, || (!holds()).then_some(()));
    assert!(broken.is_none(), "this did not stay true for {span:?}: {what}");
}

/// Paces a load: returns at `next`, which it advances by `interval`.
pub fn pace(next: &mut Instant, interval: Duration) {
    std::thread::sleep(next.saturating_duration_since(now()));
    *next = now() + interval;
}

/// Paces one of many loads in a process.
pub async fn between_turns(interval: Duration) {
    tokio::time::sleep(interval).await;
}

/// Returns at `at`: for a schedule, where the time itself is the condition.
pub fn moment(at: Instant) {
    std::thread::sleep(at.saturating_duration_since(now()));
}

/// The time, for measuring.
#[expect(clippy::disallowed_methods, reason = "tests of the whole run in real time")]
pub fn now() -> Instant {
    Instant::now()
}

/// The time of day, in Unix seconds.
pub fn unix_now() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_is_returned_and_what_does_not_come_is_not() {
        let mut looks = 0;
        let third = within(Duration::from_secs(5), || {
            looks += 1;
            (looks == 3).then_some(looks)
        });
        assert_eq!(third, Some(3));
        assert_eq!(within(Duration::ZERO, || None::<()>), None);
    }

    #[test]
    #[should_panic(expected = "waiting for this: rain")]
    fn the_deadline_names_what_was_waited_for() {
        until("rain", Duration::ZERO, || None::<()>);
    }

    #[test]
    #[should_panic(expected = "did not stay true")]
    fn a_broken_condition_is_noticed() {
        let mut looks = 0;
        throughout("fewer than three looks", Duration::from_secs(5), || {
            looks += 1;
            looks < 3
        });
    }
}
