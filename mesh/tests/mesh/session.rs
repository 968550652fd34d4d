//! Sessions and streams between nodes on a network in memory, in stopped time.

use std::time::Duration;

use crate::common::*;
use meshport_mesh::testing::Switch;
use meshport_mesh::{MeshCount, MeshError, MeshEvent, ports};

#[tokio::test(start_paused = true)]
async fn a_stream_carries_bytes_both_ways() {
    let switch = Switch::new(1);
    let (a, b) = pair(&switch);
    let (_b, _task) = echo(b);
    within(Duration::from_secs(2), round_trip(&a.mesh, id(2), b"hello")).await.unwrap();
    let counters = a.mesh.counters();
    assert_eq!(counters[MeshCount::ConnectionsOpened], 1);
    assert_eq!(counters[MeshCount::InitiationsSent], 1);
}

#[tokio::test(start_paused = true)]
async fn datagrams_wait_for_the_handshake_and_arrive_in_order() {
    let switch = Switch::new(1);
    switch.set_delay(Duration::from_millis(20));
    let (a, mut b) = pair(&switch);
    for n in 0..20u8 {
        a.mesh.send_datagram(id(2), ports::GOSSIP, &[n]).unwrap();
    }
    for n in 0..20u8 {
        let (from, port, payload) = within(Duration::from_secs(2), datagram(&mut b)).await;
        assert_eq!((from, port, &payload[..]), (id(1), ports::GOSSIP, &[n][..]));
    }
}

#[tokio::test(start_paused = true)]
async fn both_sides_are_admitted_and_reported_once() {
    let switch = Switch::new(1);
    let (mut a, mut b) = pair(&switch);
    a.mesh.connect(&id(2));
    for (node, other) in [(&mut a, 2), (&mut b, 1)] {
        let first = within(Duration::from_secs(2), state_event(node)).await;
        let MeshEvent::Admitted { credential } = first else { panic!("{first:?}") };
        assert_eq!(credential.node, id(other));
        let second = within(Duration::from_secs(2), state_event(node)).await;
        assert!(matches!(second, MeshEvent::SessionUp(node) if node == id(other)), "{second:?}");
        let third = within(Duration::from_secs(2), state_event(node)).await;
        let own = at(3 - other);
        assert!(matches!(third, MeshEvent::SeenAt { at, .. } if at == own), "{third:?}");
        assert!(node.incoming.events.try_recv().is_err());
        let status = &node.mesh.peers()[0];
        assert!(status.admitted && status.session);
        assert_eq!(status.name.as_ref().unwrap().to_string(), format!("node-{other}"));
        assert_eq!(node.mesh.credential(&id(other)).unwrap().node, id(other));
    }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_reached_is_said_so() {
    let switch = Switch::new(1);
    let (a, _b) = pair(&switch);
    assert_eq!(a.mesh.open_stream(id(9)).await.unwrap_err(), MeshError::UnknownPeer(id(9)));
    assert_eq!(a.mesh.open_stream(id(1)).await.unwrap_err(), MeshError::OwnNode(id(1)));
    a.mesh.set_peer(id(8), &[], None);
    assert_eq!(a.mesh.open_stream(id(8)).await.unwrap_err(), MeshError::NoEndpoint(id(8)));
    a.mesh.set_peer(id(7), &[at(7)], None);
    assert_eq!(a.mesh.open_stream(id(7)).await.unwrap_err(), MeshError::Unreachable(id(7)));
    let long = [0; 1201];
    let error = a.mesh.send_datagram(id(2), ports::GOSSIP, &long).unwrap_err();
    assert_eq!(error, MeshError::TooLarge { length: 1201, limit: 1200 });
}

#[tokio::test(start_paused = true)]
async fn ping_measures_the_round_trip() {
    let switch = Switch::new(1);
    let (a, _b) = pair(&switch);
    within(Duration::from_secs(2), a.mesh.ping(id(2), Duration::from_secs(1))).await.unwrap();
    switch.set_delay(Duration::from_millis(30));
    let rtt = a.mesh.ping(id(2), Duration::from_secs(1)).await.unwrap();
    assert!((60..65).contains(&rtt.as_millis()), "{rtt:?}");
    switch.set_loss(1.0);
    let lost = a.mesh.ping(id(2), Duration::from_secs(1)).await.unwrap_err();
    assert_eq!(lost, MeshError::Unreachable(id(2)));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_moves_keeps_its_streams() {
    let switch = Switch::new(1);
    switch.set_delay(Duration::from_millis(10));
    let (a, b) = pair(&switch);
    let (b, _task) = echo(b);
    let mut stream = a.mesh.open_stream(id(2)).await.unwrap();
    write(&mut stream.send, b"before").await;
    assert_eq!(read_some(&mut stream.recv).await.unwrap().unwrap(), "before");
    switch.move_port(at(1), at(9));
    write(&mut stream.send, b"after").await;
    let answer = within(Duration::from_secs(1), read_some(&mut stream.recv)).await;
    assert_eq!(answer.unwrap().unwrap(), "after");
    assert_eq!(b.peers()[0].endpoint, Some(at(9)));
    assert_eq!(b.counters()[MeshCount::Roams], 1);
}

#[tokio::test(start_paused = true)]
async fn status_shows_what_an_operator_asks() {
    let switch = Switch::new(1);
    switch.set_delay(Duration::from_millis(15));
    let (a, b) = pair(&switch);
    let (b, _task) = echo(b);
    let mut stream = a.mesh.open_stream(id(2)).await.unwrap();
    write(&mut stream.send, b"x").await;
    read_some(&mut stream.recv).await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    for (mesh, other) in [(&a.mesh, 2), (&b, 1)] {
        let peers = mesh.peers();
        let [status] = &peers[..] else { panic!("{peers:?}") };
        assert_eq!((status.node, status.endpoint, status.streams), (id(other), Some(at(other)), 1));
        let rtt = status.quic_rtt.unwrap().as_millis();
        assert!((30..50).contains(&rtt), "{rtt} ms");
        assert!((3000..3200).contains(&status.last_handshake.unwrap().as_millis()));
        assert!(status.rx_bytes > 0 && status.tx_bytes > 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_hundred_nodes_meet_at_one() {
    let switch = Switch::new(1);
    switch.set_delay(Duration::from_millis(5));
    let world = World::new(1);
    let hub = start(world.identity(200), switch.attach(at(200)), 200);
    let (hub, _task) = echo(hub);
    let nodes: Vec<Node> = (1..=100)
        .map(|n| {
            let node = start(world.identity(n), switch.attach(at(n)), n);
            node.mesh.set_peer(id(200), &[at(200)], None);
            node
        })
        .collect();
    let work = nodes.iter().map(|node| {
        let mesh = node.mesh.clone();
        tokio::spawn(async move { round_trip(&mesh, id(200), b"hello").await })
    });
    for task in work.collect::<Vec<_>>() {
        within(Duration::from_secs(5), task).await.unwrap().unwrap();
    }
    assert_eq!(hub.peers().iter().filter(|peer| peer.admitted).count(), 100);
}

#[test]
fn handles_may_be_shared_between_threads() {
    fn shared<T: Send + Sync + 'static>() {}
    fn sent<T: Send + 'static>() {}
    shared::<meshport_mesh::Mesh>();
    shared::<meshport_mesh::SendHalf>();
    shared::<meshport_mesh::RecvHalf>();
    sent::<meshport_mesh::Incoming>();
}
