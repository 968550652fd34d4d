//! Nodes of several shards, over real UDP sockets on loopback.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use meshport_mesh::testing::unsteered;
use meshport_mesh::{MAX_SHARDS, Mesh, MeshConfig, MeshCount, Shards, UdpOuter};

const LIMIT: Duration = Duration::from_secs(180);
/// The node of several shards.
const HUB: u8 = 1;
/// Nodes around it; enough for every one of four shards to have some.
const PEERS: std::ops::RangeInclusive<u8> = 2..=13;

fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// The hub on `shards`, and a node of one shard for each other number, all knowing the hub.
fn star(shards: Shards) -> (Node, Vec<Node>) {
    let world = World::new(1);
    let config = MeshConfig { connect_timeout: LIMIT, ..MeshConfig::default() };
    let started = Mesh::start_on(shards, &world.identity(HUB), &config, [HUB; 32], || WALL);
    let (mesh, incoming) = started.unwrap();
    let hub = Node { mesh, incoming };
    let peer = |number| {
        let socket = Arc::new(UdpOuter::bind(loopback()).unwrap());
        let node = start_with(world.identity(number), socket, number, config.clone());
        node.mesh.set_peer(id(HUB), &[hub.mesh.local_addr()], None);
        hub.mesh.set_peer(id(number), &[node.mesh.local_addr()], None);
        node
    };
    let peers = PEERS.map(peer).collect();
    (hub, peers)
}

/// Traffic in both directions between the hub and all others at once, on streams opened by either
/// side.
async fn all_talk(hub: &Mesh, peers: &[Mesh]) {
    let bytes: Vec<u8> = (0..300_000_u32).map(|at| (at % 251) as u8).collect();
    let bytes = &bytes;
    let mut talks = Vec::new();
    for mesh in peers {
        talks.push(async move {
            let up = round_trip(mesh, id(HUB), bytes);
            let (up, down) = tokio::join!(up, round_trip(hub, mesh.node_id(), bytes));
            up.unwrap();
            down.unwrap();
        });
    }
    within(LIMIT, async {
        let mut talks: Vec<_> = talks.into_iter().map(Box::pin).collect();
        std::future::poll_fn(|cx| {
            talks.retain_mut(|talk| talk.as_mut().poll(cx).is_pending());
            if talks.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn every_peer_is_served_by_its_shard_and_the_kernel_finds_it() {
    for count in [1, 2, MAX_SHARDS] {
        let shards = Shards::bind(loopback(), 9200, count).unwrap();
        assert_eq!(shards.count(), count);
        let (hub, peers) = star(shards);
        let (hub, _served) = echo(hub);
        let peers: Vec<Mesh> = peers.into_iter().map(|node| echo(node).0).collect();
        all_talk(&hub, &peers).await;

        let status = hub.shards();
        assert_eq!(status.len(), count);
        assert_eq!(status.iter().map(|shard| shard.peers).sum::<usize>(), peers.len());
        for shard in &status {
            assert!(
                shard.peers > 0 && shard.counters[MeshCount::StreamsAccepted] >= shard.peers as u64
            );
        }
        let total = hub.counters();
        // Only handshake initiations have no receiver.
        let initiations =
            peers.iter().map(|mesh| mesh.counters()[MeshCount::InitiationsSent]).sum::<u64>();
        assert!(
            total[MeshCount::HandedOver] <= initiations,
            "{} of {initiations}",
            total[MeshCount::HandedOver]
        );
        assert_eq!(total[MeshCount::DroppedHandOver], 0);
        assert_eq!(hub.peers().len(), peers.len());
        assert!(hub.peers().is_sorted_by_key(|peer| peer.node));
        hub.close().await;
    }
}

#[tokio::test]
async fn without_the_filter_shards_hand_over_what_is_not_theirs() {
    let (hub, peers) = star(unsteered(loopback(), MAX_SHARDS).unwrap());
    let (hub, _served) = echo(hub);
    let peers: Vec<Mesh> = peers.into_iter().map(|node| echo(node).0).collect();
    all_talk(&hub, &peers).await;
    let status = hub.shards();
    // Everything arrived at the first, which kept what was for its own peers.
    assert!(
        status[0].counters[MeshCount::HandedOver] > 1000,
        "{}",
        status[0].counters[MeshCount::HandedOver]
    );
    assert!(status[1..].iter().all(|shard| shard.counters[MeshCount::HandedOver] == 0));
    assert!(status[1..].iter().all(|shard| shard.counters[MeshCount::DatagramsReceived] > 100));
}

#[tokio::test]
async fn a_revocation_cuts_streams_on_every_shard() {
    use meshport_config::{Revocation, Revocations, Revoked};

    let world = World::new(1);
    let (hub, peers) = star(Shards::bind(loopback(), 9200, MAX_SHARDS).unwrap());
    let (hub, _served) = echo(hub);
    let peers: Vec<Mesh> = peers.into_iter().map(|node| echo(node).0).collect();
    let mut open = Vec::new();
    for mesh in &peers {
        let mut stream = within(LIMIT, hub.open_stream(mesh.node_id())).await.unwrap();
        write(&mut stream.send, b"hello").await;
        assert_eq!(read_some(&mut stream.recv).await.unwrap().unwrap(), "hello");
        open.push(stream);
    }
    let mut revocations = Revocations::default();
    for mesh in &peers {
        revocations.add(Revocation::issue(&world.authority, Revoked::Node(mesh.node_id()), WALL));
    }
    hub.set_revocations(&revocations);
    for stream in &mut open {
        within(LIMIT, read_some(&mut stream.recv)).await.unwrap_err();
    }
    assert!(hub.peers().is_empty());
    assert_eq!(hub.counters()[MeshCount::PeersRevoked], peers.len() as u64);
}

#[tokio::test]
async fn a_shard_that_is_stuck_loses_what_it_cannot_hold_and_it_is_counted() {
    let (hub, peers) = star(unsteered(loopback(), 2).unwrap());
    let (hub, _served) = echo(hub);
    let peers: Vec<Mesh> = peers.into_iter().map(|node| echo(node).0).collect();
    let here = tokio::runtime::Handle::current().id();
    let far = |mesh: &&Mesh| hub.runtime_of(&mesh.node_id()).unwrap().id() != here;
    let peer = peers.iter().find(far).unwrap();
    let (stuck, free) = std::sync::mpsc::sync_channel::<()>(0);
    hub.runtime_of(&peer.node_id()).unwrap().spawn(async move { free.recv() });
    // Data for the second shard that arrives at the first.
    let noise = UdpSocket::bind(loopback()).unwrap();
    let mut datagram = [0; 1400];
    (datagram[0], datagram[5]) = (4, 1);
    eventually(|| {
        for _ in 0..100 {
            noise.send_to(&datagram, hub.local_addr()).unwrap();
        }
        hub.shards()[0].counters[MeshCount::DroppedHandOver] > 0
    })
    .await;
    drop(stuck);
    within(LIMIT, round_trip(peer, id(HUB), b"after all")).await.unwrap();
}
