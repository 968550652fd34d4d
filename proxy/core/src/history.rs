//! The activity of a node's clients in the last ten minutes, second by second.
//!
//! A second is kept only if it differs from the previous one, so an idle node adds none. Bounded by
//! [`SECONDS`] entries of 48 bytes each: 28 KiB.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Length of the history: an outage and its cause, on one screen.
pub const SECONDS: usize = 600;
/// Interval between readings of the counters.
const STEP: Duration = Duration::from_secs(1);

/// Counters of all services at one moment. All but `open` only grow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Client sessions open now.
    pub open: u64,
    /// Clients connected to an origin since the start.
    pub connected: u64,
    /// Clients that found no origin.
    pub failed: u64,
    /// Bytes from clients.
    pub up_bytes: u64,
    /// Bytes to clients.
    pub down_bytes: u64,
    /// The time all connected clients waited for their origin, in microseconds.
    pub connect_us: u64,
    /// The longest of these waits since the last reading, in microseconds.
    pub slowest_us: u64,
}

/// One second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Second {
    /// Client sessions open at its end.
    pub open: u64,
    /// Clients connected in it.
    pub connected: u32,
    /// Clients that found no origin in it.
    pub failed: u32,
    /// Bytes from clients in it.
    pub up_bytes: u64,
    /// Bytes to clients in it.
    pub down_bytes: u64,
    /// The average connect time of clients connected in it, in microseconds.
    pub connect_us: u32,
    /// The longest of these waits, in microseconds.
    pub slowest_us: u32,
}

/// See the module's doc.
#[derive(Debug, Clone)]
pub struct History {
    began: Instant,
    last: Counts,
    /// Whole seconds since `began` at the last reading.
    looked_s: u32,
    /// Each with the second since `began` that it ended, ascending.
    seconds: VecDeque<(u32, Second)>,
}

impl History {
    /// An empty history that starts now.
    pub fn new(now: Instant) -> Self {
        let seconds = VecDeque::with_capacity(SECONDS);
        Self { began: now, last: Counts::default(), looked_s: 0, seconds }
    }

    /// Time of the next reading of the counters.
    pub fn poll_timeout(&self) -> Instant {
        self.began + STEP * self.looked_s.saturating_add(1)
    }

    /// Takes the counters, once [`History::poll_timeout`] has come; earlier calls change nothing.
    pub fn handle_counts(&mut self, counts: impl FnOnce() -> Counts, now: Instant) {
        if now < self.poll_timeout() {
            return;
        }
        let passed = now.saturating_duration_since(self.began).as_secs();
        self.looked_s = u32::try_from(passed).unwrap_or(u32::MAX);
        let counts = counts();
        let second = Second::between(&self.last, &counts);
        self.last = counts;
        self.forget();
        if second == self.seconds.back().map_or_else(Second::default, |(_, last)| *last) {
            return;
        }
        if self.seconds.len() == SECONDS {
            self.seconds.pop_front();
        }
        self.seconds.push_back((self.looked_s, second));
    }

    /// The seconds that differ from the previous one, oldest first, each with the whole seconds
    /// from the node's start to its end. What precedes the first is unknown, or zero if the node
    /// has run for less than [`SECONDS`].
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Second)> {
        self.seconds.iter().map(|(at, second)| (*at, second))
    }

    /// Drops expired seconds, except the last one, which later ones refer to.
    fn forget(&mut self) {
        let first = self.looked_s.saturating_sub(SECONDS as u32);
        while self.seconds.get(1).is_some_and(|(at, _)| *at <= first) {
            self.seconds.pop_front();
        }
    }
}

impl Second {
    fn between(from: &Counts, to: &Counts) -> Self {
        let narrow = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        let connected = to.connected.saturating_sub(from.connected);
        let waited = to.connect_us.saturating_sub(from.connect_us);
        Self {
            open: to.open,
            connected: narrow(connected),
            failed: narrow(to.failed.saturating_sub(from.failed)),
            up_bytes: to.up_bytes.saturating_sub(from.up_bytes),
            down_bytes: to.down_bytes.saturating_sub(from.down_bytes),
            connect_us: waited.checked_div(connected).map_or(0, narrow),
            slowest_us: narrow(to.slowest_us),
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "an origin for virtual time")]

    use super::*;

    fn points(history: &History) -> Vec<(u32, u64, u32)> {
        history.iter().map(|(at, it)| (at, it.open, it.connected)).collect()
    }

    #[test]
    fn only_seconds_that_differ_are_kept() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut history = History::new(start);
        let counts = |open, connected| Counts { open, connected, ..Counts::default() };
        history.handle_counts(|| unreachable!("it is too soon"), at(999));
        assert_eq!(history.poll_timeout(), at(1000));
        history.handle_counts(|| counts(0, 0), at(1000));
        assert_eq!(points(&history), []);
        history.handle_counts(|| counts(2, 2), at(2100));
        history.handle_counts(|| counts(2, 2), at(3000));
        history.handle_counts(|| counts(2, 2), at(4000));
        assert_eq!(points(&history), [(2, 2, 2), (3, 2, 0)]);
        // A process that did not run for a while reads once.
        history.handle_counts(|| counts(1, 7), at(9500));
        assert_eq!(points(&history).last(), Some(&(9, 1, 5)));
        assert_eq!(history.poll_timeout(), at(10_000));
    }

    #[test]
    fn it_ends_ten_minutes_ago_and_knows_what_was_so_then() {
        let start = Instant::now();
        let at = |second: u64| start + Duration::from_secs(second);
        let mut history = History::new(start);
        for second in 1..=2000 {
            // One session at a time, opened and closed in turn.
            let open = if second <= 1000 { second % 2 } else { 5 };
            history.handle_counts(|| Counts { open, ..Counts::default() }, at(second));
            assert!(history.seconds.len() <= SECONDS);
        }
        assert_eq!(points(&history), [(1001, 5, 0)]);
        assert!(size_of::<(u32, Second)>() <= 48);
    }

    #[test]
    fn waits_are_means_and_the_longest() {
        let start = Instant::now();
        let mut history = History::new(start);
        let first =
            Counts { connected: 4, connect_us: 4000, slowest_us: 3000, ..Counts::default() };
        history.handle_counts(|| first, start + STEP);
        let (_, second) = history.iter().next().expect("it differs");
        assert_eq!((second.connect_us, second.slowest_us), (1000, 3000));
        let second = Counts { slowest_us: 0, ..first };
        history.handle_counts(|| second, start + STEP * 2);
        let (_, second) = history.iter().last().expect("it differs");
        assert_eq!((second.connect_us, second.slowest_us, second.connected), (0, 0, 0));
    }
}
