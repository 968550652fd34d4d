//! Saving the directory and starting from a saved one.

use std::time::{Duration, Instant};

use meshport_config::UnixSeconds;

use super::Discovery;
use crate::directory::{Liveness, MAX_MEMBERS, Merge, Priority, Record};
use crate::error::DiscoveryError;
use crate::snapshot::{self, Node};

impl Discovery {
    /// The directory as bytes, to be given to [`Self::restore`] after a restart. Those whose
    /// credential has ended by the clock are among them: the clock may be wrong.
    pub fn snapshot(&self) -> Vec<u8> {
        let ended = self.ended.records();
        let (mesh, wall) = (&self.trust.mesh, self.clock.wall);
        snapshot::write(&self.peers.directory, ended, mesh, wall, self.clock.latest)
    }

    /// Takes in a snapshot of an earlier run: nodes are known with unknown liveness, those that
    /// were down or had left stay so, and an [`crate::Event::PeerWanted`] comes for each that has
    /// not left. Returns how many were restored; records that are no longer valid are left out.
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
        self.gossip.hasten_search(now);
        self.look_for_members(now);
        self.settle(now);
        Ok(restored)
    }

    fn restore_node(&mut self, saved: &Node<'_>, stopped: Duration, now: Instant) -> bool {
        let credential = self.trust.credential(saved.credential, self.clock.wall).ok();
        let Some(credential) = credential.filter(|it| !self.trust.is_revoked(it)) else {
            self.outbox.counters.rejected_credentials += 1;
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
                self.outbox.counters.rejected_states += 1;
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
