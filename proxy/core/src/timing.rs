//! Connection times of sessions, for lines that this node cannot probe.
//!
//! A relay's distance to an origin is a claim, and an address outside the mesh reports none, so
//! this node measures the time until the instance is "connected". The shortest of the last few
//! counts, since a single one may include handshakes and other delays. Bounded by [`MAX_LINES`] and
//! `MAX_SAMPLES`; a line that was not used for `FORGOTTEN` is unknown again.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use super::view::Line;

/// Lines remembered at once: a few relays per origin, and the addresses outside.
pub const MAX_LINES: usize = 1024;
/// Samples remembered per line.
const MAX_SAMPLES: usize = 8;
/// Samples needed to contradict a claim: the first one may have waited for a handshake.
const ENOUGH: usize = 3;
/// Measurements of a line without a session for this long are dropped.
const FORGOTTEN: Duration = Duration::from_secs(600);
/// A line that connected a session within this time most likely works.
const PROOF: Duration = Duration::from_secs(60);

#[derive(Debug, Clone)]
struct Timing {
    samples: VecDeque<Duration>,
    at: Instant,
}

/// The times of all lines of a service. See the module's doc.
#[derive(Debug, Clone, Default)]
pub struct Timings {
    lines: BTreeMap<Line, Timing>,
}

impl Timings {
    /// Records how long a session took to connect.
    pub fn add(&mut self, line: Line, took: Duration, now: Instant) {
        if self.lines.len() >= MAX_LINES && !self.lines.contains_key(&line) {
            self.lines.retain(|_, timing| is_within(timing.at, FORGOTTEN, now));
            if self.lines.len() >= MAX_LINES {
                return;
            }
        }
        let fresh = || Timing { samples: VecDeque::new(), at: now };
        let timing = self.lines.entry(line).or_insert_with(fresh);
        if !is_within(timing.at, FORGOTTEN, now) {
            timing.samples.clear();
        }
        if timing.samples.len() >= MAX_SAMPLES {
            timing.samples.pop_front();
        }
        timing.samples.push_back(took);
        timing.at = now;
    }

    /// The shortest of the last times; `None` before the first.
    pub fn least(&self, line: &Line, now: Instant) -> Option<Duration> {
        self.known(line, now)?.samples.iter().min().copied()
    }

    /// The shortest time, once there are enough samples to contradict a claim.
    pub fn judged(&self, line: &Line, now: Instant) -> Option<Duration> {
        let timing = self.known(line, now)?;
        (timing.samples.len() >= ENOUGH).then(|| timing.samples.iter().min().copied())?
    }

    /// Whether a session was recently connected on it.
    pub fn is_proven(&self, line: &Line, now: Instant) -> bool {
        self.lines.get(line).is_some_and(|timing| is_within(timing.at, PROOF, now))
    }

    fn known(&self, line: &Line, now: Instant) -> Option<&Timing> {
        self.lines.get(line).filter(|timing| is_within(timing.at, FORGOTTEN, now))
    }
}

fn is_within(at: Instant, span: Duration, now: Instant) -> bool {
    now.saturating_duration_since(at) < span
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "an origin for virtual time")]

    use super::*;

    fn line(port: u16) -> Line {
        Line::Outside(([192, 0, 2, 1], port).into())
    }

    #[test]
    fn the_least_counts_and_judges_once_there_are_enough() {
        let (mut timings, now) = (Timings::default(), Instant::now());
        assert!(timings.least(&line(1), now).is_none() && !timings.is_proven(&line(1), now));
        for (count, ms) in [(1, 90), (2, 30), (3, 40)] {
            timings.add(line(1), Duration::from_millis(ms), now);
            assert_eq!(timings.judged(&line(1), now).is_some(), count >= ENOUGH);
        }
        assert_eq!(timings.judged(&line(1), now), Some(Duration::from_millis(30)));
        assert!(timings.is_proven(&line(1), now) && !timings.is_proven(&line(2), now));
    }

    #[test]
    fn old_times_say_nothing() {
        let (mut timings, now) = (Timings::default(), Instant::now());
        timings.add(line(1), Duration::from_millis(1), now);
        assert!(!timings.is_proven(&line(1), now + PROOF));
        let late = now + FORGOTTEN;
        assert!(timings.least(&line(1), late).is_none());
        timings.add(line(1), Duration::from_millis(9), late);
        assert_eq!(timings.least(&line(1), late), Some(Duration::from_millis(9)));
    }

    #[test]
    fn the_table_is_bounded_and_makes_room() {
        let (mut timings, now) = (Timings::default(), Instant::now());
        for port in 0..u16::try_from(MAX_LINES).expect("small") + 10 {
            timings.add(line(port), Duration::ZERO, now);
        }
        assert_eq!(timings.lines.len(), MAX_LINES);
        timings.add(line(60_000), Duration::ZERO, now + FORGOTTEN);
        assert_eq!(timings.lines.len(), 1);
    }
}
