//! The output of a node: datagrams for its peers and events for the parts around it, each in a
//! bounded queue, and the counters of what was done and dropped.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use meshport_config::{Credential, NodeId, Revocation};

use crate::counters::{Count, Counters};
use crate::directory::MAX_MEMBERS;
use crate::queue;
use crate::wire::{Family, family};

/// Maximum number of datagrams waiting for [`crate::Discovery::poll_transmit`]: news to every
/// session, and some more.
pub const MAX_TRANSMITS: usize = 8192;
/// Events waiting for [`crate::Discovery::poll_event`]: a restored directory reports every node.
pub const MAX_EVENTS: usize = 4 * MAX_MEMBERS;

/// A datagram to send to a peer's gossip port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transmit {
    /// The peer. If there is no session, one must be established.
    pub to: NodeId,
    /// At most [`crate::WIDE_DATAGRAM`] bytes.
    pub payload: Vec<u8>,
}

/// Events for the node's other parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A node has become a member.
    MemberUp(NodeId),
    /// A member was declared down or has left.
    MemberDown(NodeId),
    /// This node has found a member silent: it suspects it, and informs the others.
    MemberSuspected(NodeId),
    /// A node published a new record.
    StateChanged(NodeId),
    /// A node was forgotten: it was down for long, its credential has expired, or another replaced
    /// it in a full directory. The mesh may forget it too.
    Forgotten(NodeId),
    /// A measured path went up or down, or its round-trip time moved noticeably.
    PathChanged(NodeId),
    /// The mesh should split long packets for a peer, or stop that. Reported again when the path
    /// has proven to be narrow, and when a new session begins on it.
    Split {
        /// The peer.
        node: NodeId,
        /// Whether to split.
        on: bool,
    },
    /// A node has a new credential or new endpoints, which the mesh should know.
    PeerWanted {
        /// The node.
        node: NodeId,
        /// The addresses that it announces; may be empty.
        endpoints: Vec<SocketAddr>,
        /// Its verified credential.
        credential: Arc<Credential>,
    },
    /// The authority has revoked a node or an invite; the nodes it covers are already removed.
    Revoked(Revocation),
    /// A message of a node was rejected.
    Ignored {
        /// The node that sent it, or that it is about.
        node: NodeId,
        /// The subject and the reason, for a log line.
        reason: String,
    },
    /// A peer sent a message unknown to this version.
    Unknown {
        /// The peer.
        from: NodeId,
        /// The message, as in "gossip message 21".
        what: String,
    },
}

/// Both queues and the counters.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    transmits: VecDeque<Transmit>,
    events: VecDeque<Event>,
    pub(super) counters: Counters,
}

impl Outbox {
    /// Queues a datagram. Its kind is counted where it is made.
    pub(super) fn send(&mut self, to: NodeId, payload: Vec<u8>) {
        if self.transmits.len() >= MAX_TRANSMITS {
            self.counters[Count::DroppedTransmits] += 1;
            return;
        }
        let size = payload.len() as u64;
        self.counters[Count::SentPackets] += 1;
        self.counters[Count::SentBytes] += size;
        match family(&payload) {
            Family::Swim => self.counters[Count::SentSwimBytes] += size,
            Family::Sync => self.counters[Count::SentSyncBytes] += size,
            Family::News => self.counters[Count::SentNewsBytes] += size,
            Family::Path => self.counters[Count::SentPathBytes] += size,
        }
        self.transmits.push_back(Transmit { to, payload });
    }

    pub(super) fn report(&mut self, event: Event) {
        if self.events.len() >= MAX_EVENTS {
            self.counters[Count::DroppedEvents] += 1;
        } else {
            self.events.push_back(event);
        }
    }

    pub(super) fn poll_transmit(&mut self) -> Option<Transmit> {
        queue::pop(&mut self.transmits)
    }

    pub(super) fn poll_event(&mut self) -> Option<Event> {
        queue::pop(&mut self.events)
    }
}
