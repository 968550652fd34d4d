//! When a previous secret may be erased: once it has expired by a clock that can be trusted.
//!
//! The wall clock decides each time whether a previous secret still opens tunnels, so a wrong clock
//! does no lasting harm. Erasure is final, so it waits until monotonic time agrees that the secret
//! has expired or, after a clock jump or a start past its end, until the wall clock has shown that
//! for [`CONFIRMATION`].

use std::time::{Duration, Instant};

use meshport_config::UnixSeconds;

/// How long a wall clock, without other evidence, must show that the secret has expired. A wrong
/// clock is corrected within minutes once there is a network, and keeping a secret on disk for
/// another hour after days reveals nothing more.
pub const CONFIRMATION: Duration = Duration::from_secs(3600);
/// How far both clocks may differ: slewing, and whole seconds on one side.
const TOLERANCE: Duration = Duration::from_secs(5);
/// Maximum interval between readings of the wall clock, which may be set.
const LOOK: Duration = Duration::from_secs(60);

/// Follows the end of one previous secret.
#[derive(Debug, Clone, Copy, Default)]
pub struct Overlap {
    /// When the wall clock last showed time left, and how much.
    before: Option<(Instant, Duration)>,
    /// Since when the wall clock has been past the end.
    over_since: Option<Instant>,
}

impl Overlap {
    /// Whether the secret that ends at `end` may be erased.
    pub fn is_over(&mut self, end: UnixSeconds, wall: UnixSeconds, now: Instant) -> bool {
        if wall < end {
            self.before = Some((now, Duration::from_secs(end.seconds_since(wall))));
            self.over_since = None;
            return false;
        }
        let since = *self.over_since.get_or_insert(now);
        let agrees = self
            .before
            .is_some_and(|(seen, left)| now.saturating_duration_since(seen) + TOLERANCE >= left);
        agrees || now.saturating_duration_since(since) >= CONFIRMATION
    }

    /// How long until the next check.
    pub fn wait(&self, now: Instant) -> Duration {
        let left = match (self.before, self.over_since) {
            (_, Some(since)) => (since + CONFIRMATION).saturating_duration_since(now),
            (Some((seen, left)), None) => (seen + left).saturating_duration_since(now),
            (None, None) => LOOK,
        };
        left.clamp(Duration::from_secs(1), LOOK)
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "an origin for virtual time")]

    use super::*;

    const END: UnixSeconds = UnixSeconds(1_800_000_000);

    /// Both clocks, which advance together unless the wall clock is set.
    struct Clocks {
        overlap: Overlap,
        now: Instant,
        wall: UnixSeconds,
    }

    impl Clocks {
        /// This many seconds before the end.
        fn before(seconds: u64) -> Self {
            let wall = UnixSeconds(END.0 - seconds);
            Self { overlap: Overlap::default(), now: Instant::now(), wall }
        }

        fn is_over(&mut self) -> bool {
            self.overlap.is_over(END, self.wall, self.now)
        }

        /// Checks as often as it requests for this long; returns when it was over.
        fn until_over(&mut self, seconds: u64) -> Option<u64> {
            let begun = self.now;
            loop {
                let passed = self.now.duration_since(begun).as_secs();
                if self.is_over() {
                    return Some(passed);
                }
                if passed >= seconds {
                    return None;
                }
                let wait = self.overlap.wait(self.now);
                self.now += wait;
                self.wall = self.wall.saturating_add(wait.as_secs());
            }
        }
    }

    #[test]
    fn where_both_clocks_agree_the_end_is_at_the_second() {
        assert_eq!(Clocks::before(1000).until_over(2000), Some(1000));
        assert_eq!(Clocks::before(7 * 86_400).until_over(8 * 86_400), Some(7 * 86_400));
    }

    #[test]
    fn a_clock_that_was_ahead_for_a_while_erases_nothing() {
        for (ahead, seconds) in [(400 * 86_400, 20), (90_000, 1800), (86_400, 3000)] {
            let mut clocks = Clocks::before(86_400);
            assert_eq!(clocks.until_over(30), None);
            clocks.wall = clocks.wall.saturating_add(ahead);
            assert_eq!(clocks.until_over(seconds), None, "{ahead} s for {seconds} s");
            clocks.wall = UnixSeconds(clocks.wall.0 - ahead);
            let left = END.0 - clocks.wall.0;
            assert_eq!(clocks.until_over(2 * 86_400), Some(left));
        }
    }

    #[test]
    fn a_clock_that_stays_ahead_and_a_start_after_the_end_are_believed_in_time() {
        let mut clocks = Clocks::before(86_400);
        assert!(!clocks.is_over());
        clocks.wall = END.saturating_add(86_400);
        assert_eq!(clocks.until_over(10_000), Some(CONFIRMATION.as_secs()));
        let mut clocks = Clocks::before(0);
        assert_eq!(clocks.until_over(10_000), Some(CONFIRMATION.as_secs()));
    }

    #[test]
    fn a_clock_that_was_behind_is_believed_in_time_once_it_is_right() {
        let mut clocks = Clocks::before(50 * 365 * 86_400);
        assert_eq!(clocks.until_over(600), None);
        clocks.wall = END.saturating_add(10);
        assert_eq!(clocks.until_over(10_000), Some(CONFIRMATION.as_secs()));
    }
}
