//! A token bucket, used for every rate limit.

use std::time::{Duration, Instant};

/// The maximum credit, and the time for one unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// The burst, at least 1.
    pub most: u32,
    /// The time for one unit, at least a nanosecond.
    pub each: Duration,
}

impl Rate {
    /// `count` per second with a burst of `count`; at least 1.
    pub fn per_second(count: u32) -> Self {
        let most = count.max(1);
        Self { most, each: (Duration::from_secs(1) / most).max(Duration::from_nanos(1)) }
    }
}

/// Credit left.
#[derive(Debug, Clone, Copy)]
pub struct Credit {
    rate: Rate,
    left: u32,
    /// The time up to which credit was added.
    at: Instant,
}

impl Credit {
    /// A full bucket.
    pub fn full(rate: Rate, now: Instant) -> Self {
        Self { rate, left: rate.most, at: now }
    }

    /// Adds the credit for the elapsed time.
    pub fn pass(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.at).as_nanos();
        let given = u32::try_from(passed / self.rate.each.as_nanos().max(1)).unwrap_or(u32::MAX);
        if given >= self.rate.most.saturating_sub(self.left) {
            (self.left, self.at) = (self.rate.most, now);
        } else {
            self.left += given;
            self.at += self.rate.each * given;
        }
    }

    /// Takes one unit if available.
    pub fn take(&mut self, now: Instant) -> bool {
        self.pass(now);
        let taken = self.left > 0;
        self.left -= u32::from(taken);
        taken
    }

    /// Returns one unit.
    pub fn give(&mut self) {
        self.left = self.rate.most.min(self.left.saturating_add(1));
    }

    /// Units available, as of the last [`Credit::pass`].
    pub fn left(&self) -> u32 {
        self.left
    }

    /// Whether the bucket is full.
    pub fn is_full(&mut self, now: Instant) -> bool {
        self.pass(now);
        self.left == self.rate.most
    }

    /// Continues at another rate, with no more credit than that allows.
    pub fn set_rate(&mut self, rate: Rate, now: Instant) {
        self.pass(now);
        (self.rate, self.left) = (rate, self.left.min(rate.most));
    }

    /// Time at which a unit is available.
    pub fn due(&self) -> Instant {
        if self.left > 0 { self.at } else { self.at + self.rate.each }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests begin somewhere in time")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn another_rate_gives_no_extra_credit() {
        let now = Instant::now();
        let mut credit = Credit::full(Rate::per_second(2), now);
        assert!(credit.take(now) && credit.take(now) && !credit.take(now));
        credit.set_rate(Rate::per_second(1000), now);
        assert!(!credit.take(now));
        assert!(credit.take(now + Duration::from_millis(1)));
        credit.set_rate(Rate::per_second(1), now + Duration::from_secs(9));
        assert_eq!(credit.left(), 1);
    }

    proptest! {
        /// In any span of time no more is taken than the rate gives.
        #[test]
        fn no_more_is_taken_than_time_gives(
            per_second in 1_u32..200, waits in proptest::collection::vec(0_u64..50, 1..300),
        ) {
            let begin = Instant::now();
            let mut now = begin;
            let mut credit = Credit::full(Rate::per_second(per_second), begin);
            let mut taken = 0_u64;
            for wait in waits {
                now += Duration::from_millis(wait);
                taken += u64::from(credit.take(now));
                let passed = (now - begin).as_nanos() * u128::from(per_second) / 1_000_000_000;
                // The length of a step is rounded down to a nanosecond.
                let most = u128::from(per_second) + passed + 1;
                prop_assert!(u128::from(taken) <= most, "{taken} of {most}");
            }
        }
    }
}
