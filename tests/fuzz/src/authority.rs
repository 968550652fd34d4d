//! The authority of the corpus, and what it signs.

use meshport_config::fuzzing::Script;
use meshport_config::{
    AuthorityKey, Credential, Delegation, DelegationKey, Grant, NodeKey, RecordKey, Subject,
    Succession, UnixSeconds,
};

/// The time of the corpus.
pub(crate) const NOW: UnixSeconds = UnixSeconds(1_800_000_000);
/// A day in seconds.
pub(crate) const DAY: u64 = 86_400;

/// The authority whose private key the corpus knows.
pub(crate) fn authority() -> AuthorityKey {
    AuthorityKey::from_bytes([1; 32])
}

/// A credential that the authority of the corpus has signed, itself or by an invite, for a new node
/// or a successor, as the bytes select.
pub(crate) fn credential(choices: &[u8]) -> Credential {
    let mut script = Script::new(choices);
    let kind = script.byte();
    let (delegated, succeeds) = (kind & 1 == 1, kind & 2 == 2);
    let roles = ["node", "node,origin:kube-apiserver", "relay,node", "operator"][script.below(4)];
    let (byte, mesh) = (script.byte(), authority().public());
    let key = NodeKey::from_bytes([byte; 32]);
    let node = key.public();
    // Bits that a private key does not have make no other node.
    let former = NodeKey::from_bytes([byte ^ 0x10; 32]);
    let subject = Subject {
        node,
        record_key: RecordKey::from_bytes([script.byte(); 32]).public(),
        name: format!("worker-{}", script.short()).parse().expect("a name"),
        site: "fra".parse().expect("a site"),
        roles: roles.parse().expect("roles"),
        succession: succeeds.then(|| Succession::agree(&former, &node, &mesh, NOW)),
    };
    let issued = UnixSeconds(NOW.0 - u64::from(script.short()));
    let until = NOW.saturating_add(1 + u64::from(script.short()));
    let made = if delegated {
        let invite = DelegationKey::from_bytes([script.byte(); 32]);
        let grant = Grant { join_until: until, not_before: issued, ..grant(roles) };
        let delegation = Delegation::issue(&authority(), invite.public(), grant).expect("a grant");
        Credential::issue_by_delegation(&delegation, &invite, subject, issued, until)
    } else {
        Credential::issue_by_authority(&authority(), subject, issued, until)
    };
    made.and_then(|made| made.countersign(&key)).expect("it is within its bounds")
}

pub(crate) fn grant(roles: &str) -> Grant {
    Grant {
        roles: roles.parse().expect("roles"),
        site: Some("fra".parse().expect("a site")),
        name: None,
        not_before: NOW,
        join_until: NOW.saturating_add(DAY),
        credential_ttl_s: 90 * DAY,
    }
}
