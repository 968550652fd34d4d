//! All credentials that a node knows, as [`crate::admin::credentials`].

use meshport_config::{Credential, Revocation, Revocations, Revoked, UnixSeconds};
use meshport_mesh::Mesh;

use crate::admin::credentials::{CredentialRow, Validity};

use super::{Reporter, secret};

impl Reporter<'_> {
    /// This node's credential first, then those of others by expiry, then revoked ones.
    pub(crate) fn credentials(&self, mesh: &Mesh, now: UnixSeconds) -> Vec<CredentialRow> {
        let discovery = self.core.discovery();
        let entries = discovery.directory().iter().map(|(_, entry)| entry.credential.clone());
        let members = entries.filter(|it| it.node != self.state.identity.me.node);
        // A leaf is in no directory.
        let peers = mesh.peers().into_iter().filter(|peer| discovery.is_leaf(&peer.node));
        let leaves = peers.filter_map(|peer| mesh.credential(&peer.node));
        let mut rows: Vec<CredentialRow> =
            members.chain(leaves).map(|it| row(&it, false, now)).collect();
        rows.sort_by(|a, b| (a.expires_at, &a.name).cmp(&(b.expires_at, &b.name)));
        rows.insert(0, row(&self.state.identity.credential, true, now));
        let said = secret::numbers(mesh);
        for row in &mut rows {
            row.secret_number = match row.own {
                true => Some(self.state.identity.secrets.number()),
                false => row.node.and_then(|node| said.get(&node).copied()),
            };
        }
        let revocations = discovery.revocations();
        rows.extend(revocations.iter().map(|it| revoked(it, revocations)));
        rows
    }
}

fn row(credential: &Credential, own: bool, now: UnixSeconds) -> CredentialRow {
    CredentialRow {
        node: Some(credential.node),
        name: Some(credential.name.clone()),
        site: Some(credential.site.clone()),
        roles: Some(credential.roles.clone()),
        invite: credential.delegation.as_ref().map(|it| it.key),
        authority: credential.chain().keys().last(),
        own,
        issued_at: Some(credential.issued_at),
        expires_at: Some(credential.expires_at),
        revoked_at: None,
        successor: None,
        validity: Validity::of_node(credential, now),
        secret_number: None,
    }
}

fn revoked(revocation: &Revocation, all: &Revocations) -> CredentialRow {
    let (node, invite) = match revocation.revoked {
        Revoked::Node(node) | Revoked::Succeeded { node, .. } => (Some(node), None),
        Revoked::Invite(key) => (None, Some(key)),
    };
    CredentialRow {
        node,
        name: node.and_then(|node| all.name_of(&node).cloned()),
        site: None,
        roles: None,
        invite,
        authority: None,
        own: false,
        issued_at: None,
        expires_at: None,
        revoked_at: Some(revocation.at),
        successor: revocation.successor(),
        validity: Validity::Revoked,
        secret_number: None,
    }
}
