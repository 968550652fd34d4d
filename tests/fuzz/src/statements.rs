//! Input from people and files: credentials, revocations, invites, settings.

use meshport_config::fuzzing::{Script, invite_line};
use meshport_config::{
    Credential, Defaults, Invite, Join, MAX_INVITE_BYTES, Mandate, MeshSecret, MeshSecrets,
    NextSecret, NodeKey, RecordKey, Revocation, Revocations, Seed, parse, parse_leniently,
};

use crate::authority::{NOW, authority};

/// Credentials and revocations: one value has one byte form, text and bytes agree, and a statement
/// of the authority verifies as it is, but not with any bit changed.
pub fn credential(data: &[u8]) {
    let mut script = Script::new(data);
    match script.byte() % 4 {
        0 => any_credential(script.all()),
        1 => any_revocation(script.all()),
        2 => any_text(&String::from_utf8_lossy(script.all())),
        _ => {
            let (flip, bit) = (script.short(), script.byte() % 8);
            let good = crate::authority::credential(script.all());
            changed(&good, flip, bit);
            if let Some(end) = good.ends_former() {
                changed_end(&good, &end, flip, bit);
            }
        }
    }
}

fn any_credential(bytes: &[u8]) {
    let Ok(read) = Credential::from_bytes(bytes) else { return };
    assert_eq!(read.to_bytes(), bytes, "one credential has two byte forms");
    assert_eq!(Credential::from_text(&read.to_text()).as_ref(), Ok(&read));
    // Only the authority of the corpus could have signed it.
    if read.verify(&authority().public(), NOW).is_ok() {
        assert_eq!(read.mesh, authority().public());
    }
}

fn any_revocation(bytes: &[u8]) {
    let Ok(read) = Revocation::from_bytes(bytes) else { return };
    assert_eq!(read.to_bytes(), bytes, "one revocation has two byte forms");
    assert_eq!(Revocation::from_text(&read.to_text()).as_ref(), Ok(&read));
    let mut all = Revocations::default();
    all.add(read.clone());
    all.add(read.clone());
    assert_eq!((all.iter().count(), all.get(&read.revoked)), (1, Some(&read)));
    // Only the authority or the previous node of the corpus could have signed it, in a seed.
    if read.verify(&authority().public()).is_ok() {
        assert!(all.by_authority().count() == 1 || read.successor().is_some());
    }
}

fn any_text(text: &str) {
    if let Ok(read) = Credential::from_text(text) {
        assert_eq!(read.to_text(), text.trim());
    }
    if let Ok(read) = Revocation::from_text(text) {
        assert_eq!(read.to_text(), text.trim());
    }
    if let Ok(read) = NextSecret::from_text(text) {
        assert_eq!(*read.to_text().expect("it is within its bounds"), text.trim());
        let taken = MeshSecrets::from(MeshSecret::from_bytes([6; 32]));
        // Only the authority of the corpus could have signed it.
        let taken = taken.take(&read, &authority().public());
        assert_eq!(taken.is_ok(), read.verify(&authority().public()).is_ok());
    }
}

/// A credential that is good, and the same with one bit changed.
fn changed(good: &Credential, flip: u16, bit: u8) {
    let mesh = authority().public();
    assert_eq!(good.verify(&mesh, NOW), Ok(()), "a good credential is refused");
    let mut bytes = good.to_bytes();
    let at = usize::from(flip) % bytes.len();
    bytes[at] ^= 1 << bit;
    if let Ok(other) = Credential::from_bytes(&bytes) {
        assert!(other.verify(&mesh, NOW).is_err(), "a changed credential is believed");
    }
}

/// The former node's agreement, which ends that node and not its successor, and the same with one
/// bit changed.
fn changed_end(good: &Credential, end: &Revocation, flip: u16, bit: u8) {
    let mesh = authority().public();
    assert_eq!(end.verify(&mesh), Ok(()), "a good agreement is refused");
    assert_eq!(end.successor(), Some(good.node));
    assert!(!end.covers(good), "a successor is ended by its own credential");
    let mut bytes = end.to_bytes();
    let at = usize::from(flip) % bytes.len();
    bytes[at] ^= 1 << bit;
    if let Ok(other) = Revocation::from_bytes(&bytes) {
        assert!(other.verify(&mesh).is_err(), "a changed agreement is believed");
    }
}

/// Invites, mandates and seeds: a line that parses is written out unchanged, and a node that joins
/// or is renewed with it gets no more than it allows.
pub fn invite(data: &[u8]) {
    let mut script = Script::new(data);
    let line = match script.byte() % 4 {
        3 => return mandate(&mut script),
        0 => String::from_utf8_lossy(script.all()).into_owned(),
        1 => invite_line(script.all()),
        _ => return seed(&String::from_utf8_lossy(script.all())),
    };
    let Ok(invite) = Invite::parse(&line) else { return };
    let text = invite.to_text().expect("what was read is within its bounds");
    assert_eq!(*text, line.trim(), "one invite has two lines");
    assert!(text.len() <= 2 * MAX_INVITE_BYTES);
    let join = Join {
        name: Some("worker-1".parse().expect("a name")),
        site: Some("fra".parse().expect("a site")),
        ..Join::default()
    };
    let keys = (NodeKey::from_bytes([2; 32]), RecordKey::from_bytes([3; 32]));
    if let Ok(credential) = invite.accept(&keys.0, &keys.1, join, NOW) {
        assert_eq!(credential.verify(invite.mesh(), NOW), Ok(()));
        let mut all = Revocations::default();
        all.add(Revocation::issue(&authority(), invite.revoked(), NOW));
        assert!(all.covering(&credential).is_some(), "its revocation does not cover it");
    }
}

/// A mandate by its text, asked to renew a credential of the corpus's authority.
fn mandate(script: &mut Script<'_>) {
    let choices: Vec<u8> = (0..6).map(|_| script.byte()).collect();
    let text = String::from_utf8_lossy(script.all());
    let Ok(mandate) = Mandate::from_text(&text) else { return };
    assert_eq!(*mandate.to_text().expect("it is within its bounds"), text.trim());
    let mesh = authority().public();
    // Only the authority of the corpus could have signed it.
    if mandate.verify(&mesh).is_err() {
        return;
    }
    let present = crate::authority::credential(&choices);
    let Ok(issued) = mandate.renew(&present, NOW) else { return };
    let next = issued.content();
    assert_eq!((next.node, &next.roles, &next.site), (present.node, &present.roles, &present.site));
    assert!(next.issued_at > present.issued_at, "it would not count");
    let ends = next.issued_at.saturating_add(mandate.lifetime_s());
    assert!(next.expires_at <= ends, "it is valid for longer than the mandate allows");
}

fn seed(text: &str) {
    let Ok(seed) = text.parse::<Seed>() else { return };
    assert_eq!(seed.to_string().parse().as_ref(), Ok(&seed));
}

/// The settings file: settings that parse mean the same when they are written out, and problems
/// have a place.
pub fn config(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let strict = parse(&text);
    let (lenient, problems) = parse_leniently(&text, &Defaults::default());
    match &strict {
        Ok(settings) => {
            assert_eq!(lenient.as_ref(), Some(settings));
            let effective = settings.to_toml();
            assert_eq!(parse(&effective).as_ref(), Ok(settings), "{effective}");
        }
        Err(list) => {
            assert!(!list.is_empty() && !problems.is_empty());
            for problem in list {
                assert!(problem.line >= 1 && problem.line <= text.lines().count() + 1);
                assert_eq!(problem.to_string().lines().count(), 1);
            }
        }
    }
}
