//! Events of a node for its driver.

use std::net::SocketAddr;
use std::sync::Arc;

use meshport_config::{Credential, NodeId, Revocation, ServiceName};
use meshport_discovery::OriginState;

use crate::changes::Change;
use crate::drift::Leave;
use crate::egress::Offers;
use crate::route::{Line, Route};

/// An event that the driver has to carry out or may want to log.
#[derive(Debug, Clone)]
pub enum Event {
    /// A service's route changed.
    Route {
        /// The service.
        service: ServiceName,
        /// The new order.
        route: Arc<Route>,
        /// Old and new origin and the cause, if another origin is first now.
        change: Option<Change>,
    },
    /// Nothing can pass through the open sessions to this origin any more: reset them.
    Reset {
        /// The service.
        service: ServiceName,
        /// The origin, and the path to it.
        line: Line,
        /// How much of the service's window the resets are spread over, in percent: their clients
        /// come back, and must not all come at once where they have somewhere to go.
        spread_percent: u32,
        /// Whether a session that is being opened goes on if its origin still answers.
        forgives: bool,
        /// Why, as a phrase.
        why: &'static str,
    },
    /// Some sessions of this node's clients should be elsewhere: each may end as soon as it is
    /// quiet.
    Move {
        /// The service.
        service: ServiceName,
        /// The sessions, and how many.
        leave: Leave,
    },
    /// An origin has said, for the first time in a while, that this node may not use its instance.
    Denied {
        /// The service.
        service: ServiceName,
        /// The origin.
        origin: NodeId,
    },
    /// What a program on this machine offers through this node is this from now on.
    Offered {
        /// All of it.
        offers: Arc<Offers>,
        /// Why, as a phrase.
        why: &'static str,
    },
    /// The local instance of a service changed state.
    Own {
        /// The service.
        service: ServiceName,
        /// Its state now.
        state: OriginState,
        /// The last outcome in words.
        detail: String,
    },
    /// The mesh should know how to reach this node.
    Peer {
        /// The node.
        node: NodeId,
        /// Its announced addresses.
        endpoints: Vec<SocketAddr>,
        /// Its verified credential.
        credential: Arc<Credential>,
    },
    /// The path to this node is dead: its session may be one that it does not have any more.
    Silent(NodeId),
    /// The path to this node was dead and answers again: what waits for it should not go on
    /// waiting.
    Revived(NodeId),
    /// This node has found a member silent, and suspects it.
    Suspected(NodeId),
    /// A node is known no more: the mesh need not know it either.
    Forgotten(NodeId),
    /// Membership changed its mind about a node.
    Member {
        /// The node.
        node: NodeId,
        /// Whether it is present now.
        up: bool,
    },
    /// The authority has revoked a node or an invite, news to this node.
    Revoked(Revocation),
    /// A message of a peer was rejected.
    Ignored {
        /// The node that caused it.
        node: NodeId,
        /// Why, as a sentence.
        reason: String,
    },
    /// A peer sends what this version does not know.
    Unknown {
        /// The peer.
        from: NodeId,
        /// The message, as in "gossip message 21".
        what: String,
    },
}
