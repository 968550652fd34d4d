//! The signed statements that verify a node.

use std::fmt;

/// A signed statement in the chain from the authority to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// The invite as a whole, signed by the authority.
    Invite,
    /// The invite's delegation, signed by the authority.
    Delegation,
    /// The credential, signed by the delegation's key or by the authority.
    Credential,
    /// A revocation, signed by the authority.
    Revocation,
    /// A statement about the mesh's secret, signed by the authority.
    Rotation,
    /// A node's consent to be succeeded by another key, signed by its own.
    Succession,
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Invite => "the invite",
            Self::Delegation => "the invite's delegation",
            Self::Credential => "the credential",
            Self::Revocation => "the revocation",
            Self::Rotation => "the new mesh secret",
            Self::Succession => "the former key's consent",
        })
    }
}
