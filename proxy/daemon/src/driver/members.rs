//! Handles events of members, and logs them.

use std::net::SocketAddr;
use std::sync::Arc;

use meshport_config::{Credential, NodeId, ServiceName};
use meshport_core::findings::{NARROW_PATH, UNKNOWN_MESSAGES};
use meshport_discovery::PathState;
use tracing::{debug, info, warn};

use crate::clock;
use crate::driver::Driver;
use crate::driver::endpoints;
use crate::report::member;

impl Driver {
    /// Handles a member's credential and addresses.
    pub(crate) fn take_peer(
        &mut self,
        node: NodeId,
        announced: &[SocketAddr],
        credential: &Arc<Credential>,
    ) {
        self.recognise_seed(credential);
        self.state.process.board.note_member(credential);
        let configured = self.seeds.at.get(&node).map_or(&[][..], Vec::as_slice);
        let hints = endpoints::hints(configured, announced);
        self.mesh.set_peer(node, &hints, Some(credential));
    }

    /// Handles a member's claim to a virtual address.
    pub(crate) fn take_claim(&mut self, from: NodeId, datagram: &[u8]) {
        let credential = self.mesh.credential(&from);
        let board = &self.state.process.board;
        if let Some(what) = board.hear(from, credential.as_deref(), datagram) {
            self.note_unknown(from, what);
        }
    }

    /// A peer continues with another key: moves its open sessions and streams to the successor.
    pub(crate) fn follow(&mut self, former: NodeId, credential: &Credential) {
        let (name, node) = (&credential.name, credential.node);
        info!(%name, node = %node.short(), former = %former.short(), "a peer has a new key");
        self.core.handle_credential(credential, clock::now(), clock::wall());
    }

    pub(crate) fn tell_member(&mut self, node: &NodeId, up: bool) {
        let name = self.reporter().name(node);
        info!(%name, "member {}", if up { "up" } else { "down" });
        let (kind, said) = member(&self.core, node, up);
        self.state.journal.note(kind, name, said, clock::now());
    }

    /// Resets apiservers' streams on a dead path, including those that this node serves or relays:
    /// otherwise `kubectl logs -f` and the kubelet behind it would hang forever.
    pub(crate) fn cut_way_back(&self, node: &NodeId) {
        let sessions = self.sessions.sever(&ServiceName::way_back(), node);
        if sessions > 0 {
            let name = self.reporter().name(node);
            warn!(%name, sessions, "streams of the way back reset: path dead");
        }
    }

    pub(crate) fn tell_suspected(&self, node: &NodeId) {
        debug!(name = %self.reporter().name(node), "member suspected");
        // Only tests and the simulator observe this.
        let _ = self.outputs.suspected.send(*node);
    }

    pub(crate) fn tell_split(&mut self, node: &NodeId, on: bool) {
        let path = self.core.discovery().paths().get(node);
        let is_up = path.is_some_and(|path| path.state == PathState::Up);
        let is_narrow = path.is_some_and(|path| path.narrow);
        let name = self.reporter().name(node);
        if on && is_up && is_narrow {
            if self.told_narrow.insert(*node) {
                warn!(%name, "{NARROW_PATH}: splitting long packets");
            }
        } else if on {
            debug!(%name, "long packets are lost: trying whether fragments pass");
        } else if self.told_narrow.remove(node) && is_up {
            info!(%name, "long packets pass whole again");
        }
    }

    pub(crate) fn tell_narrow(&self, node: &NodeId) {
        let path = self.core.discovery().paths().get(node);
        if path.is_some_and(|path| path.narrow) {
            warn!(name = %self.reporter().name(node), "{NARROW_PATH}");
        }
    }

    /// Faults of this node itself were reported at its start.
    pub(crate) fn tell_ignored(&mut self, node: &NodeId, reason: &str) {
        let name = self.reporter().name(node);
        if *node == self.state.identity.me.node {
            debug!(%name, reason, "ignored");
        } else if let Some(held_back) = self.budgets.ignored.take(clock::now()) {
            warn!(%name, node = %node.short(), reason, held_back, "ignoring an announcement");
        }
    }

    /// A peer sends a message that this version does not know.
    pub(crate) fn note_unknown(&mut self, from: NodeId, what: String) {
        let name = self.reporter().name(&from);
        let said = what.clone();
        if self.state.unknown.note(from, what, clock::now())
            && let Some(held_back) = self.budgets.ignored.take(clock::now())
        {
            warn!(%name, node = %from.short(), what = said, held_back, "{UNKNOWN_MESSAGES}");
        }
    }

    pub(crate) fn tell_denied(&mut self, service: &ServiceName, origin: &NodeId) {
        if let Some(held_back) = self.budgets.ignored.take(clock::now()) {
            let origin = self.reporter().name(origin);
            let why = self.reporter().denial(service, &origin);
            warn!(%service, %origin, held_back, "{why}");
        }
    }
}
