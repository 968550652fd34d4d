//! What the clients of one balancer saw in one run. All times are since the start of the run.
//!
//! Bounds: [`MAX_ATTEMPTS`] and [`MAX_HELD`], an hour of a load; what exceeds them is not recorded,
//! and a run is never that long.

use std::time::Duration;

/// New connections in one record.
pub(crate) const MAX_ATTEMPTS: usize = 20_000;
/// Held connections in one record, those opened anew included.
pub(crate) const MAX_HELD: usize = 20_000;

/// Why a new connection failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The balancer's port is closed.
    Refused,
    /// It ended before the answer.
    Broken,
    /// There was no whole answer within the client's patience.
    TimedOut,
}

/// One new connection with one request.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    /// When it began.
    pub(crate) begun: Duration,
    /// Until the first byte of the answer, or until the failure.
    pub(crate) took: Duration,
    /// Who answered, or why nobody did.
    pub(crate) outcome: Result<String, Failure>,
}

/// One held connection: an endless answer that says something every now and then.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    /// Which of the clients that hold a connection.
    pub(crate) slot: usize,
    /// When its first line came.
    pub(crate) opened: Duration,
    /// Who answers it.
    pub(crate) origin: String,
    /// When its latest line came.
    pub(crate) last_line: Duration,
    /// When it ended, if it did, for whatever reason.
    pub(crate) ended: Option<Duration>,
}

/// All that was seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Record {
    pub(crate) attempts: Vec<Attempt>,
    pub(crate) held: Vec<Held>,
    /// The most by which the load itself was late: what a busy machine adds to the figures.
    pub(crate) worst_late: Duration,
}

impl Record {
    /// Adds a new connection.
    pub(crate) fn attempt(&mut self, attempt: Attempt) {
        if self.attempts.len() < MAX_ATTEMPTS {
            self.attempts.push(attempt);
        }
    }

    /// Adds a held connection; its place, for what happens to it later.
    pub(crate) fn hold(&mut self, held: Held) -> Option<usize> {
        if self.held.len() >= MAX_HELD {
            return None;
        }
        self.held.push(held);
        Some(self.held.len() - 1)
    }
}
