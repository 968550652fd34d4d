//! What is passed to the outer socket: how many datagrams at a time, and how large.

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::common::*;
use meshport_mesh::testing::Switch;
use meshport_mesh::{OuterMeta, OuterSocket, OuterTransmit};

/// UDP and IPv4 headers, which the socket does not see.
const HEADERS: usize = 28;
const LIMIT: Duration = Duration::from_secs(180);

/// Forwards to another socket, like a link with some MTU, and records what is sent.
#[derive(Debug)]
struct Noting {
    socket: Arc<dyn OuterSocket>,
    /// The system's figure for the link's MTU.
    said: Option<u16>,
    /// The largest packet that gets through.
    passes: usize,
    /// Bytes and segment of each send.
    sends: Mutex<Vec<(usize, usize)>>,
}

impl OuterSocket for Noting {
    fn try_send(&self, transmit: &OuterTransmit<'_>) -> io::Result<()> {
        self.sends.lock().unwrap().push((transmit.contents.len(), transmit.segment));
        match transmit.segment + HEADERS <= self.passes {
            true => self.socket.try_send(transmit),
            // Lost in transit without an error.
            false => Ok(()),
        }
    }

    fn mtu_towards(&self, _remote: SocketAddr) -> Option<u16> {
        self.said
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
        self.socket.clone().writable()
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn max_gso_segments(&self) -> usize {
        64
    }
}

/// Sends and receives 12 MB on a path where `said` is the system's figure for the first link and
/// `passes` the real one; returns what was passed to the first node's socket.
async fn sends(said: Option<u16>, passes: usize) -> Vec<(usize, usize)> {
    let switch = Switch::new(1);
    switch.set_delay(Duration::from_millis(2));
    let world = World::new(1);
    let mut nodes = (1..=2).map(|n| {
        let (socket, sends) = (switch.attach(at(n)), Mutex::default());
        let socket = Arc::new(Noting { socket, said, passes, sends });
        (start(world.identity(n), socket.clone(), n), socket)
    });
    let ((a, noting), (b, _)) = (nodes.next().unwrap(), nodes.next().unwrap());
    a.mesh.set_peer(id(2), &[at(2)], None);
    let (_b, _task) = echo(b);
    // The path is known when the first transfer has ended.
    within(LIMIT, round_trip(&a.mesh, id(2), &vec![1; 4_000_000])).await.unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    noting.sends.lock().unwrap().clear();
    within(LIMIT, round_trip(&a.mesh, id(2), &vec![1; 8_000_000])).await.unwrap();
    let sends = std::mem::take(&mut *noting.sends.lock().unwrap());
    for (bytes, segment) in &sends {
        assert!(bytes.div_ceil(*segment) <= 64 && *bytes <= 65_000, "{bytes} by {segment}");
    }
    sends
}

/// Size of the datagrams that carried most bytes, and how many were in one send on average.
fn usual(sends: &[(usize, usize)]) -> (usize, usize) {
    let of_size = |size: usize| sends.iter().filter(move |(_, segment)| *segment == size);
    let bytes = |size: usize| of_size(size).map(|(bytes, _)| bytes).sum::<usize>();
    let largest = sends.iter().map(|(_, segment)| *segment).max_by_key(|size| bytes(*size));
    let size = largest.unwrap();
    (size + HEADERS, bytes(size) / size / of_size(size).count())
}

#[tokio::test(start_paused = true)]
async fn bulk_data_leaves_in_full_batches() {
    let (size, datagrams) = usual(&sends(None, 1500).await);
    assert!((1480..=1500).contains(&size), "{size}");
    // 44 fill a call; the ends of a window's worth are shorter.
    assert!(datagrams >= 20, "{datagrams} datagrams in one call");
}

#[tokio::test(start_paused = true)]
async fn jumbo_frames_are_found_and_used() {
    let (size, datagrams) = usual(&sends(Some(8950), 8950).await);
    assert!((8930..=8950).contains(&size), "{size}");
    assert!(datagrams >= 5, "{datagrams} datagrams in one call");
}

#[tokio::test(start_paused = true)]
async fn a_path_that_takes_less_than_its_first_link_is_found_out() {
    let (size, _) = usual(&sends(Some(9000), 1500).await);
    assert!((1400..=1500).contains(&size), "{size}");
}
