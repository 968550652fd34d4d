use super::*;
use crate::tests::Mesh;

fn claim() -> Claim {
    Claim { life: Life { generation: 3, renewal: 1 }, incarnation: 7, standing: Standing::Suspect }
}

fn item<'a>(number: u8) -> Item<'a> {
    Item { short: Short([number; 8]), credential: None, state: None, claim: Some(claim()) }
}

fn wanted(number: u8) -> Wanted {
    Wanted { short: Short([number; 8]), with_credential: number == 1 }
}

#[test]
fn every_kind_of_datagram_reads_back() {
    let have = Have {
        short: Short([5; 8]),
        revision: Revision { generation: 1 << 40, version: 9 },
        digest: [1, 2, 3, 4],
        life: Some(LastLife { life: Life::default(), is_over: true }),
    };
    let haves = Haves { from: Short::FIRST, to: Short::LAST, entries: vec![have] };
    let digests = [7; (BUCKETS + 1) * 8];
    for message in [
        Message::Swim(&[1, 2, 3]),
        Message::Root([9; 8]),
        Message::Summary(&digests),
        Message::Revoked(vec![&[3; 140]; 7]),
        Message::Revocations([4; 8]),
        Message::Haves(haves),
        Message::Want(vec![wanted(1), wanted(2)]),
        Message::Items(vec![item(1)]),
        Message::Rumours(vec![Item {
            state: Some(&[1; 300]),
            credential: Some(&[2; 400]),
            ..item(2)
        }]),
        Message::News(item(3)),
        Message::NewsSeen(Revision { generation: 1, version: u64::MAX }),
        Message::Probe([1; 8]),
        Message::Echo([2; 8]),
        Message::WideProbe(Wide::of([1; 8])),
        Message::WideEcho(Wide::of([2; 8])),
        Message::SplitProbe(Wide::split([1; 8])),
        Message::SplitEcho(Wide::split([2; 8])),
        Message::Same,
    ] {
        let bytes = message.encode().unwrap();
        assert_eq!(bytes[0], VERSION);
        assert_eq!(Message::decode(&bytes), Ok(message));
        let longer = [&bytes[..], &[0]].concat();
        assert_eq!(Message::decode(&longer), Err(BadDatagram::Malformed), "a trailing byte");
    }
}

#[test]
fn structs_travel_as_their_fields_and_nothing_else() {
    let want = Message::Want(vec![wanted(1)]).encode().unwrap();
    assert_eq!(want, [&[VERSION, 4, 1][..], &[1; 8], &[1]].concat());
    let revision = Revision { generation: 3, version: 200 };
    assert_eq!(Message::NewsSeen(revision).encode().unwrap(), [VERSION, 8, 3, 200, 1]);
    let life = Some(LastLife { life: Life { generation: 5, renewal: 6 }, is_over: true });
    let have = Have { short: Short([7; 8]), revision, digest: [9; 4], life };
    let haves = Haves { from: Short::FIRST, to: Short::LAST, entries: vec![have] };
    let entry = [&[7; 8][..], &[3, 200, 1], &[9; 4], &[1, 5, 6, 1]].concat();
    let bytes = [&[VERSION, 3][..], &[0; 8], &[255; 8], &[1], &entry].concat();
    assert_eq!(Message::Haves(haves).encode().unwrap(), bytes);
}

#[test]
fn families_follow_the_kinds() {
    let of = |message: Message<'_>| family(&message.encode().unwrap());
    assert_eq!(of(Message::Swim(&[])), Family::Swim);
    assert_eq!(of(Message::Root([0; 8])), Family::Sync);
    assert_eq!(of(Message::Items(vec![])), Family::Sync);
    assert_eq!(of(Message::Same), Family::Sync);
    assert_eq!(of(Message::Rumours(vec![])), Family::News);
    assert_eq!(of(Message::News(item(1))), Family::News);
    assert_eq!(of(Message::NewsSeen(Revision::default())), Family::News);
    assert_eq!(of(Message::Probe([0; 8])), Family::Path);
    assert_eq!(of(Message::Echo([0; 8])), Family::Path);
    assert_eq!(of(Message::WideProbe(Wide::of([0; 8]))), Family::Path);
    assert_eq!(of(Message::WideEcho(Wide::of([0; 8]))), Family::Path);
    assert_eq!(of(Message::Unacknowledged), Family::Path);
}

#[test]
fn what_is_too_large_or_of_another_version_is_refused() {
    assert_eq!(Message::Swim(&[0; FORMER_MAX_DATAGRAM]).encode(), None);
    assert_eq!(Message::decode(&[0; WIDE_DATAGRAM + 1]), Err(BadDatagram::Malformed));
    // Well-formed except for its length, which only width probes may have.
    let long = [&[VERSION, 0, 0xa1, 0x09][..], &[0; 1185]].concat();
    assert_eq!(Message::decode(&long), Err(BadDatagram::Malformed));
    assert!(Message::decode(&[&[VERSION, 0, 0x90, 0x09][..], &[0; 1168]].concat()).is_ok());
    assert_eq!(Message::decode(&[]), Err(BadDatagram::Malformed));
    let mut probe = Message::Probe([1; 8]).encode().unwrap();
    probe[0] = VERSION + 1;
    assert_eq!(Message::decode(&probe), Err(BadDatagram::Version(VERSION + 1)));
    let mut probe = Message::Probe([1; 8]).encode().unwrap();
    for kind in [20, 127, 255] {
        probe[1] = kind;
        assert_eq!(Message::decode(&probe), Err(BadDatagram::Kind(kind)));
    }
    let bytes = Message::Want(vec![wanted(1); MAX_WANTED + 1]).encode().unwrap();
    assert_eq!(Message::decode(&bytes), Err(BadDatagram::Malformed));
    let wide = Message::WideProbe(Wide::of([1; 8])).encode().unwrap();
    assert_eq!((wide.len(), kind(&wide)), (WIDE_DATAGRAM, "wide-probe"));
    let split = Message::SplitProbe(Wide::split([1; 8])).encode().unwrap();
    assert_eq!((split.len(), kind(&split)), (SPLIT_DATAGRAM, "split-probe"));
    let swapped = Message::SplitProbe(Wide::of([1; 8])).encode();
    assert_eq!(swapped, None);
    let swapped = Message::WideEcho(Wide::split([1; 8])).encode().unwrap();
    assert_eq!(Message::decode(&swapped), Err(BadDatagram::Malformed));
    let word = Message::Unacknowledged.encode().unwrap();
    assert_eq!((word.len(), kind(&word)), (2, "unacknowledged"));
    let narrow = Message::WideProbe(Wide { nonce: [1; 8], padding: &[0; 100] });
    assert_eq!(Message::decode(&narrow.encode().unwrap()), Err(BadDatagram::Malformed));
    let short_summary = Message::Summary(&[1; 8]).encode().unwrap();
    assert_eq!(Message::decode(&short_summary), Err(BadDatagram::Malformed));
}

#[test]
fn lists_must_be_sorted_and_within_their_range() {
    let have = |first: u8| Have {
        short: Short([first; 8]),
        revision: Revision { generation: 1, version: 1 },
        digest: [0; 4],
        life: None,
    };
    let decodes = |entries: Vec<Have>| {
        let haves = Haves { from: Short([2; 8]), to: Short([9; 8]), entries };
        Message::decode(&Message::Haves(haves).encode().unwrap()).is_ok()
    };
    assert!(decodes(vec![have(2), have(5), have(9)]));
    assert!(!decodes(vec![have(5), have(5)]));
    assert!(!decodes(vec![have(5), have(3)]));
    assert!(!decodes(vec![have(1)]));
    assert!(!decodes(vec![have(10)]));
}

#[test]
fn buckets_cover_all_ids_without_overlap() {
    let mut expected = Short::FIRST;
    for bucket in 0..BUCKETS {
        let (low, high) = Short::bounds(bucket);
        assert_eq!(low, expected);
        assert_eq!((low.bucket(), high.bucket()), (bucket, bucket));
        expected = Short((u64::from_be_bytes(high.0).wrapping_add(1)).to_be_bytes());
        assert_eq!(expected.before(), if bucket + 1 < BUCKETS { high } else { Short::FIRST });
    }
    assert_eq!(expected, Short::FIRST, "the last bucket ends at the last id");
}

#[test]
fn large_items_are_split_and_limits_are_kept() {
    let (credential, state) = ([1; meshport_config::MAX_CREDENTIAL_BYTES], [2; 1024]);
    let large = Item { credential: Some(&credential), state: Some(&state), ..item(1) };
    let Packed { datagrams, items } = pack([large, large, item(2)], Message::Items, 16);
    assert_eq!((datagrams.len(), items), (4, 3));
    assert!(datagrams.iter().all(|it| it.len() <= MAX_DATAGRAM && Message::decode(it).is_ok()));
    let Packed { datagrams, items } = pack([large, large], Message::Items, 3);
    assert_eq!((datagrams.len(), items), (3, 1), "the second does not fit whole");
    let many = (0..200).map(item);
    let Packed { datagrams, items } = pack(many, Message::Rumours, 1);
    assert_eq!(datagrams.len(), 1);
    assert!((30..200).contains(&items), "{items}");
}

#[test]
fn a_full_record_fits_one_datagram() {
    let member = Mesh::new(1).member(1, "a-site", "node,origin:kube-apiserver,relay");
    let mut state = member.state(u64::MAX, u64::MAX);
    state.endpoints = vec!["[2001:db8:1:2:3:4:5:6]:65535".parse().unwrap(); crate::MAX_ENDPOINTS];
    let far = |number: u8| crate::Distance {
        origin: NodeId::from_bytes([number; 32]),
        rtt_us: Some(u32::MAX - u32::from(number)),
        loss_percent: 100,
    };
    state.distances = (0..16).map(far).collect();
    let service =
        |number: u32| (format!("{number:0>63}").parse().unwrap(), crate::OriginState::Ready);
    state.services = (0..2).map(service).collect();
    let signed = member.sign(state);
    assert!(signed.as_bytes().len() <= crate::MAX_STATE_BYTES);
    assert!(signed.get().distances.len() < 16, "the farthest were left out");
    assert!(signed.get().distances.iter().any(|it| it.origin == NodeId::from_bytes([15; 32])));
    let item = Item { state: Some(signed.as_bytes()), ..item(1) };
    assert!(Message::News(item).encode().is_some());
}
