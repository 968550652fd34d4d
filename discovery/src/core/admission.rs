//! Decides which nodes enter the directory, also from a snapshot, and which leave it: for a
//! stronger newcomer, or when a credential ends.

use std::time::{Duration, Instant};

use meshport_config::{Credential, NodeId, UnixSeconds};

use super::{Discovery, Event};
use crate::Count;
use crate::directory::{Admission, Liveness, MAX_MEMBERS, Merge, Priority, Record};
use crate::error::DiscoveryError;
use crate::local::Urgency;
use crate::snapshot::{self, Node};
use crate::wire::{Claim, Standing};

impl Discovery {
    /// Whether a full directory has no entry to evict for an announced newcomer. Checked before any
    /// verification, so that a flood of such newcomers costs no signature checks.
    pub(super) fn would_refuse(&mut self, unverified: &[u8]) -> bool {
        self.peers.directory.is_crowded()
            && Credential::from_bytes(unverified).is_ok_and(|credential| {
                let priority = Priority::of_hearsay(&credential);
                self.admission_of(&credential, priority) == Admission::Refused
            })
    }

    /// Evicts a weaker entry if there is no room for a newcomer, whose credential is verified.
    pub(super) fn evict_for(&mut self, newcomer: &Credential, priority: Priority, now: Instant) {
        let Admission::Evict(node) = self.admission_of(newcomer, priority) else { return };
        let Some(liveness) = self.peers.get(&node).map(|entry| entry.liveness) else { return };
        self.outbox.counters[Count::Displaced] += 1;
        self.drop_member(node, now);
        match liveness {
            // Others have it too, and it would return as possibly alive.
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

    /// Called first by every input with the wall time.
    pub(super) fn set_wall(&mut self, wall: UnixSeconds, now: Instant) {
        let before = self.clock.set_wall(wall);
        if self.ended.may_return(before, wall) {
            self.take_back(now);
        }
    }

    /// Removes a member from the directory whose credential has expired by the clock.
    pub(super) fn set_aside(&mut self, node: NodeId, now: Instant) {
        self.drop_member(node, now);
        let Some(entry) = self.peers.directory.remove(&node) else { return };
        self.ended.keep(Record { credential: entry.credential, state: entry.state });
        self.outbox.report(Event::Forgotten(node));
    }

    /// Whether members were set aside because their credential is not valid by the clock.
    pub fn has_ended(&self) -> bool {
        self.ended.records().next().is_some()
    }

    /// The clock was set: members whose credential is valid after all are known again.
    fn take_back(&mut self, now: Instant) {
        for (node, record) in self.ended.take_valid(self.clock.wall) {
            if self.trust.is_revoked(&record.credential) {
                continue;
            }
            self.outbox.counters[Count::TakenBack] += 1;
            self.evict_for(&record.credential, Priority::of_hearsay(&record.credential), now);
            self.merge(&record, now);
            if self.peers.contacts.session(&node) {
                self.peers.directory.set_here(&node, true);
            }
        }
        // A member that has forgotten this node does not accept a record that it already had.
        self.local.want(Urgency::Rumour, Duration::ZERO, now);
        self.gossip.search_at = now;
        self.look_for_members(now);
    }

    /// Ends everything with a node that is about to be removed from the directory.
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

    /// The directory as bytes, for [`Self::restore`] after a restart. Includes nodes whose
    /// credential is not valid by the clock, since the clock may be wrong.
    pub fn snapshot(&self) -> Vec<u8> {
        let ended = self.ended.records();
        let (mesh, wall) = (&self.trust.mesh, self.clock.wall);
        snapshot::write(&self.peers.directory, ended, mesh, wall, self.clock.latest)
    }

    /// Restores a snapshot of an earlier run: nodes are known with unknown liveness, those that
    /// were down or had left stay so, and an [`crate::Event::PeerWanted`] comes for each that has
    /// not left. Returns how many were restored. Those whose credential is not valid by the clock
    /// are not, but return once they are.
    ///
    /// # Errors
    ///
    /// [`DiscoveryError`] when the bytes are damaged, of another format or of another mesh. Nothing
    /// has changed then.
    pub fn restore(
        &mut self,
        bytes: &[u8],
        now: Instant,
        wall: UnixSeconds,
    ) -> Result<usize, DiscoveryError> {
        let body = snapshot::read(bytes)?;
        if body.mesh != *self.trust.mesh.as_bytes() {
            return Err(DiscoveryError::SnapshotForeign);
        }
        self.clock.wall = wall;
        let stopped = Duration::from_secs(wall.0.saturating_sub(body.saved_at));
        let mut restored = 0;
        self.peers.directory.reserve(body.nodes.len() + 1);
        for node in body.nodes.iter().take(MAX_MEMBERS) {
            restored += usize::from(self.restore_node(node, stopped, now));
        }
        self.gossip.search_at = now;
        self.look_for_members(now);
        self.settle(now);
        Ok(restored)
    }

    fn restore_node(&mut self, saved: &Node<'_>, stopped: Duration, now: Instant) -> bool {
        let wall = self.clock.wall;
        // The clock may be wrong, so time is judged last.
        let read = Credential::from_bytes(saved.credential).ok();
        let within = read.map_or(wall, |it| it.nearest_valid(wall));
        let credential = self.trust.credential(saved.credential, within).ok();
        let Some(credential) = credential.filter(|it| !self.trust.is_revoked(it)) else {
            self.outbox.counters[Count::RejectedCredentials] += 1;
            return false;
        };
        if self.refuses_leaf(&credential) {
            return false;
        }
        let node = credential.node;
        let verified = saved.state.map(|bytes| self.trust.state(bytes, &credential.record_key));
        let state = match verified {
            Some(Ok(state)) if state.get().node == node => Some(state),
            Some(_) => {
                self.outbox.counters[Count::RejectedStates] += 1;
                None
            }
            None => None,
        };
        if node == self.peers.me {
            if let Some(state) = state
                && state.get().generation >= self.local.generation()
            {
                self.outlive(state.get().generation, now);
            }
            return false;
        }
        if !credential.is_valid_at(wall) {
            self.ended.keep_restored(Record { credential, state }, wall);
            return false;
        }
        self.evict_for(&credential, Priority::of_hearsay(&credential), now);
        let outcome = self.merge(&Record { credential, state }, now);
        let over =
            saved.over_s.and_then(|seconds| Duration::from_secs(seconds).checked_add(stopped));
        if let Some(over) = over
            && outcome == Merge::New
        {
            let left = self.peers.get(&node).is_some_and(|entry| entry.farewell().is_some());
            let liveness = if left { Liveness::Left } else { Liveness::Down };
            self.peers.directory.set_liveness(&node, liveness, None, now);
            self.peers.directory.set_since(&node, now.checked_sub(over).unwrap_or(now));
        }
        matches!(outcome, Merge::New | Merge::State | Merge::Credential)
    }
}
