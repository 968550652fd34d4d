//! Events of a node for its driver.

use std::net::SocketAddr;
use std::sync::Arc;

use meshport_config::{Credential, NodeId, Revocation, ServiceName};
use meshport_discovery::OriginState;

use crate::changes::Change;
use crate::drift::Leave;
use crate::egress::Offers;
use crate::ledger::Cut;
use crate::route::{Line, Route};

/// An event that the driver must carry out or may log.
#[derive(Debug, Clone)]
pub enum Event {
    /// A service's route changed.
    Route {
        /// The service.
        service: ServiceName,
        /// The new order.
        route: Arc<Route>,
        /// Old and new origin and the cause, if the first origin changed.
        change: Option<Change>,
    },
    /// The open sessions to this origin no longer work: reset them.
    Reset {
        /// The service.
        service: ServiceName,
        /// The origin, and the path to it.
        line: Line,
        /// How: clients that have another origin must not all reconnect at once.
        how: Cut,
        /// Whether the sessions that the local instance serves to other nodes end too.
        served: bool,
        /// Why, as a phrase.
        why: &'static str,
    },
    /// Some local clients' sessions belong on another origin: each may end as soon as it is idle.
    Move {
        /// The service.
        service: ServiceName,
        /// The sessions, and how many.
        leave: Leave,
    },
    /// An origin refused this node access to its instance, for the first time in a while.
    Denied {
        /// The service.
        service: ServiceName,
        /// The origin.
        origin: NodeId,
    },
    /// The services that a program on this machine now offers through this node.
    Offered {
        /// All offers.
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
        /// The last probe outcome, as text.
        detail: String,
    },
    /// Tells the mesh how to reach a node.
    Peer {
        /// The node.
        node: NodeId,
        /// Its announced addresses.
        endpoints: Vec<SocketAddr>,
        /// Its verified credential.
        credential: Arc<Credential>,
    },
    /// The path to this node is dead: the node may have lost its tunnel session.
    Silent(NodeId),
    /// The path to this node was dead and answers again: whatever waits for it can proceed.
    Revived(NodeId),
    /// The mesh should split long packets for a node, or stop that.
    Split {
        /// The node.
        node: NodeId,
        /// Whether to split.
        on: bool,
    },
    /// This node suspects a member that does not answer.
    Suspected(NodeId),
    /// A node was forgotten: the mesh can forget it too.
    Forgotten(NodeId),
    /// The membership state of a node changed.
    Member {
        /// The node.
        node: NodeId,
        /// Whether it is present now.
        up: bool,
    },
    /// The authority revoked a node or an invite, and this node did not know yet.
    Revoked(Revocation),
    /// A peer's message was rejected.
    Ignored {
        /// The node that caused it.
        node: NodeId,
        /// Why, as a sentence.
        reason: String,
    },
    /// A peer sends a message that this version does not know.
    Unknown {
        /// The peer.
        from: NodeId,
        /// The message, as in "gossip message 21".
        what: String,
    },
}
