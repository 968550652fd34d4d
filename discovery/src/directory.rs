//! The directory: this node's data about all nodes of the mesh.
//!
//! A record is a verified credential with, optionally, a verified signed state. Merging keeps the
//! newest credential and the newest state of each node. Both are maxima of total orders, so merging
//! is commutative, associative and idempotent, and all nodes end with the same directory,
//! regardless of the order of records. Liveness is stored next to the records, not in them: it is
//! membership's current view.
//!
//! Bounded by [`MAX_MEMBERS`] entries, and [`MAX_OF_INVITE`] of one invite; `eviction` decides
//! which stay when it is full. Forgetting is not merging: a forgotten node leaves a tombstone that
//! refuses the records known then, so a late copy cannot bring it back.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use meshport_config::planted::{Bug, is_planted};
use meshport_config::{Credential, NodeId, Role, ServiceName, UnixSeconds, words};

use crate::state::{Life, NodeState, OriginState, Revision, SignedState};
use crate::table::{Named, Table};
use crate::wire::{BUCKETS, Claim, Have, LastLife, Short, Standing};

mod eviction;

use eviction::Occupancy;
pub(crate) use eviction::{Admission, Priority};
pub use eviction::{Crowding, MAX_OF_INVITE};

/// Maximum number of entries, down and left ones included: three times the largest supported mesh.
pub const MAX_MEMBERS: usize = 16_384;
/// Number of tombstones; beyond it the oldest are dropped.
pub const MAX_TOMBSTONES: usize = 16_384;
/// Dropped in batches of this size, since finding the oldest means searching all.
const GIVEN_UP: usize = MAX_TOMBSTONES / 16;

words! {
    /// Whether a node is there, as far as membership knows.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Liveness {
        /// Known only by its record; not heard since this node started.
        Unknown => "unknown",
        /// A member.
        Alive => "alive",
        /// Declared down by the members.
        Down => "down",
        /// Left on purpose.
        Left => "left",
    }
}

/// The known facts about one node.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The newest verified credential.
    pub credential: Arc<Credential>,
    /// The newest verified record of the node itself.
    pub state: Option<Arc<SignedState>>,
    /// Whether it is there.
    pub liveness: Liveness,
    /// Time of the last change of `liveness`.
    pub since: Instant,
    /// When `state` arrived, or the credential if there is no state.
    pub told: Instant,
    /// The life known to membership; `None` if it was never a member.
    pub(crate) life: Option<Life>,
    /// Incarnation and standing of the strongest claim about that process passed to membership
    /// since `liveness` last changed.
    claimed: Option<(u16, Standing)>,
    /// No longer sent to others, because it will be forgotten.
    pub(crate) fading: bool,
    /// There was a tunnel with it since this node started.
    met: bool,
    /// There is one now.
    here: bool,
    /// Its record is its farewell. Kept here because it is needed for the sender of each datagram,
    /// and records are stored elsewhere.
    left: bool,
    digest: u64,
}

impl Named for Entry {
    fn node(&self) -> &NodeId {
        &self.credential.node
    }
}

impl Entry {
    /// The node.
    pub fn node(&self) -> NodeId {
        self.credential.node
    }

    /// The node's statement about itself, if it has made one.
    pub fn node_state(&self) -> Option<&NodeState> {
        self.state.as_deref().map(SignedState::get)
    }

    /// The node's announced addresses.
    pub fn endpoints(&self) -> &[SocketAddr] {
        self.node_state().map_or(&[], |state| &state.endpoints)
    }

    /// The services the node offers and its credential allows it to offer.
    pub fn services(&self) -> impl Iterator<Item = (&ServiceName, OriginState)> {
        let all = self.node_state().map_or(&[][..], |state| &state.services);
        all.iter().filter(|(name, _)| self.may_offer(name)).map(|(name, state)| (name, *state))
    }

    /// The services the node announces and its credential does not allow it to offer.
    pub fn ignored_services(&self) -> impl Iterator<Item = &ServiceName> {
        let all = self.node_state().map_or(&[][..], |state| &state.services);
        all.iter().map(|(name, _)| name).filter(|name| !self.may_offer(name))
    }

    /// The state of one service, if the node offers it and is allowed to.
    pub fn service(&self, name: &ServiceName) -> Option<OriginState> {
        self.services().find(|(offered, _)| *offered == name).map(|(_, state)| state)
    }

    /// Whether the credential has the role `origin:<name>`.
    pub fn may_offer(&self, name: &ServiceName) -> bool {
        self.credential.roles.may_offer(name)
    }

    /// The life that the node itself ended by leaving, if its latest record says that it left.
    pub(crate) fn farewell(&self) -> Option<Life> {
        self.node_state().filter(|_| self.left).map(NodeState::life)
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.liveness == Liveness::Alive
    }

    /// Whether a claim is old news for membership: it has received that one, or a stronger one.
    pub(crate) fn is_old_news(&self, claim: &Claim) -> bool {
        let strongest = || self.claimed >= Some((claim.incarnation, claim.standing));
        self.life == Some(claim.life)
            && match self.liveness {
                Liveness::Alive => claim.standing != Standing::Down && strongest(),
                Liveness::Down => claim.standing == Standing::Down,
                Liveness::Unknown | Liveness::Left => false,
            }
    }

    fn is_over(&self) -> bool {
        matches!(self.liveness, Liveness::Down | Liveness::Left)
    }

    /// The entry's form in a list.
    pub(crate) fn have(&self) -> Have {
        let mut digest = [0; 4];
        digest.copy_from_slice(&self.record_digest().to_le_bytes()[..4]);
        Have {
            short: Short::of(&self.node()),
            revision: self.revision(),
            digest,
            life: self.life.map(|life| LastLife { life, is_over: self.is_over() }),
        }
    }

    /// The revision of its record; the lowest one if there is none.
    fn revision(&self) -> Revision {
        self.node_state().map(NodeState::revision).unwrap_or_default()
    }

    fn record_digest(&self) -> u64 {
        mix(self.credential.tag(), self.state.as_ref().map_or(0, |state| state.tag()))
    }

    pub(crate) fn full_digest(&self) -> u64 {
        if self.fading {
            return 0;
        }
        let life = self.life.map_or(0, |life| {
            mix(mix(life.generation, u64::from(life.renewal)), 1 + u64::from(self.is_over()))
        });
        mix(mix(self.record_digest(), life), u64::from_le_bytes(Short::of(&self.node()).0))
    }
}

/// A verified credential and, optionally, a verified state of the same node. The code that makes
/// one has verified both.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    pub(crate) credential: Arc<Credential>,
    pub(crate) state: Option<Arc<SignedState>>,
}

/// The result of merging a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Merge {
    /// It contained nothing new.
    Unchanged,
    /// The first record of this node.
    New,
    /// The credential is newer.
    Credential,
    /// The state is newer; the credential may be too.
    State,
    /// Refused: there is no place for it.
    Full,
    /// Refused: the node was forgotten with this record or a newer one.
    Forgotten,
}

#[derive(Debug, Clone, Copy)]
struct Tombstone {
    revision: Revision,
    at: Instant,
}

/// All known nodes, ordered by id.
#[derive(Debug)]
pub struct Directory {
    entries: Table<Entry>,
    origins: BTreeMap<ServiceName, BTreeSet<NodeId>>,
    /// Nodes that may relay.
    relays: BTreeSet<NodeId>,
    tombstones: BTreeMap<NodeId, Tombstone>,
    buckets: Vec<u64>,
    alive: usize,
    /// No credential of an entry expires before this.
    first_end: UnixSeconds,
    occupancy: Occupancy,
}

impl Directory {
    pub(crate) fn new() -> Self {
        Self {
            entries: Table::default(),
            origins: BTreeMap::new(),
            relays: BTreeSet::new(),
            tombstones: BTreeMap::new(),
            buckets: vec![0; BUCKETS],
            alive: 0,
            first_end: UnixSeconds(u64::MAX),
            occupancy: Occupancy::default(),
        }
    }

    /// The known facts about a node.
    pub fn get(&self, node: &NodeId) -> Option<&Entry> {
        self.entries.get(node)
    }

    /// All entries with this node's own, ascending by id.
    pub fn iter(&self) -> impl Iterator<Item = (&NodeId, &Entry)> {
        self.entries.iter().map(|entry| (&entry.credential.node, entry))
    }

    /// Number of known nodes of any liveness.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether every entry is a living member whose credential is valid at `wall`, so that there is
    /// nothing to search or sweep.
    pub(crate) fn is_settled(&self, wall: UnixSeconds) -> bool {
        self.alive == self.entries.len() && wall < self.first_end
    }

    /// Updates when the first credential expires, after some have been removed.
    pub(crate) fn find_first_end(&mut self) {
        let ends = self.entries.iter().map(|entry| entry.credential.expires_at);
        self.first_end = ends.min().unwrap_or(UnixSeconds(u64::MAX));
    }

    /// How many members are alive, this node included.
    pub fn alive(&self) -> usize {
        self.alive
    }

    /// The nodes that offer a service and are allowed to, with the state that each announces,
    /// ascending by id. Includes nodes that are down: membership may be wrong, and a path may still
    /// work.
    pub fn origins(&self, service: &ServiceName) -> impl Iterator<Item = (&Entry, OriginState)> {
        let nodes = self.origins.get(service).into_iter().flatten();
        nodes.filter_map(move |node| {
            let entry = self.entries.get(node)?;
            Some((entry, entry.service(service)?))
        })
    }

    /// The services that at least one node offers and is allowed to.
    pub fn services(&self) -> impl Iterator<Item = &ServiceName> {
        self.origins.keys()
    }

    /// The nodes whose credential allows them to relay, of any liveness, ascending by id.
    pub fn relays(&self) -> impl Iterator<Item = &Entry> {
        self.relays.iter().filter_map(|node| self.entries.get(node))
    }

    /// The node with a short id, if it is known.
    pub(crate) fn resolve(&self, short: Short) -> Option<NodeId> {
        self.entry_of(short).map(Entry::node)
    }

    /// The entry of the node with a short id.
    pub(crate) fn entry_of(&self, short: Short) -> Option<&Entry> {
        let first = self.entries.at_least(&short.lowest());
        first.filter(|entry| Short::of(&entry.credential.node) == short)
    }

    /// Whether a node is forgotten, or about to be, with this record or a newer one.
    pub(crate) fn is_past(&self, short: Short, revision: Revision) -> bool {
        let mut buried = self.tombstones.range(short.lowest()..=short.highest());
        let mut fading = self.entries.range(short.lowest(), short.highest());
        buried.next().is_some_and(|(_, tombstone)| revision <= tombstone.revision)
            || fading.next().is_some_and(|entry| entry.fading && revision <= entry.revision())
    }

    /// The entries in a range of short ids that are sent to others.
    pub(crate) fn range(&self, from: Short, to: Short) -> impl Iterator<Item = &Entry> {
        let range = (from <= to).then(|| self.entries.range(from.lowest(), to.highest()));
        range.into_iter().flatten().filter(|entry| !entry.fading)
    }

    /// Entries from the first id not below `start`, wrapping around once.
    pub(crate) fn around(
        &self,
        start: NodeId,
    ) -> impl DoubleEndedIterator<Item = (&NodeId, &Entry)> {
        self.entries.around(start).map(|entry| (&entry.credential.node, entry))
    }

    /// Entries from a random one on, wrapping around once.
    pub(crate) fn drawn(&self, draw: u64) -> impl Iterator<Item = (&NodeId, &Entry)> {
        self.entries.drawn(draw).map(|entry| (&entry.credential.node, entry))
    }

    /// Reserves memory for this many entries, to avoid repeated reallocation.
    pub(crate) fn reserve(&mut self, count: usize) {
        self.entries.reserve(count.min(MAX_MEMBERS));
    }

    /// The digest of each bucket.
    pub(crate) fn buckets(&self) -> &[u64] {
        &self.buckets
    }

    /// The digest of everything.
    pub(crate) fn root(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, bucket| mix(sum, *bucket))
    }

    /// Merges a record; see the module for the laws that hold as long as nothing is forgotten and
    /// no limit is reached.
    pub(crate) fn merge(&mut self, record: &Record, now: Instant) -> Merge {
        let node = record.credential.node;
        if let Some(tombstone) = self.tombstones.get(&node) {
            let revision = record.state.as_ref().map(|state| state.get().revision());
            if revision.is_none_or(|revision| revision <= tombstone.revision) {
                return Merge::Forgotten;
            }
        }
        let Some(known) = self.entries.get(&node) else {
            if !self.has_place_for(&record.credential) {
                return Merge::Full;
            }
            self.tombstones.remove(&node);
            self.insert(Entry {
                credential: Arc::clone(&record.credential),
                state: record.state.clone(),
                liveness: Liveness::Unknown,
                since: now,
                told: now,
                life: None,
                claimed: None,
                fading: false,
                met: false,
                here: false,
                left: record.state.as_ref().is_some_and(|state| state.get().left),
                digest: 0,
            });
            return Merge::New;
        };
        let newer_credential = credential_order(&record.credential, &known.credential).is_gt();
        let newer_state = record.state.as_ref().filter(|state| {
            let last = is_planted(Bug::MergeLaw);
            let order = known.state.as_ref().map(|known| state.order(known));
            order.is_none_or(|order| order.is_gt() || (last && order.is_lt()))
        });
        let outcome = match (newer_state, newer_credential) {
            (Some(_), _) => Merge::State,
            (None, true) => Merge::Credential,
            (None, false) => return Merge::Unchanged,
        };
        self.unindex(&node);
        self.change(&node, |entry| {
            if newer_credential {
                entry.credential = Arc::clone(&record.credential);
            }
            if let Some(state) = newer_state {
                entry.state = Some(Arc::clone(state));
                entry.told = now;
                entry.left = state.get().left;
            }
        });
        self.index(&node);
        outcome
    }

    /// Replaces the credential of a known node, whichever was issued later; false if nothing
    /// changes.
    pub(crate) fn set_credential(&mut self, credential: &Arc<Credential>) -> bool {
        let node = credential.node;
        if self.get(&node).is_none_or(|known| known.credential == *credential) {
            return false;
        }
        self.unindex(&node);
        self.change(&node, |entry| entry.credential = Arc::clone(credential));
        self.index(&node);
        true
    }

    /// Sets the liveness that membership determined for a node; returns the previous one. A node
    /// that left stays left until a later generation of it appears.
    pub(crate) fn set_liveness(
        &mut self,
        node: &NodeId,
        liveness: Liveness,
        life: Option<Life>,
        now: Instant,
    ) -> Option<Liveness> {
        self.change(node, |entry| {
            let before = entry.liveness;
            if before != liveness {
                entry.liveness = liveness;
                entry.since = now;
                entry.fading = false;
            }
            let life = life.or(entry.life);
            if before != liveness || life != entry.life {
                entry.claimed = None;
            }
            entry.life = life;
            before
        })
    }

    /// Notes that a claim was passed to membership.
    pub(crate) fn note_claim(&mut self, node: &NodeId, claim: &Claim) {
        if let Some(entry) = self.entries.get_mut(node)
            && entry.life == Some(claim.life)
        {
            entry.claimed = entry.claimed.max(Some((claim.incarnation, claim.standing)));
        }
    }

    /// Dates an entry back, after it was read from a snapshot.
    pub(crate) fn set_since(&mut self, node: &NodeId, since: Instant) {
        self.change(node, |entry| entry.since = since);
    }

    /// Records whether there is, or was, a tunnel with a node.
    pub(crate) fn set_here(&mut self, node: &NodeId, here: bool) {
        self.change(node, |entry| (entry.met, entry.here) = (true, here));
    }

    /// Stops informing others about a node that will be forgotten.
    pub(crate) fn fade(&mut self, node: &NodeId) {
        self.change(node, |entry| entry.fading = true);
    }

    /// Removes a node that may come back with the same record: its credential expired, or this
    /// clock is wrong.
    pub(crate) fn remove(&mut self, node: &NodeId) -> Option<Entry> {
        self.unindex(node);
        let entry = self.entries.remove(node)?;
        self.occupancy.remove(&self.occupancy.before(&entry), self.entries.len());
        self.buckets[Short::of(node).bucket()] ^= entry.digest;
        self.alive -= usize::from(entry.is_alive());
        Some(entry)
    }

    /// Removes a node and leaves a tombstone.
    pub(crate) fn forget(&mut self, node: &NodeId, now: Instant) -> Option<Entry> {
        let entry = self.remove(node)?;
        if self.tombstones.len() >= MAX_TOMBSTONES {
            let mut all: Vec<(Instant, NodeId)> =
                self.tombstones.iter().map(|(node, it)| (it.at, *node)).collect();
            let (oldest, _, _) = all.select_nth_unstable(GIVEN_UP);
            for (_, node) in oldest {
                self.tombstones.remove(node);
            }
        }
        self.tombstones.insert(*node, Tombstone { revision: entry.revision(), at: now });
        Some(entry)
    }

    /// Whether a node was forgotten with a record older than this one.
    pub(crate) fn is_outlived(&self, state: &NodeState) -> bool {
        let tombstone = self.tombstones.get(&state.node);
        tombstone.is_some_and(|tombstone| state.revision() > tombstone.revision)
    }

    /// Whether a node was forgotten, so that a credential alone does not let it in.
    pub(crate) fn is_forgotten(&self, node: &NodeId) -> bool {
        self.tombstones.contains_key(node)
    }

    /// Lets a forgotten node return: it is connected itself, or has signed something since.
    pub(crate) fn welcome(&mut self, node: &NodeId) {
        self.tombstones.remove(node);
    }

    /// Drops the tombstones older than `before`.
    pub(crate) fn prune_tombstones(&mut self, before: Instant) {
        self.tombstones.retain(|_, tombstone| tombstone.at >= before);
    }

    fn insert(&mut self, mut entry: Entry) {
        entry.digest = entry.full_digest();
        let node = entry.node();
        self.buckets[Short::of(&node).bucket()] ^= entry.digest;
        self.alive += usize::from(entry.is_alive());
        self.first_end = self.first_end.min(entry.credential.expires_at);
        self.occupancy.add(&entry);
        self.entries.insert(entry);
        self.index(&node);
    }

    /// Changes an entry and the sums that include it.
    fn change<R>(&mut self, node: &NodeId, change: impl FnOnce(&mut Entry) -> R) -> Option<R> {
        let entry = self.entries.get_mut(node)?;
        let (digest, was_alive) = (entry.digest, entry.is_alive());
        let former = self.occupancy.before(entry);
        let result = change(entry);
        self.occupancy.after(&former, entry);
        self.first_end = self.first_end.min(entry.credential.expires_at);
        entry.digest = entry.full_digest();
        self.buckets[Short::of(node).bucket()] ^= digest ^ entry.digest;
        self.alive += usize::from(entry.is_alive());
        self.alive -= usize::from(was_alive);
        Some(result)
    }

    /// Adds what a node offers to the sums.
    fn index(&mut self, node: &NodeId) {
        let Some(entry) = self.entries.get(node) else { return };
        for (name, _) in entry.services() {
            if let Some(nodes) = self.origins.get_mut(name) {
                nodes.insert(*node);
            } else {
                self.origins.insert(name.clone(), BTreeSet::from([*node]));
            }
        }
        if entry.credential.roles.contains(&Role::Relay) {
            self.relays.insert(*node);
        }
    }

    /// The reverse, before an entry changes.
    fn unindex(&mut self, node: &NodeId) {
        let Some(entry) = self.entries.get(node) else { return };
        for (name, _) in entry.services() {
            if let Some(nodes) = self.origins.get_mut(name) {
                nodes.remove(node);
                if nodes.is_empty() {
                    self.origins.remove(name);
                }
            }
        }
        self.relays.remove(node);
    }
}

/// The total order that decides which credential of a node is kept: the one issued last.
pub(crate) fn credential_order(a: &Credential, b: &Credential) -> Ordering {
    let key = |it: &Credential| (it.issued_at, it.expires_at);
    let bytes = || a.to_bytes().cmp(&b.to_bytes());
    if std::ptr::eq(a, b) || a == b {
        return Ordering::Equal;
    }
    key(a).cmp(&key(b)).then_with(bytes)
}

/// Mixes two words into one; for comparing directories, not for security.
pub(crate) fn mix(a: u64, b: u64) -> u64 {
    let mut x = a.rotate_left(25) ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 31)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^ (x >> 29)
}

#[cfg(test)]
mod tests;
