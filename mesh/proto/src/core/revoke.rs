//! Revocation of credentials.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use meshport_config::{Credential, MAX_REVOCATIONS, NodeId, Revocations, Revoked, UnixSeconds};

use super::Core;
use crate::MeshCount;
use crate::error::NotBelieved;
use crate::event::{MeshEvent, Now};
use crate::peer::Peer;
use crate::peers::Slot;

/// Minimum interval between reports of handshakes in the name of a node: a holder of its key can
/// send them at any rate, and the first report says it all.
const KNOCK_GAP: Duration = Duration::from_secs(600);
/// Maximum names remembered for that, 48 bytes each; as many as the authority can revoke. Beyond
/// them handshakes are only counted, until one of these has aged out.
pub(super) const MAX_KNOCKS: usize = MAX_REVOCATIONS;

/// Identities to ignore whatever they present.
#[derive(Default)]
pub(super) struct Blocked {
    /// The revocations.
    pub(super) revocations: Revocations,
    /// Nodes whose credential was covered when it was known; at most as many as there are peers.
    pub(super) nodes: BTreeSet<NodeId>,
    /// Time of the last report of a handshake in the name of each.
    pub(super) told: BTreeMap<NodeId, Instant>,
}

impl Blocked {
    fn has(&self, node: &NodeId) -> bool {
        self.revocations.has_node(node) || self.nodes.contains(node)
    }

    /// Whether to report a handshake in the name of a blocked node.
    fn is_news(&mut self, node: NodeId, now: Instant) -> bool {
        let is_recent = |at: &Instant| now.saturating_duration_since(*at) < KNOCK_GAP;
        if self.told.get(&node).is_some_and(is_recent) {
            return false;
        }
        if self.told.len() >= MAX_KNOCKS {
            self.told.retain(|_, at| is_recent(at));
        }
        let is_news = self.told.len() < MAX_KNOCKS;
        if is_news {
            self.told.insert(node, now);
        }
        is_news
    }

    fn why(&self, node: NodeId) -> String {
        let revocation = self.revocations.get(&Revoked::Node(node));
        match revocation.map(|it| it.revoked) {
            Some(revoked) if revoked.is_departure() => "which has left the mesh".to_owned(),
            Some(Revoked::Succeeded { by, .. }) => format!("replaced by {by}"),
            Some(_) => "revoked by the authority".to_owned(),
            None => "whose invite was revoked by the authority".to_owned(),
        }
    }
}

impl Core {
    /// Rejects identities covered by `revocations`: their sessions and streams end, and their
    /// handshakes get no answer.
    pub fn set_revocations(&mut self, revocations: Revocations, now: Now) {
        self.blocked.revocations = revocations;
        let lost = self.peers.iter().filter(|(_, peer)| self.is_lost(peer));
        let lost: Vec<Slot> = lost.map(|(slot, _)| slot).collect();
        for slot in lost {
            self.block(slot);
        }
        self.ask_again(now);
    }

    /// Removes a revoked peer and no longer answers its handshakes. This must be remembered, since
    /// the revoked credential may only have been presented in its session.
    pub(super) fn block(&mut self, slot: Slot) {
        let Some(node) = self.peers.get(slot).map(|peer| peer.node) else { return };
        if self.blocked.nodes.len() < self.config.max_peers {
            self.blocked.nodes.insert(node);
        }
        self.out.counters[MeshCount::PeersRevoked] += 1;
        self.remove(slot, "the peer is revoked");
    }

    fn is_lost(&self, peer: &Peer) -> bool {
        let revocations = &self.blocked.revocations;
        match revocations.get(&Revoked::Node(peer.node)) {
            Some(revocation) => match revocation.successor() {
                // The successor takes over the session; otherwise it expires within minutes.
                Some(successor) if self.peers.of_node(&successor).is_none() => {
                    !peer.schedule.has_session()
                }
                _ => true,
            },
            None => {
                let credential = peer.admission.credential.as_deref();
                credential.is_some_and(|it| revocations.covering(it).is_some())
            }
        }
    }

    /// Whether nothing from this node is processed, not even a handshake.
    pub(super) fn is_blocked(&self, node: &NodeId) -> bool {
        self.blocked.has(node)
    }

    /// Whether a credential is valid now and not revoked. One that is stored for its node was valid
    /// when it came: if it is not yet valid, this clock has gone back.
    pub fn check_credential(&self, credential: &Credential, now: Now) -> Result<(), NotBelieved> {
        let is_stored = self.known_credential(&credential.node).as_deref() == Some(credential);
        let begun = if is_stored { credential.valid_from() } else { UnixSeconds(0) };
        credential.verify(self.local.mesh(), now.wall.max(begun))?;
        let covering = self.blocked.revocations.covering(credential);
        covering.map_or(Ok(()), |it| Err(NotBelieved::Revoked(it.revoked)))
    }

    /// Counts a handshake in the name of a blocked node, which is unproven, and reports each name
    /// from time to time.
    pub(super) fn note_knock(&mut self, node: NodeId, now: Now) {
        self.out.counters[MeshCount::DroppedRevoked] += 1;
        if self.blocked.is_news(node, now.instant) {
            let why = self.blocked.why(node);
            self.out.tell(MeshEvent::Knocked { node, why });
        }
    }
}
