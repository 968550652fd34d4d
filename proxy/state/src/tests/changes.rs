//! Replacement of keys and credentials.

use super::*;

/// New keys for the node of a folder.
fn next(state: &StateDir, authority: &AuthorityKey) -> NextIdentity {
    let (known, key) = (state.credential().unwrap().unwrap(), state.node_key().unwrap().unwrap());
    let (node_key, record_key) = (NodeKey::generate(&mut OsRng), RecordKey::generate(&mut OsRng));
    let agreed = Succession::agree(&key, &node_key.public(), &known.mesh, NOW);
    let subject = Subject {
        node: node_key.public(),
        record_key: record_key.public(),
        name: known.name,
        site: known.site,
        roles: known.roles,
        succession: Some(agreed),
    };
    let until = NOW.saturating_add(DAY);
    let issued = Credential::issue_by_authority(authority, subject, NOW, until).unwrap();
    let credential = issued.countersign(&node_key).unwrap();
    NextIdentity { node_key, record_key, credential }
}

#[test]
fn a_change_of_keys_that_was_cut_short_is_finished_at_the_next_start() {
    let authority = AuthorityKey::generate(&mut OsRng);
    for done in 0..4 {
        let (_folder, state) = joined_by(&authority);
        let (before, next) = (state.identity(NOW).expect("whole"), next(&state, &authority));
        state.settle_next().expect("nothing to do");
        assert_eq!(state.identity(NOW).expect("whole").credential, before.credential);
        state.store_next(&next).expect("stored");
        let path = state.path().join("node.next");
        assert_eq!(mode(&path), 0o600);
        // As a crash may leave it.
        let replace = Existing::Replace;
        if done > 0 {
            state.store_node_key(&next.node_key, replace).expect("stored");
        }
        if done > 1 {
            state.store_record_key(&next.record_key, replace).expect("stored");
        }
        if done > 2 {
            state.store_credential(&next.credential, replace).expect("stored");
        }
        state.settle_next().expect("it is finished");
        assert!(!path.exists());
        let after = state.identity(NOW).expect("whole");
        assert_eq!(after.credential, next.credential);
        assert_eq!(after.node_key.public(), next.node_key.public());
        let revoked = state.revocations(&authority.public()).expect("whole");
        assert!(revoked.covering(&before.credential).is_some());
        state.settle_next().expect("nothing to do");
        let shown = format!("{next:?}");
        assert!(!shown.contains(next.record_key.to_text().as_str()), "{shown}");
    }
}

/// As an earlier version of meshport left it: the new key is beside the credential to sign.
#[test]
fn new_keys_that_an_earlier_meshport_left_are_finished_with_a_signed_credential() {
    let authority = AuthorityKey::generate(&mut OsRng);
    let (_folder, state) = joined_by(&authority);
    let (next, other) = (next(&state, &authority), next(&state, &authority));
    let whole = next.credential.to_bytes();
    let encoded = data_encoding::BASE64URL_NOPAD.encode(&whole[..whole.len() - 64]);
    let old = format!("meshport-credential-1.{encoded}");
    let text = next.to_text().replace(&next.credential.to_text(), &old);
    let before = state.identity(NOW).expect("whole");
    state.store_next(&next).expect("stored");
    // Another key beside it signs nothing.
    let stranger = text.replace(next.node_key.to_text().as_str(), &other.node_key.to_text());
    put(&state.path().join("node.next"), stranger.as_bytes());
    assert!(message(state.settle_next()).contains("node.next"));
    assert_eq!(state.identity(NOW).expect("whole").credential, before.credential);
    put(&state.path().join("node.next"), text.as_bytes());
    state.settle_next().expect("it is finished");
    assert_eq!(state.identity(NOW).expect("whole").credential, next.credential);
}

#[test]
fn no_damage_to_new_keys_changes_the_node() {
    let authority = AuthorityKey::generate(&mut OsRng);
    let (_folder, state) = joined_by(&authority);
    let (before, next) = (state.identity(NOW).expect("whole"), next(&state, &authority));
    state.store_next(&next).expect("stored");
    let path = state.path().join("node.next");
    let content = fs::read(&path).expect("it is there");
    let part = |name: &str| fs::read(state.path().join(name)).expect("it is there");
    let parts = || [NODE_KEY, RECORD_KEY, CREDENTIAL].map(part);
    let (as_before, mut same) = (parts(), 0);
    for damaged in damages(&content) {
        put(&path, &damaged);
        let Err(refused) = state.settle_next() else {
            // White space, or bits of a private key that X25519 ignores.
            same += 1;
            let after = state.identity(NOW).expect("whole");
            assert_eq!(after.credential, next.credential);
            assert_eq!(after.node_key.public(), next.node_key.public());
            assert_eq!(*after.record_key.to_text(), *next.record_key.to_text());
            fs::remove_file(state.path().join(REVOCATIONS)).expect("the former one ends");
            state.store_node_key(&before.node_key, Existing::Replace).expect("stored");
            state.store_record_key(&before.record_key, Existing::Replace).expect("stored");
            state.store_credential(&before.credential, Existing::Replace).expect("stored");
            state.store_next(&next).expect("stored");
            continue;
        };
        let refused = refused.to_string();
        assert!(refused.contains("node.next") && refused.contains("rotate-key"), "{refused}");
        assert!(parts() == as_before, "the node is changed");
    }
    assert!(same < 10, "{same} damaged contents were taken for the whole one");
}

#[test]
fn a_credential_of_other_keys_than_the_folders_is_not_stored() {
    let authority = AuthorityKey::generate(&mut OsRng);
    let (_folder, state) = joined_by(&authority);
    let (before, next) = (state.identity(NOW).expect("whole"), next(&state, &authority));
    let store = |it: &Credential| state.store_credential(it, Existing::Replace);
    let refused = message(store(&next.credential));
    assert!(refused.contains("cannot be replaced by one for other keys"), "{refused}");
    assert_eq!(state.identity(NOW).expect("whole").credential, before.credential);
    state.store_node_key(&next.node_key, Existing::Replace).expect("stored");
    assert!(store(&next.credential).is_err(), "the other key is the former one");
    state.store_record_key(&next.record_key, Existing::Replace).expect("stored");
    let renewed = state.store_renewed(&before.credential, &before.credential, &before.credential);
    assert!(message(renewed).contains("other keys"));
    store(&next.credential).expect("stored");
    assert_eq!(state.identity(NOW).expect("whole").credential, next.credential);
}

/// As an earlier version of meshport left it.
#[test]
fn a_credential_that_its_node_has_not_signed_starts_nothing_and_can_be_renewed() {
    let (_folder, state) = joined();
    let known = state.identity(NOW).expect("whole");
    let path = state.path().join(CREDENTIAL);
    // Everything except the node's signature, in the old text form.
    let whole = known.credential.to_bytes();
    let encoded = data_encoding::BASE64URL_NOPAD.encode(&whole[..whole.len() - 64]);
    let old = format!("meshport-credential-1.{encoded}\n");
    put(&path, old.as_bytes());
    for text in [message(state.identity(NOW)), message(state.credential())] {
        assert!(text.contains("credential: is from an earlier version of meshport"), "{text}");
        assert!(text.contains("`meshport renew`") && text.contains("INVITE"), "{text}");
    }
    let read = state.credential_to_renew(&known.node_key).expect("it is good for that");
    assert_eq!(read.as_ref(), Some(&known.credential));
    assert!(state.credential_to_renew(&NodeKey::generate(&mut OsRng)).is_err());
    assert_eq!(fs::read(&path).expect("it is there"), old.as_bytes(), "nothing was written");
    // A credential that the issuer has not signed is not renewed.
    let mut changed = whole[..whole.len() - 64].to_vec();
    *changed.last_mut().expect("it has bytes") ^= 1;
    let encoded = data_encoding::BASE64URL_NOPAD.encode(&changed);
    put(&path, format!("meshport-credential-1.{encoded}").as_bytes());
    assert!(message(state.credential_to_renew(&known.node_key)).contains("is damaged"));
}

/// An issuer signs for itself, so one whose clock was ahead has a credential from the future.
#[test]
fn a_credential_that_is_not_valid_yet_leaves_its_node_the_one_before() {
    let authority = AuthorityKey::generate(&mut OsRng);
    let (_folder, state) = joined_by(&authority);
    let Identity { credential: first, node_key, .. } = state.identity(NOW).expect("whole");
    let terms = Terms {
        issuer: first.node,
        roles: first.roles.clone(),
        site: None,
        lifetime_s: 7 * DAY,
        from: NOW,
        until: NOW.saturating_add(90 * DAY),
    };
    let mandate = Mandate::create(&authority, &terms, &mut OsRng).expect("good");
    let later = NOW.saturating_add(8 * DAY);
    let next = mandate.renew(&first, later).and_then(|it| it.countersign(&node_key));
    let next = next.expect("signed");
    state.store_renewed(&next, &first, &first).expect("stored");
    assert_eq!(state.identity(NOW).expect("the former one").credential, first);
    assert_eq!(state.renewals(&first).early, Some(next.clone()));
    assert_eq!(state.identity(later).expect("whole").credential, next);
    assert_eq!(state.renewals(&next).early, None);
    // An issuer renews the former one meanwhile.
    let soon = NOW.saturating_add(60);
    let renewed = mandate.renew(&first, soon).and_then(|it| it.countersign(&node_key));
    let renewed = renewed.expect("signed");
    state.store_former(&renewed, &first).expect("stored");
    assert_eq!(state.identity(soon).expect("the former one").credential, renewed);
    assert_eq!(state.renewals(&renewed).early.as_ref(), Some(&next));
    assert_eq!(state.identity(later).expect("whole").credential, next);
    state.store_former(&first, &first).expect("stored");
    // The former one has expired, and the other one has not begun.
    let between = NOW.saturating_add(2 * DAY);
    let text = message(state.identity(between));
    assert!(text.contains("is not valid before"), "{text}");
}
