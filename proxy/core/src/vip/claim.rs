//! A node's claim to a virtual address, sent over the mesh.

use meshport_config::words;
use serde::{Deserialize, Serialize};

use super::frame::Hardware;

words! {
    /// A node's role for the address. Its number on the wire is its place here.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
    pub enum Stance {
        /// It does not answer for the address.
        Standby => "standby",
        /// It answers for the address.
        Holding => "holding",
        /// It answers until another node does, but does not defend the address.
        Releasing => "releasing",
        /// It has probed, and waits for the signal of a holder that releases the address.
        Ready => "ready",
    }
}

impl Stance {
    /// Whether clients are answered.
    pub fn answers(self) -> bool {
        matches!(self, Self::Holding | Self::Releasing)
    }
}

/// The claim of one node, with its fields in the order of the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The daemon's start number; later starts have larger ones.
    pub incarnation: u64,
    /// Number of the claim within that start.
    pub sequence: u64,
    /// Whether an origin is usable from there.
    pub usable: bool,
    /// Preference among nodes: larger numbers first.
    pub priority: u8,
    /// Its role.
    pub stance: Stance,
    /// The hardware address that it answers with.
    pub hardware: Hardware,
    /// Whether it has just heard a holder on the LAN.
    pub hears: bool,
}

impl Claim {
    /// Whether this is later than `other`, from the same node.
    pub fn is_newer_than(&self, other: &Self) -> bool {
        (self.incarnation, self.sequence) > (other.incarnation, other.sequence)
    }
}
