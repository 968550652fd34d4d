//! Reports of peers: where they see this node, and two processes with one key.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use meshport_config::NodeId;
use meshport_core::findings::Finding;
use tracing::{debug, info, warn};

use meshport_core::node::NodeCore;
use meshport_core::reach::OwnEndpoints;

use crate::clock;
use crate::driver::Driver;

impl Driver {
    /// Sets this node's addresses as known without asking peers.
    pub(crate) fn set_own_endpoints(&mut self, own: OwnEndpoints) {
        self.change_reach(|core| core.set_endpoints(own, clock::now()));
    }

    /// Handles a peer's report of the address at which it sees this node.
    pub(crate) fn take_sight(&mut self, by: NodeId, at: SocketAddr) {
        debug!(by = %by.short(), %at, "a peer reports this node's address");
        self.change_reach(|core| core.handle_sight(by, at, is_own(at.ip()), clock::now()));
    }

    /// A tunnel ended: forgets the address that its peer reported.
    pub(crate) fn lose_session(&mut self, node: NodeId) {
        self.change_reach(|core| core.handle_session(node, false, clock::now()));
    }

    fn change_reach(&mut self, change: impl FnOnce(&mut NodeCore)) {
        let before = self.core.discovery().is_behind_nat();
        change(&mut self.core);
        let behind_nat = self.core.discovery().is_behind_nat();
        if before != behind_nat {
            let word = if behind_nat { "is behind NAT" } else { "is no longer behind NAT" };
            info!("this node {word}, as its peers see it");
        }
    }

    /// Two processes use one key: this node's own if `by` is set, otherwise a peer's.
    pub(crate) fn note_duplicate(&mut self, node: NodeId, at: Vec<SocketAddr>, by: Option<NodeId>) {
        let credential = match by {
            Some(_) => Some(self.state.identity.credential.clone()),
            // A leaf is in no directory.
            None => self.mesh.known_credential(&node),
        };
        // Unknown only if the peer has just been forgotten; another report follows.
        let Some(credential) = credential else { return };
        let name = credential.name.clone();
        let addresses: Vec<String> = at.iter().map(ToString::to_string).collect();
        let addresses = addresses.join(" ");
        let by_name = by.map(|by| self.reporter().name(&by));
        let noted = self.state.duplicates.note(credential, at, by_name.clone(), clock::now());
        let Some(finding) = noted else { return };
        self.state.audit.duplicate(&node, &addresses, by.as_ref());
        let Finding { kind, remedy, .. } = &finding;
        warn!(
            %name, node = %node.short(), at = addresses, by = by_name,
            "{}. {remedy} ({})", kind.title, kind.id
        );
        if by.is_some() {
            self.outputs.own_duplicate.send_replace(Some(finding.to_string()));
        }
    }
}

/// Whether an address is one of this machine's: a socket can be bound to it.
fn is_own(ip: IpAddr) -> bool {
    UdpSocket::bind((ip, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_addresses_are_distinguished_from_others() {
        assert!(is_own("127.0.0.1".parse().expect("an address")));
        assert!(!is_own("192.0.2.1".parse().expect("an address")));
    }
}
