//! WireGuard sessions as the core sees them: there, or being made, or not.
//!
//! Only their consequences are simulated: a first datagram waits for a handshake, a lost handshake
//! is repeated, a restarted peer understands nothing until a new handshake, a session that is used
//! in vain makes one, a used session is renewed, and an idle one ends. Constants are those of the
//! WireGuard paper and of the mesh.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::time::Duration;

use crate::flight::Payload;

/// Datagrams that wait for a handshake, as in the mesh.
pub(crate) const MAX_WAITING: usize = 64;
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
/// A handshake initiation with its outer headers, in bytes.
pub(crate) const INITIATION: usize = 148 + 28;
/// A handshake response with its outer headers, in bytes.
pub(crate) const RESPONSE: usize = 92 + 28;

/// One side of a session.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tunnel {
    /// The peer's process this session is with; 0 until a handshake has completed.
    pub(crate) with_boot: u32,
    /// Since when.
    pub(crate) since: Duration,
    /// Whether this side made it; it renews it then.
    pub(crate) initiator: bool,
    /// The address at which the peer is believed to be.
    pub(crate) address: u16,
    /// Which session of the peer's making this is, by when the peer made it.
    pub(crate) confirmed: Duration,
    /// What is added to the age at which it is renewed.
    pub(crate) rekey_jitter: Duration,
    /// Attempts of the handshake under way; 0 means none is.
    pub(crate) attempts: u8,
    /// A QUIC connection runs in it.
    pub(crate) connected: bool,
    /// Since when something was received and nothing sent: an empty datagram will be due.
    pub(crate) owes: Option<Duration>,
    /// A timer for that is running.
    pub(crate) armed: bool,
    /// When something was first sent after something was last received.
    pub(crate) unanswered: Option<Duration>,
    /// Payloads waiting for the handshake.
    pub(crate) waiting: Vec<Payload>,
}

impl Tunnel {
    pub(crate) fn is_up(&self) -> bool {
        self.with_boot != 0
    }

    /// Whether something that is sent now should be accompanied by a handshake: it was used in vain
    /// for long, or it grows old.
    pub(crate) fn wants_handshake(&self, now: Duration) -> bool {
        let after = if self.initiator { REKEY_AFTER + self.rekey_jitter } else { REKEY_LATE };
        let silent = self.unanswered.is_some_and(|since| now.saturating_sub(since) >= SILENCE);
        silent || now.saturating_sub(self.since) >= after
    }

    pub(crate) fn hear(&mut self) {
        self.unanswered = None;
    }

    pub(crate) fn speak(&mut self, now: Duration) {
        self.owes = None;
        self.unanswered.get_or_insert(now);
    }
}

/// The tunnels of one node by peer. Never iterated to decide anything, so that its order does not
/// matter.
pub(crate) type Tunnels = HashMap<u32, Box<Tunnel>, BuildHasherDefault<Spread>>;

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
