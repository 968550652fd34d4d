use std::time::Duration;

use super::*;
use crate::core::{Discovery, Event};
use crate::tests::{Member, Mesh, WALL, base};
use crate::wire::{Item, Message};
use crate::{DiscoveryConfig, Liveness, Setup};

fn node(mesh: &Mesh, number: u32) -> Discovery {
    discovery(&mesh.member(number, "a", "node"))
}

fn discovery(member: &Member) -> Discovery {
    Discovery::new(DiscoveryConfig::default(), member.local(), 1, [3; 32], base())
}

/// A node that knows some others, two of them with records, one of which has left.
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
            let item =
                Item { state: Some(signed.as_bytes()), ..Item::about(&member.credential.node) };
            let bytes = Message::News(item).encode().unwrap();
            node.handle_datagram(member.credential.node, &bytes, base(), WALL);
        }
    }
    node
}

/// Written by the previous release (tests/recorded).
#[test]
fn a_directory_of_the_release_before_is_read() {
    let bytes = include_bytes!("../../../tests/recorded/directory");
    let mesh = MeshId::from_bytes(read(bytes).expect("a directory").mesh);
    let members = members_of(bytes, &mesh, UnixSeconds(1_795_811_700)).expect("a directory");
    let mut names: Vec<&str> = members.iter().map(|it| it.credential.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["cp-1", "worker"]);
    assert!(members.iter().all(|it| !it.endpoints.is_empty()), "each with its record");
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
    assert_eq!(wanted.len(), 3, "a node that left is not wanted");
}

#[test]
fn a_program_without_a_directory_reads_a_snapshot() {
    let mesh = Mesh::new(1);
    let bytes = informed(&mesh).snapshot();
    let id = mesh.member(1, "a", "node").credential.mesh;
    let members = members_of(&bytes, &id, WALL).expect("whole");
    let of = |number| {
        let node = mesh.member(number, "a", "node").credential.node;
        let found = members.iter().find(|it| it.credential.node == node).expect("known");
        (found.endpoints.len(), found.is_away)
    };
    assert_eq!((members.len(), of(2), of(3), of(4)), (5, (1, false), (1, true), (0, false)));
    let much_later = UnixSeconds(WALL.0 + 3 * 365 * 24 * 3600);
    assert!(members_of(&bytes, &id, much_later).expect("whole").is_empty());
    let other = Mesh::new(2).member(1, "a", "node").credential.mesh;
    assert!(matches!(members_of(&bytes, &other, WALL), Err(DiscoveryError::SnapshotForeign)));
    assert!(members_of(&bytes[..bytes.len() - 1], &id, WALL).is_err());
}

#[test]
fn a_leaf_whose_seeds_are_all_down_asks_members_of_the_saved_directory() {
    let mesh = Mesh::new(1);
    let bytes = informed(&mesh).snapshot();
    let me = mesh.member(9, "a", "operator").local();
    let leaf_of = Some(vec![meshport_config::ServiceName::kube_apiserver()]);
    let setup = Setup { leaf_of, ..Setup::default() };
    let mut leaf = Discovery::new(setup, me, 1, [3; 32], base());
    let seeds = (100..108).map(|number| mesh.member(number, "b", "node").credential.node);
    leaf.set_seeds(seeds.collect(), base());
    leaf.restore(&bytes, base(), WALL).expect("whole");
    let second = mesh.member(2, "a", "node").credential.node;
    let is_asked = (0..20).any(|step| {
        leaf.handle_timeout(base() + Duration::from_millis(500) * step, WALL);
        std::iter::from_fn(|| leaf.poll_transmit()).any(|transmit| transmit.to == second)
    });
    assert!(is_asked, "dead seeds take all places for 10 s");
}

/// They return if it was the clock that was wrong.
#[test]
fn credentials_that_ran_out_meanwhile_are_left_out() {
    let mesh = Mesh::new(1);
    let bytes = informed(&mesh).snapshot();
    let mut fresh = node(&mesh, 1);
    let much_later = UnixSeconds(WALL.0 + 3 * 365 * 24 * 3600);
    assert_eq!(fresh.restore(&bytes, base(), much_later), Ok(0));
    assert_eq!(fresh.directory().len(), 1);
    fresh.handle_timeout(base(), WALL);
    assert_eq!(fresh.directory().len(), informed(&mesh).directory().len());
}

#[test]
fn damage_another_version_and_another_mesh_are_distinguished() {
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

/// Every content with one bit flipped, and every beginning of it.
fn damages(content: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let flips = (0..content.len()).flat_map(|at| (0..8).map(move |bit| (at, bit)));
    let flipped = flips.map(|(at, bit)| {
        let mut damaged = content.to_vec();
        damaged[at] ^= 1 << bit;
        damaged
    });
    flipped.chain((0..content.len()).map(|length| content[..length].to_vec()))
}

/// Any content with a valid checksum.
fn sealed(content: &[u8]) -> Vec<u8> {
    let mut bytes = [&MAGIC[..], &[FORMAT], content].concat();
    let checksum = Sha256::digest(&bytes);
    bytes.extend_from_slice(&checksum);
    bytes
}

#[test]
fn no_flipped_bit_and_no_missing_end_restores_anything() {
    let mesh = Mesh::new(1);
    let good = informed(&mesh).snapshot();
    let mut fresh = node(&mesh, 1);
    for damaged in damages(&good) {
        let refused = fresh.restore(&damaged, base(), WALL);
        assert!(matches!(refused, Err(DiscoveryError::SnapshotDamaged { .. })), "{refused:?}");
        let said = refused.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(said.contains("no action needed") && !said.contains("delete"), "{said}");
    }
    assert_eq!(fresh.directory().len(), 1, "nothing was restored");
    assert_eq!(fresh.restore(&good, base(), WALL), Ok(4));
}

/// Damage that no disk causes, but an attacker who knows the format can.
#[test]
fn damage_under_a_good_checksum_restores_nothing_that_was_not_signed() {
    let mesh = Mesh::new(1);
    let mut small = node(&mesh, 1);
    let member = mesh.member(2, "a", "node");
    small.handle_credential(&member.credential, base(), WALL);
    let record = member.sign(member.state(1, 1));
    let news = Message::News(Item {
        state: Some(record.as_bytes()),
        ..Item::about(&member.credential.node)
    });
    let bytes = news.encode().unwrap();
    small.handle_datagram(member.credential.node, &bytes, base(), WALL);
    let good = small.snapshot();
    let signed = |directory: &Directory| {
        let entry = |node: &Member| {
            let entry = directory.get(&node.credential.node)?;
            Some(((*entry.credential).clone(), entry.state.clone()))
        };
        entry(&member)
    };
    let (credential, state) = signed(small.directory()).expect("it is known");
    assert!(state.is_some(), "it told its record");
    let (mut refused, mut less, mut same) = (0, 0, 0);
    for damaged in damages(&good[HEADER..good.len() - CHECKSUM]) {
        let mut fresh = node(&mesh, 1);
        if fresh.restore(&sealed(&damaged), base(), WALL).is_err() {
            refused += 1;
            assert_eq!(fresh.directory().len(), 1);
            continue;
        }
        assert!(fresh.directory().len() <= 2, "a node was made up");
        match signed(fresh.directory()) {
            None => less += 1,
            Some(found) => {
                same += 1;
                assert_eq!(found.0, credential);
                assert!(found.1.is_none() || found.1 == state, "a record that nobody signed");
            }
        }
    }
    println!("{refused} refused, {less} without the member, {same} with it as it was signed");
    assert!(refused > 0 && less > 0 && same > 0);
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
