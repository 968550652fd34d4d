//! A row of probes without an answer, and how long a row says that a path does not work.

use std::time::{Duration, Instant};

/// Probes since the last answer, one at least.
#[derive(Debug, Clone, Copy)]
pub(super) struct Silence {
    /// When the first of them went out.
    pub(super) since: Instant,
    pub(super) probes: u32,
}

/// A silence that lasts so long, over so many probes, is the end.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    pub(super) time: Duration,
    pub(super) probes: u32,
}

impl Silence {
    /// One more probe goes out.
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
