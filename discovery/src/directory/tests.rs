use proptest::prelude::*;

use super::*;
use crate::tests::{Member, Mesh, WALL, base};
use meshport_config::UnixSeconds;

/// Every record that a small invented mesh could ever produce: a few nodes, credentials issued
/// twice, several generations and versions, two different records with equal numbers, and a
/// farewell.
fn universe() -> Vec<Record> {
    let mesh = Mesh::new(1);
    let mut records = Vec::new();
    for number in 0..3 {
        let early = mesh.member(number, "a", "node,origin:kube-apiserver");
        let later = UnixSeconds(WALL.0 + 60);
        let late = mesh.member_issued(number, "b", "node", later);
        let credentials = [&early, &late].map(|it| Arc::new(it.credential.clone()));
        let mut states: Vec<Option<Arc<SignedState>>> = vec![None];
        for (generation, version, left) in
            [(1, 1, false), (1, 2, false), (1, 3, true), (2, 1, false), (2, 9, false)]
        {
            let mut state = early.state(generation, version);
            state.left = left;
            state.services = vec![("kube-apiserver".parse().unwrap(), OriginState::Ready)];
            states.push(Some(Arc::new(early.sign(state.clone()))));
            state.endpoints = vec!["10.0.0.1:1".parse().unwrap()];
            states.push(Some(Arc::new(early.sign(state))));
        }
        for credential in &credentials {
            for state in &states {
                let (credential, state) = (Arc::clone(credential), state.clone());
                records.push(Record { credential, state });
            }
        }
    }
    records
}

type Content = Vec<(Credential, Option<Vec<u8>>)>;

fn merged(records: &[Record], order: &[usize], now: Instant) -> (Content, u64) {
    let mut directory = Directory::new();
    for index in order {
        directory.merge(&records[index % records.len()], now);
    }
    (content(&directory), directory.root())
}

fn content(directory: &Directory) -> Content {
    let one = |(_, entry): (&NodeId, &Entry)| {
        let state = entry.state.as_ref().map(|state| state.as_bytes().to_vec());
        (Credential::clone(&entry.credential), state)
    };
    directory.iter().map(one).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Merging is commutative, associative and idempotent: any order, any grouping and any
    /// repetition of the same records give the same directory.
    #[test]
    fn merge_is_a_semilattice(
        order in prop::collection::vec(any::<usize>(), 0..40),
        shuffle in any::<prop::sample::Index>(),
        repeat in any::<prop::sample::Index>(),
    ) {
        thread_local!(static UNIVERSE: Vec<Record> = universe());
        UNIVERSE.with(|records| {
            let now = base();
            let straight = merged(records, &order, now);
            let mut turned = order.clone();
            turned.reverse();
            assert_eq!(merged(records, &turned, now), straight);
            if !order.is_empty() {
                let at = shuffle.index(order.len());
                let mut rotated = order.clone();
                rotated.rotate_left(at);
                assert_eq!(merged(records, &rotated, now), straight);
                let mut repeated = order.clone();
                repeated.push(order[repeat.index(order.len())]);
                assert_eq!(merged(records, &repeated, now), straight);
                // Two halves merged separately and then into each other.
                let (left, right) = order.split_at(at);
                let other = merged(records, right, now).0;
                let mut joined = Directory::new();
                for index in left {
                    joined.merge(&records[index % records.len()], now);
                }
                for (credential, state) in other {
                    let state = state.map(|bytes| {
                        let known = records.iter().filter_map(|it| it.state.as_ref());
                        Arc::clone(known.into_iter().find(|it| it.as_bytes() == bytes).unwrap())
                    });
                    joined.merge(&Record { credential: Arc::new(credential), state }, now);
                }
                assert_eq!((content(&joined), joined.root()), straight);
            }
        });
    }

    /// No record ever takes a node back.
    #[test]
    fn merge_never_goes_backward(order in prop::collection::vec(any::<usize>(), 1..40)) {
        thread_local!(static UNIVERSE: Vec<Record> = universe());
        UNIVERSE.with(|records| {
            let mut directory = Directory::new();
            for index in order {
                let record = &records[index % records.len()];
                let node = record.credential.node;
                let key = |directory: &Directory| {
                    let state = directory.get(&node).and_then(Entry::node_state);
                    state.map(NodeState::revision)
                };
                let before = key(&directory);
                directory.merge(record, base());
                assert!(key(&directory) >= before);
            }
        });
    }
}

fn record(member: &Member, generation: u64, version: u64) -> Record {
    let state = member.sign(member.state(generation, version));
    Record { credential: Arc::new(member.credential.clone()), state: Some(Arc::new(state)) }
}

#[test]
fn digests_follow_every_change_and_come_back() {
    let (mesh, now) = (Mesh::new(1), base());
    let member = mesh.member(1, "a", "node");
    let mut directory = Directory::new();
    let empty = directory.root();
    directory.merge(&record(&member, 1, 1), now);
    let known = directory.root();
    assert_ne!(known, empty);
    let node = member.credential.node;
    let life = Some(Life { generation: 1, renewal: 0 });
    directory.set_liveness(&node, Liveness::Alive, life, now);
    let alive = directory.root();
    directory.set_liveness(&node, Liveness::Down, life, now);
    let down = directory.root();
    directory.merge(&record(&member, 1, 2), now);
    let newer = directory.root();
    let all = BTreeSet::from([known, alive, down, newer, empty]);
    assert_eq!(all.len(), 5);
    directory.fade(&node);
    assert_eq!(directory.root(), empty, "a fading node is not told to others");
    assert!(directory.range(Short::FIRST, Short::LAST).next().is_none());
    directory.forget(&node, now);
    assert_eq!(directory.root(), empty);
    assert_eq!((directory.len(), directory.alive()), (0, 0));
}

#[test]
fn a_forgotten_node_stays_forgotten_until_it_says_something_new() {
    let (mesh, now) = (Mesh::new(1), base());
    let member = mesh.member(1, "a", "node");
    let node = member.credential.node;
    let mut directory = Directory::new();
    directory.merge(&record(&member, 3, 5), now);
    directory.forget(&node, now);
    assert_eq!(directory.merge(&record(&member, 3, 5), now), Merge::Forgotten);
    assert_eq!(directory.merge(&record(&member, 2, 9), now), Merge::Forgotten);
    assert!(directory.is_past(Short::of(&node), Revision { generation: 3, version: 5 }));
    assert!(!directory.is_past(Short::of(&node), Revision { generation: 3, version: 6 }));
    assert_eq!(directory.merge(&record(&member, 4, 1), now), Merge::New);
    directory.forget(&node, now);
    directory.welcome(&node);
    assert_eq!(directory.merge(&record(&member, 1, 1), now), Merge::New);
}

#[test]
fn origins_are_those_that_offer_and_may() {
    let (mesh, now) = (Mesh::new(1), base());
    let service: ServiceName = "kube-apiserver".parse().unwrap();
    let mut directory = Directory::new();
    for (number, roles) in [(1, "node"), (2, "node,origin:kube-apiserver"), (3, "node,relay")] {
        let member = mesh.member(number, "a", roles);
        let mut state = member.state(1, 1);
        if number != 3 {
            state.services = vec![(service.clone(), OriginState::Hung)];
        }
        let state = Some(Arc::new(member.sign(state)));
        directory.merge(&Record { credential: Arc::new(member.credential.clone()), state }, now);
    }
    let origins: Vec<_> =
        directory.origins(&service).map(|(entry, state)| (entry.node(), state)).collect();
    let expected = mesh.member(2, "a", "node").credential.node;
    assert_eq!(origins, [(expected, OriginState::Hung)]);
    assert_eq!(directory.services().collect::<Vec<_>>(), [&service]);
    // The service ends.
    let member = mesh.member(2, "a", "node,origin:kube-apiserver");
    directory.merge(&record(&member, 1, 2), now);
    assert!(directory.origins(&service).next().is_none());
    assert!(directory.services().next().is_none());
}

#[test]
fn short_ids_find_their_node() {
    let (mesh, now) = (Mesh::new(1), base());
    let mut directory = Directory::new();
    for number in 0..20 {
        directory.merge(&record(&mesh.member(number, "a", "node"), 1, 1), now);
    }
    for number in 0..20 {
        let node = mesh.member(number, "a", "node").credential.node;
        assert_eq!(directory.resolve(Short::of(&node)), Some(node));
    }
    assert_eq!(directory.resolve(Short([0xff; 8])), None);
    assert_eq!(directory.range(Short::FIRST, Short::LAST).count(), 20);
    assert_eq!(directory.range(Short::LAST, Short::FIRST).count(), 0);
}
