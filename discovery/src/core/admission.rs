//! Who enters the directory, and who goes: for a stronger newcomer, or when a credential ends.

use std::time::{Duration, Instant};

use meshport_config::{Credential, NodeId, UnixSeconds};

use super::{Discovery, Event};
use crate::directory::{Admission, Liveness, Priority, Record};
use crate::local::Urgency;
use crate::wire::{Claim, Standing};

impl Discovery {
    /// Whether nobody would go for a newcomer that others tell of. Asked before anything is
    /// verified: a flood of those for whom there is no room costs no signatures.
    pub(super) fn would_refuse(&mut self, unverified: &[u8]) -> bool {
        self.peers.directory.is_crowded()
            && Credential::from_bytes(unverified).is_ok_and(|credential| {
                let priority = Priority::of_hearsay(&credential);
                self.admission_of(&credential, priority) == Admission::Refused
            })
    }

    /// Lets a weaker entry go if a newcomer finds no free place. Its credential is verified.
    pub(super) fn evict_for(&mut self, newcomer: &Credential, priority: Priority, now: Instant) {
        let Admission::Evict(node) = self.admission_of(newcomer, priority) else { return };
        let Some(liveness) = self.peers.get(&node).map(|entry| entry.liveness) else { return };
        self.outbox.counters.displaced += 1;
        self.drop_member(node, now);
        match liveness {
            // Others have it too, and it would come back as one that may be alive.
            Liveness::Down | Liveness::Left => self.peers.directory.forget(&node, now),
            Liveness::Unknown | Liveness::Alive => self.peers.directory.remove(&node),
        };
        self.doubts.remove(&node);
        self.outbox.report(Event::Forgotten(node));
    }

    fn admission_of(&mut self, newcomer: &Credential, priority: Priority) -> Admission {
        let is_kept =
            |node: &_| self.gossip.seeds.contains(node) || self.monitor.interest(node).is_some();
        self.peers.directory.admission_of(newcomer, priority, is_kept)
    }

    /// Every input that knows the wall time says it here first.
    pub(super) fn set_wall(&mut self, wall: UnixSeconds, now: Instant) {
        if self.clock.set_wall(wall) && !self.ended.is_empty() {
            self.take_back(now);
        }
    }

    /// Takes a member out of the directory whose credential has ended by the clock.
    pub(super) fn set_aside(&mut self, node: NodeId, now: Instant) {
        self.drop_member(node, now);
        let Some(entry) = self.peers.directory.remove(&node) else { return };
        self.ended.keep(Record { credential: entry.credential, state: entry.state });
        self.outbox.report(Event::Forgotten(node));
    }

    /// The clock was put back: whose credential has not ended after all is known again.
    fn take_back(&mut self, now: Instant) {
        for (node, record) in self.ended.take_valid(self.clock.wall) {
            if self.trust.is_revoked(&record.credential) {
                continue;
            }
            self.outbox.counters.taken_back += 1;
            self.evict_for(&record.credential, Priority::of_hearsay(&record.credential), now);
            self.merge(&record, now);
            if self.peers.contacts.session(&node) {
                self.peers.directory.set_here(&node, true);
            }
        }
        // Who has forgotten this node meanwhile takes no record that it knew before.
        self.local.want(Urgency::Rumour, Duration::ZERO, now);
        self.gossip.hasten_search(now);
        self.look_for_members(now);
    }

    /// Ends all dealings with a node that is about to go from the directory.
    pub(super) fn drop_member(&mut self, node: NodeId, now: Instant) {
        let Some(entry) = self.peers.get(&node) else { return };
        let (was_alive, life) = (entry.is_alive(), entry.life.unwrap_or_default());
        if was_alive {
            let claim = Claim { life, incarnation: 0, standing: Standing::Down };
            self.apply_claims(vec![(node, claim)], false, now);
        }
        self.swim.forget(node, life);
        self.monitor.set_interest(node, None);
        self.monitor.paths.set(node, None, false, now);
    }
}
