//! Splits inner packets for peers behind narrow paths.
//!
//! QUIC needs datagrams of 1,200 bytes, which take 1,308 on an IPv4 path and 1,328 over IPv6. On a
//! path with a smaller MTU, packets are sealed in fragments of at most [`PIECE`] bytes each, and
//! the peer joins them. That works down to an MTU of [`NARROWEST_MTU`].
//!
//! A node splits for a peer if its caller has found the path narrow, or while the peer demands it:
//! the top bit of a fragment's id tells that its sender has found the path narrow itself. A peer
//! that only follows a demand makes none, so two nodes do not keep each other splitting. A packet
//! as long as QUIC's smallest datagram that is sent as a single one tests the path, and is never
//! split.

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

/// Whether to split packets for a peer.
#[derive(Debug, Default)]
pub(crate) struct Split {
    /// The peer's process joins fragments.
    pub(crate) joins: bool,
    /// This node has found the path narrow.
    pub(crate) narrow: bool,
    demanded_until: Option<Instant>,
    last_id: u32,
}

impl Split {
    /// Ids begin at a number that is another one in every `instance` of this node: the peer may
    /// still have fragments of the previous process.
    pub(crate) fn new(instance: u64) -> Self {
        let last_id = u32::try_from(instance >> 32).unwrap_or_default();
        Self { last_id, ..Self::default() }
    }

    /// Whether long packets are to be split now.
    pub(crate) fn is_on(&self, now: Instant) -> bool {
        self.joins && (self.narrow || self.demanded_until.is_some_and(|until| until > now))
    }

    /// Whether packets as long as QUIC datagrams of this length are to be split now.
    pub(crate) fn concerns_streams(&self, datagram: usize, now: Instant) -> bool {
        is_between(UDP_OVERHEAD + datagram) && self.is_on(now)
    }

    /// Whether a single packet is to be split now. `cautious`: another path of this node is narrow,
    /// and few paths are measured.
    pub(crate) fn concerns(&self, packet: &[u8], cautious: bool, now: Instant) -> bool {
        let is_due = (cautious && self.joins) || self.is_on(now);
        is_between(packet.len()) && is_due && !is_test(packet)
    }

    /// A fragment with this id arrived. True if it demands fragments.
    pub(crate) fn note(&mut self, id: u32, now: Instant) -> bool {
        let demands = id & DEMAND != 0;
        if demands {
            self.demanded_until = Some(now + DEMAND_HOLD);
        }
        demands
    }

    /// The id of the next packet's fragments.
    pub(crate) fn next_id(&mut self) -> u32 {
        self.last_id = self.last_id.wrapping_add(1) & !DEMAND;
        self.last_id | if self.narrow { DEMAND } else { 0 }
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
fn is_between(length: usize) -> bool {
    (UNSPLIT + 1..=LONGEST).contains(&length)
}

/// Whether a packet of ours tests the path. QUIC's first ones may be as long, and wait for a
/// session.
fn is_test(packet: &[u8]) -> bool {
    packet.len() == TEST && inner::destination_port(packet) != ports::STREAMS
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

/// The fragments of a packet of ours, of `piece` bytes but for the last.
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
        assert!(follower.note(finder.next_id(), now));
        assert!(!follower.is_on(now), "a hello tells whether a peer joins, not a demand");
        follower.joins = true;
        assert!(follower.is_on(now + DEMAND_HOLD / 2) && !follower.is_on(now + DEMAND_HOLD));
        finder.narrow = false;
        assert!(!finder.note(follower.next_id(), now));
        assert!(!follower.note(finder.next_id(), now + DEMAND_HOLD / 2));
        assert!(!finder.is_on(now) && !follower.is_on(now + DEMAND_HOLD));
    }

    #[test]
    fn ids_of_another_process_begin_elsewhere() {
        assert_eq!(Split::new(7 << 32).next_id(), 8);
        assert_eq!(Split::new(u64::MAX).next_id(), 0, "the top bit is the demand's");
    }

    #[test]
    fn packets_that_test_the_path_and_short_ones_stay_whole() {
        let now = Instant::now();
        let mut split = Split { joins: true, narrow: true, ..Split::default() };
        for (length, expected) in [
            (UNSPLIT, false),
            (UNSPLIT + 1, true),
            (TEST, false),
            (LONGEST, true),
            (LONGEST + 1, false),
        ] {
            assert_eq!(split.concerns(&vec![0; length], false, now), expected, "{length}");
        }
        // QUIC's are known by their port, also those as long as a test.
        for (datagram, expected) in [(608, false), (609, true), (1200, true), (1401, false)] {
            assert_eq!(split.concerns_streams(datagram, now), expected, "{datagram}");
        }
        split.narrow = false;
        let long = [0; UNSPLIT + 1];
        assert!(split.concerns(&long, true, now) && !split.concerns(&long, false, now));
        split.joins = false;
        assert!(!split.concerns(&long, true, now));
    }
}
