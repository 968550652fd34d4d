//! A simulated apiserver, as seen by a health probe or a client.

use std::time::Duration;

use meshport_core::health::{Outcome, Question};

/// How long a healthy instance takes to answer.
pub(crate) const ANSWER_TIME: Duration = Duration::from_millis(2);
/// How long an instance waits for its etcd before it reports neither ready nor live, as measured
/// with kube-apiserver 1.20 and 1.36.
pub(crate) const ETCD_TIMEOUT: Duration = Duration::from_secs(2);

/// The state of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Instance {
    /// Serves.
    Ready,
    /// Serves, but reports that it is not ready for new traffic.
    Unready,
    /// Its etcd member stalls: requests that need no etcd are answered, others hang.
    Stalled,
    /// Accepts connections and does nothing else.
    Hung,
    /// Not running: its port refuses connections.
    Down,
}

impl Instance {
    /// The answer to a probe with this patience, and the time it takes.
    pub(crate) fn ask(self, question: Question, patience: Duration) -> (Duration, Outcome) {
        match (self, question) {
            (Self::Ready, _)
            | (Self::Unready, Question::Alive | Question::Live)
            | (Self::Stalled, Question::Alive) => (ANSWER_TIME, Outcome::Answered(Some(200))),
            (Self::Unready, Question::Ready) => (ANSWER_TIME, Outcome::Answered(Some(500))),
            (Self::Stalled, _) if patience > ETCD_TIMEOUT => {
                (ETCD_TIMEOUT, Outcome::Answered(Some(500)))
            }
            (Self::Stalled | Self::Hung, _) => (patience, Outcome::Silent),
            (Self::Down, _) => (Duration::ZERO, Outcome::Refused),
        }
    }
}
