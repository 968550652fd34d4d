//! Traffic inside a tunnel besides gossip: the steps of a client's session, each a flight of one or
//! more datagrams.
//!
//! A stream's header names its target and the hops that are left, as in `meshport_core::wire`. A
//! flight carries it with the nodes it has passed, through which its answer returns.
//!
//! A session's bytes are not simulated, only their number and the meaning of the flight. Lost
//! datagrams of a flight are sent again, as QUIC does: if others of the flight have arrived, after
//! the loss timeout, otherwise after a probe timeout that doubles each time.

use std::time::Duration;

use meshport_core::wire::Hops;

/// Bytes of a flight that fit QUIC's initial window.
pub(crate) const MAX_BYTES: usize = 64 * 1024;
/// Payload bytes of one datagram in a stream.
const SEGMENT: usize = 1200;
/// The least probe timeout: the acknowledgement delay of QUIC, and its granularity.
const LEAST_PTO: Duration = Duration::from_millis(26);
/// The round trip that QUIC assumes before it has measured one, in our settings.
const ASSUMED_RTT: Duration = Duration::from_millis(50);
/// Doublings of the probe timeout.
const MAX_BACKOFF: u32 = 6;

/// A flight that waits for a tunnel or travels in it.
#[derive(Debug, Clone)]
pub(crate) enum Payload {
    /// No payload: a keepalive, or the confirmation of a handshake.
    Empty,
    /// Tells the peer at which of its addresses it is seen.
    Seen(u16),
    /// A datagram of discovery.
    Gossip(Vec<u8>),
    /// A step of a session.
    Flight(Box<Flight>),
    /// QUIC's acknowledgement of one that nothing else is said to yet.
    Ack,
}

/// A client's session: the client's node, its place there, and the number that tells it from
/// earlier ones in that place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SessionRef {
    pub(crate) node: usize,
    pub(crate) place: u32,
    pub(crate) number: u64,
}

/// The path of streams: the origin, and the first hop, which is a relay or the origin itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StreamPath {
    pub(crate) origin: usize,
    pub(crate) hop: usize,
}

impl StreamPath {
    /// Straight to an origin.
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
    /// How many of them are sent again, since the others have arrived; 0 is all.
    pub(crate) missing: u32,
    /// How often it was sent since something of it arrived.
    pub(crate) repeats: u8,
    /// The number of the receiving node; `None` stands for any receiver.
    pub(crate) target: Option<u32>,
    pub(crate) hops: Hops,
    pub(crate) trail: Trail,
}

/// The nodes that a stream comes through, its client first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Trail {
    nodes: [u32; MAX_TRAIL],
    length: u8,
}

/// Nodes of a trail: a client, and more relays than there may be.
pub(crate) const MAX_TRAIL: usize = 4;

impl Trail {
    pub(crate) fn of(client: u32) -> Self {
        let mut nodes = [0; MAX_TRAIL];
        nodes[0] = client;
        Self { nodes, length: 1 }
    }

    /// The nodes until now.
    pub(crate) fn nodes(&self) -> &[u32] {
        &self.nodes[..usize::from(self.length)]
    }

    /// The same with one more node; none if there is no room.
    pub(crate) fn through(mut self, node: u32) -> Option<Self> {
        *self.nodes.get_mut(usize::from(self.length))? = node;
        self.length += 1;
        Some(self)
    }

    /// The node that an answer goes to next, and what is left of the trail after it.
    pub(crate) fn back(mut self) -> Option<(u32, Self)> {
        self.length = self.length.checked_sub(1)?;
        Some((self.nodes[usize::from(self.length)], self))
    }
}

/// The meaning of a flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// The first packet of a QUIC connection.
    Hello,
    /// Its answer.
    HelloBack,
    /// A stream's header, and the client's first bytes.
    Open,
    /// The origin's answer to that: its instance refused.
    Refused,
    /// The instance's first bytes.
    Opened,
    /// A request on an open session.
    Request,
    /// Its answer.
    Answer,
    /// The origin's answer when its instance has accepted the connection and says nothing.
    Accepted,
}

impl Step {
    /// Whether it goes from a client towards an instance.
    pub(crate) fn is_request(self) -> bool {
        matches!(self, Self::Hello | Self::Open | Self::Request)
    }
}

impl Flight {
    /// A flight that its client sends on this path for the first time.
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

    /// Sizes of the datagrams that carry it.
    pub(crate) fn segments(&self) -> impl Iterator<Item = usize> + use<> {
        let bytes = if self.missing > 0 { self.missing } else { self.bytes };
        let bytes = (bytes as usize).clamp(1, MAX_BYTES);
        (0..bytes.div_ceil(SEGMENT)).map(move |at| (bytes - at * SEGMENT).min(SEGMENT))
    }
}

/// Delay until the rest of a partly arrived flight is sent again: QUIC's time threshold of 9/8 of a
/// round trip, and the delay of acknowledgements.
pub(crate) fn loss_time(rtt: Duration) -> Duration {
    rtt * 9 / 8 + LEAST_PTO
}

/// Delay until a flight is sent again if none of it has arrived.
pub(crate) fn probe_timeout(rtt: Option<Duration>, repeats: u8) -> Duration {
    let rtt = rtt.unwrap_or(ASSUMED_RTT);
    (rtt * 3 / 2 + LEAST_PTO) * (1 << u32::from(repeats).min(MAX_BACKOFF))
}
