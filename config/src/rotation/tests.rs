use super::*;
use crate::testing::NOW;

const DAY: u64 = 86_400;

fn authority(number: u8) -> AuthorityKey {
    AuthorityKey::from_bytes([number; 32])
}

fn secret(number: u8) -> MeshSecret {
    MeshSecret::from_bytes([number; 32])
}

/// Secret `number` under that number, with a day of overlap.
fn next(number: u8) -> NextSecret {
    let until = NOW.saturating_add(DAY);
    NextSecret::issue(&authority(1), u64::from(number), secret(number), NOW, until)
}

fn is(secret: &MeshSecret, number: u8) -> bool {
    *secret.secret_bytes() == [number; 32]
}

/// Each part is public or a secret that is erased; a further part has to be put into these lists.
#[test]
fn the_secrets_of_a_rotation_are_erased_when_dropped() {
    fn erases_itself<T: Zeroize + ZeroizeOnDrop>(_: &T) -> bool {
        std::mem::needs_drop::<T>()
    }
    let next = next(1);
    let NextSecret { rotation: _, secret: following } = &next;
    assert!(erases_itself(following));
    assert!(erases_itself(&next.to_bytes().unwrap()) && erases_itself(&next.to_text().unwrap()));
    let mut bytes = SecretBytes([1; 32]);
    assert!(erases_itself(&bytes));
    bytes.zeroize();
    assert_eq!(bytes.0, [0; 32]);
    let first = MeshSecrets::from(secret(0));
    let both = first.take(&next, &authority(1).public()).unwrap().expect("it is newer");
    let MeshSecrets { current, rotation: _, former } = &both;
    assert!(erases_itself(current) && erases_itself(former.as_ref().expect("there is one")));
    assert!(erases_itself(&both.to_text()));
}

#[test]
fn one_secret_follows_the_other_with_overlap() {
    let mesh = authority(1).public();
    let first = MeshSecrets::from(secret(0));
    assert_eq!((first.number(), first.retires_at()), (0, None));
    assert!(first.next().is_none(), "there is nothing to tell");
    let mut second = first.take(&next(1), &mesh).unwrap().expect("it is newer");
    assert!(is(second.current(), 1) && is(second.former().unwrap(), 0));
    assert_eq!((second.number(), second.retires_at()), (1, Some(NOW.saturating_add(DAY))));
    assert!(second.take(&next(1), &mesh).unwrap().is_none(), "taken twice it is known");
    assert!(!second.retire(NOW.saturating_add(DAY - 1)));
    assert!(second.retire(NOW.saturating_add(DAY)) && second.former().is_none());
    assert!(!second.retire(NOW.saturating_add(DAY)), "once");
    let third = second.take(&next(2), &mesh).unwrap().expect("it is newer");
    assert!(is(third.current(), 2) && is(third.former().unwrap(), 1));
    assert!(third.take(&next(1), &mesh).unwrap().is_none(), "the number only grows");
}

#[test]
fn a_secret_from_a_newer_invite_is_known_by_its_hash() {
    let mesh = authority(1).public();
    let joined = MeshSecrets::from(secret(1));
    let told = joined.take(&next(1), &mesh).unwrap().expect("the number is news");
    assert!(is(told.current(), 1) && told.former().is_none());
    assert_eq!(told.number(), 1);
}

/// A clock that is ahead when the new secret arrives erases nothing that other nodes still use.
#[test]
fn an_overlap_that_is_over_ends_when_it_is_retired_and_not_before() {
    let mesh = authority(1).public();
    let late = NOW.saturating_add(2 * DAY);
    let mut taken = MeshSecrets::from(secret(0)).take(&next(1), &mesh).unwrap().unwrap();
    assert!(is(taken.current(), 1) && taken.former().is_some());
    assert!(taken.retire(late) && taken.former().is_none());
}

#[test]
fn an_operators_secret_is_refused_if_its_times_contradict_the_clock() {
    let mesh = authority(1).public();
    let taken = MeshSecrets::from(secret(0)).take(&next(1), &mesh).unwrap().unwrap();
    let end = NOW.0 + DAY;
    for right in [NOW.0 - MAX_CLOCK_SKEW_S, NOW.0, end - 1] {
        assert_eq!(taken.check_times(UnixSeconds(right)), Ok(()));
    }
    let early = UnixSeconds(NOW.0 - MAX_CLOCK_SKEW_S - 1);
    let ahead = Err(Error::RotationAhead { at: NOW, now: early });
    assert_eq!(taken.check_times(early), ahead);
    let end = UnixSeconds(end);
    assert_eq!(taken.check_times(end), Err(Error::RotationOver { retire_at: end, now: end }));
    assert_eq!(taken.without_former().check_times(end), Ok(()), "there is nothing to end");
}

#[test]
fn only_the_authority_rotates() {
    let (mesh, stranger) = (authority(1).public(), authority(2).public());
    let first = MeshSecrets::from(secret(0));
    assert!(matches!(first.take(&next(1), &stranger), Err(Error::ForeignMesh { .. })));
    let mut exchanged = next(1);
    exchanged.secret = secret(9);
    assert!(matches!(first.take(&exchanged, &mesh), Err(Error::Tampered { .. })));
    let mut later = next(1);
    later.rotation.retire_at = NOW.saturating_add(9 * DAY);
    assert!(matches!(first.take(&later, &mesh), Err(Error::Tampered { .. })));
    let mut higher = next(1);
    higher.rotation.number = 7;
    assert!(matches!(first.take(&higher, &mesh), Err(Error::Tampered { .. })));
}

#[test]
fn two_with_one_number_end_with_the_same_on_all_nodes() {
    let mesh = authority(1).public();
    let of = |key| NextSecret::issue(&authority(1), 1, secret(key), NOW, NOW.saturating_add(DAY));
    let ends = [[5, 6], [6, 5]].map(|order| {
        order.iter().fold(MeshSecrets::from(secret(0)), |held, key| {
            held.take(&of(*key), &mesh).unwrap().unwrap_or(held)
        })
    });
    assert_eq!(SecretId::of(ends[0].current()), SecretId::of(ends[1].current()));
}

#[test]
fn bytes_and_text_come_back() {
    let line = next(3).to_text().unwrap();
    assert!(line.starts_with("meshport-next-secret-1."), "{}", *line);
    let again = NextSecret::from_text(&line).unwrap();
    assert_eq!(*again.to_bytes().unwrap(), *next(3).to_bytes().unwrap());
    assert!(matches!(NextSecret::from_text(&secret(3).to_text()), Err(Error::WrongKind { .. })));
    let widest = NextSecret::issue(
        &authority(1),
        u64::MAX,
        secret(3),
        UnixSeconds(u64::MAX),
        UnixSeconds(u64::MAX),
    );
    assert!(widest.to_bytes().unwrap().len() <= MAX_NEXT_SECRET_BYTES);
    assert!(Rotation::from_text(&widest.rotation.to_text()).is_ok());

    let mesh = authority(1).public();
    let mut secrets = MeshSecrets::from(secret(0));
    for lines in [1, 4] {
        let text = secrets.to_text();
        assert_eq!(text.lines().count(), lines);
        let read: MeshSecrets = format!("{}\n", *text).parse().unwrap();
        assert_eq!(*read.to_text(), *text);
        secrets = secrets.take(&next(1), &mesh).unwrap().unwrap_or(secrets);
    }
    let text = secrets.to_text();
    let lines: Vec<&str> = text.lines().collect();
    assert!(format!("{}\n{}", *text, *secret(4).to_text()).parse::<MeshSecrets>().is_err());
    for count in 0..lines.len() {
        assert!(lines[..count].join("\n").parse::<MeshSecrets>().is_err(), "{count} lines");
    }
}

#[test]
fn nothing_secret_is_shown() {
    let (mesh, key) = (authority(1).public(), "0303");
    let secrets = MeshSecrets::from(secret(3)).take(&next(4), &mesh).unwrap().unwrap();
    let shown = format!("{secrets:?} {:?} {}", next(3), SecretId::of(&secret(3)));
    assert!(shown.contains("number: 1") || shown.contains("number: 4"), "{shown}");
    assert!(!shown.contains(key) && !shown.contains("3, 3"), "{shown}");
    assert_eq!(SecretId::of(&secret(3)).to_string().len(), 16);
}

#[test]
fn no_flipped_bit_is_believed() {
    let mesh = authority(1).public();
    let bytes = next(1).to_bytes().unwrap();
    for at in 0..bytes.len() * 8 {
        let mut flipped = bytes.to_vec();
        flipped[at / 8] ^= 1 << (at % 8);
        let believed = NextSecret::from_bytes(&flipped).is_ok_and(|it| it.verify(&mesh).is_ok());
        assert!(!believed, "bit {at}");
    }
    let secrets = MeshSecrets::from(secret(0)).take(&next(1), &mesh).unwrap().unwrap();
    let text = secrets.to_text();
    for at in 0..text.len() {
        let mut flipped = text.as_bytes().to_vec();
        flipped[at] ^= 1;
        let read = String::from_utf8(flipped).ok().and_then(|it| it.parse::<MeshSecrets>().ok());
        // The last letter of each line carries bits that belong to no byte.
        assert!(read.is_none_or(|read| *read.to_text() == *text), "byte {at}");
    }
}
