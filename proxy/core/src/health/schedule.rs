//! One kind of probe: when it is due, how long an answer usually takes, and whether the pending
//! answer is late.

use std::time::{Duration, Instant};

/// An answer is late after this many times its usual delay...
const LATE_TIMES: u32 = 8;
/// ...but not before this, since a busy machine occasionally takes as long...
const LATE_LEAST: Duration = Duration::from_millis(500);
/// ...and after this at the latest, so that in a stall of all origins each notices before the first
/// one fails, which takes two seconds.
const LATE_MOST: Duration = Duration::from_secs(1);
/// The same while this node opens many connections to the instance.
const LATE_LOADED: Duration = Duration::from_millis(1500);
/// After this delay a late answer confirms the failure of another probe.
const OVERDUE: Duration = Duration::from_millis(1200);
/// A timer that fires this late shows that this process is starved; answers may be waiting unread.
const LAG: Duration = Duration::from_millis(100);
/// Connections to the instance within a second, from here or for others, that still count as calm;
/// a controller manager that reconnects opens 60.
pub const MAX_CALM_DIALS: u64 = 40;

/// How late an answer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) enum Lateness {
    /// Not late, or no probe is pending.
    #[default]
    None,
    /// Far over its usual time.
    Late,
    /// So late that it confirms the failure of another probe.
    Overdue,
}

/// See the module's doc.
#[derive(Debug, Default)]
pub(super) struct ProbeSchedule {
    /// Time of the next probe; `None` if this kind is not in use.
    pub(super) due: Option<Instant>,
    /// Whether a late answer counts.
    pub(super) counts_late: bool,
    /// The last one failed, and so early that it did not hang.
    pub(super) fails_at_once: bool,
    /// Start of the wait for an answer.
    asked_at: Option<Instant>,
    /// Time of the last probe.
    last_at: Option<Instant>,
    /// Smoothed time of a good answer, the reference for late ones.
    usual: Option<Duration>,
    delay: Lateness,
    /// Time from which the answer counts as later than it does now.
    judge_at: Option<Instant>,
}

impl ProbeSchedule {
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.asked_at.is_none() && self.due.is_some_and(|due| due <= now)
    }

    pub(super) fn ask(&mut self, now: Instant, interval: Duration) {
        (self.asked_at, self.last_at) = (Some(now), Some(now));
        self.due = Some(now + interval);
        // Without a good answer so far there is nothing to doubt.
        let late = self.usual.map(|usual| (usual * LATE_TIMES).clamp(LATE_LEAST, LATE_MOST));
        self.judge_at = late.filter(|_| self.counts_late).map(|late| now + late);
    }

    /// Advances the next probe, to `wait` after the last one at the earliest.
    pub(super) fn hurry(&mut self, wait: Duration, now: Instant) {
        let soon = self.last_at.map_or(now, |last| now.max(last + wait));
        self.due = self.due.map(|due| due.min(soon));
    }

    /// Returns whether the answer came early enough that it could not be late.
    pub(super) fn answered(&mut self, is_good: bool, now: Instant) -> bool {
        let Some(asked_at) = self.asked_at.take() else { return false };
        (self.delay, self.judge_at) = (Lateness::None, None);
        let took = now.saturating_duration_since(asked_at);
        if is_good {
            self.usual = Some(self.usual.map_or(took, |usual| (usual * 7 + took) / 8));
        }
        took < LATE_LEAST
    }

    /// Whether the answer has become later, and that counts.
    pub(super) fn judge(&mut self, is_loaded: bool, now: Instant) -> bool {
        let (Some(asked_at), Some(judge_at)) = (self.asked_at, self.judge_at) else { return false };
        if judge_at > now {
            return false;
        }
        let excused_until = if is_loaded { asked_at + LATE_LOADED } else { asked_at };
        if now.saturating_duration_since(judge_at) > LAG {
            self.judge_at = Some(now + LATE_LEAST);
            return false;
        }
        if excused_until > now {
            self.judge_at = Some(excused_until);
            return false;
        }
        let overdue_at = (asked_at + OVERDUE).max(now);
        (self.delay, self.judge_at) = match self.delay {
            Lateness::None if overdue_at > now => (Lateness::Late, Some(overdue_at)),
            _ => (Lateness::Overdue, None),
        };
        true
    }

    /// Whether a probe is pending that was sent before this time.
    pub(super) fn is_asking_since_before(&self, at: Instant) -> bool {
        self.asked_at.is_some_and(|asked_at| asked_at < at)
    }

    pub(super) fn delay(&self) -> Lateness {
        self.delay
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        match self.asked_at {
            Some(_) => self.judge_at,
            None => self.due,
        }
    }
}
