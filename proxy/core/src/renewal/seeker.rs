//! Decides when a node requests its next credential, and from which issuer.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use meshport_config::{Credential, NodeId, UnixSeconds};

use super::{DUE_PART, Setback, life_s};
use crate::believed::DOUBT;

/// Maximum issuers asked in a round; a mesh has one for each control plane.
pub const MAX_ISSUERS: usize = 8;
/// Limit for one issuer, including a new tunnel if needed.
pub const ASK_LIMIT: Duration = Duration::from_secs(10);
/// Limit for the disk. A write that completes later is still used.
pub const STORE_LIMIT: Duration = Duration::from_secs(60);
/// Maximum interval between readings of the clock: it may be set, or the machine suspended.
const MAX_LOOK: Duration = Duration::from_secs(3600);
/// Longest pause after a round without success.
const MAX_REST: Duration = Duration::from_secs(12 * 3600);
/// A renewal is due when a third of the lifetime is left, or up to this part of it earlier, so that
/// nodes that joined together do not ask together.
const SPREAD_PART: u64 = 12;

/// See the module's description. The credential's times are compared with the wall clock,
/// everything else with monotonic time; no state lasts longer than its bound, whatever either clock
/// does.
#[derive(Debug)]
pub struct Seeker {
    issued_at: UnixSeconds,
    expires_at: UnixSeconds,
    /// Pseudorandom, fixed per credential.
    chance: u64,
    state: State,
    /// Rounds in which no issuer renewed it.
    failures: u32,
    setback: Option<Setback>,
    /// Whether the current credential must be replaced although it is not due.
    hurries: bool,
}

#[derive(Debug)]
enum State {
    Resting {
        until: Instant,
    },
    /// `asked` may answer until then; `rest` follow.
    Round {
        asked: Option<(NodeId, Instant)>,
        rest: VecDeque<NodeId>,
    },
    Storing {
        until: Instant,
    },
}

impl Seeker {
    /// For a node with this credential. It asks nobody at first: a clock that is wrong at a start
    /// is often set right soon, and an issuer would sign for itself what is from the future.
    pub fn new(own: &Credential, now: Instant) -> Self {
        let mut seeker = Self {
            issued_at: own.issued_at,
            expires_at: own.expires_at,
            chance: own.tag(),
            state: State::Resting { until: now },
            failures: 0,
            setback: None,
            hurries: false,
        };
        seeker.state = State::Resting { until: now + seeker.look().min(DOUBT) };
        seeker
    }

    /// Follows a change of the credential.
    pub fn follow(&mut self, own: &Credential, now: Instant) {
        *self = Self::new(own, now);
    }

    /// Requests a renewal at once: the current credential is an earlier one, since the last one was
    /// revoked with its issuer.
    pub fn hurry(&mut self, now: Instant) {
        self.hurries = true;
        self.state = State::Resting { until: now };
    }

    /// Time at which the current credential is due for renewal.
    pub fn due_at(&self) -> UnixSeconds {
        let life_s = life_s(self.issued_at, self.expires_at);
        let spread_s = (life_s / SPREAD_PART).max(1);
        UnixSeconds(self.expires_at.0.saturating_sub(life_s / DUE_PART + self.chance % spread_s))
    }

    /// Consecutive rounds in which no issuer renewed it, and the last reason.
    pub fn failing(&self) -> Option<(u32, &Setback)> {
        self.setback.as_ref().map(|setback| (self.failures, setback))
    }

    /// The issuer to ask now, if any; pass its answer to [`Seeker::handle_answer`]. `issuers` are
    /// those that are up, nearest first.
    pub fn poll(
        &mut self,
        issuers: impl FnOnce() -> Vec<NodeId>,
        now: Instant,
        wall: UnixSeconds,
    ) -> Option<NodeId> {
        match &self.state {
            State::Resting { until } | State::Storing { until } if now < *until => return None,
            State::Round { asked: Some((_, until)), .. } if now < *until => return None,
            State::Storing { .. } => {
                self.end_round(Setback::NotStored("timed out writing to disk".into()), now);
                return None;
            }
            State::Resting { .. } if !self.is_due(wall) => {
                let left = Duration::from_secs(self.due_at().seconds_since(wall).max(1));
                self.state = State::Resting { until: now + left.min(self.look()) };
                return None;
            }
            State::Resting { .. } => {
                let rest: VecDeque<NodeId> = issuers().into_iter().take(MAX_ISSUERS).collect();
                if rest.is_empty() {
                    self.end_round(Setback::NoIssuer, now);
                    return None;
                }
                self.state = State::Round { asked: None, rest };
            }
            State::Round { asked: Some(_), .. } => {
                self.setback = Some(Setback::Silent(format!("no answer within {ASK_LIMIT:?}")));
            }
            State::Round { asked: None, .. } => {}
        }
        self.next(now)
    }

    /// The result of a request: the renewal is being stored, or why there is none.
    pub fn handle_answer(&mut self, from: NodeId, outcome: Result<(), Setback>, now: Instant) {
        let State::Round { asked, .. } = &mut self.state else { return };
        // An issuer that timed out may still answer.
        if asked.take_if(|(who, _)| *who == from).is_none() {
            return;
        }
        match outcome {
            Ok(()) => self.state = State::Storing { until: now + STORE_LIMIT },
            Err(setback) => self.setback = Some(setback),
        }
    }

    /// The renewal could not be stored, so it is not used.
    pub fn handle_lost(&mut self, why: String, now: Instant) {
        self.end_round(Setback::NotStored(why), now);
    }

    /// Time of the next poll.
    pub fn poll_timeout(&self, now: Instant) -> Instant {
        match &self.state {
            State::Resting { until } | State::Storing { until } => *until,
            State::Round { asked: Some((_, until)), .. } => *until,
            State::Round { asked: None, .. } => now,
        }
    }

    fn is_due(&self, wall: UnixSeconds) -> bool {
        self.hurries || wall >= self.due_at()
    }

    /// The next issuer of the round, or the end of the round.
    fn next(&mut self, now: Instant) -> Option<NodeId> {
        let State::Round { asked, rest } = &mut self.state else { return None };
        if let Some(who) = rest.pop_front() {
            *asked = Some((who, now + ASK_LIMIT));
            return Some(who);
        }
        let setback = self.setback.take().unwrap_or(Setback::NoIssuer);
        self.end_round(setback, now);
        None
    }

    fn end_round(&mut self, setback: Setback, now: Instant) {
        self.state = State::Resting { until: now + self.rest() };
        self.failures = self.failures.saturating_add(1);
        self.setback = Some(setback);
    }

    fn look(&self) -> Duration {
        let life_s = life_s(self.issued_at, self.expires_at);
        Duration::from_secs((life_s / 60).max(1)).min(MAX_LOOK)
    }

    /// The pause doubles with each failed round, from an hour to half a day for a credential of a
    /// month, with a jitter of a quarter.
    fn rest(&self) -> Duration {
        let life_s = life_s(self.issued_at, self.expires_at);
        let first = Duration::from_secs((life_s / 720).max(1));
        let most = Duration::from_secs((life_s / 60).max(2)).min(MAX_REST);
        let rest = first.saturating_mul(1 << self.failures.min(6)).min(most);
        let percent = 75 + (self.chance >> 17).wrapping_add(u64::from(self.failures) * 19) % 50;
        rest.mul_f64(f64::from(u32::try_from(percent).unwrap_or(100)) / 100.0)
    }
}
