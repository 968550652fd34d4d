use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::core::{Discovery, Event, LocalNode};
use crate::tests::{Member, Mesh, WALL, base};
use crate::{DiscoveryConfig, Liveness};

fn node(mesh: &Mesh, number: u32) -> Discovery {
    discovery(mesh.member(number, "a", "node"))
}

fn discovery(member: Member) -> Discovery {
    let record_key = member.record_key();
    let me = LocalNode { credential: member.credential, record_key };
    Discovery::new(DiscoveryConfig::default(), me, 1, [3; 32], base())
}

/// A node that knows some others, two of them with records, one of those gone.
fn informed(mesh: &Mesh) -> Discovery {
    let mut node = node(mesh, 1);
    for number in 2..6 {
        let member = mesh.member(number, "a", "node");
        node.handle_credential(&member.credential, base(), WALL);
        if number < 4 {
            let mut state = member.state(1, 1);
            state.left = number == 3;
            state.endpoints = vec!["10.0.0.1:51820".parse().unwrap()];
            let signed = member.sign(state);
            let item = crate::wire::Item {
                short: crate::wire::Short::of(&member.credential.node),
                credential: None,
                state: Some(signed.as_bytes()),
                claim: None,
            };
            let bytes = crate::wire::Message::News(item).encode().unwrap();
            node.handle_datagram(member.credential.node, &bytes, base(), WALL);
        }
    }
    node
}

#[test]
fn a_snapshot_brings_back_records_and_asks_for_peers() {
    let mesh = Mesh::new(1);
    let bytes = informed(&mesh).snapshot();
    let mut fresh = node(&mesh, 1);
    assert_eq!(fresh.restore(&bytes, base(), WALL), Ok(4));
    assert_eq!(fresh.directory().len(), 5);
    let liveness = |number| {
        let node = mesh.member(number, "a", "node").credential.node;
        fresh.directory().get(&node).unwrap().liveness
    };
    assert_eq!(
        (liveness(2), liveness(3), liveness(4)),
        (Liveness::Unknown, Liveness::Left, Liveness::Unknown)
    );
    let mut wanted = Vec::new();
    while let Some(event) = fresh.poll_event() {
        if let Event::PeerWanted { node, endpoints, .. } = event {
            wanted.push((node, endpoints.len()));
        }
    }
    let second = mesh.member(2, "a", "node").credential.node;
    assert!(wanted.contains(&(second, 1)));
    assert_eq!(wanted.len(), 3, "whoever left is not wanted");
}

#[test]
fn credentials_that_ran_out_meanwhile_are_left_out() {
    let mesh = Mesh::new(1);
    let bytes = informed(&mesh).snapshot();
    let mut fresh = node(&mesh, 1);
    let much_later = UnixSeconds(WALL.0 + 3 * 365 * 24 * 3600);
    assert_eq!(fresh.restore(&bytes, base(), much_later), Ok(0));
    assert_eq!(fresh.counters().rejected_credentials, 5);
}

#[test]
fn damage_another_version_and_another_mesh_are_told_apart() {
    let (mesh, now) = (Mesh::new(1), base());
    let good = informed(&mesh).snapshot();
    let mut fresh = node(&mesh, 1);
    let mut restore = |bytes: &[u8]| fresh.restore(bytes, now, WALL).unwrap_err();
    let damaged = |error: DiscoveryError| matches!(error, DiscoveryError::SnapshotDamaged { .. });
    assert!(damaged(restore(&[])));
    assert!(damaged(restore(&good[..good.len() - 1])));
    assert!(damaged(restore(&good[1..])));
    for at in [0, HEADER, good.len() / 2, good.len() - 1] {
        let mut flipped = good.clone();
        flipped[at] ^= 1;
        assert!(damaged(restore(&flipped)));
    }
    let mut other = good[..good.len() - CHECKSUM].to_vec();
    other[MAGIC.len()] = 9;
    other.extend(Sha256::digest(&other));
    assert_eq!(restore(&other), DiscoveryError::SnapshotVersion { found: 9, expected: FORMAT });
    let foreign = informed(&Mesh::new(2)).snapshot();
    assert_eq!(restore(&foreign), DiscoveryError::SnapshotForeign);
    assert_eq!(fresh.directory().len(), 1, "nothing was restored");
}

#[test]
fn how_long_a_node_has_been_gone_survives_the_restart() {
    let (mesh, start) = (Mesh::new(1), base());
    let mut node_before = informed(&mesh);
    let later = start + Duration::from_secs(3600);
    node_before.handle_timeout(later, UnixSeconds(WALL.0 + 3600));
    let bytes = node_before.snapshot();
    let mut fresh = node(&mesh, 1);
    let now = later + Duration::from_secs(48 * 3600);
    fresh.restore(&bytes, now, UnixSeconds(WALL.0 + 7200)).unwrap();
    let gone = mesh.member(3, "a", "node").credential.node;
    let since = fresh.directory().get(&gone).unwrap().since;
    let age = (now - since).as_secs();
    assert!((7190..=7210).contains(&age), "an hour before saving and one after: {age} s");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn arbitrary_bytes_never_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..400),
        sealed: bool,
    ) {
        let mut fresh = node(&Mesh::new(1), 1);
        let mut bytes = [&MAGIC[..], &[FORMAT], &bytes].concat();
        if sealed {
            // A good checksum around nonsense reaches the parser.
            let checksum = Sha256::digest(&bytes);
            bytes.extend(checksum);
        }
        let _ = fresh.restore(&bytes, base(), WALL);
    }

    #[test]
    fn altered_content_with_a_good_checksum_never_panics(at: prop::sample::Index, to: u8) {
        let mesh = Mesh::new(1);
        thread_local!(static GOOD: Vec<u8> = informed(&Mesh::new(1)).snapshot());
        let good = GOOD.with(Clone::clone);
        let mut bytes = good[..good.len() - CHECKSUM].to_vec();
        let at = HEADER + at.index(bytes.len() - HEADER);
        bytes[at] = to;
        let checksum = Sha256::digest(&bytes);
        bytes.extend(checksum);
        let mut fresh = node(&mesh, 1);
        let _ = fresh.restore(&bytes, base(), WALL);
        prop_assert!(fresh.directory().len() <= 5);
    }
}
