//! UDP between simulated machines: datagrams in transit and those queued at each node's socket.
//!
//! The same network (`crate::network`) as at the wide level decides the fate of a datagram: links
//! between sites, access links, NATs, addresses, cuts. Datagrams arrive at exactly the nanosecond
//! given by the link. Bounds: [`MAX_QUEUED_BYTES`] per socket, as in a kernel. Traffic in transit
//! is bounded by the links' queues and by what nodes send within one latency.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io::IoSliceMut;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use meshport_mesh::OuterMeta;

use crate::level::Scene;
use crate::network::{Fate, Leg, Parcel, Stretch, endpoint, whose};
use crate::trace::Sent;

/// Bytes queued at one socket: the size that the daemon requests from the kernel.
const MAX_QUEUED_BYTES: usize = 4 << 20;
/// Headers of IPv4 and UDP, in bytes.
const HEADERS: usize = 28;

/// The port of the first node.
pub(super) const FIRST_PORT: usize = 1024;

/// A datagram's arrival time and its sequence number.
type Flight = Reverse<(Duration, u64)>;

/// A datagram with its source address.
#[derive(Clone)]
struct Sealed {
    from: SocketAddr,
    bytes: Arc<[u8]>,
}

/// A datagram in transit.
enum Cargo {
    /// An arriving datagram.
    Datagram { to: usize, datagram: Sealed },
    /// A datagram that has reached a link with a queue.
    Onward { onward: Onward, datagram: Sealed },
    /// A datagram that a stopped process has not sent yet.
    Unsent { from: usize, boot: u32, to: SocketAddr, bytes: Arc<[u8]> },
}

/// The network's input for a datagram in transit.
#[derive(Clone, Copy)]
struct Onward {
    parcel: Parcel,
    leg: Leg,
    sent: Duration,
    kind: &'static str,
    /// Duplicated by the network.
    is_copy: bool,
}

/// The socket of a node's current process.
#[derive(Default)]
struct Port {
    /// The process that owns it; 0 for none.
    boot: u32,
    queue: VecDeque<Sealed>,
    queued: usize,
    waker: Option<Waker>,
}

/// For each process, the time until which it appears stopped to others.
type Still = Vec<Duration>;

/// Bytes (with all headers) and datagrams sent by nodes, and handshake answers.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sum {
    pub(super) datagrams: u64,
    pub(super) bytes: u64,
    pub(super) handshakes: u64,
}

/// All sockets and the datagrams between them.
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

    /// Opens a node's socket for a process, dropping an earlier process's data.
    pub(super) fn open(&mut self, node: usize, boot: u32) {
        self.ports[node] = Port { boot, ..Port::default() };
    }

    /// Whether this process owns the socket.
    pub(super) fn is_open(&self, node: usize, boot: u32) -> bool {
        self.ports[node].boot == boot
    }

    /// Takes queued datagrams at a node's socket, up to the capacity.
    pub(super) fn receive(
        &mut self,
        node: usize,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [OuterMeta],
    ) -> Poll<usize> {
        let port = &mut self.ports[node];
        let mut count = 0;
        while count < buffers.len().min(meta.len())
            && let Some(Sealed { from, bytes }) = port.queue.pop_front()
        {
            port.queued -= bytes.len();
            let length = bytes.len().min(buffers[count].len());
            buffers[count][..length].copy_from_slice(&bytes[..length]);
            meta[count] = OuterMeta { from, local: None, length, stride: length.max(1) };
            count += 1;
        }
        if count > 0 {
            return Poll::Ready(count);
        }
        port.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Closes the socket of a process that died: it no longer sends or receives.
    pub(super) fn close(&mut self, node: usize) {
        self.ports[node] = Port::default();
    }

    /// Like [`Self::close`], unless a later process owns the socket.
    pub(super) fn close_process(&mut self, node: usize, boot: u32) {
        if self.ports[node].boot == boot {
            self.close(node);
        }
    }

    /// Delays all datagrams to and from a node's socket until then.
    pub(super) fn stand_still(&mut self, node: usize, until: Duration) {
        self.still[node] = self.still[node].max(until);
    }

    fn load(&mut self, at: Duration, cargo: Cargo) {
        self.sent += 1;
        self.flying.push(Reverse((at, self.sent)));
        self.cargo.insert(self.sent, cargo);
    }

    /// When the next datagram makes progress.
    pub(super) fn next(&self) -> Option<Duration> {
        self.flying.peek().map(|Reverse((at, _))| *at)
    }
}

impl Wire {
    pub(super) fn send(&mut self, scene: &mut Scene, from: usize, to: SocketAddr, bytes: &[u8]) {
        let until = self.still[from];
        if until > scene.now {
            let boot = self.ports[from].boot;
            return self.load(until, Cargo::Unsent { from, boot, to, bytes: bytes.into() });
        }
        let (at, size) = (scene.now, bytes.len() + HEADERS);
        self.sum.datagrams += 1;
        self.sum.bytes += size as u64;
        self.sum.handshakes += u64::from(kind(bytes) == "response");
        let known = whose(to).and_then(|(address, port)| {
            let receiver = port.checked_sub(FIRST_PORT)?;
            (receiver < self.ports.len()).then_some((address, receiver))
        });
        let (address, to) = known.unwrap_or((0, from));
        let parcel = Parcel { from, to, address, size };
        let fate = match known {
            Some(_) => scene.network.carry(at, parcel),
            None => Err("address"),
        };
        let source = endpoint(scene.network.address(from), FIRST_PORT + from);
        // The leg is set when one is due.
        let (sent, kind, leg) = (at, kind(bytes), Leg::Between);
        let onward = Onward { parcel, leg, sent, kind, is_copy: false };
        self.went(scene, fate, onward, &Sealed { from: source, bytes: bytes.into() });
    }

    /// Handles the fate of a datagram or a copy after one stretch of its path.
    fn went(&mut self, scene: &mut Scene, fate: Fate, onward: Onward, datagram: &Sealed) {
        let Onward { parcel, sent, kind, is_copy, .. } = onward;
        match fate {
            Ok(Stretch::Reaches(at, again, leg)) => {
                let first = Onward { leg, ..onward };
                let copy = again.map(|at| (at, Onward { is_copy: true, ..first }));
                for (at, onward) in [Some((at, first)), copy].into_iter().flatten() {
                    self.load(at, Cargo::Onward { onward, datagram: datagram.clone() });
                }
                return;
            }
            Ok(Stretch::Arrives(at, again)) => {
                for at in [Some(at), again].into_iter().flatten() {
                    self.load(at, Cargo::Datagram { to: parcel.to, datagram: datagram.clone() });
                }
            }
            Err(_) => {}
        }
        if !is_copy {
            let (Parcel { from, to, size, .. }, lost) = (parcel, fate.err());
            scene.trace.datagram(Sent { at: sent, from, to, size, kind, lost });
        }
    }

    /// Processes all datagrams due by `now`.
    pub(super) fn happen(&mut self, scene: &mut Scene, now: Duration) {
        while let Some(Reverse((at, number))) = self.flying.peek().copied() {
            if at > now {
                return;
            }
            self.flying.pop();
            let (to, datagram) = match self.cargo.remove(&number) {
                Some(Cargo::Datagram { to, datagram }) => (to, datagram),
                Some(Cargo::Onward { onward, datagram }) => {
                    let fate = scene.network.carry_on(at, onward.leg, onward.parcel);
                    self.went(scene, fate, onward, &datagram);
                    continue;
                }
                Some(Cargo::Unsent { from, boot, to, bytes }) => {
                    if self.ports[from].boot == boot {
                        self.send(scene, from, to, &bytes);
                    }
                    continue;
                }
                None => continue,
            };
            if self.still[to] > now {
                self.load(self.still[to], Cargo::Datagram { to, datagram });
                continue;
            }
            let port = &mut self.ports[to];
            if port.boot == 0 || port.queued + datagram.bytes.len() > MAX_QUEUED_BYTES {
                continue;
            }
            port.queued += datagram.bytes.len();
            port.queue.push_back(datagram);
            if let Some(waker) = port.waker.take() {
                waker.wake();
            }
        }
    }
}

/// The kind of a WireGuard message, by its first byte; an empty data message is a keepalive.
fn kind(bytes: &[u8]) -> &'static str {
    match (bytes.first(), bytes.len()) {
        (Some(1), _) => "initiation",
        (Some(2), _) => "response",
        (Some(3), _) => "cookie",
        (Some(4), 32) => "keepalive",
        _ => "data",
    }
}
