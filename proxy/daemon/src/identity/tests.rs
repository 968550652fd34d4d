use meshport_config::{
    AuthorityKey, MeshSecret, NextSecret, NodeKey, RecordKey, Subject, Succession,
};
use meshport_core::testing::WALL;

use super::*;

const DAY_S: u64 = 86_400;

fn authority() -> AuthorityKey {
    AuthorityKey::from_bytes([9; 32])
}

/// The identity of a node with this number; it follows the node with the number `former`.
pub(crate) fn next(number: u8, former: Option<u8>) -> NextIdentity {
    next_at(number, former, WALL)
}

/// The same, signed at this time.
pub(crate) fn next_at(number: u8, former: Option<u8>, now: UnixSeconds) -> NextIdentity {
    let node_key = NodeKey::from_bytes([number; 32]);
    let record_key = RecordKey::from_bytes([number; 32]);
    let former = former.map(|former| NodeKey::from_bytes([former; 32]));
    let agree = |former: NodeKey| {
        Succession::agree(&former, &node_key.public(), &authority().public(), now)
    };
    let subject = Subject {
        node: node_key.public(),
        record_key: record_key.public(),
        name: "worker".parse().expect("a name"),
        site: "fra".parse().expect("a site"),
        roles: "node".parse().expect("roles"),
        succession: former.map(agree),
    };
    let until = now.saturating_add(DAY_S);
    let issued = Credential::issue_by_authority(&authority(), subject, now, until);
    let credential = issued.and_then(|it| it.countersign(&node_key)).expect("a credential");
    NextIdentity { node_key, record_key, credential }
}

pub(crate) fn secrets() -> MeshSecrets {
    MeshSecret::from_bytes([1; 32]).into()
}

/// The secrets after a rotation whose overlap ends at `retire_at`.
pub(crate) fn rotated(secrets: &MeshSecrets, retire_at: UnixSeconds) -> MeshSecrets {
    let (number, secret) = (secrets.number() + 1, MeshSecret::from_bytes([2; 32]));
    let next = NextSecret::issue(&authority(), number, secret, WALL, retire_at);
    let taken = secrets.take(&next, &authority().public());
    taken.expect("it is signed").expect("it is newer")
}

fn own() -> CurrentIdentity {
    let NextIdentity { node_key, record_key, credential } = next(1, None);
    CurrentIdentity::new(&Identity { node_key, record_key, credential, secrets: secrets() })
}

#[test]
fn a_renewal_changes_the_credential_alone() {
    let mut own = own();
    let mut new = (*own.credential).clone();
    assert_eq!(own.judge_renewal(&new), Ok(false));
    new.expires_at = new.expires_at.saturating_add(DAY_S);
    assert_eq!(own.judge_renewal(&new), Ok(true));
    assert_eq!(own.apply(Change::Renewed(Box::new(new.clone()))), Changed::Credential);
    assert_eq!((&*own.credential, own.secrets.number()), (&new, 0));
    let other = next(2, None).credential;
    assert_eq!(own.judge_renewal(&other), Err(IdentityError::NotThisNode));
}

#[test]
fn a_former_secret_is_erased_once() {
    let mut own = own();
    let two = rotated(&own.secrets, WALL.saturating_add(DAY_S));
    let erased = two.without_former();
    assert_eq!(own.apply(Change::Rotated(Box::new(two.clone()))), Changed::Secret);
    assert_eq!(own.secret_report(true, WALL).former_ends_at, two.retires_at());
    assert_eq!(own.apply(Change::Rotated(Box::new(erased.clone()))), Changed::FormerSecretErased);
    assert_eq!(own.apply(Change::Rotated(Box::new(erased))), Changed::Nothing);
    assert_eq!((own.secret_report(false, WALL).number, own.secrets.former().is_some()), (1, false));
}

#[test]
fn a_new_key_keeps_name_and_site_and_the_former_until_it_retires() {
    let mut own = own();
    let (node, ends_at) = (own.node(), WALL.saturating_add(60));
    let not_its_successor = Err(IdentityError::NotItsSuccessor);
    assert_eq!(own.judge_succession(&next(2, None)), not_its_successor);
    assert_eq!(own.judge_succession(&next(2, Some(3))), not_its_successor);
    let next = Arc::new(next(2, Some(1)));
    assert_eq!(own.judge_succession(&next), Ok(true));
    let former = FormerKey { node, ends_at };
    let changed = own.apply(Change::Succeeded(next.clone(), ends_at));
    assert_eq!(changed, Changed::Key(former.clone()));
    assert_eq!((own.node(), own.me.node), (next.credential.node, next.credential.node));
    assert_eq!(own.key_report(true).former, Some(former.clone()));
    // While the previous key answers, no other key is accepted.
    assert_eq!(own.judge_succession(&tests::next(3, Some(2))), Ok(false));
    assert_eq!(own.apply(Change::Retired), Changed::FormerKeyErased(former));
    assert_eq!(own.apply(Change::Retired), Changed::Nothing);
    assert_eq!(own.judge_succession(&tests::next(3, Some(2))), Ok(true));
}
