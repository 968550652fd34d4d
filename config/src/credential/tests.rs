use super::*;
use crate::ids::Role;
use crate::invite::{Invite, Join};
use crate::keys::RecordKey;
use crate::testing::{DAY, NOW, TestRng, grant, invite_with};

struct World {
    authority: AuthorityKey,
    invite: Invite,
    node: NodeKey,
    credential: Credential,
    rng: TestRng,
}

fn world() -> World {
    let mut rng = TestRng::new(7);
    let (authority, invite) = invite_with(grant(), &mut rng);
    let (node, record) = (NodeKey::generate(&mut rng), RecordKey::generate(&mut rng));
    let join = Join { name: Some("worker-7".parse().unwrap()), ..Join::default() };
    let credential = invite.accept(&node, &record, join, NOW).unwrap();
    World { authority, invite, node, credential, rng }
}

/// The key of the subject.
fn key() -> NodeKey {
    NodeKey::from_bytes([1; 32])
}

fn subject() -> Subject {
    Subject {
        node: key().public(),
        record_key: VerifyKey::from_bytes([2; 32]),
        name: "worker-7".parse().unwrap(),
        site: "fra".parse().unwrap(),
        roles: Role::Node.into(),
        succession: None,
    }
}

/// The error for a credential changed by a forger who has the keys of delegation and node.
fn forged(change: impl FnOnce(&mut Credential)) -> Error {
    let mut rng = TestRng::new(8);
    let authority = AuthorityKey::generate(&mut rng);
    let invite = DelegationKey::generate(&mut rng);
    let mut grant = grant();
    grant.name = Some("worker-7".parse().unwrap());
    let delegation = Delegation::issue(&authority, invite.public(), grant).unwrap();
    let (from, until) = (NOW, NOW.saturating_add(DAY));
    let Issued(mut credential) =
        Credential::issue_by_delegation(&delegation, &invite, subject(), from, until).unwrap();
    change(&mut credential);
    credential.signature = invite.sign(&credential.message()).into();
    let credential = Issued(credential).countersign(&key()).unwrap();
    credential.verify(&authority.public(), NOW).unwrap_err()
}

#[test]
fn a_credential_from_an_invite_verifies() {
    let World { authority, credential, .. } = world();
    let mesh = authority.public();
    assert_eq!(credential.verify(&mesh, NOW), Ok(()));
    assert_eq!(credential.verify(&mesh, UnixSeconds(NOW.0 - MAX_CLOCK_SKEW_S)), Ok(()));
    assert_eq!(credential.verify(&mesh, UnixSeconds(credential.expires_at.0 - 1)), Ok(()));
    assert_eq!(credential.roles, grant().roles);
    assert_eq!(credential.expires_at, NOW.saturating_add(90 * DAY));
}

#[test]
fn a_credential_from_the_authority_verifies() {
    let authority = AuthorityKey::generate(&mut TestRng::new(9));
    let until = NOW.saturating_add(1);
    let issued = Credential::issue_by_authority(&authority, subject(), NOW, until).unwrap();
    let credential = issued.countersign(&key()).unwrap();
    assert_eq!(credential.verify(&authority.public(), NOW), Ok(()));
    let empty = Credential::issue_by_authority(&authority, subject(), NOW, NOW);
    assert_eq!(empty, Err(Error::ValidityEmpty { from: NOW, until: NOW }));
}

/// It is admitted, with the roles that this version knows, and passed on byte for byte.
#[test]
fn a_credential_with_a_role_of_a_later_version_verifies() {
    let mut rng = TestRng::new(5);
    let roles = Roles::new([Role::Node, Role::Other("tailor".parse().unwrap())]).unwrap();
    let grant = Grant { roles: roles.clone(), ..grant() };
    let (authority, invite) = invite_with(grant, &mut rng);
    let (node, record) = (NodeKey::generate(&mut rng), RecordKey::generate(&mut rng));
    let join = Join { name: Some("worker-7".parse().unwrap()), ..Join::default() };
    let credential = invite.accept(&node, &record, join, NOW).unwrap();
    let read = Credential::from_bytes(&credential.to_bytes()).unwrap();
    assert_eq!(read.verify(&authority.public(), NOW), Ok(()));
    assert_eq!((&read.roles, read.to_bytes()), (&roles, credential.to_bytes()));
}

#[test]
fn a_foreign_mesh_is_refused() {
    let World { credential, mut rng, .. } = world();
    let expected = AuthorityKey::generate(&mut rng).public();
    let error = credential.verify(&expected, NOW).unwrap_err();
    assert_eq!(error, Error::ForeignMesh { expected, found: credential.mesh });
    assert!(error.to_string().contains("another mesh"), "{error}");
    let mut mixed = credential.clone();
    mixed.mesh = expected;
    let error = mixed.verify(&expected, NOW).unwrap_err();
    assert_eq!(error, Error::ForeignMesh { expected, found: credential.mesh });
}

#[test]
fn tampering_names_the_link() {
    let World { authority, credential, .. } = world();
    let mesh = authority.public();
    let mut changed = credential.clone();
    changed.name = "worker-8".parse().unwrap();
    let error = changed.verify(&mesh, NOW).unwrap_err();
    assert_eq!(error, Error::Tampered { what: "the credential" });
    assert!(error.to_string().starts_with("the credential was tampered"), "{error}");

    let mut changed = credential.clone();
    changed.delegation.as_mut().unwrap().grant.site = None;
    let error = changed.verify(&mesh, NOW).unwrap_err();
    assert_eq!(error, Error::Tampered { what: "the invite's delegation" });
    assert!(error.to_string().starts_with("the invite's delegation was"), "{error}");

    let mut changed = credential;
    changed.delegation = None;
    assert_eq!(changed.verify(&mesh, NOW), Err(Error::Tampered { what: "the credential" }));
}

#[test]
fn a_signature_of_one_kind_is_none_of_another() {
    let World { authority, credential, .. } = world();
    let mut changed = credential.clone();
    let delegation = changed.delegation.as_mut().unwrap();
    delegation.signature = authority.sign(&encoded(&delegation.message()));
    let error = changed.verify(&authority.public(), NOW).unwrap_err();
    assert_eq!(error, Error::Tampered { what: "the invite's delegation" });
    assert!(credential.message().starts_with(CREDENTIAL_DOMAIN));
    assert!(credential.delegation.unwrap().message().starts_with(DELEGATION_DOMAIN));
}

#[test]
fn time_is_checked() {
    let World { authority, credential, .. } = world();
    let mesh = authority.public();
    let now = UnixSeconds(NOW.0 - MAX_CLOCK_SKEW_S - 1);
    let error = credential.verify(&mesh, now).unwrap_err();
    assert_eq!(error, Error::NotYetValid { valid_from: NOW, now });
    let now = credential.expires_at;
    let error = credential.verify(&mesh, now).unwrap_err();
    assert_eq!(error, Error::Expired { expired_at: now, now });
    assert!(error.to_string().contains("2027-04-15T08:00:00Z"), "{error}");
}

#[test]
fn what_is_outside_the_delegation_is_refused() {
    let join_until = NOW.saturating_add(DAY);
    let late = join_until.saturating_add(1);
    let error = forged(|credential| {
        credential.issued_at = late;
        credential.expires_at = late.saturating_add(1);
    });
    assert_eq!(error, Error::IssuedAfterInvite { issued_at: late, join_until });

    let early = UnixSeconds(NOW.0 - 1);
    let error = forged(|credential| credential.issued_at = early);
    assert_eq!(error, Error::IssuedBeforeInvite { issued_at: early, not_before: NOW });

    let error = forged(|credential| credential.expires_at = NOW.saturating_add(90 * DAY + 1));
    let (lifetime_s, allowed_s) = (90 * DAY + 1, 90 * DAY);
    assert_eq!(error, Error::LifetimeTooLong { lifetime_s, allowed_s });

    let error = forged(|credential| credential.expires_at = NOW);
    assert_eq!(error, Error::ValidityEmpty { from: NOW, until: NOW });

    let error = forged(|credential| credential.roles = "node,operator".parse().unwrap());
    let allowed = "node,origin:kube-apiserver".to_owned();
    assert_eq!(error, Error::RoleOutside { role: Role::Operator, allowed });

    let error = forged(|credential| credential.site = "ams".parse().unwrap());
    let (site, allowed) = ("ams".parse().unwrap(), "fra".parse().unwrap());
    assert_eq!(error, Error::SiteOutside { site, allowed });

    let error = forged(|credential| credential.name = "cp-1".parse().unwrap());
    let (name, allowed) = ("cp-1".parse().unwrap(), "worker-7".parse().unwrap());
    assert_eq!(error, Error::NameOutside { name, allowed });
}

#[test]
fn only_the_delegations_key_signs_under_it() {
    let World { invite, mut rng, .. } = world();
    let other = DelegationKey::generate(&mut rng);
    let until = NOW.saturating_add(1);
    let issued = Credential::issue_by_delegation(&invite.delegation, &other, subject(), NOW, until);
    assert_eq!(issued, Err(Error::WrongDelegationKey));
}

#[test]
fn a_delegation_without_time_is_not_issued() {
    let World { authority, credential, .. } = world();
    let key = credential.record_key;
    let mut none = grant();
    none.join_until = none.not_before;
    let error = Delegation::issue(&authority, key, none).unwrap_err();
    assert_eq!(error, Error::ValidityEmpty { from: NOW, until: NOW });
    let mut none = grant();
    none.credential_ttl_s = 0;
    assert!(Delegation::issue(&authority, key, none).is_err());
}

#[test]
fn keys_are_compared() {
    let World { credential, .. } = world();
    let (node, record) = (credential.node, credential.record_key);
    let other = NodeId::from_bytes([5; 32]);
    assert_eq!(credential.check_keys(&node, &record), Ok(()));
    let error = credential.check_keys(&other, &record).unwrap_err();
    assert_eq!(error, Error::WrongNodeKey { expected: other, found: node });
    let error = credential.check_keys(&node, &VerifyKey::from_bytes([5; 32])).unwrap_err();
    assert_eq!(error, Error::WrongRecordKey);
}

#[test]
fn size_is_bounded() {
    let authority = AuthorityKey::generate(&mut TestRng::new(10));
    let mut large = subject();
    let role = |n: usize| Role::Origin(format!("{}{n:02}", "s".repeat(61)).parse().unwrap());
    large.roles = Roles::new((0..10).map(role)).unwrap();
    let until = NOW.saturating_add(1);
    let error = Credential::issue_by_authority(&authority, large, NOW, until).unwrap_err();
    assert!(matches!(error, Error::TooLarge { max: MAX_CREDENTIAL_BYTES, .. }), "{error}");
    let error = Credential::from_bytes(&[0; MAX_CREDENTIAL_BYTES + 1]).unwrap_err();
    assert!(matches!(error, Error::TooLarge { .. }));
    let text = format!("meshport-credential-2.{}", "A".repeat(10_000));
    assert_eq!(Credential::from_text(&text), Err(Error::Malformed { what: WHAT }));
}

#[test]
fn a_credential_with_the_longest_names_is_within_its_bound() {
    let mut rng = TestRng::new(11);
    let longest = "x".repeat(63);
    let mut grant = grant();
    grant.site = Some(longest.parse().unwrap());
    grant.name = Some(longest.parse().unwrap());
    let (_, invite) = invite_with(grant, &mut rng);
    let (node, record) = (NodeKey::generate(&mut rng), RecordKey::generate(&mut rng));
    let credential = invite.accept(&node, &record, Join::default(), NOW).unwrap();
    assert!(credential.to_bytes().len() <= MAX_CREDENTIAL_BYTES);
}

#[test]
fn bytes_and_text_round_trip() {
    let World { credential, .. } = world();
    assert_eq!(Credential::from_bytes(&credential.to_bytes()), Ok(credential.clone()));
    let text = credential.to_text();
    assert!(text.starts_with("meshport-credential-2."));
    assert_eq!(Credential::from_text(&format!("{text}\n")), Ok(credential.clone()));
    let mut longer = credential.to_bytes();
    longer.push(0);
    assert_eq!(Credential::from_bytes(&longer), Err(Error::Malformed { what: WHAT }));
    let mut other = credential.clone();
    other.signature = AuthoritySignature::unsigned();
    assert_ne!(other.id(), credential.id());
}

#[test]
fn a_second_encoding_of_the_same_value_is_refused() {
    let World { authority, .. } = world();
    let until = NOW.saturating_add(1);
    let issued = Credential::issue_by_authority(&authority, subject(), NOW, until).unwrap();
    let credential = issued.countersign(&key()).unwrap();
    let bytes = credential.to_bytes();
    // The length of the name, 8, as a number of two bytes instead of one.
    assert_eq!(bytes[96], 8);
    let longer = [&bytes[..96], &[0x88, 0x00], &bytes[97..]].concat();
    let (read, _) = postcard::take_from_bytes::<Credential>(&longer).unwrap();
    assert_eq!(read.issued_bytes(), credential.issued_bytes());
    assert_eq!(Credential::from_bytes(&longer), Err(Error::Malformed { what: WHAT }));
}

#[test]
fn every_bit_flip_is_refused() {
    let World { authority, credential, .. } = world();
    let (mesh, bytes) = (authority.public(), credential.to_bytes());
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let outcome = Credential::from_bytes(&flipped).and_then(|c| c.verify(&mesh, NOW));
        let error = outcome.expect_err("a changed credential is refused");
        let is_named = match error {
            Error::WrongCountersignature { node } => node == credential.node,
            Error::Malformed { .. } | Error::ForeignMesh { .. } | Error::Tampered { .. } => true,
            _ => false,
        };
        let of_node = matches!(error, Error::WrongCountersignature { .. });
        assert_eq!(of_node, bit >= (bytes.len() - COUNTERSIGNATURE_BYTES) * 8, "bit {bit}");
        assert!(is_named, "bit {bit}: {error}");
    }
}

#[test]
fn only_the_node_itself_makes_a_credential_of_what_was_issued() {
    let World { authority, credential, mut rng, .. } = world();
    let mesh = authority.public();
    let until = NOW.saturating_add(1);
    let issue = || Credential::issue_by_authority(&authority, subject(), NOW, until).unwrap();
    let (good, thief) = (issue().countersign(&key()).unwrap(), NodeKey::generate(&mut rng));
    assert_eq!(good.verify(&mesh, NOW), Ok(()));
    assert_eq!(issue().countersign(&key()).as_ref(), Ok(&good), "no two from the same");
    let refused = issue().countersign(&thief).unwrap_err();
    let (expected, found) = (thief.public(), good.node);
    assert_eq!(refused, Error::WrongNodeKey { expected, found });
    // Countersignatures of a forger: by its own keys, none, and the node's of another credential.
    let message = good.countersigned();
    assert!(message.starts_with(COUNTERSIGNATURE_DOMAIN));
    let undomained = &message[COUNTERSIGNATURE_DOMAIN.len()..];
    for other in [
        thief.sign(&message),
        *authority.sign(&message).plain().unwrap(),
        unsigned(),
        *good.signature.plain().unwrap(),
        credential.countersignature,
        key().sign(undomained),
        key().sign(&good.message()),
    ] {
        let mut forged = good.clone();
        forged.countersignature = other;
        let read = Credential::from_bytes(&forged.to_bytes()).unwrap();
        let error = Error::WrongCountersignature { node: good.node };
        assert_eq!(read.verify(&mesh, NOW), Err(error));
    }
}

/// The holder of an invite dates a credential of another's node later, with fewer roles.
#[test]
fn what_the_node_signed_once_serves_no_other_credential() {
    let World { authority, node, credential, .. } = world();
    let (mesh, known) = (authority.public(), credential.clone());
    let subject = Subject {
        node: known.node,
        record_key: known.record_key,
        name: known.name,
        site: known.site,
        roles: Role::Node.into(),
        succession: None,
    };
    let (from, until) = (NOW.saturating_add(1), NOW.saturating_add(DAY));
    let issued = Credential::issue_by_authority(&authority, subject, from, until).unwrap();
    let mut forged = issued.0.clone();
    forged.countersignature = credential.countersignature;
    let error = forged.verify(&mesh, from).unwrap_err();
    assert_eq!(error, Error::WrongCountersignature { node: node.public() });
    assert!(error.to_string().contains(&node.public().to_string()), "{error}");
    assert_eq!(issued.countersign(&node).unwrap().verify(&mesh, from), Ok(()));
}

#[test]
fn unsigned_credentials_are_distinguished_from_damaged_ones() {
    let World { node, credential, mut rng, .. } = world();
    let former = NodeKey::generate(&mut rng);
    let succession = Succession::agree(&former, &node.public(), &credential.mesh, NOW);
    for succession in [None, Some(succession)] {
        let mut issued = credential.clone();
        issued.succession = succession;
        let (issued, whole) = (Issued(issued.clone()), issued);
        let bytes = issued.to_bytes();
        assert_eq!(Credential::from_bytes(&bytes), Err(Error::NotCountersigned));
        assert_eq!(Credential::from_bytes(&whole.to_bytes()), Ok(whole));
        // The text form of version 1, which the node can sign since.
        let text = codec::ISSUED.encode(&bytes);
        assert!(text.starts_with("meshport-credential-1."));
        assert_eq!(Credential::from_text(&text), Err(Error::NotCountersigned));
        let read = Issued::from_text(&text).unwrap();
        assert_eq!(read.to_bytes(), bytes);
        assert_eq!(read.countersign(&node), issued.countersign(&node));
    }
    let error = Error::NotCountersigned.to_string();
    assert!(error.contains("`meshport renew`") && error.contains("`meshport join"), "{error}");
    // A text of version 2 without its end is damaged, not old.
    let bytes = credential.to_bytes();
    let cut = codec::CREDENTIAL.encode(&bytes[..bytes.len() - COUNTERSIGNATURE_BYTES]);
    assert_eq!(Credential::from_text(&cut), Err(Error::Malformed { what: WHAT }));
    let garbage = Credential::from_text("meshport-credential-1.AAAA");
    assert_eq!(garbage, Err(Error::OtherVersion { what: WHAT }));
    let newer = credential.to_text().replace("-2.", "-3.");
    assert_eq!(Credential::from_text(&newer), Err(Error::OtherVersion { what: WHAT }));
}

#[test]
fn every_truncation_is_refused() {
    let World { authority, credential, .. } = world();
    let (bytes, text) = (credential.to_bytes(), credential.to_text());
    for length in 0..bytes.len() {
        assert!(Credential::from_bytes(&bytes[..length]).is_err(), "{length} bytes");
    }
    for length in 0..text.len() {
        assert!(Credential::from_text(&text[..length]).is_err(), "{length} characters");
    }
    for (index, _) in text.char_indices() {
        let mut changed = text.clone().into_bytes();
        changed[index] = if changed[index] == b'x' { b'y' } else { b'x' };
        let changed = String::from_utf8(changed).unwrap();
        let mesh = authority.public();
        let outcome = Credential::from_text(&changed).and_then(|c| c.verify(&mesh, NOW));
        assert!(outcome.is_err(), "character {index}");
    }
}
