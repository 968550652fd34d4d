//! A simulated apiserver, as far as a health probe or a client can tell.

use std::time::Duration;

use meshport_core::health::{Outcome, Question};

/// How long a healthy instance takes to answer.
pub(crate) const ANSWER_TIME: Duration = Duration::from_millis(2);

/// What an instance is up to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Instance {
    /// Serves.
    Ready,
    /// Serves, but asks for no new traffic.
    Unready,
    /// Accepts connections and does nothing else.
    Hung,
    /// Not running: its port refuses.
    Down,
}

impl Instance {
    /// What a probe with this patience gets, and after what time.
    pub(crate) fn ask(self, question: Question, patience: Duration) -> (Duration, Outcome) {
        match (self, question) {
            (Self::Ready, _) | (Self::Unready, Question::Alive | Question::Live) => {
                (ANSWER_TIME, Outcome::Answered(Some(200)))
            }
            (Self::Unready, Question::Ready) => (ANSWER_TIME, Outcome::Answered(Some(500))),
            (Self::Hung, _) => (patience, Outcome::Silent),
            (Self::Down, _) => (Duration::ZERO, Outcome::Refused),
        }
    }
}
