//! All credentials that a node knows, as [`crate::admin::credentials`].

use meshport_config::{
    Credential, MAX_CLOCK_SKEW_S, Revocation, Revocations, Revoked, UnixSeconds,
};
use meshport_mesh::Mesh;

use crate::admin::credentials::{CredentialRow, Validity};
use meshport_core::node::NodeCore;

use super::{Reporter, secret};

/// Days before its end at which a credential is worth a warning.
const EXPIRY_WARNING_DAYS: u64 = 30;
const DAY_S: u64 = 24 * 60 * 60;

/// What is worth saying of the own credential at this time of day.
pub(super) fn warning(own: &Credential, now: UnixSeconds) -> Option<String> {
    let (from, left_s) = (own.issued_at, own.expires_at.0.saturating_sub(now.0));
    if from > now.saturating_add(MAX_CLOCK_SKEW_S) {
        return Some(format!(
            "this machine's clock is wrong: its own credential is not valid before {from}, and it \
             is {now} here. Sessions continue, but newer credentials of others are refused, and \
             the next start will fail; correct the clock"
        ));
    }
    if left_s == 0 {
        let ended = "this node's credential has expired and other nodes refuse it; run `meshport \
                     renew`";
        return Some(ended.into());
    }
    let (days, hours) = (left_s / DAY_S, left_s % DAY_S / 3600);
    (days < EXPIRY_WARNING_DAYS).then(|| {
        format!(
            "this node's credential expires in {days} d {hours} h. `meshport renew` replaces it \
             without an interruption"
        )
    })
}

impl Reporter {
    /// The own one first, then those of others by their end, then what was revoked.
    pub(crate) fn credentials(
        &self,
        core: &NodeCore,
        mesh: &Mesh,
        now: UnixSeconds,
    ) -> Vec<CredentialRow> {
        let discovery = core.discovery();
        let entries = discovery.directory().iter().map(|(_, entry)| entry.credential.clone());
        let members = entries.filter(|it| it.node != self.identity.me.node);
        // A leaf is in no directory.
        let peers = mesh.peers().into_iter().filter(|peer| discovery.is_leaf(&peer.node));
        let leaves = peers.filter_map(|peer| mesh.credential(&peer.node));
        let mut rows: Vec<CredentialRow> =
            members.chain(leaves).map(|it| row(&it, false, now)).collect();
        rows.sort_by(|a, b| (a.expires_at, &a.name).cmp(&(b.expires_at, &b.name)));
        rows.insert(0, row(&self.identity.credential, true, now));
        let said = secret::numbers(mesh);
        for row in &mut rows {
            row.secret_number = match row.own {
                true => Some(self.identity.secrets.number()),
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
        own,
        issued_at: Some(credential.issued_at),
        expires_at: Some(credential.expires_at),
        revoked_at: None,
        successor: None,
        validity: Validity::of(credential.expires_at, now),
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
        own: false,
        issued_at: None,
        expires_at: None,
        revoked_at: Some(revocation.at),
        successor: revocation.successor(),
        validity: Validity::Revoked,
        secret_number: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshport_core::testing::credential;

    /// Thirty days ahead, in the status as in the table and the log.
    #[test]
    fn the_end_is_told_thirty_days_before_and_not_earlier() {
        let own = credential(4, "node");
        let before = |seconds: u64| UnixSeconds(own.expires_at.0 - seconds);
        let thirty_days = 30 * DAY_S;
        assert_eq!(warning(&own, before(thirty_days)), None);
        assert_eq!(Validity::of(own.expires_at, before(thirty_days)), Validity::Valid);
        let text = warning(&own, before(thirty_days - 1)).expect("it is time");
        assert!(text.contains("expires in 29 d 23 h. `meshport renew`"), "{text}");
        assert_eq!(Validity::of(own.expires_at, before(thirty_days - 1)), Validity::EndsSoon);
        assert!(warning(&own, before(0)).is_some_and(|text| text.contains("has expired")));
        assert_eq!(Validity::of(own.expires_at, before(0)), Validity::Ended);
    }
}
