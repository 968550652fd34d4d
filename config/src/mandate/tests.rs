use super::*;
use crate::testing::{DAY, NOW, TestRng, grant, invite_with};
use crate::{Join, NodeKey, RecordKey, Revocation, Revocations, Revoked};

/// A mesh, a node of it and a mandate for another.
struct Bench {
    authority: AuthorityKey,
    key: NodeKey,
    present: Credential,
    terms: Terms,
    mandate: Mandate,
}

fn bench(change: impl FnOnce(&mut Terms)) -> Bench {
    let mut rng = TestRng::new(7);
    let (authority, invite) = invite_with(grant(), &mut rng);
    let (key, record) = (NodeKey::generate(&mut rng), RecordKey::generate(&mut rng));
    let join = Join { name: Some("cp-1".parse().unwrap()), ..Join::default() };
    let present = invite.accept(&key, &record, join, NOW).unwrap();
    let mut terms = Terms {
        issuer: NodeKey::generate(&mut rng).public(),
        roles: "node,origin:kube-apiserver,issuer".parse().unwrap(),
        site: None,
        lifetime_s: 30 * DAY,
        from: NOW,
        until: NOW.saturating_add(180 * DAY),
    };
    change(&mut terms);
    let mandate = Mandate::create(&authority, &terms, &mut rng).unwrap();
    Bench { authority, key, present, terms, mandate }
}

fn at(days: u64) -> UnixSeconds {
    NOW.saturating_add(days * DAY)
}

#[test]
fn a_renewal_is_the_same_node_for_longer_and_every_release_verifies_it() {
    let Bench { authority, key, present, mandate, terms } = bench(|_| ());
    let mesh = authority.public();
    mandate.verify(&mesh).unwrap();
    assert_eq!(mandate.terms(), terms);
    let issued = mandate.renew(&present, at(80)).unwrap();
    let issued = Issued::from_bytes(&issued.to_bytes()).unwrap();
    let next = issued.countersign(&key).unwrap();
    next.verify(&mesh, at(80)).unwrap();
    let same = |it: &Credential| (it.node, it.record_key, it.name.clone(), it.roles.clone());
    assert_eq!((same(&next), &next.site), (same(&present), &present.site));
    assert!(next.is_renewal() && !present.is_renewal());
    assert_eq!((next.issued_at, next.expires_at), (at(79), at(109)));
    // And that one in turn, by the key of a later turn.
    let later = mandate.renew(&next, at(100)).unwrap().countersign(&key).unwrap();
    later.verify(&mesh, at(100)).unwrap();
    let signer = |it: &Credential| it.delegation.as_ref().unwrap().key;
    assert_ne!(signer(&next), signer(&later));
    // Only the node itself can countersign it.
    let stranger = NodeKey::generate(&mut TestRng::new(1));
    assert!(mandate.renew(&next, at(100)).unwrap().countersign(&stranger).is_err());
}

#[test]
fn nothing_outside_the_mandate_is_signed() {
    let roles = bench(|it| it.roles = "node".parse().unwrap());
    let error = roles.mandate.renew(&roles.present, at(1)).unwrap_err();
    assert!(matches!(error, Error::RoleOutside { .. }), "{error}");
    let site = bench(|it| it.site = Some("ams".parse().unwrap()));
    let error = site.mandate.renew(&site.present, at(1)).unwrap_err();
    assert!(matches!(error, Error::SiteOutside { .. }), "{error}");
    let Bench { mandate, present, .. } = bench(|_| ());
    let error = mandate.renew(&present, at(181)).unwrap_err();
    assert!(matches!(error, Error::MandateEnded { .. }), "{error}");
    let early = bench(|it| it.from = at(10));
    let error = early.mandate.renew(&early.present, at(1)).unwrap_err();
    assert!(matches!(error, Error::NotYetValid { .. }), "{error}");
    // A credential of the future is followed by none of today's turn.
    let mut future = present;
    future.issued_at = at(60);
    let error = mandate.renew(&future, at(1)).unwrap_err();
    assert!(matches!(error, Error::IssuedAfterInvite { .. }), "{error}");
}

#[test]
fn a_thief_of_the_keys_dates_nothing_back_and_stretches_nothing() {
    let Bench { authority, key, present, mandate, .. } = bench(|_| ());
    let (mesh, left) = (authority.public(), mandate.without_ended(at(90)).unwrap());
    let Part { delegation, key: stolen } = left.first();
    let sign = |change: &dyn Fn(&mut Subject), from: u64, days: u64| {
        let mut subject = Subject {
            node: present.node,
            record_key: present.record_key,
            name: present.name.clone(),
            site: present.site.clone(),
            roles: present.roles.clone(),
            succession: None,
        };
        change(&mut subject);
        let (from, until) = (at(from), at(from + days));
        let issued = Credential::issue_by_delegation(delegation, stolen, subject, from, until)?;
        issued.countersign(&key)?.verify(&mesh, at(90))
    };
    sign(&|_| (), 90, 30).unwrap();
    assert!(matches!(sign(&|_| (), 80, 30), Err(Error::IssuedBeforeInvite { .. })));
    assert!(matches!(sign(&|_| (), 90, 31), Err(Error::LifetimeTooLong { .. })));
    let relay = |it: &mut Subject| it.roles = "node,relay".parse().unwrap();
    assert!(matches!(sign(&relay, 90, 30), Err(Error::RoleOutside { .. })));
}

#[test]
fn revoking_the_turns_since_a_time_spares_what_was_signed_before() {
    let Bench { authority, key, present, mandate, .. } = bench(|_| ());
    let before = mandate.renew(&present, at(80)).unwrap().countersign(&key).unwrap();
    let after = mandate.renew(&before, at(100)).unwrap().countersign(&key).unwrap();
    let mut all = Revocations::default();
    let turns: Vec<Turn> = mandate.since(at(95)).collect();
    assert!(turns.len() < mandate.len() && mandate.len() <= MAX_TURNS);
    for turn in turns {
        all.add(Revocation::issue(&authority, Revoked::Invite(turn.key), at(101)));
    }
    assert!(all.covering(&after).is_some());
    assert!(all.covering(&before).is_none() && all.covering(&present).is_none());
}

#[test]
fn turns_follow_each_other_without_a_gap_and_are_few() {
    for (lifetime_s, span_s) in [(60, 3600), (60, 240), (30 * DAY, 365 * DAY), (DAY, 1), (3, 1)] {
        let Bench { mandate, terms, .. } = bench(|it| {
            (it.lifetime_s, it.until) = (lifetime_s, NOW.saturating_add(span_s));
        });
        assert!(mandate.len() <= MAX_TURNS, "{lifetime_s} s in {span_s} s: {}", mandate.len());
        let turns: Vec<Turn> = mandate.turns().collect();
        assert!(turns.windows(2).all(|two| two[1].from <= two[0].until));
        assert_eq!(mandate.until(), terms.until);
    }
}

#[test]
fn the_line_has_the_keys_and_no_changed_one_is_believed() {
    let Bench { authority, mandate, .. } = bench(|_| ());
    let (mesh, text) = (authority.public(), mandate.to_text().unwrap());
    assert!(text.starts_with("meshport-mandate-1."), "{}", &text[..24]);
    let read = Mandate::from_text(&format!(" {}\n", *text)).unwrap();
    assert_eq!(read, mandate);
    read.verify(&mesh).unwrap();
    let shown = format!("{mandate:?}");
    assert!(shown.contains("redacted") && !shown.contains("signature"), "{shown}");
    let bytes = mandate.bytes().unwrap();
    // The issuer's name is for people: any holder of the keys can sign.
    for at in (32 * 8..bytes.len() * 8).step_by(61) {
        let mut bytes = bytes.to_vec();
        bytes[at / 8] ^= 1 << (at % 8);
        let believed = Mandate::from_bytes(&bytes).is_ok_and(|it| it.verify(&mesh).is_ok());
        assert!(!believed, "bit {at}");
    }
    let (other, _) = invite_with(grant(), &mut TestRng::new(3));
    assert!(matches!(mandate.verify(&other.public()), Err(Error::ForeignMesh { .. })));
    // An invite's delegation is none.
    let mut plain = mandate.clone();
    for part in &mut plain.parts {
        let grant = Grant { join_until: part.delegation.grant.join_until, ..grant() };
        part.delegation = Delegation::issue(&authority, part.key.public(), grant).unwrap();
    }
    assert!(matches!(plain.verify(&mesh), Err(Error::Malformed { .. })));
}

#[test]
fn a_later_turn_with_endorsements_of_its_own_is_refused() {
    let Bench { authority, terms, .. } = bench(|_| ());
    let mut rng = TestRng::new(9);
    let endorsed = authority.endorse(NOW, &mut rng).unwrap();
    let mandate = Mandate::create(&endorsed, &terms, &mut rng).unwrap();
    let bytes = mandate.bytes().unwrap();
    let read = Mandate::from_bytes(&bytes).unwrap();
    read.verify(&authority.public()).unwrap();
    assert_eq!(read, mandate);
    let mut body: Body = codec::decode(&bytes, WHAT, MAX_MANDATE_BYTES).unwrap();
    body.turns[1].signature = body.turns[0].signature.clone();
    let two_lines = codec::encode_secret(&body, WHAT, MAX_MANDATE_BYTES).unwrap();
    let malformed = Error::Malformed { what: WHAT };
    assert_eq!(Mandate::from_bytes(&two_lines).err(), Some(malformed));
}
