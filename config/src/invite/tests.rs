use proptest::prelude::*;

use super::*;
use crate::testing::{DAY, NOW, TestRng, grant, invite_with};

fn invite() -> (AuthorityKey, Invite) {
    invite_with(grant(), &mut TestRng::new(21))
}

fn keys() -> (NodeKey, RecordKey) {
    let mut rng = TestRng::new(22);
    (NodeKey::generate(&mut rng), RecordKey::generate(&mut rng))
}

fn named(name: &str) -> Join {
    Join { name: Some(name.parse().unwrap()), ..Join::default() }
}

/// The text of a changed payload with a checksum that holds.
fn resealed(payload: &[u8]) -> String {
    let bytes = [&checksum(payload)[..], payload].concat();
    codec::INVITE.encode(&bytes).to_string()
}

/// Each part of an invite is public or one of the secrets of which the tests of keys show that they
/// are erased; a further part has to be put into this list. The same for the forms between.
#[test]
fn the_secrets_of_an_invite_are_erased_when_dropped() {
    fn erases_itself<T: Zeroize + ZeroizeOnDrop>(_: &T) -> bool {
        std::mem::needs_drop::<T>()
    }
    let (_, invite) = invite();
    let Invite { delegation: _, mesh_secret, seeds: _, key, signature: _ } = &invite;
    assert!(erases_itself(mesh_secret));
    let _: &DelegationKey = key;
    let mut secrets = Secrets { key: [1; 32], mesh: [2; 32] };
    assert!(erases_itself(&secrets));
    secrets.zeroize();
    assert_eq!((secrets.key, secrets.mesh), ([0; 32], [0; 32]));
    let Body { delegation: _, secrets: between, seeds: _ } = invite.body();
    assert!(erases_itself(&between));
    assert!(erases_itself(&invite.signed().unwrap()));
    assert!(erases_itself(&invite.payload_bytes().unwrap()));
    assert!(erases_itself(&invite.to_text().unwrap()));
}

#[test]
fn one_line_carries_everything() {
    let (authority, invite) = invite();
    let text = invite.to_text().unwrap();
    assert!(text.starts_with("meshport-invite-2.") && !text.contains(char::is_whitespace));
    let again = Invite::parse(&format!("  {}\n", *text)).unwrap();
    assert_eq!(again.mesh(), &authority.public());
    assert_eq!(again.seeds, invite.seeds);
    assert_eq!(again.delegation, invite.delegation);
    let (a, b) = (NodeId::from_bytes([1; 32]), NodeId::from_bytes([2; 32]));
    assert_eq!(*again.mesh_secret.psk(&a, &b), *invite.mesh_secret.psk(&a, &b));
    let (node, record) = keys();
    let credential = again.accept(&node, &record, named("worker-7"), NOW).unwrap();
    assert_eq!(credential.verify(&authority.public(), NOW), Ok(()));
    assert_eq!(credential.check_keys(&node.public(), &record.public()), Ok(()));
}

#[test]
fn debug_shows_no_secret() {
    let (_, invite) = invite();
    let shown = format!("{invite:?}");
    assert!(shown.contains("redacted"), "{shown}");
    let secrets = [invite.key.secret_bytes(), invite.mesh_secret.secret_bytes()];
    for secret in secrets {
        assert!(!shown.contains(&format!("{secret:?}")), "{shown}");
        assert!(!shown.contains(&data_encoding::BASE64.encode(secret)), "{shown}");
    }
    let params =
        InviteParams { grant: grant(), mesh_secret: invite.mesh_secret.clone(), seeds: Vec::new() };
    assert!(format!("{params:?}").contains("MeshSecret(redacted)"));
}

#[test]
fn name_and_site_come_from_the_invite_or_the_node() {
    let (node, record) = keys();
    let mut rng = TestRng::new(23);
    let mut open = grant();
    open.site = None;
    let (_, open) = invite_with(open, &mut rng);
    let accept = |invite: &Invite, join| invite.accept(&node, &record, join, NOW);
    assert_eq!(accept(&open, Join::default()), Err(Error::NameNeeded));
    assert_eq!(accept(&open, named("a")), Err(Error::SiteNeeded));
    let join = Join { site: Some("ams".parse().unwrap()), ..named("a") };
    assert_eq!(accept(&open, join.clone()).unwrap().site.as_str(), "ams");

    let mut fixed = grant();
    fixed.name = Some("cp-1".parse().unwrap());
    let (_, fixed) = invite_with(fixed, &mut rng);
    let credential = accept(&fixed, Join::default()).unwrap();
    assert_eq!((credential.name.as_str(), credential.site.as_str()), ("cp-1", "fra"));
    let error = accept(&fixed, named("cp-2")).unwrap_err();
    assert!(matches!(error, Error::NameOutside { .. }), "{error}");
    let join = Join { name: None, ..join };
    let error = accept(&fixed, join).unwrap_err();
    assert!(matches!(error, Error::SiteOutside { .. }), "{error}");
}

#[test]
fn time_is_checked() {
    let (_, invite) = invite();
    let (node, record) = keys();
    let accept = |now| invite.accept(&node, &record, named("a"), now);
    let join_until = NOW.saturating_add(DAY);
    assert!(accept(join_until).is_ok());
    let now = join_until.saturating_add(1);
    assert_eq!(accept(now), Err(Error::InviteExpired { join_until, now }));
    let now = UnixSeconds(NOW.0 - MAX_CLOCK_SKEW_S);
    assert_eq!(accept(now).unwrap().issued_at, NOW);
    let now = UnixSeconds(now.0 - 1);
    assert_eq!(accept(now), Err(Error::InviteNotYetValid { valid_from: NOW, now }));
}

#[test]
fn a_forged_invite_is_not_a_miscopied_one() {
    let (authority, invite) = invite();
    let mut wider = invite.clone();
    wider.delegation.grant.site = None;
    let wider = Invite::parse(&wider.to_text().unwrap()).unwrap();
    let what = "the invite's delegation";
    assert_eq!(wider.verify(NOW), Err(Error::Tampered { what }));

    // Who passes it on leads the new node to members and secrets of the authority only.
    let (_, another) = invite_with(grant(), &mut TestRng::new(27));
    let mut changed = [(); 3].map(|()| invite.clone());
    changed[0].seeds[0].node = NodeId::from_bytes([9; 32]);
    changed[1].seeds.clear();
    changed[2].mesh_secret = another.mesh_secret;
    let (node, record) = keys();
    for changed in changed {
        let changed = Invite::parse(&changed.to_text().unwrap()).unwrap();
        let tampered = Error::Tampered { what: "the invite" };
        assert_eq!(changed.verify(NOW), Err(tampered.clone()));
        assert_eq!(changed.accept(&node, &record, named("a"), NOW), Err(tampered));
    }

    let mut other_key = invite.clone();
    other_key.key = DelegationKey::generate(&mut TestRng::new(24));
    let other_key = Invite::parse(&other_key.to_text().unwrap()).unwrap();
    assert_eq!(other_key.verify(NOW), Err(Error::WrongDelegationKey));

    let foreign = AuthorityKey::generate(&mut TestRng::new(25)).public();
    let error = invite.delegation.verify(&foreign).unwrap_err();
    assert_eq!(error, Error::ForeignMesh { expected: foreign, found: authority.public() });
}

#[test]
fn every_changed_or_cut_line_says_it_is_miscopied() {
    let (_, invite) = invite();
    let text = invite.to_text().unwrap();
    let tag = "meshport-invite-2.".len();
    for length in 0..text.len() {
        let error = Invite::parse(&text[..length]).unwrap_err();
        assert!(length < tag || error == Error::InviteMiscopied, "{length}: {error}");
    }
    for index in 0..text.len() {
        for with in [b'A', b'z', b'*'] {
            let mut changed = text.as_bytes().to_vec();
            if std::mem::replace(&mut changed[index], with) == with {
                continue;
            }
            let error = Invite::parse(std::str::from_utf8(&changed).unwrap()).unwrap_err();
            assert!(index < tag || error == Error::InviteMiscopied, "{index}: {error}");
        }
    }
    for (index, _) in text.char_indices().skip(tag + 1) {
        let mut swapped = text.as_bytes().to_vec();
        swapped.swap(index - 1, index);
        if *swapped != *text.as_bytes() {
            let error = Invite::parse(std::str::from_utf8(&swapped).unwrap()).unwrap_err();
            assert_eq!(error, Error::InviteMiscopied, "{index}");
        }
    }
}

#[test]
fn every_bit_is_protected_even_with_a_new_checksum() {
    let (_, invite) = invite();
    let payload = invite.payload_bytes().unwrap();
    for bit in 0..payload.len() * 8 {
        let mut flipped = payload.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let outcome = Invite::parse(&resealed(&flipped)).and_then(|i| i.verify(NOW));
        assert!(outcome.is_err(), "bit {bit}");
    }
    for length in 0..payload.len() {
        let error = Invite::parse(&resealed(&payload[..length])).unwrap_err();
        assert_eq!(error, Error::Malformed { what: WHAT }, "{length}");
    }
    let longer = [&payload[..], &[0]].concat();
    assert_eq!(Invite::parse(&resealed(&longer)).unwrap_err(), Error::Malformed { what: WHAT });
}

#[test]
fn other_texts_are_named() {
    let (node, record) = keys();
    let (_, invite) = invite();
    let credential = invite.accept(&node, &record, named("a"), NOW).unwrap();
    let error = Invite::parse(&credential.to_text()).unwrap_err();
    assert_eq!(error, Error::WrongKind { expected: "an invite", found: "a credential" });
    for other in ["meshport-invite-1.AAAA", "meshport-invite-12.AAAA"] {
        let error = Invite::parse(other).unwrap_err();
        assert_eq!(error, Error::InviteOutdated);
        assert!(error.to_string().contains("Make a new one"), "{error}");
    }
    let error = Invite::parse("kubeadm join").unwrap_err();
    assert!(matches!(error, Error::SecretText { .. }) && !error.to_string().contains("kubeadm"));
    let huge = format!("meshport-invite-2.{}", "A".repeat(1 << 20));
    assert_eq!(Invite::parse(&huge).unwrap_err(), Error::InviteMiscopied);
}

#[test]
fn bounds_hold() {
    let (authority, invite) = invite();
    let create = |seeds| {
        let mesh_secret = invite.mesh_secret.clone();
        let params = InviteParams { grant: grant(), mesh_secret, seeds };
        Invite::create(&authority, params, &mut TestRng::new(26))
    };
    let seed = invite.seeds[0].clone();
    assert!(create(vec![seed.clone(); MAX_SEEDS]).is_ok());
    let error = create(vec![seed.clone(); MAX_SEEDS + 1]).unwrap_err();
    assert_eq!(error, TextError::TooMany { what: "seeds", found: 9, max: 8 }.into());
    let long: Endpoint = format!("{}:1", [&*"a".repeat(60); 4].join(".")).parse().unwrap();
    let large = Seed::new(seed.node, vec![long; MAX_ENDPOINTS]).unwrap();
    let error = create(vec![large; MAX_SEEDS]).unwrap_err();
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
    assert!(create(Vec::new()).is_ok());
}

#[test]
fn seeds_have_a_text_form() {
    let node = NodeId::from_bytes([7; 32]);
    let text = format!("{node}@203.0.113.5:51820,[2001:db8::1]:51820,seed.example.com:1");
    let seed: Seed = text.parse().unwrap();
    assert_eq!((seed.node, seed.endpoints.len(), seed.to_string()), (node, 3, text));
    let nine = format!("{node}@{}", ["a:1"; 9].join(","));
    let wrong = ["", "@", "a:1", "x@a:1", &format!("{node}@"), &format!("{node}@a"), &nine];
    for text in wrong {
        assert!(text.parse::<Seed>().is_err(), "{text}");
    }
    assert!(Seed::new(node, Vec::new()).is_err());
    let empty = postcard::to_stdvec(&(node, Vec::<Endpoint>::new())).unwrap();
    assert!(postcard::from_bytes::<Seed>(&empty).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn invites_round_trip(
        seed: u64,
        site in proptest::option::of("[a-z0-9]{1,63}"),
        name in proptest::option::of("[a-z0-9]{1,63}"),
        from in 0_u64..4_000_000_000,
        window in 1_u64..4_000_000_000,
        ttl in 1_u64..,
    ) {
        let mut grant = grant();
        grant.site = site.map(|site| site.parse().unwrap());
        grant.name = name.map(|name| name.parse().unwrap());
        grant.not_before = UnixSeconds(from);
        grant.join_until = UnixSeconds(from + window);
        grant.credential_ttl_s = ttl;
        let (_, invite) = invite_with(grant, &mut TestRng::new(seed));
        let text = invite.to_text().unwrap();
        let again = Invite::parse(&text).unwrap();
        prop_assert_eq!(again.verify(UnixSeconds(from)), Ok(()));
        prop_assert_eq!(&*again.to_text().unwrap(), &*text);
    }
}

#[test]
fn a_node_may_take_some_of_the_roles_and_no_others() {
    let mut wide = grant();
    wide.roles = "node,operator".parse().unwrap();
    let (_, wide) = invite_with(wide, &mut TestRng::new(24));
    let (node, record) = keys();
    let take = |roles: &str| {
        let join = Join { roles: Some(roles.parse().unwrap()), ..named("laptop") };
        wide.accept(&node, &record, join, NOW)
    };
    assert!(take("operator").unwrap().roles.is_leaf());
    assert!(!take("node,operator").unwrap().roles.is_leaf());
    let error = take("operator,relay").unwrap_err();
    assert!(matches!(error, Error::RoleOutside { .. }), "{error}");
}

#[test]
fn a_node_may_not_leave_out_what_its_invite_forbids() {
    let mut forbids = grant();
    forbids.roles = "node,relay,no-kubelet".parse().unwrap();
    let (_, forbids) = invite_with(forbids, &mut TestRng::new(25));
    let (node, record) = keys();
    let take = |roles: &str| {
        let join = Join { roles: Some(roles.parse().unwrap()), ..named("worker-7") };
        forbids.accept(&node, &record, join, NOW)
    };
    assert!(take("node,no-kubelet").unwrap().roles.contains(&crate::Role::NoKubelet));
    let error = take("node").unwrap_err();
    assert_eq!(error, Error::RoleDropped { role: crate::Role::NoKubelet });
}
