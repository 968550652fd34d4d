//! What a node says over the mesh about itself and one virtual address.

use super::frame::Hardware;

/// What a node does about the address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stance {
    /// It does not answer for the address.
    Standby,
    /// It answers for the address.
    Holding,
    /// It answers until another node does, and does not defend the address.
    Releasing,
}

/// The words of one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// Which start of the daemon says it; later starts have larger numbers.
    pub incarnation: u64,
    /// Which claim of that start it is.
    pub sequence: u64,
    /// Whether an origin is usable from there.
    pub usable: bool,
    /// Which nodes are preferred: larger numbers first.
    pub priority: u8,
    /// What it does.
    pub stance: Stance,
    /// The hardware address that it answers with.
    pub hardware: Hardware,
}

impl Claim {
    /// Whether this was said after `other`, which the same node said.
    pub fn is_newer_than(&self, other: &Self) -> bool {
        (self.incarnation, self.sequence) > (other.incarnation, other.sequence)
    }
}
