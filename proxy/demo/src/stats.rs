//! Evaluates the answers to the client in the stage's site: whether the nearest answered, and the
//! duration of changes. Pure; times are since the first request.
//!
//! The nearest is the nearest of those that serve. After a change clients need a moment to notice:
//! for [`AWAY_GRACE`] after a stop and [`HOME_GRACE`] after a restart the previously nearest origin
//! counts as well. A third origin never does.
//!
//! Bounded: a schedule has at most two changes.

use std::time::Duration;

use super::plan::{STAGE, nearest, origin_name};
use super::schedule::Schedule;
use super::table::Summary;

/// How long after a stop the old origin may still answer a request that reached it just before.
pub const AWAY_GRACE: Duration = Duration::from_secs(2);
/// How long after a restart the substitute may still answer: the 10 s for which a gain must have
/// lasted, the probes that find the apiserver ready again, and the spread of that news.
pub const HOME_GRACE: Duration = Duration::from_secs(14);

/// The start and end of a request.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// It began.
    pub started: Duration,
    /// It was answered, or given up.
    pub finished: Duration,
}

/// A period in which the same apiservers served.
#[derive(Clone, Copy, Debug)]
struct Phase {
    from: Duration,
    stage_serves: bool,
    /// Its end, and how long after that its nearest origin still counts.
    end: Option<(Duration, Duration)>,
}

/// All counts.
#[derive(Debug)]
pub struct Stats {
    phases: Vec<Phase>,
    requests: u64,
    failed: u64,
    answered: u64,
    nearest: u64,
    failover: Option<Duration>,
    home_again: Option<Duration>,
}

impl Default for Stats {
    fn default() -> Self {
        let first = Phase { from: Duration::ZERO, stage_serves: true, end: None };
        Self {
            phases: vec![first],
            requests: 0,
            failed: 0,
            answered: 0,
            nearest: 0,
            failover: None,
            home_again: None,
        }
    }
}

impl Stats {
    /// The stage's apiserver stopped.
    pub fn stopped(&mut self, at: Duration) {
        self.turn(at, false, AWAY_GRACE);
    }

    /// The stage's apiserver serves again.
    pub fn restarted(&mut self, at: Duration) {
        self.turn(at, true, HOME_GRACE);
    }

    /// A request was answered by `origin`.
    pub fn answered(&mut self, request: Request, origin: &str) {
        self.requests += 1;
        self.answered += 1;
        if self.is_nearest(request, origin) {
            self.nearest += 1;
        }
        self.note_move(request, origin == origin_name(STAGE));
    }

    /// A request failed.
    pub fn failed(&mut self) {
        self.requests += 1;
        self.failed += 1;
    }

    /// Whether clients have returned after the restart.
    pub fn is_home(&self) -> bool {
        self.home_again.is_some()
    }

    /// The result, compared with the schedule.
    pub fn summary(&self, schedule: &Schedule) -> Summary {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        #[expect(clippy::cast_precision_loss, reason = "a share of far fewer than 2^52 requests")]
        let share = self.nearest as f64 / self.answered.max(1) as f64;
        Summary {
            requests: self.requests,
            failed: self.failed,
            nearest_share: (share * 1e4).round() / 1e4,
            failover_ms: self.failover.map(millis),
            home_again_ms: self.home_again.map(millis),
            stops: schedule.stop_at.is_some(),
            returns: schedule.restart_at.is_some(),
        }
    }

    fn turn(&mut self, at: Duration, stage_serves: bool, grace: Duration) {
        if let Some(last) = self.phases.last_mut() {
            last.end = Some((at, grace));
        }
        self.phases.push(Phase { from: at, stage_serves, end: None });
    }

    fn is_nearest(&self, request: Request, origin: &str) -> bool {
        self.phases.iter().any(|phase| {
            let in_time = phase.from <= request.finished
                && phase.end.is_none_or(|(end, grace)| request.started <= end + grace);
            let serves = |site| site != STAGE || phase.stage_serves;
            let right = nearest(STAGE, serves).map(origin_name);
            in_time && right.as_deref() == Some(origin)
        })
    }

    /// Times the first answer after a change that shows it.
    fn note_move(&mut self, request: Request, at_home: bool) {
        let Some(Phase { from, stage_serves, .. }) = self.phases[1..].last().copied() else {
            return;
        };
        if request.started < from || stage_serves != at_home {
            return;
        }
        let measured = if at_home { &mut self.home_again } else { &mut self.failover };
        measured.get_or_insert(request.finished.saturating_sub(from));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);
    const MS: Duration = Duration::from_millis(1);

    fn at(started: Duration) -> Request {
        Request { started, finished: started + 50 * MS }
    }

    fn whole() -> Schedule {
        Schedule::of(30 * S)
    }

    #[test]
    fn a_good_run_is_all_nearest_and_times_both_moves() {
        let mut stats = Stats::default();
        stats.answered(at(S), "mad-cp");
        stats.stopped(6 * S);
        stats.answered(at(6 * S), "ams-cp");
        stats.answered(at(11 * S), "ams-cp");
        stats.restarted(12 * S);
        stats.answered(at(12 * S), "ams-cp");
        assert!(!stats.is_home());
        stats.answered(at(23 * S), "mad-cp");
        assert!(stats.is_home());
        stats.answered(at(29 * S), "mad-cp");
        let summary = stats.summary(&whole());
        assert_eq!((summary.requests, summary.failed, summary.nearest_share), (6, 0, 1.0));
        assert_eq!((summary.failover_ms, summary.home_again_ms), (Some(50), Some(11_050)));
        assert!(summary.succeeded());
    }

    #[test]
    fn a_third_origin_is_never_right() {
        let mut stats = Stats::default();
        stats.answered(at(S), "ams-cp");
        stats.stopped(6 * S);
        stats.answered(at(6 * S), "bru-cp");
        assert_eq!(stats.nearest, 0);
        stats.answered(at(7 * S), "mad-cp");
        assert_eq!(stats.nearest, 1, "reached just before the stop");
        stats.answered(at(6 * S + AWAY_GRACE + MS), "mad-cp");
        assert_eq!(stats.nearest, 1, "too late for that");
    }

    #[test]
    fn staying_away_forever_is_not_the_nearest() {
        let mut stats = Stats::default();
        stats.stopped(6 * S);
        stats.restarted(12 * S);
        stats.answered(at(12 * S + HOME_GRACE), "ams-cp");
        stats.answered(at(12 * S + HOME_GRACE + MS), "ams-cp");
        assert_eq!((stats.answered, stats.nearest), (2, 1));
        assert!(!stats.summary(&whole()).succeeded(), "never at home");
    }

    #[test]
    fn what_was_under_way_at_a_change_proves_nothing() {
        let mut stats = Stats::default();
        stats.stopped(6 * S);
        stats.answered(Request { started: 6 * S - MS, finished: 7 * S }, "ams-cp");
        assert_eq!((stats.nearest, stats.failover), (1, None));
    }

    #[test]
    fn a_failure_is_a_request() {
        let mut stats = Stats::default();
        stats.failed();
        let summary = stats.summary(&whole());
        assert_eq!((summary.requests, summary.failed), (1, 1));
        assert!(!summary.succeeded());
    }

    #[test]
    fn a_shortened_story_succeeds_without_what_it_leaves_out() {
        let mut stats = Stats::default();
        stats.answered(at(S), "mad-cp");
        assert!(stats.summary(&Schedule::of(5 * S)).succeeded());
        assert!(!stats.summary(&Schedule::of(10 * S)).succeeded(), "it promised a failover");
    }
}
