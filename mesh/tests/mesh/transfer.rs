//! Streams under load, over real UDP sockets on loopback.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::*;
use bytes::Bytes;
use meshport_mesh::{Mesh, MeshConfig, MeshCount, MeshError, Stream};

const LIMIT: Duration = Duration::from_secs(180);
const CHUNK: usize = 64 << 10;

fn v4() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

fn udp() -> (Node, Node) {
    udp_pair(v4(), &MeshConfig::default())
}

/// Bytes that reveal every loss, repetition and swap: a counter scrambled by `seed`.
fn pattern(seed: u64, at: u64) -> [u8; 8] {
    (at ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
        .wrapping_mul(0xff51_afd7_ed55_8ccd)
        .to_le_bytes()
}

fn chunk(seed: u64, number: usize) -> Bytes {
    let words = (CHUNK / 8) as u64;
    let first = number as u64 * words;
    (first..first + words).flat_map(|at| pattern(seed, at)).collect::<Vec<u8>>().into()
}

async fn send_all(mut stream: Stream, seed: u64, chunks: usize) {
    for number in 0..chunks {
        stream.send.write_chunk(chunk(seed, number)).await.unwrap();
    }
    stream.send.finish().unwrap();
    assert_eq!(stream.send.stopped().await.unwrap(), None);
}

/// Checks every byte against the pattern.
async fn receive_all(mut stream: Stream, seed: u64, chunks: usize) {
    let mut at = 0;
    let mut expected = Bytes::new();
    let mut number = 0;
    while let Some(mut got) = read_some(&mut stream.recv).await.unwrap() {
        while !got.is_empty() {
            if expected.is_empty() {
                expected = chunk(seed, number);
                number += 1;
            }
            let length = got.len().min(expected.len());
            assert!(got.split_to(length) == expected.split_to(length), "differs after byte {at}");
            at += length;
        }
    }
    assert_eq!(at, chunks * CHUNK);
}

#[tokio::test]
async fn two_big_transfers_at_once_arrive_intact() {
    const CHUNKS: usize = 512;
    let (a, mut b) = udp();
    let (mesh_a, mesh_b) = (a.mesh.clone(), b.mesh.clone());
    let mut a = a;
    // One upload in each direction, on the two connections of the pair.
    let work = async {
        let up = mesh_a.open_stream(id(2)).await.unwrap();
        let down = mesh_b.open_stream(id(1)).await.unwrap();
        tokio::join!(
            send_all(up, 1, CHUNKS),
            send_all(down, 2, CHUNKS),
            async { receive_all(b.incoming.streams.recv().await.unwrap().1, 1, CHUNKS).await },
            async { receive_all(a.incoming.streams.recv().await.unwrap().1, 2, CHUNKS).await },
        );
    };
    within(LIMIT, work).await;
    let counters = mesh_a.counters();
    assert_eq!(counters[MeshCount::DroppedSendError], 0);
    assert_eq!(counters[MeshCount::DroppedUnauthentic], 0);
}

/// Counts what arrives on every incoming stream, by the stream's first byte.
fn sink(mut node: Node, totals: Arc<[AtomicUsize]>) -> Mesh {
    let mesh = node.mesh.clone();
    tokio::spawn(async move {
        while let Some((_, mut stream)) = node.incoming.streams.recv().await {
            let totals = totals.clone();
            tokio::spawn(async move {
                let mut which = None;
                while let Ok(Some(bytes)) = read_some(&mut stream.recv).await {
                    let index = *which.get_or_insert(usize::from(bytes[0]));
                    totals[index].fetch_add(bytes.len(), Ordering::Relaxed);
                }
            });
        }
    });
    mesh
}

#[tokio::test]
async fn eight_streams_share_fairly() {
    let (a, b) = udp();
    let totals: Arc<[AtomicUsize]> = (0..8).map(|_| AtomicUsize::new(0)).collect();
    let _b = sink(b, totals.clone());
    for index in 0..8u8 {
        let mut stream = a.mesh.open_stream(id(2)).await.unwrap();
        tokio::spawn(async move {
            let data = Bytes::from(vec![index; CHUNK]);
            while stream.send.write_chunk(data.clone()).await.is_ok() {}
        });
    }
    let read = || -> Vec<usize> { totals.iter().map(|t| t.load(Ordering::Relaxed)).collect() };
    // Until each has transferred enough to compare, however slow the machine is.
    let enough = async {
        while read().iter().sum::<usize>() < 128 << 20 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    within(LIMIT, enough).await;
    let got = read();
    let (slowest, fastest) = (got.iter().min().unwrap(), got.iter().max().unwrap());
    let ratio = *slowest as f64 / *fastest as f64;
    // Half and less is unfair; smaller differences depend on the machine's scheduling.
    assert!(ratio >= 0.5, "slowest / fastest is {ratio:.2}: {got:?}");
}

#[tokio::test]
async fn a_reader_that_stops_stops_the_writer() {
    /// A window follows the round trip that a handshake measures, which a busy machine makes
    /// longer: 1 MiB here as a rule, and never more than this.
    const MAX_WINDOW: usize = 16 << 20;
    let (a, mut b) = udp();
    let mut stream = a.mesh.open_stream(id(2)).await.unwrap();
    let written = Arc::new(AtomicUsize::new(0));
    let count = written.clone();
    let writer = tokio::spawn(async move {
        let data = Bytes::from(vec![1; CHUNK]);
        loop {
            stream.send.write_chunk(data.clone()).await.unwrap();
            count.fetch_add(CHUNK, Ordering::Relaxed);
        }
    });
    let (_, mut incoming) = within(LIMIT, b.incoming.streams.recv()).await.unwrap();
    // The window is filled and nothing more is accepted, although there is no time limit.
    let mut before = 0;
    let settled = async {
        loop {
            tokio::time::sleep(Duration::from_millis(300)).await;
            let now = written.load(Ordering::Relaxed);
            if now > 0 && now == before {
                return now;
            }
            before = now;
        }
    };
    let accepted = within(LIMIT, settled).await;
    assert!(accepted <= MAX_WINDOW + CHUNK, "{accepted} bytes accepted");
    // Reading lets it continue.
    read_some(&mut incoming.recv).await.unwrap().unwrap();
    let mut drained = 0;
    while drained < 4 << 20 {
        drained += read_some(&mut incoming.recv).await.unwrap().unwrap().len();
    }
    writer.abort();
}

#[tokio::test]
async fn streams_that_nobody_reads_hold_nobody_up() {
    const CHUNKS: usize = 256;
    let (a, mut b) = udp();
    let mut unread = Vec::new();
    let mut writers = Vec::new();
    for _ in 0..8 {
        let mut stream = a.mesh.open_stream(id(2)).await.unwrap();
        writers.push(tokio::spawn(async move {
            let data = Bytes::from(vec![1; CHUNK]);
            loop {
                if let Err(error) = stream.send.write_chunk(data.clone()).await {
                    return error;
                }
            }
        }));
        unread.push(within(LIMIT, b.incoming.streams.recv()).await.unwrap());
    }
    for number in 0..2 {
        let stream = a.mesh.open_stream(id(2)).await.unwrap();
        let receive = async {
            receive_all(b.incoming.streams.recv().await.unwrap().1, number, CHUNKS).await;
        };
        let both = async { tokio::join!(send_all(stream, number, CHUNKS), receive) };
        within(LIMIT, both).await;
    }
    // Whatever they wait for, they notice the end.
    b.mesh.close().await;
    for writer in writers {
        within(LIMIT, writer).await.unwrap();
    }
}

#[tokio::test]
async fn half_close_works_in_both_directions() {
    let (a, mut b) = udp();
    let mut ours = within(LIMIT, a.mesh.open_stream(id(2))).await.unwrap();
    write(&mut ours.send, b"question").await;
    ours.send.finish().unwrap();
    let (_, mut theirs) = within(LIMIT, b.incoming.streams.recv()).await.unwrap();
    assert_eq!(read_to_end(&mut theirs.recv).await.unwrap(), b"question");
    // The other direction is still open.
    write(&mut theirs.send, b"answer").await;
    assert_eq!(read_some(&mut ours.recv).await.unwrap().unwrap(), "answer");
    write(&mut theirs.send, b" and end").await;
    theirs.send.finish().unwrap();
    assert_eq!(read_to_end(&mut ours.recv).await.unwrap(), b" and end");
    assert_eq!(ours.send.finish(), Err(MeshError::StreamClosed));
}

#[tokio::test]
async fn reset_and_stop_reach_the_other_side_with_their_code() {
    let (a, mut b) = udp();
    let mut ours = within(LIMIT, a.mesh.open_stream(id(2))).await.unwrap();
    write(&mut ours.send, b"x").await;
    let (_, mut theirs) = within(LIMIT, b.incoming.streams.recv()).await.unwrap();
    read_some(&mut theirs.recv).await.unwrap();
    ours.send.reset(77);
    assert_eq!(within(LIMIT, read_some(&mut theirs.recv)).await, Err(MeshError::Reset(77)));
    ours.recv.stop(78);
    assert_eq!(within(LIMIT, theirs.send.stopped()).await, Ok(Some(78)));
    let refused = theirs.send.write_chunk(Bytes::from_static(b"y")).await;
    assert_eq!(refused, Err(MeshError::Stopped(78)));
}

#[tokio::test]
async fn a_dropped_half_is_not_a_clean_end() {
    let (a, mut b) = udp();
    let mut ours = within(LIMIT, a.mesh.open_stream(id(2))).await.unwrap();
    write(&mut ours.send, b"part of a whole").await;
    let (_, mut theirs) = within(LIMIT, b.incoming.streams.recv()).await.unwrap();
    read_some(&mut theirs.recv).await.unwrap();
    drop(ours);
    let end = within(LIMIT, read_to_end(&mut theirs.recv)).await;
    assert!(matches!(end, Err(MeshError::Reset(_))), "{end:?}");
    within(LIMIT, theirs.send.stopped()).await.unwrap().expect("stopped");
}

#[tokio::test]
async fn two_hundred_streams_at_once() {
    let (a, b) = udp();
    let (_b, _task) = echo(b);
    let tasks: Vec<_> = (0..200u32)
        .map(|n| {
            let mesh = a.mesh.clone();
            tokio::spawn(async move { round_trip(&mesh, id(2), &n.to_be_bytes()).await })
        })
        .collect();
    for task in tasks {
        within(LIMIT, task).await.unwrap().unwrap();
    }
    let counters = a.mesh.counters();
    assert_eq!(
        (counters[MeshCount::StreamsOpened], counters[MeshCount::ConnectionsOpened]),
        (200, 1)
    );
}

#[tokio::test]
async fn more_streams_than_first_permitted() {
    let (a, mut b) = udp();
    let mut held = Vec::new();
    let work = async {
        for _ in 0..600 {
            let mut stream = a.mesh.open_stream(id(2)).await.unwrap();
            write(&mut stream.send, b"x").await;
            held.push(stream);
            held.push(b.incoming.streams.recv().await.unwrap().1);
        }
    };
    within(LIMIT, work).await;
    assert_eq!(a.mesh.peers()[0].streams, 600);
    drop(held);
    eventually(|| a.mesh.peers()[0].streams == 0 && b.mesh.peers()[0].streams == 0).await;
}

#[tokio::test]
async fn ipv6_and_dual_stack_outer_sockets() {
    for bind in ["[::1]:0", "[::]:0"] {
        let bind: SocketAddr = bind.parse().unwrap();
        let (a, b) = udp_pair(bind, &MeshConfig::default());
        let port = b.mesh.local_addr().port();
        let target = match bind.ip().is_unspecified() {
            // IPv4 through the dual-stack socket.
            true => SocketAddr::from(([127, 0, 0, 1], port)),
            false => b.mesh.local_addr(),
        };
        a.mesh.set_peer(id(2), &[target], None);
        let (b, _task) = echo(b);
        within(LIMIT, round_trip(&a.mesh, id(2), &vec![5; 300_000])).await.unwrap();
        assert_eq!(a.mesh.peers()[0].endpoint, Some(target));
        let seen = b.peers()[0].endpoint.unwrap();
        assert_eq!(seen.is_ipv4(), target.is_ipv4(), "{seen} is shown as it is");
    }
}

#[tokio::test]
async fn a_small_path_is_served_by_fragments() {
    let config = MeshConfig { mtu: 1280, ..MeshConfig::default() };
    let world = World::new(1);
    let mut nodes = (1..=2).map(|n| {
        let socket = meshport_mesh::UdpOuter::bind_for_mtu(v4(), config.mtu).unwrap();
        start_with(world.identity(n), Arc::new(socket), n, config.clone())
    });
    let (a, b) = (nodes.next().unwrap(), nodes.next().unwrap());
    a.mesh.set_peer(id(2), &[b.mesh.local_addr()], None);
    let (_b, _task) = echo(b);
    within(LIMIT, round_trip(&a.mesh, id(2), &vec![5; 300_000])).await.unwrap();
}
