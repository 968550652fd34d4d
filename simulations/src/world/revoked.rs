//! Revocations: which node gets one first, and how nodes react when they learn of it.
//!
//! Revocations travel in the daemon's own gossip. This module implements the reactions outside the
//! decision code: the tunnel ends and handshakes are not answered, sessions end, the revocation is
//! stored with the state, and a revoked node ends itself.

use meshport_config::{Revocation, Revocations, Revoked};

use super::{World, number};
use crate::brain::Wish;
use crate::level::{Follow, Level};
use crate::measure::Notice;

impl World {
    /// The operator passes a revocation to a running node: this one, or the first. A liar would not
    /// pass it on.
    pub(super) fn revoke(&mut self, subject: usize, through: Option<usize>) {
        let wall = self.wall(subject);
        let id = self.scene.account.id(subject);
        let revocation = Revocation::issue(&self.mesh.authority, Revoked::Node(id), wall);
        let Some(first) = self.teller(through) else { return };
        self.with_brain(first, |brain, now, _| brain.revoke(&revocation, now));
    }

    /// A node has learned of a revocation.
    pub(super) fn revoked(&mut self, at: usize, revocation: &Revocation) {
        // Revoked nodes get it too, as long as they can be reached.
        while let Some(Wish::Send(to, payload)) =
            self.nodes[at].brain.as_mut().and_then(crate::brain::Brain::transmit)
        {
            if let Some(to) = self.scene.account.number(&to) {
                self.gossip(at, to, payload);
            }
        }
        let Revoked::Node(id) = revocation.revoked else { return };
        let Some(subject) = self.scene.account.number(&id) else { return };
        self.nodes[at].folder.revocations.add(revocation.clone());
        if subject == at {
            self.says(at, "the authority has revoked it".into());
            return self.stop(at);
        }
        self.says(at, format!("shuts {} out: revoked", self.scene.account.name(subject)));
        self.notices(at, subject, Notice::Revoked);
        self.nodes[at].tunnels.remove(number(subject));
        self.end_sessions(at, subject);
    }

    /// Whether a node processes nothing of another one, not even a handshake.
    pub(super) fn shuts_out(&self, at: usize, other: usize) -> bool {
        let known = &self.nodes[at].folder.revocations;
        !known.is_empty() && known.has_node(&self.scene.account.id(other))
    }

    /// The revocations that a starting process finds in its state folder; none if it must not
    /// start.
    pub(super) fn recalled(&mut self, at: usize, with_state: bool) -> Option<Revocations> {
        let node = &mut self.nodes[at];
        if !with_state {
            node.folder.revocations = Revocations::default();
        }
        if node.folder.revocations.covering(&node.credential).is_some() {
            self.says(at, "does not start: the authority has revoked it".into());
            return None;
        }
        Some(self.nodes[at].folder.revocations.clone())
    }
}
