//! What a revocation is about.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::{NodeId, VerifyKey};

/// What is revoked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Revoked {
    /// A node, by its key.
    Node(NodeId),
    /// An invite, by the key of its delegation, with all nodes that joined with it.
    Invite(VerifyKey),
    /// A node, by its key, in whose place another one goes on: signed by itself.
    Succeeded {
        /// The node that is over.
        node: NodeId,
        /// Who goes on.
        by: NodeId,
    },
}

impl Revoked {
    /// The node it names; none for an invite.
    pub const fn node(&self) -> Option<NodeId> {
        match self {
            Self::Node(node) | Self::Succeeded { node, .. } => Some(*node),
            Self::Invite(_) => None,
        }
    }
}

impl fmt::Display for Revoked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(node) => write!(f, "node {node}"),
            Self::Invite(key) => write!(f, "invite {key}"),
            Self::Succeeded { node, by } => write!(f, "node {node}, succeeded by {by}"),
        }
    }
}
