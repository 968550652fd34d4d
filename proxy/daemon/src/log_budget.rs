//! Rate limit for log lines that others can cause.

use std::time::{Duration, Instant};

use meshport_core::credit::{Credit, Rate};

/// A burst of lines, then one a second.
pub(crate) const FEW: Rate = Rate { most: 20, each: Duration::from_secs(1) };

/// A token bucket that counts the lines it suppresses.
#[derive(Debug)]
pub(crate) struct LogBudget {
    credit: Credit,
    held_back: u64,
}

impl LogBudget {
    /// A full bucket.
    pub(crate) fn new(rate: Rate, now: Instant) -> Self {
        Self { credit: Credit::full(rate, now), held_back: 0 }
    }

    /// Whether it is full again.
    pub(crate) fn is_whole(&mut self, now: Instant) -> bool {
        self.credit.is_full(now)
    }

    /// Whether a line may be written now; if so, the number held back since the last one.
    pub(crate) fn take(&mut self, now: Instant) -> Option<u64> {
        if self.credit.take(now) {
            return Some(std::mem::take(&mut self.held_back));
        }
        self.held_back += 1;
        None
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
        Self { refusals: LogBudget::new(FEW, now), ignored: LogBudget::new(FEW, now) }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "an origin for virtual time")]

    use super::*;

    #[test]
    fn a_flood_is_a_burst_and_then_a_line_a_second_that_says_what_is_missing() {
        let start = Instant::now();
        let mut budget = LogBudget::new(FEW, start);
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
