//! The health of this node's own instance of a service, from the outcomes of its probes.
//!
//! Two questions are asked side by side, each with at most one probe under way: *alive* (does it
//! answer at all) and *ready* (does it want traffic). Their outcomes give one of the states of
//! [`OriginState`]:
//!
//! | alive | ready | state |
//! | --- | --- | --- |
//! | refused | any | `refusing`, at once: new connections would fail too |
//! | silent `fall` times | any | `hung`: the port may still accept |
//! | broken `fall` times | any | `unready`: it does answer, so its sessions may be fine |
//! | answered | 200 | `ready` |
//! | answered | 401, lasting | `ready`, with a warning: anonymous access is off |
//! | answered | anything else | `unready` |
//! | nothing known yet | | `unknown` |
//!
//! Whoever was refused or silent has to be found ready anew: an old "yes" does not outlive it.
//!
//! The machine owns no clock and does no I/O: [`Health::poll_probe`] says what to ask,
//! [`Health::handle_outcome`] takes the answer. It is bounded by construction.

use std::time::{Duration, Instant};

use meshport_config::planted::{Bug, is_planted};
use meshport_discovery::OriginState;

/// Consecutive 401 answers before they are taken for "anonymous access is off" and not for a
/// start-up race.
const LASTING_UNAUTHORISED: u8 = 2;

/// An instance that refuses is asked this many times as often.
const REFUSED_HASTE: u32 = 4;

/// How an instance is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthConfig {
    /// Time from one probe to the next.
    pub interval: Duration,
    /// Silent *alive* probes in a row that mean hung; at least 1.
    pub fall: u8,
    /// Whether readiness is a question of its own (HTTP modes) or follows from being alive (TCP).
    pub asks_ready: bool,
}

/// A question to the instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Question {
    /// Does it answer at all?
    Alive,
    /// Does it want traffic?
    Ready,
}

/// What came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It answered; with this HTTP status where the question has one.
    Answered(Option<u16>),
    /// The connection was refused.
    Refused,
    /// No answer in time.
    Silent,
    /// The connection broke, or the answer made no sense.
    Broken,
}

#[derive(Debug, Default)]
struct Asking {
    due: Option<Instant>,
    under_way: bool,
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

/// The health of one instance. See the module's table.
#[derive(Debug)]
pub struct Health {
    config: HealthConfig,
    alive: Alive,
    ready: Ready,
    silent_in_row: u8,
    unauthorised_in_row: u8,
    asking: [Asking; 2],
    state: OriginState,
    since: Instant,
    detail: String,
}

impl Health {
    /// An instance of which nothing is known; both questions are due at once.
    pub fn new(config: HealthConfig, now: Instant) -> Self {
        let ask_ready = config.asks_ready.then_some(now);
        Self {
            config,
            alive: Alive::Unknown,
            ready: Ready::Unknown,
            silent_in_row: 0,
            unauthorised_in_row: 0,
            asking: [
                Asking { due: Some(now), under_way: false },
                Asking { due: ask_ready, under_way: false },
            ],
            state: OriginState::Unknown,
            since: now,
            detail: "not asked yet".into(),
        }
    }

    /// Asks in another way from now on; returns the new state if it changed. What is known stays,
    /// except about readiness when that becomes or ceases to be a question.
    pub fn set_config(&mut self, config: HealthConfig, now: Instant) -> Option<OriginState> {
        if config.asks_ready != self.config.asks_ready {
            self.asking[Question::Ready as usize].due = config.asks_ready.then_some(now);
            self.forget_ready();
        }
        for asking in &mut self.asking {
            asking.due = asking.due.map(|due| due.min(now + config.interval));
        }
        self.config = config;
        self.note_state(now)
    }

    /// The next question that is due, if any. The caller asks it and reports to
    /// [`Health::handle_outcome`]; until then the same question is not handed out again.
    pub fn poll_probe(&mut self, now: Instant) -> Option<Question> {
        for question in [Question::Alive, Question::Ready] {
            let asking = &mut self.asking[question as usize];
            if !asking.under_way && asking.due.is_some_and(|due| due <= now) {
                asking.under_way = true;
                asking.due = Some(now + self.config.interval);
                return Some(question);
            }
        }
        None
    }

    /// Takes the outcome of a question; returns the new state if it changed.
    pub fn handle_outcome(
        &mut self,
        question: Question,
        outcome: Outcome,
        now: Instant,
    ) -> Option<OriginState> {
        self.asking[question as usize].under_way = false;
        match question {
            Question::Alive => {
                let was = self.alive;
                self.handle_alive(outcome);
                self.hurry(was, now);
            }
            // It was asked before readiness ceased to be a question.
            Question::Ready if !self.config.asks_ready => {}
            Question::Ready => self.handle_ready(outcome),
        }
        self.note_state(now)
    }

    /// A session was refused by the instance: as good as a probe that was, and earlier.
    pub fn handle_refused(&mut self, now: Instant) -> Option<OriginState> {
        let was = self.alive;
        self.handle_alive(Outcome::Refused);
        self.hurry(was, now);
        self.note_state(now)
    }

    /// When [`Health::poll_probe`] next has something to say.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.asking.iter().filter(|asking| !asking.under_way).filter_map(|asking| asking.due).min()
    }

    /// The state now.
    pub fn state(&self) -> OriginState {
        self.state
    }

    /// Since when the instance is in that state.
    pub fn since(&self) -> Instant {
        self.since
    }

    /// The last outcome in words, for people.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// Whether readiness is unknown because the instance wants credentials.
    pub fn wants_credentials(&self) -> bool {
        self.ready == Ready::Unauthorised
    }

    /// An instance that refuses is asked more often, since asking costs it nothing, and one that is
    /// back is asked at once whether it is ready: everybody waits for it.
    fn hurry(&mut self, was: Alive, now: Instant) {
        let soon = match self.alive {
            Alive::Refused => (Question::Alive, now + self.config.interval / REFUSED_HASTE),
            Alive::Yes if was != Alive::Yes => (Question::Ready, now),
            _ => return,
        };
        let asking = &mut self.asking[soon.0 as usize];
        asking.due = asking.due.map(|due| due.min(soon.1));
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
                self.detail = "refuses connections".into();
            }
            Outcome::Silent | Outcome::Broken => {
                self.silent_in_row = self.silent_in_row.saturating_add(1);
                if self.silent_in_row < self.config.fall {
                    return;
                }
                self.forget_ready();
                if outcome == Outcome::Silent {
                    self.alive = Alive::Silent;
                    self.detail = format!("silent for {} probes", self.silent_in_row);
                } else {
                    self.alive = Alive::Broken;
                    self.detail = "cannot be asked: not reached, no TLS or HTTP there, or its \
                                   certificate is not signed by ca-file"
                        .into();
                }
            }
        }
    }

    fn forget_ready(&mut self) {
        self.ready = Ready::Unknown;
        self.unauthorised_in_row = 0;
    }

    fn handle_ready(&mut self, outcome: Outcome) {
        if outcome != Outcome::Answered(Some(401)) {
            self.unauthorised_in_row = 0;
        }
        match outcome {
            Outcome::Answered(Some(200) | None) => {
                self.ready = Ready::Yes;
                self.detail = "ready".into();
            }
            Outcome::Answered(Some(401)) => {
                self.unauthorised_in_row = self.unauthorised_in_row.saturating_add(1);
                if self.unauthorised_in_row >= LASTING_UNAUTHORISED {
                    self.ready = Ready::Unauthorised;
                    self.detail = "readiness unknown: it wants credentials (401)".into();
                }
            }
            Outcome::Answered(Some(status)) => {
                self.ready = Ready::No;
                self.detail = format!("not ready (status {status})");
            }
            Outcome::Silent => {
                self.ready = Ready::No;
                self.detail = "no answer about readiness in time".into();
            }
            // *Alive* meets the same refusal and judges it.
            Outcome::Refused | Outcome::Broken => {}
        }
    }

    fn note_state(&mut self, now: Instant) -> Option<OriginState> {
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
            Alive::Yes => match self.ready {
                Ready::Unknown => OriginState::Unknown,
                Ready::Yes | Ready::Unauthorised => OriginState::Ready,
                Ready::No => OriginState::Unready,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "an origin for virtual time")]

    use super::*;

    struct Bench {
        health: Health,
        now: Instant,
    }

    impl Bench {
        fn new(asks_ready: bool) -> Self {
            let now = Instant::now();
            let interval = Duration::from_secs(1);
            Self { health: Health::new(HealthConfig { interval, fall: 2, asks_ready }, now), now }
        }

        fn alive(&mut self, outcome: Outcome) -> OriginState {
            self.health.handle_outcome(Question::Alive, outcome, self.now);
            self.health.state()
        }

        fn ready(&mut self, outcome: Outcome) -> OriginState {
            self.health.handle_outcome(Question::Ready, outcome, self.now);
            self.health.state()
        }
    }

    const OK: Outcome = Outcome::Answered(Some(200));

    #[test]
    fn becomes_ready_only_when_both_questions_say_so() {
        let mut bench = Bench::new(true);
        assert_eq!(bench.health.state(), OriginState::Unknown);
        assert_eq!(bench.alive(OK), OriginState::Unknown);
        assert_eq!(bench.ready(Outcome::Answered(Some(403))), OriginState::Unready);
        assert_eq!(bench.ready(Outcome::Answered(Some(500))), OriginState::Unready);
        assert_eq!(bench.ready(OK), OriginState::Ready);
    }

    #[test]
    fn refused_counts_at_once_and_silence_after_two() {
        let mut bench = Bench::new(true);
        bench.alive(OK);
        bench.ready(OK);
        assert_eq!(bench.alive(Outcome::Silent), OriginState::Ready);
        assert_eq!(bench.alive(Outcome::Silent), OriginState::Hung);
        assert_eq!(bench.alive(OK), OriginState::Unknown);
        assert_eq!(bench.ready(OK), OriginState::Ready);
        assert_eq!(bench.alive(Outcome::Refused), OriginState::Refusing);
    }

    #[test]
    fn a_refused_session_counts_at_once_and_is_followed_up() {
        let mut bench = Bench::new(true);
        bench.health.poll_probe(bench.now);
        bench.alive(OK);
        bench.ready(OK);
        let state = bench.health.handle_refused(bench.now);
        assert_eq!(state, Some(OriginState::Refusing));
        assert_eq!(bench.health.poll_probe(bench.now), Some(Question::Ready));
        assert_eq!(bench.health.poll_timeout(), Some(bench.now + Duration::from_millis(250)));
        bench.now += Duration::from_millis(250);
        assert_eq!(bench.health.poll_probe(bench.now), Some(Question::Alive));
        assert_eq!(bench.ready(Outcome::Refused), OriginState::Refusing);
        assert_eq!(bench.alive(OK), OriginState::Unknown, "to be found ready anew");
        assert_eq!(bench.health.poll_probe(bench.now), Some(Question::Ready), "at once");
    }

    #[test]
    fn an_instance_that_answers_nonsense_is_not_called_hung() {
        let mut bench = Bench::new(true);
        bench.alive(OK);
        bench.ready(OK);
        assert_eq!(bench.alive(Outcome::Broken), OriginState::Ready);
        assert_eq!(bench.alive(Outcome::Broken), OriginState::Unready);
        assert!(bench.health.detail().contains("ca-file"), "{}", bench.health.detail());
        assert_eq!(bench.alive(Outcome::Silent), OriginState::Hung);
    }

    #[test]
    fn one_lost_probe_between_answers_changes_nothing() {
        let mut bench = Bench::new(true);
        bench.alive(OK);
        bench.ready(OK);
        for _ in 0..5 {
            assert_eq!(bench.alive(Outcome::Silent), OriginState::Ready);
            assert_eq!(bench.alive(OK), OriginState::Ready);
        }
    }

    #[test]
    fn a_lasting_401_leaves_the_decision_to_alive() {
        let mut bench = Bench::new(true);
        bench.alive(Outcome::Answered(Some(401)));
        assert_eq!(bench.ready(Outcome::Answered(Some(401))), OriginState::Unknown);
        assert_eq!(bench.ready(Outcome::Answered(Some(401))), OriginState::Ready);
        assert!(bench.health.wants_credentials());
        assert_eq!(bench.ready(Outcome::Answered(Some(500))), OriginState::Unready);
        assert!(!bench.health.wants_credentials());
    }

    #[test]
    fn after_a_restart_the_old_yes_is_forgotten() {
        let mut bench = Bench::new(true);
        bench.alive(OK);
        bench.ready(OK);
        bench.alive(Outcome::Refused);
        bench.ready(Outcome::Refused);
        assert_eq!(bench.alive(OK), OriginState::Unknown);
        assert_eq!(bench.ready(Outcome::Answered(Some(403))), OriginState::Unready);
    }

    #[test]
    fn after_a_restart_one_401_is_not_a_lasting_one() {
        let mut bench = Bench::new(true);
        bench.alive(OK);
        bench.ready(Outcome::Answered(Some(401)));
        assert_eq!(bench.ready(Outcome::Answered(Some(401))), OriginState::Ready);
        bench.alive(Outcome::Refused);
        bench.alive(OK);
        assert_eq!(bench.ready(Outcome::Answered(Some(401))), OriginState::Unknown);
    }

    #[test]
    fn another_way_of_asking_keeps_what_is_known() {
        let mut bench = Bench::new(false);
        bench.health.poll_probe(bench.now);
        assert_eq!(bench.alive(Outcome::Answered(None)), OriginState::Ready);
        let faster =
            HealthConfig { interval: Duration::from_millis(200), fall: 1, asks_ready: false };
        assert_eq!(bench.health.set_config(faster.clone(), bench.now), None);
        assert_eq!(bench.health.poll_timeout(), Some(bench.now + faster.interval));
        assert_eq!(bench.alive(Outcome::Silent), OriginState::Hung);
        bench.alive(OK);
        let asking = HealthConfig { asks_ready: true, ..faster };
        let state = bench.health.set_config(asking.clone(), bench.now);
        assert_eq!(state, Some(OriginState::Unknown));
        assert_eq!(bench.health.poll_probe(bench.now), Some(Question::Ready));
        assert_eq!(bench.ready(OK), OriginState::Ready);
        let later = bench.now + asking.interval;
        let tcp = HealthConfig { asks_ready: false, ..asking };
        bench.health.poll_probe(later);
        bench.health.set_config(tcp, later);
        assert_eq!(bench.ready(Outcome::Answered(Some(500))), OriginState::Ready);
    }

    #[test]
    fn tcp_mode_asks_one_question() {
        let mut bench = Bench::new(false);
        assert_eq!(bench.health.poll_probe(bench.now), Some(Question::Alive));
        assert_eq!(bench.health.poll_probe(bench.now), None);
        assert_eq!(bench.alive(Outcome::Answered(None)), OriginState::Ready);
    }

    #[test]
    fn a_slow_answer_holds_back_the_next_probe_of_the_same_question_only() {
        let mut bench = Bench::new(true);
        let start = bench.now;
        assert_eq!(bench.health.poll_probe(start), Some(Question::Alive));
        assert_eq!(bench.health.poll_probe(start), Some(Question::Ready));
        bench.alive(OK);
        let later = start + Duration::from_secs(3);
        assert_eq!(bench.health.poll_timeout(), Some(start + Duration::from_secs(1)));
        assert_eq!(bench.health.poll_probe(later), Some(Question::Alive));
        assert_eq!(bench.health.poll_probe(later), None);
        assert_eq!(bench.health.poll_timeout(), None);
    }
}
