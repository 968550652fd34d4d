//! A simulated apiserver, as far as a health probe can tell.

use std::time::Duration;

use meshport::core::health::{Outcome, Question};
use serde::Deserialize;

/// How long a healthy instance takes to answer a probe.
const ANSWER_TIME: Duration = Duration::from_millis(2);
/// How long a probe of one that hangs waits, as the daemon's default does.
const PATIENCE: Duration = Duration::from_secs(1);

/// What an instance is up to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
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
    /// What a probe gets, and after what time.
    pub(crate) fn ask(self, question: Question) -> (Duration, Outcome) {
        match (self, question) {
            (Self::Ready, _) | (Self::Unready, Question::Alive) => {
                (ANSWER_TIME, Outcome::Answered(Some(200)))
            }
            (Self::Unready, Question::Ready) => (ANSWER_TIME, Outcome::Answered(Some(500))),
            (Self::Hung, _) => (PATIENCE, Outcome::Silent),
            (Self::Down, _) => (Duration::ZERO, Outcome::Refused),
        }
    }
}
