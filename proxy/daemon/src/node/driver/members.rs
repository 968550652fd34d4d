//! Log lines about members.

use meshport_config::{NodeId, ServiceName};
use tracing::{debug, info, warn};

use crate::clock;
use crate::node::driver::Driver;

impl Driver {
    pub(crate) fn tell_member(&self, node: &NodeId, up: bool) {
        let name = self.reporter.name(&self.core, node);
        if up { info!(%name, "member up") } else { info!(%name, "member down") }
    }

    pub(crate) fn tell_suspected(&self, node: &NodeId) {
        debug!(name = %self.reporter.name(&self.core, node), "member suspected");
        // In a daemon nobody looks on.
        let _ = self.outputs.suspected.send(*node);
    }

    pub(crate) fn tell_narrow(&self, node: &NodeId) {
        let path = self.core.discovery().paths().get(node);
        if path.is_some_and(|path| path.narrow) {
            let name = self.reporter.name(&self.core, node);
            warn!(%name, "path drops large packets; avoiding it for new sessions. Check the \
                          path's MTU");
        }
    }

    /// What this node itself lacks was said at its start.
    pub(crate) fn tell_ignored(&mut self, node: &NodeId, reason: &str) {
        let name = self.reporter.name(&self.core, node);
        if *node == self.reporter.me.node {
            debug!(%name, reason, "ignored");
        } else if let Some(held_back) = self.budgets.ignored.take(clock::now()) {
            warn!(%name, node = %node.short(), reason, held_back, "ignoring what a node announces");
        }
    }

    pub(crate) fn tell_denied(&mut self, service: &ServiceName, origin: &NodeId) {
        if let Some(held_back) = self.budgets.ignored.take(clock::now()) {
            let origin = self.reporter.name(&self.core, origin);
            let why = self.reporter.denial(service, &origin);
            warn!(%service, %origin, held_back, "{why}");
        }
    }
}
