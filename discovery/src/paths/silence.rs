//! A series of unanswered probes, and the length that proves a path dead.

use std::time::{Duration, Instant};

/// Probes since the last answer, one at least.
#[derive(Debug, Clone, Copy)]
pub(super) struct Silence {
    /// Time of the first unanswered probe.
    pub(super) since: Instant,
    pub(super) probes: u32,
}

/// Minimum duration and number of probes of a silence until the path is dead.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    pub(super) time: Duration,
    pub(super) probes: u32,
}

impl Silence {
    /// One more probe was sent.
    pub(super) fn grown(before: Option<Self>, now: Instant) -> Self {
        let Self { since, probes } = before.unwrap_or(Self { since: now, probes: 0 });
        Self { since, probes: probes + 1 }
    }

    pub(super) fn lasted(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }

    pub(super) fn exceeds(&self, patience: Patience, now: Instant) -> bool {
        self.probes >= patience.probes && self.lasted(now) >= patience.time
    }
}
