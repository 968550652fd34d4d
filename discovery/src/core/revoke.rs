//! Accepts, applies, spreads and compares revocations and successions.
//!
//! A revocation floods: a node that learns of one sends it to all connected peers, and again after
//! a second, since there is no acknowledgement. Comparison of directories repairs what that misses:
//! it includes a digest of the revocations, and on a difference both sides send theirs, a bounded
//! part at a time. Successions are also in the successor's credential, which all nodes have, so
//! they need no comparison.

use std::time::Instant;

use meshport_config::planted::{Bug, is_planted};
use meshport_config::{
    Added, Credential, MAX_REVOCATION_BYTES, NodeId, Revocation, Revocations, Revoked,
};

use super::{Discovery, Event};
use crate::Count;
use crate::directory::Entry;
use crate::verify::Rejected;
use crate::wire::{Claim, Message, Standing};

/// Bytes of revocations in one datagram, with their lengths: six by the mesh's first key, three by
/// keys with the longest chain of endorsements.
const PER_DATAGRAM: usize = 3 * (MAX_REVOCATION_BYTES + 2);
/// Datagrams sent on one difference; the next comparison sends others.
const MAX_DATAGRAMS: usize = 16;

impl Discovery {
    /// Takes a revocation from this node's operator.
    pub fn handle_revocation(
        &mut self,
        revocation: &Revocation,
        now: Instant,
    ) -> Result<Added, Rejected> {
        revocation.verify(&self.trust.mesh)?;
        let added = self.revoke(revocation.clone(), None, now);
        self.settle(now);
        Ok(added)
    }

    /// Restores the verified revocations of an earlier run. Sends nothing.
    pub fn restore_revocations(&mut self, all: Revocations, now: Instant) {
        self.trust.revocations = all;
        let all: Vec<Revocation> = self.trust.revocations.iter().cloned().collect();
        all.iter().for_each(|revocation| self.forget_covered(revocation, now));
        self.settle(now);
    }

    /// The revocations that this node knows.
    pub fn revocations(&self) -> &Revocations {
        &self.trust.revocations
    }

    pub(super) fn take_revoked(&mut self, from: NodeId, list: &[&[u8]], now: Instant) {
        for bytes in list.iter().filter(|_| !is_planted(Bug::Revocation)) {
            if !self.peers.contacts.allow_record(from, now) {
                self.outbox.counters[Count::DroppedFlood] += 1;
                continue;
            }
            let taken = Revocation::from_bytes(bytes).map_err(Rejected::from).and_then(|it| {
                if self.trust.revocations.get(&it.revoked) == Some(&it) {
                    return Ok(());
                }
                if !self.concerns(&it) {
                    return Ok(());
                }
                it.verify(&self.trust.mesh)?;
                self.revoke(it, Some(from), now);
                Ok(())
            });
            if let Err(reason) = taken {
                self.outbox.counters[Count::RejectedRevocations] += 1;
                self.report_ignored(from, now, || format!("a revocation: {reason}"));
            }
        }
    }

    /// Whether to keep a revocation. Anyone can create keys that succeed each other, so it must be
    /// about a known node; the revocation of an unknown one comes with its first record.
    fn concerns(&self, revocation: &Revocation) -> bool {
        match revocation.revoked {
            Revoked::Succeeded { node, .. } => self.peers.is_known(&node),
            Revoked::Node(_) | Revoked::Invite(_) => true,
        }
    }

    /// A peer's digest of its revocations arrived. Sends it this node's if they differ.
    pub(super) fn take_revocations(&mut self, from: NodeId, digest: [u8; 8], now: Instant) {
        if digest != self.trust.digest() {
            self.send_revocations(from, now);
        }
    }

    /// Like [`Self::take_revocations`], and requests the peer's own in return.
    pub(super) fn compare_revocations(&mut self, from: NodeId, digest: &[u8], now: Instant) {
        let own = self.trust.digest();
        if digest != own {
            self.send_revocations(from, now);
            self.send(from, &Message::Revocations(own));
        }
    }

    /// Sends a peer the reason why this credential is rejected.
    pub(super) fn tell_covering(&mut self, peer: NodeId, credential: &Credential, now: Instant) {
        let Some(revocation) = self.trust.revocations.covering(credential) else { return };
        let bytes = revocation.to_bytes();
        if self.peers.contacts.allow_reply(peer, now) {
            self.send(peer, &Message::Revoked(vec![&bytes]));
        }
    }

    /// Sends the revocations that are due to be repeated.
    pub(super) fn tell_revocations_again(&mut self, now: Instant) {
        while let Some(revocation) = self.trust.take_due(now) {
            self.tell_revocation(&revocation, None);
        }
    }

    pub(super) fn revoke(
        &mut self,
        revocation: Revocation,
        from: Option<NodeId>,
        now: Instant,
    ) -> Added {
        let added = self.trust.revocations.add(revocation.clone());
        match added {
            Added::Known => return added,
            Added::Full => {
                self.outbox.counters[Count::DroppedRevocations] += 1;
                return added;
            }
            Added::New => self.outbox.counters[Count::Revocations] += 1,
        }
        // A leaf forwards nothing.
        let tells = self.attach.is_none();
        if tells {
            self.tell_revocation(&revocation, from);
            self.trust.tell_again(revocation.clone(), now);
        }
        if let Revoked::Node(node) | Revoked::Succeeded { node, .. } = revocation.revoked
            && let Some(entry) = self.peers.get(&node)
        {
            self.trust.revocations.note_name(node, &entry.credential.name);
        }
        self.forget_covered(&revocation, now);
        self.outbox.report(Event::Revoked(revocation));
        added
    }

    /// Forgets all nodes whose credential is covered, as if they had never been known.
    fn forget_covered(&mut self, revocation: &Revocation, now: Instant) {
        let covered = |(node, entry): (&NodeId, &Entry)| {
            let covers = revocation.covers(&entry.credential) && *node != self.peers.me;
            covers.then_some((*node, entry.life))
        };
        let lost: Vec<_> = self.peers.directory.iter().filter_map(covered).collect();
        for (node, life) in lost {
            if let Some(life) = life {
                let claim = Claim { life, incarnation: 0, standing: Standing::Down };
                self.apply_claims(vec![(node, claim)], false, now);
            }
            self.peers.directory.remove(&node);
            self.doubts.remove(&node);
            self.monitor.set_interest(node, None);
            self.monitor.members_changed = true;
            self.adjust_path(node, now);
            self.outbox.report(Event::StateChanged(node));
        }
    }

    fn tell_revocation(&mut self, revocation: &Revocation, except: Option<NodeId>) {
        let bytes = revocation.to_bytes();
        for peer in self.peers.connected_except(except, &mut self.dice) {
            self.send(peer, &Message::Revoked(vec![&bytes]));
        }
    }

    fn send_revocations(&mut self, to: NodeId, now: Instant) {
        let all: Vec<Vec<u8>> =
            self.trust.revocations.by_authority().map(Revocation::to_bytes).collect();
        // Starts at a random one, so that omitted ones are sent another time.
        let start = self.dice.below(all.len().max(1));
        let order: Vec<&[u8]> =
            all[start..].iter().chain(&all[..start]).map(Vec::as_slice).collect();
        let mut rest = &order[..];
        for _ in 0..MAX_DATAGRAMS {
            let mut room = PER_DATAGRAM;
            let fits = |it: &&&[u8]| {
                let left = room.checked_sub(it.len() + 2);
                room = left.unwrap_or(0);
                left.is_some()
            };
            let (part, after) = rest.split_at(rest.iter().take_while(fits).count());
            if part.is_empty() {
                break;
            }
            rest = after;
            if self.peers.contacts.allow_reply(to, now) {
                self.send(to, &Message::Revoked(part.to_vec()));
            }
        }
    }
}
