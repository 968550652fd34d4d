//! One client's search for an instance that answers: which candidate is tried, and when.
//!
//! The first candidate of the route is tried at once, the next one when an attempt fails, or when
//! the latest one has been silent for its hedge delay: then both run, and the first answer wins
//! (Dean, Barroso, "The Tail at Scale", hedged requests). When all have failed they are tried again
//! after a pause, in rounds, until the deadline. A client whose bytes must not go out twice is
//! raced only until one instance is connected. An attempt is over when its [`Patience`] is: what it
//! waits for is to be connected, and then, once the instance was asked something, its answer. What
//! the client sends meanwhile prolongs nothing.
//!
//! Has no clock and does no I/O: the caller starts and cancels what [`Connect::poll`] says and
//! reports the outcome. Bounds: [`MAX_RACING`] attempts at once; one attempt per candidate and
//! round; rounds end with the deadline.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use meshport_config::ServiceSettings;

use super::evidence::{Attempted, Verdict};
use super::patience::Patience;
use super::route::{Candidate, Line, Route, Standing};

/// Attempts of one client at once: with three, two dead instances cost no more than two delays.
pub const MAX_RACING: usize = 3;
/// The pause before all candidates are tried again, when none was slow about failing.
const ROUND_PAUSE: Duration = Duration::from_millis(100);
/// What an instance usually takes for its first answer besides the path: accepting a connection and
/// one signature, on a machine with other work.
const ANSWER_TIME: Duration = Duration::from_millis(100);

/// How patient a search is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectConfig {
    /// From accept to the first byte of an answer.
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

/// A timer that fires so much too late says that this process does not get to run: the answer may
/// well lie there unread.
const LAG: Duration = Duration::from_millis(50);
/// Searches of one service at once that still leave each other's instances alone; a client that
/// comes back dials once per watch, and a controller manager 60 times.
pub const MAX_CALM_SEARCHES: u64 = 16;

/// What the client's first bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Too few to tell.
    Open,
    /// They begin a TLS handshake: may be sent again.
    Tls,
    /// Anything else: may be sent once.
    Other,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "one at a time, and never kept")]
pub enum Action {
    /// Try a candidate.
    Start {
        /// What to call the attempt.
        id: u32,
        /// Whom to try.
        candidate: Candidate,
        /// Time until the deadline of the search.
        left: Duration,
        /// Whether it races against others that are still running.
        hedge: bool,
    },
    /// Give up an attempt; nothing it does counts any more.
    Cancel {
        /// Which one.
        id: u32,
        /// Whether it was silent for longer than its patience.
        overdue: bool,
    },
    /// Tell the client that nobody answers.
    GiveUp,
}

/// What [`Connect::poll`] has to know of the other searches of its service.
pub trait Surroundings {
    /// How many sessions are open on a line.
    fn open(&self, line: &Line) -> u64;
    /// Takes one hedge from the service's budget.
    fn may_hedge(&mut self) -> bool;
    /// Whether so many searches run at once that they slow each other.
    fn is_crowded(&self) -> bool;
}

#[derive(Debug)]
struct Running {
    id: u32,
    candidate: Candidate,
    connected: bool,
    patience: Patience,
    began: Instant,
    /// Since when it waits for what it waits for now.
    since: Instant,
    /// It was looked at too late once, and got another moment.
    spared: bool,
    hedge_at: Option<Instant>,
    /// Another candidate was tried because this one was silent.
    slow: bool,
    /// This machine explains that: it was late itself, or opens too many at once.
    excused: bool,
}

impl Running {
    fn shows(&self, verdict: Verdict) -> Attempted {
        Attempted { line: self.candidate.origin.line, verdict, began: self.began }
    }

    /// When its patience is over. An instance that was not asked anything may wait for as long as
    /// its client does.
    fn overdue_at(&self, kind: Kind) -> Option<Instant> {
        match (self.connected, kind) {
            (false, _) => Some(self.since + self.patience.open),
            (true, Kind::Open) => None,
            (true, Kind::Tls | Kind::Other) => Some(self.since + self.patience.answer),
        }
    }
}

/// One search. See the module's doc.
#[derive(Debug)]
pub struct Connect {
    config: ConnectConfig,
    started: Instant,
    ticket: u64,
    route: Arc<Route>,
    /// Since when no candidate is usable, as far as this search knows.
    unusable_since: Option<Instant>,
    kind: Kind,
    /// What this round has still to try; none before its order is drawn.
    queue: Option<VecDeque<Candidate>>,
    tried: BTreeSet<Line>,
    running: Vec<Running>,
    /// An attempt has failed, and the next one is to take its place.
    replace: bool,
    /// The instance was connected and the client silent when it was last looked at.
    waited: bool,
    /// When the next round begins; `None` in a round.
    resume_at: Option<Instant>,
    round: u32,
    next_id: u32,
    cancels: VecDeque<u32>,
    verdicts: Vec<Attempted>,
}

impl Connect {
    /// A search that begins now. `ticket` is fresh for each search, see [`Route::attempt_order`].
    pub fn new(config: ConnectConfig, route: Arc<Route>, ticket: u64, now: Instant) -> Self {
        let unusable_since = (!route.is_usable()).then_some(now);
        Self {
            config,
            started: now,
            ticket,
            route,
            unusable_since,
            kind: Kind::Open,
            queue: None,
            tried: BTreeSet::new(),
            running: Vec::new(),
            replace: false,
            waited: false,
            resume_at: None,
            round: 0,
            next_id: 0,
            cancels: VecDeque::new(),
            verdicts: Vec::new(),
        }
    }

    /// Takes a new order of the candidates. Attempts on lines that have gone down since they began
    /// end if it has anything better; those that were down already are there for want of that.
    pub fn handle_route(&mut self, route: Arc<Route>, now: Instant) {
        self.route = route;
        self.unusable_since = match self.unusable_since {
            _ if self.route.is_usable() => None,
            known => known.or(Some(now)),
        };
        self.resume_at = self.resume_at.map(|_| now);
        if self.route.is_usable() {
            let is_down = |line: Line| {
                let mut known = self.route.candidates.iter();
                known
                    .find(|it| it.origin.line == line)
                    .is_none_or(|it| it.standing == Standing::Down)
            };
            let lost = self.running.iter().filter(|it| {
                it.candidate.standing < Standing::Down && is_down(it.candidate.origin.line)
            });
            let lost: Vec<u32> = lost.map(|it| it.id).collect();
            self.running.retain(|it| !lost.contains(&it.id));
            self.replace |= !lost.is_empty();
            self.cancels.extend(lost);
        }
        self.queue = None;
    }

    /// Takes word of what the client's bytes are.
    pub fn handle_kind(&mut self, kind: Kind, now: Instant) {
        if self.kind == kind {
            return;
        }
        self.note_wait(now);
        let is_first = self.kind == Kind::Open;
        self.kind = kind;
        for running in &mut self.running {
            if running.connected && is_first {
                running.since = now;
            }
            running.hedge_at = match kind {
                Kind::Tls if running.slow => None,
                // The instance is asked from now on.
                Kind::Tls => self.config.hedge_delay(&running.candidate).map(|delay| now + delay),
                Kind::Open | Kind::Other if running.connected => None,
                Kind::Open | Kind::Other => running.hedge_at,
            };
        }
    }

    /// An attempt's instance is connected. Unless the client speaks TLS, it is the one.
    pub fn handle_connected(&mut self, id: u32, now: Instant) {
        if let Some(running) = self.running.iter_mut().find(|it| it.id == id) {
            if !std::mem::replace(&mut running.connected, true) {
                running.since = now;
            }
            if self.kind != Kind::Tls {
                (running.hedge_at, running.slow) = (None, false);
                let others = self.running.iter().filter(|it| it.id != id);
                self.cancels.extend(others.map(|it| it.id));
                self.running.retain(|it| it.id == id);
            }
        }
    }

    /// An attempt has failed. `verdict` is none where that says nothing about its line.
    pub fn handle_failure(&mut self, id: u32, verdict: Option<Verdict>) {
        let Some(at) = self.running.iter().position(|it| it.id == id) else { return };
        let failed = self.running.remove(at);
        self.verdicts.extend(verdict.map(|verdict| failed.shows(verdict)));
        self.replace = true;
    }

    /// An attempt has an answer: the search is over, and all others are to be given up.
    pub fn handle_answer(&mut self, id: u32) {
        for running in self.running.drain(..) {
            if running.id == id {
                self.verdicts.push(running.shows(Verdict::Answered));
            } else if running.slow && !running.excused {
                self.verdicts.push(running.shows(Verdict::Outrun));
            }
        }
    }

    /// What attempts have shown about their lines since the last call.
    pub fn take_verdicts(&mut self) -> Vec<Attempted> {
        std::mem::take(&mut self.verdicts)
    }

    /// What to do now; to be asked until there is nothing.
    pub fn poll(&mut self, now: Instant, around: &mut impl Surroundings) -> Option<Action> {
        if let Some(id) = self.cancels.pop_front() {
            return Some(Action::Cancel { id, overdue: false });
        }
        self.note_wait(now);
        if self.waited {
            return None;
        }
        let left = self.deadline().saturating_duration_since(now);
        if left.is_zero() {
            let silent = self.running.drain(..).filter(|it| it.slow);
            self.verdicts.extend(silent.map(|it| it.shows(Verdict::Silent)));
            return Some(Action::GiveUp);
        }
        if let Some(id) = self.take_overdue(now) {
            return Some(Action::Cancel { id, overdue: true });
        }
        loop {
            if self.resume_at.is_some_and(|at| at > now) || self.running.len() >= MAX_RACING {
                return None;
            }
            if self.resume_at.take().is_some() {
                self.begin_round();
            }
            self.draw_order(around);
            if !self.running.is_empty() || !self.is_exhausted() {
                break;
            }
            // Without candidates only a new route can help.
            let wait = if self.tried.is_empty() { left } else { ROUND_PAUSE };
            self.resume_at = Some(now + wait);
        }
        if self.running.is_empty() || std::mem::take(&mut self.replace) {
            return self.start(left, false, now);
        }
        self.hedge(left, now, around)
    }

    /// When [`Connect::poll`] next has something to say of its own accord.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.waits_for_client() {
            return None;
        }
        let hedges = self.running.iter().filter_map(|it| it.hedge_at);
        let hedges = hedges.filter(|_| self.running.len() < MAX_RACING && !self.is_exhausted());
        let overdue = self.running.iter().filter_map(|it| it.overdue_at(self.kind));
        hedges.chain(overdue).chain(self.resume_at).chain([self.deadline()]).min()
    }

    /// Ends an attempt whose patience is over. One that is looked at too late for that is spared
    /// once: its answer may well lie there unread.
    fn take_overdue(&mut self, now: Instant) -> Option<u32> {
        let kind = self.kind;
        let lateness = |it: &Running| now.checked_duration_since(it.overdue_at(kind)?);
        loop {
            let at = self.running.iter().position(|it| lateness(it).is_some())?;
            let running = &mut self.running[at];
            let is_lag = lateness(running).is_some_and(|late| late > LAG);
            if !is_lag || std::mem::replace(&mut running.spared, true) {
                let overdue = self.running.remove(at);
                self.verdicts.push(overdue.shows(Verdict::Silent));
                self.replace = true;
                return Some(overdue.id);
            }
            let patience =
                if running.connected { running.patience.answer } else { running.patience.open };
            running.since = now + LAG - patience;
        }
    }

    /// Whether an instance is connected and it is the client's turn: some open connections long
    /// before they use them, and some instances speak first, when it suits them.
    fn waits_for_client(&self) -> bool {
        self.kind == Kind::Open && self.running.iter().any(|it| it.connected)
    }

    /// While the client is silent, and when it has spoken or its instance is gone, the search is as
    /// young as ever: that time was the client's own.
    fn note_wait(&mut self, now: Instant) {
        let waits = self.waits_for_client();
        if std::mem::replace(&mut self.waited, waits) || waits {
            self.started = now;
        }
    }

    fn deadline(&self) -> Instant {
        let whole = self.started + self.config.connect_timeout;
        self.unusable_since.map_or(whole, |since| whole.min(since + self.config.hold))
    }

    /// Whether this round has nobody left to try.
    fn is_exhausted(&self) -> bool {
        self.queue.as_ref().is_some_and(VecDeque::is_empty)
    }

    fn begin_round(&mut self) {
        self.round += u32::from(!self.tried.is_empty());
        self.tried.clear();
        self.queue = None;
    }

    fn draw_order(&mut self, around: &impl Surroundings) {
        if self.queue.is_none() {
            let order = self.route.attempt_order(self.ticket, |line| around.open(line));
            let untried = order.into_iter().filter(|it| !self.tried.contains(&it.origin.line));
            self.queue = Some(untried.cloned().collect());
        }
    }

    fn start(&mut self, left: Duration, hedge: bool, now: Instant) -> Option<Action> {
        let candidate = self.queue.as_mut()?.pop_front()?;
        let id = self.next_id;
        self.next_id += 1;
        self.tried.insert(candidate.origin.line);
        let hedge_at = self.config.hedge_delay(&candidate).map(|delay| now + delay);
        self.running.push(Running {
            id,
            candidate: candidate.clone(),
            connected: false,
            patience: Patience::new(&candidate, self.round),
            began: now,
            since: now,
            spared: false,
            hedge_at,
            slow: false,
            excused: false,
        });
        Some(Action::Start { id, candidate, left, hedge })
    }

    fn hedge(
        &mut self,
        left: Duration,
        now: Instant,
        around: &mut impl Surroundings,
    ) -> Option<Action> {
        if self.is_exhausted() {
            return None;
        }
        let is_due = |it: &&mut Running| it.hedge_at.is_some_and(|at| at <= now);
        let late = self.running.iter_mut().find(is_due)?;
        // Slowness is no reason to go where nobody should go who has anything better.
        let next = self.queue.as_ref()?.front()?.standing;
        if next >= Standing::Fallback && late.candidate.standing < Standing::Fallback {
            late.hedge_at = None;
            return None;
        }
        if !around.may_hedge() {
            late.hedge_at = self.config.hedge_delay(&late.candidate).map(|delay| now + delay);
            return None;
        }
        let due = late.hedge_at.take().unwrap_or(now);
        late.slow = true;
        late.excused = around.is_crowded() || now.saturating_duration_since(due) > LAG;
        self.start(left, true, now)
    }
}

/// How many hedges the searches of a service may start: a burst, and a share of all searches, so
/// that slowness everywhere is not answered with more load (the retry budget of Finagle and gRPC).
#[derive(Debug)]
pub struct HedgeBudget {
    tenths: u32,
}

impl HedgeBudget {
    /// Hedges that may be started at once, out of nothing.
    const MAX_BURST: u32 = 32;
    /// What each search adds, in tenths of a hedge.
    const PER_SEARCH: u32 = 2;

    /// Notes that a search has begun.
    pub fn note_search(&mut self) {
        self.tenths = (self.tenths + Self::PER_SEARCH).min(Self::MAX_BURST * 10);
    }

    /// Takes one hedge, if there is one.
    pub fn take(&mut self) -> bool {
        let left = self.tenths.checked_sub(10);
        self.tenths = left.unwrap_or(self.tenths);
        left.is_some()
    }
}

impl Default for HedgeBudget {
    fn default() -> Self {
        Self { tenths: Self::MAX_BURST * 10 }
    }
}

#[cfg(test)]
mod tests;
