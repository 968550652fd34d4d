use proptest::prelude::*;

use super::*;
use crate::testing::{DAY, NOW, TestRng, grant};
use crate::{
    Added, Credential, Delegation, DelegationKey, Invite, InviteParams, Join, MAX_REVOCATION_BYTES,
    Mandate, MeshSecret, NextSecret, NodeId, NodeKey, RecordKey, Revocation, Revocations, Revoked,
    Terms,
};

/// The first key of a mesh, one that it has endorsed, and one that this has endorsed in turn.
fn keys(rng: &mut TestRng) -> [AuthorityKey; 3] {
    let first = AuthorityKey::generate(rng);
    let second = first.endorse(NOW, rng).unwrap();
    let third = second.endorse(NOW, rng).unwrap();
    [first, second, third]
}

fn member(authority: &AuthorityKey, rng: &mut TestRng) -> Credential {
    let mesh_secret = MeshSecret::generate(rng);
    let params = InviteParams { grant: grant(), mesh_secret, seeds: Vec::new() };
    let invite = Invite::create(authority, params, rng).unwrap();
    let invite = Invite::parse(&invite.to_text().unwrap()).unwrap();
    let join = Join { name: Some("worker-1".parse().unwrap()), ..Join::default() };
    invite.accept(&NodeKey::generate(rng), &RecordKey::generate(rng), join, NOW).unwrap()
}

#[test]
fn signatures_of_an_endorsed_key_verify_with_the_mesh_id_alone() {
    let mut rng = TestRng::new(1);
    let keys = keys(&mut rng);
    let mesh = keys[0].public();
    for (endorsements, key) in keys.iter().enumerate() {
        assert_eq!((key.public(), key.chain().endorsements().len()), (mesh, endorsements));
        let credential = member(key, &mut rng);
        let again = Credential::from_text(&credential.to_text()).unwrap();
        assert_eq!(again, credential);
        again.verify(&mesh, NOW).unwrap();
        assert_eq!(again.chain(), key.chain());

        let revocation = Revocation::issue(key, Revoked::Node(credential.node), NOW);
        let bytes = revocation.to_bytes();
        assert!(bytes.len() <= MAX_REVOCATION_BYTES, "{}", bytes.len());
        Revocation::from_bytes(&bytes).unwrap().verify(&mesh).unwrap();

        let next = NextSecret::issue(key, u64::MAX, MeshSecret::generate(&mut rng), NOW, NOW);
        NextSecret::from_bytes(&next.to_bytes().unwrap()).unwrap().verify(&mesh).unwrap();

        let terms = Terms {
            issuer: credential.node,
            roles: credential.roles.clone(),
            site: None,
            lifetime_s: 30 * DAY,
            from: NOW,
            until: NOW.saturating_add(300 * DAY),
        };
        let mandate = Mandate::create(key, &terms, &mut rng).unwrap();
        Mandate::from_text(&mandate.to_text().unwrap()).unwrap().verify(&mesh).unwrap();
    }
}

#[test]
fn an_endorsement_is_for_one_key_of_one_mesh_and_by_its_authority() {
    let mut rng = TestRng::new(2);
    let [first, second, third] = keys(&mut rng);
    let error = third.endorse(NOW, &mut rng).unwrap_err();
    assert_eq!(error, Error::ChainTooLong { max: MAX_ENDORSEMENTS });
    let elsewhere = AuthorityKey::generate(&mut rng);
    let message = b"something";
    let good = second.sign(message);
    good.verify(&first.public(), message).unwrap();
    assert_eq!(good.verify(&elsewhere.public(), message), Err(Error::BadSignature));
    // A key that nobody endorsed, with the endorsement of another one.
    let thief = AuthorityKey::generate(&mut rng);
    let forged =
        AuthoritySignature { signature: thief.sign(message).signature, chain: good.chain.clone() };
    assert_eq!(forged.verify(&first.public(), message), Err(Error::BadSignature));
    // A key that endorses itself, or that a foreign authority endorsed.
    let stranger = elsewhere.endorse(NOW, &mut rng).unwrap();
    assert_eq!(stranger.sign(message).verify(&first.public(), message), Err(Error::BadSignature));
    // A chain without its beginning.
    let mut cut = third.sign(message);
    cut.verify(&first.public(), message).unwrap();
    cut.chain.0.remove(0);
    assert_eq!(cut.verify(&first.public(), message), Err(Error::BadSignature));
    // A delegation's key needs no endorsement, and a chain before its signature is none of its.
    let key = DelegationKey::generate(&mut rng);
    let delegation = Delegation::issue(&second, key.public(), grant()).unwrap();
    assert_eq!(delegation.signature.chain(), second.chain());
    assert_eq!(good.plain(), Err(Error::BadSignature));
}

#[test]
fn the_text_of_an_endorsed_key_has_its_endorsements() {
    let mut rng = TestRng::new(3);
    let keys = keys(&mut rng);
    for key in &keys {
        let text = key.to_text();
        let again: AuthorityKey = format!("\n{}\n", *text).parse().unwrap();
        assert_eq!((again.public(), again.key()), (key.public(), key.key()));
        assert_eq!(again.chain(), key.chain());
        again.sign(b"so").verify(&keys[0].public(), b"so").unwrap();
    }
    // Two files mixed up.
    let [first, second, third] = &keys;
    let (second, third) = (second.to_text(), third.to_text());
    let (secret, public) = (third.lines().next().unwrap(), second.lines().nth(1).unwrap());
    for lines in [format!("{secret}\n{public}"), format!("{}\n{public}", *first.to_text())] {
        let error = lines.parse::<AuthorityKey>().unwrap_err();
        assert_eq!(error, Error::Malformed { what: WHAT });
    }
    // An endorsed key that has lost its second line is the first one of another mesh.
    assert_ne!(secret.parse::<AuthorityKey>().unwrap().public(), first.public());
}

#[test]
fn a_revoked_authority_key_takes_along_what_it_signed_and_nothing_else() {
    let mut rng = TestRng::new(4);
    let [first, second, third] = keys(&mut rng);
    let beside = first.endorse(NOW, &mut rng).unwrap();
    let members = [&first, &second, &third, &beside].map(|key| member(key, &mut rng));
    let node = Revoked::Node(NodeId::from_bytes([7; 32]));
    let revoked = Revoked::Invite(second.key());
    let covered = |all: &Revocations| members.each_ref().map(|it| all.covering(it).is_some());

    let mut all = Revocations::default();
    for by in [&second, &third] {
        all.add(Revocation::issue(by, node, NOW));
    }
    assert_eq!(all.len(), 2);
    // Neither a key beside it nor one below it has a say.
    for by in [&beside, &third] {
        let mut idle = all.clone();
        idle.add(Revocation::issue(by, revoked, NOW));
        assert_eq!(covered(&idle), [false; 4]);
        assert!(idle.get(&node).is_some());
    }
    // The one above it has, also where the others spoke before.
    all.add(Revocation::issue(&beside, revoked, NOW));
    assert_eq!(all.add(Revocation::issue(&first, revoked, NOW)), Added::New);
    assert_eq!(covered(&all), [false, true, true, false]);
    assert!(all.get(&node).is_none(), "a thief of the key has revoked nobody");
    assert_eq!(all.add(Revocation::issue(&third, node, NOW)), Added::Known);
    assert_eq!(all.add(Revocation::issue(&beside, node, NOW)), Added::New);
    assert_eq!(all.len(), 3);

    // A key may revoke itself: it is retired.
    let mut all = Revocations::default();
    all.add(Revocation::issue(&third, node, NOW));
    all.add(Revocation::issue(&third, Revoked::Invite(third.key()), NOW));
    assert_eq!(covered(&all), [false, false, true, false]);
    assert!(all.get(&node).is_none());
    // Nobody revokes the first key.
    for by in [&first, &second] {
        all.add(Revocation::issue(by, Revoked::Invite(first.key()), NOW));
    }
    assert_eq!(covered(&all), [false, false, true, false]);
}

proptest! {
    /// A flipped bit anywhere in a signature with endorsements makes it none.
    #[test]
    fn no_flipped_bit_is_believed(bit in 0_usize..(64 + 2 * 104) * 8) {
        let mut rng = TestRng::new(5);
        let [first, _, third] = keys(&mut rng);
        let mut bytes = postcard::to_stdvec(&third.sign(b"so")).unwrap();
        prop_assert_eq!(bytes.len(), 64 + MAX_CHAIN_BYTES);
        bytes[bit / 8] ^= 1 << (bit % 8);
        let read = postcard::take_from_bytes::<AuthoritySignature>(&bytes);
        let believed = read.is_ok_and(|(it, _)| it.verify(&first.public(), b"so").is_ok());
        prop_assert!(!believed);
    }

    /// Whatever the order in which they are heard, all nodes end with the same revocations.
    #[test]
    fn sets_with_several_signers_merge_in_any_order(
        said in proptest::collection::vec((0_usize..4, 0_usize..6), 0..12),
        turn in 0_usize..12,
    ) {
        let mut rng = TestRng::new(6);
        let [first, second, third] = keys(&mut rng);
        let beside = first.endorse(NOW, &mut rng).unwrap();
        let nodes = [1, 2, 3].map(|it| Revoked::Node(NodeId::from_bytes([it; 32])));
        let keys = [&second, &third, &beside].map(|it| Revoked::Invite(it.key()));
        let by = [first, second, third, beside];
        let subjects = [nodes, keys].concat();
        let statements: Vec<Revocation> = said
            .iter()
            .map(|(signer, subject)| Revocation::issue(&by[*signer], subjects[*subject], NOW))
            .collect();
        let set = |statements: &mut dyn Iterator<Item = &Revocation>| {
            let mut all = Revocations::default();
            statements.for_each(|it| { all.add(it.clone()); });
            all
        };
        let one = set(&mut statements.iter());
        let turn = turn.min(statements.len());
        let other = set(&mut statements[turn..].iter().rev().chain(&statements[..turn]));
        prop_assert_eq!(one.digest(), other.digest());
        prop_assert_eq!(&one, &other);
        // What one node keeps, another one takes as it is.
        let mut told = other.clone();
        one.iter().for_each(|it| { told.add(it.clone()); });
        prop_assert_eq!(one, told);
    }
}
