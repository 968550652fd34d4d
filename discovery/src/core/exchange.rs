//! Comparison of directories: each datagram is answered without state and within bounds.

use std::time::Instant;

use meshport_config::NodeId;
use meshport_config::planted::{Bug, is_planted};

use super::Discovery;
use crate::Count;
use crate::news::Offer;
use crate::wire::{
    self, BUCKETS, Claim, Have, Haves, Item, LastLife, MAX_DATAGRAM, Message, Packed, Short, Wanted,
};

/// Maximum number of lists in answer to one datagram: enough for a thousand nodes.
const MAX_LISTS: usize = 16;
/// Datagrams of records sent in answer to one request, and pushed without one after a comparison.
const MAX_REPLY: usize = 16;
const MAX_PUSH: usize = 4;
/// Records pushed without a request; a peer that lacks more gets a list instead.
const PUSHED_RECORDS: usize = 8;
/// While the directory is full, one of this many unknown nodes in a list is requested: two full
/// directories with different entries would otherwise exchange all of them at each comparison.
const ASKED_WHEN_CROWDED: usize = 16;
/// Room for entries in a list: the datagram without its header and the two ends of the range.
const LIST_ROOM: usize = MAX_DATAGRAM - 24;

impl Discovery {
    /// Begins a comparison.
    pub(super) fn compare_with(&mut self, peer: NodeId) {
        self.outbox.counters[Count::Syncs] += 1;
        let root = self.root();
        self.send(peer, &Message::Root(root));
    }

    /// The digest of everything compared.
    fn root(&self) -> [u8; 8] {
        (self.peers.directory.root() ^ self.trust.revocations.digest()).to_le_bytes()
    }

    pub(super) fn take_root(&mut self, from: NodeId, root: [u8; 8], now: Instant) {
        if !self.may_reply(from, now) {
            return;
        }
        if root == self.root() || is_planted(Bug::Comparison) {
            self.send(from, &Message::Same);
            return;
        }
        let all =
            self.peers.directory.buckets().iter().copied().chain([self.trust.revocations.digest()]);
        let digests: Vec<u8> = all.flat_map(u64::to_le_bytes).collect();
        self.send(from, &Message::Summary(&digests));
    }

    pub(super) fn take_summary(&mut self, from: NodeId, digests: &[u8], now: Instant) {
        self.gossip.sync.answered();
        let (digests, revocations) = digests.split_at(BUCKETS * 8);
        self.compare_revocations(from, revocations, now);
        let mut theirs = digests.chunks_exact(8);
        let mut differ = [false; BUCKETS];
        for (bucket, mine) in self.peers.directory.buckets().iter().enumerate() {
            differ[bucket] = theirs.next() != Some(&mine.to_le_bytes()[..]);
        }
        // Starts at a random bucket, so that a truncated list is completed by later ones.
        let start = self.dice.below(BUCKETS);
        let mut ranges: Vec<(Short, Short)> = Vec::new();
        for bucket in (start..BUCKETS).chain(0..start).filter(|bucket| differ[*bucket]) {
            let (low, high) = Short::bounds(bucket);
            match ranges.last_mut() {
                Some((_, end)) if bucket > 0 && *end == Short::bounds(bucket - 1).1 => *end = high,
                _ => ranges.push((low, high)),
            }
        }
        self.send_lists(from, &ranges, now);
    }

    /// Takes the peer's entries in a range. Sends those that it lacks, or a list of them if there
    /// are many, and requests those that this node lacks.
    pub(super) fn take_haves(&mut self, from: NodeId, haves: &Haves, now: Instant) {
        let mut owed: Vec<Offer> = Vec::new();
        let mut claims: Vec<(NodeId, Claim)> = Vec::new();
        let mut listed = haves.entries.iter().peekable();
        let range = self.peers.directory.range(haves.from, haves.to);
        let mine: Vec<(NodeId, Have)> = range.map(|entry| (entry.node(), entry.have())).collect();
        for (node, have) in mine {
            while let Some(theirs) = listed.next_if(|it| it.short < have.short) {
                self.fetch_unknown(theirs, from);
            }
            let Some(theirs) = listed.next_if(|it| it.short == have.short) else {
                owed.push(Offer::whole(node));
                continue;
            };
            // The same record under another digest: the credential differs.
            let credential = theirs.revision == have.revision && theirs.digest != have.digest;
            if theirs.revision > have.revision || credential {
                self.fetch(have.short, credential, from);
            }
            if have.revision > theirs.revision || credential || have.life > theirs.life {
                owed.push(Offer { node, with_credential: credential });
            }
            if theirs.life > have.life
                && let Some(claim) = theirs.life.map(LastLife::claim)
                && self.believes(from, node, claim, now)
            {
                claims.push((node, claim));
            }
        }
        for theirs in listed {
            self.fetch_unknown(theirs, from);
        }
        self.apply_claims(claims, false, now);
        if owed.len() > PUSHED_RECORDS && haves.entries.len() < PUSHED_RECORDS {
            self.send_lists(from, &[(haves.from, haves.to)], now);
        } else {
            owed.truncate(2 * PUSHED_RECORDS);
            self.send_items(from, owed, MAX_PUSH, now);
        }
    }

    pub(super) fn take_want(&mut self, from: NodeId, wanted: &[Wanted], now: Instant) {
        let offer = |it: &Wanted| {
            let node = self.peers.directory.resolve(it.short)?;
            Some(Offer { node, with_credential: it.with_credential })
        };
        let offers: Vec<Offer> = wanted.iter().filter_map(offer).collect();
        self.send_items(from, offers, MAX_REPLY, now);
    }

    /// Notes a record to request from a peer.
    pub(super) fn fetch(&mut self, short: Short, with_credential: bool, from: NodeId) {
        let taken = self.gossip.sync.want(short, with_credential, from);
        self.outbox.counters[Count::DroppedWants] += u64::from(!taken);
    }

    pub(super) fn send_record(&mut self, to: NodeId, node: NodeId, now: Instant) {
        self.send_items(to, [Offer::record(node)], 1, now);
    }

    /// One datagram with the newest records of as many of these nodes as fit, in order.
    pub(super) fn pack_rumours(&self, offers: &[Offer]) -> Packed {
        let parts: Vec<_> = offers.iter().filter_map(|offer| self.parts(*offer)).collect();
        wire::pack(parts.iter().map(OwnedItem::item), Message::Rumours, 1)
    }

    pub(super) fn send_items(
        &mut self,
        to: NodeId,
        offers: impl IntoIterator<Item = Offer>,
        limit: usize,
        now: Instant,
    ) {
        for payload in self.pack_items(offers, limit) {
            if self.may_reply(to, now) {
                self.send_bytes(to, payload);
            }
        }
    }

    /// The records of some nodes, in at most this many datagrams.
    pub(super) fn pack_items(
        &self,
        offers: impl IntoIterator<Item = Offer>,
        limit: usize,
    ) -> Vec<Vec<u8>> {
        let parts: Vec<_> = offers.into_iter().filter_map(|offer| self.parts(offer)).collect();
        wire::pack(parts.iter().map(OwnedItem::item), Message::Items, limit).datagrams
    }

    /// Lists everything in some ranges, as far as the bound allows.
    fn send_lists(&mut self, to: NodeId, ranges: &[(Short, Short)], now: Instant) {
        let mut lists = 0;
        for (low, high) in ranges {
            let mut from = Some(*low);
            while let Some(start) = from {
                if lists >= MAX_LISTS || !self.may_reply(to, now) {
                    return;
                }
                let (haves, rest) = self.list(start, *high);
                self.send(to, &Message::Haves(haves));
                lists += 1;
                from = rest;
            }
        }
    }

    /// As much of a range as fits a datagram, and the start of the rest.
    fn list(&self, from: Short, to: Short) -> (Haves, Option<Short>) {
        let mut entries = Vec::new();
        let mut size = 0;
        for entry in self.peers.directory.range(from, to) {
            let have = entry.have();
            size += wire::size_of(&have);
            if size > LIST_ROOM {
                let end = have.short.before();
                return (Haves { from, to: end, entries }, Some(have.short));
            }
            entries.push(have);
        }
        (Haves { from, to, entries }, None)
    }

    fn fetch_unknown(&mut self, theirs: &Have, from: NodeId) {
        // Most would be refused; new members and new origins arrive as news.
        if self.peers.directory.is_crowded() && self.dice.below(ASKED_WHEN_CROWDED) > 0 {
            return;
        }
        // A node this one has forgotten, or is about to forget, is not fetched again.
        if !self.peers.directory.is_past(theirs.short, theirs.revision) {
            self.fetch(theirs.short, true, from);
        }
    }

    fn may_reply(&mut self, to: NodeId, now: Instant) -> bool {
        let allowed = self.peers.contacts.allow_reply(to, now);
        self.outbox.counters[Count::DroppedRequests] += u64::from(!allowed);
        allowed
    }

    /// The messages about a node.
    fn parts(&self, offer: Offer) -> Option<OwnedItem> {
        let Offer { node, with_credential } = offer;
        let entry = self.peers.get(&node)?;
        let have = entry.have();
        let claim = match node == self.peers.me {
            true => Some(self.swim.own_claim()),
            false => have.life.map(LastLife::claim),
        };
        Some(OwnedItem {
            short: have.short,
            credential: with_credential.then(|| entry.credential.to_bytes()),
            state: entry.state.clone(),
            claim,
        })
    }
}

/// An item with its own bytes.
struct OwnedItem {
    short: Short,
    credential: Option<Vec<u8>>,
    state: Option<std::sync::Arc<crate::state::SignedState>>,
    claim: Option<Claim>,
}

impl OwnedItem {
    fn item(&self) -> Item<'_> {
        Item {
            short: self.short,
            credential: self.credential.as_deref(),
            state: self.state.as_ref().map(|state| state.as_bytes()),
            claim: self.claim,
        }
    }
}
