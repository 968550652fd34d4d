//! Credentials: presents ours and verifies those of peers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use meshport_config::{Credential, Error};
use zeroize::Zeroizing;

use super::send::udp_packet;
use super::{Core, Notice, Source};
use crate::MeshCount;
use crate::admission::{Control, unknown};
use crate::event::{MeshEvent, Now};
use crate::inner::Udp;
use crate::peers::Slot;
use crate::{MeshError, NotBelieved, ports};

/// Minimum interval between verified credentials of a peer, each of which costs up to four
/// signature checks: less than an honest peer waits before it repeats a hello.
const JUDGE_GAP: Duration = Duration::from_millis(200);

/// Interval between reports of a peer's unknown messages.
const UNKNOWN_GAP: Duration = Duration::from_secs(60);

/// Interval between requests to a peer that sends data but is not admitted.
const ASK_GAP: Duration = Duration::from_secs(1);

/// The data of a hello about its sender's process.
#[derive(Clone, Copy)]
struct Introduction {
    instance: u64,
    has_yours: bool,
    continues: bool,
    joins: bool,
}

/// Why a peer is not admitted.
enum Refusal {
    /// The presented credential is not valid, or not now. The peer may present another one.
    NotValid(String),
    /// The peer itself reports, without proof, that a revocation covers it.
    Claimed(String),
    /// The authority has permanently revoked the presented credential.
    Revoked(String),
    /// It came too soon after another one. It gets no answer, so an honest peer repeats it.
    TooSoon,
}

impl Core {
    /// A control message; the UDP checksum is verified.
    pub(super) fn handle_control(&mut self, source: Source, now: Now, udp: &Udp<'_>) {
        let Source { slot, .. } = source;
        let reply_port = udp.flow.source_port;
        match Control::decode(udp.payload) {
            Some(Control::Hello { instance, has_yours, continues, joins, credential }) => {
                let introduction = Introduction { instance, has_yours, continues, joins };
                self.note_instance(slot, now, introduction);
                match self.judge(slot, now, credential) {
                    Ok(()) => self.send_control(slot, now, reply_port, &Control::Ack { instance }),
                    Err(Refusal::NotValid(reason)) => self.refuse(slot, now, reply_port, reason),
                    Err(Refusal::Claimed(reason)) => {
                        self.refuse(slot, now, reply_port, reason);
                        self.remove(slot, "the peer reports that it is revoked");
                    }
                    Err(Refusal::Revoked(reason)) => {
                        self.refuse(slot, now, reply_port, reason);
                        self.block(slot);
                    }
                    Err(Refusal::TooSoon) => {
                        self.out.counters[MeshCount::DroppedFrequentCredential] += 1;
                    }
                }
                self.note_process(source, now, instance);
                self.serve(slot, now);
            }
            Some(Control::Here { instance, you }) => {
                self.take_here(source, now, instance, you);
            }
            Some(Control::Duplicate { at }) => self.take_duplicate(slot, now, at),
            Some(Control::Ack { instance }) => {
                if let Some(peer) = self.peers.get_mut(slot)
                    && instance == self.local.instance
                {
                    peer.admission.showing.acknowledged();
                    // A connection may be waiting for this, see `Core::may_connect`.
                    self.out.notice(Notice::Ready);
                    self.move_to_new_key(slot, now);
                }
            }
            Some(Control::Refused { reason }) => {
                self.out.counters[MeshCount::RefusedByPeer] += 1;
                let reason = format!("the peer refuses this node's credential: {reason}");
                self.tell_refusal(slot, reason);
            }
            Some(Control::Number { number, wants_yours }) => {
                self.take_number(slot, now, number, wants_yours);
            }
            Some(Control::Secret { revocations, next }) => {
                self.take_secret(slot, now, revocations, next);
            }
            None => match unknown(udp.payload) {
                Some(what) => self.note_unknown(slot, now, what),
                None => self.out.counters[MeshCount::DroppedControl] += 1,
            },
        }
    }

    /// A peer sent a message that this version does not know.
    fn note_unknown(&mut self, slot: Slot, now: Now, what: String) {
        self.out.counters[MeshCount::DroppedUnknownControl] += 1;
        let Some(peer) = self.peers.get_mut(slot).filter(|peer| peer.admission.admitted) else {
            return;
        };
        let is_recent = |at: Instant| now.instant.saturating_duration_since(at) < UNKNOWN_GAP;
        if !peer.admission.unknown_told_at.is_some_and(is_recent) {
            peer.admission.unknown_told_at = Some(now.instant);
            self.out.tell(MeshEvent::Unknown { from: peer.node, what });
        }
    }

    /// Replaces this node's credential and presents it at once to every peer with a session, to
    /// others when they have one. No session ends.
    ///
    /// # Errors
    /// It is for another node, or not valid now.
    pub fn set_credential(&mut self, credential: Credential, now: Now) -> Result<(), MeshError> {
        self.local.check_is_own(&credential)?;
        self.check_credential(&credential, now)?;
        self.local.set_credential(credential);
        self.show_to_all(now);
        Ok(())
    }

    /// Presents the credential to every peer with a session at once, to the others when they have
    /// one.
    pub(super) fn show_to_all(&mut self, now: Now) {
        for slot in self.slots() {
            let Some(peer) = self.peers.get_mut(slot) else { continue };
            peer.admission.showing.wanted(now.instant);
            if !peer.schedule.has_session() {
                peer.admission.showing.session_down();
            }
            self.serve(slot, now);
            self.arm(slot);
        }
    }

    fn note_instance(&mut self, slot: Slot, now: Now, introduction: Introduction) {
        let Introduction { instance, has_yours, continues, joins } = introduction;
        let Some(peer) = self.peers.get_mut(slot) else { return };
        peer.traffic.split.joins = joins;
        let restarted = peer.admission.instance.is_some_and(|known| known != instance);
        peer.admission.instance = Some(instance);
        if restarted {
            peer.admission.showing.wanted(now.instant);
            // Its state folder may have been restored.
            peer.secret.number = None;
            if peer.secret.telling.is_acknowledged() {
                peer.secret.telling.wanted(now.instant);
            }
            self.out.counters[MeshCount::RestartsSeen] += 1;
            if peer.traffic.split.narrow {
                // The new process does not split yet: the next long packet tells it to.
                self.out.tell(MeshEvent::Unacknowledged(peer.node));
            }
            self.out.notice(match continues {
                true => Notice::Succeeded(peer.node),
                false => Notice::Cut(peer.node, "the peer was restarted"),
            });
        } else if !has_yours {
            peer.admission.showing.asked(now.instant);
        }
    }

    /// Decodes and verifies a presented credential and admits the peer.
    fn judge(&mut self, slot: Slot, now: Now, bytes: &[u8]) -> Result<(), Refusal> {
        let credential =
            Credential::from_bytes(bytes).map_err(|error| Refusal::NotValid(error.to_string()))?;
        let Some(peer) = self.peers.get_mut(slot) else { return Ok(()) };
        let known =
            peer.admission.admitted && peer.admission.credential.as_deref() == Some(&credential);
        let follows = credential.succession.as_ref().is_some_and(|it| it.former == peer.node);
        if credential.node != peer.node && !follows {
            let text = format!("it is for another node, {}", credential.node);
            return Err(Refusal::NotValid(text));
        }
        if !known {
            let is_recent = |at: Instant| now.instant.saturating_duration_since(at) < JUDGE_GAP;
            if peer.admission.judged_at.is_some_and(is_recent) {
                return Err(Refusal::TooSoon);
            }
            peer.admission.judged_at = Some(now.instant);
            // The session proves who presents the revoked credential. A succeeded key may have been
            // presented just before.
            if let Some(revocation) = self.blocked.revocations.covering(&credential)
                && credential.node == peer.node
                && revocation.successor().is_none()
            {
                // A holder of the mesh secret can make up any number of keys and name a revoked
                // invite. Only a credential that the invite has signed takes a slot, expired or
                // not: an expired one belongs to a real node.
                let signed = credential.verify(self.local.mesh(), now.wall);
                return Err(match signed {
                    Ok(()) | Err(Error::NotYetValid { .. } | Error::Expired { .. }) => {
                        Refusal::Revoked(NotBelieved::Revoked(revocation.revoked).to_string())
                    }
                    Err(error) => Refusal::Claimed(error.to_string()),
                });
            }
            self.check_credential(&credential, now).map_err(|error| {
                self.tell_early(&error);
                Refusal::NotValid(error.to_string())
            })?;
            let slot = self.follow(&credential).unwrap_or(slot);
            let credential = self.latest(slot, now, credential);
            self.admit(slot, credential);
            self.note_home(slot, now);
            self.say_here(slot, now);
        }
        Ok(())
    }

    /// The credential that counts for a node that presents a valid one: a later one of its own, if
    /// known here. The node has consented to that, even if it has fewer roles, so an old copy of
    /// the state folder restores no roles. One that has not begun is from a time when the clocks of
    /// both nodes were ahead, and does not count.
    fn latest(&self, slot: Slot, now: Now, shown: Credential) -> Credential {
        let known = self.peers.get(slot).and_then(|peer| peer.admission.credential.as_deref());
        let is_later = |known: &&Credential| {
            known.node == shown.node
                && known.issued_at > shown.issued_at
                && known.valid_from() <= now.wall
                && self.check_credential(known, now).is_ok()
        };
        known.filter(is_later).cloned().unwrap_or(shown)
    }

    /// Tells the gate an admitted peer's address, from which more initiations are read under load.
    pub(super) fn note_home(&self, slot: Slot, now: Now) {
        let peer = self.peers.get(slot).filter(|peer| peer.admission.admitted);
        if let Some(route) = peer.and_then(|peer| peer.endpoint) {
            self.local.gate.settle(route.remote.ip(), now.instant);
        }
    }

    fn admit(&mut self, slot: Slot, credential: Credential) {
        self.peers.settle(slot);
        let Some(peer) = self.peers.get_mut(slot) else { return };
        let new = peer.admission.credential.as_deref() != Some(&credential);
        peer.admission.provisional_until = None;
        peer.admission.last_refusal = None;
        if !peer.admission.admitted {
            self.out.counters[MeshCount::Admissions] += 1;
        }
        peer.admission.admitted = true;
        if new {
            peer.admission.credential = Some(Arc::new(credential.clone()));
            self.out.tell(MeshEvent::Admitted { credential: Box::new(credential) });
        }
        self.report_up(slot);
    }

    /// Handles a peer's credential that the caller knows.
    pub(super) fn learn_credential(&mut self, slot: Slot, credential: &Arc<Credential>, now: Now) {
        let Some(peer) = self.peers.get_mut(slot) else { return };
        if peer.admission.credential.as_ref() == Some(credential) {
            // Share one copy.
            peer.admission.credential = Some(Arc::clone(credential));
            return;
        }
        let fits = credential.node == peer.node;
        let verdict = self.check_credential(credential, now);
        let Some(peer) = self.peers.get_mut(slot) else { return };
        match (fits, verdict) {
            (true, Ok(())) => {
                // The credential that the peer itself presented wins over those from others, unless
                // this one is newer.
                let older = |known: &Arc<Credential>| known.issued_at >= credential.issued_at;
                if peer.admission.admitted && peer.admission.credential.as_ref().is_some_and(older)
                {
                    return;
                }
                peer.admission.credential = Some(Arc::clone(credential));
                if peer.schedule.has_session() {
                    self.judge_known_credential(slot, now);
                    self.report_up(slot);
                }
            }
            (false, _) => {
                self.out.counters[MeshCount::CredentialsRefused] += 1;
                self.tell_refusal(slot, "the credential given is for another node".to_owned());
            }
            (true, Err(error)) => {
                self.out.counters[MeshCount::CredentialsRefused] += 1;
                self.tell_early(&error);
                self.tell_refusal(slot, error.to_string());
            }
        }
    }

    /// With a session, admits a peer whose credential is known, and no longer admits one whose
    /// credential has expired. Sessions are renewed every two minutes, so this is soon enough. The
    /// credential is kept, since this clock may be wrong.
    pub(super) fn judge_known_credential(&mut self, slot: Slot, now: Now) {
        let Some(peer) = self.peers.get(slot) else { return };
        let Some(credential) = peer.admission.credential.clone() else { return };
        if now.wall < credential.valid_from() {
            self.out.tell(MeshEvent::NotYetValid(credential.issued_at));
        }
        let verdict = self.check_credential(&credential, now);
        let Some(peer) = self.peers.get_mut(slot) else { return };
        match verdict {
            Ok(()) => {
                if !peer.admission.admitted {
                    self.out.counters[MeshCount::Admissions] += 1;
                }
                peer.admission.admitted = true;
                peer.admission.provisional_until = None;
                self.peers.settle(slot);
            }
            Err(error) => {
                peer.admission.admitted = false;
                peer.forget_sight();
                let (node, told) = (peer.node, std::mem::take(&mut peer.admission.reported_up));
                self.out.counters[MeshCount::CredentialsRefused] += 1;
                self.tell_refusal(slot, error.to_string());
                if told {
                    self.out.tell(MeshEvent::SessionDown(node));
                    self.out.notice(Notice::Cut(node, "the peer's credential is not valid"));
                }
            }
        }
    }

    /// Handles data from a peer that is not admitted. If its credential is known, it may be valid
    /// by now, since this clock was wrong. If not, asks the peer for it.
    pub(super) fn admit_again(&mut self, slot: Slot, now: Now) {
        let Some(peer) = self.peers.get_mut(slot) else { return };
        let is_recent = |at: Instant| now.instant.saturating_duration_since(at) < ASK_GAP;
        if !peer.schedule.has_session() || peer.here().asked_at.is_some_and(is_recent) {
            return;
        }
        peer.here().asked_at = Some(now.instant);
        if peer.admission.credential.is_none() {
            peer.admission.showing.wanted(now.instant);
            return self.serve(slot, now);
        }
        self.judge_known_credential(slot, now);
        self.report_up(slot);
        self.say_here(slot, now);
    }

    /// Informs the user if a credential is refused because it is not valid yet.
    fn tell_early(&mut self, error: &NotBelieved) {
        if let NotBelieved::Invalid(Error::NotYetValid { valid_from, .. }) = error {
            self.out.tell(MeshEvent::NotYetValid(*valid_from));
        }
    }

    fn refuse(&mut self, slot: Slot, now: Now, port: u16, reason: String) {
        self.out.counters[MeshCount::CredentialsRefused] += 1;
        self.send_control(slot, now, port, &Control::Refused { reason: reason.clone() });
        self.tell_refusal(slot, reason);
    }

    /// Informs the user once per reason and peer.
    fn tell_refusal(&mut self, slot: Slot, reason: String) {
        let Some(peer) = self.peers.get_mut(slot) else { return };
        if peer.admission.last_refusal.as_ref() != Some(&reason) {
            peer.admission.last_refusal = Some(reason.clone());
            let node = peer.node;
            self.out.tell(MeshEvent::Refused { node, reason });
        }
    }

    pub(super) fn send_hello(&mut self, slot: Slot, now: Now) {
        let Some(peer) = self.peers.get_mut(slot) else { return };
        if !peer.admission.showing.take(now.instant) {
            return;
        }
        // Of a peer that is known only from gossip, a hello is still needed.
        let has_yours = peer.admission.admitted && peer.admission.instance.is_some();
        let (instance, continues) = (self.local.instance, self.local.continues);
        let credential = std::mem::take(&mut self.local.shown);
        let hello =
            Control::Hello { instance, has_yours, continues, joins: true, credential: &credential };
        let packet = self.control_packet(slot, ports::CONTROL, &hello);
        self.local.shown = credential;
        if let Some(packet) = packet {
            // Whole: a peer takes no fragments before it has admitted this node.
            self.send_sealed(slot, now, &packet);
        }
    }

    pub(super) fn send_control(&mut self, slot: Slot, now: Now, port: u16, message: &Control<'_>) {
        if let Some(packet) = self.control_packet(slot, port, message) {
            self.send_packet(slot, now, &packet);
        }
    }

    fn control_packet(
        &self,
        slot: Slot,
        port: u16,
        message: &Control<'_>,
    ) -> Option<Zeroizing<Vec<u8>>> {
        let flow = self.flow(slot, ports::CONTROL, port)?;
        Some(Zeroizing::new(udp_packet(&flow, &message.encode())))
    }
}
