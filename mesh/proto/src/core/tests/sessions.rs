//! Handshakes, rekeys, silence, keepalives, restarts.

use super::*;

#[test]
fn a_handshake_admits_both_sides_within_two_round_trips() {
    let mut net = Net::new(2);
    net.connect(1, 2);
    assert!(net.up(1, 2) && net.up(2, 1));
    assert_eq!(net.since_start(net.now.instant), Duration::ZERO, "nothing waited for a timer");
    assert_eq!(net.endpoint(1, 2), Some(at(2)));
    assert_eq!(net.endpoint(2, 1), Some(at(1)));
}

#[test]
fn a_lost_first_packet_costs_about_a_second() {
    let mut net = Net::new(2);
    let mut lost = false;
    net.keep = Box::new(move |sent| !sent.is_initiation() || std::mem::replace(&mut lost, true));
    net.connect(1, 2);
    assert!(!net.up(1, 2));
    net.run(Duration::from_millis(999));
    assert!(!net.up(1, 2));
    net.run(Duration::from_millis(335));
    assert!(net.up(1, 2) && net.up(2, 1));
}

#[test]
fn retries_have_jitter_and_end() {
    let mut net = Net::new(2);
    net.keep = Box::new(|_| false);
    net.connect(1, 2);
    net.send(1, 2, b"lost").unwrap();
    net.seconds(100);
    let times: Vec<Duration> = net.sent.iter().map(|sent| net.since_start(sent.at)).collect();
    assert_eq!(times.len(), net.counters(1)[MeshCount::InitiationsSent] as usize);
    assert!((18..=24).contains(&times.len()), "{times:?}");
    for (number, gap) in times.windows(2).map(|pair| pair[1] - pair[0]).enumerate() {
        let least = Duration::from_secs(if number < 5 { 1 } else { 5 });
        assert!(gap >= least && gap <= least + Duration::from_millis(334), "{number}: {gap:?}");
        assert!(gap > least, "retry {number} has no jitter");
    }
    assert!(*times.last().unwrap() <= Duration::from_secs(91));
    let counters = net.counters(1);
    assert_eq!(
        (counters[MeshCount::HandshakesAbandoned], counters[MeshCount::DroppedQueueAbandoned]),
        (1, 1)
    );
    assert_eq!(net.node(1, |core, _| core.poll_timeout()), None, "nothing is due any more");
}

#[test]
fn an_idle_mesh_sleeps() {
    let mut net = Net::new(8);
    for other in 2..=8 {
        net.connect(1, other);
        assert!(net.reaches(1, other) && net.reaches(other, 1));
    }
    net.wakes = 0;
    net.sent.clear();
    net.seconds(3600);
    // Seven pairs: a passive keepalive each way, and the end of the session on both sides.
    assert!(net.wakes <= 7 * 2 * 4, "{} wake-ups", net.wakes);
    assert!(net.sent.len() <= 14, "{} packets", net.sent.len());
    assert!(!net.up(1, 2));
    assert_eq!(net.nodes.values().filter_map(Core::poll_timeout).min(), None);
    // The first packet afterwards brings the session back.
    assert!(net.reaches(1, 2) && net.reaches(2, 1));
}

/// As at an origin: each of many peers sends every few seconds, and is answered.
#[test]
fn nobody_is_woken_for_timers_that_packets_put_off() {
    let mut net = Net::new(8);
    (2..=8).for_each(|other| net.connect(other, 1));
    for _ in 0..2 {
        net.wakes = 0;
        for _ in 0..10 {
            for other in 2..=8 {
                assert!(net.reaches(other, 1) && net.reaches(1, other));
                net.run(Duration::from_millis(700));
            }
        }
    }
    assert_eq!(net.wakes, 0, "98 s in all, before any session is renewed");
    // They stay set nevertheless.
    net.seconds(15);
    assert!(net.wakes > 0);
}

#[test]
fn a_session_that_ended_is_reported() {
    let mut net = Net::new(2);
    net.connect(1, 2);
    net.events(1);
    net.seconds(200);
    let events = net.events(1);
    assert!(matches!(events[..], [MeshEvent::SessionDown(node)] if node == id(2)), "{events:?}");
}

#[test]
fn a_session_in_use_is_renewed_without_a_stall() {
    let mut net = Net::new(2);
    net.connect(1, 2);
    net.events(2);
    for second in 0..400u32 {
        // Traffic in one direction only, without a moment that lacks a usable session.
        net.send(1, 2, &second.to_be_bytes()).unwrap();
        net.pump();
        assert_eq!(net.datagrams(2), [second.to_be_bytes()], "second {second}");
        net.seconds(1);
    }
    let counters = net.counters(1);
    assert_eq!(counters[MeshCount::HandshakesCompleted], 4, "one and three renewals in 400 s");
    assert_eq!(counters[MeshCount::HandshakesAfterSilence], 0);
    assert_eq!(net.counters(2)[MeshCount::HandshakesCompleted], 0, "the initiator renews");
}

#[test]
fn a_lost_renewal_does_not_stall() {
    let mut net = Net::new(2);
    net.connect(1, 2);
    let start = net.start;
    net.keep = Box::new(move |sent| {
        let age = sent.at.saturating_duration_since(start);
        sent.bytes[0] == 4 || age > Duration::from_secs(140)
    });
    for second in 0..200u32 {
        assert!(net.reaches(1, 2), "second {second}");
        assert!(net.reaches(2, 1), "second {second}");
        net.seconds(1);
    }
    assert_eq!(
        net.counters(1)[MeshCount::HandshakesCompleted]
            + net.counters(2)[MeshCount::HandshakesCompleted],
        2
    );
}

#[test]
fn both_sides_may_initiate_at_once() {
    let mut net = Net::new(2);
    net.node(1, |core, now| core.connect(now, &id(2))).unwrap();
    net.node(2, |core, now| core.connect(now, &id(1))).unwrap();
    net.pump();
    assert!(net.up(1, 2) && net.up(2, 1));
    for second in 0..300 {
        assert!(net.reaches(1, 2) && net.reaches(2, 1), "second {second}");
        net.seconds(1);
    }
    let renewals = net.counters(1)[MeshCount::HandshakesCompleted]
        + net.counters(2)[MeshCount::HandshakesCompleted];
    assert!((3..=8).contains(&renewals), "{renewals} handshakes in 300 s");
}

#[test]
fn a_late_first_answer_is_as_good_as_the_second() {
    let mut net = Net::new(2);
    net.connect(1, 2);
    net.seconds(1);
    // A renewal whose first answer is late and whose second is lost.
    net.keep = Box::new(|sent| sent.bytes[0] != 2);
    net.node(1, |core, now| {
        let slot = core.peers.of_node(&id(2)).unwrap();
        core.peers.get_mut(slot).unwrap().schedule.session_lost();
        core.want_session(slot, now).unwrap();
    });
    net.run(Duration::from_millis(1400));
    let answers: Vec<Sent> = net.sent.iter().filter(|sent| sent.bytes[0] == 2).cloned().collect();
    assert_eq!(answers.len(), 3, "one before, two now");
    let renewed = net.now.instant;
    net.deliver(at(2), at(1), &answers[1].bytes);
    net.keep = Box::new(|_| true);
    assert!(net.reaches(1, 2) && net.reaches(2, 1));
    let since = net.nodes[&at(2)].peer(&id(1)).unwrap().schedule.session_since().unwrap();
    assert!(renewed - since < Duration::from_secs(2), "the old session's age is forgotten");
}

#[test]
fn silence_after_data_starts_a_handshake() {
    let mut net = Net::new(2);
    net.connect(1, 2);
    net.seconds(1);
    net.keep = Box::new(|_| false);
    net.send(1, 2, b"anyone?").unwrap();
    net.run(Duration::from_millis(14_900));
    assert_eq!(net.counters(1)[MeshCount::InitiationsSent], 1);
    net.run(Duration::from_millis(200));
    assert_eq!(net.counters(1)[MeshCount::HandshakesAfterSilence], 1);
    assert_eq!(net.counters(1)[MeshCount::InitiationsSent], 2);
}

/// Seals a QUIC datagram from one node to another and puts it on the wire.
fn stream(net: &mut Net, from: u8, to: u8, payload: &[u8]) -> Option<StreamBatch> {
    let address = net.node(from, |core, _| core.address_of(&id(to))).unwrap();
    let mut out = Vec::new();
    let batch = net.node(from, |core, now| {
        core.expect_answer(&address);
        let datagrams = Datagrams { bytes: payload, segment: payload.len().min(1000) };
        core.seal_streams(now, &address, datagrams, &mut out, 0)
    })?;
    for bytes in out[..batch.length].chunks(batch.stride) {
        net.deliver(at(from), batch.route.remote, bytes);
    }
    Some(batch)
}

#[test]
fn silence_after_stream_data_is_noticed_in_a_second() {
    let mut net = Net::new(2);
    net.connect(1, 2);
    net.seconds(1);
    net.keep = Box::new(|_| false);
    stream(&mut net, 1, 2, &[1; 100]).unwrap();
    net.run(Duration::from_millis(1100));
    assert_eq!(net.counters(1)[MeshCount::HandshakesAfterSilence], 1);
}

#[test]
fn silence_that_is_known_already_is_noticed_in_a_second_whatever_is_sent() {
    for echo in [false, true] {
        let mut net = Net::new(2);
        net.connect(1, 2);
        net.seconds(1);
        net.keep = Box::new(|_| false);
        net.node(1, |core, _| core.expect_answer_of(&id(2)));
        match echo {
            true => net.node(1, |core, now| core.send_echo(now, id(2), 1)).unwrap(),
            false => net.send(1, 2, b"a probe").unwrap(),
        }
        net.run(Duration::from_millis(1100));
        assert_eq!(net.counters(1)[MeshCount::HandshakesAfterSilence], 1, "echo: {echo}");
    }
}

#[test]
fn a_batch_of_stream_datagrams_comes_out_as_it_went_in() {
    let mut net = Net::new(2);
    let payload: Vec<u8> = (0..2500u32).map(|n| n as u8).collect();
    assert_eq!(stream(&mut net, 1, 2, &payload), None, "queued for the handshake");
    net.pump();
    let arrived = |net: &mut Net| -> Vec<u8> {
        std::mem::take(&mut net.streams).into_iter().flat_map(|(_, bytes)| bytes).collect()
    };
    assert_eq!(arrived(&mut net), payload);
    let batch = stream(&mut net, 1, 2, &payload).unwrap();
    assert_eq!((batch.stride, batch.length), (1080, 2 * 1080 + 580));
    assert_eq!(arrived(&mut net), payload);
}

#[test]
fn a_first_packet_after_idling_is_not_taken_for_silence() {
    let mut net = Net::new(2);
    net.connect(1, 2);
    net.seconds(60);
    net.keep = Box::new(|_| false);
    net.send(1, 2, b"late").unwrap();
    net.run(Duration::from_secs(3));
    net.send(1, 2, b"later").unwrap();
    net.run(Duration::from_secs(3));
    assert_eq!(net.counters(1)[MeshCount::InitiationsSent], 1);
}

#[test]
fn data_is_answered_by_a_keepalive_after_ten_seconds() {
    let mut net = Net::new(2);
    net.connect(1, 2);
    net.seconds(15);
    assert!(net.reaches(1, 2));
    net.sent.clear();
    net.run(Duration::from_millis(10_400));
    assert_eq!(net.sent.len(), 0);
    net.run(Duration::from_millis(200));
    assert_eq!(net.sent.len(), 1);
    assert_eq!((net.sent[0].from, net.sent[0].bytes.len()), (at(2), 32));
}

#[test]
fn persistent_keepalives_hold_a_nat_open() {
    let config = MeshConfig { keepalive: Some(Duration::from_secs(25)), ..MeshConfig::default() };
    let mut net = Net::with(2, &config);
    net.seconds(26);
    assert!(net.up(1, 2), "the keepalive made a session");
    net.events(1);
    net.sent.clear();
    net.seconds(1000);
    assert_eq!(net.events(1).len(), 0, "the session is renewed before it ends");
    let sent = net.sent.iter().filter(|sent| sent.from == at(1)).count();
    assert!((40..=70).contains(&sent), "{sent} packets in 1000 s");
    assert!(net.up(1, 2));
}

#[test]
fn a_restarted_peer_is_noticed_by_its_next_packet() {
    let mut net = Net::new(2);
    net.connect(1, 2);
    assert!(net.reaches(1, 2) && net.reaches(2, 1));
    net.notices(1);
    net.seconds(1);
    net.add(2, identity(2), MeshConfig::default());
    net.node(2, |core, now| core.set_peer(now, id(1), &[at(1)], None));
    // Data of the old session makes the new process start a handshake at once.
    stream(&mut net, 1, 2, &[1; 100]);
    net.pump();
    assert!(net.up(1, 2) && net.up(2, 1));
    let cut = |notice: &Notice| matches!(notice, Notice::Cut(node, _) if *node == id(2));
    assert_eq!(net.notices(1).iter().filter(|notice| cut(notice)).count(), 1);
    assert_eq!(net.counters(1)[MeshCount::RestartsSeen], 1);
    assert!(net.reaches(1, 2) && net.reaches(2, 1));
}

#[test]
fn a_restarted_peer_that_knows_nobody_is_found_again() {
    let mut net = Net::new(2);
    net.connect(1, 2);
    net.seconds(1);
    net.add(2, identity(2), MeshConfig::default());
    stream(&mut net, 1, 2, &[1; 100]);
    net.run(Duration::from_millis(1100));
    assert!(net.up(1, 2) && net.up(2, 1));
    assert_eq!(net.counters(1)[MeshCount::RestartsSeen], 1);
}

#[test]
fn a_handshake_goes_to_all_addresses_and_the_answer_picks_one() {
    let mut net = Net::new(2);
    net.node(1, |core, now| {
        core.set_peer(now, id(2), &[at(90), at(91), at(2), at(93), at(94)], None);
    });
    net.connect(1, 2);
    let asked: Vec<_> = net.sent.iter().filter(|s| s.is_initiation()).map(|s| s.to).collect();
    assert_eq!(asked, [at(90), at(91), at(2), at(93)]);
    assert_eq!(net.endpoint(1, 2), Some(at(2)));
    // Naming the peer again does not change what its packets proved.
    net.node(1, |core, now| core.set_peer(now, id(2), &[at(90)], None));
    assert_eq!(net.endpoint(1, 2), Some(at(2)));
    assert!(net.reaches(1, 2));
}

#[test]
fn what_waits_for_a_handshake_is_bounded() {
    let mut net = Net::new(2);
    net.keep = Box::new(|_| false);
    let results: Vec<_> = (0..70u8).map(|n| net.send(1, 2, &[n])).collect();
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 64);
    assert_eq!(results[64], Err(MeshError::QueueFull(id(2))));
    assert_eq!(net.counters(1)[MeshCount::DroppedQueueFull], 6);
}

#[test]
fn a_removed_peer_is_gone() {
    let mut net = Net::new(2);
    net.connect(1, 2);
    net.events(1);
    net.node(1, |core, _| core.remove_peer(&id(2)));
    assert!(matches!(net.events(1)[..], [MeshEvent::SessionDown(_)]));
    assert!(net.notices(1).iter().any(|notice| matches!(notice, Notice::Cut(..))));
    assert_eq!(net.send(1, 2, b"x"), Err(MeshError::UnknownPeer(id(2))));
    assert_eq!(net.node(1, |core, _| core.poll_timeout()), None);
    // Its packets match no peer; its next handshake is that of an unknown node.
    net.send(2, 1, b"x").unwrap();
    net.pump();
    assert_eq!(net.counters(1)[MeshCount::DroppedUnknownSession], 1);
}

#[test]
fn a_released_peer_goes_once_it_has_no_session() {
    let mut net = Net::new(3);
    net.connect(1, 2);
    net.node(1, |core, now| core.set_peer(now, id(9), &[at(90)], None));
    assert_eq!(net.node(1, |core, _| core.peers.len()), 3);
    net.node(1, |core, _| core.release_peer(&id(9)));
    net.node(1, |core, _| core.release_peer(&id(2)));
    assert!(net.reaches(1, 2) && net.reaches(2, 1), "it has a session");
    assert_eq!(net.node(1, |core, _| core.peers.len()), 2);
    // A named peer keeps its place without one.
    net.keep = Box::new(|_| false);
    net.seconds(900);
    assert_eq!(net.node(1, |core, _| core.peers.len()), 1);
    assert_eq!(net.send(1, 2, b"x"), Err(MeshError::UnknownPeer(id(2))));
    assert_eq!(net.send(1, 3, b"x"), Ok(()));
}

#[test]
fn a_machine_that_woke_makes_new_sessions_at_once_from_any_of_its_addresses() {
    let mut net = Net::new(3);
    net.connect(1, 2);
    net.connect(1, 3);
    net.seconds(1);
    net.sent.clear();
    net.node(1, Core::wake);
    net.pump();
    let initiations = net.sent.iter().filter(|sent| sent.is_initiation()).count();
    assert_eq!(initiations, 2, "to each peer with a session");
    assert_eq!(net.counters(1)[MeshCount::HandshakesCompleted], 4);
    assert!(net.reaches(1, 2) && net.reaches(3, 1));
    // There is no peer: nothing is sent, and nothing becomes due.
    net.seconds(400);
    assert!(!net.up(1, 2));
    net.sent.clear();
    net.node(1, Core::wake);
    net.pump();
    assert!(net.sent.is_empty());
}

#[test]
fn a_machine_that_woke_where_nobody_answers_tries_on() {
    let mut net = Net::new(2);
    net.connect(1, 2);
    net.keep = Box::new(|_| false);
    net.node(1, Core::wake);
    net.seconds(3);
    let tries = net.counters(1)[MeshCount::InitiationsSent];
    assert!(tries >= 3, "{tries}");
    net.keep = Box::new(|_| true);
    net.seconds(2);
    assert!(net.reaches(1, 2) && net.reaches(2, 1));
}

/// Whether a node has freed the memory for sessions with another.
fn rests(net: &Net, number: u8, other: u8) -> bool {
    net.nodes[&at(number)].peer(&id(other)).unwrap().tunnel.is_at_rest()
}

#[test]
fn a_tunnel_has_room_for_sessions_while_there_are_any() {
    let mut net = Net::new(2);
    assert!(rests(&net, 1, 2) && rests(&net, 2, 1), "nobody has said anything");
    net.connect(1, 2);
    net.seconds(170);
    assert!(!rests(&net, 1, 2) && !rests(&net, 2, 1));
    net.seconds(20);
    assert!(rests(&net, 1, 2) && rests(&net, 2, 1), "the session has ended");
    assert!(net.reaches(2, 1));
    assert!(!rests(&net, 1, 2) && !rests(&net, 2, 1));
    net.seconds(190);
    net.keep = Box::new(|_| false);
    net.send(1, 2, b"lost").unwrap();
    net.seconds(60);
    assert!(!rests(&net, 1, 2), "it tries on");
    net.seconds(60);
    assert!(rests(&net, 1, 2), "the handshake was given up");
}

#[test]
fn a_recorded_initiation_for_a_tunnel_at_rest_changes_nothing() {
    let mut net = Net::new(2);
    net.connect(1, 2);
    net.seconds(190);
    assert!(rests(&net, 2, 1));
    let recorded = net.sent.iter().find(|sent| sent.is_initiation()).unwrap().bytes.clone();
    let elsewhere = at(66);
    net.deliver(elsewhere, at(2), &recorded);
    net.pump();
    assert_eq!((net.up(2, 1), net.endpoint(2, 1)), (false, Some(at(1))));
    // Again, and it is as old as the last.
    let before = net.counters(2)[MeshCount::DroppedReplayedInitiation];
    net.seconds(1);
    net.deliver(elsewhere, at(2), &recorded);
    assert_eq!(net.counters(2)[MeshCount::DroppedReplayedInitiation], before + 1);
    // The node that made it is accepted as before.
    assert!(net.reaches(1, 2) && net.reaches(2, 1));
    assert_eq!(net.endpoint(2, 1), Some(at(1)));
}

/// Both ends of a path got new mappings: neither hears the other, and a third node informs both.
#[test]
fn a_silent_peer_that_announces_another_address_is_tried_there_at_once() {
    let mut net = Net::new(2);
    net.connect(1, 2);
    net.seconds(1);
    let moved = net.nodes.remove(&at(2)).unwrap();
    net.nodes.insert(at(12), moved);
    net.send(1, 2, b"lost").unwrap();
    net.run(Duration::from_millis(500));
    net.node(1, |core, now| core.set_peer(now, id(2), &[at(12)], None));
    net.run(Duration::from_millis(600));
    assert_eq!(net.endpoint(1, 2), Some(at(12)));
    assert_eq!(net.counters(1)[MeshCount::HandshakesAfterSilence], 1);
}

#[test]
fn a_peer_that_announces_another_address_and_answers_is_left_alone() {
    let mut net = Net::new(2);
    net.connect(1, 2);
    net.node(1, |core, now| core.set_peer(now, id(2), &[at(12)], None));
    for _ in 0..5 {
        assert!(net.reaches(1, 2) && net.reaches(2, 1));
        net.seconds(1);
    }
    // Later silence is not attributed to that move, and neither is a repeated announcement.
    net.node(1, |core, now| core.set_peer(now, id(2), &[at(12)], None));
    net.keep = Box::new(|_| false);
    net.send(1, 2, b"lost").unwrap();
    net.seconds(5);
    assert_eq!(net.counters(1)[MeshCount::InitiationsSent], 1);
    assert_eq!(net.endpoint(1, 2), Some(at(2)));
}
