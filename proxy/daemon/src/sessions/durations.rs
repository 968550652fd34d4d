//! Histograms of durations: a few relaxed additions per value.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counts of durations by range.
#[derive(Debug, Clone, PartialEq)]
pub struct Distribution {
    /// The upper bound of each range, ascending.
    pub bounds: &'static [Duration],
    /// Counts per range, and one more for values beyond the last bound.
    pub counts: Vec<u64>,
    /// Their sum.
    pub sum: Duration,
}

/// From an instance on the same machine to the timeout of most clients.
pub(crate) const CONNECT_BOUNDS: [Duration; 12] = [
    Duration::from_millis(1),
    Duration::from_micros(2500),
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(25),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_millis(2500),
    Duration::from_secs(5),
];
/// From a single request to a kubelet's connection of a week.
pub(crate) const SESSION_BOUNDS: [Duration; 9] = [
    Duration::from_millis(100),
    Duration::from_secs(1),
    Duration::from_secs(10),
    Duration::from_secs(60),
    Duration::from_secs(10 * 60),
    Duration::from_secs(3_600),
    Duration::from_secs(6 * 3_600),
    Duration::from_secs(24 * 3_600),
    Duration::from_secs(7 * 24 * 3_600),
];

/// Counts of durations up to each of some bounds, and beyond.
#[derive(Debug)]
pub(crate) struct Durations {
    bounds: &'static [Duration],
    counts: Box<[AtomicU64]>,
    sum_us: AtomicU64,
    /// The longest since [`Durations::take_longest_us`].
    longest_us: AtomicU64,
}

impl Durations {
    /// Empty; the bounds ascend.
    pub(crate) fn new(bounds: &'static [Duration]) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, counts, sum_us: AtomicU64::new(0), longest_us: AtomicU64::new(0) }
    }

    /// Counts one.
    pub(crate) fn note(&self, took: Duration) {
        let range = self.bounds.partition_point(|bound| *bound < took);
        self.counts[range].fetch_add(1, Ordering::Relaxed);
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.sum_us.fetch_add(micros, Ordering::Relaxed);
        self.longest_us.fetch_max(micros, Ordering::Relaxed);
    }

    /// The sum in microseconds.
    pub(crate) fn sum_us(&self) -> u64 {
        self.sum_us.load(Ordering::Relaxed)
    }

    /// The longest since the last call, in microseconds.
    pub(crate) fn take_longest_us(&self) -> u64 {
        self.longest_us.swap(0, Ordering::Relaxed)
    }

    /// The distribution so far.
    pub(crate) fn read(&self) -> Distribution {
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        let sum = Duration::from_micros(self.sum_us());
        Distribution { bounds: self.bounds, counts, sum }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_counts_in_the_first_range_that_holds_it() {
        let durations = Durations::new(&CONNECT_BOUNDS);
        for ms in [0, 1, 2, 5_000, 5_001] {
            durations.note(Duration::from_millis(ms));
        }
        let read = durations.read();
        assert_eq!(read.counts, [2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
        assert_eq!(read.sum, Duration::from_millis(10_004));
        let longest = [durations.take_longest_us(), durations.take_longest_us()];
        assert_eq!(longest, [5_001_000, 0]);
        assert!(SESSION_BOUNDS.is_sorted() && CONNECT_BOUNDS.is_sorted());
    }
}
