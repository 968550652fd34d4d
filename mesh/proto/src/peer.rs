//! One peer: its tunnel, endpoint, admission and timers.
//!
//! All timers are here, on the caller's clock: retry of handshakes, rekey, keepalives, silence and
//! hellos. The tunnel's own timers only end old sessions. [`Peer::due`] is the next time at which
//! something must happen without a packet; an idle peer without a session has none.
//!
//! Bounds: [`QUEUE_LIMIT`] packets wait for a handshake, [`ENDPOINT_LIMIT`] addresses are tried.

use std::collections::VecDeque;
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use meshport_config::{Credential, InnerAddr, NodeId, SecretId};

use crate::admission::Showing;
use crate::event::Route;
use crate::processes::Processes;
use crate::tunnel::{SessionId, Tunnel};

/// Packets that wait for one peer's handshake: one flight of a QUIC connection and some gossip.
pub(crate) const QUEUE_LIMIT: usize = 64;
/// Addresses a handshake is sent to at once.
pub(crate) const ENDPOINT_LIMIT: usize = 4;
/// Answered sessions that may wait for their first packet: those of four initiations, each answered
/// under two secrets. A half of the tunnel keeps eight.
const PENDING_LIMIT: usize = 8;

/// Gap before each of the first retries. WireGuard waits 5 s, which is longer than any failure
/// detector above; a lost first packet should cost one second.
const EARLY_RETRY: Duration = Duration::from_secs(1);
/// Retries with the early gap.
const EARLY_RETRIES: u32 = 5;
/// Gap before later retries (the WireGuard paper, section 6.1: Rekey-Timeout).
const LATE_RETRY: Duration = Duration::from_secs(5);
/// Random extra of every retry, so that two nodes do not collide for ever.
const RETRY_JITTER: Duration = Duration::from_millis(333);
/// A handshake without an answer is given up after this (Rekey-Attempt-Time).
const ATTEMPT_TIME: Duration = Duration::from_secs(90);
/// A session in use is renewed by its initiator at this age (Rekey-After-Time), up to
/// [`REKEY_JITTER`] earlier.
const REKEY_AFTER: Duration = Duration::from_secs(120);
/// Random part of the rekey time.
const REKEY_JITTER: Duration = Duration::from_secs(10);
/// Age at which either side renews a session in use, should its initiator have failed to.
const REKEY_LATE: Duration = Duration::from_secs(165);
/// Age at which a session ends (Reject-After-Time).
const REJECT_AFTER: Duration = Duration::from_secs(180);
/// Two sessions agreed within this time came from both sides at once.
const SIMULTANEOUS: Duration = Duration::from_secs(10);
/// An empty packet answers data after this when nothing else did. Keepalive-Timeout is 10 s; a
/// little more lets whatever else is sent each 10 s go first, and is well below the 15 s after
/// which the other side worries.
const PASSIVE_KEEPALIVE: Duration = Duration::from_millis(10_500);
/// Data without any answer for this long starts a handshake (Keepalive-Timeout + Rekey-Timeout).
const SILENCE: Duration = Duration::from_secs(15);
/// The same for data that always has an answer within a round trip.
const PROMPT_SILENCE: Duration = Duration::from_secs(1);
/// The tunnel's clock is moved before use when it is older than this.
const TICK_GAP: Duration = Duration::from_secs(1);
/// Extra time after which a session is looked at again to see it gone.
const EXPIRY_SLACK: Duration = Duration::from_millis(1100);

/// A handshake under way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attempt {
    pub(crate) started: Instant,
    pub(crate) tries: u32,
    pub(crate) next: Instant,
}

/// The session data is sealed with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Session {
    pub(crate) since: Instant,
    /// Whether this side has to renew it.
    pub(crate) initiator: bool,
    /// Age at which it is renewed.
    pub(crate) rekey_after: Duration,
    /// Whether data was sent or received on it.
    pub(crate) used: bool,
}

/// What a peer needs now; see [`Peer::due`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// The provisional time is over.
    Forget,
    /// The handshake was tried long enough.
    GiveUp,
    /// Send an initiation: a retry, a rekey or after silence.
    Initiate {
        /// Nothing was heard although an answer was due.
        silence: bool,
    },
    /// Send an empty packet.
    Keepalive,
    /// Show the credential.
    Hello,
    /// Say the number of the mesh's secret.
    Number,
    /// Move the tunnel's clock: the session's time is over.
    Expire,
    /// Seek the other process with the peer's key.
    SeekOther,
}

/// Which session of a peer is the newest, and what is said in it of who and where both are.
#[derive(Debug, Default)]
pub(crate) struct Here {
    /// The session that was agreed last.
    pub(crate) newest: Option<SessionId>,
    /// When it was looked at last because it sends something though it is not admitted.
    pub(crate) asked_at: Option<Instant>,
    /// Which processes spoke under its key.
    pub(crate) processes: Processes,
    /// In which session it was told who this is and where it is seen, there, and when.
    pub(crate) said: Option<(SessionId, SocketAddr, Instant)>,
    /// Where it sees this node.
    pub(crate) sees_me_at: Option<SocketAddr>,
    /// When it said last that another process has this node's key.
    pub(crate) duplicate_told: Option<Instant>,
    /// When the process that is not in the tunnel now is sought next, to be told that there are
    /// two, and how many times more.
    pub(crate) seeking: Option<(Instant, u8)>,
}

/// One peer and its state.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) node: NodeId,
    pub(crate) inner: InnerAddr,
    /// What its streams are kept under: its inner address, or while it goes on in the place of
    /// another node the address that one had.
    pub(crate) address: Ipv6Addr,
    pub(crate) tunnel: Tunnel,
    /// Named by the caller; survives without a session.
    pub(crate) configured: bool,
    /// Addresses the caller named.
    pub(crate) hints: Vec<SocketAddr>,
    /// Where authenticated packets came from last.
    pub(crate) endpoint: Option<Route>,
    /// It has announced another place since it was heard last.
    pub(crate) is_elsewhere: bool,
    /// A verified credential.
    pub(crate) credential: Option<Arc<Credential>>,
    /// The credential is valid and a session proves the key.
    pub(crate) admitted: bool,
    /// The user was told that the peer is up.
    pub(crate) reported_up: bool,
    /// Unknown until now; forgotten at this time unless admitted.
    pub(crate) provisional_until: Option<Instant>,
    /// The peer's process, from its hello.
    pub(crate) instance: Option<u64>,
    /// What concerns sessions only; none while it is at rest.
    pub(crate) here: Option<Box<Here>>,
    pub(crate) showing: Showing,
    /// The number of the mesh's secret, as this process of the peer said it.
    pub(crate) secret_number: Option<u64>,
    /// When to say that of this node's; acknowledged when both have the same.
    pub(crate) telling: Showing,
    /// When the secret was last sent to it.
    pub(crate) handed: Option<Instant>,
    /// Under which secret the last handshake was agreed, and the last initiation was sent.
    pub(crate) agreed_under: Option<SecretId>,
    pub(crate) tried: Option<SecretId>,
    /// The next initiation is a repetition: the peer has sent a cookie.
    pub(crate) again: bool,
    /// When a credential that it showed was verified last.
    pub(crate) judged_at: Option<Instant>,
    /// Why its credential was refused last; repeated refusals are told once.
    pub(crate) last_refusal: Option<String>,

    pub(crate) session: Option<Session>,
    /// Sessions this side answered but which the initiator has not used yet, oldest first, and
    /// since when. A repeated initiation makes another one.
    pending: VecDeque<(SessionId, Instant)>,
    pub(crate) attempt: Option<Attempt>,
    /// Round-trip time of the last handshake of either side.
    pub(crate) handshake_rtt: Option<Duration>,
    pub(crate) last_tick: Instant,
    pub(crate) last_received: Option<Instant>,
    pub(crate) last_sent: Option<Instant>,
    pub(crate) last_initiation: Option<Instant>,
    /// First data sent since the last packet received.
    waiting: Option<Instant>,
    /// The next data sent is answered within a round trip.
    pub(crate) expects_answer: bool,
    /// First data of that kind since the last packet received.
    waiting_prompt: Option<Instant>,
    /// Data received that nothing answered yet.
    keepalive_at: Option<Instant>,
    /// Interval of unconditional keepalives.
    persistent: Option<Duration>,
    /// Complete inner packets that wait for a session.
    pub(crate) queue: VecDeque<Vec<u8>>,
    pub(crate) rx_bytes: u64,
    pub(crate) tx_bytes: u64,
    /// When this peer's timer is set, if it is.
    pub(crate) armed: Option<Instant>,
}

impl Peer {
    pub(crate) fn new(node: NodeId, inner: InnerAddr, tunnel: Tunnel, now: Instant) -> Self {
        Self {
            node,
            inner,
            address: inner.ip(),
            tunnel,
            configured: false,
            hints: Vec::new(),
            endpoint: None,
            is_elsewhere: false,
            credential: None,
            admitted: false,
            reported_up: false,
            provisional_until: None,
            instance: None,
            here: None,
            showing: Showing::default(),
            secret_number: None,
            telling: Showing::default(),
            handed: None,
            agreed_under: None,
            tried: None,
            again: false,
            judged_at: None,
            last_refusal: None,
            session: None,
            pending: VecDeque::new(),
            attempt: None,
            handshake_rtt: None,
            last_tick: now,
            last_received: None,
            last_sent: None,
            last_initiation: None,
            waiting: None,
            expects_answer: false,
            waiting_prompt: None,
            keepalive_at: None,
            persistent: None,
            queue: VecDeque::new(),
            rx_bytes: 0,
            tx_bytes: 0,
            armed: None,
        }
    }

    /// What was said of whereabouts.
    pub(crate) fn here(&mut self) -> &mut Here {
        self.here.get_or_insert_default()
    }

    /// Where to send a handshake: the proven endpoint first, then what the caller named.
    pub(crate) fn candidates(&self) -> Vec<Route> {
        let mut routes: Vec<Route> = self.endpoint.into_iter().collect();
        for hint in &self.hints {
            if routes.iter().all(|route| route.remote != *hint) {
                routes.push(Route::from(*hint));
            }
        }
        routes.truncate(ENDPOINT_LIMIT);
        routes
    }

    /// Takes where the peer says it is. If that is news, and not where it was heard last, its
    /// silence is taken for a move.
    pub(crate) fn set_hints(&mut self, hints: Vec<SocketAddr>) {
        let is_news = hints.iter().any(|hint| !self.hints.contains(hint));
        let is_there = |route: Route| hints.contains(&route.remote);
        self.is_elsewhere |= is_news && self.endpoint.is_some_and(|route| !is_there(route));
        self.hints = hints;
    }

    /// Sets the interval of unconditional keepalives.
    pub(crate) fn set_persistent(&mut self, every: Option<Duration>, now: Instant) {
        self.persistent = every;
        if every.is_some() && self.last_sent.is_none() {
            self.last_sent = Some(now);
        }
    }

    /// Whether the tunnel's clock has to be moved before it is used.
    pub(crate) fn stale(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.last_tick) >= TICK_GAP
    }

    /// A packet was sealed. `data` is false for keepalives; `prompt` means that the other side
    /// answers it within a round trip.
    pub(crate) fn sent(&mut self, now: Instant, bytes: usize, data: bool, prompt: bool) {
        self.last_sent = Some(now);
        self.keepalive_at = None;
        if data {
            self.tx_bytes += bytes as u64;
            self.waiting.get_or_insert(now);
            if prompt {
                self.waiting_prompt.get_or_insert(now);
            }
            if let Some(session) = &mut self.session {
                session.used = true;
            }
        }
    }

    /// An authenticated packet arrived; `bytes` is 0 for keepalives and handshakes.
    pub(crate) fn received(&mut self, now: Instant, bytes: usize) {
        self.last_received = Some(now);
        self.is_elsewhere = false;
        self.waiting = None;
        self.waiting_prompt = None;
        if bytes > 0 {
            self.rx_bytes += bytes as u64;
            self.keepalive_at.get_or_insert(now + PASSIVE_KEEPALIVE);
            if let Some(session) = &mut self.session {
                session.used = true;
            }
        }
    }

    /// This side's initiation was answered.
    pub(crate) fn agreed_as_initiator(&mut self, now: Instant, jitter: f64) {
        self.session = Some(Session {
            since: now,
            initiator: true,
            rekey_after: REKEY_AFTER - REKEY_JITTER.mul_f64(jitter),
            used: false,
        });
        // Of several tries it is unknown which one was answered.
        if let Some(attempt) = self.attempt.take().filter(|attempt| attempt.tries == 1) {
            self.handshake_rtt = Some(now.saturating_duration_since(attempt.started));
        }
    }

    /// This side answered an initiation with this session.
    pub(crate) fn answered(&mut self, session: SessionId, now: Instant) {
        if self.pending.len() >= PENDING_LIMIT {
            self.pending.pop_front();
        }
        self.pending.push_back((session, now));
        self.last_initiation = Some(now);
    }

    /// A session was agreed in this half of the tunnel, by either side.
    pub(crate) fn agreed_in(&mut self, session: SessionId, now: Instant) {
        self.here().newest = Some(session);
        self.tunnel.activate(session.mark, now + REJECT_AFTER);
        self.agreed_under = Some(self.tunnel.under().secret);
    }

    /// Whether an answered session waits for its first packet.
    pub(crate) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Whether there is neither a session nor a handshake, of either side; its own, when it was
    /// answered and never used, is over as a session would be.
    pub(crate) fn is_at_rest(&self, now: Instant) -> bool {
        let is_over = |since: Instant| now.saturating_duration_since(since) >= REJECT_AFTER;
        self.session.is_none()
            && self.attempt.is_none()
            && self.pending.iter().all(|(_, since)| is_over(*since))
    }

    /// Gives back what only sessions need.
    pub(crate) fn rest(&mut self) {
        self.pending = VecDeque::new();
        self.here = None;
        self.queue.shrink_to_fit();
        self.tunnel.rest();
    }

    /// Data arrived on a session. True when that made a pending one the current one.
    pub(crate) fn confirm(&mut self, session: SessionId, now: Instant, jitter: f64) -> bool {
        let answered = self.pending.iter().position(|(pending, _)| *pending == session);
        match answered.and_then(|at| self.pending.drain(..=at).next_back()) {
            Some((_, since)) => {
                // When both sides initiated at once, each confirms the other's session; both then
                // stay responsible for the renewal, or neither would be.
                let initiator = self.session.is_some_and(|session| {
                    session.initiator
                        && since.saturating_duration_since(session.since) < SIMULTANEOUS
                });
                let rekey_after = REKEY_AFTER - REKEY_JITTER.mul_f64(jitter);
                self.session = Some(Session { since, initiator, rekey_after, used: true });
                self.attempt = None;
                // The initiator sends something as soon as it has the answer.
                self.handshake_rtt = Some(now.saturating_duration_since(since));
                true
            }
            // The tunnel opened a packet although no session is noted here: note it.
            _ if self.session.is_none() => {
                let rekey_after = REKEY_AFTER - REKEY_JITTER.mul_f64(jitter);
                self.session =
                    Some(Session { since: now, initiator: true, rekey_after, used: true });
                true
            }
            _ => false,
        }
    }

    /// Notes an initiation that was just sent and plans the next one.
    pub(crate) fn initiated(&mut self, now: Instant, jitter: f64) {
        let (started, tries) = self.attempt.map_or((now, 0), |a| (a.started, a.tries));
        let gap = if tries < EARLY_RETRIES { EARLY_RETRY } else { LATE_RETRY };
        let next = now + gap + RETRY_JITTER.mul_f64(jitter);
        self.attempt = Some(Attempt { started, tries: tries + 1, next });
        self.waiting = None;
        self.waiting_prompt = None;
        self.last_sent = Some(now);
    }

    /// Whether the session should be renewed although it still works.
    pub(crate) fn wants_rekey(&self, now: Instant) -> bool {
        let Some(session) = &self.session else { return false };
        let age = now.saturating_duration_since(session.since);
        let after = if session.initiator { session.rekey_after } else { REKEY_LATE };
        self.attempt.is_none() && session.used && age >= after
    }

    /// The next moment at which [`Peer::need`] answers something.
    pub(crate) fn due(&self) -> Option<Instant> {
        [
            self.provisional_until,
            self.attempt.map(|attempt| attempt.next),
            self.silent_at(),
            self.keepalive_due(),
            self.showing.due().filter(|_| self.session.is_some()),
            self.telling_due(),
            self.session.map(|session| session.since + REJECT_AFTER + EXPIRY_SLACK),
            self.seek_due(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// What is due at `now`. Asked again until it answers `None`; every answer, once acted on,
    /// moves its own time.
    pub(crate) fn need(&self, now: Instant) -> Option<Need> {
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if due(self.provisional_until) {
            return Some(Need::Forget);
        }
        if let Some(attempt) = self.attempt.filter(|attempt| attempt.next <= now) {
            let tried = now.saturating_duration_since(attempt.started);
            return Some(match tried >= ATTEMPT_TIME {
                true => Need::GiveUp,
                false => Need::Initiate { silence: false },
            });
        }
        if due(self.session.map(|session| session.since + REJECT_AFTER + EXPIRY_SLACK)) {
            return Some(Need::Expire);
        }
        if due(self.silent_at()) {
            return Some(Need::Initiate { silence: true });
        }
        if due(self.showing.due()) && self.session.is_some() {
            return Some(Need::Hello);
        }
        if due(self.telling_due()) {
            return Some(Need::Number);
        }
        if due(self.seek_due()) {
            return Some(Need::SeekOther);
        }
        due(self.keepalive_due()).then_some(Need::Keepalive)
    }

    fn silent_at(&self) -> Option<Instant> {
        if self.attempt.is_some() {
            return None;
        }
        let prompt = self.waiting_prompt.map(|since| since + PROMPT_SILENCE);
        let patience = if self.is_elsewhere { PROMPT_SILENCE } else { SILENCE };
        let any = self.waiting.map(|since| since + patience);
        prompt.into_iter().chain(any).min()
    }

    fn seek_due(&self) -> Option<Instant> {
        Some(self.here.as_ref()?.seeking?.0)
    }

    fn telling_due(&self) -> Option<Instant> {
        self.telling.due().filter(|_| self.session.is_some() && self.admitted)
    }

    fn keepalive_due(&self) -> Option<Instant> {
        let passive = self.keepalive_at.filter(|_| self.session.is_some());
        let persistent = self
            .persistent
            .filter(|_| self.configured && self.attempt.is_none())
            .and_then(|every| Some(self.last_sent? + every));
        passive.into_iter().chain(persistent).min()
    }

    /// The session is gone: nothing that needs one is due any more.
    pub(crate) fn session_lost(&mut self) {
        self.session = None;
        self.forget_sight();
        self.keepalive_at = None;
        self.waiting = None;
        self.waiting_prompt = None;
        self.showing.session_down();
        self.telling.session_down();
    }

    /// The user is told that the peer is gone: what it sees is told again when it is back.
    pub(crate) fn forget_sight(&mut self) {
        self.here.iter_mut().for_each(|here| here.sees_me_at = None);
    }

    /// A handshake begins from the beginning, to every address known, from whichever of ours.
    pub(crate) fn restless(&mut self, now: Instant) {
        if let Some(route) = &mut self.endpoint {
            route.local = None;
        }
        self.attempt = Some(Attempt { started: now, tries: 0, next: now });
    }

    /// Nobody waits for an answer any more.
    pub(crate) fn forget_waiting(&mut self) {
        self.waiting = None;
        self.waiting_prompt = None;
    }

    /// A keepalive was due; whatever happened to it, the next one is a full interval away.
    pub(crate) fn keepalive_done(&mut self, now: Instant) {
        self.keepalive_at = None;
        self.last_sent = Some(now);
        // A session that is to be kept open is in use.
        if self.persistent.is_some()
            && let Some(session) = &mut self.session
        {
            session.used = true;
        }
    }
}

#[cfg(test)]
mod tests;
