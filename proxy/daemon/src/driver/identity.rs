//! Applies a change of this node's identity to the mesh, the core, the watchers, the log and the
//! audit, in one place.

use meshport_config::{Credential, NodeId, SecretId};
use meshport_discovery::LocalNode;
use meshport_mesh::MeshError;
use tracing::info;

use crate::clock;
use crate::driver::Driver;
use crate::identity::{Change, Changed};
use meshport_state::NextIdentity;

impl Driver {
    /// Applies a change everywhere, or nowhere if the mesh refuses it. `from` is the member that
    /// passed it on, if any.
    pub(crate) fn change_identity(
        &mut self,
        change: Change,
        from: Option<NodeId>,
    ) -> Result<(), MeshError> {
        let now = clock::now();
        // The mesh comes first: it may refuse, and peers must know who sends the gossip.
        match &change {
            Change::Renewed(credential) | Change::Returned(credential) => {
                self.mesh.set_credential(credential)?;
                self.core.set_credential(credential, now);
            }
            Change::Rotated(secrets) => self.mesh.set_secrets(secrets),
            Change::Succeeded(next, _) => {
                let NextIdentity { node_key, record_key, credential } = &**next;
                let (credential, record_key) = (credential.clone(), record_key.clone());
                self.mesh.succeed(&meshport_mesh::Identity {
                    key: node_key.clone(),
                    credential: credential.clone(),
                    secret: self.state.identity.secrets.current().clone(),
                })?;
                self.core.succeed(LocalNode { credential, record_key }, now);
            }
            Change::Retired => self.mesh.retire(),
        }
        let changed = self.state.identity.apply(change);
        if matches!(changed, Changed::Credential | Changed::FormerCredential | Changed::Key(_)) {
            let own = self.state.identity.credential.clone();
            clock::note_own(own.issued_at);
            self.state.renewals.follow(&own, now);
            self.outputs.credential.send_replace(own);
        }
        self.tell_change(&changed, from);
        Ok(())
    }

    fn tell_change(&self, changed: &Changed, from: Option<NodeId>) {
        let (own, audit) = (&self.state.identity, &self.state.audit);
        let Credential { node, expires_at: until, roles, .. } = &*own.credential;
        let number = own.secrets.number();
        match changed {
            Changed::Nothing => {}
            Changed::Credential => {
                audit.renewed(&own.credential);
                info!(%until, %roles, "this node's credential was renewed");
            }
            // The caller logs the reason.
            Changed::FormerCredential => audit.returned(&own.credential),
            Changed::Secret => {
                let (id, until) = (SecretId::of(own.secrets.current()), own.secrets.retires_at());
                let former_until = until.map(tracing::field::display);
                info!(number, secret = %id, former_until, "the mesh has a new secret");
                audit.rotated(number, until, from.as_ref());
            }
            Changed::FormerSecretErased => {
                info!(number, "the previous mesh secret is erased");
                audit.retired(number);
            }
            Changed::Key(former) => {
                let (old, until) = (former.node.short(), former.ends_at);
                info!(node = %node.short(), former = %old, %until, "this node uses a new key");
                audit.key_rotated(node, &former.node, until);
            }
            Changed::FormerKeyErased(former) => {
                info!(former = %former.node.short(), "the previous key is erased");
                audit.key_retired(&former.node);
            }
        }
    }
}
