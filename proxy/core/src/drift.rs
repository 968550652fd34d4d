//! Moves sessions to a better origin, a few at a time.
//!
//! A session stays on its line, possibly for hours. When its origin is drained, or a better one has
//! been available for a while, its client must reconnect. To avoid a reconnect storm, each second
//! only a share of the sessions may end; their owner chooses which ones and when.
//!
//! The pace is relative to the number of sessions at the start of the move, so that it finishes.
//! Bounded by the service's lines that carry sessions.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use meshport_config::ServiceSettings;
use meshport_config::planted::{Bug, is_planted};

use super::route::Line;

/// Interval between shares.
const TICK: Duration = Duration::from_secs(1);
/// The period of the share [`DriftConfig::home_percent`].
const HOME_PERIOD: Duration = Duration::from_secs(10);

/// How fast sessions leave a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriftConfig {
    /// The share of sessions that returns every ten seconds, in percent; 0 for none.
    pub home_percent: u8,
    /// Time within which sessions leave a draining origin.
    pub drain_window: Duration,
    /// Time within which the sessions of a bad origin are reset.
    pub cut_window: Duration,
}

impl Default for DriftConfig {
    fn default() -> Self {
        Self {
            home_percent: 10,
            drain_window: Duration::from_secs(60),
            cut_window: Duration::from_secs(1),
        }
    }
}

impl From<&ServiceSettings> for DriftConfig {
    fn from(service: &ServiceSettings) -> Self {
        Self {
            home_percent: service.drift_percent,
            drain_window: service.drain_window,
            cut_window: service.cut_window,
        }
    }
}

/// Why the sessions of a line move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// A better origin is healthy.
    Home,
    /// Their origin is being drained.
    Drain,
}

/// Permission for some sessions of a line to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leave {
    /// The line.
    pub line: Line,
    /// How many sessions; zero withdraws unused permissions.
    pub count: u64,
    /// Whether sessions that are never idle must end too.
    pub insist: bool,
}

#[derive(Debug)]
struct Move {
    cause: Cause,
    /// Time of the start, or of the last tick since.
    at: Instant,
    /// The most sessions at any tick.
    begun: u64,
    /// The fraction of the next session that may end.
    owed: f64,
}

/// The moves of one service. See the module's doc.
#[derive(Debug)]
pub struct Drift {
    config: DriftConfig,
    moves: BTreeMap<Line, Move>,
    next: Option<Instant>,
}

impl Drift {
    /// No moves in progress.
    pub fn new(config: DriftConfig) -> Self {
        Self { config, moves: BTreeMap::new(), next: None }
    }

    /// The pace.
    pub fn config(&self) -> &DriftConfig {
        &self.config
    }

    /// Sets the pace from now on.
    pub fn set_config(&mut self, config: DriftConfig) {
        self.config = config;
    }

    /// Sets the lines with sessions that should be elsewhere. Moves in progress continue. Returns
    /// the lines whose sessions must now stay, even if they had permission to move.
    pub fn set(
        &mut self,
        lines: impl IntoIterator<Item = (Line, Cause)>,
        now: Instant,
    ) -> Vec<Line> {
        let mut before = std::mem::take(&mut self.moves);
        for (line, cause) in lines {
            if cause == Cause::Home && self.config.home_percent == 0 {
                continue;
            }
            let kept = before.remove(&line).filter(|known| known.cause == cause);
            let kept = kept.unwrap_or(Move { cause, at: now, begun: 0, owed: 0.0 });
            self.moves.insert(line, kept);
        }
        self.next = match self.next {
            _ if self.moves.is_empty() => None,
            known => known.or(Some(now + TICK)),
        };
        before.into_keys().collect()
    }

    /// Whether any session should be elsewhere.
    pub fn is_idle(&self) -> bool {
        self.moves.is_empty()
    }

    /// Time at which [`Drift::handle_counts`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.next
    }

    /// Permits the next sessions to move, given how many are open on a line. Does nothing before it
    /// is time.
    pub fn handle_counts(&mut self, open: impl Fn(&Line) -> u64, now: Instant) -> Vec<Leave> {
        if self.next.is_none_or(|next| next > now) {
            return Vec::new();
        }
        self.next = Some(now + TICK);
        let config = &self.config;
        let mut leaves = Vec::new();
        for (line, step) in &mut self.moves {
            // Unused permissions are not saved up.
            let count = step.due(config, open(line), now);
            if count > 0 {
                leaves.push(Leave { line: *line, count, insist: step.cause == Cause::Drain });
            }
        }
        leaves
    }
}

fn home_period() -> Duration {
    if is_planted(Bug::RebalancingRate) { TICK } else { HOME_PERIOD }
}

impl Move {
    /// How many of the `open` sessions may end now.
    fn due(&mut self, config: &DriftConfig, open: u64, now: Instant) -> u64 {
        self.begun = if open == 0 { 0 } else { self.begun.max(open) };
        let passed = now.saturating_duration_since(std::mem::replace(&mut self.at, now));
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53 sessions")]
        let begun = self.begun as f64;
        let per_s = match self.cause {
            Cause::Home => f64::from(config.home_percent) / 100.0 / home_period().as_secs_f64(),
            Cause::Drain => 1.0 / config.drain_window.as_secs_f64(),
        };
        self.owed += begun * passed.as_secs_f64() * per_s;
        // Slightly more than exact, so that rounding never holds back a session.
        let due = (self.owed + 1e-6).floor();
        self.owed -= due;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not below 0")]
        let due = due as u64;
        due.min(open)
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "an origin for virtual time")]

    use std::cell::Cell;

    use meshport_config::NodeId;
    use proptest::prelude::*;

    use super::*;

    fn line() -> Line {
        Line::Direct(NodeId::from_bytes([1; 32]))
    }

    /// Lets `sessions` move for `seconds`, each with leave ending at once; how many are left after
    /// each second.
    fn run(config: DriftConfig, cause: Cause, sessions: u64, seconds: u64) -> Vec<u64> {
        let (mut drift, mut now) = (Drift::new(config), Instant::now());
        let open = Cell::new(sessions);
        let mut left = Vec::new();
        for _ in 0..seconds {
            drift.set([(line(), cause)], now);
            now += TICK;
            for leave in drift.handle_counts(|_| open.get(), now) {
                assert_eq!((leave.line, leave.insist), (line(), cause == Cause::Drain));
                open.set(open.get() - leave.count);
            }
            left.push(open.get());
        }
        left
    }

    #[test]
    fn a_tenth_goes_home_every_ten_seconds() {
        let left = run(DriftConfig::default(), Cause::Home, 200, 100);
        assert_eq!((left[0], left[9], left[49], left[99]), (198, 180, 100, 0));
    }

    #[test]
    fn a_draining_origin_is_left_within_its_window() {
        let left = run(DriftConfig::default(), Cause::Drain, 12, 60);
        assert_eq!((left[4], left[29], left[59]), (11, 6, 0));
        assert_eq!(run(DriftConfig::default(), Cause::Drain, 1, 60)[59], 0);
    }

    #[test]
    fn no_permission_is_saved_up_for_later_sessions() {
        let (mut drift, mut now) = (Drift::new(DriftConfig::default()), Instant::now());
        drift.set([(line(), Cause::Home)], now);
        // A session that is never quiet, for an hour.
        for _ in 0..3600 {
            now += TICK;
            drift.handle_counts(|_| 1, now);
        }
        let mut given = 0;
        for _ in 0..10 {
            now += TICK;
            given += drift.handle_counts(|_| 100, now).iter().map(|it| it.count).sum::<u64>();
        }
        assert!((9..=11).contains(&given), "{given} of 100 in ten seconds");
    }

    #[test]
    fn the_switch_keeps_them_where_they_are_but_not_on_a_draining_one() {
        let off = DriftConfig { home_percent: 0, ..DriftConfig::default() };
        assert_eq!(run(off.clone(), Cause::Home, 10, 200)[199], 10);
        assert_eq!(run(off, Cause::Drain, 10, 60)[59], 0);
    }

    #[test]
    fn nothing_is_asked_while_nothing_moves() {
        let (mut drift, now) = (Drift::new(DriftConfig::default()), Instant::now());
        assert_eq!(drift.poll_timeout(), None);
        drift.set([(line(), Cause::Home)], now);
        assert_eq!(drift.poll_timeout(), Some(now + TICK));
        assert_eq!(drift.set([], now), [line()], "they are to stay");
        assert!(drift.is_idle() && drift.poll_timeout().is_none());
        assert!(drift.handle_counts(|_| 10, now + TICK).is_empty());
    }

    proptest! {
        /// Never more in any ten seconds than the share of the sessions at the start, plus one.
        #[test]
        fn the_rate_is_bounded(sessions in 0_u64..5_000, percent in 0_u8..=100) {
            let config = DriftConfig { home_percent: percent, ..DriftConfig::default() };
            let left = run(config, Cause::Home, sessions, 120);
            for (before, after) in left.iter().zip(left.iter().skip(10)) {
                prop_assert!(before - after <= sessions * u64::from(percent) / 100 + 1);
            }
        }
    }
}
