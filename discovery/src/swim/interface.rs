//! The inputs of membership about peers, and its outputs.

use std::time::Instant;

use meshport_config::NodeId;

use crate::state::Life;
use crate::wire::{Claim, Short};

/// Facts about peers that membership gets from elsewhere.
pub(crate) trait View {
    /// The known node with a short id.
    fn resolve(&self, short: Short) -> Option<NodeId>;
    /// Whether a WireGuard session to the peer exists.
    fn session(&self, peer: &NodeId) -> bool;
    fn same_site(&self, peer: &NodeId) -> bool;
    fn sessions(&self) -> usize;
    /// A member with a session and its life, selected by a uniformly distributed number; none if a
    /// bounded search finds none.
    fn connected(&self, draw: u64) -> Option<(NodeId, Life)>;
    /// Whether membership has had this claim about a member, or a stronger one.
    fn knows(&self, member: &NodeId, claim: &Claim) -> bool;
    /// When the peer was last heard, if recently.
    fn heard(&self, peer: &NodeId) -> Option<Instant>;
}

/// An action that membership requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Output {
    /// A datagram to send.
    Send(NodeId, Vec<u8>),
    /// A member came up in this life.
    Up(NodeId, Life),
    /// The member's life ended.
    Down(NodeId, Life),
    /// The member has this life from now on, up or down as before.
    Renamed(NodeId, Life),
    /// This node was declared down and continues in a new life.
    Renewed(Life),
    /// Notify this member that it is suspected.
    Tell(NodeId, Claim),
}

/// A datagram of an admitted peer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Incoming<'a> {
    pub(crate) from: NodeId,
    /// The life that the peer has ended by leaving: nothing is accepted from it, or from an earlier
    /// one.
    pub(crate) over: Option<Life>,
    pub(crate) bytes: &'a [u8],
}

/// The parts of a peer's datagram that the caller must act on.
#[derive(Debug)]
pub(crate) struct Seen {
    /// Its claims about members; to be checked and handed to `Swim::apply`.
    pub(crate) claims: Vec<(Short, Claim)>,
    /// It was meant for another life of this node: its sender has old news.
    pub(crate) stale: bool,
    /// It asks to be admitted.
    pub(crate) announces: bool,
    /// The claim about its sender that was passed to membership.
    pub(crate) sender: Option<Claim>,
}

/// Maximum number of silent members waiting to be reported: the caller takes them after each input,
/// and one datagram has fewer. Further ones are also suspected, but not counted.
pub(crate) const MAX_SUSPECTED: usize = 256;

/// The events of a call, for the counters.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Members that this node has found silent; the caller takes them. At most [`MAX_SUSPECTED`].
    pub(crate) suspected: Vec<NodeId>,
    pub(crate) refutations: u64,
    pub(crate) dropped_timers: u64,
}
