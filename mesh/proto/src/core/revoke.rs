//! Revocation of credentials.

use std::time::{Duration, Instant};

use meshport_config::{Credential, MAX_REVOCATIONS, NodeId, Revocation, Revocations, Revoked};

use super::Core;
use crate::event::{MeshEvent, Now};
use crate::peer::Peer;
use crate::peers::Slot;

/// The user is told no more often that somebody knocks in the name of the same node: whoever knows
/// its key can do so at any rate, and the first time says all there is to know.
const KNOCK_GAP: Duration = Duration::from_secs(600);
/// Names that are remembered for that, 48 bytes each; as many as the authority can revoke. Beyond
/// them knocks are only counted, until one of these is old.
pub(super) const MAX_KNOCKS: usize = MAX_REVOCATIONS;

/// Why a credential is refused that this covers.
pub(super) fn revoked(revocation: &Revocation) -> String {
    format!("the authority has revoked {}", revocation.revoked)
}

impl Core {
    /// From now on nobody covered by `revocations` is believed: their sessions and streams end, and
    /// their handshakes are not answered any more.
    pub fn set_revocations(&mut self, revocations: Revocations, now: Now) {
        self.revocations = revocations;
        let lost = self.peers.iter().filter(|(_, peer)| self.is_lost(peer));
        let lost: Vec<Slot> = lost.map(|(slot, _)| slot).collect();
        for slot in lost {
            self.shut_peer_out(slot);
        }
        self.ask_again(now);
    }

    /// Removes a peer that is revoked, and answers no handshake of it any more. What says so may be
    /// a credential that only its session has shown, so this has to be remembered.
    pub(super) fn shut_peer_out(&mut self, slot: Slot) {
        let Some(node) = self.peers.get(slot).map(|peer| peer.node) else { return };
        if self.shut_out.len() < self.config.max_peers {
            self.shut_out.insert(node);
        }
        self.out.counters.peers_revoked += 1;
        self.remove(slot, "the peer is revoked");
    }

    fn is_lost(&self, peer: &Peer) -> bool {
        match self.revocations.get(&Revoked::Node(peer.node)) {
            Some(revocation) => match revocation.successor() {
                // It takes the session over; if not, that ends by itself, within minutes.
                Some(successor) if self.peers.of_node(&successor).is_none() => {
                    !peer.schedule.has_session()
                }
                _ => true,
            },
            None => {
                let credential = peer.admission.credential.as_deref();
                credential.is_some_and(|it| self.revocations.covering(it).is_some())
            }
        }
    }

    /// Whether nothing of this node is processed, not even a handshake.
    pub(super) fn is_shut_out(&self, node: &NodeId) -> bool {
        self.revocations.has_node(node) || self.shut_out.contains(node)
    }

    /// Whether a credential is to be believed now; else why not.
    pub fn check_credential(&self, credential: &Credential, now: Now) -> Result<(), String> {
        let mesh = &self.identity.credential.mesh;
        credential.verify(mesh, now.wall).map_err(|error| error.to_string())?;
        self.revocations.covering(credential).map_or(Ok(()), |it| Err(revoked(it)))
    }

    /// Somebody knocks in the name of a node that is shut out, which nothing has proven. The
    /// counter has them all; the user is told of each name now and then.
    pub(super) fn note_knock(&mut self, node: NodeId, now: Now) {
        self.out.counters.dropped_revoked += 1;
        let is_recent = |at: &Instant| now.instant.saturating_duration_since(*at) < KNOCK_GAP;
        if self.knocks.get(&node).is_some_and(is_recent) {
            return;
        }
        if self.knocks.len() >= MAX_KNOCKS {
            self.knocks.retain(|_, at| is_recent(at));
        }
        if self.knocks.len() < MAX_KNOCKS {
            self.knocks.insert(node, now.instant);
            let revocation = self.revocations.get(&Revoked::Node(node));
            let why = match revocation.map(|it| it.revoked) {
                Some(Revoked::Succeeded { by, .. }) => format!("replaced by {by}"),
                Some(_) => "revoked by the authority".to_owned(),
                None => "whose invite was revoked by the authority".to_owned(),
            };
            self.out.tell(MeshEvent::Knocked { node, why });
        }
    }
}
