//! UDP between simulated machines: each node's socket, and the datagrams on their way.
//!
//! What becomes of a datagram is decided by the same network (`crate::network`) as at the wide
//! level: links between sites, access links, NATs, addresses, cuts. Datagrams arrive at the very
//! nanosecond the link says. Bounds: [`MAX_QUEUED_BYTES`] wait at one socket as in a kernel; what
//! flies is bounded by the links' own queues and by what nodes send within one latency.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use meshport_mesh::{OuterMeta, OuterSocket, OuterTransmit};

use super::book::Book;
use super::{lock, machine};
use crate::network::{Fate, Leg, Parcel, Stretch, endpoint, whose};
use crate::trace::Sent;

/// Bytes that may wait at one socket: what the daemon asks its kernel for.
const MAX_QUEUED_BYTES: usize = 4 << 20;
/// Most datagrams in one send, as with the kernel.
const MAX_SEGMENTS: usize = 64;
/// Headers of IPv4 and UDP, in bytes.
const HEADERS: usize = 28;

/// The port of the first node.
pub(super) const FIRST_PORT: usize = 1024;

/// A datagram on its way: when it arrives, and in which order it was sent.
type Flight = Reverse<(Duration, u64)>;

/// What is on its way.
enum Cargo {
    /// A datagram that arrives.
    Datagram { to: usize, from: SocketAddr, bytes: Arc<[u8]> },
    /// One that has come to a link where others may be in its way.
    Onward { onward: Onward, from: SocketAddr, bytes: Arc<[u8]> },
    /// One that a process which stands still has yet to send.
    Unsent { from: usize, boot: u32, to: SocketAddr, bytes: Arc<[u8]> },
}

/// What the network is asked about a datagram that is on its way.
#[derive(Clone, Copy)]
struct Onward {
    parcel: Parcel,
    leg: Leg,
    sent: Duration,
    kind: &'static str,
    /// The network has made it, of another one.
    is_copy: bool,
}

/// The socket of a node's present process.
#[derive(Default)]
struct Port {
    /// Which process it belongs to; 0 is none.
    boot: u32,
    queue: VecDeque<(SocketAddr, Arc<[u8]>)>,
    queued: usize,
    waker: Option<Waker>,
}

/// Until when each process stands still, as far as the others can tell.
type Still = Vec<Duration>;

/// Bytes and datagrams that nodes have sent, all headers counted, and answers to handshakes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sum {
    pub(super) datagrams: u64,
    pub(super) bytes: u64,
    pub(super) handshakes: u64,
}

/// All sockets and everything between them.
pub(super) struct Wire {
    pub(super) sum: Sum,
    ports: Vec<Port>,
    flying: BinaryHeap<Flight>,
    cargo: std::collections::BTreeMap<u64, Cargo>,
    still: Still,
    sent: u64,
}

impl Wire {
    pub(super) fn new(nodes: usize) -> Self {
        Self {
            sum: Sum::default(),
            ports: (0..nodes).map(|_| Port::default()).collect(),
            flying: BinaryHeap::new(),
            cargo: std::collections::BTreeMap::new(),
            still: vec![Duration::ZERO; nodes],
            sent: 0,
        }
    }

    /// Takes the socket away from a process that died: it neither sends nor receives any more.
    pub(super) fn close(&mut self, node: usize) {
        self.ports[node] = Port::default();
    }

    /// The same, unless a later process has the socket already.
    pub(super) fn close_process(&mut self, node: usize, boot: u32) {
        if self.ports[node].boot == boot {
            self.close(node);
        }
    }

    /// Nothing enters or leaves a node's socket until then; it all waits.
    pub(super) fn stand_still(&mut self, node: usize, until: Duration) {
        self.still[node] = self.still[node].max(until);
    }

    fn load(&mut self, at: Duration, cargo: Cargo) {
        self.sent += 1;
        self.flying.push(Reverse((at, self.sent)));
        self.cargo.insert(self.sent, cargo);
    }

    fn next(&self) -> Option<Duration> {
        self.flying.peek().map(|Reverse((at, _))| *at)
    }
}

impl Book {
    fn send(&mut self, from: usize, to: SocketAddr, bytes: &[u8]) {
        let Self { scene, wire, .. } = self;
        let until = wire.still[from];
        if until > scene.now {
            let boot = wire.ports[from].boot;
            return wire.load(until, Cargo::Unsent { from, boot, to, bytes: bytes.into() });
        }
        let (at, size) = (scene.now, bytes.len() + HEADERS);
        wire.sum.datagrams += 1;
        wire.sum.bytes += size as u64;
        wire.sum.handshakes += u64::from(kind(bytes) == "response");
        let known = whose(to).and_then(|(address, port)| {
            let receiver = port.checked_sub(FIRST_PORT)?;
            (receiver < wire.ports.len()).then_some((address, receiver))
        });
        let (address, to) = known.unwrap_or((0, from));
        let parcel = Parcel { from, to, address, size };
        let fate = match known {
            Some(_) => scene.network.carry(at, parcel),
            None => Err("address"),
        };
        let source = endpoint(scene.network.address(from), FIRST_PORT + from);
        // The leg is set where there is one to come.
        let (sent, kind, leg) = (at, kind(bytes), Leg::Between);
        let onward = Onward { parcel, leg, sent, kind, is_copy: false };
        self.went(fate, onward, source, &bytes.into());
    }

    /// What becomes of a datagram, or of a copy, after a stretch of its way.
    fn went(&mut self, fate: Fate, onward: Onward, from: SocketAddr, bytes: &Arc<[u8]>) {
        let Onward { parcel, sent, kind, is_copy, .. } = onward;
        match fate {
            Ok(Stretch::Reaches(at, again, leg)) => {
                let first = Onward { leg, ..onward };
                let copy = again.map(|at| (at, Onward { is_copy: true, ..first }));
                for (at, onward) in [Some((at, first)), copy].into_iter().flatten() {
                    self.wire.load(at, Cargo::Onward { onward, from, bytes: bytes.clone() });
                }
                return;
            }
            Ok(Stretch::Arrives(at, again)) => {
                for at in [Some(at), again].into_iter().flatten() {
                    let bytes = bytes.clone();
                    self.wire.load(at, Cargo::Datagram { to: parcel.to, from, bytes });
                }
            }
            Err(_) => {}
        }
        if !is_copy {
            let (Parcel { from, to, size, .. }, lost) = (parcel, fate.err());
            self.scene.trace.datagram(Sent { at: sent, from, to, size, kind, lost });
        }
    }

    fn happen(&mut self, now: Duration) {
        while let Some(Reverse((at, number))) = self.wire.flying.peek().copied() {
            if at > now {
                return;
            }
            self.wire.flying.pop();
            let (to, from, bytes) = match self.wire.cargo.remove(&number) {
                Some(Cargo::Datagram { to, from, bytes }) => (to, from, bytes),
                Some(Cargo::Onward { onward, from, bytes }) => {
                    let fate = self.scene.network.carry_on(at, onward.leg, onward.parcel);
                    self.went(fate, onward, from, &bytes);
                    continue;
                }
                Some(Cargo::Unsent { from, boot, to, bytes }) => {
                    if self.wire.ports[from].boot == boot {
                        self.send(from, to, &bytes);
                    }
                    continue;
                }
                None => continue,
            };
            let wire = &mut self.wire;
            if wire.still[to] > now {
                wire.load(wire.still[to], Cargo::Datagram { to, from, bytes });
                continue;
            }
            let port = &mut wire.ports[to];
            if port.boot == 0 || port.queued + bytes.len() > MAX_QUEUED_BYTES {
                continue;
            }
            port.queued += bytes.len();
            port.queue.push_back((from, bytes));
            if let Some(waker) = port.waker.take() {
                waker.wake();
            }
        }
    }
}

/// By the first byte of a WireGuard message; an empty data message only keeps alive.
fn kind(bytes: &[u8]) -> &'static str {
    match (bytes.first(), bytes.len()) {
        (Some(1), _) => "initiation",
        (Some(2), _) => "response",
        (Some(3), _) => "cookie",
        (Some(4), 32) => "keepalive",
        _ => "data",
    }
}

/// The wire as the machine knows it.
pub(super) struct Waiting(pub(super) Arc<Mutex<Book>>);

impl machine::World for Waiting {
    fn next(&self) -> Option<Duration> {
        lock(&self.0).wire.next()
    }

    fn happen(&mut self, now: Duration) {
        lock(&self.0).happen(now);
    }
}

/// The socket of one process of one node.
pub(super) struct Socket {
    book: Arc<Mutex<Book>>,
    node: usize,
    boot: u32,
}

impl Socket {
    /// Binds it; what an earlier process of this node had is gone.
    pub(super) fn bind(book: Arc<Mutex<Book>>, node: usize, boot: u32) -> Self {
        lock(&book).wire.ports[node] = Port { boot, ..Port::default() };
        Self { book, node, boot }
    }
}

impl std::fmt::Debug for Socket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Socket").field("node", &self.node).finish_non_exhaustive()
    }
}

impl OuterSocket for Socket {
    fn try_send(&self, transmit: &OuterTransmit<'_>) -> io::Result<()> {
        let mut book = lock(&self.book);
        if book.wire.ports[self.node].boot == self.boot {
            for bytes in transmit.contents.chunks(transmit.segment.max(1)) {
                book.send(self.node, transmit.destination, bytes);
            }
        }
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [OuterMeta],
    ) -> Poll<io::Result<usize>> {
        let mut book = lock(&self.book);
        let port = &mut book.wire.ports[self.node];
        if port.boot != self.boot {
            return Poll::Pending;
        }
        let mut count = 0;
        while count < buffers.len().min(meta.len())
            && let Some((from, bytes)) = port.queue.pop_front()
        {
            port.queued -= bytes.len();
            let length = bytes.len().min(buffers[count].len());
            buffers[count][..length].copy_from_slice(&bytes[..length]);
            meta[count] = OuterMeta { from, local: None, length, stride: length.max(1) };
            count += 1;
        }
        if count > 0 {
            return Poll::Ready(Ok(count));
        }
        port.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn writable(self: Arc<Self>) -> Pin<Box<dyn Future<Output = io::Result<()>> + Send + Sync>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        let address = lock(&self.book).scene.network.address(self.node);
        Ok(endpoint(address, FIRST_PORT + self.node))
    }

    fn max_gso_segments(&self) -> usize {
        MAX_SEGMENTS
    }
}
