//! Shared by the unit tests: a start of virtual time, and members of an invented mesh.

use std::time::{Duration, Instant};

use meshport_config::{
    AuthorityKey, Credential, Delegation, DelegationKey, Grant, Issued, NodeId, NodeKey, RecordKey,
    Role, Roles, Subject, Succession, UnixSeconds, VerifyKey,
};

use crate::local::LocalNode;
use crate::state::{NodeState, SignedState};

/// Wall time of the tests.
pub(crate) const WALL: UnixSeconds = UnixSeconds(1_700_000_000);

/// Where virtual time starts; tests only ever add to it.
pub(crate) fn base() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "an arbitrary start; no test reads it again")]
    Instant::now()
}

pub(crate) fn ms(value: u64) -> Duration {
    Duration::from_millis(value)
}

pub(crate) fn secs(value: u64) -> Duration {
    Duration::from_secs(value)
}

/// The id of a node that needs no credential.
pub(crate) fn node(number: u8) -> NodeId {
    NodeId::from_bytes([number; 32])
}

/// A mesh that issues credentials by one delegation, as invites do.
pub(crate) struct Mesh {
    pub(crate) authority: AuthorityKey,
    delegation: Delegation,
    key: DelegationKey,
    seed: u8,
}

/// One node's keys and credential.
pub(crate) struct Member {
    pub(crate) credential: Credential,
    seed: [u8; 32],
}

impl Mesh {
    pub(crate) fn new(seed: u8) -> Self {
        Self::of(seed, seed ^ 0xff)
    }

    /// The same mesh with another invite.
    pub(crate) fn with_invite(&self, seed: u8) -> Self {
        Self::of(self.seed, seed)
    }

    /// The key of its invite.
    pub(crate) fn invite(&self) -> VerifyKey {
        self.key.public()
    }

    fn of(seed: u8, invite: u8) -> Self {
        let authority = AuthorityKey::from_bytes([seed; 32]);
        let key = DelegationKey::from_bytes([invite; 32]);
        let grant = Grant {
            roles: roles("node,origin:kube-apiserver,relay,operator"),
            site: None,
            name: None,
            not_before: UnixSeconds(WALL.0 - 1000),
            join_until: UnixSeconds(WALL.0 + 1000),
            credential_ttl_s: 400 * 24 * 3600,
        };
        let delegation = Delegation::issue(&authority, key.public(), grant).unwrap();
        Self { authority, delegation, key, seed }
    }

    /// The member of this number; the same number has the same keys.
    pub(crate) fn member(&self, number: u32, site: &str, roles_text: &str) -> Member {
        self.member_issued(number, site, roles_text, WALL)
    }

    pub(crate) fn member_issued(
        &self,
        number: u32,
        site: &str,
        roles_text: &str,
        at: UnixSeconds,
    ) -> Member {
        let (issued, seed) = self.issued(number, site, roles_text, at);
        Member { credential: issued.countersign(&NodeKey::from_bytes(seed)).unwrap(), seed }
    }

    /// What an invite signs about the member with this number, and the seed of that member's keys.
    pub(crate) fn issued(
        &self,
        number: u32,
        site: &str,
        roles_text: &str,
        at: UnixSeconds,
    ) -> (Issued, [u8; 32]) {
        let mut seed = [7; 32];
        // Not in the first byte, where X25519 ignores some bits.
        seed[4..8].copy_from_slice(&number.to_le_bytes());
        let subject = Subject {
            node: NodeKey::from_bytes(seed).public(),
            record_key: RecordKey::from_bytes(seed).public(),
            name: format!("worker-{number}").parse().unwrap(),
            site: site.parse().unwrap(),
            roles: roles(roles_text),
            succession: None,
        };
        let expires = UnixSeconds(at.0 + 300 * 24 * 3600);
        let issued =
            Credential::issue_by_delegation(&self.delegation, &self.key, subject, at, expires);
        (issued.unwrap(), seed)
    }
}

impl Mesh {
    /// The member that succeeds another one, with its own keys.
    pub(crate) fn successor(&self, former: &Member, number: u32) -> Member {
        let mut seed = [8; 32];
        seed[4..8].copy_from_slice(&number.to_le_bytes());
        let (key, known) = (NodeKey::from_bytes(seed), &former.credential);
        let agreed =
            Succession::agree(&NodeKey::from_bytes(former.seed), &key.public(), &known.mesh, WALL);
        let subject = Subject {
            node: key.public(),
            record_key: RecordKey::from_bytes(seed).public(),
            name: known.name.clone(),
            site: known.site.clone(),
            roles: known.roles.clone(),
            succession: Some(agreed),
        };
        let times = (known.issued_at, known.expires_at);
        let issued =
            Credential::issue_by_delegation(&self.delegation, &self.key, subject, times.0, times.1);
        Member { credential: issued.unwrap().countersign(&key).unwrap(), seed }
    }
}

impl Member {
    /// This member as the local node.
    pub(crate) fn local(&self) -> LocalNode {
        LocalNode { credential: self.credential.clone(), record_key: self.record_key() }
    }

    pub(crate) fn record_key(&self) -> RecordKey {
        RecordKey::from_bytes(self.seed)
    }

    /// The same one.
    pub(crate) fn copy(&self) -> Self {
        Self { credential: self.credential.clone(), seed: self.seed }
    }

    /// An empty record of this member.
    pub(crate) fn state(&self, generation: u64, version: u64) -> NodeState {
        NodeState {
            node: self.credential.node,
            generation,
            renewal: 0,
            version,
            endpoints: Vec::new(),
            services: Vec::new(),
            distances: Vec::new(),
            left: false,
            behind_nat: false,
            release: None,
        }
    }

    pub(crate) fn sign(&self, state: NodeState) -> SignedState {
        SignedState::sign(state, &self.credential.mesh, &self.record_key())
    }
}

fn roles(text: &str) -> Roles {
    Roles::new(text.split(',').map(|role| role.parse::<Role>().unwrap())).unwrap()
}
