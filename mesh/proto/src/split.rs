//! Splits inner packets for peers behind narrow paths.
//!
//! QUIC needs datagrams of 1,200 bytes, which take 1,308 on an IPv4 path and 1,328 over IPv6. On a
//! path with a smaller MTU, packets are sealed in fragments of at most [`PIECE`] bytes each, and
//! the peer joins them. That works down to an MTU of [`NARROWEST_MTU`].
//!
//! A node splits for a peer if its caller has found the path narrow, or while the peer demands it:
//! the top bit of a fragment's id tells that its sender has found the path narrow itself. A peer
//! that only follows a demand makes none, so two nodes do not keep each other splitting. A single
//! packet as long as QUIC's smallest datagram tests the path, and is never split.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use meshport_config::NodeId;

use crate::inner::{self, FRAGMENT_OVERHEAD, FRAGMENT_UNIT, Fragment, UDP_OVERHEAD};
use crate::tunnel::DATA_OVERHEAD;
use crate::{MAX_DATAGRAM, ports};

/// Most bytes of a packet's payload in a fragment: QUIC's smallest datagram takes two.
pub(crate) const PIECE: usize = 608;
/// Smallest outer MTU at which fragments pass, also over IPv6.
pub const NARROWEST_MTU: u16 = 736;
/// Bytes of the outer IPv6 and UDP headers.
const OUTER: usize = 48;
const _: () = assert!(NARROWEST_MTU as usize == OUTER + DATA_OVERHEAD + FRAGMENT_OVERHEAD + PIECE);
const _: () = assert!(PIECE.is_multiple_of(FRAGMENT_UNIT));
/// The longest packet that is not split because it is no longer than a fragment.
pub(crate) const UNSPLIT: usize = unsplit(PIECE);
/// The longest packet that is split: QUIC's on a path of 1,500 bytes is. A longer one stays whole,
/// since QUIC searches for the path's MTU with it, and would find what fragments carry.
const LONGEST: usize = UDP_OVERHEAD + 1400;
/// Length of packets that test the path.
const TEST: usize = UDP_OVERHEAD + MAX_DATAGRAM;
/// Flag of an id: the sender has found the path narrow.
const DEMAND: u32 = 1 << 31;
/// How long a demand lasts: two long probes of a path with sessions may be lost.
pub const DEMAND_HOLD: Duration = Duration::from_secs(40);
/// How often a demand is noted: every fragment makes it.
const NOTED_EVERY: Duration = Duration::from_secs(1);
/// The smallest outer MTU over IPv4 at which QUIC's smallest datagram passes whole.
const WHOLE_MTU: usize = 28 + DATA_OVERHEAD + TEST;

/// Whether to split packets for a peer.
#[derive(Debug, Default)]
pub(crate) struct Split {
    /// The peer's process joins fragments.
    pub(crate) joins: bool,
    /// This node has found the path narrow.
    pub(crate) narrow: bool,
    /// This node's packets may not be as long as QUIC needs.
    always: bool,
    demanded_until: Option<Instant>,
    last_id: u32,
}

impl Split {
    /// Ids begin at a number that is another one in every `instance` of this node: the peer may
    /// still have fragments of the previous process. `mtu` is the limit of this node's packets, in
    /// bytes.
    pub(crate) fn new(instance: u64, mtu: u16) -> Self {
        let last_id = u32::try_from(instance >> 32).unwrap_or_default();
        Self { last_id, always: usize::from(mtu) < WHOLE_MTU, ..Self::default() }
    }

    /// Whether long packets are to be split now.
    pub(crate) fn is_on(&self, now: Instant) -> bool {
        self.joins && (self.demands() || self.demanded_until.is_some_and(|until| until > now))
    }

    /// Whether the peer has to split too.
    fn demands(&self) -> bool {
        self.narrow || self.always
    }

    /// Whether packets as long as QUIC datagrams of this length are to be split now.
    pub(crate) fn concerns_streams(&self, datagram: usize, now: Instant) -> bool {
        takes_fragments(UDP_OVERHEAD + datagram) && self.is_on(now)
    }

    /// Whether a single packet is to be split now, also if only another path of this node is
    /// narrow: few paths are measured.
    pub(crate) fn concerns(&self, packet: &[u8], caution: &Caution, now: Instant) -> bool {
        takes_fragments(packet.len())
            && self.joins
            && !is_test(packet)
            && (self.is_on(now) || caution.is_due(now))
    }

    /// A fragment with this id arrived. True if it demands fragments, once per [`NOTED_EVERY`]. In
    /// a standard WireGuard peer's id the flag means nothing.
    pub(crate) fn note(&mut self, id: u32, now: Instant) -> bool {
        let until = now + DEMAND_HOLD;
        let is_noted = self.demanded_until.is_some_and(|it| it + NOTED_EVERY > until);
        if id & DEMAND == 0 || is_noted {
            return false;
        }
        self.demanded_until = Some(until);
        self.joins
    }

    /// The id of the next packet's fragments.
    pub(crate) fn next_id(&mut self) -> u32 {
        self.last_id = self.last_id.wrapping_add(1) & !DEMAND;
        self.last_id | if self.demands() { DEMAND } else { 0 }
    }
}

/// Whether any path of this node is narrow, as its caller or a peer has found. Shared by all
/// shards.
#[derive(Debug, Default)]
pub(crate) struct Caution(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// The peers whose paths the caller has found narrow.
    narrow: BTreeSet<NodeId>,
    /// The end of the last demand of any peer.
    demanded_until: Option<Instant>,
}

impl Caution {
    /// The caller has found the path to a peer narrow, or not any more.
    pub(crate) fn set(&self, node: &NodeId, is_narrow: bool) {
        let mut known = self.known();
        if is_narrow {
            known.narrow.insert(*node);
        } else {
            known.narrow.remove(node);
        }
    }

    /// A peer demands fragments.
    pub(crate) fn demanded(&self, now: Instant) {
        self.known().demanded_until = Some(now + DEMAND_HOLD);
    }

    pub(crate) fn is_due(&self, now: Instant) -> bool {
        let known = self.known();
        !known.narrow.is_empty() || known.demanded_until.is_some_and(|until| until > now)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a packet of this length takes several fragments, and may.
fn takes_fragments(length: usize) -> bool {
    (UNSPLIT + 1..=LONGEST).contains(&length)
}

/// Whether a packet of ours tests the path. QUIC's first ones may be as long, and wait for a
/// session.
fn is_test(packet: &[u8]) -> bool {
    inner::udp_length(packet) == Some(MAX_DATAGRAM)
        && inner::destination_port(packet) != ports::STREAMS
}

/// Length of a fragment of `piece` bytes; a whole packet of that length needs no fragments.
pub(crate) const fn unsplit(piece: usize) -> usize {
    FRAGMENT_OVERHEAD + piece
}

/// Length of equal fragments for packets with this many bytes of payload, except the last of each.
pub(crate) fn piece(payload: usize) -> usize {
    let count = payload.div_ceil(PIECE).max(1);
    payload.div_ceil(count).next_multiple_of(FRAGMENT_UNIT)
}

/// The fragments of a packet of ours: `piece` bytes each, the last one may be shorter.
pub(crate) fn fragments(
    packet: &[u8],
    piece: usize,
    id: u32,
) -> impl Iterator<Item = Fragment<'_>> {
    let payload = inner::body(packet);
    let (addresses, protocol) = (inner::addresses(packet), packet[6]);
    payload.chunks(piece).enumerate().map(move |(number, part)| {
        let offset = number * piece;
        let has_more = offset + part.len() < payload.len();
        Fragment { addresses, protocol, id, offset, has_more, part }
    })
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "an origin for made-up time")]

    use super::*;
    use crate::inner::Flow;

    #[test]
    fn fragments_are_equal_and_as_few_as_possible() {
        for (payload, expected) in
            [(1, 8), (608, 608), (609, 312), (1208, 608), (1216, 608), (1217, 408), (1400, 472)]
        {
            assert_eq!(piece(payload), expected, "{payload}");
        }
        for payload in 1..20_000 {
            let piece = piece(payload);
            assert!(piece <= PIECE && piece.is_multiple_of(FRAGMENT_UNIT), "{payload}");
            assert_eq!(payload.div_ceil(piece), payload.div_ceil(PIECE), "{payload}");
        }
    }

    #[test]
    fn a_peer_that_follows_a_demand_makes_none() {
        let now = Instant::now();
        let (mut finder, mut follower) = (Split::default(), Split::default());
        finder.narrow = true;
        assert!(!finder.is_on(now), "nobody knows that the peer joins");
        finder.joins = true;
        assert!(finder.is_on(now) && !follower.is_on(now));
        follower.note(finder.next_id(), now);
        assert!(!follower.is_on(now), "a hello tells whether a peer joins, not a demand");
        // The demand may come before the hello.
        follower.joins = true;
        assert!(follower.is_on(now + DEMAND_HOLD / 2) && !follower.is_on(now + DEMAND_HOLD));
        finder.narrow = false;
        finder.note(follower.next_id(), now);
        follower.note(finder.next_id(), now + DEMAND_HOLD / 2);
        assert!(!finder.is_on(now) && !follower.is_on(now + DEMAND_HOLD));
    }

    #[test]
    fn a_demand_is_noted_once_a_second_and_counts_for_others_if_the_peer_joins() {
        let now = Instant::now();
        let mut split = Split { joins: true, ..Split::default() };
        assert!(!split.note(1, now));
        let mut noted = Vec::new();
        for millis in [0, 500, 999, 1000, 1001, 1999, 2000, 90_000] {
            if split.note(DEMAND, now + Duration::from_millis(millis)) {
                noted.push(millis);
            }
        }
        assert_eq!(noted, [0, 1000, 2000, 90_000]);
        // A standard peer's ids are arbitrary.
        split.joins = false;
        assert!(!split.note(DEMAND, now + Duration::from_secs(97)));
    }

    #[test]
    fn a_node_whose_packets_must_be_short_always_splits_and_demands_it() {
        let now = Instant::now();
        let whole = u16::try_from(WHOLE_MTU).expect("an MTU");
        for (mtu, expected) in [(whole - 1, true), (whole, false)] {
            let mut split = Split { joins: true, ..Split::new(0, mtu) };
            assert_eq!(split.is_on(now), expected);
            assert_eq!(split.next_id() & DEMAND != 0, expected);
        }
    }

    #[test]
    fn ids_of_another_process_begin_elsewhere() {
        assert_eq!(Split::new(7 << 32, 1500).next_id(), 8);
        assert_eq!(Split::new(u64::MAX, 1500).next_id(), 0, "the top bit is the demand's");
    }

    #[test]
    fn packets_that_test_the_path_and_short_ones_stay_whole() {
        let now = Instant::now();
        let mut split = Split { joins: true, narrow: true, ..Split::default() };
        let caution = Caution::default();
        let packet = |length: usize, port| {
            let [source, destination] = [1, 2].map(|last| [0xfd, 0, 0, 0, 0, 0, 0, last].into());
            let flow = Flow { source, destination, source_port: port, destination_port: port };
            let mut out = vec![0; length];
            inner::write_udp(&flow, &vec![0; length - UDP_OVERHEAD], &mut out);
            out
        };
        for (length, expected) in [
            (UNSPLIT, false),
            (UNSPLIT + 1, true),
            (TEST - 1, true),
            (TEST, false),
            (TEST + 1, true),
            (LONGEST, true),
            (LONGEST + 1, false),
        ] {
            let packet = packet(length, ports::GOSSIP);
            assert_eq!(split.concerns(&packet, &caution, now), expected, "{length}");
        }
        assert!(split.concerns(&packet(TEST, ports::STREAMS), &caution, now));
        // QUIC's are known by their port, also those as long as a test.
        for (datagram, expected) in [(608, false), (609, true), (1200, true), (1401, false)] {
            assert_eq!(split.concerns_streams(datagram, now), expected, "{datagram}");
        }
        split.narrow = false;
        let long = packet(UNSPLIT + 1, ports::GOSSIP);
        assert!(!split.concerns(&long, &caution, now));
        caution.demanded(now);
        assert!(split.concerns(&long, &caution, now));
        split.joins = false;
        assert!(!split.concerns(&long, &caution, now));
    }
}
