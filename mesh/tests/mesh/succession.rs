//! A mesh that leaves its socket to a successor while its streams go on.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::*;
use meshport_config::{Credential, RecordKey, Subject, Succession, UnixSeconds};
use meshport_mesh::testing::{Datagram, Switch};
use meshport_mesh::{Identity, Mesh, MeshConfig, MeshCount, MeshError, ProcessTag, Shards, Stream};
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::task::yield_now;

/// Far above the second that a test takes alone: suite unit gets the processor time that is left.
const LIMIT: Duration = Duration::from_secs(180);
/// Limit on noticing an end: far below the 90 s after which QUIC ends a silent connection by
/// itself.
const SOON: Duration = Duration::from_secs(40);

/// The sockets of the processes before, with their tags.
type Earlier = Vec<(ProcessTag, Vec<OwnedFd>)>;

fn copies(earlier: &Earlier) -> Earlier {
    let copy = |sockets: &Vec<OwnedFd>| sockets.iter().map(|it| it.try_clone().unwrap()).collect();
    earlier.iter().map(|(tag, sockets)| (*tag, copy(sockets))).collect()
}

/// The next process of node `number`, which knows the other one.
fn successor(switch: &Switch, number: u8, tag: ProcessTag, earlier: &Earlier) -> Node {
    let shards = Shards::one(switch.attach(at(number)));
    let shards = shards.continuing(tag, copies(earlier)).unwrap();
    let (identity, config) = (World::new(1).identity(number), MeshConfig::default());
    let started = Mesh::start_on(shards, &identity, &config, [100 + tag; 32], || WALL);
    let (mesh, incoming) = started.unwrap();
    let other = 3 - number;
    mesh.set_peer(id(other), &[at(other)], None);
    mesh.connect(&id(other));
    Node { mesh, incoming }
}

/// Writes on an open stream to an echo and reads that back.
async fn still_talks(stream: &mut Stream, text: &[u8]) {
    within(LIMIT, async {
        write(&mut stream.send, text).await;
        let mut read = Vec::new();
        while read.len() < text.len() {
            let mut chunk = [bytes::Bytes::new()];
            stream.recv.read_chunks(&mut chunk).await.unwrap().expect("not the end");
            read.extend_from_slice(&chunk[0]);
        }
        assert_eq!(read, text);
    })
    .await;
}

/// Two nodes that answer streams, and a stream of each to the other.
async fn talking(switch: &Switch) -> ([Mesh; 2], [Stream; 2]) {
    let (a, b) = pair(switch);
    let (a, b) = (echo(a).0, echo(b).0);
    let mut from_a = a.open_stream(id(2)).await.unwrap();
    let mut from_b = b.open_stream(id(1)).await.unwrap();
    still_talks(&mut from_a, b"before").await;
    still_talks(&mut from_b, b"before").await;
    ([a, b], [from_a, from_b])
}

#[tokio::test]
async fn streams_of_both_sides_outlive_two_upgrades_and_one_of_the_peer() {
    let switch = Switch::new(1);
    switch.set_delay(Duration::from_millis(5));
    let ([a, b], [mut from_a, mut from_b]) = talking(&switch).await;

    let mut earlier: Earlier = vec![(0, a.detach().unwrap())];
    let late = a.open_stream(id(2));
    let (a2, _a2_serves) = echo(successor(&switch, 1, 1, &earlier));
    still_talks(&mut from_a, b"after the upgrade of its opener").await;
    still_talks(&mut late.await.unwrap(), b"on a connection that is there").await;
    still_talks(&mut from_b, b"after the upgrade of its server").await;
    // New streams in both directions are those of the successor.
    let mut second_from_a = a2.open_stream(id(2)).await.unwrap();
    let mut second_from_b = b.open_stream(id(1)).await.unwrap();
    still_talks(&mut second_from_a, b"new").await;
    still_talks(&mut second_from_b, b"new").await;
    let peers = b.peers();
    let status = peers.iter().find(|it| it.node == id(1)).unwrap();
    assert!(status.streams >= 4, "{status:?}");
    assert_eq!(a.counters()[MeshCount::StreamsAccepted], 1);
    assert_eq!(a2.counters()[MeshCount::StreamsAccepted], 1);

    // The other side is upgraded as well.
    let earlier_b: Earlier = vec![(0, b.detach().unwrap())];
    let (b2, _b2_serves) = echo(successor(&switch, 2, 1, &earlier_b));
    for stream in [&mut from_a, &mut from_b, &mut second_from_a, &mut second_from_b] {
        still_talks(stream, b"after the upgrade of both").await;
    }

    earlier.push((1, a2.detach().unwrap()));
    let (a3, _a3_serves) = echo(successor(&switch, 1, 2, &earlier));
    let big = vec![7; 3_000_000];
    for stream in [&mut from_a, &mut from_b, &mut second_from_a, &mut second_from_b] {
        still_talks(stream, &big).await;
    }
    within(LIMIT, round_trip(&a3, id(2), b"third")).await.unwrap();
    within(LIMIT, round_trip(&b2, id(1), b"third")).await.unwrap();
    for mesh in [&a, &a2, &a3, &b, &b2] {
        assert_eq!(mesh.counters()[MeshCount::ConnectionsCut], 0);
    }
}

#[tokio::test]
async fn a_mesh_that_has_left_its_socket_makes_no_connection() {
    let switch = Switch::new(1);
    let (a, _b) = pair(&switch);
    let _sockets = a.mesh.detach().unwrap();
    let opened = within(LIMIT, a.mesh.open_stream(id(2))).await;
    assert_eq!(opened.unwrap_err(), MeshError::Closed);
}

#[tokio::test]
async fn a_successor_that_does_not_continue_ends_the_streams() {
    let switch = Switch::new(1);
    let ([a, _b], [_from_a, mut from_b]) = talking(&switch).await;
    drop(a.detach().unwrap());
    let _next = successor(&switch, 1, 0, &Vec::new());
    let end = within(SOON, read_to_end(&mut from_b.recv)).await;
    assert!(matches!(end, Err(MeshError::ConnectionLost { .. })), "{end:?}");
}

#[tokio::test]
async fn streams_end_soon_when_the_process_that_has_them_crashes() {
    let switch = Switch::new(1);
    // Its tasks vanish with it, as those of a process that is killed.
    let process = Builder::new_current_thread().enable_all().build().unwrap();
    let handle = process.handle().clone();
    let (kill, killed) = oneshot::channel::<()>();
    let process = thread::spawn(move || process.block_on(killed));
    let world = World::new(1);
    let entered = handle.enter();
    let (a, _a_serves) = echo(start(world.identity(1), switch.attach(at(1)), 1));
    drop(entered);
    let (b, _b_serves) = echo(start(world.identity(2), switch.attach(at(2)), 2));
    a.set_peer(id(2), &[at(2)], None);
    b.set_peer(id(1), &[at(1)], None);
    let mut from_b = b.open_stream(id(1)).await.unwrap();
    still_talks(&mut from_b, b"before").await;
    let earlier: Earlier = vec![(0, a.detach().unwrap())];
    let (_a2, _a2_serves) = echo(successor(&switch, 1, 1, &earlier));
    drop(earlier);
    still_talks(&mut from_b, b"after the upgrade").await;
    kill.send(()).unwrap();
    process.join().unwrap().unwrap();
    drop(a);
    write(&mut from_b.send, b"is anyone there?").await;
    let end = within(SOON, read_to_end(&mut from_b.recv)).await;
    assert!(matches!(end, Err(MeshError::ConnectionLost { .. })), "{end:?}");
}

#[tokio::test]
async fn a_connection_that_comes_about_too_late_is_not_used() {
    let switch = Switch::new(1);
    // The datagrams that reach the first node.
    let delivered = Arc::new(AtomicU64::new(0));
    let count = move |delivered: &AtomicU64, datagram: &Datagram| {
        delivered.fetch_add(u64::from(datagram.from == at(2)), Ordering::Relaxed);
        true
    };
    let counted = Arc::clone(&delivered);
    switch.set_filter(move |datagram| count(&counted, datagram));
    let (a, b) = pair(&switch);
    let ((a, _a_serves), (b, _b_serves)) = (echo(a), echo(b));
    b.ping(id(1), LIMIT).await.unwrap();
    let is_long = |datagram: &Datagram| datagram.bytes.len() > 1200;
    // The first packet arrives, its answer and repetitions do not.
    let (reached, has_reached) = oneshot::channel();
    let mut reached = Some(reached);
    let counted = Arc::clone(&delivered);
    switch.set_filter(move |datagram| {
        let is_first = datagram.from == at(2) && reached.is_some();
        if is_long(datagram) && is_first {
            let _ = reached.take().unwrap().send(());
        }
        (!is_long(datagram) || is_first) && count(&counted, datagram)
    });
    let opened = tokio::spawn({
        let b = b.clone();
        async move { b.open_stream(id(1)).await }
    });
    has_reached.await.unwrap();
    within(SOON, async {
        while a.counters()[MeshCount::DatagramsReceived] < delivered.load(Ordering::Relaxed) {
            yield_now().await;
        }
    })
    .await;
    let earlier: Earlier = vec![(0, a.detach().unwrap())];
    let (a2, _a2_serves) = echo(successor(&switch, 1, 1, &earlier));
    within(SOON, async {
        while b.counters()[MeshCount::RestartsSeen] == 0 {
            yield_now().await;
        }
    })
    .await;
    // What the first process repeats arrives before what the peer repeats.
    let mut is_over = false;
    switch.set_filter(move |datagram| {
        is_over |= is_long(datagram) && datagram.from == at(1);
        is_over || !is_long(datagram)
    });
    // It may end before the stream is open.
    if let Ok(mut stream) = within(SOON, opened).await.unwrap() {
        within(SOON, read_to_end(&mut stream.recv)).await.unwrap_err();
    }
    switch.clear_filter();
    within(LIMIT, round_trip(&b, id(1), b"new")).await.unwrap();
    assert_eq!(a.counters()[MeshCount::StreamsAccepted], 0);
    assert_eq!(a2.counters()[MeshCount::StreamsAccepted], 1);
}

/// The identity of node `next`, which succeeds node `number`.
fn next_identity(number: u8, next: u8) -> Identity {
    let world = World::new(1);
    let former = key(number);
    let mesh = world.authority.public();
    let subject = Subject {
        node: id(next),
        record_key: RecordKey::from_bytes([8; 32]).public(),
        name: format!("node-{number}").parse().unwrap(),
        site: "fra".parse().unwrap(),
        roles: "node".parse().unwrap(),
        succession: Some(Succession::agree(&former, &id(next), &mesh, WALL)),
    };
    let until = UnixSeconds(WALL.0 + 86_400);
    let issued = Credential::issue_by_authority(&world.authority, subject, WALL, until).unwrap();
    let credential = issued.countersign(&key(next)).unwrap();
    Identity { key: key(next), credential, secret: world.secret }
}

#[tokio::test]
async fn streams_of_nodes_that_have_changed_their_keys_outlive_an_upgrade() {
    let switch = Switch::new(1);
    let ([a, b], [mut from_a, mut from_b]) = talking(&switch).await;
    b.succeed(&next_identity(2, 3)).unwrap();
    a.succeed(&next_identity(1, 4)).unwrap();
    let both_follow = async {
        while a.endpoint(&id(3)).is_none() || b.endpoint(&id(4)).is_none() {
            yield_now().await;
        }
    };
    within(LIMIT, both_follow).await;

    let earlier: Earlier = vec![(0, a.detach().unwrap())];
    let shards = Shards::one(switch.attach(at(1))).continuing(1, copies(&earlier)).unwrap();
    let (identity, config) = (next_identity(1, 4), MeshConfig::default());
    let started = Mesh::start_on(shards, &identity, &config, [101; 32], || WALL);
    let (mesh, incoming) = started.unwrap();
    let (a2, _a2_serves) = echo(Node { mesh, incoming });
    // As its saved directory says.
    a2.set_peer(id(3), &[at(2)], None);
    a2.connect(&id(3));
    still_talks(&mut from_a, b"after the upgrade of its opener").await;
    still_talks(&mut from_b, b"after the upgrade of its server").await;
}
