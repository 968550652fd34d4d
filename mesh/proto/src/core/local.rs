//! This node: its key and credential, and the previous ones for a while.

use std::sync::Arc;

use meshport_config::{Credential, InnerAddr, MeshId, NodeId};

use crate::MeshError;
use crate::event::{Now, Route};
use crate::settings::Identity;
use crate::tunnel::{Checked, Gate};

/// This node's identity before its key was rotated.
struct Former {
    node: NodeId,
    gate: Arc<Gate>,
}

/// This node's identity, and what it presents.
pub(super) struct Local {
    identity: Identity,
    pub(super) node: NodeId,
    /// The previous identity, while others may still use it.
    former: Option<Former>,
    /// The credential, encoded.
    pub(super) shown: Vec<u8>,
    /// New in every process; shows peers a restart.
    pub(super) instance: u64,
    /// Whether QUIC connections of earlier processes continue.
    pub(super) continues: bool,
    /// Checks initiations for the current key.
    pub(super) gate: Arc<Gate>,
}

impl Local {
    pub(super) fn new(
        identity: Identity,
        instance: u64,
        handshakes_per_second: u32,
        now: Now,
    ) -> Result<Self, MeshError> {
        let node = identity.key.public();
        let credential = &identity.credential;
        if credential.node != node {
            let text =
                format!("its credential is for node {}, but its key is {node}", credential.node);
            return Err(MeshError::Identity(text));
        }
        credential
            .verify(&credential.mesh, now.wall)
            .map_err(|error| MeshError::Identity(error.to_string()))?;
        let gate = Arc::new(Gate::new(identity.key.secret(), handshakes_per_second));
        let shown = credential.to_bytes();
        Ok(Self { identity, node, former: None, shown, instance, continues: false, gate })
    }

    pub(super) fn identity(&self) -> &Identity {
        &self.identity
    }

    pub(super) fn mesh(&self) -> &MeshId {
        &self.identity.credential.mesh
    }

    /// A node's address in this mesh.
    pub(super) fn inner(&self, node: &NodeId) -> InnerAddr {
        InnerAddr::derive(self.mesh(), node)
    }

    /// The gate for a key of this node; `None` for another node's key.
    pub(super) fn gate_of(&self, own: &NodeId) -> Option<&Arc<Gate>> {
        let former = self.former.as_ref().filter(|former| former.node == *own);
        if self.node == *own { Some(&self.gate) } else { former.map(|former| &former.gate) }
    }

    /// Checks an initiation with the gate of the key that it was made for.
    pub(super) fn check_initiation(
        &self,
        now: Now,
        from: Route,
        datagram: &[u8],
        out: &mut [u8],
    ) -> (NodeId, Checked) {
        match (self.gate.check(now.instant, from.remote, datagram, out), &self.former) {
            (Checked::BadMac, Some(former)) => {
                (former.node, former.gate.check(now.instant, from.remote, datagram, out))
            }
            (checked, _) => (self.node, checked),
        }
    }

    pub(super) fn check_is_own(&self, credential: &Credential) -> Result<(), MeshError> {
        if credential.node == self.node && credential.mesh == *self.mesh() {
            return Ok(());
        }
        Err(MeshError::Identity("the credential is for another node".to_owned()))
    }

    /// Presents another credential from now on.
    pub(super) fn set_credential(&mut self, credential: Credential) {
        self.shown = credential.to_bytes();
        self.identity.credential = credential;
    }

    /// # Errors
    /// The identity does not name this node as its predecessor, or an earlier succession is not
    /// over.
    pub(super) fn check_succession(&self, next: &Identity) -> Result<(), MeshError> {
        let credential = &next.credential;
        let follows = credential.succession.as_ref().is_some_and(|it| it.former == self.node);
        let why = if !follows || credential.node != next.key.public() {
            "its credential does not name this node as its predecessor"
        } else if self.former.is_some() {
            "the previous key is not retired yet"
        } else {
            return Ok(());
        };
        Err(MeshError::Identity(why.to_owned()))
    }

    /// Makes this node `next`, with that gate; the previous key keeps answering.
    pub(super) fn succeed(&mut self, next: Identity, gate: Arc<Gate>) {
        let node = std::mem::replace(&mut self.node, next.key.public());
        let gate = std::mem::replace(&mut self.gate, gate);
        self.former = Some(Former { node, gate });
        self.shown = next.credential.to_bytes();
        self.identity = next;
    }

    /// Erases the previous key; true if there was one.
    pub(super) fn retire(&mut self) -> bool {
        self.former.take().is_some()
    }
}
