//! Rate limit for log lines that others can cause.

use std::time::{Duration, Instant};

/// Lines that may be written at once.
const BURST: u32 = 20;
/// Interval after which one more line is allowed.
const REFILL: Duration = Duration::from_secs(1);

/// A token bucket that counts what it suppressed.
#[derive(Debug)]
pub(crate) struct LogBudget {
    tokens: u32,
    refilled: Instant,
    held_back: u64,
}

impl LogBudget {
    /// A full bucket.
    pub(crate) fn new(now: Instant) -> Self {
        Self { tokens: BURST, refilled: now, held_back: 0 }
    }

    /// Whether the bucket is full again.
    pub(crate) fn is_whole(&self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.refilled).as_secs() / REFILL.as_secs();
        passed >= u64::from(BURST - self.tokens)
    }

    /// Whether a line may be written now; if so, the number suppressed since the last one.
    pub(crate) fn take(&mut self, now: Instant) -> Option<u64> {
        let passed = now.saturating_duration_since(self.refilled).as_secs() / REFILL.as_secs();
        if passed > 0 {
            let gained = u32::try_from(passed).unwrap_or(BURST);
            self.tokens = self.tokens.saturating_add(gained).min(BURST);
            self.refilled = now;
        }
        if self.tokens == 0 {
            self.held_back += 1;
            return None;
        }
        self.tokens -= 1;
        Some(std::mem::take(&mut self.held_back))
    }
}

/// Limits on log lines that peers and members can cause in the driver.
#[derive(Debug)]
pub(crate) struct LogBudgets {
    /// Peers that are refused.
    pub(crate) refusals: LogBudget,
    /// Members' forbidden messages, and origins that refuse this node.
    pub(crate) ignored: LogBudget,
}

impl LogBudgets {
    /// Full ones.
    pub(crate) fn new(now: Instant) -> Self {
        Self { refusals: LogBudget::new(now), ignored: LogBudget::new(now) }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "an origin for virtual time")]

    use super::*;

    #[test]
    fn a_flood_is_a_burst_and_then_a_line_a_second_that_says_what_is_missing() {
        let start = Instant::now();
        let mut budget = LogBudget::new(start);
        let written = (0..1000).filter(|_| budget.take(start).is_some()).count();
        assert_eq!(written, 20);
        assert_eq!(budget.take(start + Duration::from_secs(1)), Some(980));
        assert_eq!(budget.take(start + Duration::from_secs(1)), None);
        assert!(!budget.is_whole(start + Duration::from_secs(20)));
        assert!(budget.is_whole(start + Duration::from_secs(21)));
        let later = start + Duration::from_secs(3600);
        assert_eq!((0..1000).filter(|_| budget.take(later).is_some()).count(), 20);
    }
}
