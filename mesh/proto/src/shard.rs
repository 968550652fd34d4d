//! The shard of a node that a peer belongs to.
//!
//! A node with several cores runs several shards, each with its own peers, socket and thread. A
//! peer's `NodeId` selects the shard, so every process with the same settings agrees. This node's
//! receiver indices contain the shard in the lowest bits of the peer's part, so whatever reads a
//! datagram (the kernel's filter, or the shard where it arrived) knows its owner without a table.
//! Only a handshake initiation has no receiver: the shard where it arrives decrypts the static key
//! and hands it over.

use meshport_config::NodeId;

/// Maximum shards of a node: two bits. A core carries some 3 Gbit/s.
pub const MAX_SHARDS: usize = 4;
/// Bits of a peer's index that contain its shard.
pub const SHARD_BITS: u32 = 2;
/// These bits.
const SHARD_MASK: u32 = (1 << SHARD_BITS) - 1;

/// One of a node's shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardIndex {
    index: usize,
    of: usize,
}

impl ShardIndex {
    /// The only shard.
    pub(crate) const ONLY: Self = Self { index: 0, of: 1 };

    /// Shard `index` of `of`, which is at most [`MAX_SHARDS`].
    pub fn new(index: usize, of: usize) -> Self {
        debug_assert!(index < of && of <= MAX_SHARDS, "shard {index} of {of}");
        Self { index, of }
    }

    /// The other shard that `node` belongs to; `None` if it belongs here.
    pub(crate) fn other_owner(&self, node: &NodeId) -> Option<usize> {
        Some(owner(node, self.of)).filter(|owner| *owner != self.index)
    }

    /// The other shard that assigned `receiver`; `None` if this one did.
    pub(crate) fn other_giver(&self, receiver: u32) -> Option<usize> {
        let bits = (index_of(receiver) & SHARD_MASK) as usize;
        Some(bits % self.of).filter(|giver| *giver != self.index)
    }

    /// The last bits of the indices assigned here.
    pub(crate) fn bits(&self) -> u32 {
        u32::try_from(self.index).unwrap_or(0) & SHARD_MASK
    }
}

/// The peer's slot and half from a receiver index: the low 8 bits count sessions.
pub(crate) fn index_of(receiver: u32) -> u32 {
    receiver >> 8
}

/// The shard of `of` that `node` belongs to. A public key is practically random; a node that picks
/// its key can pick its shard, but gains no better service.
pub fn owner(node: &NodeId, of: usize) -> usize {
    usize::from(u16::from_le_bytes([node.as_bytes()[0], node.as_bytes()[1]])) % of.max(1)
}

/// Whether two nodes belong to the same shard at every other node, however many shards that has: a
/// node that continues as the other one stays with its sessions.
pub fn is_same_shard(one: &NodeId, other: &NodeId) -> bool {
    (1..=MAX_SHARDS).all(|of| owner(one, of) == owner(other, of))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_spread_over_all_shards() {
        for of in 1..=MAX_SHARDS {
            let mut counts = vec![0_usize; of];
            for number in 0..=u16::MAX {
                let mut bytes = [9; 32];
                bytes[..2].copy_from_slice(&number.to_le_bytes());
                counts[owner(&NodeId::from_bytes(bytes), of)] += 1;
            }
            let fair = 65_536 / of;
            assert!(counts.iter().all(|count| count.abs_diff(fair) <= 1), "{counts:?}");
        }
    }

    #[test]
    fn an_index_names_the_shard_that_gave_it_out() {
        for of in 1..=MAX_SHARDS {
            for index in 0..of {
                let shard = ShardIndex::new(index, of);
                let receiver = (0x00ab_cdec | shard.bits()) << 8 | 0x77;
                assert_eq!(shard.other_giver(receiver), None);
                let other = ShardIndex::new((index + 1) % of, of);
                assert_eq!(other.other_giver(receiver), (of > 1).then_some(index));
            }
        }
    }
}
