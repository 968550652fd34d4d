//! A peer: its tunnel, endpoint, admission and timers.
//!
//! The caller runs all timers: those of handshakes and keepalives in [`Schedule`], and those for
//! presenting credential and secret. The tunnel's own timers only end old sessions. [`Peer::due`]
//! is the next time at which something must happen without a packet; an idle peer without a session
//! has none.
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
use crate::schedule::{self, Content, REJECT_AFTER, Schedule};
use crate::split::Split;
use crate::tunnel::{SessionId, Tunnel};

/// Packets that wait for one peer's handshake: one flight of a QUIC connection and some gossip.
pub const QUEUE_LIMIT: usize = 64;
/// Addresses a handshake is sent to at once.
pub(crate) const ENDPOINT_LIMIT: usize = 4;
/// Answered sessions that may wait for their first packet: those of four initiations, each answered
/// under two secrets. A half keeps eight.
const PENDING_LIMIT: usize = 8;

/// An action that a peer needs now; see [`Peer::due`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// The provisional time has expired.
    Forget,
    /// An action that the tunnel's schedule requests.
    Tunnel(schedule::Need),
    /// Present the credential.
    Hello,
    /// Send the number of the mesh's secret.
    Number,
    /// Seek the other process with the peer's key.
    SeekOther,
}

/// The newest session of a peer, and the state of messages about both sides' processes and
/// addresses.
#[derive(Debug, Default)]
pub(crate) struct Here {
    /// The session that was agreed last.
    pub(crate) newest: Option<SessionId>,
    /// Time of the last request for its credential because of data without admission.
    pub(crate) asked_at: Option<Instant>,
    /// The processes that were heard with its key.
    pub(crate) processes: Processes,
    /// The session, address and time of the last message to it about this process and its address.
    pub(crate) said: Option<(SessionId, SocketAddr, Instant)>,
    /// The address at which it sees this node.
    pub(crate) sees_me_at: Option<SocketAddr>,
    /// Time at which it last reported another process with this node's key.
    pub(crate) duplicate_told: Option<Instant>,
    /// Time of the next attempt to tell the process that is not in the tunnel that there are two,
    /// and the number of attempts left.
    pub(crate) seeking: Option<(Instant, u8)>,
}

/// The known credential of a peer, and the state of presenting this node's.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    /// A verified credential.
    pub(crate) credential: Option<Arc<Credential>>,
    /// Whether the credential is valid and a session proves the key.
    pub(crate) admitted: bool,
    /// Whether the user was informed that the peer is up.
    pub(crate) reported_up: bool,
    /// For an unknown peer: when it is forgotten unless admitted.
    pub(crate) provisional_until: Option<Instant>,
    /// The peer's process, from its hello.
    pub(crate) instance: Option<u64>,
    /// When to present this node's credential.
    pub(crate) showing: Showing,
    /// Time at which a credential that it presented was last verified.
    pub(crate) judged_at: Option<Instant>,
    /// Why its credential was last refused; repeated refusals are reported once.
    pub(crate) last_refusal: Option<String>,
    /// Time of the last report that the peer sends unknown messages.
    pub(crate) unknown_told_at: Option<Instant>,
}

/// The mesh secrets that a peer has, and those that were used with it.
#[derive(Debug, Default)]
pub(crate) struct PeerSecret {
    /// The number of the mesh's secret, as reported by this process of the peer.
    pub(crate) number: Option<u64>,
    /// When to send this node's number; acknowledged once both have the same.
    pub(crate) telling: Showing,
    /// Time at which the secret was last sent to it.
    pub(crate) handed: Option<Instant>,
    /// The secret of the last completed handshake.
    pub(crate) agreed_under: Option<SecretId>,
    /// The secret of the last initiation.
    pub(crate) tried: Option<SecretId>,
    /// Whether the next initiation repeats the last one with the peer's cookie.
    pub(crate) again: bool,
}

/// The peer's initiations that were answered.
#[derive(Debug, Default)]
pub(crate) struct Answered {
    /// Sessions that the initiator has not used yet, oldest first, and since when. A repeated
    /// initiation adds one.
    pending: VecDeque<(SessionId, Instant)>,
    /// Arrival of the last one.
    pub(crate) last: Option<Instant>,
}

/// The traffic through a peer's tunnel.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    /// Complete inner packets that wait for a session.
    pub(crate) queue: VecDeque<Vec<u8>>,
    /// Bytes of inner packets received.
    pub(crate) rx_bytes: u64,
    /// Bytes of inner packets sent.
    pub(crate) tx_bytes: u64,
    /// Whether long packets are split.
    pub(crate) split: Split,
}

/// A peer and its state.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) node: NodeId,
    pub(crate) inner: InnerAddr,
    /// The address under which its streams are kept: its inner address, or that of the node it
    /// succeeds.
    pub(crate) address: Ipv6Addr,
    pub(crate) tunnel: Tunnel,
    /// Whether the caller named it, so that it is kept without a session.
    pub(crate) configured: bool,
    /// Addresses that the caller named.
    pub(crate) hints: Vec<SocketAddr>,
    /// Source of the last authenticated packet.
    pub(crate) endpoint: Option<Route>,
    pub(crate) admission: Admission,
    pub(crate) secret: PeerSecret,
    /// State needed only with sessions; `None` while the peer has none.
    pub(crate) here: Option<Box<Here>>,
    pub(crate) schedule: Schedule,
    pub(crate) answered: Answered,
    /// Round-trip time of the last handshake of either side.
    pub(crate) handshake_rtt: Option<Duration>,
    pub(crate) traffic: Traffic,
    /// Time of this peer's timer, if set.
    pub(crate) armed: Option<Instant>,
}

impl Peer {
    pub(crate) fn new(node: NodeId, inner: InnerAddr, tunnel: Tunnel) -> Self {
        Self {
            node,
            inner,
            address: inner.ip(),
            tunnel,
            configured: false,
            hints: Vec::new(),
            endpoint: None,
            admission: Admission::default(),
            secret: PeerSecret::default(),
            here: None,
            schedule: Schedule::default(),
            answered: Answered::default(),
            handshake_rtt: None,
            traffic: Traffic::default(),
            armed: None,
        }
    }

    /// The state of the messages about process and address.
    pub(crate) fn here(&mut self) -> &mut Here {
        self.here.get_or_insert_default()
    }

    /// Destinations of a handshake: the proven endpoint first, then those named by the caller.
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

    /// Sets the addresses that the peer announces. If they are new and lack the one it was last
    /// heard from, silence counts as a move.
    pub(crate) fn set_hints(&mut self, hints: Vec<SocketAddr>) {
        let is_news = hints.iter().any(|hint| !self.hints.contains(hint));
        let is_there = |route: Route| hints.contains(&route.remote);
        if is_news && self.endpoint.is_some_and(|route| !is_there(route)) {
            self.schedule.moved();
        }
        self.hints = hints;
    }

    /// Records that an inner packet of this many bytes was sealed; 0 is a keepalive.
    pub(crate) fn sent(&mut self, now: Instant, bytes: usize) {
        self.traffic.tx_bytes += bytes as u64;
        self.schedule.sent(now, content(bytes));
    }

    /// An authenticated packet arrived; `bytes` is 0 for keepalives and handshakes.
    pub(crate) fn received(&mut self, now: Instant, bytes: usize) {
        self.traffic.rx_bytes += bytes as u64;
        self.schedule.received(now, content(bytes));
    }

    /// This side's initiation was answered.
    pub(crate) fn agreed_as_initiator(&mut self, now: Instant, jitter: f64) {
        if let Some(rtt) = self.schedule.agreed(now, jitter) {
            self.handshake_rtt = Some(rtt);
        }
    }

    /// This side answered an initiation with this session.
    pub(crate) fn answered(&mut self, session: SessionId, now: Instant) {
        let Answered { pending, last } = &mut self.answered;
        if pending.len() >= PENDING_LIMIT {
            pending.pop_front();
        }
        pending.push_back((session, now));
        *last = Some(now);
    }

    /// A session was agreed in this half of the tunnel, by either side.
    pub(crate) fn agreed_in(&mut self, session: SessionId, now: Instant) {
        self.here().newest = Some(session);
        self.tunnel.activate(session.mark, now + REJECT_AFTER);
        self.secret.agreed_under = Some(self.tunnel.under().secret);
    }

    /// Whether an answered session waits for its first packet.
    pub(crate) fn has_pending(&self) -> bool {
        !self.answered.pending.is_empty()
    }

    /// Whether there is neither a session nor a handshake of either side. An answered initiation
    /// that was never used ends like a session.
    pub(crate) fn is_at_rest(&self, now: Instant) -> bool {
        let is_over = |since: Instant| now.saturating_duration_since(since) >= REJECT_AFTER;
        !self.schedule.has_session()
            && !self.schedule.is_trying()
            && self.answered.pending.iter().all(|(_, since)| is_over(*since))
    }

    /// Frees what only sessions need.
    pub(crate) fn rest(&mut self) {
        self.answered.pending = VecDeque::new();
        self.here = None;
        self.traffic.queue.shrink_to_fit();
        self.tunnel.rest();
    }

    /// Handles data on a session. True if that made a pending session the current one.
    pub(crate) fn confirm(&mut self, session: SessionId, now: Instant, jitter: f64) -> bool {
        let pending = &mut self.answered.pending;
        let answered = pending.iter().position(|(pending, _)| *pending == session);
        if let Some((_, since)) = answered.and_then(|at| pending.drain(..=at).next_back()) {
            self.schedule.confirmed(since, jitter);
            // The initiator sends as soon as it has the answer.
            self.handshake_rtt = Some(now.saturating_duration_since(since));
            return true;
        }
        let is_found = !self.schedule.has_session();
        if is_found {
            self.schedule.found(now, jitter);
        }
        is_found
    }

    /// The next moment at which [`Peer::need`] returns an action.
    pub(crate) fn due(&self) -> Option<Instant> {
        [
            self.admission.provisional_until,
            self.schedule.due(),
            self.showing_due(),
            self.telling_due(),
            self.seek_due(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// The action that is due at `now`. Call it until it returns `None`; every action, once done,
    /// moves its own time.
    pub(crate) fn need(&self, now: Instant) -> Option<Need> {
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if due(self.admission.provisional_until) {
            return Some(Need::Forget);
        }
        let tunnel = self.schedule.need(now);
        if tunnel.is_some_and(|need| need != schedule::Need::Keepalive) {
            return tunnel.map(Need::Tunnel);
        }
        if due(self.showing_due()) {
            return Some(Need::Hello);
        }
        if due(self.telling_due()) {
            return Some(Need::Number);
        }
        if due(self.seek_due()) {
            return Some(Need::SeekOther);
        }
        // Anything sent above replaces a keepalive.
        tunnel.map(Need::Tunnel)
    }

    fn seek_due(&self) -> Option<Instant> {
        Some(self.here.as_ref()?.seeking?.0)
    }

    fn showing_due(&self) -> Option<Instant> {
        self.admission.showing.due().filter(|_| self.schedule.has_session())
    }

    fn telling_due(&self) -> Option<Instant> {
        let is_up = self.schedule.has_session() && self.admission.admitted;
        self.secret.telling.due().filter(|_| is_up)
    }

    /// Handles the end of the session: nothing that needs one is due any longer.
    pub(crate) fn session_lost(&mut self) {
        self.schedule.session_lost();
        self.forget_sight();
        self.admission.showing.session_down();
        self.secret.telling.session_down();
    }

    /// Forgets the address it reported, so that it is reported again when the peer is back.
    pub(crate) fn forget_sight(&mut self) {
        self.here.iter_mut().for_each(|here| here.sees_me_at = None);
    }

    /// Restarts the handshake, to every known address, from any of ours.
    pub(crate) fn restless(&mut self, now: Instant) {
        if let Some(route) = &mut self.endpoint {
            route.local = None;
        }
        self.schedule.restart(now);
    }

    /// Handles a cookie: the next initiation, which contains it, goes out soon.
    pub(crate) fn cookie_received(&mut self, now: Instant) {
        // The cookie is for the half that requested it.
        self.secret.again = true;
        self.schedule.hasten(now);
    }
}

fn content(bytes: usize) -> Content {
    if bytes == 0 { Content::Empty } else { Content::Data }
}

#[cfg(test)]
mod tests;
