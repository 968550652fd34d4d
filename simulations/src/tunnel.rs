//! WireGuard sessions as the core sees them: there, or being made, or not.
//!
//! Only their consequences are simulated: a first datagram waits for a handshake, a lost handshake
//! is repeated after about a second, a restarted peer understands nothing until a new handshake,
//! and a session that is used in vain makes one. Constants are those of the WireGuard paper and of
//! the mesh.

use std::time::Duration;

/// Datagrams that wait for a handshake, as in the mesh.
pub(crate) const MAX_WAITING: usize = 64;
/// From one handshake attempt to the next.
pub(crate) const RETRY: Duration = Duration::from_secs(1);
/// Attempts before the waiting datagrams are given up (90 s in WireGuard).
pub(crate) const MAX_ATTEMPTS: u32 = 90;
/// A session that only sends makes a new handshake after this (keepalive 10 s + timeout 5 s).
pub(crate) const SILENCE: Duration = Duration::from_secs(15);
/// Bytes around an inner payload: outer IPv4 and UDP, WireGuard, inner IPv6 and UDP.
pub(crate) const OVERHEAD: usize = 28 + 32 + 48;
/// A handshake initiation with its outer headers, in bytes.
pub(crate) const INITIATION: usize = 148 + 28;
/// A handshake response with its outer headers, in bytes.
pub(crate) const RESPONSE: usize = 92 + 28;

/// One side of a session.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tunnel {
    /// The peer's process this session is with; `None` until a handshake has completed.
    pub(crate) with_boot: Option<u32>,
    /// Payloads waiting for the handshake.
    pub(crate) waiting: Vec<Vec<u8>>,
    /// Attempts of the handshake under way; 0 means none is.
    pub(crate) attempts: u32,
    /// When something was last received in it.
    pub(crate) heard: Duration,
    /// When something was first sent after that.
    pub(crate) unanswered: Option<Duration>,
}

impl Tunnel {
    /// Whether it has been used in vain for so long that a new handshake is due.
    pub(crate) fn is_stale(&self, now: Duration) -> bool {
        self.unanswered.is_some_and(|since| now.saturating_sub(since) >= SILENCE)
    }

    pub(crate) fn hear(&mut self, now: Duration) {
        self.heard = now;
        self.unanswered = None;
    }

    pub(crate) fn speak(&mut self, now: Duration) {
        self.unanswered.get_or_insert(now);
    }
}
