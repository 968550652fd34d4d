//! Packets that arrived at the wrong shard.

use std::sync::Arc;

use rand::RngCore;

use super::{Claim, Core};
use crate::MeshCount;
use crate::event::Route;
use crate::peers::Peers;
use crate::shard::ShardIndex;
use crate::tunnel::Message;

/// Maximum bytes of a batch: as many as the kernel coalesces into one message.
const MAX_BATCH: usize = 1 << 16;

/// Datagrams of one sender.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Their source.
    pub route: Route,
    /// Concatenated datagrams.
    pub bytes: Vec<u8>,
    /// A datagram starts every `stride` bytes; only the last may be shorter.
    pub stride: usize,
    /// A handshake initiation that has passed the gate, and its claim.
    pub claimed: Option<Claim>,
}

impl Batch {
    /// Number of datagrams.
    pub fn datagrams(&self) -> u64 {
        self.bytes.len().div_ceil(self.stride).max(1) as u64
    }
}

/// Datagrams for another shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandOver {
    /// The shard.
    pub shard: usize,
    /// The datagrams.
    pub batch: Batch,
}

impl Core {
    /// Makes this core a shard of the node whose first shard is `first`. Call it before it has
    /// peers.
    pub fn join(mut self, shard: ShardIndex, first: Option<&Core>) -> Self {
        self.shard = shard;
        self.peers = Peers::new(self.rng.next_u32(), shard);
        if let Some(first) = first {
            self.local.gate = Arc::clone(&first.local.gate);
            self.caution = Arc::clone(&first.caution);
        }
        self
    }

    /// The next datagrams for another shard.
    pub fn poll_hand_over(&mut self) -> Option<HandOver> {
        self.out.hand_overs.pop_front()
    }

    /// The other shard that a message is for; `None` for a message without a session.
    pub(super) fn other_owner(&self, message: Message) -> Option<usize> {
        match message {
            Message::Data(receiver) | Message::Response(receiver) | Message::Cookie(receiver) => {
                self.shard.other_giver(receiver)
            }
            Message::Initiation => None,
        }
    }

    /// Hands a datagram to another shard, in one batch with those before it if they match.
    pub(super) fn hand_over(
        &mut self,
        shard: usize,
        route: Route,
        datagram: &[u8],
        claimed: Option<Claim>,
    ) {
        self.out.counters[MeshCount::HandedOver] += 1;
        if let Some(HandOver { shard: to, batch }) = self.out.hand_overs.back_mut()
            && (*to, batch.route, batch.claimed, claimed) == (shard, route, None, None)
            && batch.bytes.len().is_multiple_of(batch.stride)
            && datagram.len() <= batch.stride
            && batch.bytes.len() + datagram.len() <= MAX_BATCH
        {
            batch.bytes.extend_from_slice(datagram);
            return;
        }
        let (bytes, stride) = (datagram.to_vec(), datagram.len().max(1));
        let batch = Batch { route, bytes, stride, claimed };
        self.out.hand_overs.push_back(HandOver { shard, batch });
    }
}
