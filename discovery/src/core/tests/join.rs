//! Joining, news, leaving, restarting and cold starts.

use std::time::Duration;

use meshport_config::NodeId;

use super::net::{Net, ms, secs};
use crate::Count;
use crate::core::{Discovery, Event};
use crate::directory::Liveness;
use crate::paths::PathState;
use crate::state::OriginState;
use crate::wire::{Item, Message};

#[test]
fn three_nodes_find_each_other_through_one_seed() {
    let mut net = Net::with_nodes(1, 3, 3, 1);
    net.until(secs(5), "joining", Net::agreed);
    assert_eq!(net.sees_service(2, 0), Some(OriginState::Ready));
    net.until(secs(5), "measuring", |net| {
        let path = |number| net.get(number).paths().get(&net.id(0)).map(|path| path.state);
        path(1) == Some(PathState::Up) && path(2) == Some(PathState::Up)
    });
    let rtt = net.get(2).paths().get(&net.id(0)).unwrap().rtt.unwrap();
    assert!((ms(48)..ms(60)).contains(&rtt), "{rtt:?}");
}

#[test]
fn sixty_nodes_in_five_sites_agree_within_seconds() {
    let mut net = Net::with_nodes(2, 60, 5, 3);
    net.until(secs(10), "60 nodes joining at once", Net::agreed);
    net.until(secs(200), "60 nodes quiescent", Net::identical);
    assert_eq!(net.unroutable, 0, "nobody is contacted before it is known where it is");
}

#[test]
fn a_start_costs_the_mesh_one_record() {
    let mut net = Net::with_nodes(2, 20, 3, 0);
    net.run(secs(30));
    assert!(net.agreed());
    for number in 0..20 {
        assert_eq!(net.get(number).counters()[Count::Published], 1, "with its endpoint");
    }
}

#[test]
fn the_same_seed_gives_the_same_trace_and_another_seed_another() {
    let trace = |seed| {
        let mut net = Net::with_nodes(seed, 20, 3, 2);
        net.links.loss_percent = 2;
        net.run(secs(20));
        net.crash(7);
        net.run(secs(10));
        net.hash
    };
    assert_eq!(trace(3), trace(3));
    assert_ne!(trace(3), trace(4));
}

#[test]
fn news_of_an_unready_origin_is_everywhere_within_a_second() {
    let mut net = Net::with_nodes(5, 60, 5, 3);
    net.links.loss_percent = 1;
    net.run(secs(30));
    net.set_service(1, OriginState::Unready);
    net.until(ms(1500), "news", |net| {
        net.running().all(|it| net.sees_service(it, 1) == Some(OriginState::Unready))
    });
    net.set_service(1, OriginState::Ready);
    net.until(ms(1500), "good news", |net| {
        net.running().all(|it| net.sees_service(it, 1) == Some(OriginState::Ready))
    });
}

#[test]
fn every_connected_peer_has_news_within_a_round_trip() {
    let mut net = Net::with_nodes(9, 12, 3, 2);
    net.run(secs(60));
    let round_trip = |net: &Net, number| {
        let path = net.get(number).paths().get(&net.id(1)).expect("origins are measured");
        path.rtt.expect("for a minute")
    };
    let slowest = net.running().filter(|it| *it != 1).map(|it| round_trip(&net, it)).max();
    let slowest = slowest.expect("there are others");
    net.set_service(1, OriginState::Unready);
    net.until(slowest, "news to connected peers", |net| {
        net.running().all(|it| net.sees_service(it, 1) == Some(OriginState::Unready))
    });
}

#[test]
fn a_leave_is_known_at_once_and_is_not_a_crash() {
    let mut net = Net::with_nodes(6, 20, 3, 2);
    net.until(secs(20), "joining", Net::agreed);
    net.with(1, Discovery::leave);
    net.until(ms(1500), "farewell", |net| {
        net.running().filter(|it| *it != 1).all(|it| net.sees(it, 1) == Some(Liveness::Left))
    });
    net.run(secs(1));
    net.crash(1);
    let start = net.now();
    net.run(secs(30));
    let suspicions: u64 = net.running().map(|it| net.get(it).counters()[Count::Suspicions]).sum();
    assert_eq!(suspicions, 0, "nobody waits for a node that said farewell");
    assert!(net.running().all(|it| net.sees(it, 1) == Some(Liveness::Left)));
    let downs = net.count_events(0, start, |event| matches!(event, Event::MemberDown(_)));
    assert_eq!(downs, 0);
    net.start(1, &[0]);
    net.until(secs(5), "back after a leave", Net::agreed);
}

#[test]
fn a_restarted_node_is_back_at_once_in_a_new_generation() {
    let mut net = Net::with_nodes(7, 20, 3, 2);
    net.until(secs(20), "joining", Net::agreed);
    net.crash(5);
    net.run(ms(300));
    net.start(5, &[0]);
    net.until(secs(4), "a quick restart", Net::agreed);
    let generation = |net: &Net| {
        let entry = net.get(3).directory().get(&net.id(5)).unwrap().node_state().unwrap();
        entry.generation
    };
    assert_eq!(generation(&net), 2);
    net.crash(5);
    net.until(secs(15), "death", |net| {
        net.running().all(|it| net.sees(it, 5) == Some(Liveness::Down))
    });
    net.start(5, &[0]);
    net.until(secs(4), "a restart after death", Net::agreed);
    assert_eq!(generation(&net), 3);
}

#[test]
fn a_mesh_boots_cold_from_snapshots_without_any_seed() {
    let mut net = Net::with_nodes(8, 12, 3, 2);
    net.until(secs(20), "joining", Net::agreed);
    net.run(secs(5));
    let snapshots: Vec<_> = (0..12).map(|it| net.get(it).snapshot()).collect();
    for number in 0..12 {
        net.crash(number);
    }
    net.run(secs(60));
    for (number, snapshot) in snapshots.iter().enumerate() {
        net.boot(number, &[], Some(snapshot));
        let unknown = net
            .get(number)
            .directory()
            .iter()
            .filter(|(_, entry)| entry.liveness == Liveness::Unknown);
        assert_eq!(unknown.count(), 11);
    }
    net.until(secs(20), "cold boot", Net::agreed);
}

#[test]
fn a_generation_that_was_lost_is_found_again_in_the_mesh() {
    let mut net = Net::with_nodes(9, 10, 2, 1);
    net.until(secs(20), "joining", Net::agreed);
    net.nodes[4].generation = 50;
    net.crash(4);
    net.start(4, &[0]);
    net.until(secs(5), "restart", Net::agreed);
    net.crash(4);
    net.nodes[4].generation = 0;
    net.start(4, &[0]);
    net.until(secs(15), "restart in an old generation", Net::agreed);
    assert!(net.get(4).generation() > 51);
}

#[test]
fn a_lone_node_keeps_announcing_to_its_seeds_forever() {
    let mut net = Net::new(10);
    for _ in 0..2 {
        net.add(0, "node");
    }
    net.start(1, &[0]);
    net.run(secs(600));
    let before = net.get(1).counters()[Count::SentPackets];
    net.run(secs(120));
    let sent = net.get(1).counters()[Count::SentPackets] - before;
    assert!((3..20).contains(&sent), "{sent} announcements in two minutes");
    net.start(0, &[]);
    net.until(secs(40), "the seed comes up", Net::agreed);
}

#[test]
fn a_joiner_fetches_a_thousand_records_in_seconds() {
    let mut net = Net::new(21);
    net.links.loss_percent = 1;
    net.links.latency = |a, b| if a == b { 1 } else { 40 };
    for number in 0..1001 {
        net.add(number % 2, "node");
    }
    net.start(0, &[]);
    // The first node learns of all others; none of them runs.
    for number in 1..1000 {
        let member = &net.nodes[number].member;
        let (node, credential) = (member.credential.node, member.credential.clone());
        let signed = member.sign(member.state(1, 1));
        let item = Item { state: Some(signed.as_bytes()), ..Item::about(&node) };
        let bytes = Message::News(item).encode().unwrap();
        let wall = net.wall();
        net.with(0, |seed, now| {
            seed.handle_credential(&credential, now, wall);
            seed.handle_datagram(node, &bytes, now, wall);
        });
    }
    net.start(1000, &[0]);
    let with_state = |net: &Net| {
        let directory = net.get(1000).directory();
        directory.iter().filter(|(_, entry)| entry.state.is_some()).count()
    };
    net.until(secs(10), "fetching 1000 records", |net| with_state(net) == 1001);
}

#[test]
fn a_node_that_is_gone_for_long_is_forgotten_by_all_and_stays_so() {
    let mut net = Net::new(22);
    net.config.forget_after = secs(120);
    for number in 0..12 {
        net.add(number % 3, "node");
    }
    for number in 0..12 {
        net.start(number, &[0]);
    }
    net.until(secs(10), "joining", Net::agreed);
    let late = net.get(3).snapshot();
    net.with(1, Discovery::leave);
    net.run(secs(2));
    net.crash(1);
    net.crash(2);
    net.run(secs(30));
    // One node was off while the others began to forget, and still has both in its snapshot.
    net.crash(3);
    net.run(secs(170));
    let known = |net: &Net| -> usize {
        let gone = [net.id(1), net.id(2)];
        let entries = net.running().flat_map(|it| net.get(it).directory().iter());
        entries.filter(|(node, _)| gone.contains(node)).count()
    };
    assert_eq!(known(&net), 0);
    net.boot(3, &[0], Some(&late));
    net.until(secs(10), "a late restart", Net::agreed);
    net.run(secs(60));
    let others = known(&net);
    assert!(others <= 2, "only the late one may still know the two, {others}");
    net.run(secs(700));
    assert_eq!(known(&net), 0);
    net.start(2, &[0]);
    net.until(secs(10), "a return", Net::agreed);
}

#[test]
fn members_whose_credential_ran_out_go_and_come_back_with_the_clock() {
    let mut net = Net::with_nodes(23, 3, 1, 1);
    net.until(secs(10), "joining", Net::agreed);
    let much_later = meshport_config::UnixSeconds(net.wall().0 + 3 * 365 * 24 * 3600);
    net.run(secs(20));
    let node = net.id(1);
    net.with(0, |discovery, now| discovery.handle_timeout(now + secs(11), much_later));
    assert!(net.get(0).directory().get(&node).is_none());
    assert_eq!(net.get(0).directory().len(), 1, "its own entry stays");
    net.run(secs(12));
    // The clock is right again and the mesh admits them anew.
    let credential = net.nodes[1].member.credential.clone();
    let wall = net.wall();
    net.with(0, |discovery, now| discovery.handle_credential(&credential, now, wall));
    net.until(secs(10), "return", |net| net.sees(0, 1) == Some(Liveness::Alive));
}

#[test]
fn a_newcomer_gets_the_origins_before_it_asks() {
    let mut net = Net::with_nodes(11, 30, 3, 4);
    net.until(secs(20), "joining", Net::agreed);
    // Only the answer to the announcement can bring records this soon.
    net.config.sync_interval = secs(600);
    let newcomer = net.add(1, "node");
    net.start(newcomer, &[0]);
    net.until(secs(2), "being taken in", |net| net.sees(0, newcomer) == Some(Liveness::Alive));
    let round_trip = 2 * (net.links.latency)(1, 0);
    net.run(ms(round_trip / 2 + 1));
    for origin in 0..4 {
        let known = net.sees_service(newcomer, origin);
        assert_eq!(known, Some(OriginState::Ready), "origin {origin}");
    }
}

/// The situation while a thousand nodes join through one seed.
#[test]
fn a_seed_without_allowance_still_sends_a_newcomer_the_origins() {
    let mut net = Net::with_nodes(12, 30, 3, 4);
    net.until(secs(20), "joining", Net::agreed);
    net.config.sync_interval = secs(600);
    let peers: Vec<NodeId> = (1..30).map(|number| net.id(number)).collect();
    let newcomer = net.add(1, "node");
    net.start(newcomer, &[0]);
    let question = Message::Root([0; 8]).encode().expect("small");
    let wall = net.wall();
    let ask = |net: &mut Net, times: usize| {
        net.with(0, |seed, now| {
            for peer in peers.iter().flat_map(|peer| std::iter::repeat_n(*peer, times)) {
                seed.handle_datagram(peer, &question, now, wall);
            }
            while seed.poll_transmit().is_some() {}
        });
    };
    ask(&mut net, 256);
    let deadline = net.now() + secs(2);
    while net.sees(0, newcomer) != Some(Liveness::Alive) {
        assert!(net.now() < deadline, "it is not taken in");
        // Before it may send another datagram.
        ask(&mut net, 1);
        net.run(Duration::from_micros(400));
    }
    assert!(net.get(0).counters()[Count::DroppedRequests] > 0, "the seed had answers left");
    let round_trip = 2 * (net.links.latency)(1, 0);
    net.run(ms(round_trip / 2 + 1));
    for origin in 0..4 {
        let known = net.sees_service(newcomer, origin);
        assert_eq!(known, Some(OriginState::Ready), "origin {origin}");
    }
}
