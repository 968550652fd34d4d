#![expect(clippy::disallowed_methods, reason = "an origin for made-up time")]

use std::net::Ipv6Addr;

use proptest::prelude::*;

use super::*;
use crate::inner::FRAGMENT_OVERHEAD;
use crate::inner::{Flow, Packet, UDP_OVERHEAD};
use crate::split;

const UDP: u8 = 17;

fn flow() -> Flow {
    let (source, destination) = (Ipv6Addr::LOCALHOST, Ipv6Addr::UNSPECIFIED);
    Flow { source, destination, source_port: 7401, destination_port: 7402 }
}

/// A UDP packet of `length` bytes of payload, with padding behind it.
fn packet(length: usize, padding: usize) -> Vec<u8> {
    let payload: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
    let mut packet = vec![0; UDP_OVERHEAD + length + padding];
    inner::write_udp(&flow(), &payload, &mut packet);
    packet
}

fn fragment(id: u32, offset: usize, has_more: bool, part: &[u8]) -> Fragment<'_> {
    let addresses = inner::addresses(&packet(0, 0));
    Fragment { addresses, protocol: UDP, id, offset, has_more, part }
}

/// Takes fragments of one packet, each `(offset, length, has_more)`; the last result.
fn takes(all: &[(usize, usize, bool)]) -> Joined {
    let (mut reassembly, now) = (Reassembly::default(), Instant::now());
    let mut last = Joined::Partial;
    for (offset, length, has_more) in all {
        let part = vec![7; *length];
        last = reassembly.take(Slot::FIRST, &fragment(1, *offset, *has_more, &part), now).0;
    }
    last
}

fn is_whole(joined: &Joined) -> bool {
    matches!(joined, Joined::Whole(_))
}

proptest! {
    /// Whatever the order in which fragments of several packets arrive.
    #[test]
    fn what_is_split_is_joined(
        lengths in prop::collection::vec((0_usize..9000, 0_usize..16), 1..5),
        piece in 1_usize..200,
        seed: u64,
    ) {
        let (mut reassembly, now) = (Reassembly::default(), Instant::now());
        let packets: Vec<_> = lengths.iter().map(|it| packet(it.0, it.1)).collect();
        let mut all = Vec::new();
        for (number, packet) in packets.iter().enumerate() {
            let least = inner::body(packet).len().div_ceil(MAX_FRAGMENTS);
            let piece = (piece * 8).max(least.next_multiple_of(8));
            let id = u32::try_from(number).unwrap();
            for part in split::fragments(packet, piece, id) {
                let mut out = vec![0; FRAGMENT_OVERHEAD + part.part.len() + 3];
                let length = inner::write_fragment(&part, &mut out);
                prop_assert_eq!(length, out.len() - 3);
                let expected = Ok(Packet::Fragment(part));
                prop_assert_eq!(inner::parse(&out), expected, "padding is ignored");
                all.push((number, out));
            }
        }
        let mut state = seed;
        all.sort_by_cached_key(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state >> 33
        });
        let mut joined = 0;
        for (number, bytes) in &all {
            let Ok(Packet::Fragment(fragment)) = inner::parse(bytes) else { panic!("unreadable") };
            let (found, dropped) = reassembly.take(Slot::FIRST, &fragment, now);
            prop_assert_eq!(dropped, 0);
            if let Joined::Whole(whole) = found {
                let padding = lengths[*number].1;
                prop_assert_eq!(&whole[..], &packets[*number][..packets[*number].len() - padding]);
                joined += 1;
            }
        }
        prop_assert_eq!(joined, packets.len());
        prop_assert!(reassembly.partial.is_empty());
    }

    /// Any fragments are joined to what they say, or refused; memory is bounded.
    #[test]
    fn any_fragments_are_survived(
        all in prop::collection::vec((0_u32..3, 0_usize..40, any::<bool>(), 1_usize..40), 1..200),
    ) {
        let (mut reassembly, now) = (Reassembly::default(), Instant::now());
        for (id, offset, has_more, length) in all {
            let part = vec![1; if has_more { length * 8 } else { length }];
            let fragment = fragment(id, offset * 8, has_more, &part);
            let taken = reassembly.take(Slot::FIRST, &fragment, now);
            if let (Joined::Whole(whole), _) = taken {
                // No byte is missing.
                prop_assert!(whole[IPV6_HEADER..].iter().all(|byte| *byte == 1));
            }
            prop_assert!(reassembly.partial.len() <= 3);
        }
    }
}

#[test]
fn fragments_that_do_not_fit_together_are_refused() {
    assert!(is_whole(&takes(&[(0, 16, true), (16, 5, false)])));
    assert!(is_whole(&takes(&[(16, 5, false), (8, 8, true), (0, 8, true)])));
    assert!(is_whole(&takes(&[(0, 5, false)])));
    for (wrong, why) in [
        (&[(0, 16, true), (8, 16, true)][..], "an overlap"),
        (&[(0, 16, true), (0, 16, true)], "the same again"),
        (&[(0, 16, true), (8, 20, false)], "an overlap of the last one"),
        (&[(16, 5, false), (16, 8, true)], "one behind the last"),
        (&[(0, 32, true), (16, 5, false)], "an end before others"),
        (&[(16, 5, false), (24, 5, false)], "two ends"),
        (&[(MAX_JOINED - 8, 16, true)], "a long packet"),
    ] {
        assert_eq!(takes(wrong), Joined::Refused, "{why}");
    }
    // Nothing of such a packet is used later.
    let rest = [(0, 16, true), (8, 16, true), (0, 16, true), (16, 5, false)];
    assert_eq!(takes(&rest), Joined::Refused);
}

#[test]
fn a_refused_packet_is_counted_once() {
    let (mut reassembly, now) = (Reassembly::default(), Instant::now());
    let mut take = |id: u32, has_more, now| {
        reassembly.take(Slot::FIRST, &fragment(id, 0, has_more, &[7; 8]), now)
    };
    assert_eq!(take(1, true, now), (Joined::Partial, 0));
    assert_eq!(take(1, true, now), (Joined::Refused, 0));
    assert_eq!(take(2, true, now), (Joined::Partial, 0));
    assert_eq!(take(3, true, now + PATIENCE), (Joined::Partial, 1), "only the second");
}

#[test]
fn fragments_wait_within_bounds() {
    let (mut reassembly, now) = (Reassembly::default(), Instant::now());
    let mut take = |slot: u32, id: u32, now| {
        let slot = (0..slot).fold(Slot::FIRST, |slot, _| slot.next());
        let (joined, dropped) = reassembly.take(slot, &fragment(id, 0, true, &[7; 8]), now);
        assert_eq!(joined, Joined::Partial);
        (dropped, reassembly.partial.len())
    };
    for id in 0..16 {
        assert_eq!(take(0, id, now), (0, id as usize + 1));
    }
    assert_eq!(take(0, 16, now), (1, MAX_PARTIAL_OF_PEER));
    for slot in 1..16 {
        for id in 0..16 {
            assert_eq!(take(slot, id, now).0, 0);
        }
    }
    assert_eq!(take(16, 0, now), (1, MAX_PARTIAL), "the oldest of all goes");
    assert_eq!(take(17, 0, now + PATIENCE), (MAX_PARTIAL as u64, 1));
}

/// Another peer gets the slot.
#[test]
fn fragments_of_a_peer_that_is_gone_are_forgotten() {
    let (mut reassembly, now) = (Reassembly::default(), Instant::now());
    reassembly.take(Slot::FIRST, &fragment(1, 0, true, &[7; 8]), now);
    reassembly.forget(Slot::FIRST.next());
    assert_eq!(reassembly.partial.len(), 1);
    reassembly.forget(Slot::FIRST);
    let (joined, _) = reassembly.take(Slot::FIRST, &fragment(1, 8, false, &[7; 8]), now);
    assert_eq!(joined, Joined::Partial);
}
