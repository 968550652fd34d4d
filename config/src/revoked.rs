//! The subject of a revocation.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::{NodeId, VerifyKey};

/// The successor of a node that has left: a NodeId that belongs to no key.
pub(crate) const NOBODY: NodeId = NodeId::from_bytes([0; 32]);

/// The revoked node or invite. The order is the wire format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Revoked {
    /// A node, by its key.
    Node(NodeId),
    /// An invite, by the key of its delegation, with all nodes that joined with it.
    Invite(VerifyKey),
    /// A node, by its key, that another one succeeds, or none because it has left; signed by the
    /// node itself.
    Succeeded {
        /// The node that has ended.
        node: NodeId,
        /// The successor; 32 zero bytes for none.
        by: NodeId,
    },
}

impl Revoked {
    /// The revoked node; `None` for an invite.
    pub const fn node(&self) -> Option<NodeId> {
        match self {
            Self::Node(node) | Self::Succeeded { node, .. } => Some(*node),
            Self::Invite(_) => None,
        }
    }

    /// Whether it is a node's own statement that it has left.
    pub fn is_departure(&self) -> bool {
        matches!(self, Self::Succeeded { by, .. } if *by == NOBODY)
    }
}

impl fmt::Display for Revoked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(node) => write!(f, "node {node}"),
            Self::Invite(key) => write!(f, "invite {key}"),
            Self::Succeeded { node, .. } if self.is_departure() => {
                write!(f, "node {node}, which has left")
            }
            Self::Succeeded { node, by } => write!(f, "node {node}, succeeded by {by}"),
        }
    }
}
