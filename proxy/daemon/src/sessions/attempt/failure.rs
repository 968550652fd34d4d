//! Why an attempt to reach an origin failed.

use meshport_core::evidence::Verdict;
use meshport_core::wire::Answer;

/// Why an attempt failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The client is gone; no other attempt is needed.
    #[error("the client disconnected")]
    Client,
    /// Another attempt of the same client connected first.
    #[error("another origin connected first")]
    Outpaced,
    /// The candidate cannot be reached or did not answer in time.
    #[error("{0}")]
    Path(String),
    /// The candidate answered that it cannot serve the session.
    #[error("the origin answered: {0}")]
    Answered(Answer),
}

impl Failure {
    /// The verdict about the candidate's line, if any.
    pub(crate) fn verdict(&self) -> Option<Verdict> {
        match self {
            Self::Client | Self::Outpaced => None,
            Self::Path(_) | Self::Answered(Answer::TimedOut) => Some(Verdict::Silent),
            Self::Answered(Answer::NotAllowed) => Some(Verdict::Denied),
            Self::Answered(_) => Some(Verdict::Refused),
        }
    }
}
