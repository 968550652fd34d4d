//! Succession: peers, and this node, that continue with another key.
//!
//! A node with another key is another node; its credential names the node it succeeds and contains
//! that node's consent. A peer that gets the credential through the old tunnel, or by gossip,
//! treats the peer as the new node from then on. The session continues in its half of the tunnel,
//! with the inner addresses of the old keys, until one with the new key is agreed. Connections and
//! streams are not affected, since QUIC keeps one address for a peer.
//!
//! The node itself presents its new credential to all peers, starts a handshake with its new key
//! with each that acknowledged it, and answers initiations to either key until it erases the old
//! one.

use std::sync::Arc;

use meshport_config::{Credential, NodeId};

use super::{Core, Notice};
use crate::MeshCount;
use crate::MeshError;
use crate::event::{MeshEvent, Now};
use crate::peers::Slot;
use crate::settings::Identity;
use crate::tunnel::Gate;

impl Core {
    /// Whether this is the current or previous id of this node.
    pub fn is_me(&self, node: &NodeId) -> bool {
        self.local.gate_of(node).is_some()
    }

    /// The gate of another identity, for all shards.
    pub fn gate_for(&self, identity: &Identity) -> Arc<Gate> {
        Arc::new(Gate::new(identity.key.secret(), self.config.handshakes_per_second))
    }

    /// Like [`Core::follow`], with a credential that did not come from its holder.
    pub(super) fn follow_if_good(&mut self, credential: &Credential, now: Now) {
        let former = credential.succession.as_ref().map(|succession| succession.former);
        let concerns = former.is_some_and(|former| self.peers.of_node(&former).is_some());
        if concerns && self.check_credential(credential, now).is_ok() {
            self.follow(credential);
        }
    }

    /// Turns a peer into its successor, which has this verified credential. Returns its slot;
    /// `None` if there is no such peer.
    pub(super) fn follow(&mut self, credential: &Credential) -> Option<Slot> {
        let (former, node) = (credential.succession.as_ref()?.former, credential.node);
        let slot = self.peers.of_node(&former)?;
        if self.is_me(&node) || self.shard.other_owner(&node).is_some() {
            return None;
        }
        self.out.counters[MeshCount::PeersSucceeded] += 1;
        self.out.notice(Notice::Renamed(former, node));
        let told = Box::new(credential.clone());
        self.out.tell(MeshEvent::Succeeded { former, credential: told });
        let was_up = self.peers.get(slot).is_some_and(|peer| peer.admission.reported_up);
        if was_up {
            self.out.tell(MeshEvent::SessionDown(former));
        }
        match self.peers.of_node(&node) {
            Some(stranger) => Some(self.unite(slot, stranger)),
            None => Some(self.rename(slot, node)),
        }
    }

    fn rename(&mut self, slot: Slot, node: NodeId) -> Slot {
        if let Some(former) = self.peers.get(slot) {
            // The caller finds out about the path to this node anew.
            self.caution.set(&former.node, false);
        }
        self.peers.rename(slot, node, self.inner(&node));
        let Some(peer) = self.peers.get_mut(slot) else { return slot };
        peer.admission.credential = None;
        (peer.admission.admitted, peer.admission.reported_up) = (false, false);
        if !peer.schedule.has_session() {
            self.restart(slot);
        }
        slot
    }

    /// Merges a successor that made a session as a stranger, before it could present which node it
    /// succeeds: that session stays, with the streams and addresses of the previous node.
    fn unite(&mut self, former: Slot, stranger: Slot) -> Slot {
        let Some(old) = self.peers.remove(former) else { return stranger };
        self.reassembly.forget(former);
        self.caution.set(&old.node, false);
        if let Some(at) = old.armed {
            self.timers.remove(&(at, former));
        }
        self.out.counters[MeshCount::DroppedQueueAbandoned] += old.traffic.queue.len() as u64;
        self.peers.settle(stranger);
        self.peers.readdress(stranger, old.address);
        if let Some(peer) = self.peers.get_mut(stranger) {
            peer.configured |= old.configured;
            peer.admission.provisional_until = None;
            if peer.hints.is_empty() {
                peer.hints = old.hints;
            }
        }
        stranger
    }

    /// Restarts the tunnel of a peer without a session, between the current keys.
    fn restart(&mut self, slot: Slot) {
        self.drop_queue(slot);
        let Some(node) = self.peers.get(slot).map(|peer| peer.node) else { return };
        let terms = self.terms(self.secrets.current(), self.local.node, node);
        let gate = &self.local.gate;
        if let Some(peer) = self.peers.get_mut(slot) {
            peer.tunnel.restart(gate, &terms);
        }
    }

    /// Makes this node `identity`, whose credential names this node as its predecessor.
    ///
    /// # Errors
    /// If it succeeds another node, is not valid now, or an earlier succession is not over.
    pub fn succeed(
        &mut self,
        identity: Identity,
        gate: Arc<Gate>,
        now: Now,
    ) -> Result<(), MeshError> {
        self.local.check_succession(&identity)?;
        self.check_credential(&identity.credential, now)?;
        self.local.succeed(identity, gate);
        for slot in self.slots() {
            if self.peers.get(slot).is_some_and(|peer| !peer.schedule.has_session()) {
                self.restart(slot);
            }
        }
        self.show_to_all(now);
        Ok(())
    }

    /// Replaces a session with the previous key by one with the newest key, once the peer has
    /// acknowledged this node's credential.
    pub(super) fn move_to_new_key(&mut self, slot: Slot, now: Now) {
        let me = self.local.node;
        let lags = self.peers.get(slot).is_some_and(|peer| {
            peer.schedule.has_session()
                && !peer.schedule.is_trying()
                && peer.tunnel.under().own != me
        });
        if lags {
            self.initiate(slot, now);
            self.arm(slot);
        }
    }

    /// Erases the previous key. Peers without a session under the current key lose their session.
    pub fn retire(&mut self, now: Now) {
        if !self.local.retire() {
            return;
        }
        let me = self.local.node;
        for slot in self.slots() {
            let Some(peer) = self.peers.get_mut(slot) else { continue };
            if !peer.tunnel.keep_only(&me) {
                self.restart(slot);
            }
            self.check_session(slot, now);
            self.arm(slot);
        }
    }
}
