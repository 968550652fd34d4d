//! One client's search for an instance that answers: which candidate to try, and when.
//!
//! The first candidate of the route is tried at once, the next one when an attempt fails, or in
//! parallel when the latest one has been silent for its hedge delay; the first answer wins (Dean,
//! Barroso, "The Tail at Scale", hedged requests). In a crowd of searches a candidate that answers
//! others is not hedged, since the crowd itself makes it slow. When all have failed they are
//! retried after a pause, in rounds, until the deadline. A client whose bytes must not be sent
//! twice is hedged only until one instance is connected. An attempt fails when its timeout
//! ([`super::patience`]) expires: first for the connection, then, once a request was sent, for the
//! answer. Further bytes of the client do not extend it.
//!
//! Has no clock and does no I/O: the caller carries out the actions of [`Connect::poll`] and
//! reports the outcome. Bounds: [`MAX_RACING`] attempts at once; one attempt per candidate and
//! round; rounds end with the deadline.

use std::sync::Arc;
use std::time::{Duration, Instant};

use meshport_config::ServiceSettings;
use meshport_discovery::OriginState;

use super::evidence::{Attempted, Verdict};
use super::policy::{self, Fate};
use super::route::{Candidate, Line, Route, Standing};

use self::attempts::Attempts;
use self::rounds::Rounds;

pub use self::searches::{MAX_CALM_SEARCHES, Searches};

mod attempts;
mod rounds;
mod searches;

/// Concurrent attempts of one client: with three, two dead instances cost at most two delays.
pub const MAX_RACING: usize = 3;
/// The usual time until an instance's first answer, without the path: an accept and a signature on
/// a busy machine.
const ANSWER_TIME: Duration = Duration::from_millis(100);

/// Timeouts of a search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectConfig {
    /// Limit from accept to the first byte of an answer.
    pub connect_timeout: Duration,
    /// The same while no candidate is usable.
    pub hold: Duration,
    /// Bounds of the delay before the next candidate is raced; `None` to try one after another.
    pub hedge: Option<(Duration, Duration)>,
}

impl From<&ServiceSettings> for ConnectConfig {
    fn from(service: &ServiceSettings) -> Self {
        Self {
            connect_timeout: service.connect_timeout,
            hold: service.hold,
            hedge: service.hedge.then_some((service.hedge_min, service.hedge_max)),
        }
    }
}

impl ConnectConfig {
    /// How long a candidate may be silent before another one is raced: two round trips, four times
    /// their deviation (the margin of RFC 6298), and `ANSWER_TIME`, within the bounds.
    pub fn hedge_delay(&self, candidate: &Candidate) -> Option<Duration> {
        let (least, most) = self.hedge?;
        let usual = candidate.cost * 2 + candidate.origin.deviation * 4 + ANSWER_TIME;
        Some(usual.clamp(least, most))
    }
}

/// The kind of a client's first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Too few bytes to tell.
    Open,
    /// A TLS handshake: may be sent again.
    Tls,
    /// Anything else: may be sent once.
    Other,
}

/// The next action.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "one at a time, and never kept")]
pub enum Action {
    /// Try a candidate.
    Start {
        /// The number of the attempt.
        id: u32,
        /// The candidate to try.
        candidate: Candidate,
        /// Time until the deadline of the search.
        left: Duration,
        /// Whether it races against others that are still running.
        hedge: bool,
    },
    /// Give up an attempt; its later results are ignored.
    Cancel {
        /// The attempt.
        id: u32,
        /// Whether it was silent for longer than its patience.
        overdue: bool,
    },
    /// Report to the client that no origin answers.
    GiveUp,
}

/// The state of the other searches of its service, for [`Connect::poll`].
pub trait SearchContext {
    /// How many sessions are open on a line.
    fn open(&self, line: &Line) -> u64;
    /// Reads all searches.
    fn searches<T>(&mut self, look: impl FnOnce(&mut Searches) -> T) -> T;
}

/// Whether a session on this line could not begin, or would soon be reset.
pub fn is_lost_line(line: Line, route: &Route) -> bool {
    let mut known = route.candidates.iter();
    known.find(|it| it.origin.line == line).is_none_or(|it| is_lost(it, route))
}

/// Whether a session with this candidate could not begin, or would soon be reset.
fn is_lost(candidate: &Candidate, route: &Route) -> bool {
    let fate = policy::fate(&candidate.origin, route);
    candidate.standing == Standing::Down || matches!(fate, Fate::Reset { forgives: false, .. })
}

/// A search. See the module's doc.
#[derive(Debug)]
pub struct Connect {
    config: ConnectConfig,
    started: Instant,
    /// Whether an instance was connected and the client silent at the last poll.
    waited: bool,
    route: Arc<Route>,
    /// Time since which no candidate is usable, as far as this search knows.
    unusable_since: Option<Instant>,
    kind: Kind,
    rounds: Rounds,
    attempts: Attempts,
}

impl Connect {
    /// A search that begins now. `ticket` is fresh for each search, see [`Route::attempt_order`].
    pub fn new(config: ConnectConfig, route: Arc<Route>, ticket: u64, now: Instant) -> Self {
        let unusable_since = (!route.is_usable()).then_some(now);
        Self {
            config,
            started: now,
            waited: false,
            route,
            unusable_since,
            kind: Kind::Open,
            rounds: Rounds::new(ticket),
            attempts: Attempts::default(),
        }
    }

    /// Handles a new order of the candidates. Attempts on lines that went down since they began, or
    /// whose sessions are reset even if they answer, end if the order has anything better; those
    /// that were no better at the start stay, as they were started for lack of better ones.
    pub fn handle_route(&mut self, route: Arc<Route>, now: Instant) {
        self.route = route;
        self.unusable_since = match self.unusable_since {
            _ if self.route.is_usable() => None,
            known => known.or(Some(now)),
        };
        if self.route.is_usable() {
            let route = &self.route;
            self.attempts.cancel_lost(|line| is_lost_line(line, route));
        }
        self.rounds.handle_route(now);
    }

    /// Takes the kind of the client's bytes.
    pub fn handle_kind(&mut self, kind: Kind, now: Instant) {
        if self.kind == kind {
            return;
        }
        self.note_wait(now);
        let is_first = self.kind == Kind::Open;
        self.kind = kind;
        self.attempts.handle_kind(kind, is_first, &self.config, now);
    }

    /// Handles that an attempt's instance is connected. Unless the client speaks TLS, that attempt
    /// wins.
    pub fn handle_connected(&mut self, id: u32, now: Instant) {
        self.attempts.handle_connected(id, self.kind, now);
    }

    /// Handles a failed attempt. `verdict` is `None` if the failure is not evidence about its line.
    pub fn handle_failure(&mut self, id: u32, verdict: Option<Verdict>) {
        self.attempts.handle_failure(id, verdict);
    }

    /// Whether an attempt that has an answer was given up because its session would be reset
    /// whatever it answers.
    pub fn is_futile(&self, id: u32, line: Line) -> bool {
        let mut known = self.route.candidates.iter();
        let fate = known.find(|it| it.origin.line == line);
        let fate = fate.map(|it| policy::fate(&it.origin, &self.route));
        let is_reset = matches!(fate, None | Some(Fate::Reset { forgives: false, .. }));
        is_reset && self.route.is_usable() && !self.attempts.is_running(id)
    }

    /// An attempt has an answer: the search is over, and all other attempts are cancelled.
    pub fn handle_answer(&mut self, id: u32) {
        self.attempts.handle_answer(id);
    }

    /// The results of attempts about their lines since the last call.
    pub fn take_verdicts(&mut self) -> Vec<Attempted> {
        self.attempts.take_verdicts()
    }

    /// The next action now; call it until there is none.
    pub fn poll(&mut self, now: Instant, context: &mut impl SearchContext) -> Option<Action> {
        if let Some(id) = self.attempts.next_cancelled() {
            return Some(Action::Cancel { id, overdue: false });
        }
        self.note_wait(now);
        if self.waited {
            return None;
        }
        let left = self.deadline().saturating_duration_since(now);
        if left.is_zero() {
            self.attempts.give_up();
            return Some(Action::GiveUp);
        }
        if let Some(id) = self.attempts.take_overdue(self.kind, now) {
            return Some(Action::Cancel { id, overdue: true });
        }
        loop {
            if self.rounds.is_pause(now) || self.attempts.is_full() {
                return None;
            }
            self.rounds.draw_order(&self.route, context);
            if !self.attempts.is_empty() || !self.rounds.is_exhausted() {
                break;
            }
            self.rounds.pause(now, left);
        }
        if (self.attempts.take_vacancy() || self.attempts.is_empty())
            && let Some((place, _)) = self.next()
        {
            return self.start(place, left, false, now);
        }
        self.hedge(left, now, context)
    }

    /// Time at which [`Connect::poll`] is due without any input.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.waits_for_client() {
            return None;
        }
        let may_hedge = !self.attempts.is_full() && !self.rounds.is_exhausted();
        let hedge = self.attempts.hedge_at().filter(|_| may_hedge);
        let overdue = self.attempts.overdue_at(self.kind);
        let own = [hedge, overdue, self.rounds.resume_at()].into_iter().flatten();
        own.chain([self.deadline()]).min()
    }

    /// Whether an instance is connected and the client has not sent anything: some clients open
    /// connections long before they use them, and some instances send first.
    fn waits_for_client(&self) -> bool {
        self.kind == Kind::Open && self.attempts.is_any_connected()
    }

    /// Stops the search's clock while the client is silent.
    fn note_wait(&mut self, now: Instant) {
        let waits = self.waits_for_client();
        if std::mem::replace(&mut self.waited, waits) || waits {
            self.started = now;
            self.unusable_since = self.unusable_since.map(|_| now);
        }
    }

    fn deadline(&self) -> Instant {
        let whole = self.started + self.config.connect_timeout;
        self.unusable_since.map_or(whole, |since| whole.min(since + self.config.hold))
    }

    /// The next untried candidate and its place. With its hello, an origin that stalls or hangs
    /// would win against one that serves (or, where none does, is unready), and then keep every
    /// request waiting.
    fn next(&self) -> Option<(usize, &Candidate)> {
        let is_none_ready = self.route.unready_choice().is_some();
        let is_any_serving = self.attempts.is_any_at(|state| match state {
            OriginState::Ready | OriginState::Draining => true,
            OriginState::Unready => is_none_ready,
            _ => false,
        });
        let keeps_waiting = |state| matches!(state, OriginState::Stalled | OriginState::Hung);
        self.rounds.first(|it| !is_any_serving || !keeps_waiting(it.origin.state))
    }

    /// Starts an attempt at the untried candidate in this place.
    fn start(&mut self, place: usize, left: Duration, hedge: bool, now: Instant) -> Option<Action> {
        let candidate = self.rounds.take(place)?;
        let hedge_at = self.config.hedge_delay(&candidate).map(|delay| now + delay);
        let lost = is_lost(&candidate, &self.route);
        let id = self.attempts.start(&candidate, lost, self.rounds.number(), hedge_at, now);
        Some(Action::Start { id, candidate, left, hedge })
    }

    fn hedge(
        &mut self,
        left: Duration,
        now: Instant,
        context: &mut impl SearchContext,
    ) -> Option<Action> {
        if self.rounds.is_exhausted() {
            return None;
        }
        let next = self.next().map(|(place, it)| (place, it.standing));
        let late = self.attempts.due_for_hedge(now)?;
        let delay = self.config.hedge_delay(&late.candidate)?;
        let Some((place, standing)) = next else {
            // The one that is left may be ready soon.
            late.hedge_at = Some(now + delay);
            return None;
        };
        // Slowness is no reason to use a candidate of last resort.
        if standing >= Standing::Fallback && late.candidate.standing < Standing::Fallback {
            late.hedge_at = None;
            return None;
        }
        let line = late.candidate.origin.line;
        let is_busy = context.searches(|all| all.is_busy(&line, delay, now));
        if is_busy || !context.searches(Searches::take_hedge) {
            late.hedge_at = Some(now + delay);
            return None;
        }
        late.note_hedge(context.searches(|all| all.is_crowded()), now);
        self.start(place, left, true, now)
    }
}

#[cfg(test)]
mod tests;
