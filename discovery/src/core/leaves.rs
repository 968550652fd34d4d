//! The leaves that a node serves. They are in no directory, and are not announced to other nodes.

use std::collections::BTreeMap;

use meshport_config::{Credential, NodeId, UnixSeconds};

use crate::contacts::Contacts;

/// Maximum number of leaves: as many as the mesh has peers.
pub const MAX_LEAVES: usize = 4096;

/// Each of them, and when its credential expires.
#[derive(Debug, Default)]
pub(super) struct Leaves(BTreeMap<NodeId, UnixSeconds>);

impl Leaves {
    /// Adds a leaf; if there are too many, it replaces one without a session. False if all have
    /// one.
    pub(super) fn admit(&mut self, credential: &Credential, contacts: &Contacts) -> bool {
        if self.0.len() >= MAX_LEAVES && !self.contains(&credential.node) {
            let absent = self.0.keys().find(|leaf| !contacts.session(leaf)).copied();
            let Some(absent) = absent else { return false };
            self.0.remove(&absent);
        }
        self.0.insert(credential.node, credential.expires_at);
        true
    }

    pub(super) fn contains(&self, node: &NodeId) -> bool {
        self.0.contains_key(node)
    }

    /// Whether a node is a leaf whose credential is valid.
    pub(super) fn is_valid(&self, node: &NodeId, wall: UnixSeconds) -> bool {
        self.0.get(node).is_some_and(|expires_at| wall < *expires_at)
    }

    /// Number of leaves with a session.
    pub(super) fn connected(&self, contacts: &Contacts) -> usize {
        self.0.keys().filter(|leaf| contacts.session(leaf)).count()
    }

    /// Removes leaves whose credential has expired.
    pub(super) fn sweep(&mut self, wall: UnixSeconds) {
        self.0.retain(|_, expires_at| wall < *expires_at);
    }
}
