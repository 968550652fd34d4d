//! The life of a client's session: the daemon's own search for an origin (`Connect`), whose
//! attempts are played out over tunnels and links, then requests until its client ends it, it is
//! moved, or it is reset.
//!
//! A request whose session breaks is sent again once, in a new session, as clients of an apiserver
//! do.

use std::time::Duration;

use super::clients::{Attempt, OtherSearches, Request, Session};
use super::{Event, World};

use crate::brain::{Action, Attempted, Candidate, Line, SessionId, Verdict};
use crate::flight::{Flight, Payload, SessionRef, Step, StreamPath};
use crate::instance::{ANSWER_TIME, Instance};
use crate::level::{Follow, Judge, Level};
use crate::scenario::{Lie, Load};

/// Requests of an open session are counted from here, attempts of its search from 0.
const FIRST_REQUEST: u32 = 1 << 16;
/// Clients of a node that the policy `source` distinguishes.
const CLIENTS: u64 = 8;

/// The event that a session waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Timer {
    /// The search must be polled.
    Ask,
    /// The local instance has answered this attempt, or refused.
    Own { id: u32, good: bool },
    /// The answer to this request from outside the mesh.
    Outside(u32),
    /// The next request.
    Next,
    /// The client has given up this request.
    Given(u32),
    /// The client ends the session.
    Done,
    /// Its path has ended.
    Cut,
    /// The node checks whether it should end.
    Look,
    /// This node, which relays or serves it, checks that.
    Carried(usize),
}

impl Session {
    /// Whether an answer to this step is still awaited: to an attempt, or to the current request.
    pub(super) fn waits_for(&self, step: u32) -> bool {
        if self.is_open() {
            step == self.step && self.request.is_some()
        } else {
            self.attempts.iter().any(|it| it.id == step)
        }
    }
}

impl World {
    /// A node's clients start to arrive.
    pub(super) fn clients_begin(&mut self, node: usize) {
        if self.story.load(node).is_some() {
            self.next_client(node, true);
        }
    }

    fn next_client(&mut self, node: usize, is_first: bool) {
        let Some(load) = &self.story.scenario.load else { return };
        let rng = &mut self.nodes[node].clients.rng;
        let Some(pause) = load.next_arrival(is_first, rng) else { return };
        let event = Event::Arrival { node, boot: self.nodes[node].boot };
        self.queue.push(self.scene.now + pause, event);
    }

    pub(super) fn client_arrives(&mut self, node: usize) {
        self.next_client(node, false);
        for _ in 0..self.story.scenario.load.as_ref().map_or(0, Load::at_once) {
            let Some(load) = &self.story.scenario.load else { return };
            let hold = load.hold(&mut self.nodes[node].clients.rng);
            let request = Request { since: self.scene.now, repeated: false };
            self.begin(node, request, self.scene.now + hold);
        }
    }

    pub(super) fn begin(&mut self, node: usize, request: Request, until: Duration) {
        self.scene.measures.sessions.begun += 1;
        let now = self.scene.now;
        let Some(brain) = &self.nodes[node].brain else { return };
        let turn = self.nodes[node].clients.tickets;
        let client = node as u64 * CLIENTS + turn % CLIENTS;
        let ticket = brain.ticket(turn, client);
        let search = brain.search(ticket, self.epoch + now);
        let clients = &mut self.nodes[node].clients;
        clients.tickets += 1;
        self.nodes[node].process.tally.total += 1;
        let clients = &mut self.nodes[node].clients;
        match clients.add(search, request, now, until) {
            Some((slot, number)) => self.ask(SessionRef { node, slot, number }),
            None => self.request_over(node, request, false),
        }
    }

    /// Carries out the actions of a session's search, and schedules its next poll.
    fn ask(&mut self, of: SessionRef) {
        let (now, SessionRef { node, slot, number }) = (self.instant(), of);
        loop {
            let clients = &mut self.nodes[node].clients;
            let Some(found) = clients.sessions.get_mut(slot as usize) else { return };
            let Some(session) = found.as_mut().filter(|it| it.number == number) else { return };
            let Some(search) = &mut session.search else { return };
            let (ledger, service) = (&clients.ledger, &clients.service);
            let searches = &mut clients.searches;
            let mut others = OtherSearches { ledger, service, searches };
            match search.poll(now, &mut others) {
                Some(Action::Start { id, candidate, hedge, .. }) => {
                    self.scene.measures.sessions.hedged += u64::from(hedge);
                    self.scene.measures.sessions.attempts += u64::from(!hedge && id > 0);
                    if id == 0 {
                        self.check_choice(node, &candidate.origin.line);
                    }
                    self.attempt(of, id, &candidate);
                }
                Some(Action::Cancel { id, .. }) => {
                    self.drop_attempt(node, slot, id);
                }
                Some(Action::GiveUp) => return self.give_up(node, slot),
                None => {
                    let Some(due) = search.poll_timeout() else { return };
                    let due = due.saturating_duration_since(self.epoch);
                    let due = due.max(self.scene.now);
                    if session.asked_at.is_none_or(|at| due < at || at < self.scene.now) {
                        session.asked_at = Some(due);
                        self.session_later(of, due - self.scene.now, Timer::Ask);
                    }
                    return;
                }
            }
        }
    }

    fn attempt(&mut self, session: SessionRef, id: u32, candidate: &Candidate) {
        let SessionRef { node, slot, .. } = session;
        let (line, since) = (candidate.origin.line, self.scene.now);
        let way = self.scene.account.way(&line);
        let entry = self.nodes[node].clients.enter(line, slot);
        self.session(node, slot).attempts.push(Attempt { id, entry, line, way, since });
        self.tell_busy(node);
        let Some(way) = way else {
            // A connection and an answered hello: two round trips.
            let wait = self.story.scenario.fallback_rtt() * 2 + ANSWER_TIME;
            return self.session_later(session, wait, Timer::Own { id, good: true });
        };
        if way.origin == node {
            let (wait, good) = match self.scene.account.instances[node].unwrap_or(Instance::Down) {
                Instance::Ready | Instance::Unready | Instance::Stalled => (ANSWER_TIME, true),
                Instance::Down => (Duration::ZERO, false),
                Instance::Hung => return self.accepted(session, id),
            };
            return self.session_later(session, wait, Timer::Own { id, good });
        }
        let (what, bytes) = self.opening(node, way.hop);
        let flight = Flight::new(session, way, id, what, bytes);
        self.send(node, way.hop, Payload::Flight(Box::new(flight)));
    }

    fn drop_attempt(&mut self, node: usize, slot: u32, id: u32) -> Option<Attempt> {
        let attempts = &mut self.session(node, slot).attempts;
        let at = attempts.iter().position(|attempt| attempt.id == id)?;
        let attempt = attempts.remove(at);
        self.quit(node, attempt.entry);
        Some(attempt)
    }

    /// Informs every search of a node of its new route.
    pub(super) fn reroute(&mut self, node: usize) {
        let now = self.instant();
        let Some(brain) = &self.nodes[node].brain else { return };
        let route = brain.route().clone();
        let mut asked = Vec::new();
        for (slot, session) in (0..).zip(&mut self.nodes[node].clients.sessions) {
            let Some(session) = session else { continue };
            if let Some(search) = &mut session.search {
                search.handle_route(route.clone(), now);
                asked.push(SessionRef { node, slot, number: session.number });
            }
        }
        for session in asked {
            self.session_later(session, Duration::ZERO, Timer::Ask);
        }
    }

    pub(super) fn answered(&mut self, node: usize, flight: Flight) {
        let clients = &mut self.nodes[node].clients;
        let Some(session) = clients.get(flight.session) else { return };
        if !session.waits_for(flight.step) {
            return;
        }
        let (slot, id) = (flight.session.slot, flight.step);
        match flight.what {
            Step::Accepted => self.accepted(flight.session, id),
            Step::Refused if session.is_open() => self.broken(node, slot),
            Step::Refused => self.failed(flight.session, id, Verdict::Refused),
            Step::Opened => self.opened(node, slot, id),
            Step::Answer => {
                if let Some(request) = session.request.take() {
                    let is_done = session.until <= self.scene.now;
                    self.request_over(node, request, true);
                    if is_done {
                        self.end(node, slot);
                    }
                }
            }
            Step::Hello | Step::HelloBack | Step::Open | Step::Request => {}
        }
    }

    /// An attempt's instance has accepted the connection and has yet to answer.
    fn accepted(&mut self, of: SessionRef, id: u32) {
        let now = self.instant();
        if let Some(search) = &mut self.session(of.node, of.slot).search {
            search.handle_connected(id, now);
        }
        self.ask(of);
    }

    pub(super) fn session_timer(&mut self, of: SessionRef, timer: Timer) {
        let SessionRef { node, slot, .. } = of;
        let Some(session) = self.nodes[node].clients.get(of) else { return };
        let (step, is_open) = (session.step, session.is_open());
        match timer {
            Timer::Ask => {
                session.asked_at = None;
                self.ask(of);
            }
            Timer::Own { id, good } if !is_open => {
                if good {
                    self.opened(node, slot, id);
                } else {
                    self.failed(of, id, Verdict::Refused);
                }
            }
            Timer::Outside(request) if request == step && is_open => {
                let (request, until) = (session.request.take(), session.until);
                if let Some(request) = request {
                    self.request_over(node, request, true);
                }
                if until <= self.scene.now {
                    self.end(node, slot);
                }
            }
            Timer::Next if is_open => self.next_request(node, slot),
            Timer::Given(request) if request == step && session.request.is_some() => {
                let session = self.end(node, slot);
                if let Some(request) = session.and_then(|it| it.request) {
                    self.request_over(node, request, false);
                }
            }
            // Waits for the current request; its own timer then ends the session.
            Timer::Done if is_open && session.request.is_none() => {
                self.end(node, slot);
            }
            Timer::Cut if is_open => self.broken(node, slot),
            Timer::Look => self.look_at(node, slot),
            Timer::Carried(at) => self.look_at_carried(at, of),
            _ => {}
        }
    }

    fn failed(&mut self, of: SessionRef, id: u32, verdict: Verdict) {
        self.drop_attempt(of.node, of.slot, id);
        if let Some(search) = &mut self.session(of.node, of.slot).search {
            search.handle_failure(id, Some(verdict));
        }
        self.ask(of);
    }

    fn opened(&mut self, node: usize, slot: u32, id: u32) {
        let now = self.scene.now;
        let session = self.session(node, slot);
        let Some(mut search) = session.search.take() else { return };
        search.handle_answer(id);
        let verdicts = search.take_verdicts();
        session.step = FIRST_REQUEST;
        let losers: Vec<Attempt> = session.attempts.extract_if(.., |it| it.id != id).collect();
        let target = session.target().copied();
        let (since, until) = (session.since, session.until);
        let request = session.request.take();
        let session = SessionRef { node, slot, number: session.number };
        let clients = &mut self.nodes[node].clients;
        clients.opened += 1;
        clients.searches.end();
        if let Some(target) = &target {
            clients.searches.note_answer(target.line, self.epoch + now);
        }
        self.nodes[node].process.tally.connected(now.saturating_sub(since));
        for loser in losers {
            self.quit(node, loser.entry);
        }
        let connected = target.filter(|it| !matches!(it.line, Line::Direct(_)));
        let connected = connected.map(|it| (it.line, Verdict::Connected(now - it.since)));
        self.tell_verdicts(node, verdicts, connected);
        self.scene.measures.sessions.opened += 1;
        if let Some(target) = target {
            self.scene.measures.sessions.relayed +=
                u64::from(target.way.is_some_and(StreamPath::is_relayed));
            self.scene.measures.sessions.outside += u64::from(target.way.is_none());
            self.measure_choice(node, target.way, now.saturating_sub(since));
            self.nodes[node].clients.ledger.handle_carried(target.entry, true, self.epoch + now);
            self.carry(&target, session);
            self.look_at(node, slot);
        }
        if let Some(request) = request {
            self.request_over(node, request, true);
        }
        self.session_later(session, until.saturating_sub(now), Timer::Done);
        self.request_later(node, slot);
    }

    fn tell_verdicts(
        &mut self,
        node: usize,
        mut verdicts: Vec<Attempted>,
        connected: Option<(Line, Verdict)>,
    ) {
        if !verdicts.is_empty() || connected.is_some() {
            self.with_brain(node, |brain, now, _| {
                let connected = connected.iter();
                verdicts.extend(connected.map(|(line, verdict)| Attempted {
                    line: *line,
                    verdict: *verdict,
                    began: now,
                }));
                brain.verdicts(verdicts, now);
            });
        }
    }

    fn request_later(&mut self, node: usize, slot: u32) {
        let Some(load) = &self.story.scenario.load else { return };
        let pause = load.next_request(&mut self.nodes[node].clients.rng);
        let Some(pause) = pause else { return };
        let Session { number, until, .. } = *self.session(node, slot);
        if self.scene.now + pause < until {
            self.session_later(SessionRef { node, slot, number }, pause, Timer::Next);
        }
    }

    fn next_request(&mut self, node: usize, slot: u32) {
        let now = self.scene.now;
        let Some(load) = &self.story.scenario.load else { return };
        let bytes = u32::try_from(load.request_bytes).expect("at most MAX_BYTES");
        let given = Duration::from_secs_f64(load.timeout_s);
        self.request_later(node, slot);
        let session = self.session(node, slot);
        // One request at a time: a client that waits for an answer sends no other.
        if session.request.is_some() {
            return;
        }
        session.step += 1;
        session.request = Some(Request { since: now, repeated: false });
        let (step, target) = (session.step, session.target().map(|target| target.way));
        let session = SessionRef { node, slot, number: session.number };
        self.session_later(session, given, Timer::Given(step));
        match target {
            Some(None) => {
                let wait = self.story.scenario.fallback_rtt() + ANSWER_TIME;
                self.session_later(session, wait, Timer::Outside(step));
            }
            Some(Some(way)) if way.origin != node => {
                let flight = Flight::new(session, way, step, Step::Request, bytes);
                self.send(node, way.hop, Payload::Flight(Box::new(flight)));
            }
            _ => self.ask_own(node, slot),
        }
        // A client need not wait for the reset of its session.
        if self.nodes[node].clients.get(session).is_some() {
            self.look_at(node, slot);
        }
    }

    fn ask_own(&mut self, node: usize, slot: u32) {
        match self.scene.account.instances[node].unwrap_or(Instance::Down) {
            Instance::Ready | Instance::Unready => {
                if let Some(request) = self.session(node, slot).request.take() {
                    let since = request.since.checked_sub(ANSWER_TIME).unwrap_or_default();
                    self.request_over(node, Request { since, ..request }, true);
                }
            }
            Instance::Stalled | Instance::Hung => {}
            Instance::Down => self.broken(node, slot),
        }
    }

    /// An open session's path has ended. Its client reconnects for its remaining requests.
    pub(super) fn broken(&mut self, node: usize, slot: u32) {
        let Some(session) = self.end(node, slot) else { return };
        self.scene.measures.sessions.broken += 1;
        self.scene.measures.second(self.scene.now).broken += 1;
        let fresh = Request { since: self.scene.now, repeated: true };
        self.come_again(node, &session, fresh);
    }

    /// The client of an ended session reconnects: for the unanswered request, unless that was
    /// already repeated, or else for a `fresh` one.
    pub(super) fn come_again(&mut self, node: usize, session: &Session, fresh: Request) {
        let again = match session.request {
            Some(request) if request.repeated => {
                return self.request_over(node, request, false);
            }
            Some(request) => Request { repeated: true, ..request },
            None => fresh,
        };
        if session.until > self.scene.now || session.request.is_some() {
            self.begin(node, again, session.until);
        }
    }

    fn give_up(&mut self, node: usize, slot: u32) {
        let Some(mut session) = self.end(node, slot) else { return };
        if let Some(search) = &mut session.search {
            self.tell_verdicts(node, search.take_verdicts(), None);
        }
        self.nodes[node].process.tally.failed += 1;
        if let Some(request) = session.request {
            self.request_over(node, request, false);
        }
    }

    fn request_over(&mut self, node: usize, request: Request, answered: bool) {
        if self.scene.account.revoked[node].is_some() || self.nodes[node].lie == Some(Lie::Silent) {
            // Neither is a failure: a revoked node gets nothing, and a node that ignores others
            // knows no origin.
            return;
        }
        self.scene.measures.requests.retried += u64::from(request.repeated);
        self.scene.measures.request(request.since, self.scene.now, answered);
        if !answered {
            let took = self.scene.now.saturating_sub(request.since);
            let words = format!("a client gets no answer after {:.2} s", took.as_secs_f64());
            self.says(node, words.clone());
            self.check_unanswered(node, words);
        }
    }

    pub(super) fn end(&mut self, node: usize, slot: u32) -> Option<Session> {
        let session = self.nodes[node].clients.remove(slot)?;
        self.scene.measures.sessions.closed += u64::from(session.is_open());
        if let Some(target) = session.target() {
            self.carry_no_more(target, SessionRef { node, slot, number: session.number });
        }
        for attempt in &session.attempts {
            self.quit(node, attempt.entry);
        }
        Some(session)
    }

    fn quit(&mut self, node: usize, entry: SessionId) {
        self.nodes[node].clients.quit(entry);
        self.tell_busy(node);
    }

    /// Informs a node which lines carry sessions or attempts, if that has changed.
    pub(super) fn tell_busy(&mut self, node: usize) {
        let ledger = &mut self.nodes[node].clients.ledger;
        if ledger.take_busy_changed() {
            let busy = ledger.busy();
            self.with_brain(node, |brain, now, _| brain.busy(busy, now));
        }
    }

    pub(super) fn session_later(&mut self, session: SessionRef, after: Duration, timer: Timer) {
        let boot = self.nodes[session.node].boot;
        self.queue.push(self.scene.now + after, Event::Session { session, boot, timer });
    }

    pub(super) fn session(&mut self, node: usize, slot: u32) -> &mut Session {
        let session = self.nodes[node].clients.sessions[slot as usize].as_mut();
        session.expect("the caller has just looked it up")
    }
}
