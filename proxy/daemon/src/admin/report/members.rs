//! The members that are asked about this node, and the facts that their answers are compared with.

use std::collections::BTreeSet;

use meshport_config::{NodeId, Role};
use meshport_core::inquiry::Own;
use meshport_core::node::NodeCore;
use meshport_discovery::{Entry, Liveness};
use meshport_mesh::Mesh;

use super::{Reporter, node_ref};
use crate::admin::api::NodeRef;

impl Reporter {
    /// Members that are there: those with a tunnel first, of these origins and relays, which have
    /// the firewalls that others need to pass.
    pub(crate) fn to_inquire(&self, core: &NodeCore, mesh: &Mesh) -> (Vec<NodeRef>, Own) {
        let peers = mesh.peers();
        let with_tunnel: BTreeSet<NodeId> =
            peers.iter().filter(|it| it.session).map(|it| it.node).collect();
        let entries = core.discovery().directory().iter();
        let mut members: Vec<&Entry> = entries
            .filter(|(node, _)| **node != self.identity.me.node)
            .filter_map(|(_, entry)| (entry.liveness == Liveness::Alive).then_some(entry))
            .collect();
        members.sort_by_key(|entry| {
            let credential = &entry.credential;
            let is_used =
                credential.roles.iter().any(|it| matches!(it, Role::Origin(_) | Role::Relay));
            (!with_tunnel.contains(&credential.node), !is_used, credential.node)
        });
        let own = Own {
            version: env!("CARGO_PKG_VERSION").into(),
            settings: self.process.agreeing.clone(),
            port: self.process.mesh_listen.port(),
            is_behind_nat: core.discovery().is_behind_nat(),
        };
        (members.into_iter().map(node_ref).collect(), own)
    }
}
