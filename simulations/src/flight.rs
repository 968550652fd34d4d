//! Traffic inside a tunnel besides gossip: the steps of a client's session, each a flight of one or
//! more datagrams.
//!
//! A stream's header names its target and the remaining hops, as in `meshport_core::wire`. A flight
//! also lists the nodes it has passed; its answer returns through them.
//!
//! A session's bytes are not simulated, only their number and the purpose of the flight. Lost
//! datagrams of a flight are retransmitted as in QUIC: after the loss timeout if others of the
//! flight arrived, otherwise after a probe timeout that doubles each time.

use std::time::Duration;

use meshport_core::wire::Hops;

/// The most bytes of a flight, which fit QUIC's initial window.
pub(crate) const MAX_BYTES: usize = 64 * 1024;
/// Payload bytes of one datagram in a stream.
const SEGMENT: usize = 1200;
/// Most of them in a fragment, on a path that is too narrow for that.
pub(crate) const FRAGMENT: usize = 600;
/// The minimum probe timeout: QUIC's acknowledgement delay and its granularity.
const LEAST_PTO: Duration = Duration::from_millis(26);
/// The round trip that QUIC assumes before the first measurement, with our settings.
const ASSUMED_RTT: Duration = Duration::from_millis(50);
/// Doublings of the probe timeout.
const MAX_BACKOFF: u32 = 6;

/// A flight that waits for a tunnel or travels in it.
#[derive(Debug, Clone)]
pub(crate) enum Payload {
    /// No payload: a keepalive, or the confirmation of a handshake.
    Empty,
    /// Sends the peer the index of its address as seen from here.
    Seen(u16),
    /// A datagram of discovery.
    Gossip(Vec<u8>),
    /// A step of a session.
    Flight(Box<Flight>),
    /// QUIC's acknowledgement of a flight that has no answer yet.
    Ack,
}

/// A client's session: the client's node, its slot there, and a number that distinguishes it from
/// earlier sessions in that slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SessionRef {
    pub(crate) node: usize,
    pub(crate) slot: u32,
    pub(crate) number: u64,
}

/// The path of streams: the origin, and the first hop, which is a relay or the origin itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StreamPath {
    pub(crate) origin: usize,
    pub(crate) hop: usize,
}

impl StreamPath {
    /// The direct path to an origin.
    pub(crate) fn direct(origin: usize) -> Self {
        Self { origin, hop: origin }
    }

    pub(crate) fn is_relayed(self) -> bool {
        self.hop != self.origin
    }
}

/// A step of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Flight {
    pub(crate) session: SessionRef,
    /// The attempt, or the request of an open session.
    pub(crate) step: u32,
    pub(crate) what: Step,
    pub(crate) bytes: u32,
    /// How many of its datagrams are retransmitted, since the others have arrived; 0 for all.
    pub(crate) missing: u32,
    /// Retransmissions since any of it arrived.
    pub(crate) repeats: u8,
    /// The number of the receiving node; `None` stands for any receiver.
    pub(crate) target: Option<u32>,
    pub(crate) hops: Hops,
    pub(crate) trail: Trail,
}

/// The nodes that a stream has passed, its client first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Trail {
    nodes: [u32; MAX_TRAIL],
    length: u8,
}

/// The most nodes in a trail: a client, and more relays than allowed.
pub(crate) const MAX_TRAIL: usize = 4;

impl Trail {
    pub(crate) fn of(client: u32) -> Self {
        let mut nodes = [0; MAX_TRAIL];
        nodes[0] = client;
        Self { nodes, length: 1 }
    }

    /// The nodes so far.
    pub(crate) fn nodes(&self) -> &[u32] {
        &self.nodes[..usize::from(self.length)]
    }

    /// The same with one more node; none if there is no room.
    pub(crate) fn through(mut self, node: u32) -> Option<Self> {
        *self.nodes.get_mut(usize::from(self.length))? = node;
        self.length += 1;
        Some(self)
    }

    /// The next node on the way back, and the rest of the trail.
    pub(crate) fn back(mut self) -> Option<(u32, Self)> {
        self.length = self.length.checked_sub(1)?;
        Some((self.nodes[usize::from(self.length)], self))
    }
}

/// The purpose of a flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// The first packet of a QUIC connection.
    Hello,
    /// The answer to [`Self::Hello`].
    HelloBack,
    /// A stream's header, and the client's first bytes.
    Open,
    /// The origin's answer to [`Self::Open`]: its instance refused.
    Refused,
    /// The instance's first bytes.
    Opened,
    /// A request on an open session.
    Request,
    /// The answer to a request.
    Answer,
    /// The origin's answer if its instance accepted the connection and has sent nothing.
    Accepted,
}

impl Step {
    /// Whether it goes from a client towards an instance.
    pub(crate) fn is_request(self) -> bool {
        matches!(self, Self::Hello | Self::Open | Self::Request)
    }
}

impl Flight {
    /// A flight sent by its client on this path for the first time.
    pub(crate) fn new(
        session: SessionRef,
        way: StreamPath,
        step: u32,
        what: Step,
        bytes: u32,
    ) -> Self {
        let number = |node: usize| u32::try_from(node).expect("at most MAX_NODES nodes");
        Self {
            session,
            step,
            what,
            bytes,
            missing: 0,
            repeats: 0,
            target: way.is_relayed().then(|| number(way.origin)),
            hops: if way.is_relayed() { Hops::One } else { Hops::None },
            trail: Trail::of(number(session.node)),
        }
    }

    /// Sizes of its datagrams.
    pub(crate) fn segments(&self) -> impl Iterator<Item = usize> + use<> {
        let bytes = if self.missing > 0 { self.missing } else { self.bytes };
        pieces((bytes as usize).clamp(1, MAX_BYTES), SEGMENT)
    }
}

/// Sizes of the parts of that many bytes: `most` each, the last one may be smaller.
pub(crate) fn pieces(bytes: usize, most: usize) -> impl Iterator<Item = usize> + use<> {
    (0..bytes.div_ceil(most)).map(move |at| (bytes - at * most).min(most))
}

/// Delay before the rest of a partly received flight is retransmitted: QUIC's time threshold of 9/8
/// of a round trip, plus the acknowledgement delay.
pub(crate) fn loss_time(rtt: Duration) -> Duration {
    rtt * 9 / 8 + LEAST_PTO
}

/// Delay before a flight is retransmitted if none of it arrived.
pub(crate) fn probe_timeout(rtt: Option<Duration>, repeats: u8) -> Duration {
    let rtt = rtt.unwrap_or(ASSUMED_RTT);
    (rtt * 3 / 2 + LEAST_PTO) * (1 << u32::from(repeats).min(MAX_BACKOFF))
}
