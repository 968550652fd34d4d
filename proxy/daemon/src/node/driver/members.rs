//! What happens to members, and their log lines.

use meshport_config::{Credential, NodeId, ServiceName};
use meshport_core::findings::NARROW_PATH;
use tracing::{debug, info, warn};

use crate::clock;
use crate::node::driver::Driver;

impl Driver {
    /// A peer goes on under another key: what was open with it goes on as the successor's.
    pub(crate) fn follow(&mut self, former: NodeId, credential: &Credential) {
        let (name, node) = (&credential.name, credential.node);
        info!(%name, node = %node.short(), former = %former.short(), "a peer has a new key");
        self.core.handle_credential(credential, clock::now(), clock::wall());
    }

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
            warn!(name = %self.reporter.name(&self.core, node), "{NARROW_PATH}");
        }
    }

    /// What this node itself lacks was said at its start.
    pub(crate) fn tell_ignored(&mut self, node: &NodeId, reason: &str) {
        let name = self.reporter.name(&self.core, node);
        if *node == self.reporter.identity.me.node {
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
