//! WireGuard tunnels at the wide level: no keys and no bytes, only which processes have a session
//! with each other. Handshakes, renewals and keepalives follow the mesh's own [`Schedule`]; lost
//! long packets are detected by its own [`Unacknowledged`].

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::time::{Duration, Instant};

use meshport_discovery::WIDE_DATAGRAM;
use meshport_proto::core::SEAL_OVERHEAD;
use meshport_proto::schedule::{Content, Schedule};
use meshport_proto::tunnel::{self, DATA_OVERHEAD};
use meshport_proto::{QUEUE_LIMIT, Unacknowledged};

use crate::flight::{FRAGMENT, Payload};

/// Bytes of the outer IPv4 and UDP headers.
const OUTER: usize = 20 + 8;
/// Bytes added to an inner payload: the outer headers, WireGuard, inner IPv6 and UDP.
pub(crate) const OVERHEAD: usize = OUTER + SEAL_OVERHEAD;
/// An empty datagram with its outer headers, in bytes.
pub(crate) const EMPTY: usize = OUTER + DATA_OVERHEAD;
/// Size of the message that reports a peer's address to it: kind, instance and IPv4 address, with
/// all headers, in bytes.
pub(crate) const SEEN: usize = 16 + OVERHEAD;
/// A handshake initiation with its outer headers, in bytes.
pub(crate) const INITIATION: usize = OUTER + tunnel::INITIATION;
/// A handshake response with its outer headers, in bytes.
pub(crate) const RESPONSE: usize = OUTER + tunnel::RESPONSE;
/// An acknowledgement of QUIC with all headers, in bytes.
pub(crate) const ACK: usize = 32 + OVERHEAD;

/// One end of the sessions with a peer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tunnel {
    pub(crate) schedule: Schedule,
    /// The peer's process of the session; 0 without a session.
    pub(crate) with_boot: u32,
    /// The address at which the peer was last heard; 0 is none.
    pub(crate) address: u16,
    /// A QUIC connection runs in it.
    pub(crate) connected: bool,
    /// Time at which this side initiated the session; zero if the peer did.
    pub(crate) made: Duration,
    /// Time at which the peer initiated its newest session.
    pub(crate) confirmed: Duration,
    /// Time at which an initiation of the peer was last answered.
    pub(crate) answered: Option<Duration>,
    /// Time of its timer, if set.
    pub(crate) armed: Option<Duration>,
    /// This side has found the path too narrow for long packets.
    pub(crate) split: bool,
    /// Until when the peer, which has found it too narrow, demands fragments.
    pub(crate) demanded_until: Duration,
}

impl Tunnel {
    pub(crate) fn is_up(&self) -> bool {
        self.schedule.has_session()
    }

    /// The destinations of an initiation: the peer's last address and, unless it only renews, its
    /// announced one.
    pub(crate) fn routes(&self, said: Option<u16>) -> impl Iterator<Item = u16> + use<> {
        let heard = (self.address != 0).then_some(self.address);
        let is_enough = heard.is_some() && self.schedule.is_plain_renewal();
        let said = said.filter(|said| !is_enough && Some(*said) != heard);
        heard.into_iter().chain(said)
    }

    /// The session has ended; the peer's endpoint stays known.
    pub(crate) fn end(&mut self) {
        self.schedule.session_lost();
        (self.with_boot, self.connected, self.made) = (0, false, Duration::ZERO);
    }
}

/// Whether a payload is sent in fragments where long packets are split. A wide probe tests the
/// path, and is never split.
pub(crate) fn is_long(payload: &Payload) -> bool {
    match payload {
        Payload::Gossip(bytes) => bytes.len() > FRAGMENT && bytes.len() < WIDE_DATAGRAM,
        Payload::Flight(flight) => flight.segments().any(|bytes| bytes > FRAGMENT),
        Payload::Empty | Payload::Seen(_) | Payload::Ack => false,
    }
}

/// The content of a payload, as the schedule counts it.
pub(crate) fn content(payload: &Payload) -> Content {
    match payload {
        Payload::Empty => Content::Empty,
        _ => Content::Data,
    }
}

/// The tunnels of one node by peer. Decisions never iterate over it, so its order does not matter.
#[derive(Debug, Default)]
pub(crate) struct Tunnels {
    all: HashMap<u32, Tunnel, BuildHasherDefault<Spread>>,
    /// Payloads queued for a handshake; separate because few tunnels have any.
    waiting: HashMap<u32, Vec<Payload>, BuildHasherDefault<Spread>>,
    /// Peers with long session packets lost since the last one that arrived.
    unacknowledged: HashMap<u32, Unacknowledged, BuildHasherDefault<Spread>>,
}

impl Tunnels {
    pub(crate) fn get(&self, peer: u32) -> Option<&Tunnel> {
        self.all.get(&peer)
    }

    pub(crate) fn get_mut(&mut self, peer: u32) -> Option<&mut Tunnel> {
        self.all.get_mut(&peer)
    }

    /// The tunnel to a peer; created if needed.
    pub(crate) fn to(&mut self, peer: u32) -> &mut Tunnel {
        self.all.entry(peer).or_default()
    }

    /// Records the fate of a session packet sent now, in bytes for QUIC; true if acknowledgements
    /// of long ones are overdue.
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

    /// Queues a payload for a handshake, if there is room.
    pub(crate) fn wait(&mut self, peer: u32, payload: Payload) {
        let waiting = self.waiting.entry(peer).or_default();
        if waiting.len() < QUEUE_LIMIT {
            waiting.push(payload);
        }
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

    /// Eight bytes of an id are enough.
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
