//! The health of the local instance of a service, from the outcomes of its probes.
//!
//! Up to three probes, each with at most one in flight: *alive* (does it answer at all), *ready*
//! (does it accept traffic) and *live* (do its dependencies answer). Their outcomes determine the
//! [`OriginState`]:
//!
//! | alive | ready | live | state |
//! | --- | --- | --- | --- |
//! | refused | any | any | `refusing`, at once: new connections would fail too |
//! | silent `fall` times | any | any | `hung`: the port may still accept |
//! | broken `fall` times | any | any | `unready`: it does answer, so its sessions may be fine |
//! | answered | 200 | any, in time | `ready` |
//! | answered | 401, lasting | any | `ready`, with a warning: anonymous access is off |
//! | answered | 403 | any | `unready`; if lasting, with a warning: its user may not ask |
//! | answered | 200, but one of both is late now | | `unready`: in doubt |
//! | answered | failed | 200 | `unready`: it drains, and its sessions are served |
//! | answered | failed | failed or overdue | `stalled`: requests hang |
//! | answered | overdue | failed | `stalled`, likewise |
//! | answered | failed at once, after a stall of all | any | `unready`: nothing hangs any more |
//! | answered | anything else | any | `unready` |
//! | nothing known yet | | | `unknown` |
//!
//! An instance that refused or was silent must prove readiness again; earlier answers no longer
//! count. Only an instance that was ready can stall: a starting one fails the same probes. One that
//! stalls remains `stalled` until the probes that were pending at its end are answered.
//!
//! After a stall an apiserver may repeat its last error for a second, since it asks etcd once a
//! second at most. So *ready* is asked often until it succeeds. If all stalled and another one is
//! ready again, a failure within half a second shows that requests hang no longer.
//!
//! *Ready* and *live* of an apiserver wait for etcd and take two to four seconds to fail when it
//! stalls. So they are sent half an interval apart, and an overdue answer counts before it arrives.
//! It does not count if this daemon itself was delayed, or opens a burst of connections to the
//! instance.
//!
//! Has no clock and does no I/O: [`Health::poll_probe`] returns the next probe,
//! [`Health::handle_outcome`] takes its outcome. Bounded by construction.

use std::time::{Duration, Instant};

use meshport_config::planted::{Bug, is_planted};
use meshport_config::{HealthMode, HealthSettings};
use meshport_discovery::OriginState;

use crate::units::counted;

mod checks;
mod schedule;

pub use checks::{FailingChecks, MAX_CHECK_BYTES, MAX_CHECKS, MAX_CHECKS_BODY};
pub use schedule::MAX_CALM_DIALS;
use schedule::{Lateness, ProbeSchedule};

/// Consecutive 401 answers that mean "anonymous access is off" rather than a start-up race.
const LASTING_UNAUTHORISED: u8 = 2;
/// Consecutive 403 answers that mean "the probe's user may not ask": an apiserver that starts gives
/// some until it has loaded its roles.
const LASTING_FORBIDDEN: u8 = 20;

/// Factor by which a refusing instance is probed more often.
const REFUSED_HASTE: u32 = 4;

/// Time from one *ready* probe to the next while all nodes wait for the state; a quarter of the
/// interval, if that is less.
const URGENT: Duration = Duration::from_millis(250);

/// How an instance is probed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthConfig {
    /// Time from one probe to the next.
    pub interval: Duration,
    /// Silent *alive* probes in a row that mean hung; at least 1.
    pub fall: u8,
    /// Whether readiness is a separate probe (HTTP modes) or follows from being alive (TCP).
    pub asks_ready: bool,
    /// Whether liveness is a separate probe too (Kubernetes).
    pub asks_live: bool,
}

impl From<&HealthSettings> for HealthConfig {
    fn from(settings: &HealthSettings) -> Self {
        let asks_ready = settings.mode != HealthMode::Tcp;
        let asks_live = settings.mode == HealthMode::Kubernetes;
        Self { interval: settings.interval, fall: settings.fall, asks_ready, asks_live }
    }
}

/// A kind of probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Question {
    /// Does it answer at all?
    Alive,
    /// Does it accept traffic?
    Ready,
    /// Do its dependencies answer?
    Live,
}

impl Question {
    const ALL: [Self; 3] = [Self::Alive, Self::Ready, Self::Live];
}

/// The result of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It answered, with this HTTP status if the probe has one.
    Answered(Option<u16>),
    /// The connection was refused.
    Refused,
    /// No answer in time.
    Silent,
    /// The connection broke, or the answer made no sense.
    Broken,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Alive {
    Unknown,
    Yes,
    Refused,
    Silent,
    Broken,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ready {
    Unknown,
    Yes,
    No,
    Unauthorised,
}

/// Consecutive answers, 401 or 403, that deny the probe of readiness.
#[derive(Debug, Clone, Copy)]
struct Denial {
    status: u16,
    in_row: u8,
}

impl Denial {
    fn is_lasting(&self) -> bool {
        let least = if self.status == 401 { LASTING_UNAUTHORISED } else { LASTING_FORBIDDEN };
        self.in_row >= least
    }
}

/// What it means if neither *ready* nor *live* succeeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Failure {
    /// It starts: it has not been ready since it last refused or was silent.
    Start,
    /// Requests hang.
    Stall,
    /// Requests hang unless *ready* fails at once: no instance was ready, and another one is again,
    /// so they may have stalled together.
    CommonStall,
}

/// The health of one instance. See the module's table.
#[derive(Debug)]
pub struct Health {
    config: HealthConfig,
    alive: Alive,
    ready: Ready,
    /// The last *live* probe failed.
    is_dead: bool,
    failure: Failure,
    /// Time since which nothing shows a stall.
    flows_since: Option<Instant>,
    silent_in_row: u8,
    denied: Option<Denial>,
    asking: [ProbeSchedule; Question::ALL.len()],
    /// This node is opening many connections to it.
    is_loaded: bool,
    state: OriginState,
    since: Instant,
    detail: String,
    /// The failing checks in the last answer about readiness.
    failing: FailingChecks,
}

impl Health {
    /// An instance about which nothing is known; *alive* and *ready* are due at once.
    pub fn new(config: HealthConfig, now: Instant) -> Self {
        let mut health = Self {
            config,
            alive: Alive::Unknown,
            ready: Ready::Unknown,
            is_dead: false,
            failure: Failure::Start,
            flows_since: None,
            silent_in_row: 0,
            denied: None,
            asking: Default::default(),
            is_loaded: false,
            state: OriginState::Unknown,
            since: now,
            detail: "not checked yet".into(),
            failing: FailingChecks::default(),
        };
        health.begin(Question::Alive, now);
        health.begin_optional(now);
        health
    }

    /// Changes the probes; returns the new state if it changed. Results stay, except those about
    /// readiness when it becomes or ceases to be a separate probe.
    pub fn set_config(&mut self, config: HealthConfig, now: Instant) -> Option<OriginState> {
        let before = std::mem::replace(&mut self.config, config);
        if self.config.asks_ready != before.asks_ready || self.config.asks_live != before.asks_live
        {
            self.forget_ready();
            self.begin_optional(now);
        }
        let interval = self.config.interval;
        for asking in &mut self.asking {
            asking.due = asking.due.map(|due| due.min(now + interval));
        }
        self.note_state(now)
    }

    /// The next probe that is due, if any. The caller sends it and reports to
    /// [`Health::handle_outcome`]; until then the same kind is not returned again.
    pub fn poll_probe(&mut self, now: Instant) -> Option<Question> {
        let interval = self.config.interval;
        let is_due = |it: &Question| self.asking[*it as usize].is_due(now);
        let question = Question::ALL.into_iter().find(is_due)?;
        self.asking[question as usize].ask(now, interval);
        if question == Question::Ready && !self.is_urgent() {
            // Between two of the other probe.
            let live = &mut self.asking[Question::Live as usize];
            live.due = live.due.map(|_| now + interval / 2);
        }
        Some(question)
    }

    /// Handles the outcome of a probe; returns the new state if it changed.
    pub fn handle_outcome(
        &mut self,
        question: Question,
        outcome: Outcome,
        now: Instant,
    ) -> Option<OriginState> {
        let is_good = matches!(outcome, Outcome::Answered(Some(200)));
        let is_early = self.asking[question as usize].answered(is_good, now);
        match question {
            Question::Alive => {
                let was = self.alive;
                self.handle_alive(outcome);
                self.hurry(was, now);
            }
            // The probe was sent before it ceased to be a separate one.
            Question::Ready if !self.config.asks_ready => {}
            Question::Live if !self.config.asks_live => {}
            Question::Ready => {
                self.handle_ready(outcome);
                let is_answered = matches!(outcome, Outcome::Answered(_));
                self.asking[Question::Ready as usize].fails_at_once =
                    self.ready == Ready::No && is_answered && is_early;
            }
            Question::Live => self.handle_live(outcome),
        }
        let news = self.note_state(now);
        if self.is_urgent() {
            self.hurry_ready(now);
        }
        news
    }

    /// Takes the failing checks of a readiness answer, before its outcome.
    pub fn handle_checks(&mut self, failing: FailingChecks) {
        self.failing = failing;
    }

    /// The failing checks in the last readiness answer.
    pub fn failing(&self) -> &FailingChecks {
        &self.failing
    }

    /// Handles a refused session: equivalent to a refused probe, and earlier.
    pub fn handle_refused(&mut self, now: Instant) -> Option<OriginState> {
        let was = self.alive;
        self.handle_alive(Outcome::Refused);
        self.hurry(was, now);
        self.note_state(now)
    }

    /// Another instance is no longer ready, or is ready again; `is_first` if no other one was. If
    /// both depend on what has failed or recovered, this one should report it before sessions move
    /// to the other one, or away from here. Probes *ready* at once, unless it just was.
    pub fn handle_other(&mut self, is_first: bool, now: Instant) {
        if is_first && self.failure == Failure::Stall && self.state != OriginState::Ready {
            self.failure = Failure::CommonStall;
        }
        self.hurry_ready(now);
    }

    /// Takes the number of connections that this node has opened to the instance in the last
    /// second.
    pub fn handle_dials(&mut self, dials: u64) {
        self.is_loaded = dials > MAX_CALM_DIALS;
    }

    /// Advances time: an overdue answer counts before it arrives. Returns the new state if it
    /// changed.
    pub fn handle_timeout(&mut self, now: Instant) -> Option<OriginState> {
        let is_loaded = self.is_loaded;
        let judged = self.asking.iter_mut().map(|it| it.judge(is_loaded, now));
        let is_new = judged.fold(false, |new, it| new | it);
        if is_new { self.note_state(now) } else { None }
    }

    /// Time at which [`Health::poll_probe`] or [`Health::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.asking.iter().filter_map(ProbeSchedule::poll_timeout).min()
    }

    /// The current state.
    pub fn state(&self) -> OriginState {
        self.state
    }

    /// Time since which the instance has been in that state.
    pub fn since(&self) -> Instant {
        self.since
    }

    /// The last outcome, as text.
    pub fn detail(&self) -> String {
        match self.state {
            OriginState::Stalled if !self.failing.is_empty() => {
                format!("neither ready nor live: requests hang. Failing checks: {}", self.failing)
            }
            OriginState::Stalled => {
                "neither ready nor live: requests hang. Check what it depends on (etcd)".into()
            }
            OriginState::Unready if self.ready != Ready::No && self.alive == Alive::Yes => {
                "slow: the readiness check takes far longer than usual".into()
            }
            _ => self.detail.clone(),
        }
    }

    /// The status, 401 or 403, with which the instance keeps denying the probe of its readiness.
    pub fn lasting_denial(&self) -> Option<u16> {
        self.denied.filter(Denial::is_lasting).map(|it| it.status)
    }

    /// *Ready* and *live* become separate probes, or cease to be.
    fn begin_optional(&mut self, now: Instant) {
        let live = now + self.config.interval / 2;
        for (question, asks, at) in [
            (Question::Ready, self.config.asks_ready, now),
            (Question::Live, self.config.asks_live, live),
        ] {
            self.asking[question as usize].due = None;
            if asks {
                self.begin(question, at);
            }
        }
    }

    fn begin(&mut self, question: Question, at: Instant) {
        let asking = &mut self.asking[question as usize];
        asking.due = Some(at);
        asking.counts_late = question != Question::Alive;
    }

    /// A refusing instance is probed more often, which costs it nothing. A recovered one is probed
    /// for readiness at once, since all nodes wait for it.
    fn hurry(&mut self, was: Alive, now: Instant) {
        let soon = match self.alive {
            Alive::Refused => (Question::Alive, now + self.config.interval / REFUSED_HASTE),
            Alive::Yes if was != Alive::Yes => (Question::Ready, now),
            _ => return,
        };
        let asking = &mut self.asking[soon.0 as usize];
        asking.due = asking.due.map(|due| due.min(soon.1));
    }

    fn hurry_ready(&mut self, now: Instant) {
        let wait = URGENT.min(self.config.interval / 4);
        self.asking[Question::Ready as usize].hurry(wait, now);
    }

    /// Whether others wait for the news that it is ready again.
    fn is_urgent(&self) -> bool {
        self.state == OriginState::Stalled || self.failure == Failure::CommonStall
    }

    fn handle_alive(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Answered(_) => {
                if !self.config.asks_ready {
                    self.detail = "accepts connections".into();
                } else if self.alive != Alive::Yes && self.ready == Ready::Unknown {
                    self.detail = "answers; not known to be ready yet".into();
                }
                self.alive = Alive::Yes;
                self.silent_in_row = 0;
            }
            Outcome::Refused => {
                self.alive = Alive::Refused;
                self.forget_ready();
                self.silent_in_row = 0;
                self.detail = "connection refused".into();
            }
            Outcome::Silent | Outcome::Broken => {
                self.silent_in_row = self.silent_in_row.saturating_add(1);
                if self.silent_in_row < self.config.fall {
                    return;
                }
                self.forget_ready();
                if outcome == Outcome::Silent {
                    self.alive = Alive::Silent;
                    self.detail =
                        format!("silent for {}", counted(self.silent_in_row.into(), "probe"));
                } else {
                    self.alive = Alive::Broken;
                    self.detail =
                        "cannot be probed: unreachable, no TLS or HTTP there, or ca-file is \
                         missing or did not sign its certificate"
                            .into();
                }
            }
        }
    }

    fn forget_ready(&mut self) {
        self.failing = FailingChecks::default();
        self.ready = Ready::Unknown;
        (self.is_dead, self.failure) = (false, Failure::Start);
        self.denied = None;
    }

    fn handle_ready(&mut self, outcome: Outcome) {
        self.denied = match outcome {
            Outcome::Answered(Some(status @ (401 | 403))) => {
                let former = self.denied.filter(|it| it.status == status);
                let in_row = former.map_or(0, |it| it.in_row).saturating_add(1);
                Some(Denial { status, in_row })
            }
            // They say nothing about readiness.
            Outcome::Refused | Outcome::Broken => self.denied,
            _ => None,
        };
        match outcome {
            Outcome::Answered(Some(200) | None) => {
                (self.ready, self.failure) = (Ready::Yes, Failure::Stall);
                self.detail = "ready".into();
            }
            Outcome::Answered(Some(401)) => {
                if self.lasting_denial().is_some() {
                    self.ready = Ready::Unauthorised;
                    self.detail = "readiness unknown: it requires credentials (401)".into();
                }
            }
            Outcome::Answered(Some(status)) => {
                self.ready = Ready::No;
                self.detail = match self.failing.is_empty() {
                    true => format!("not ready (status {status})"),
                    false => format!("not ready: {}", self.failing),
                };
            }
            Outcome::Silent => {
                self.ready = Ready::No;
                self.detail = "readiness check timed out".into();
            }
            // *Alive* meets the same refusal and judges it.
            Outcome::Refused | Outcome::Broken => {}
        }
    }

    fn handle_live(&mut self, outcome: Outcome) {
        self.is_dead = match outcome {
            Outcome::Answered(Some(status)) => status >= 500,
            Outcome::Answered(None) => false,
            Outcome::Silent => true,
            // *Alive* meets the same refusal and judges it.
            Outcome::Refused | Outcome::Broken => self.is_dead,
        };
    }

    fn note_state(&mut self, now: Instant) -> Option<OriginState> {
        self.flows_since = if self.stalls() { None } else { self.flows_since.or(Some(now)) };
        let state = self.derive();
        if state == self.state {
            return None;
        }
        self.state = state;
        self.since = now;
        Some(state)
    }

    fn derive(&self) -> OriginState {
        match self.alive {
            _ if self.state == OriginState::Ready && is_planted(Bug::Health) => OriginState::Ready,
            Alive::Unknown => OriginState::Unknown,
            Alive::Refused => OriginState::Refusing,
            Alive::Silent => OriginState::Hung,
            Alive::Broken => OriginState::Unready,
            Alive::Yes if !self.config.asks_ready => OriginState::Ready,
            Alive::Yes => self.derive_ready(),
        }
    }

    fn derive_ready(&self) -> OriginState {
        let in_time = self.delay(Question::Ready).max(self.delay(Question::Live)) == Lateness::None;
        match self.ready {
            _ if self.stalls() => OriginState::Stalled,
            Ready::Unknown => OriginState::Unknown,
            Ready::Yes | Ready::Unauthorised if in_time => OriginState::Ready,
            // When a stall ends, both are answered within a moment. An announcement of the first
            // answer would delay that of the second.
            _ if self.state == OriginState::Stalled && self.is_ending() => OriginState::Stalled,
            Ready::No | Ready::Yes | Ready::Unauthorised => OriginState::Unready,
        }
    }

    /// Whether *ready* and *live* show that requests hang.
    fn stalls(&self) -> bool {
        let shows = match (self.ready == Ready::No, self.is_dead) {
            (true, true) => true,
            (true, false) => self.delay(Question::Live) == Lateness::Overdue,
            (false, true) => self.delay(Question::Ready) == Lateness::Overdue,
            (false, false) => false,
        };
        match self.failure {
            Failure::Start => false,
            Failure::Stall => shows,
            Failure::CommonStall => shows && !self.asking[Question::Ready as usize].fails_at_once,
        }
    }

    /// Whether a probe is pending that was sent while it stalled.
    fn is_ending(&self) -> bool {
        let Some(since) = self.flows_since else { return false };
        let probes = [Question::Ready, Question::Live].map(|it| &self.asking[it as usize]);
        probes.iter().any(|it| it.is_asking_since_before(since))
    }

    fn delay(&self, question: Question) -> Lateness {
        self.asking[question as usize].delay()
    }
}

#[cfg(test)]
mod tests;
