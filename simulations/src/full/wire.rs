//! UDP between simulated machines: the datagrams on their way and at each node's socket.
//!
//! What becomes of a datagram is decided by the same network (`crate::network`) as at the wide
//! level: links between sites, access links, NATs, addresses, cuts. Datagrams arrive at the very
//! nanosecond the link says. Bounds: [`MAX_QUEUED_BYTES`] wait at one socket as in a kernel; what
//! flies is bounded by the links' own queues and by what nodes send within one latency.

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

/// Bytes that may wait at one socket: what the daemon asks its kernel for.
const MAX_QUEUED_BYTES: usize = 4 << 20;
/// Headers of IPv4 and UDP, in bytes.
const HEADERS: usize = 28;

/// The port of the first node.
pub(super) const FIRST_PORT: usize = 1024;

/// A datagram on its way: when it arrives, and in which order it was sent.
type Flight = Reverse<(Duration, u64)>;

/// A datagram, and the address it comes from.
#[derive(Clone)]
struct Sealed {
    from: SocketAddr,
    bytes: Arc<[u8]>,
}

/// A datagram on its way.
enum Cargo {
    /// A datagram that arrives.
    Datagram { to: usize, datagram: Sealed },
    /// One that has come to a link where others may be in its way.
    Onward { onward: Onward, datagram: Sealed },
    /// One that a stopped process has yet to send.
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
    /// The process it belongs to; 0 is none.
    boot: u32,
    queue: VecDeque<Sealed>,
    queued: usize,
    waker: Option<Waker>,
}

/// Until when each process is stopped, as far as the others can tell.
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

    /// A process of a node has the socket; what an earlier one of it had is gone.
    pub(super) fn open(&mut self, node: usize, boot: u32) {
        self.ports[node] = Port { boot, ..Port::default() };
    }

    /// Whether the socket is this process's.
    pub(super) fn is_open(&self, node: usize, boot: u32) -> bool {
        self.ports[node].boot == boot
    }

    /// Datagrams that wait at a node's socket; that many fit.
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

    /// When anything next gets somewhere.
    pub(super) fn next(&self) -> Option<Duration> {
        self.flying.peek().map(|Reverse((at, _))| *at)
    }
}

impl Wire {
    /// Sends a datagram.
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
        // The leg is set where there is one to come.
        let (sent, kind, leg) = (at, kind(bytes), Leg::Between);
        let onward = Onward { parcel, leg, sent, kind, is_copy: false };
        self.went(scene, fate, onward, &Sealed { from: source, bytes: bytes.into() });
    }

    /// What becomes of a datagram, or of a copy, after a stretch of its way.
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

    /// Carries on what has got somewhere by `now`.
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
