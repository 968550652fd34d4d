//! The record of one balancer's clients in one run. All times are since the start of the run.
//!
//! Bounds: [`MAX_ATTEMPTS`] and [`MAX_HELD`], an hour of a load; more is not recorded, and a run is
//! never that long.

use std::fmt::Write as _;
use std::time::Duration;

/// New connections in one record.
pub(crate) const MAX_ATTEMPTS: usize = 20_000;
/// Held connections in one record, including reopened ones.
pub(crate) const MAX_HELD: usize = 20_000;

/// Why a new connection failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The balancer's port is closed.
    Refused,
    /// The connection ended before the answer.
    Broken,
    /// There was no whole answer within the client's patience.
    TimedOut,
}

/// A new connection with one request.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    /// Start time.
    pub(crate) begun: Duration,
    /// Time to the first byte of the answer, or to the failure.
    pub(crate) took: Duration,
    /// The upstream that answered, or why none did.
    pub(crate) outcome: Result<String, Failure>,
}

/// A held connection: an endless answer with a line now and then.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    /// The number of the client that holds the connection.
    pub(crate) slot: usize,
    /// Time of its first line.
    pub(crate) opened: Duration,
    /// The origin that answers it.
    pub(crate) origin: String,
    /// Time of its latest line.
    pub(crate) last_line: Duration,
    /// Time at which it ended, if it did, for any reason.
    pub(crate) ended: Option<Duration>,
}

/// Everything that was recorded.
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

    /// Adds a held connection; returns its index, for later events.
    pub(crate) fn hold(&mut self, held: Held) -> Option<usize> {
        if self.held.len() >= MAX_HELD {
            return None;
        }
        self.held.push(held);
        Some(self.held.len() - 1)
    }
}

/// New connections as lines of CSV: balancer, start time relative to `fault` and duration in
/// seconds, and the upstream that answered or the reason for the failure.
pub(crate) fn connections_csv(records: &[(String, Record)], fault: Duration) -> String {
    let mut text = "balancer,begun_s,took_s,outcome\n".to_owned();
    for (name, record) in records {
        for Attempt { begun, took, outcome } in &record.attempts {
            let begun = begun.as_secs_f64() - fault.as_secs_f64();
            let outcome = match outcome {
                Ok(origin) => origin.clone(),
                Err(failure) => format!("{failure:?}"),
            };
            let _ = writeln!(text, "{name},{begun:.4},{:.4},{outcome}", took.as_secs_f64());
        }
    }
    text
}

/// Held connections as lines of CSV, times as in [`connections_csv`]; those that did not end have
/// no end.
pub(crate) fn held_csv(records: &[(String, Record)], fault: Duration) -> String {
    let mut text = "balancer,slot,origin,opened_s,last_line_s,ended_s\n".to_owned();
    let since = |at: Duration| format!("{:.4}", at.as_secs_f64() - fault.as_secs_f64());
    for (name, record) in records {
        for Held { slot, opened, origin, last_line, ended } in &record.held {
            let ended = ended.map(since).unwrap_or_default();
            let (opened, last_line) = (since(*opened), since(*last_line));
            let _ = writeln!(text, "{name},{slot},{origin},{opened},{last_line},{ended}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_hold_what_was_seen() {
        let mut record = Record::default();
        let (at, took) = (Duration::from_secs(9), Duration::from_millis(250));
        record.attempt(Attempt { begun: at, took, outcome: Err(Failure::Broken) });
        let origin = "mid".to_owned();
        let held = Held { slot: 3, opened: at, origin, last_line: at + took, ended: None };
        assert_eq!(record.hold(held), Some(0));
        let records = [("x".to_owned(), record)];
        let fault = Duration::from_secs(10);
        let last = |text: String| text.lines().last().map(str::to_owned);
        let connection = last(connections_csv(&records, fault));
        assert_eq!(connection.as_deref(), Some("x,-1.0000,0.2500,Broken"));
        let held = last(held_csv(&records, fault));
        assert_eq!(held.as_deref(), Some("x,3,mid,-1.0000,-0.7500,"));
    }
}
