//! Credentials for tests, of this crate and of the daemon.

use meshport_config::{AuthorityKey, Credential, NodeKey, RecordKey, Subject, UnixSeconds};

/// The wall clock of tests.
pub const WALL: UnixSeconds = UnixSeconds(1_800_000_000);
/// Longer than these tests run.
const CENTURY_S: u64 = 100 * 365 * 86_400;

/// The credential of a node of this number, signed by the authority itself.
pub fn credential(number: u8, roles: &str) -> Credential {
    let key = NodeKey::from_bytes([number; 32]);
    let subject = Subject {
        node: key.public(),
        record_key: RecordKey::from_bytes([7; 32]).public(),
        name: format!("node-{number}").parse().expect("valid"),
        site: "fra".parse().expect("valid"),
        roles: roles.parse().expect("valid"),
        succession: None,
    };
    let authority = AuthorityKey::from_bytes([9; 32]);
    let (from, until) = (UnixSeconds(WALL.0 - 3600), UnixSeconds(WALL.0 + CENTURY_S));
    let issued = Credential::issue_by_authority(&authority, subject, from, until).expect("valid");
    issued.countersign(&key).expect("valid")
}
