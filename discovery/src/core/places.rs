//! Admission of newcomers to a full directory.

use std::time::Instant;

use meshport_config::Credential;

use super::{Discovery, Event};
use crate::directory::{Hold, Liveness, Room};

impl Discovery {
    /// Whether nobody would go for a newcomer that others tell of. Asked before anything is
    /// verified: a flood of those for whom there is no room costs no signatures.
    pub(super) fn has_no_room_for(&mut self, unverified: &[u8]) -> bool {
        self.peers.directory.is_crowded()
            && Credential::from_bytes(unverified).is_ok_and(|credential| {
                let hold = Hold::of_hearsay(&credential);
                self.room_for(&credential, hold) == Room::Nowhere
            })
    }

    /// Lets a weaker entry go if a newcomer finds no free place. Its credential is verified.
    pub(super) fn make_room(&mut self, newcomer: &Credential, hold: Hold, now: Instant) {
        let Room::InPlaceOf(node) = self.room_for(newcomer, hold) else { return };
        let Some(liveness) = self.peers.directory.get(&node).map(|entry| entry.liveness) else {
            return;
        };
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

    fn room_for(&mut self, newcomer: &Credential, hold: Hold) -> Room {
        let (seeds, interests) = (&self.seeds, &self.interests);
        let is_kept = |node: &_| seeds.contains(node) || interests.contains_key(node);
        self.peers.directory.room_for(newcomer, hold, is_kept)
    }
}
