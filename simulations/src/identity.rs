//! The identities of a scenario's nodes: keys and credentials of one mesh, all derived from the
//! seed.

use meshport_config::{
    AuthorityKey, Credential, MeshSecret, NodeKey, RecordKey, Role, Roles, Subject, UnixSeconds,
};
use meshport_state::Identity;
use rand::RngCore;

use crate::Error;
use crate::scenario::{NodeRef, Scenario, service};

/// Credentials outlive every run.
const LIFETIME_S: u64 = 10 * 365 * 24 * 3600;

/// Signs credentials that are valid from this time on.
pub(crate) struct Issuer {
    pub(crate) key: AuthorityKey,
    pub(crate) from: UnixSeconds,
}

/// The issuer and what all nodes share.
pub(crate) struct Mesh {
    pub(crate) issuer: Issuer,
    secret: MeshSecret,
}

impl Mesh {
    /// A mesh whose credentials are valid from this time on.
    pub(crate) fn new(from: UnixSeconds, rng: &mut impl RngCore) -> Self {
        let issuer = Issuer { key: AuthorityKey::from_bytes(bytes32(rng)), from };
        Self { issuer, secret: MeshSecret::from_bytes(bytes32(rng)) }
    }

    /// A new member for this node of the scenario.
    pub(crate) fn member(
        &self,
        scenario: &Scenario,
        member: NodeRef,
        rng: &mut impl RngCore,
    ) -> Result<Identity, Error> {
        let node_key = NodeKey::from_bytes(bytes32(rng));
        let record_key = RecordKey::from_bytes(bytes32(rng));
        let credential = self.issuer.issue(scenario, member, &node_key, &record_key)?;
        Ok(Identity { node_key, record_key, secrets: self.secret.clone().into(), credential })
    }
}

impl Issuer {
    /// The credential of this node of the scenario.
    pub(crate) fn issue(
        &self,
        scenario: &Scenario,
        member: NodeRef,
        node_key: &NodeKey,
        record_key: &RecordKey,
    ) -> Result<Credential, Error> {
        let name = scenario.name(member);
        let wrong =
            |error: &dyn std::fmt::Display| Error::Scenario(format!("node {name}: {error}"));
        let roles = scenario.hosts(member).then(|| Role::Origin(service()));
        let roles = roles.into_iter().chain([Role::Node]);
        let roles = roles.chain(scenario.relays(member).then_some(Role::Relay));
        let subject = Subject {
            node: node_key.public(),
            record_key: record_key.public(),
            name: name.parse().map_err(|error| wrong(&error))?,
            site: scenario.sites[member.site].name.clone(),
            roles: Roles::new(roles).map_err(|error| wrong(&error))?,
            succession: None,
        };
        let until = self.from.saturating_add(LIFETIME_S);
        Credential::issue_by_authority(&self.key, subject, self.from, until)
            .and_then(|issued| issued.countersign(node_key))
            .map_err(|error| wrong(&error))
    }
}

pub(crate) fn bytes32(rng: &mut impl RngCore) -> [u8; 32] {
    let mut bytes = [0; 32];
    rng.fill_bytes(&mut bytes);
    bytes
}
