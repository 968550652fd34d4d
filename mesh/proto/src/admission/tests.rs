use super::*;

/// Any point in time will do.
fn start() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "a test needs some instant to count from")]
    Instant::now()
}

#[test]
fn messages_survive_the_wire() {
    let credential = vec![7; meshport_config::MAX_CREDENTIAL_BYTES];
    for message in [
        Control::Hello {
            instance: 42,
            has_yours: true,
            continues: true,
            joins: true,
            credential: &credential,
        },
        Control::Hello {
            instance: u64::MAX,
            has_yours: false,
            continues: false,
            joins: false,
            credential: &[],
        },
        Control::Ack { instance: 9 },
        Control::Refused { reason: "credential expired".to_owned() },
        Control::Number { number: 7, wants_yours: true },
        Control::Number { number: u64::MAX, wants_yours: false },
        Control::Here { instance: 5, you: "192.0.2.1:7442".parse().unwrap() },
        Control::Here { instance: 0, you: "[2001:db8::1]:1".parse().unwrap() },
        Control::Duplicate { at: "192.0.2.1:7442".parse().unwrap() },
        Control::Secret {
            revocations: RevocationSummary { count: 3, digest: u64::MAX },
            next: &[9; MAX_NEXT_SECRET_BYTES],
        },
        Control::Secret { revocations: RevocationSummary { count: 0, digest: 0 }, next: &[] },
    ] {
        assert_eq!(Control::decode(&message.encode()), Some(message));
    }
}

#[test]
fn unknown_and_malformed_messages_are_refused() {
    let good = Control::Hello {
        instance: 1,
        has_yours: false,
        continues: false,
        joins: false,
        credential: b"abc",
    }
    .encode();
    assert!(Control::decode(&good).is_some());
    for cut in 0..good.len() {
        assert_eq!(Control::decode(&good[..cut]), None, "cut at {cut}");
    }
    let mut other = good.clone();
    other[0] = 2;
    assert_eq!(Control::decode(&other), None);
    let mut other = good.clone();
    other[1] = 9;
    assert_eq!(Control::decode(&other), None);
    let mut long = good;
    long.resize(MAX_MESSAGE + 1, 0);
    assert_eq!(Control::decode(&long), None);
    assert_eq!(Control::decode(&[VERSION, KIND_REFUSED, 0x1b, b'[']), None);
}

/// The rule for versions: fields are added at the end, and a receiver that does not know them reads
/// the rest.
#[test]
fn what_a_later_version_adds_is_passed_over() {
    let credential = [7; meshport_config::MAX_CREDENTIAL_BYTES];
    for message in [
        Control::Hello {
            instance: 1,
            has_yours: true,
            continues: false,
            joins: false,
            credential: &credential,
        },
        Control::Ack { instance: 9 },
        Control::Number { number: 7, wants_yours: true },
    ] {
        let mut longer = message.encode();
        longer.extend([1; MAX_ADDED]);
        assert_eq!(Control::decode(&longer), Some(message));
    }
}

#[test]
fn what_is_not_known_has_a_name_and_what_is_malformed_has_none() {
    let of = |bytes: &[u8]| unknown(bytes).unwrap_or_default();
    assert_eq!(of(&[VERSION, KIND_DUPLICATE + 1]), "control message 8");
    assert_eq!(of(&[VERSION + 1, KIND_HELLO, 0]), "control messages of version 2");
    for malformed in [&[][..], &[VERSION], &[VERSION, KIND_ACK, 0], &[VERSION, 0], &[0, 1]] {
        assert_eq!(Control::decode(malformed), None);
        assert_eq!(unknown(malformed), None, "{malformed:?}");
    }
}

#[test]
fn a_reason_is_cut_and_cleaned() {
    let reason = format!("bad\u{1b}[31m{}", "x".repeat(500));
    let bytes = Control::Refused { reason }.encode();
    let Some(Control::Refused { reason }) = Control::decode(&bytes) else { panic!("no refusal") };
    assert_eq!(reason.len(), MAX_REASON);
    assert!(reason.starts_with("bad[31mxxx"));
}

#[test]
fn a_hello_is_repeated_with_growing_gaps_and_then_given_up() {
    let start = start();
    let mut showing = Showing::default();
    assert_eq!(showing.due(), None);
    showing.session_up(start);
    let mut at = Vec::new();
    while let Some(due) = showing.due() {
        assert!(showing.take(due));
        assert!(!showing.take(due), "once per due time");
        at.push((due - start).as_millis());
    }
    assert_eq!(at.len(), HELLO_TRIES as usize);
    assert_eq!(at[..6], [0, 250, 750, 1750, 3750, 7750]);
    assert_eq!(at[6] - at[5], 5000);
}

#[test]
fn an_acknowledgement_ends_it_until_the_peer_asks_again() {
    let start = start();
    let mut showing = Showing::default();
    showing.session_up(start);
    assert!(showing.take(start));
    showing.acknowledged();
    assert_eq!(showing.due(), None);
    showing.session_up(start);
    assert_eq!(showing.due(), None, "a rekey needs no new hello");
    showing.wanted(start + Duration::from_millis(1));
    assert_eq!(showing.due(), Some(start + HELLO_MIN_GAP), "not faster than the bound");
}
