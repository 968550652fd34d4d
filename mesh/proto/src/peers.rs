//! The table of peers: by slot, node and inner address, and unknown ones by age.
//!
//! A receiver index, which a peer's packets carry, has 6 bits for a half of its tunnel, 16 for its
//! slot, 2 for the shard and 8 that count sessions; the first two are masked with a number that is
//! new in every process, so that packets for sessions of an earlier process rarely match a peer.
//! Slots are reused oldest first. Bounded by the caller, which checks [`Peers::len`] and
//! [`Peers::provisional`] before it adds one.

use std::collections::{BTreeMap, VecDeque};
use std::net::Ipv6Addr;

use meshport_config::{InnerAddr, NodeId};

use crate::peer::Peer;
use crate::shard::{SHARD_BITS, ShardIndex, index_of};
use crate::tunnel::MARK_SHIFT;

/// Bits of a receiver index that identify the peer and the half.
const INDEX_MASK: u32 = 0x00ff_ffff;

/// A peer's place in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slot(u32);

#[cfg(test)]
impl Slot {
    pub(crate) const FIRST: Self = Self(0);

    pub(crate) fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

#[derive(Debug)]
pub(crate) struct Peers {
    slots: Vec<Option<Box<Peer>>>,
    free: VecDeque<u32>,
    by_node: BTreeMap<NodeId, Slot>,
    by_address: BTreeMap<Ipv6Addr, Slot>,
    provisional: VecDeque<Slot>,
    mask: u32,
    shard: ShardIndex,
}

impl Peers {
    pub(crate) fn new(mask: u32, shard: ShardIndex) -> Self {
        Self {
            slots: Vec::new(),
            free: VecDeque::new(),
            by_node: BTreeMap::new(),
            by_address: BTreeMap::new(),
            provisional: VecDeque::new(),
            mask: (mask & INDEX_MASK) >> SHARD_BITS << SHARD_BITS,
            shard,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_node.len()
    }

    /// Number of provisional peers.
    pub(crate) fn provisional(&self) -> usize {
        self.provisional.len()
    }

    /// The oldest provisional peer.
    pub(crate) fn oldest_provisional(&self) -> Option<Slot> {
        self.provisional.front().copied()
    }

    /// Adds the peer that `make` builds for its receiver index.
    pub(crate) fn insert(&mut self, make: impl FnOnce(u32) -> Peer) -> Slot {
        let number = self.free.pop_front().unwrap_or_else(|| {
            self.slots.push(None);
            u32::try_from(self.slots.len() - 1).expect("the caller bounds the table")
        });
        let slot = Slot(number);
        let peer = make((number << SHARD_BITS ^ self.mask) | self.shard.bits());
        self.by_node.insert(peer.node, slot);
        self.by_address.insert(peer.address, slot);
        if peer.admission.provisional_until.is_some() {
            self.provisional.push_back(slot);
        }
        self.slots[number as usize] = Some(Box::new(peer));
        slot
    }

    pub(crate) fn remove(&mut self, slot: Slot) -> Option<Box<Peer>> {
        let peer = self.slots.get_mut(slot.0 as usize)?.take()?;
        self.by_node.remove(&peer.node);
        self.by_address.remove(&peer.address);
        self.settle(slot);
        self.free.push_back(slot.0);
        Some(peer)
    }

    /// Makes the peer at `slot` `node`, which no other peer is.
    pub(crate) fn rename(&mut self, slot: Slot, node: NodeId, inner: InnerAddr) {
        let Some(peer) = self.slots.get_mut(slot.0 as usize).and_then(Option::as_mut) else {
            return;
        };
        self.by_node.remove(&peer.node);
        (peer.node, peer.inner) = (node, inner);
        peer.traffic.split.narrow = false;
        self.by_node.insert(node, slot);
    }

    /// Keeps the streams of the peer at `slot` under `address` from now on.
    pub(crate) fn readdress(&mut self, slot: Slot, address: Ipv6Addr) {
        let Some(peer) = self.slots.get_mut(slot.0 as usize).and_then(Option::as_mut) else {
            return;
        };
        self.by_address.remove(&peer.address);
        peer.address = address;
        self.by_address.insert(address, slot);
    }

    /// Marks the peer at `slot` as no longer provisional.
    pub(crate) fn settle(&mut self, slot: Slot) {
        self.provisional.retain(|other| *other != slot);
    }

    pub(crate) fn get(&self, slot: Slot) -> Option<&Peer> {
        self.slots.get(slot.0 as usize)?.as_deref()
    }

    pub(crate) fn get_mut(&mut self, slot: Slot) -> Option<&mut Peer> {
        self.slots.get_mut(slot.0 as usize)?.as_deref_mut()
    }

    pub(crate) fn of_node(&self, node: &NodeId) -> Option<Slot> {
        self.by_node.get(node).copied()
    }

    pub(crate) fn of_address(&self, address: &Ipv6Addr) -> Option<Slot> {
        self.by_address.get(address).copied()
    }

    /// The slot of a receiver index, if there is a peer, and the mark of a half.
    pub(crate) fn of_receiver(&self, receiver: u32) -> Option<(Slot, u8)> {
        let index = index_of(receiver) ^ self.mask;
        let given_here = index & ((1 << SHARD_BITS) - 1) == self.shard.bits();
        let slot = Slot((index & ((1 << MARK_SHIFT) - 1)) >> SHARD_BITS);
        self.get(slot).filter(|_| given_here).map(|_| (slot, (index >> MARK_SHIFT) as u8))
    }

    /// All peers, ordered by node.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Slot, &Peer)> {
        self.by_node.values().filter_map(|slot| Some((*slot, self.get(*slot)?)))
    }
}
