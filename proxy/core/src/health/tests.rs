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
        let config = HealthConfig { interval, fall: 2, asks_ready, asks_live: false };
        Self { health: Health::new(config, now), now }
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
fn the_failing_checks_are_reported_until_an_answer_clears_them() {
    let mut bench = Bench::new(true);
    let config = HealthConfig { asks_live: true, ..bench.health.config.clone() };
    bench.health.set_config(config, bench.now);
    let etcd = || FailingChecks::parse(b"[-]etcd failed: reason withheld\n");
    bench.alive(OK);
    bench.health.handle_checks(etcd());
    assert_eq!(bench.ready(Outcome::Answered(Some(500))), OriginState::Unready);
    assert_eq!(bench.health.detail(), "not ready: etcd");
    bench.health.handle_checks(FailingChecks::default());
    bench.ready(Outcome::Answered(Some(503)));
    assert_eq!(bench.health.detail(), "not ready (status 503)");
    bench.ready(OK);
    bench.health.handle_checks(etcd());
    bench.ready(Outcome::Answered(Some(500)));
    bench.health.handle_outcome(Question::Live, Outcome::Answered(Some(500)), bench.now);
    assert_eq!(bench.health.state(), OriginState::Stalled);
    assert!(bench.health.detail().ends_with("Failing checks: etcd"), "{}", bench.health.detail());
    bench.alive(Outcome::Refused);
    assert!(bench.health.failing().is_empty(), "what was said before says nothing any more");
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
    bench.ready(Outcome::Broken);
    assert_eq!(bench.health.lasting_denial(), Some(401));
    assert_eq!(bench.ready(Outcome::Answered(Some(500))), OriginState::Unready);
    assert_eq!(bench.health.lasting_denial(), None);
}

#[test]
fn a_lasting_403_is_not_ready_and_is_reported() {
    let mut bench = Bench::new(true);
    bench.alive(OK);
    for in_row in 1..=LASTING_FORBIDDEN {
        assert_eq!(bench.health.lasting_denial(), None, "an apiserver that starts, {in_row}");
        assert_eq!(bench.ready(Outcome::Answered(Some(403))), OriginState::Unready);
    }
    bench.ready(Outcome::Broken);
    assert_eq!(bench.health.lasting_denial(), Some(403));
    bench.ready(OK);
    assert_eq!(bench.health.lasting_denial(), None);
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
    let interval = Duration::from_millis(200);
    let faster = HealthConfig { interval, fall: 1, asks_ready: false, asks_live: false };
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

/// How an instance reacts to a probe.
#[derive(Clone, Copy)]
enum Mood {
    /// Answers at once.
    Well,
    /// It drains: ready fails after this time, live succeeds after as long.
    Drains(Duration),
    /// etcd fails at once.
    Fails,
    /// etcd stalls: both fail after two seconds; requests that need no etcd are answered.
    Stalls,
    /// Answers after this time.
    Slow(Duration),
}

/// An apiserver with its prober in virtual time; `phase` is the position of its probes at the
/// start.
struct Apiserver {
    health: Health,
    now: Instant,
    answers: Vec<(Instant, Question, Outcome)>,
    states: Vec<(Duration, OriginState)>,
    /// How many probes were *ready*.
    asked_ready: usize,
    start: Instant,
}

impl Apiserver {
    fn new(phase: Duration) -> Self {
        let start = Instant::now();
        let interval = Duration::from_secs(1);
        let config = HealthConfig { interval, fall: 2, asks_ready: true, asks_live: true };
        let mut it = Self {
            health: Health::new(config, start),
            now: start,
            answers: Vec::new(),
            states: Vec::new(),
            asked_ready: 0,
            start,
        };
        it.run(Duration::from_secs(20) + phase, Mood::Well);
        it.start = it.now;
        it.states.clear();
        assert_eq!(it.health.state(), OriginState::Ready);
        it
    }

    fn run(&mut self, time: Duration, mood: Mood) {
        let end = self.now + time;
        loop {
            self.ask(mood);
            let answer = self.answers.iter().map(|it| it.0).min();
            let next = answer.into_iter().chain(self.health.poll_timeout()).min();
            let next = next.filter(|next| *next <= end).unwrap_or(end);
            self.now = self.now.max(next);
            let mut news = self.health.handle_timeout(self.now);
            let now = self.now;
            for (_, question, outcome) in self.answers.extract_if(.., |it| it.0 <= now) {
                news = self.health.handle_outcome(question, outcome, now).or(news);
            }
            self.states.extend(news.map(|state| (self.now - self.start, state)));
            if next >= end {
                return;
            }
        }
    }

    fn ask(&mut self, mood: Mood) {
        while let Some(question) = self.health.poll_probe(self.now) {
            self.asked_ready += usize::from(question == Question::Ready);
            let failed = Outcome::Answered(Some(500));
            let soon = Duration::from_millis(5);
            let (after, outcome) = match (mood, question) {
                (Mood::Drains(time), Question::Ready) => (time, failed),
                (Mood::Fails, Question::Ready | Question::Live) => (soon, failed),
                (Mood::Stalls, Question::Ready | Question::Live) => {
                    (Duration::from_secs(2), failed)
                }
                (Mood::Slow(time), _) | (Mood::Drains(time), Question::Live) => (time, OK),
                (_, Question::Alive) | (Mood::Well, _) => (soon, OK),
            };
            self.answers.push((self.now + after, question, outcome));
        }
    }

    fn at(&self, state: OriginState) -> Option<Duration> {
        self.states.iter().find(|it| it.1 == state).map(|it| it.0)
    }
}

/// K2: in doubt within a second, stalled within 2.5 s; and of several that stall together every one
/// is in doubt before any counts as stalled, so no session moves from one to another that stalls
/// too.
#[test]
fn a_stall_is_doubted_and_then_distinguished_from_a_drain_in_time() {
    let (mut last_doubt, mut first_stall) = (Duration::ZERO, Duration::MAX);
    for phase in (0..1000).step_by(25) {
        let mut apiserver = Apiserver::new(Duration::from_millis(phase));
        apiserver.run(Duration::from_secs(10), Mood::Stalls);
        let doubt = apiserver.at(OriginState::Unready).expect("in doubt");
        let stall = apiserver.at(OriginState::Stalled).expect("stalled");
        assert!(doubt <= Duration::from_millis(1010), "in doubt after {doubt:?}");
        assert!(stall <= Duration::from_millis(2510), "stalled after {stall:?}");
        last_doubt = last_doubt.max(doubt);
        first_stall = first_stall.min(stall);
        assert_eq!(apiserver.states.len(), 2, "no flapping: {:?}", apiserver.states);
        apiserver.run(Duration::from_secs(3), Mood::Well);
        assert_eq!(apiserver.health.state(), OriginState::Ready);
    }
    let margin = first_stall.checked_sub(last_doubt).expect("all are in doubt before one stalls");
    assert!(margin >= Duration::from_millis(700), "only {margin:?}");
}

#[test]
fn a_stall_ends_with_the_second_answer() {
    let both = [Question::Ready, Question::Live];
    for order in [both, [Question::Live, Question::Ready]] {
        let mut apiserver = Apiserver::new(Duration::ZERO);
        apiserver.run(Duration::from_secs(10), Mood::Stalls);
        let states = order.map(|question| {
            apiserver.health.handle_outcome(question, OK, apiserver.now);
            apiserver.health.state()
        });
        assert_eq!(states, [OriginState::Stalled, OriginState::Ready], "{order:?}");
    }
    // It drains next: both are answered, and only live succeeds. Where answers take long, one probe
    // or the other is always pending.
    for time in [5, 600, 1100] {
        let mut apiserver = Apiserver::new(Duration::ZERO);
        apiserver.run(Duration::from_secs(10), Mood::Stalls);
        apiserver.run(Duration::from_secs(5), Mood::Drains(Duration::from_millis(time)));
        assert_eq!(apiserver.health.state(), OriginState::Unready, "{time} ms");
    }
}

/// An apiserver repeats its last error for up to a second. After a stall of all its sessions may
/// stay; where another one was ready all the time, etcd fails here alone.
#[test]
fn one_that_fails_at_once_after_a_stall_of_all_is_unready_and_soon_ready() {
    let judged = [(true, OriginState::Unready), (false, OriginState::Stalled)];
    // When it recovers must not depend on the position of its probes.
    let all = [0, 250, 500, 750].into_iter().flat_map(|phase| judged.map(|it| (phase, it)));
    for (phase, (is_first, state)) in all {
        let mut apiserver = Apiserver::new(Duration::ZERO);
        apiserver.run(Duration::from_secs(10), Mood::Stalls);
        apiserver.health.handle_other(is_first, apiserver.now);
        apiserver.run(Duration::from_secs(2), Mood::Stalls);
        assert_eq!(apiserver.health.state(), OriginState::Stalled, "it hangs still");
        apiserver.run(Duration::from_millis(5000 + phase), Mood::Fails);
        assert_eq!(apiserver.health.state(), state, "{phase} ms");
        apiserver.run(Duration::from_millis(255), Mood::Well);
        assert_eq!(apiserver.health.state(), OriginState::Ready, "{phase} ms");
    }
}

/// Only an instance that was ready can have stalled together with others, and once it is ready
/// again its next failures count as usual.
#[test]
fn the_recovery_of_others_excuses_only_one_that_stalled_with_them() {
    let mut apiserver = Apiserver::new(Duration::ZERO);
    apiserver.health.handle_other(true, apiserver.now);
    apiserver.run(Duration::from_secs(10), Mood::Fails);
    assert_eq!(apiserver.health.state(), OriginState::Stalled, "it was ready then");

    let mut apiserver = Apiserver::new(Duration::ZERO);
    apiserver.run(Duration::from_secs(10), Mood::Stalls);
    apiserver.health.handle_other(true, apiserver.now);
    apiserver.run(Duration::from_secs(5), Mood::Well);
    apiserver.run(Duration::from_secs(10), Mood::Fails);
    assert_eq!(apiserver.health.state(), OriginState::Stalled, "it has been ready since");
}

/// A broken connection says nothing about requests, however soon it breaks.
#[test]
fn after_a_stall_of_all_only_an_answer_shows_that_requests_hang_no_longer() {
    let mut apiserver = Apiserver::new(Duration::ZERO);
    apiserver.run(Duration::from_secs(10), Mood::Stalls);
    apiserver.health.handle_other(true, apiserver.now);
    apiserver.run(Duration::from_secs(5), Mood::Fails);
    assert_eq!(apiserver.health.state(), OriginState::Unready);
    while apiserver.health.poll_probe(apiserver.now) != Some(Question::Ready) {
        apiserver.now += Duration::from_millis(1);
    }
    apiserver.health.handle_outcome(Question::Ready, Outcome::Broken, apiserver.now);
    assert_eq!(apiserver.health.state(), OriginState::Stalled);
}

/// Nobody waits for an instance that starts: it is probed as often as usual.
#[test]
fn the_recovery_of_others_does_not_hurry_one_that_starts() {
    let mut restarted = Apiserver::new(Duration::ZERO);
    restarted.run(Duration::from_secs(10), Mood::Stalls);
    restarted.health.handle_other(true, restarted.now);
    restarted.health.handle_outcome(Question::Alive, Outcome::Refused, restarted.now);
    let mut started = Apiserver::new(Duration::ZERO);
    started.health.handle_outcome(Question::Alive, Outcome::Refused, started.now);
    started.run(Duration::from_secs(5), Mood::Fails);
    started.health.handle_other(true, started.now);
    for (which, mut apiserver) in [("restarted", restarted), ("started", started)] {
        apiserver.run(Duration::from_secs(5), Mood::Fails);
        assert_eq!(apiserver.health.state(), OriginState::Unready, "{which}");
        let before = apiserver.asked_ready;
        apiserver.run(Duration::from_secs(10), Mood::Fails);
        assert_eq!(apiserver.asked_ready - before, 10, "{which}");
    }
}

#[test]
fn a_drain_is_no_stall() {
    let mut apiserver = Apiserver::new(Duration::ZERO);
    apiserver.run(Duration::from_secs(60), Mood::Drains(Duration::from_millis(5)));
    let all: Vec<OriginState> = apiserver.states.iter().map(|it| it.1).collect();
    assert_eq!(all, [OriginState::Unready]);
}

#[test]
fn an_instance_that_starts_fails_both_questions_and_is_not_stalled() {
    let now = Instant::now();
    let interval = Duration::from_secs(1);
    let config = HealthConfig { interval, fall: 2, asks_ready: true, asks_live: true };
    let mut health = Health::new(config, now);
    health.handle_outcome(Question::Alive, OK, now);
    for _ in 0..10 {
        for question in [Question::Ready, Question::Live] {
            health.handle_outcome(question, Outcome::Answered(Some(500)), now);
        }
        assert_eq!(health.state(), OriginState::Unready);
    }
}

#[test]
fn slowness_within_reason_changes_nothing_and_a_herd_excuses_more() {
    let slow = |ms| Mood::Slow(Duration::from_millis(ms));
    let mut apiserver = Apiserver::new(Duration::ZERO);
    apiserver.run(Duration::from_secs(10), slow(450));
    assert!(apiserver.states.is_empty(), "{:?}", apiserver.states);
    let mut apiserver = Apiserver::new(Duration::ZERO);
    apiserver.health.handle_dials(MAX_CALM_DIALS + 1);
    apiserver.run(Duration::from_secs(10), slow(1400));
    assert!(apiserver.states.is_empty(), "{:?}", apiserver.states);
    // An answer that is slow without a reason raises doubt, and becomes usual.
    let mut apiserver = Apiserver::new(Duration::ZERO);
    apiserver.run(Duration::from_secs(2), slow(900));
    let doubt = apiserver.at(OriginState::Unready).expect("in doubt");
    assert!(doubt <= Duration::from_millis(510), "{doubt:?}");
    apiserver.run(Duration::from_secs(30), slow(900));
    assert_eq!(apiserver.health.state(), OriginState::Ready);
}

#[test]
fn a_daemon_that_is_late_itself_does_not_judge() {
    let mut apiserver = Apiserver::new(Duration::ZERO);
    let due = apiserver.health.poll_timeout().expect("asked again");
    apiserver.now = due;
    while apiserver.health.poll_probe(due).is_some() {}
    // The prober does not run for two seconds, and the answers are waiting.
    let late = due + Duration::from_secs(2);
    assert_eq!(apiserver.health.handle_timeout(late), None);
    assert_eq!(apiserver.health.handle_outcome(Question::Ready, OK, late), None);
}

#[test]
fn another_instance_that_fails_makes_this_one_be_asked_at_once_but_not_again_and_again() {
    let mut apiserver = Apiserver::new(Duration::ZERO);
    let due = |it: &Apiserver| it.health.poll_timeout().expect("asked again");
    apiserver.run(Duration::from_millis(600), Mood::Well);
    apiserver.health.handle_other(false, apiserver.now);
    assert_eq!(due(&apiserver), apiserver.now);
    assert_eq!(apiserver.health.poll_probe(apiserver.now), Some(Question::Ready));
    apiserver.health.handle_outcome(Question::Ready, OK, apiserver.now);
    let asked = apiserver.now;
    apiserver.health.handle_other(false, apiserver.now);
    while apiserver.health.poll_probe(apiserver.now) != Some(Question::Ready) {
        apiserver.now += Duration::from_millis(1);
    }
    assert_eq!(apiserver.now - asked, Duration::from_millis(250));
}

#[test]
fn another_instance_that_fails_makes_this_one_be_asked_soon_whatever_the_interval() {
    for (interval_ms, wait_ms) in [(300_000, 250), (400, 100)] {
        let now = Instant::now();
        let interval = Duration::from_millis(interval_ms);
        let config = HealthConfig { interval, fall: 2, asks_ready: true, asks_live: true };
        let mut health = Health::new(config, now);
        while let Some(question) = health.poll_probe(now) {
            health.handle_outcome(question, OK, now);
        }
        health.handle_other(false, now);
        assert_eq!(health.poll_timeout(), Some(now + Duration::from_millis(wait_ms)));
    }
}
