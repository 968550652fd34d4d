//! Nodes' knowledge of each other before a run begins.

use std::sync::Arc;
use std::time::Duration;

use meshport_config::UnixSeconds;
use meshport_discovery::snapshot_of;

use super::{Known, WALL_START, World};

/// A node has published its first record by then.
const FIRST_RECORD: Duration = Duration::from_secs(2);

impl World {
    /// The first record of every node, as its process will publish it.
    pub(super) fn first_records(&self) -> Vec<Known> {
        let (now, wall) = (self.epoch, UnixSeconds(WALL_START));
        let record = |at: usize| {
            let mut brain = self.brain(at, 1, [0; 32], Some(self.mesh.memo.clone()));
            brain.introduce(self.endpoints(at), Vec::new(), now);
            brain.timeout(now + FIRST_RECORD, wall);
            let credential = &self.nodes[at].credential;
            let entry = brain.directory().get(&credential.node)?;
            Some((Arc::clone(credential), entry.state.clone()?))
        };
        (0..self.nodes.len()).filter_map(record).collect()
    }

    /// The saved directory of a node that has met all others; without its own record, since a new
    /// process must not repeat an earlier one's.
    pub(super) fn everybody_but(&self, at: usize) -> Arc<[u8]> {
        let me = &self.nodes[at].credential;
        let others = self.mesh.known.iter().filter(|(credential, _)| credential.node != me.node);
        let others = others.map(|(credential, state)| (&**credential, &**state));
        snapshot_of(others, &me.mesh, UnixSeconds(WALL_START)).into()
    }
}
