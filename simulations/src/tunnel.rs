//! WireGuard sessions as the core sees them: there, or being made, or not.
//!
//! Only their consequences are simulated: a first datagram waits for a handshake, a lost handshake
//! is repeated, a restarted peer understands nothing until a new handshake, a session that is used
//! in vain makes one, a used session is renewed, and an idle one ends. Constants are those of the
//! WireGuard paper and of the mesh. What is noticed about long packets is the mesh's own decision.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use meshport_mesh::Unacknowledged;

use crate::flight::Payload;

/// Datagrams that wait for a handshake, as in the mesh.
const MAX_WAITING: usize = 64;
/// From one handshake attempt to the next: the mesh is quick at first, then as WireGuard says.
pub(crate) const EARLY_RETRY: Duration = Duration::from_secs(1);
pub(crate) const LATE_RETRY: Duration = Duration::from_secs(5);
pub(crate) const EARLY_ATTEMPTS: u8 = 3;
/// What is added to each pause between attempts, at most.
pub(crate) const RETRY_JITTER: Duration = Duration::from_millis(333);
/// Attempts before the waiting datagrams are given up (90 s in WireGuard).
pub(crate) const MAX_ATTEMPTS: u8 = 20;
/// A session that only sends makes a new handshake after this (keepalive 10 s + timeout 5 s).
const SILENCE: Duration = Duration::from_secs(15);
/// The same for a session with a peer that has announced another address.
const MOVED_SILENCE: Duration = Duration::from_secs(1);
/// Who has received and not sent since answers with an empty datagram after this.
pub(crate) const KEEPALIVE: Duration = Duration::from_millis(10_500);
/// A session in use is renewed by its initiator after this, plus up to `REKEY_JITTER`.
const REKEY_AFTER: Duration = Duration::from_secs(120);
pub(crate) const REKEY_JITTER: Duration = Duration::from_secs(10);
/// A session in use is renewed by its other side after this, if the initiator did not.
const REKEY_LATE: Duration = Duration::from_secs(165);
/// A session ends after this.
pub(crate) const REJECT_AFTER: Duration = Duration::from_millis(181_100);
/// Bytes around an inner payload: outer IPv4 and UDP, WireGuard, inner IPv6 and UDP.
pub(crate) const OVERHEAD: usize = 28 + 32 + 48;
/// An empty datagram with its outer headers, in bytes.
pub(crate) const EMPTY: usize = 28 + 32;
/// What tells a peer where it is seen: kind, instance and IPv4 address, with all headers, in bytes.
pub(crate) const SEEN: usize = 16 + OVERHEAD;
/// A handshake initiation with its outer headers, in bytes.
pub(crate) const INITIATION: usize = 148 + 28;
/// A handshake response with its outer headers, in bytes.
pub(crate) const RESPONSE: usize = 92 + 28;

/// A moment of virtual time, in eight bytes also where there may be none: every datagram looks at
/// two tunnels among a hundred thousand, and each is as long as a line of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(NonZeroU64);

impl Moment {
    pub(crate) fn of(time: Duration) -> Self {
        let nanos = u64::try_from(time.as_nanos()).expect("a run is shorter than 500 years");
        Self(NonZeroU64::MIN.saturating_add(nanos))
    }

    pub(crate) fn time(self) -> Duration {
        Duration::from_nanos(self.0.get() - 1)
    }
}

impl Default for Moment {
    fn default() -> Self {
        Self(NonZeroU64::MIN)
    }
}

/// One side of a session.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tunnel {
    /// The peer's process this session is with; 0 until a handshake has completed.
    pub(crate) with_boot: u32,
    /// Since when.
    pub(crate) since: Moment,
    /// Whether this side made it; it renews it then.
    pub(crate) initiator: bool,
    /// The address at which the peer is believed to be.
    pub(crate) address: u16,
    /// Which session of the peer's making this is, by when the peer made it.
    pub(crate) confirmed: Moment,
    /// When it is renewed, if it is used then.
    renewed: Moment,
    /// Attempts of the handshake under way; 0 means none is.
    pub(crate) attempts: u8,
    /// A QUIC connection runs in it.
    pub(crate) connected: bool,
    /// Since when something was received and nothing sent: an empty datagram will be due.
    pub(crate) owes: Option<Moment>,
    /// A timer for that is running.
    pub(crate) armed: bool,
    /// The peer has announced another address since it was heard last.
    pub(crate) is_elsewhere: bool,
    /// When something was first sent after something was last received.
    pub(crate) unanswered: Option<Moment>,
}

impl Tunnel {
    /// The session that a handshake with a process of the peer makes now of this one. Both sides
    /// choose how late they renew it.
    pub(crate) fn establish(
        &mut self,
        with: u32,
        initiator: bool,
        jitter: Duration,
        now: Duration,
    ) {
        let is_new = self.with_boot != with;
        let after = if initiator { REKEY_AFTER + jitter } else { REKEY_LATE };
        *self = Self {
            with_boot: with,
            since: Moment::of(now),
            initiator,
            address: self.address,
            renewed: Moment::of(now + after),
            confirmed: self.confirmed,
            connected: self.connected && !is_new,
            armed: self.armed,
            ..Self::default()
        };
    }

    /// What is left of a session that is over: where the peer is, and what is under way.
    pub(crate) fn end(&mut self) {
        let (address, attempts, armed) = (self.address, self.attempts, self.armed);
        *self = Self { address, attempts, armed, ..Self::default() };
    }

    pub(crate) fn is_up(&self) -> bool {
        self.with_boot != 0
    }

    /// Whether something that is sent now should be accompanied by a handshake: it was used in vain
    /// for long, or it grows old.
    pub(crate) fn wants_handshake(&self, now: Duration) -> bool {
        let patience = if self.is_elsewhere { MOVED_SILENCE } else { SILENCE };
        let silent = |since: Moment| now.saturating_sub(since.time()) >= patience;
        self.unanswered.is_some_and(silent) || Moment::of(now) >= self.renewed
    }

    pub(crate) fn hear(&mut self) {
        self.unanswered = None;
        self.is_elsewhere = false;
    }

    pub(crate) fn speak(&mut self, now: Duration) {
        self.owes = None;
        self.unanswered.get_or_insert(Moment::of(now));
    }
}

/// The tunnels of one node by peer. Never iterated to decide anything, so that its order does not
/// matter.
#[derive(Debug, Default)]
pub(crate) struct Tunnels {
    all: HashMap<u32, Tunnel, BuildHasherDefault<Spread>>,
    /// Payloads that wait for a handshake, apart since few tunnels have any.
    waiting: HashMap<u32, Vec<Payload>, BuildHasherDefault<Spread>>,
    /// Of those that have lost long packets of sessions since the last one that arrived.
    unacknowledged: HashMap<u32, Unacknowledged, BuildHasherDefault<Spread>>,
}

impl Tunnels {
    pub(crate) fn get(&self, peer: u32) -> Option<&Tunnel> {
        self.all.get(&peer)
    }

    pub(crate) fn get_mut(&mut self, peer: u32) -> Option<&mut Tunnel> {
        self.all.get_mut(&peer)
    }

    /// The tunnel to a peer, which is made if there is none.
    pub(crate) fn to(&mut self, peer: u32) -> &mut Tunnel {
        self.all.entry(peer).or_default()
    }

    /// What becomes of a packet of sessions that was sent now, in bytes for QUIC; true if long ones
    /// are overdue.
    pub(crate) fn note_fate(
        &mut self,
        peer: u32,
        bytes: usize,
        is_lost: bool,
        rtt: Duration,
        now: Instant,
    ) -> bool {
        let bytes = bytes as u64;
        if is_lost {
            return self.unacknowledged.entry(peer).or_default().sent(bytes, rtt, now);
        }
        if let Some(known) = self.unacknowledged.get_mut(&peer) {
            known.acknowledged(bytes);
        }
        false
    }

    /// Lets a payload wait for a handshake, if there is room for it.
    pub(crate) fn wait(&mut self, peer: u32, payload: Payload) {
        let waiting = self.waiting.entry(peer).or_default();
        if waiting.len() < MAX_WAITING {
            waiting.push(payload);
        }
    }

    pub(crate) fn has_waiting(&self, peer: u32) -> bool {
        self.waiting.contains_key(&peer)
    }

    pub(crate) fn take_waiting(&mut self, peer: u32) -> Vec<Payload> {
        self.waiting.remove(&peer).unwrap_or_default()
    }

    pub(crate) fn remove(&mut self, peer: u32) {
        self.all.remove(&peer);
        self.waiting.remove(&peer);
        self.unacknowledged.remove(&peer);
    }
}

/// Spreads small numbers over all bits; the same on every machine.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    /// Of an id eight bytes are enough.
    fn write(&mut self, bytes: &[u8]) {
        let mut first = [0; 8];
        let kept = bytes.len().min(8);
        first[..kept].copy_from_slice(&bytes[..kept]);
        let mixed = (self.0 ^ u64::from_le_bytes(first)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }

    fn write_u32(&mut self, number: u32) {
        let mixed = (self.0 ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tunnel_and_its_peer_fill_one_line_of_memory() {
        assert!(size_of::<(u32, Tunnel)>() <= 64);
    }

    #[test]
    fn a_moment_is_the_time_it_was_made_of() {
        for nanos in [0, 1, 999_999_999, u64::MAX - 1] {
            let time = Duration::from_nanos(nanos);
            assert_eq!(Moment::of(time).time(), time);
        }
        assert_eq!(Moment::default().time(), Duration::ZERO);
    }
}
