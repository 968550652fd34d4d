//! The seeds, by key or by name: the node keeps announcing itself to them.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use meshport_config::{Credential, NamedSeed, NodeId, NodeName, Seed};
use meshport_discovery::Entry;
use tracing::{info, warn};

use crate::clock;
use crate::driver::Driver;
use crate::driver::endpoints;

/// The nodes to which this one keeps announcing itself.
#[derive(Default)]
pub(super) struct Seeds {
    /// Their configured addresses.
    pub(super) at: BTreeMap<NodeId, Vec<SocketAddr>>,
    /// Those that the settings list without an address.
    pub(super) names: Vec<NodeName>,
}

impl Driver {
    /// Announces to these nodes, and to those that have one of the names in the settings.
    pub(crate) fn set_seeds(&mut self, seeds: Vec<(NodeId, Vec<SocketAddr>)>) {
        let mut seeds = self.called_now(seeds);
        let directory = self.core.discovery().directory();
        let named = directory.iter().filter(|(_, it)| self.is_named_seed(&it.credential));
        for (node, _) in named {
            if !seeds.iter().any(|(known, _)| known == node) {
                seeds.push((*node, Vec::new()));
            }
        }
        for (node, configured) in &seeds {
            let announced = directory.get(node).map_or(&[][..], Entry::endpoints);
            self.mesh.set_peer(*node, &endpoints::hints(configured, announced), None);
        }
        self.core.set_seeds(seeds.iter().map(|(node, _)| *node).collect(), clock::now());
        self.seeds.at = seeds.into_iter().collect();
    }

    /// Checks whether a name in the settings refers to a node that became known.
    pub(crate) fn recognise_seed(&mut self, credential: &Credential) {
        if self.is_named_seed(credential) && !self.seeds.at.contains_key(&credential.node) {
            let (name, node) = (&credential.name, credential.node.short());
            info!(%name, %node, "resolved a configured seed");
            let seeds = std::mem::take(&mut self.seeds.at).into_iter().collect();
            self.set_seeds(seeds);
        }
    }

    /// Logs which names in the settings match no known node.
    pub(crate) fn warn_of_unknown_seeds(&self) {
        let directory = self.core.discovery().directory();
        let is_known =
            |name: &NodeName| directory.iter().any(|(_, it)| it.credential.name == *name);
        for name in self.seeds.names.iter().filter(|name| !is_known(name)) {
            warn!(
                %name,
                "no node in the saved directory has this name, so the seed has no effect until \
                 this node has met it; `meshport peers --seeds` on a node prints seeds with \
                 addresses"
            );
        }
    }

    /// Seeds under their current keys.
    fn called_now<T>(&self, seeds: Vec<(NodeId, T)>) -> Vec<(NodeId, T)> {
        let revocations = self.core.discovery().revocations();
        seeds.into_iter().map(|(node, at)| (revocations.successor_of(&node), at)).collect()
    }

    fn is_named_seed(&self, credential: &Credential) -> bool {
        credential.node != self.state.identity.me.node
            && self.seeds.names.contains(&credential.name)
    }
}

/// The seeds with an address, and the names of the others.
pub(crate) fn split(seeds: Vec<NamedSeed>) -> (Vec<Seed>, Vec<NodeName>) {
    let (mut whole, mut names) = (Vec::new(), Vec::new());
    for seed in seeds {
        match seed {
            NamedSeed::Whole(seed) => whole.push(seed),
            NamedSeed::Name(name) => names.push(name),
        }
    }
    (whole, names)
}
