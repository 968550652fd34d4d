//! The identity in a state folder, for tests that play this node themselves.

use std::fs;
use std::path::Path;

use data_encoding::BASE64;
use meshport_config::{Credential, InnerAddr, MeshSecret, NodeId, NodeKey};

/// A node as its state folder holds it.
#[derive(Debug)]
pub struct Identity {
    /// Its WireGuard key.
    pub key: NodeKey,
    /// The mesh's secret, the newest one.
    pub secret: MeshSecret,
    /// The authority's statement about it.
    pub credential: Credential,
}

impl Identity {
    /// Reads a folder that `init` or `join` has written.
    ///
    /// # Panics
    /// If a file is missing or damaged.
    pub fn read(state: &Path) -> Self {
        let file = |name: &str| {
            let text = fs::read_to_string(state.join(name));
            let text = text.unwrap_or_else(|error| panic!("{}/{name}: {error}", state.display()));
            text.trim().to_owned()
        };
        // The first is the one in force; before it may be the statement about it.
        let secret = file("mesh.secret").lines().find_map(|line| line.parse().ok());
        Self {
            key: file("node.key").parse().expect("a node key"),
            secret: secret.expect("a mesh secret"),
            credential: Credential::from_text(&file("credential")).expect("a credential"),
        }
    }

    /// Its public name.
    pub fn node(&self) -> NodeId {
        self.key.public()
    }

    /// Its address inside the mesh.
    pub fn inner(&self) -> InnerAddr {
        InnerAddr::derive(&self.credential.mesh, &self.node())
    }

    /// WireGuard's pre-shared key with a peer, as `wg` reads it.
    pub fn preshared_key(&self, peer: &NodeId) -> String {
        BASE64.encode(&*self.secret.psk(&self.node(), peer))
    }
}
