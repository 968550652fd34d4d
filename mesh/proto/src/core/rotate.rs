//! Rotation of the mesh secret: which of two a handshake uses, and how members pass on the newest.
//!
//! Only the second message of a handshake depends on the secret, and only the initiator learns that
//! it does not match. So the responder answers under each secret it has, and the initiator chooses:
//! the newest with a peer that announced it, else the one that last worked, and the other one at
//! every retry. A mismatching answer hastens the retry.
//!
//! The newest secret goes to admitted peers that report an older one, inside the tunnel, and only
//! nodes that know all of the sender's revocations pass it on.

use std::time::{Duration, Instant};

use meshport_config::{MeshSecret, MeshSecrets, NextSecret, NodeId, SecretId};

use super::Core;
use crate::MeshCount;
use crate::admission::{Control, RevocationSummary};
use crate::event::{MeshEvent, Now};
use crate::peer::Peer;
use crate::peers::Slot;
use crate::ports;
use crate::tunnel::{Ends, Terms, Under};

/// Minimum interval between sending the secret to the same peer.
const HAND_GAP: Duration = Duration::from_millis(100);
/// How long storing a received secret may take before it is accepted again.
const KEEP_TIME: Duration = Duration::from_secs(5);
impl Core {
    /// Uses these secrets from now on; peers with an older one are informed. No session ends.
    pub fn set_secrets(&mut self, secrets: MeshSecrets, now: Now) {
        let is_newer = secrets.number() > self.secrets.number();
        self.secrets = secrets;
        self.offered = None;
        if !is_newer {
            return;
        }
        for slot in self.slots() {
            let Some(peer) = self.peers.get_mut(slot) else { continue };
            peer.secret.telling.wanted(now.instant);
            if !peer.schedule.has_session() {
                peer.secret.telling.session_down();
            }
            self.serve(slot, now);
            self.arm(slot);
        }
    }

    /// The secrets that open tunnels now, the older first: its half has seen more initiations, so
    /// it recognises a repeated one.
    fn valid_secrets(&self, now: Now) -> impl Iterator<Item = &MeshSecret> {
        let is_over = self.secrets.retires_at().is_some_and(|at| at <= now.wall);
        let former = self.secrets.former().filter(|_| !is_over);
        former.into_iter().chain([self.secrets.current()])
    }

    /// Their ids. Without an overlap there is one, and nothing to check.
    pub(super) fn secret_ids(&self, now: Now) -> Vec<SecretId> {
        self.valid_secrets(now).map(SecretId::of).collect()
    }

    /// Gives the peer's tunnel a half for this node's key `own` under each of these secrets, and
    /// drops unused halves for anything else.
    pub(super) fn equip(&mut self, slot: Slot, ids: &[SecretId], own: NodeId, now: Now) {
        let Some(node) = self.peers.get(slot).map(|peer| peer.node) else { return };
        for id in ids {
            let under = Under { secret: *id, own, peer: node };
            let is_known = self.peers.get(slot).is_some_and(|peer| peer.tunnel.knows(&under));
            let secret = self.valid_secrets(now).find(|secret| SecretId::of(secret) == *id);
            let Some(secret) = secret.filter(|_| !is_known) else { continue };
            let (terms, gate) = (self.terms(secret, own, node), self.local.gate_of(&own).cloned());
            if let (Some(peer), Some(gate)) = (self.peers.get_mut(slot), gate) {
                peer.tunnel.add(&gate, &terms);
            }
        }
        let local = &self.local;
        let is_valid = |under: &Under| {
            local.gate_of(&under.own).is_some() && under.peer == node && ids.contains(&under.secret)
        };
        if let Some(peer) = self.peers.get_mut(slot) {
            peer.tunnel.retain(is_valid, now.instant);
        }
    }

    /// The terms of a half of a peer's tunnel.
    pub(super) fn terms(&self, secret: &MeshSecret, own: NodeId, peer: NodeId) -> Terms {
        let under = Under { secret: SecretId::of(secret), own, peer };
        let ends = Ends { own: self.inner(&own).ip(), peer: self.inner(&peer).ip() };
        Terms { under, ends, psk: secret.psk(&own, &peer) }
    }

    /// The secret for the next initiation to a peer.
    pub(super) fn choose_secret(&self, peer: &Peer, ids: &[SecretId]) -> SecretId {
        let (former, current) = match ids {
            [former, current] => (*former, *current),
            [current] => return *current,
            _ => return SecretId::of(self.secrets.current()),
        };
        let under_way = peer.secret.tried.filter(|_| peer.schedule.tries() > 0);
        match (under_way, peer.secret.number) {
            (Some(tried), _) if peer.secret.again => tried,
            (Some(tried), _) if tried == current => former,
            (Some(_), _) => current,
            (None, Some(number)) if number >= self.secrets.number() => current,
            (None, Some(_)) => former,
            (None, None) => {
                peer.secret.agreed_under.filter(|it| ids.contains(it)).unwrap_or(current)
            }
        }
    }

    /// An answer to the current handshake arrived that does not decrypt.
    pub(super) fn answer_does_not_fit(&mut self, slot: Slot, now: Now) {
        if self.secrets.former().is_none() {
            return;
        }
        // The right one may be just behind it.
        if let Some(peer) = self.peers.get_mut(slot) {
            peer.schedule.hasten(now.instant);
        }
        self.arm(slot);
    }

    /// On a new session, asks a peer that may have an older secret.
    pub(super) fn ask_number(&mut self, slot: Slot, now: Now) {
        if self.secrets.number() == 0 {
            return;
        }
        if let Some(peer) = self.peers.get_mut(slot) {
            peer.secret.telling.session_up(now.instant);
        }
    }

    pub(super) fn send_number(&mut self, slot: Slot, now: Now) {
        let due =
            self.peers.get_mut(slot).is_some_and(|peer| peer.secret.telling.take(now.instant));
        if due {
            let number = self.secrets.number();
            let message = Control::Number { number, wants_yours: true };
            self.send_control(slot, now, ports::CONTROL, &message);
        }
    }

    /// Handles the number of an admitted peer's secret.
    pub(super) fn take_number(&mut self, slot: Slot, now: Now, number: u64, wants_yours: bool) {
        let mine = self.secrets.number();
        let Some(peer) = self.peers.get_mut(slot).filter(|peer| peer.admission.admitted) else {
            self.out.counters[MeshCount::DroppedNotAdmitted] += 1;
            return;
        };
        peer.secret.number = Some(number);
        if number == mine {
            peer.secret.telling.acknowledged();
        } else if number > mine && peer.secret.telling.due().is_none() {
            // Asks until it arrives: it may be held back until the revocations are known.
            peer.secret.telling.wanted(now.instant);
        }
        if wants_yours || number > mine {
            let message = Control::Number { number: mine, wants_yours: false };
            self.send_control(slot, now, ports::CONTROL, &message);
        }
        if number < mine {
            self.hand_secret(slot, now);
        }
    }

    fn hand_secret(&mut self, slot: Slot, now: Now) {
        let Some(peer) = self.peers.get_mut(slot) else { return };
        let is_recent = |at: Instant| now.instant.saturating_duration_since(at) < HAND_GAP;
        if peer.secret.handed.is_some_and(is_recent) {
            return;
        }
        peer.secret.handed = Some(now.instant);
        let Some(next) = self.secrets.next().and_then(|next| next.to_bytes().ok()) else { return };
        let revocations = self.known_revocations();
        self.out.counters[MeshCount::SecretsHanded] += 1;
        self.send_control(slot, now, ports::CONTROL, &Control::Secret { revocations, next: &next });
    }

    /// Handles a secret from an admitted peer. It is used only after the caller has stored it.
    pub(super) fn take_secret(
        &mut self,
        slot: Slot,
        now: Now,
        theirs: RevocationSummary,
        next: &[u8],
    ) {
        let Some(peer) = self.peers.get(slot).filter(|peer| peer.admission.admitted) else {
            self.out.counters[MeshCount::DroppedNotAdmitted] += 1;
            return;
        };
        let from = peer.node;
        let known = self.known_revocations();
        // A node that knows more revocations is assumed to know all of ours: sets only grow, and
        // members keep comparing them.
        if known.count < theirs.count || (known.count == theirs.count && known != theirs) {
            self.out.counters[MeshCount::DroppedEarlySecret] += 1;
            return;
        }
        let (mesh, revoked) = (self.local.mesh(), &self.blocked.revocations);
        let taken = NextSecret::from_bytes(next).and_then(|next| {
            let is_void = revoked.ends(next.rotation().chain());
            if is_void { Ok(None) } else { self.secrets.take(&next, mesh) }
        });
        match taken {
            Ok(Some(secrets)) => {
                let number = secrets.number();
                let is_being_kept = self.offered.is_some_and(|(offered, at)| {
                    offered >= number && now.instant.saturating_duration_since(at) < KEEP_TIME
                });
                if !is_being_kept {
                    self.offered = Some((number, now.instant));
                    self.out.tell(MeshEvent::Rotated { from, secrets: Box::new(secrets) });
                }
            }
            Ok(None) => {}
            Err(_) => self.out.counters[MeshCount::DroppedBadSecret] += 1,
        }
    }

    /// Requests secrets again that came too early, now that this node knows more revocations.
    pub(super) fn ask_again(&mut self, now: Now) {
        let mine = self.secrets.number();
        for slot in self.slots() {
            let Some(peer) = self.peers.get_mut(slot) else { continue };
            if peer.schedule.has_session() && peer.secret.number.is_some_and(|number| number > mine)
            {
                peer.secret.telling.wanted(now.instant);
                self.arm(slot);
            }
        }
    }

    fn known_revocations(&self) -> RevocationSummary {
        let count = u32::try_from(self.blocked.revocations.len()).unwrap_or(u32::MAX);
        RevocationSummary { count, digest: self.blocked.revocations.digest() }
    }

    pub(super) fn slots(&self) -> Vec<Slot> {
        self.peers.iter().map(|(slot, _)| slot).collect()
    }
}
