//! Joins the fragments of inner packets (RFC 8200, section 4.5).
//!
//! A packet that overlaps itself or does not fit together is refused, with all of its fragments
//! (RFC 5722). WireGuard drops repeated datagrams, so a repeated fragment is an overlap.
//!
//! Bounds: [`MAX_PARTIAL`] packets of all peers, [`MAX_PARTIAL_OF_PEER`] of each, [`MAX_JOINED`]
//! bytes of a packet: 2.4 MB for each shard. What does not become whole is dropped when a newer one
//! needs its place, or by the first fragment after [`PATIENCE`].

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::inner::{self, Fragment, IPV6_HEADER};
use crate::peers::Slot;
use crate::settings::MAX_MTU;

/// Packets of which fragments are missing, of all peers.
const MAX_PARTIAL: usize = 256;
/// The same of one peer: the fragments of a packet follow each other, and the path may reorder.
const MAX_PARTIAL_OF_PEER: usize = 16;
/// Longest payload of a packet in bytes: nothing longer is sent whole.
pub(crate) const MAX_JOINED: usize = MAX_MTU as usize;
/// Fragments of a packet: [`MAX_JOINED`] bytes in those of [`split`](crate::split), twice over.
const MAX_FRAGMENTS: usize = 32;
/// How long fragments wait for the others. QUIC has repeated a lost packet long before.
const PATIENCE: Duration = Duration::from_secs(2);

/// The fragments that wait for others.
#[derive(Debug, Default)]
pub(crate) struct Reassembly {
    /// By the arrival of their first fragment.
    partial: VecDeque<Partial>,
}

/// What a fragment led to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Joined {
    /// A whole packet.
    Whole(Vec<u8>),
    /// Others are missing.
    Partial,
    /// It does not fit the others, or the packet would be too long.
    Refused,
}

/// A packet of which fragments are missing.
#[derive(Debug)]
struct Partial {
    slot: Slot,
    id: u32,
    since: Instant,
    /// The packet, with room for its header; empty if it is refused.
    bytes: Vec<u8>,
    /// The parts of the payload that have arrived, in any order.
    parts: Vec<Range<usize>>,
    /// Length of the payload, known from the last fragment.
    total: Option<usize>,
}

impl Reassembly {
    /// Takes a fragment of the peer at `slot`. Returns what it completes, and the number of packets
    /// that were given up for it.
    pub(crate) fn take(
        &mut self,
        slot: Slot,
        fragment: &Fragment<'_>,
        now: Instant,
    ) -> (Joined, u64) {
        let mut dropped = 0;
        let is_late = |it: &Partial| now.saturating_duration_since(it.since) >= PATIENCE;
        while self.partial.front().is_some_and(is_late) {
            dropped += self.drop_at(0);
        }
        let is_same = |it: &Partial| it.slot == slot && it.id == fragment.id;
        let at = self.partial.iter().rposition(is_same).unwrap_or_else(|| {
            dropped += self.make_room(slot);
            self.partial.push_back(Partial::new(slot, fragment.id, now));
            self.partial.len() - 1
        });
        let partial = &mut self.partial[at];
        let joined = match partial.add(fragment) {
            Some(true) => {
                let mut whole = std::mem::take(&mut partial.bytes);
                self.partial.remove(at);
                let length = whole.len() - IPV6_HEADER;
                let Fragment { addresses, protocol, .. } = fragment;
                inner::write_header(addresses, *protocol, length, &mut whole[..IPV6_HEADER]);
                Joined::Whole(whole)
            }
            Some(false) => Joined::Partial,
            None => {
                partial.bytes = Vec::new();
                Joined::Refused
            }
        };
        (joined, dropped)
    }

    /// Drops a packet. Returns the number to count: fragments of a refused one were counted.
    fn drop_at(&mut self, at: usize) -> u64 {
        self.partial.remove(at).map_or(0, |it| u64::from(!it.bytes.is_empty()))
    }

    /// Makes room for another packet of a peer. Returns the number to count of those dropped.
    fn make_room(&mut self, slot: Slot) -> u64 {
        let of_peer = |it: &&Partial| it.slot == slot;
        let oldest = match self.partial.iter().filter(of_peer).count() {
            MAX_PARTIAL_OF_PEER.. => self.partial.iter().position(|it| it.slot == slot),
            _ if self.partial.len() >= MAX_PARTIAL => Some(0),
            _ => None,
        };
        oldest.map_or(0, |at| self.drop_at(at))
    }

    /// Forgets the fragments of the peer at `slot`, which another one may take.
    pub(crate) fn forget(&mut self, slot: Slot) {
        self.partial.retain(|it| it.slot != slot);
    }
}

impl Partial {
    fn new(slot: Slot, id: u32, now: Instant) -> Self {
        let (bytes, parts) = (vec![0; IPV6_HEADER], Vec::new());
        Self { slot, id, since: now, bytes, parts, total: None }
    }

    /// Whether that makes it whole; `None` if it is refused.
    fn add(&mut self, fragment: &Fragment<'_>) -> Option<bool> {
        let part = fragment.offset..fragment.offset + fragment.part.len();
        let total = if fragment.has_more { self.total } else { Some(part.end) };
        let is_first_last = fragment.has_more || self.total.is_none();
        let has_room = self.parts.len() < MAX_FRAGMENTS && part.end <= MAX_JOINED;
        let fits = !self.bytes.is_empty() && is_first_last && has_room;
        let is_inside = |it: &Range<usize>| total.is_none_or(|total| it.end <= total);
        let overlaps = |it: &Range<usize>| it.start < part.end && part.start < it.end;
        let agrees = |it: &Range<usize>| is_inside(it) && !overlaps(it);
        if !fits || !is_inside(&part) || !self.parts.iter().all(agrees) {
            return None;
        }
        let end = IPV6_HEADER + part.end;
        if let Some(missing) = end.checked_sub(self.bytes.len()) {
            self.bytes.reserve_exact(missing);
            self.bytes.resize(end, 0);
        }
        self.bytes[IPV6_HEADER + part.start..end].copy_from_slice(fragment.part);
        self.total = total;
        self.parts.push(part);
        let arrived: usize = self.parts.iter().map(ExactSizeIterator::len).sum();
        Some(total == Some(arrived))
    }
}

#[cfg(test)]
mod tests;
