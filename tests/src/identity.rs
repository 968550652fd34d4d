//! The identity in a state folder, for tests that impersonate this node.

use std::fs;
use std::path::Path;
use std::time::Duration;

use data_encoding::BASE64;
use meshport_config::{
    AuthorityKey, Credential, InnerAddr, MeshSecret, NodeId, NodeKey, Subject, UnixSeconds,
};

use crate::wait;

/// A node's identity as its state folder stores it.
#[derive(Debug)]
pub struct Identity {
    /// Its WireGuard key.
    pub key: NodeKey,
    /// The newest mesh secret.
    pub secret: MeshSecret,
    /// The authority's statement about it.
    pub credential: Credential,
}

impl Identity {
    /// Reads a folder that `init` or `join` has written.
    pub fn read(state: &Path) -> Self {
        let file = |name: &str| {
            let text = fs::read_to_string(state.join(name));
            let text = text.unwrap_or_else(|error| panic!("{}/{name}: {error}", state.display()));
            text.trim().to_owned()
        };
        // The first is the current one; the statement about it may precede it.
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

/// Replaces the credential in a folder with one that the authority signed the given time ago, and
/// that expires after `left`.
pub fn age(state: &Path, authority: &Path, age: Duration, left: Duration) {
    let Identity { key, credential, .. } = Identity::read(state);
    let text = fs::read_to_string(authority).expect("the authority's key");
    let authority: AuthorityKey = text.trim().parse().expect("the authority's key");
    let now = wait::unix_now();
    let (from, until) = (UnixSeconds(now - age.as_secs()), UnixSeconds(now + left.as_secs()));
    let Credential { node, record_key, name, site, roles, succession, .. } = credential;
    let subject = Subject { node, record_key, name, site, roles, succession };
    let issued = Credential::issue_by_authority(&authority, subject, from, until);
    let aged = issued.expect("a good one").countersign(&key).expect("its own key");
    fs::write(state.join("credential"), &*aged.to_text()).expect("it is ours");
}
