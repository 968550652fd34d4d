//! When to start a handshake with a peer, renew its session, and send it a keepalive.
//!
//! The timers of the WireGuard paper (section 6) on the caller's clock, with faster first retries
//! and a faster reaction to silence. It knows no keys, addresses or packets: the owner reports what
//! it sent and received, and carries out what [`Schedule::need`] returns at [`Schedule::due`]. The
//! simulator runs it with simulated tunnels.

use std::time::{Duration, Instant};

use meshport_config::planted::{Bug, is_planted};

/// Gap before each of the first retries. WireGuard waits 5 s, longer than any failure detector
/// above it; a lost first packet should cost one second.
const EARLY_RETRY: Duration = Duration::from_secs(1);
/// Retries with the early gap.
const EARLY_RETRIES: u32 = 5;
/// Gap before later retries (the WireGuard paper, section 6.1: Rekey-Timeout).
const LATE_RETRY: Duration = Duration::from_secs(5);
/// Jitter of every retry, so that two nodes do not keep colliding.
const RETRY_JITTER: Duration = Duration::from_millis(333);
/// Timeout of a handshake without an answer (Rekey-Attempt-Time).
const ATTEMPT_TIME: Duration = Duration::from_secs(90);
/// After this many initiations of an attempt a hint no longer speeds up the next one, since anyone
/// who sees the initiation could forge the hint.
const HASTENED_TRIES: u32 = 3;
/// The gap after a hint.
const HASTENED_GAP: Duration = Duration::from_millis(50);
/// A session in use is renewed by its initiator at this age (Rekey-After-Time), up to
/// [`REKEY_JITTER`] earlier.
const REKEY_AFTER: Duration = Duration::from_secs(120);
/// Random part of the rekey time.
const REKEY_JITTER: Duration = Duration::from_secs(10);
/// Age at which either side renews a session in use, if its initiator has not.
const REKEY_LATE: Duration = Duration::from_secs(165);
/// Age at which a session ends (Reject-After-Time).
pub const REJECT_AFTER: Duration = Duration::from_secs(180);
/// Extra time until a session is checked again and has ended.
const EXPIRY_SLACK: Duration = Duration::from_millis(1100);
/// Two sessions agreed within this time came from both sides at once.
const SIMULTANEOUS: Duration = Duration::from_secs(10);
/// Delay until a keepalive answers data if nothing else has. Keepalive-Timeout is 10 s; slightly
/// more lets other traffic with an interval of 10 s go first, and is well below the 15 s after
/// which the other side starts a new handshake.
const PASSIVE_KEEPALIVE: Duration = Duration::from_millis(10_500);
/// Data without any answer for this long starts a handshake (Keepalive-Timeout + Rekey-Timeout).
const SILENCE: Duration = Duration::from_secs(15);
/// The same for data that always has an answer within a round trip.
const PROMPT_SILENCE: Duration = Duration::from_secs(1);

/// An action that the schedule asks its owner to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// The handshake has timed out: drop what waits for it, then call [`Schedule::give_up`].
    GiveUp,
    /// Send an initiation, then call [`Schedule::initiated`]: a retry, a rekey or after silence.
    Initiate {
        /// Whether nothing was heard although an answer was due.
        silence: bool,
    },
    /// The session's time has expired: end it, then call [`Schedule::session_lost`].
    Expire,
    /// Call [`Schedule::keepalive_done`], then send a keepalive.
    Keepalive,
}

/// The content of a packet inside a session, which determines its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// A keepalive. Nothing answers it.
    Empty,
    /// Data, answered at the latest by a keepalive.
    Data,
}

/// A handshake in progress.
#[derive(Debug, Clone, Copy)]
struct Attempt {
    started: Instant,
    tries: u32,
    next: Instant,
}

/// The session that seals data.
#[derive(Debug, Clone, Copy)]
struct Session {
    since: Instant,
    /// Whether this side must renew it.
    initiator: bool,
    /// Age at which it is renewed.
    rekey_after: Duration,
    /// Whether data was sent or received on it.
    used: bool,
}

impl Session {
    /// `jitter` is a random number from 0 to 1.
    fn new(since: Instant, initiator: bool, jitter: f64) -> Self {
        let rekey_after = REKEY_AFTER - REKEY_JITTER.mul_f64(jitter);
        Self { since, initiator, rekey_after, used: false }
    }
}

/// The timers of one peer. [`Schedule::due`] is the next time at which something must happen
/// without a packet; an idle peer without a session has none.
#[derive(Debug, Clone, Default)]
pub struct Schedule {
    session: Option<Session>,
    attempt: Option<Attempt>,
    last_received: Option<Instant>,
    last_sent: Option<Instant>,
    /// First data sent since the last packet received.
    waiting: Option<Instant>,
    /// Whether the next data sent is answered within a round trip.
    expects_answer: bool,
    /// First such data sent since the last packet received.
    waiting_prompt: Option<Instant>,
    /// When to send a keepalive for received data that nothing has answered.
    keepalive_at: Option<Instant>,
    /// Interval of unconditional keepalives.
    persistent: Option<Duration>,
    /// Whether the peer has announced another address since it was last heard, so that silence
    /// counts early.
    is_elsewhere: bool,
}

impl Schedule {
    /// Whether data can be sealed.
    pub fn has_session(&self) -> bool {
        self.session.is_some()
    }

    /// Time at which the session was agreed.
    pub fn session_since(&self) -> Option<Instant> {
        self.session.map(|session| session.since)
    }

    /// Whether a handshake of this side is under way.
    pub fn is_trying(&self) -> bool {
        self.attempt.is_some()
    }

    /// Initiations that the handshake in progress has sent.
    pub fn tries(&self) -> u32 {
        self.attempt.map_or(0, |attempt| attempt.tries)
    }

    /// Arrival of the last authenticated packet.
    pub fn last_received(&self) -> Option<Instant> {
        self.last_received
    }

    /// Whether an initiation goes only to the address that the peer was last heard from. A first
    /// handshake, a retry, or one with a peer that has moved goes to every known address.
    pub fn is_plain_renewal(&self) -> bool {
        self.session.is_some() && self.attempt.is_none() && !self.is_elsewhere
    }

    /// Sends a keepalive at this interval in any case; `None` disables it.
    pub fn set_persistent(&mut self, every: Option<Duration>, now: Instant) {
        self.persistent = every;
        if every.is_some() {
            self.last_sent.get_or_insert(now);
        }
    }

    /// Stops sending keepalives at an interval.
    pub fn stop_persistent(&mut self) {
        self.persistent = None;
    }

    /// Notes that the peer announced an address other than the one it was heard from.
    pub fn moved(&mut self) {
        self.is_elsewhere = true;
    }

    /// Whether data was received and nothing sent since.
    pub fn owes_answer(&self) -> bool {
        self.keepalive_at.is_some()
    }

    /// Notes that the data sent next is answered within a round trip.
    pub fn expect_answer(&mut self) {
        self.expects_answer = true;
    }

    /// A packet was sealed.
    pub fn sent(&mut self, now: Instant, content: Content) {
        self.last_sent = Some(now);
        self.keepalive_at = None;
        if content == Content::Data {
            self.waiting.get_or_insert(now);
            if std::mem::take(&mut self.expects_answer) {
                self.waiting_prompt.get_or_insert(now);
            }
            self.note_use();
        }
    }

    /// An authenticated packet arrived; a handshake is [`Content::Empty`].
    pub fn received(&mut self, now: Instant, content: Content) {
        self.last_received = Some(now);
        self.is_elsewhere = false;
        self.forget_waiting();
        if content == Content::Data {
            self.keepalive_at.get_or_insert(now + PASSIVE_KEEPALIVE);
            self.note_use();
        }
    }

    fn note_use(&mut self) {
        if let Some(session) = &mut self.session {
            session.used = true;
        }
    }

    /// Notes an initiation that was just sent and schedules the next one. `jitter` is a random
    /// number from 0 to 1.
    pub fn initiated(&mut self, now: Instant, jitter: f64) {
        let (started, tries) = self.attempt.map_or((now, 0), |it| (it.started, it.tries));
        let gap = if is_planted(Bug::HandshakeRetry) {
            ATTEMPT_TIME
        } else if tries < EARLY_RETRIES {
            EARLY_RETRY
        } else {
            LATE_RETRY
        };
        let next = now + gap + RETRY_JITTER.mul_f64(jitter);
        self.attempt = Some(Attempt { started, tries: tries + 1, next });
        self.forget_waiting();
        self.last_sent = Some(now);
    }

    /// Sends the next initiation soon, because the peer's answer shows that it would work better;
    /// only if the attempt is young.
    pub fn hasten(&mut self, now: Instant) {
        if let Some(attempt) = self.attempt.as_mut().filter(|it| it.tries <= HASTENED_TRIES) {
            attempt.next = attempt.next.min(now + HASTENED_GAP);
        }
    }

    /// Restarts the handshake now. Data sent meanwhile uses the old session.
    pub fn restart(&mut self, now: Instant) {
        self.attempt = Some(Attempt { started: now, tries: 0, next: now });
    }

    /// Gives up the handshake; true if one was in progress.
    pub fn give_up(&mut self) -> bool {
        self.forget_waiting();
        self.attempt.take().is_some()
    }

    /// Handles an answer to this side's initiation. `jitter` is a random number from 0 to 1.
    /// Returns the round trip if there was only one initiation: with several it is unknown which
    /// was answered.
    pub fn agreed(&mut self, now: Instant, jitter: f64) -> Option<Duration> {
        self.session = Some(Session::new(now, true, jitter));
        let attempt = self.attempt.take().filter(|attempt| attempt.tries == 1)?;
        Some(now.saturating_duration_since(attempt.started))
    }

    /// Handles that the peer uses a session that this side answered at `since`, which becomes the
    /// current one. `jitter` is a random number from 0 to 1.
    pub fn confirmed(&mut self, since: Instant, jitter: f64) {
        // If both sides initiated at once, each confirms the other's session; both stay responsible
        // for the renewal, otherwise neither would be.
        let initiator = self.session.is_some_and(|session| {
            session.initiator && since.saturating_duration_since(session.since) < SIMULTANEOUS
        });
        self.session = Some(Session { used: true, ..Session::new(since, initiator, jitter) });
        self.attempt = None;
    }

    /// Notes a session that is unknown here, of which the tunnel opened a packet.
    pub fn found(&mut self, now: Instant, jitter: f64) {
        self.session = Some(Session { used: true, ..Session::new(now, true, jitter) });
    }

    /// Handles the end of the session: nothing that needs one is due any longer.
    pub fn session_lost(&mut self) {
        self.session = None;
        self.keepalive_at = None;
        self.forget_waiting();
    }

    /// Schedules the next keepalive a full interval away, whether the last one was sent or not.
    pub fn keepalive_done(&mut self, now: Instant) {
        self.keepalive_at = None;
        self.last_sent = Some(now);
        // A session that must stay open counts as used.
        if self.persistent.is_some() {
            self.note_use();
        }
    }

    /// Whether to renew a session that still works. Call this only when a packet passes, so that an
    /// idle session ends.
    pub fn wants_rekey(&self, now: Instant) -> bool {
        let Some(session) = &self.session else { return false };
        let age = now.saturating_duration_since(session.since);
        let after = if session.initiator { session.rekey_after } else { REKEY_LATE };
        self.attempt.is_none() && session.used && age >= after
    }

    /// The next moment at which [`Schedule::need`] returns an action.
    pub fn due(&self) -> Option<Instant> {
        let retry = self.attempt.map(|attempt| attempt.next);
        let due = [retry, self.expires_at(), self.silent_at(), self.keepalive_due()];
        due.into_iter().flatten().min()
    }

    /// The action that is due at `now`, keepalives last. Call it until it returns `None`; every
    /// action, once done, moves its own time.
    pub fn need(&self, now: Instant) -> Option<Need> {
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if let Some(attempt) = self.attempt.filter(|attempt| attempt.next <= now) {
            let tried = now.saturating_duration_since(attempt.started);
            return Some(match tried >= ATTEMPT_TIME {
                true => Need::GiveUp,
                false => Need::Initiate { silence: false },
            });
        }
        if is_due(self.expires_at()) {
            return Some(Need::Expire);
        }
        if is_due(self.silent_at()) {
            return Some(Need::Initiate { silence: true });
        }
        is_due(self.keepalive_due()).then_some(Need::Keepalive)
    }

    fn forget_waiting(&mut self) {
        self.waiting = None;
        self.waiting_prompt = None;
    }

    fn expires_at(&self) -> Option<Instant> {
        Some(self.session?.since + REJECT_AFTER + EXPIRY_SLACK)
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

    fn keepalive_due(&self) -> Option<Instant> {
        let passive = self.keepalive_at.filter(|_| self.session.is_some());
        let persistent = self.persistent.filter(|_| self.attempt.is_none());
        let persistent = persistent.and_then(|every| Some(self.last_sent? + every));
        passive.into_iter().chain(persistent).min()
    }
}
