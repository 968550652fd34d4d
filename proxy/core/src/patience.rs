//! Timeouts of the steps of an attempt.

use std::time::Duration;

use meshport_config::planted::{Bug, is_planted};

use super::route::Candidate;

/// The shortest wait for any step: scheduling on a busy machine must not look like a dead path.
const MIN_PATIENCE: Duration = Duration::from_millis(400);
/// The longest wait for one step of one candidate while others are untried.
const MAX_PATIENCE: Duration = Duration::from_secs(3);
/// Allowance for an instance's first answer byte, in addition to the path: an accept and an
/// asymmetric signature on a loaded machine.
const ANSWER_ALLOWANCE: Duration = Duration::from_millis(1000);
/// Round trips to open a stream to a peer without a session: WireGuard handshake, QUIC handshake,
/// the stream itself, and one lost packet.
const OPENING_ROUND_TRIPS: u32 = 4;
/// Rounds that double the timeouts: from 400 ms to at most 6.4 s.
const MAX_DOUBLINGS: u32 = 4;

/// Timeouts of the steps of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// Limit from the start until the instance is connected.
    pub open: Duration,
    /// Limit from the request until the first byte of the answer.
    pub answer: Duration,
}

impl Patience {
    /// Derived from the candidate's cost. Each earlier `round` doubles the timeouts, so that
    /// general slowness is not mistaken for death.
    pub fn new(candidate: &Candidate, round: u32) -> Self {
        let round = if is_planted(Bug::Patience) { 0 } else { round };
        let factor = 1 << round.min(MAX_DOUBLINGS);
        let within = |wait: Duration| wait.clamp(MIN_PATIENCE, MAX_PATIENCE) * factor;
        Self {
            open: within(candidate.cost * OPENING_ROUND_TRIPS),
            answer: within(candidate.cost * 2 + ANSWER_ALLOWANCE),
        }
    }
}
