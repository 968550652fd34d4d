//! Who the nodes of a scenario are: keys and credentials of one mesh, all drawn from the seed.

use meshport_config::{
    AuthorityKey, Credential, MeshSecret, NodeKey, RecordKey, Role, Roles, Subject, UnixSeconds,
};
use meshport_daemon::Identity;
use rand::RngCore;

use crate::Error;
use crate::scenario::{Scenario, service};

/// Credentials outlive every run.
const LIFETIME_S: u64 = 10 * 365 * 24 * 3600;

/// Who signs, and what all share.
pub(crate) struct Mesh {
    pub(crate) authority: AuthorityKey,
    secret: MeshSecret,
    from: UnixSeconds,
}

impl Mesh {
    /// A mesh whose credentials are valid from this time on.
    pub(crate) fn new(from: UnixSeconds, rng: &mut impl RngCore) -> Self {
        let authority = AuthorityKey::from_bytes(bytes32(rng));
        Self { authority, secret: MeshSecret::from_bytes(bytes32(rng)), from }
    }

    /// A new member: the node at this place of the scenario.
    pub(crate) fn member(
        &self,
        scenario: &Scenario,
        place: (usize, usize),
        rng: &mut impl RngCore,
    ) -> Result<Identity, Error> {
        let node_key = NodeKey::from_bytes(bytes32(rng));
        let record_key = RecordKey::from_bytes(bytes32(rng));
        let keys = (&node_key, &record_key);
        let credential = issue(scenario, place, (&self.authority, self.from), keys)?;
        Ok(Identity { node_key, record_key, secrets: self.secret.clone().into(), credential })
    }
}

/// The credential of the node at this place of the scenario, valid from this time on.
pub(crate) fn issue(
    scenario: &Scenario,
    place: (usize, usize),
    (authority, from): (&AuthorityKey, UnixSeconds),
    (node_key, record_key): (&NodeKey, &RecordKey),
) -> Result<Credential, Error> {
    let name = scenario.name(place);
    let wrong = |error: &dyn std::fmt::Display| Error::Scenario(format!("node {name}: {error}"));
    let roles = scenario.hosts(place).then(|| Role::Origin(service()));
    let roles = roles.into_iter().chain([Role::Node]);
    let roles = roles.chain(scenario.relays(place).then_some(Role::Relay));
    let subject = Subject {
        node: node_key.public(),
        record_key: record_key.public(),
        name: name.parse().map_err(|error| wrong(&error))?,
        site: scenario.sites[place.0].name.clone(),
        roles: Roles::new(roles).map_err(|error| wrong(&error))?,
        succession: None,
    };
    let until = from.saturating_add(LIFETIME_S);
    Credential::issue_by_authority(authority, subject, from, until)
        .and_then(|issued| issued.countersign(node_key))
        .map_err(|error| wrong(&error))
}

pub(crate) fn bytes32(rng: &mut impl RngCore) -> [u8; 32] {
    let mut bytes = [0; 32];
    rng.fill_bytes(&mut bytes);
    bytes
}
