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
        let own = &self.state.identity.credential;
        rows.extend(revocations.iter().map(|it| revoked(it, revocations, own)));
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
        left: false,
        validity: Validity::of_node(credential, now),
        secret_number: None,
    }
}

fn revoked(revocation: &Revocation, all: &Revocations, own: &Credential) -> CredentialRow {
    let (node, invite) = match revocation.revoked {
        Revoked::Node(node) | Revoked::Succeeded { node, .. } => (Some(node), None),
        Revoked::Invite(key) => (None, Some(key)),
    };
    // A node is not in its own directory, so its former keys have no name there.
    let name = |node| match all.successor_of(&node) == own.node {
        true => Some(own.name.clone()),
        false => all.name_of(&node).cloned(),
    };
    CredentialRow {
        node,
        name: node.and_then(name),
        site: None,
        roles: None,
        invite,
        authority: None,
        own: false,
        issued_at: None,
        expires_at: None,
        revoked_at: Some(revocation.at),
        successor: revocation.successor(),
        left: revocation.revoked.is_departure(),
        validity: Validity::Revoked,
        secret_number: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshport_config::{AuthorityKey, NodeId, NodeKey, Succession};
    use meshport_core::testing::credential;

    #[test]
    fn former_keys_have_the_names_of_their_nodes_and_who_left_is_not_shut_out() {
        let mesh = AuthorityKey::from_bytes([9; 32]).public();
        let own = credential(1, "node");
        let keys = [5, 6, 7].map(|number| NodeKey::from_bytes([number; 32]));
        let replaced = |key: &NodeKey, by: &NodeId| {
            let agreed = Succession::agree(key, by, &mesh, UnixSeconds(1));
            Revocation::of_succession(&mesh, by, &agreed)
        };
        let first = replaced(&keys[0], &keys[1].public());
        let second = replaced(&keys[1], &own.node);
        let departed = Revocation::of_departure(&keys[2], &mesh, UnixSeconds(2));
        let mut all = Revocations::default();
        for it in [&first, &second, &departed] {
            all.add(it.clone());
        }
        all.note_name(keys[2].public(), &"guest".parse().expect("a name"));
        let row = |it: &Revocation| {
            let row = revoked(it, &all, &own);
            (row.name.expect("it is known").to_string(), row.left, row.validity)
        };
        let own_name = own.name.to_string();
        assert_eq!(row(&first), (own_name.clone(), false, Validity::Revoked));
        assert_eq!(row(&second), (own_name, false, Validity::Revoked));
        assert_eq!(row(&departed), ("guest".into(), true, Validity::Revoked));
    }
}
