//! Paths that lose long packets, and fragments.

use super::*;
use crate::core::send::udp_packet;
use crate::inner::{self, Flow};
use crate::{MAX_DATAGRAM, NARROWEST_MTU};

/// Bytes of the outer IPv6 and UDP headers.
const OUTER: usize = 48;
/// How long a peer splits after the last demand.
const HOLD_S: u64 = 40;

/// Two nodes with a session, on a path that from now on loses what is longer than `mtu`.
fn narrow(mtu: usize) -> Net {
    let mut net = Net::new(2);
    net.connect(1, 2);
    net.keep = Box::new(move |sent| sent.bytes.len() + OUTER <= mtu);
    net
}

/// Sends QUIC datagrams in one batch, delivers them, and returns those that arrived and the number
/// of outer datagrams.
fn streams(net: &mut Net, from: u8, to: u8, lengths: &[usize]) -> (Vec<usize>, usize) {
    let (segment, count) = (lengths[0], lengths.len());
    let bytes: Vec<u8> = (0..lengths.iter().sum()).map(|at: usize| (at % 253) as u8).collect();
    let address = net.nodes[&at(to)].address();
    let mut out = vec![0xaa; 7];
    let datagrams = Datagrams { bytes: &bytes, segment };
    let batch =
        net.node(from, |core, now| core.seal_streams(now, &address, datagrams, &mut out, 7));
    let StreamBatch { length, stride, .. } = batch.expect("a session");
    net.streams.clear();
    let outer: Vec<Vec<u8>> = out[7..][..length].chunks(stride).map(<[u8]>::to_vec).collect();
    for bytes in &outer {
        let (from, to) = (at(from), at(to));
        let sent = Sent { at: net.now.instant, from, to, bytes: bytes.clone() };
        if (net.keep)(&sent) {
            net.deliver(from, to, bytes);
        }
    }
    net.pump();
    let arrived: Vec<&[u8]> = net.streams.iter().map(|(_, payload)| &payload[..]).collect();
    if arrived.len() == count {
        assert_eq!(arrived.concat(), bytes);
    }
    (arrived.iter().map(|payload| payload.len()).collect(), outer.len())
}

fn set_narrow(net: &mut Net, from: u8, to: u8, is_narrow: bool) {
    net.node(from, |core, _| core.set_narrow(&id(to), is_narrow));
}

#[test]
fn long_packets_pass_a_narrow_path_in_fragments() {
    let mut net = narrow(NARROWEST_MTU.into());
    assert_eq!(streams(&mut net, 1, 2, &[1200]), (vec![], 1));
    set_narrow(&mut net, 1, 2, true);
    for (lengths, outer) in [
        (&[1200][..], 2),
        (&[1200, 1200, 1200], 6),
        (&[1200, 1200, 700], 6),
        (&[1200, 1200, 30], 5),
        (&[1392, 1392, 1000], 9),
        (&[608, 608, 20], 3),
        (&[609, 609, 5], 5),
    ] {
        assert_eq!(streams(&mut net, 1, 2, lengths), (lengths.to_vec(), outer));
    }
    // Single packets, and what is sent back.
    for length in [1, 600, 700, 1180] {
        net.events(2);
        net.send(1, 2, &vec![7; length]).unwrap();
        net.pump();
        assert_eq!(net.datagrams(2), [vec![7; length]]);
    }
    assert_eq!(streams(&mut net, 2, 1, &[1200, 1200, 9]), (vec![1200, 1200, 9], 5));
    let counters = net.counters(2);
    let long = [MeshCount::PacketsJoined, MeshCount::PacketsSplit].map(|it| counters[it]);
    assert_eq!(long, [16, 2]);
    assert_eq!(counters[MeshCount::DroppedFragments], 0);
    assert_eq!(counters[MeshCount::DroppedInnerMalformed], 0);
}

/// In fragments they would arrive, and QUIC would take the path for one with jumbo frames.
#[test]
fn packets_that_search_for_a_larger_mtu_stay_whole() {
    let mut net = narrow(NARROWEST_MTU.into());
    set_narrow(&mut net, 1, 2, true);
    for length in [1452, 8900] {
        assert_eq!(streams(&mut net, 1, 2, &[length]), (vec![], 1));
    }
    assert_eq!(net.counters(1)[MeshCount::PacketsSplit], 0);
}

#[test]
fn a_packet_that_tests_the_path_stays_whole() {
    let mut net = narrow(1280);
    set_narrow(&mut net, 1, 2, true);
    net.send(1, 2, &[7; MAX_DATAGRAM]).unwrap();
    net.pump();
    assert_eq!(net.datagrams(2), Vec::<Vec<u8>>::new());
    net.keep = Box::new(|_| true);
    net.send(1, 2, &[7; MAX_DATAGRAM]).unwrap();
    net.pump();
    assert_eq!(net.datagrams(2), [vec![7; MAX_DATAGRAM]]);
    assert_eq!(net.counters(1)[MeshCount::PacketsSplit], 0);
}

/// A QUIC connection begins with datagrams as long as those that test the path.
#[test]
fn packets_that_waited_for_a_session_are_split_too() {
    let mut net = narrow(NARROWEST_MTU.into());
    set_narrow(&mut net, 1, 2, true);
    net.seconds(400);
    assert!(!net.up(1, 2), "the session has ended");
    let (address, mut out) = (net.nodes[&at(2)].address(), Vec::new());
    let datagrams = Datagrams { bytes: &[7; 1200], segment: 1200 };
    let sealed = net.node(1, |core, now| core.seal_streams(now, &address, datagrams, &mut out, 0));
    assert_eq!(sealed, None);
    net.pump();
    assert_eq!(net.streams, [(at(2), vec![7; 1200])]);
}

/// A credential that is longer than a fragment.
fn long_credential(number: u8) -> Credential {
    let made = |services: usize| {
        let origin = |it| format!(",origin:a-service-with-a-long-name-{it:02}");
        let roles = format!("node{}", (0..services).map(origin).collect::<String>());
        credential_for(1, number, UnixSeconds(WALL.0 + 86_400), &roles)
    };
    (1..).map(made).find(|it| it.to_bytes().len() > split::PIECE).unwrap()
}

#[test]
fn a_hello_stays_whole_since_a_stranger_takes_no_fragments() {
    let mut net = Net::new(2);
    net.connect(1, 2);
    set_narrow(&mut net, 1, 2, true);
    net.seconds(1);
    net.node(2, |core, _| {
        let slot = core.peers.of_node(&id(1)).unwrap();
        let admission = &mut core.peers.get_mut(slot).unwrap().admission;
        (admission.admitted, admission.credential) = (false, None);
    });
    net.node(1, |core, now| core.set_credential(long_credential(1), now)).unwrap();
    net.pump();
    assert!(net.up(2, 1));
    assert_eq!(net.counters(1)[MeshCount::PacketsSplit], 0);
}

/// Only few paths are measured: gossip of a node on a narrow network is split for every peer.
#[test]
fn a_node_with_a_narrow_path_splits_single_packets_for_all() {
    let mut net = Net::new(3);
    net.connect(1, 2);
    net.connect(1, 3);
    let long = |net: &mut Net| {
        net.send(1, 3, &[7; 1180]).unwrap();
        net.pump();
        (net.datagrams(3).len(), net.counters(3)[MeshCount::PacketsJoined])
    };
    net.events(3);
    assert_eq!(long(&mut net), (1, 0));
    set_narrow(&mut net, 1, 2, true);
    assert_eq!(long(&mut net), (1, 1));
    assert_eq!(streams(&mut net, 1, 3, &[1200]), (vec![1200], 1));
    net.node(1, |core, _| core.remove_peer(&id(2)));
    assert_eq!(long(&mut net), (1, 1));
}

/// Its own probes may not have found out: it may be one that others measure.
#[test]
fn a_node_that_gets_a_demand_splits_single_packets_for_all() {
    let mut net = Net::new(3);
    net.connect(1, 2);
    net.connect(1, 3);
    set_narrow(&mut net, 2, 1, true);
    streams(&mut net, 2, 1, &[1200]);
    let mut long = || {
        net.send(1, 3, &[7; 1180]).unwrap();
        net.pump();
        net.counters(3)[MeshCount::PacketsJoined]
    };
    assert_eq!(long(), 1);
    net.seconds(HOLD_S);
    net.send(1, 3, &[7; 1180]).unwrap();
    net.pump();
    assert_eq!(net.counters(3)[MeshCount::PacketsJoined], 1);
}

#[test]
fn shards_are_cautious_together() {
    let now = Net::new(1).now;
    let core = |seed| Core::new(identity(1), MeshConfig::default(), [seed; 32], now).unwrap();
    let first = core(1).join(ShardIndex::new(0, 2), None);
    let second = core(2).join(ShardIndex::new(1, 2), Some(&first));
    first.caution.set(&id(2), true);
    assert!(second.caution.is_due(now.instant));
    second.caution.set(&id(2), false);
    assert!(!first.caution.is_due(now.instant));
    second.caution.demanded(now.instant);
    assert!(first.caution.is_due(now.instant));
}

/// The node that found the path narrow demands it; the other one stops when it does not.
#[test]
fn a_peer_splits_as_long_as_the_other_side_demands_it() {
    let mut net = narrow(NARROWEST_MTU.into());
    assert_eq!(streams(&mut net, 2, 1, &[1200]), (vec![], 1));
    set_narrow(&mut net, 1, 2, true);
    streams(&mut net, 1, 2, &[1200]);
    for _ in 0..5 {
        net.seconds(HOLD_S - 1);
        assert_eq!(streams(&mut net, 2, 1, &[1200]), (vec![1200], 2));
        assert_eq!(streams(&mut net, 1, 2, &[1200]), (vec![1200], 2));
    }
    set_narrow(&mut net, 1, 2, false);
    net.keep = Box::new(|_| true);
    assert_eq!(streams(&mut net, 2, 1, &[1200]), (vec![1200], 2));
    assert_eq!(streams(&mut net, 1, 2, &[1200]), (vec![1200], 1), "it makes no demand");
    net.seconds(HOLD_S);
    assert_eq!(streams(&mut net, 2, 1, &[1200]), (vec![1200], 1));
}

/// The release before this one drops fragments.
#[test]
fn a_peer_that_joins_nothing_gets_no_fragments() {
    let mut net = narrow(NARROWEST_MTU.into());
    let credential = &good(2).to_bytes();
    set_narrow(&mut net, 1, 2, true);
    for joins in [false, true] {
        let hello =
            Control::Hello { instance: 5, has_yours: true, continues: false, joins, credential };
        net.tell(2, 1, &hello);
        net.pump();
        let expected = if joins { (vec![1200], 2) } else { (vec![], 1) };
        assert_eq!(streams(&mut net, 1, 2, &[1200]), expected);
    }
}

/// Such fragments are of two packets with the same id.
#[test]
fn what_is_joined_wrongly_is_dropped() {
    let mut net = Net::new(2);
    net.connect(1, 2);
    let flow = net.node(1, |core, _| {
        let slot = core.peers.of_node(&id(2)).unwrap();
        core.flow(slot, ports::STREAMS, ports::STREAMS).unwrap()
    });
    let packets = [udp_packet(&flow, &[7; 1200]), udp_packet(&flow, &[8; 1200])];
    for (last, arrive, wrong) in [(0, 1, 0), (1, 1, 1)] {
        for (packet, number) in [(0, 0), (last, 1)] {
            let part = split::fragments(&packets[packet], split::PIECE, 3).nth(number).unwrap();
            let mut out = vec![0; split::UNSPLIT];
            let length = inner::write_fragment(&part, &mut out);
            let sealed = net.seal(1, 2, &out[..length]);
            net.deliver(at(1), at(2), &sealed);
        }
        assert_eq!(net.streams.len(), arrive);
        assert_eq!(net.counters(2)[MeshCount::DroppedInnerChecksum], wrong);
    }
}

/// A fragment counts like any packet: only from the peer's own address, and once it is admitted.
#[test]
fn fragments_are_checked_like_whole_packets() {
    let mut net = Net::new(3);
    net.connect(1, 2);
    let count = |net: &Net, count| net.counters(2)[count];
    let address = |net: &Net, number| net.nodes[&at(number)].address();
    let (own, other, peer) = (address(&net, 1), address(&net, 3), address(&net, 2));
    let play = |net: &mut Net, source, destination| {
        let flow = Flow { source, destination, source_port: 1, destination_port: ports::GOSSIP };
        let packet = udp_packet(&flow, &[7; 900]);
        for fragment in split::fragments(&packet, 512, 3) {
            let mut out = vec![0; 600];
            let length = inner::write_fragment(&fragment, &mut out);
            let sealed = net.seal(1, 2, &out[..length]);
            net.deliver(at(1), at(2), &sealed);
        }
        net.datagrams(2)
    };
    assert_eq!(play(&mut net, other, peer), Vec::<Vec<u8>>::new());
    assert_eq!(count(&net, MeshCount::DroppedInnerSource), 2);
    assert_eq!(play(&mut net, own, other), Vec::<Vec<u8>>::new());
    assert_eq!(count(&net, MeshCount::DroppedInnerDestination), 2);
    assert_eq!(play(&mut net, own, peer), [vec![7; 900]]);
    net.node(2, |core, _| {
        let slot = core.peers.of_node(&id(1)).unwrap();
        core.peers.get_mut(slot).unwrap().admission.admitted = false;
    });
    assert_eq!(play(&mut net, own, peer), Vec::<Vec<u8>>::new());
    // The first of them makes the node look at the credential that it knows.
    assert_eq!(count(&net, MeshCount::DroppedNotAdmitted), 1);
}

/// The peer's new process splits again when this one's next long packet demands it.
#[test]
fn a_narrow_path_is_probed_at_once_when_the_peer_was_restarted() {
    for is_narrow in [false, true] {
        let mut net = Net::new(2);
        net.connect(1, 2);
        set_narrow(&mut net, 1, 2, is_narrow);
        net.seconds(1);
        net.add(2, identity(2), MeshConfig::default());
        net.node(2, |core, now| core.set_peer(now, id(1), &[at(1)], None));
        net.events(1);
        net.send(2, 1, b"word").unwrap();
        net.pump();
        let is_word = |event: &MeshEvent| matches!(event, MeshEvent::Unacknowledged(_));
        let words = net.events(1).iter().filter(|event| is_word(event)).count();
        assert_eq!(words, usize::from(is_narrow));
    }
}

/// A peer may be forgotten, and its credential come back by gossip: its process is the same.
#[test]
fn a_peer_that_was_forgotten_tells_again_that_it_joins_fragments() {
    let mut net = narrow(NARROWEST_MTU.into());
    net.seconds(10);
    net.node(1, |core, now| {
        core.remove_peer(&id(2));
        core.set_peer(now, id(2), &[at(2)], Some(&Arc::new(good(2))));
    });
    net.connect(1, 2);
    set_narrow(&mut net, 1, 2, true);
    assert_eq!(streams(&mut net, 1, 2, &[1200]), (vec![1200], 2));
}

/// Another peer may get its place.
#[test]
fn fragments_of_a_removed_peer_are_not_joined_with_those_of_the_next_one() {
    let mut net = Net::new(2);
    net.connect(1, 2);
    let flow = net.node(1, |core, _| {
        let slot = core.peers.of_node(&id(2)).unwrap();
        core.flow(slot, ports::STREAMS, ports::STREAMS).unwrap()
    });
    let packet = udp_packet(&flow, &[7; 1200]);
    for part in split::fragments(&packet, split::PIECE, 3) {
        let mut out = vec![0; split::UNSPLIT];
        let length = inner::write_fragment(&part, &mut out);
        let sealed = net.seal(1, 2, &out[..length]);
        net.deliver(at(1), at(2), &sealed);
        net.node(2, |core, now| {
            core.remove_peer(&id(1));
            core.set_peer(now, id(1), &[at(1)], None);
        });
        net.connect(2, 1);
    }
    assert_eq!(net.streams.len(), 0);
}
