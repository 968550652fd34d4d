//! A socket that is full from time to time.

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::common::*;
use meshport_mesh::testing::Switch;
use meshport_mesh::{MeshCount, OuterMeta, OuterSocket, OuterTransmit, ports};
use tokio::sync::Notify;

/// Forwards to another socket, with room for `room` sends.
#[derive(Debug)]
struct Clogged {
    socket: Arc<dyn OuterSocket>,
    room: AtomicUsize,
    limited: AtomicBool,
    freed: Notify,
    refused: AtomicUsize,
}

impl Clogged {
    fn new(socket: Arc<dyn OuterSocket>) -> Arc<Self> {
        Arc::new(Self {
            socket,
            room: AtomicUsize::new(0),
            limited: AtomicBool::new(false),
            freed: Notify::new(),
            refused: AtomicUsize::new(0),
        })
    }

    fn limit(&self, room: usize) {
        self.room.store(room, Ordering::Relaxed);
        self.limited.store(true, Ordering::Relaxed);
        self.freed.notify_waiters();
    }

    fn free(&self) {
        self.limited.store(false, Ordering::Relaxed);
        self.freed.notify_waiters();
    }

    fn has_room(&self) -> bool {
        !self.limited.load(Ordering::Relaxed) || self.room.load(Ordering::Relaxed) > 0
    }
}

impl OuterSocket for Clogged {
    fn try_send(&self, transmit: &OuterTransmit<'_>) -> io::Result<()> {
        if !self.has_room() {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if self.limited.load(Ordering::Relaxed) {
            self.room.fetch_sub(1, Ordering::Relaxed);
        }
        self.socket.try_send(transmit)
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [OuterMeta],
    ) -> Poll<io::Result<usize>> {
        self.socket.poll_recv(cx, buffers, meta)
    }

    fn writable(self: Arc<Self>) -> Pin<Box<dyn Future<Output = io::Result<()>> + Send + Sync>> {
        Box::pin(async move {
            loop {
                let freed = self.freed.notified();
                if self.has_room() {
                    return Ok(());
                }
                freed.await;
            }
        })
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn max_gso_segments(&self) -> usize {
        3
    }
}

async fn clogged_pair() -> (Node, Node, Arc<Clogged>) {
    let switch = Switch::new(1);
    let world = World::new(1);
    let socket = Clogged::new(switch.attach(at(1)));
    let a = start(world.identity(1), socket.clone(), 1);
    let b = start(world.identity(2), switch.attach(at(2)), 2);
    a.mesh.set_peer(id(2), &[at(2)], None);
    a.mesh.ping(id(2), Duration::from_secs(1)).await.unwrap();
    (a, b, socket)
}

#[tokio::test(start_paused = true)]
async fn a_full_socket_delays_and_loses_nothing() {
    let (a, b, socket) = clogged_pair().await;
    let (_b, _task) = echo(b);
    let mesh = a.mesh.clone();
    let bytes: Vec<u8> = (0..3_000_000u32).map(|n| (n >> 3) as u8).collect();
    let work = tokio::spawn(async move { round_trip(&mesh, id(2), &bytes).await });
    // A trickle, as from a slow link: a few sends each millisecond.
    while !work.is_finished() {
        socket.limit(7);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    work.await.unwrap().unwrap();
    let counters = a.mesh.counters();
    assert!(counters[MeshCount::SocketFull] > 0 && socket.refused.load(Ordering::Relaxed) > 0);
    assert_eq!(counters[MeshCount::DroppedSendBacklog], 0);
}

#[tokio::test(start_paused = true)]
async fn datagrams_wait_for_the_socket_without_a_stream_to_wake_it() {
    let (a, mut b, socket) = clogged_pair().await;
    socket.limit(0);
    for n in 0..10u8 {
        a.mesh.send_datagram(id(2), ports::GOSSIP, &[n]).unwrap();
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    socket.free();
    for n in 0..10u8 {
        let (_, _, payload) = within(Duration::from_secs(1), datagram(&mut b)).await;
        assert_eq!(payload[..], [n]);
    }
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_the_socket_is_bounded() {
    let (a, mut b, socket) = clogged_pair().await;
    socket.limit(0);
    for n in 0..100u8 {
        a.mesh.send_datagram(id(2), ports::GOSSIP, &[n]).unwrap();
    }
    assert_eq!(a.mesh.counters()[MeshCount::DroppedSendBacklog], 36);
    socket.free();
    let (_, _, payload) = within(Duration::from_secs(1), datagram(&mut b)).await;
    assert_eq!(payload[..], [0]);
}
