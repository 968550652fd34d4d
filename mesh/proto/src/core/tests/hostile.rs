//! Invalid and forged packets.

use proptest::prelude::*;

use super::*;
use crate::inner::{self, Flow};

const MALLORY: u8 = 66;

fn connected() -> Net {
    let mut net = Net::new(2);
    net.connect(1, 2);
    assert!(net.reaches(1, 2) && net.reaches(2, 1));
    net.seconds(1);
    net
}

#[test]
fn replayed_packets_do_nothing_and_move_nobody() {
    let mut net = connected();
    let recorded = net.sent.clone();
    net.events(1);
    net.events(2);
    let before = net.counters(2);
    for datagram in &recorded {
        net.deliver(at(MALLORY), datagram.to, &datagram.bytes);
    }
    let after = net.counters(2);
    assert!(after[MeshCount::DroppedReplayed] > before[MeshCount::DroppedReplayed]);
    assert_eq!(
        after[MeshCount::DroppedReplayedInitiation],
        before[MeshCount::DroppedReplayedInitiation] + 1
    );
    assert!(net.counters(1)[MeshCount::DroppedBadResponse] > 0);
    assert_eq!(after[MeshCount::Roams], 0);
    assert_eq!((net.endpoint(1, 2), net.endpoint(2, 1)), (Some(at(2)), Some(at(1))));
    assert!(net.events(2).is_empty() && net.datagrams(1).is_empty());
    assert!(net.reaches(1, 2) && net.reaches(2, 1));
}

#[test]
fn truncated_and_changed_packets_are_dropped_and_counted() {
    let mut net = connected();
    let recorded = net.sent.clone();
    net.send(1, 2, b"fresh").unwrap();
    let fresh = net.node(1, |core, _| core.poll_transmit()).unwrap().bytes;
    for bytes in recorded.iter().map(|sent| &sent.bytes).chain([&fresh]) {
        for cut in 0..bytes.len() {
            net.deliver(at(MALLORY), at(2), &bytes[..cut]);
        }
        for position in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[position] ^= 0x10;
            net.deliver(at(MALLORY), at(2), &changed);
        }
    }
    let counters = net.counters(2);
    assert!(counters[MeshCount::DroppedMalformed] > 0);
    assert!(counters[MeshCount::DroppedUnauthentic] > 0);
    assert!(counters[MeshCount::DroppedUnknownSession] > 0);
    assert!(counters[MeshCount::DroppedBadMac] > 0);
    assert_eq!(counters[MeshCount::Roams], 0);
    assert_eq!(net.endpoint(2, 1), Some(at(1)));
    net.events(2);
    net.deliver(at(1), at(2), &fresh);
    assert_eq!(net.datagrams(2), [b"fresh"], "the untouched packet is still good");
}

#[test]
fn a_peer_that_moves_is_followed() {
    let mut net = connected();
    // Node 1 appears at another address, as behind a NAT that forgot.
    let core = net.nodes.remove(&at(1)).unwrap();
    net.nodes.insert(at(9), core);
    net.nodes
        .get_mut(&at(9))
        .unwrap()
        .send_datagram(net.now, id(2), ports::GOSSIP, b"new")
        .unwrap();
    net.pump();
    assert_eq!(net.endpoint(2, 1), Some(at(9)));
    assert_eq!(net.counters(2)[MeshCount::Roams], 1);
    net.send(2, 1, b"answer").unwrap();
    net.pump();
    let arrived = std::iter::from_fn(|| net.nodes.get_mut(&at(9)).unwrap().poll_event())
        .any(|event| matches!(event, MeshEvent::Datagram { payload, .. } if payload == "answer"));
    assert!(arrived);
}

#[test]
fn a_fresh_initiation_alone_does_not_move_a_peer() {
    let mut net = connected();
    // Recorded and forwarded from elsewhere before the original arrives: valid, but no proof of
    // node 1's address.
    net.keep = Box::new(|sent| !sent.is_initiation());
    net.node(1, |core, now| {
        let slot = core.peers.of_node(&id(2)).unwrap();
        core.peers.get_mut(slot).unwrap().schedule.session_lost();
        core.want_session(slot, now).unwrap();
    });
    net.pump();
    let initiation = net.sent.last().unwrap().bytes.clone();
    net.deliver(at(MALLORY), at(2), &initiation);
    assert_eq!(net.counters(2)[MeshCount::InitiationsAccepted], 2);
    assert_eq!(net.endpoint(2, 1), Some(at(1)));
}

#[test]
fn under_load_initiators_prove_their_address() {
    let config = MeshConfig { handshakes_per_second: 1, ..MeshConfig::default() };
    let mut net = Net::with(4, &config);
    net.connect(2, 1);
    net.connect(3, 1);
    net.connect(4, 1);
    assert!(net.up(1, 2));
    assert!(!net.up(1, 3) && !net.up(1, 4));
    assert_eq!(net.counters(1)[MeshCount::CookiesSent], 2);
    assert_eq!(net.counters(3)[MeshCount::CookiesReceived], 1);
    assert_eq!(net.endpoint(3, 1), None, "a cookie is no proof of who sent it");
    net.run(Duration::from_millis(100));
    assert!(net.up(1, 3) && net.up(1, 4), "with the cookie they pass, under load");
}

#[test]
fn a_cookie_reply_moves_nobody() {
    let config = MeshConfig { handshakes_per_second: 1, ..MeshConfig::default() };
    let mut net = Net::with(3, &config);
    net.connect(2, 1);
    // A renewal that is answered by a cookie, delivered from elsewhere.
    net.keep = Box::new(|sent| sent.bytes[0] != 3);
    net.seconds(1);
    for from in [2, 3] {
        net.node(from, |core, now| {
            let slot = core.peers.of_node(&id(1)).unwrap();
            let peer = core.peers.get_mut(slot).unwrap();
            peer.schedule.session_lost();
            core.want_session(slot, now).unwrap();
        });
    }
    net.pump();
    let cookie = net.sent.iter().rev().find(|sent| sent.bytes[0] == 3).unwrap().clone();
    let number = if cookie.to == at(2) { 2 } else { 3 };
    let before = net.endpoint(number, 1);
    net.deliver(at(MALLORY), cookie.to, &cookie.bytes);
    assert_eq!(net.counters(number)[MeshCount::CookiesReceived], 1);
    assert_eq!(net.endpoint(number, 1), before);
}

#[test]
fn unknown_initiators_are_bounded() {
    let config = MeshConfig { max_provisional: 3, ..MeshConfig::default() };
    let mut net = Net::with(1, &config);
    // Each leaves a session that is never confirmed: the responses are lost.
    for number in 10..20 {
        net.add(number, identity(number), MeshConfig::default());
        net.node(number, |core, now| core.set_peer(now, id(1), &[at(1)], None));
    }
    net.keep = Box::new(Sent::is_initiation);
    for number in 10..20 {
        net.connect(number, 1);
    }
    assert_eq!(net.nodes[&at(1)].peers.provisional(), 3);
    assert_eq!(net.counters(1)[MeshCount::ProvisionalEvicted], 7);
    net.keep = Box::new(|_| false);
    net.seconds(31);
    assert_eq!(net.nodes[&at(1)].peers.len(), 0);
    assert_eq!(net.counters(1)[MeshCount::ProvisionalExpired], 3);
}

#[test]
fn the_table_of_peers_is_bounded() {
    let config = MeshConfig { max_peers: 2, ..MeshConfig::default() };
    let mut net = Net::with(1, &config);
    net.node(1, |core, now| {
        for other in 2..=5 {
            core.set_peer(now, id(other), &[at(other)], None);
        }
    });
    assert_eq!((net.nodes[&at(1)].peers.len(), net.counters(1)[MeshCount::PeersRefused]), (2, 2));
    net.add(9, identity(9), MeshConfig::default());
    net.node(9, |core, now| core.set_peer(now, id(1), &[at(1)], None));
    net.connect(9, 1);
    assert_eq!(net.counters(1)[MeshCount::DroppedNoRoom], 1);
}

#[test]
fn one_peer_cannot_make_us_shake_hands_all_the_time() {
    let mut net = connected();
    net.node(1, |core, now| {
        let slot = core.peers.of_node(&id(2)).unwrap();
        for _ in 0..5 {
            let peer = core.peers.get_mut(slot).unwrap();
            peer.schedule.session_lost();
            peer.schedule.give_up();
            core.want_session(slot, now).unwrap();
        }
    });
    net.pump();
    assert_eq!(net.counters(2)[MeshCount::DroppedFrequentInitiation], 4);
    assert_eq!(net.counters(2)[MeshCount::InitiationsAccepted], 2);
}

/// Apart from the gap between two of one peer: only too many under load are a sign of a flood.
#[test]
fn what_a_source_has_too_much_under_load_is_counted_apart() {
    let config = MeshConfig { handshakes_per_second: 1, ..MeshConfig::default() };
    let mut net = Net::with(3, &config);
    net.connect(2, 1);
    net.connect(3, 1);
    assert_eq!(net.counters(3)[MeshCount::CookiesReceived], 1);
    net.node(3, |core, now| {
        let slot = core.peers.of_node(&id(1)).unwrap();
        for _ in 0..60 {
            let peer = core.peers.get_mut(slot).unwrap();
            peer.schedule.session_lost();
            peer.schedule.give_up();
            core.want_session(slot, now).unwrap();
        }
    });
    net.pump();
    let counters = net.counters(1);
    assert_eq!(
        (counters[MeshCount::CookiesSent], counters[MeshCount::InitiationsAccepted]),
        (1, 2)
    );
    let dropped =
        [counters[MeshCount::DroppedOverShare], counters[MeshCount::DroppedFrequentInitiation]];
    assert_eq!(dropped, [10, 49], "of sixty, fifty are read, and one of them is answered");
}

/// An attacker with enough addresses passes the gate a thousand times a second, with an invented
/// key for each: few of these handshakes are computed, and peers come back meanwhile.
#[test]
fn strangers_are_few_and_take_no_handshake_from_a_peer() {
    let config = MeshConfig { handshakes_per_second: 4, ..MeshConfig::default() };
    let mut net = Net::with(2, &config);
    net.connect(2, 1);
    let first = |net: &mut Net, number: u8| {
        net.add(number, identity(number), MeshConfig::default());
        net.node(number, |core, now| core.set_peer(now, id(1), &[at(1)], None));
        net.node(number, |core, now| core.connect(now, &id(1))).unwrap();
        let said = net.node(number, |core, _| core.poll_transmit()).unwrap().bytes;
        // Only its first message is needed.
        net.nodes.remove(&at(number));
        said
    };
    let flood: Vec<_> = (10..110).map(|number| (number, first(&mut net, number))).collect();
    // No configuration names a leaf; it is known by its credential.
    let comes_back = [2, 3].map(|number| {
        let slot = net.node(1, |core, _| match core.peers.of_node(&id(number)) {
            Some(slot) => slot,
            None => core.add(id(number), None),
        });
        let peer = net.nodes.get_mut(&at(1)).unwrap().peers.get_mut(slot).unwrap();
        (peer.configured, peer.admission.admitted) = (number == 2, number == 3);
        (number, first(&mut net, number))
    });
    net.seconds(5);
    // As if each of them had passed the gate.
    let claimed = |net: &mut Net, (number, bytes): &(u8, Vec<u8>)| {
        let before = net.counters(1)[MeshCount::InitiationsAccepted];
        let claim = Claim { own: id(1), node: id(*number) };
        let from = Route::from(at(*number));
        net.node(1, |core, now| core.handle_claimed(now, from, bytes, &mut [0; 256], claim));
        net.counters(1)[MeshCount::InitiationsAccepted] - before
    };
    for part in flood.chunks(25) {
        net.run(Duration::from_millis(250));
        let answered: u64 = part.iter().map(|it| claimed(&mut net, it)).sum();
        assert!((1..=3).contains(&answered), "{answered} at once");
    }
    assert!(net.counters(1)[MeshCount::DroppedOverShare] >= 90);
    assert_eq!(comes_back.each_ref().map(|it| claimed(&mut net, it)), [1, 1]);
}

#[test]
fn a_peer_whose_clock_was_set_back_is_met_halfway() {
    let mut net = connected();
    let old = net.sent.iter().find(|sent| sent.is_initiation()).unwrap().bytes.clone();
    net.seconds(5);
    // Another process of node 1. Everything it sends is older than what node 2 has seen, like the
    // recorded initiation.
    net.add(1, identity(1), MeshConfig::default());
    net.node(1, |core, now| core.set_peer(now, id(2), &[at(2)], None));
    net.keep = Box::new(|sent| !sent.is_initiation() || sent.from != at(1));
    net.connect(1, 2);
    assert!(!net.up(1, 2));
    net.deliver(at(1), at(2), &old);
    net.pump();
    assert!(net.up(1, 2) && net.up(2, 1));
    assert_eq!(net.counters(2)[MeshCount::HandshakesForOldClocks], 1);
    // Replayed by another sender while the session is alive, it does nothing.
    net.deliver(at(MALLORY), at(2), &old);
    assert_eq!(net.counters(2)[MeshCount::DroppedReplayedInitiation], 2);
    assert_eq!(net.counters(2)[MeshCount::HandshakesForOldClocks], 1);
}

/// A leaf is not configured: its only known address is the source of its own packets.
#[test]
fn a_leaf_whose_clock_was_set_back_is_met_where_it_was() {
    let mut net = connected();
    let old = net.sent.iter().find(|sent| sent.is_initiation()).unwrap().bytes.clone();
    net.node(2, |core, _| {
        let slot = core.peers.of_node(&id(1)).unwrap();
        let peer = core.peers.get_mut(slot).unwrap();
        (peer.configured, peer.hints) = (false, Vec::new());
    });
    net.seconds(5);
    net.add(1, identity(1), MeshConfig::default());
    net.node(1, |core, now| core.set_peer(now, id(2), &[at(2)], None));
    net.keep = Box::new(|sent| !sent.is_initiation() || sent.from != at(1));
    net.sent.clear();
    net.deliver(at(MALLORY), at(2), &old);
    net.pump();
    let begun: Vec<_> = net.sent.iter().filter(|sent| sent.is_initiation()).collect();
    assert!(matches!(begun[..], [sent] if sent.to == at(1)), "not where it came from: {begun:?}");
    assert!(net.up(1, 2) && net.up(2, 1));
    assert_eq!(net.counters(2)[MeshCount::HandshakesForOldClocks], 1);
}

/// A recorded initiation is all that a new process knows of an unconfigured peer, so it proves
/// neither that the peer is alive nor its address.
#[test]
fn a_recorded_initiation_draws_no_handshake_to_where_it_comes_from() {
    let mut net = connected();
    let old = net.sent.iter().find(|sent| sent.is_initiation()).unwrap().bytes.clone();
    net.add(2, identity(2), MeshConfig::default());
    net.sent.clear();
    for _ in 0..10 {
        net.deliver(at(MALLORY), at(2), &old);
        net.seconds(5);
    }
    assert_eq!(net.counters(2)[MeshCount::InitiationsAccepted], 2, "anew after each is forgotten");
    assert_eq!(net.counters(2)[MeshCount::HandshakesForOldClocks], 0);
    assert!(!net.sent.iter().any(|sent| sent.is_initiation() && sent.from == at(2)));
}

#[test]
fn a_node_whose_key_is_everybodys_is_no_peer() {
    let mut net = Net::new(1);
    let nobody = NodeId::from_bytes([0; 32]);
    net.node(1, |core, now| core.set_peer(now, nobody, &[at(2)], None));
    assert_eq!((net.nodes[&at(1)].peers.len(), net.counters(1)[MeshCount::PeersRefused]), (0, 1));
}

#[test]
fn lengths_of_single_packets_go_in_steps() {
    let mut net = connected();
    net.sent.clear();
    for length in [0, 1, 15, 16, 17, 500, 1199, 1200] {
        net.send(1, 2, &vec![7; length]).unwrap();
    }
    net.pump();
    let arrived: Vec<usize> = net.datagrams(2).iter().map(Vec::len).collect();
    assert_eq!(arrived, [0, 1, 15, 16, 17, 500, 1199, 1200]);
    let sent: Vec<usize> = net.sent.iter().map(|sent| sent.bytes.len()).collect();
    // 48 bytes of inner headers, 32 of WireGuard; the longest keep the length for which paths are
    // tested.
    assert_eq!(sent, [80, 96, 96, 96, 112, 592, 1280, 1280]);
}

#[test]
fn a_peer_speaks_only_for_itself() {
    let mut net = Net::new(3);
    net.connect(1, 2);
    net.connect(3, 2);
    let address = |net: &Net, number: u8| net.nodes[&at(number)].address();
    let (one, two, three) = (address(&net, 1), address(&net, 2), address(&net, 3));
    let flow = |source, destination| Flow {
        source,
        destination,
        source_port: ports::GOSSIP,
        destination_port: ports::GOSSIP,
    };
    net.events(2);
    let mut offer = |packet: Vec<u8>| {
        let sealed = net.seal(3, 2, &packet);
        net.deliver(at(3), at(2), &sealed);
    };
    // As node 1; to node 1; with a broken checksum; not UDP; not IPv6.
    offer(send::udp_packet(&flow(one, two), b"lie"));
    offer(send::udp_packet(&flow(three, one), b"pass on"));
    let mut broken = send::udp_packet(&flow(three, two), b"broken");
    broken[50] ^= 1;
    offer(broken);
    let mut tcp = send::udp_packet(&flow(three, two), b"tcp");
    tcp[6] = 6;
    offer(tcp);
    offer(vec![0x45; 60]);
    let echo = inner::echo_request(&one, &two, 1);
    offer(echo);
    let counters = net.counters(2);
    assert_eq!(counters[MeshCount::DroppedInnerSource], 2);
    assert_eq!(counters[MeshCount::DroppedInnerDestination], 1);
    assert_eq!(counters[MeshCount::DroppedInnerChecksum], 1);
    assert_eq!(counters[MeshCount::DroppedInnerMalformed], 2);
    assert_eq!(counters[MeshCount::EchoesAnswered], 0);
    assert!(net.events(2).is_empty());
    assert!(net.reaches(3, 2) && net.reaches(1, 2));
}

#[test]
fn a_slow_user_loses_datagrams_and_not_changes() {
    let config = MeshConfig { max_events: 10, ..MeshConfig::default() };
    let mut net = Net::with(3, &config);
    net.connect(1, 2);
    net.events(2);
    for _ in 0..50 {
        net.send(1, 2, b"flood").unwrap();
    }
    net.pump();
    net.connect(3, 2);
    assert_eq!(net.counters(2)[MeshCount::DroppedEvents], 40);
    let events = net.events(2);
    let is_change = |event: &&MeshEvent| !matches!(event, MeshEvent::Datagram { .. });
    assert_eq!(events.iter().filter(|it| !is_change(it)).count(), 10);
    let up = |event| matches!(event, &MeshEvent::SessionUp(node) if node == id(3));
    assert!(events.iter().filter(is_change).any(up));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn arbitrary_datagrams_never_panic(
        noise in proptest::collection::vec(
            (0u8..6, proptest::collection::vec(any::<u8>(), 0..300)), 1..40),
    ) {
        let mut net = connected();
        for (kind, mut bytes) in noise {
            if bytes.len() >= 4 && kind > 0 {
                bytes[..4].copy_from_slice(&[kind, 0, 0, 0]);
                match kind {
                    1 => bytes.resize(148, 7),
                    2 => bytes.resize(92, 7),
                    3 => bytes.resize(64, 7),
                    _ => {}
                }
            }
            net.deliver(at(MALLORY), at(2), &bytes);
        }
        prop_assert!(net.reaches(1, 2));
    }

    #[test]
    fn arbitrary_inner_packets_never_panic(
        packets in proptest::collection::vec(
            proptest::collection::vec(any::<u8>(), 1..200), 1..20),
        real_header: bool,
    ) {
        let mut net = connected();
        for packet in packets {
            let (own, other) = (net.nodes[&at(1)].address(), net.nodes[&at(2)].address());
            let port = 7400 + u16::from(packet[0] % 4);
            let flow = Flow {
                source: own, destination: other, source_port: port, destination_port: port,
            };
            let packet = if real_header { send::udp_packet(&flow, &packet) } else { packet };
            let sealed = net.seal(1, 2, &packet);
            net.deliver(at(1), at(2), &sealed);
        }
        prop_assert!(net.reaches(1, 2));
    }
}

/// The receiver indices that `number` chose: for its first session, and for its next one.
fn session_numbers(net: &mut Net, number: u8, peer: u8) -> [u32; 2] {
    [(); 2].map(|()| {
        net.sent.clear();
        net.node(number, |core, now| core.connect(now, &id(peer))).unwrap();
        net.pump();
        net.seconds(200);
        let first = net.sent.iter().find(|it| it.is_initiation() && it.from == at(number)).unwrap();
        u32::from_le_bytes(*first.bytes[4..].first_chunk().unwrap())
    })
}

/// An observer can see that two sessions of one process are with the same peer, but nothing that
/// outlives the process.
#[test]
fn numbers_of_sessions_are_masked_differently_in_every_process() {
    let mut net = Net::new(3);
    let [first, next] = session_numbers(&mut net, 1, 2);
    let of_peer = |number: u32| number >> 8;
    assert_eq!(of_peer(first), of_peer(next), "a process has one number for a peer");
    let [other, _] = session_numbers(&mut net, 1, 3);
    assert_ne!(of_peer(first), of_peer(other));
    // The same node again, in the same place of the same table: only the seed differs.
    let mut seen = vec![of_peer(first)];
    for process in 100..104 {
        let core = Core::new(identity(1), MeshConfig::default(), [process; 32], net.now).unwrap();
        net.nodes.insert(at(1), core);
        for peer in [2, 3] {
            net.node(1, |core, now| core.set_peer(now, id(peer), &[at(peer)], None));
        }
        let [number, _] = session_numbers(&mut net, 1, 2);
        assert!(!seen.contains(&of_peer(number)), "{number:#x} among {seen:#x?}");
        seen.push(of_peer(number));
    }
}
