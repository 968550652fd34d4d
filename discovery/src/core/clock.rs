//! The times passed to a node, and their use to detect stalls of the process.

use std::time::{Duration, Instant};

use meshport_config::UnixSeconds;

/// A timer this late means that the process did not run.
const STALL: Duration = Duration::from_millis(250);
/// Time after a stall to read input that has arrived meanwhile.
const AFTER_STALL: Duration = Duration::from_millis(100);

/// How often tables are tidied.
const SWEEP: Duration = Duration::from_secs(10);

/// The latest times, and whether the last timer was late.
#[derive(Debug)]
pub(super) struct Clock {
    pub(super) wall: UnixSeconds,
    pub(super) latest: Instant,
    /// Timers were shifted and none has fired since.
    shifted: bool,
    /// Time of the next sweep of the tables.
    pub(super) sweep_at: Instant,
}

impl Clock {
    pub(super) fn new(now: Instant) -> Self {
        Self { wall: UnixSeconds(0), latest: now, shifted: false, sweep_at: now + SWEEP }
    }

    pub(super) fn note(&mut self, now: Instant) {
        self.latest = self.latest.max(now);
    }

    /// Takes the wall time; returns the former one.
    pub(super) fn set_wall(&mut self, wall: UnixSeconds) -> UnixSeconds {
        std::mem::replace(&mut self.wall, wall)
    }

    /// Whether the tables are due for a sweep.
    pub(super) fn take_sweep(&mut self, now: Instant) -> bool {
        let is_due = self.sweep_at <= now;
        if is_due {
            self.sweep_at = now + SWEEP;
        }
        is_due
    }

    /// A timer that was `due` fires. By how much to shift all timers, if the process did not run
    /// meanwhile.
    pub(super) fn stall(&mut self, due: Option<Instant>, now: Instant) -> Option<Duration> {
        let late = due.map_or(Duration::ZERO, |due| now.saturating_duration_since(due));
        // Never twice in a row, or a process that is always late would do nothing.
        self.shifted = late > STALL && !self.shifted;
        self.shifted.then_some(late + AFTER_STALL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::base;

    #[test]
    fn timers_are_shifted_after_a_stall_and_not_twice_in_a_row() {
        let due = base();
        let mut clock = Clock::new(due);
        assert_eq!(clock.stall(Some(due), due + STALL), None, "a little late");
        let late = due + STALL * 2;
        assert_eq!(clock.stall(Some(due), late), Some(STALL * 2 + AFTER_STALL));
        assert_eq!(clock.stall(Some(due), late), None);
        assert!(clock.stall(Some(due), late).is_some());
    }
}
