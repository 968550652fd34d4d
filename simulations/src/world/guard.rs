//! Rules of this level, in addition to those of [`crate::level::Judge`], and when each is checked.
//!
//! * A node's pending requests stay within its queues' bounds: at each step. So do its directory
//!   and its paths: periodically, for some nodes.
//! * No node relays a stream that was already relayed: at each stream (`moves`).
//! * Every request is answered, if the scenario requires it: at each failed request.
//! * Sessions return no faster than configured: whenever sessions may move (`moves`).
//!
//! Comparing the traces of two runs checks that a seed determines everything.

use meshport_discovery::{MAX_MEMBERS, MAX_PATHS, MAX_TRANSMITS};

use super::World;
use crate::level::Judge;
use crate::rules::{self, FOLLOW_EVERY_S};

impl World {
    pub(super) fn check_wishes(&mut self, node: usize, wishes: usize) {
        // Loading a directory reports every node in it.
        let bound = MAX_TRANSMITS + 4 * MAX_MEMBERS;
        if wishes > bound {
            let what = format!("{wishes} wishes at once, more than its queues hold ({bound})");
            self.violates(rules::QUEUES, node, what);
        }
    }

    /// Runs the periodic checks.
    pub(super) fn look(&mut self) {
        let running = self.nodes.iter().filter(|node| node.brain.is_some()).count();
        self.scene.measures.second(self.scene.now).running =
            u32::try_from(running).unwrap_or(u32::MAX);
        if let Some(progress) = &mut self.progress {
            progress(self.scene.now);
        }
        self.check_evicted();
        self.check_revoked();
        if self.scene.now.as_secs().is_multiple_of(FOLLOW_EVERY_S) {
            for index in 0..self.scene.account.followed.len() {
                self.follow_directory(self.scene.account.followed[index]);
            }
        }
    }

    /// Whether a node's directory has gone backwards since the last check.
    fn follow_directory(&mut self, at: usize) {
        let Some(brain) = &self.nodes[at].brain else { return };
        let records = brain.directory().iter().filter_map(|(node, entry)| {
            let key = entry.node_state().map_or((0, 0), |it| (it.generation, it.version));
            Some((self.scene.account.number(node)?, key))
        });
        let records = records.collect();
        let (entries, paths) = (brain.directory().len(), brain.paths());
        self.check_records(at, self.nodes[at].boot, records);
        self.check_sizes(at, entries, paths);
    }

    fn check_sizes(&mut self, at: usize, entries: usize, paths: usize) {
        if entries > MAX_MEMBERS || paths > MAX_PATHS {
            let what = format!("{entries} entries and {paths} paths");
            self.violates(rules::QUEUES, at, what);
        }
    }

    /// Rules for the end.
    pub(super) fn check_end(&mut self) {
        for at in 0..self.nodes.len() {
            let clients = &self.nodes[at].clients;
            self.check_sessions(at, [clients.opened, clients.closed, clients.open()]);
        }
        self.check_quiet();
    }
}

#[cfg(test)]
mod tests;
