//! This release reads what the previous one wrote (tests/recorded).

use crate::{Credential, Invite, Revocation, Role, UnixSeconds};

/// Time of the recording, in seconds.
const THEN: UnixSeconds = UnixSeconds(1_795_811_700);

#[test]
fn a_credential_an_invite_and_revocations_of_the_release_before() {
    let text = include_str!("../../tests/recorded/credential").trim();
    let credential = Credential::from_text(text).expect("a credential");
    assert_eq!(credential.to_text(), text);
    credential.verify(&credential.mesh, THEN).expect("it is good");
    assert_eq!((credential.name.as_str(), credential.site.as_str()), ("worker", "fra"));
    assert!(credential.roles.contains(&Role::Relay) && credential.succession.is_some());
    let text = include_str!("../../tests/recorded/invite").trim();
    let invite = Invite::parse(text).expect("an invite");
    invite.verify(invite.delegation.grant.not_before).expect("it is signed");
    assert_eq!(*invite.to_text().expect("a text form"), text);
    assert_eq!(*invite.mesh(), credential.mesh);
    assert_eq!(invite.seeds.len(), 1);
    let lines = include_str!("../../tests/recorded/revocations").lines();
    let lines = lines.filter(|line| line.starts_with("meshport-"));
    let of = |line: &str| {
        let line = line.split_once(' ').map_or(line, |(line, _)| line);
        let revocation = Revocation::from_text(line).expect("a revocation");
        revocation.verify(&credential.mesh).expect("it is signed");
        // It is passed on unchanged.
        assert_eq!(revocation.to_text(), line);
        revocation.successor().is_some()
    };
    let mut successions: Vec<bool> = lines.map(of).collect();
    successions.sort_unstable();
    assert_eq!(successions, [false, true]);
}
