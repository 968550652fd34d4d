//! What peers say about two processes with one key.

use std::net::SocketAddr;

use meshport_config::NodeId;
use tracing::warn;

use super::clock;
use super::driver::Driver;

impl Driver {
    /// Two processes use one key: this node's own, if `by` says so, or a peer's.
    pub(super) fn note_duplicate(&mut self, node: NodeId, at: Vec<SocketAddr>, by: Option<NodeId>) {
        let name = match node == self.reporter.me.node {
            true => self.reporter.me.name.to_string(),
            false => self.reporter.name(&self.core, &node),
        };
        let places: Vec<String> = at.iter().map(ToString::to_string).collect();
        let places = places.join(" ");
        if self.reporter.duplicates.note(node, at, by, clock::now()) {
            self.reporter.audit.duplicate(&node, &places, by.as_ref());
            let by = by.map(|by| self.reporter.name(&self.core, &by));
            warn!(
                %name, node = %node.short(), at = places, by,
                "two processes use one node's key: its state folder was copied, and each cuts the \
                 other's sessions; `meshport status` says what to do"
            );
        }
    }
}
