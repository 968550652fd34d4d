//! Records whose credential has expired by this machine's clock.
//!
//! A clock can be wrong and be corrected. So such a record leaves the directory but is kept, and
//! returns when the clock goes back before its expiry, as after a restart. Bounded by
//! [`MAX_ENDED`]; with correct clocks these are only members that were not renewed in time.

use std::time::{Duration, Instant};

use meshport_config::{NodeId, UnixSeconds};

use super::{Discovery, Event};
use crate::directory::{Hold, MAX_MEMBERS, Record};
use crate::local::Urgency;

/// Records kept for a clock that is put back: a clock that is years ahead ends all of a directory.
const MAX_ENDED: usize = MAX_MEMBERS;

impl Discovery {
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
        if self.ended.len() < MAX_ENDED {
            let record = Record { credential: entry.credential, state: entry.state };
            self.ended.insert(node, record);
        }
        self.outbox.report(Event::Forgotten(node));
    }

    /// The clock was put back: whose credential has not ended after all is known again.
    fn take_back(&mut self, now: Instant) {
        let all = std::mem::take(&mut self.ended);
        let wall = self.clock.wall;
        let (valid, ended) = all.into_iter().partition(|(_, it)| wall < it.credential.expires_at);
        self.ended = ended;
        for (node, record) in valid {
            if self.is_revoked(&record.credential) {
                continue;
            }
            self.outbox.counters.taken_back += 1;
            self.make_room(&record.credential, Hold::of_hearsay(&record.credential), now);
            self.merge(&record, now);
            if self.peers.contacts.session(&node) {
                self.peers.directory.set_here(&node, true);
            }
        }
        // Who has forgotten this node meanwhile takes no record that it knew before.
        self.local.want(Urgency::Rumour, Duration::ZERO, now);
        self.search_at = now;
        self.look_for_members(now);
    }
}
