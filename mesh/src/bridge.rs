//! Carries QUIC packets between a process that has handed its mesh over and its successor.
//!
//! The successor owns the sockets and the tunnels. The predecessor keeps its QUIC connections until
//! their streams have ended: it sends their packets through the successor (see `carry`), and the
//! successor forwards its incoming packets, identified by their connection ids.
//!
//! Each shard has its own bridge, a pair of sockets that keep message boundaries. A message
//! contains datagrams of one peer: its inner address, the length of each datagram except the last,
//! and the datagrams. Both ends are bounded by the socket's buffer and, in addition, by
//! [`MAX_BACKLOG`]; what exceeds them is lost, as in a network.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind};
use std::net::Ipv6Addr;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use socket2::{Domain, Socket, Type};
use tokio::io::ReadBuf;
use tokio::net::UnixDatagram;

use super::connection_id::{ProcessTag, tag_of};
use super::lock;

/// An inner address and the length of a datagram.
const HEADER: usize = 16 + 2;
/// Maximum bytes of datagrams in one message.
const MAX_CONTENTS: usize = 60_000;
/// Messages kept while the socket is full.
const MAX_BACKLOG: usize = 64;
/// Requested size of the socket's buffer, in bytes; the system may grant less.
const BUFFER: usize = 1 << 20;

/// Datagrams of one peer. All but the last have the length `segment`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Frame<'a> {
    pub(super) peer: Ipv6Addr,
    pub(super) segment: usize,
    pub(super) contents: &'a [u8],
}

impl<'a> Frame<'a> {
    /// `None` for a malformed message.
    fn decode(message: &'a [u8]) -> Option<Self> {
        let (address, rest) = message.split_first_chunk::<16>()?;
        let (segment, contents) = rest.split_first_chunk::<2>()?;
        let segment = usize::from(u16::from_be_bytes(*segment));
        let is_good = segment > 0 && !contents.is_empty();
        is_good.then_some(Self { peer: Ipv6Addr::from(*address), segment, contents })
    }

    /// The datagrams, one by one.
    pub(super) fn datagrams(&self) -> impl Iterator<Item = &'a [u8]> {
        self.contents.chunks(self.segment)
    }

    /// The messages that contain it.
    fn encode(&self) -> impl Iterator<Item = Vec<u8>> {
        let segment = u16::try_from(self.segment).unwrap_or(0);
        let most = (MAX_CONTENTS / self.segment.max(1)).max(1) * self.segment.max(1);
        let chunks = if segment == 0 { &[] } else { self.contents };
        chunks.chunks(most).map(move |contents| {
            let mut message = Vec::with_capacity(HEADER + contents.len());
            message.extend_from_slice(&self.peer.octets());
            message.extend_from_slice(&segment.to_be_bytes());
            message.extend_from_slice(contents);
            message
        })
    }
}

/// A future that resolves when the socket may have room.
pub(super) type Writable = Pin<Box<dyn Future<Output = io::Result<()>> + Send + Sync>>;

/// One end of the connection between the two processes. Clones are the same end.
#[derive(Debug, Clone)]
pub(super) struct Bridge(Arc<End>);

#[derive(Debug)]
struct End {
    /// A `SOCK_SEQPACKET` socket, which unlike a datagram socket reports that the other end has
    /// closed.
    socket: UnixDatagram,
    backlog: Mutex<VecDeque<Vec<u8>>>,
    addresses: Addresses,
}

/// The addresses of peers that have changed their keys since this process started. Here a peer's
/// streams stay under its first address; a process started later knows only the current one.
#[derive(Debug, Default)]
struct Addresses {
    present: BTreeMap<Ipv6Addr, Ipv6Addr>,
    first: BTreeMap<Ipv6Addr, Ipv6Addr>,
}

impl Bridge {
    /// The two ends. Called on the runtime that serves the first. `moved` has the first and the
    /// current address of each peer that has changed its key.
    pub(super) fn pair(moved: &[(Ipv6Addr, Ipv6Addr)]) -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = Socket::pair(Domain::UNIX, Type::SEQPACKET, None)?;
        theirs.set_nonblocking(true)?;
        let addresses = Addresses {
            present: moved.iter().copied().collect(),
            first: moved.iter().map(|(first, present)| (*present, *first)).collect(),
        };
        Ok((Self::with(ours.into(), addresses)?, theirs.into()))
    }

    /// The end `socket`. Called on the runtime that serves it.
    pub(super) fn new(socket: OwnedFd) -> io::Result<Self> {
        Self::with(socket, Addresses::default())
    }

    fn with(socket: OwnedFd, addresses: Addresses) -> io::Result<Self> {
        let socket = Socket::from(socket);
        socket.set_nonblocking(true)?;
        // The default works too, only slower.
        let _ = socket.set_send_buffer_size(BUFFER);
        let socket = UnixDatagram::from_std(OwnedFd::from(socket).into())?;
        Ok(Self(Arc::new(End { socket, backlog: Mutex::default(), addresses })))
    }

    /// Sends datagrams, or queues them while the socket is full.
    pub(super) fn send(&self, frame: &Frame<'_>) {
        let frame = Frame { peer: translated(&self.0.addresses.present, frame.peer), ..*frame };
        let mut backlog = lock(&self.0.backlog);
        let was_empty = backlog.is_empty();
        for message in frame.encode() {
            let is_sent = backlog.is_empty() && self.0.try_send(&message);
            if !is_sent && backlog.len() < MAX_BACKLOG {
                backlog.push_back(message);
            }
        }
        if was_empty && !backlog.is_empty() {
            let end = self.0.clone();
            tokio::spawn(async move { end.empty().await });
        }
    }

    /// Whether nothing waits for room in the socket.
    pub(super) fn has_room(&self) -> bool {
        lock(&self.0.backlog).is_empty()
    }

    /// Resolves when there may be room again; any number of tasks may wait.
    pub(super) fn writable(&self) -> Writable {
        let end = self.0.clone();
        Box::pin(async move {
            end.empty().await;
            Ok(())
        })
    }

    /// Receives datagrams into `space`. `None` when the other process has ended. Only one task at a
    /// time is woken.
    pub(super) fn poll_recv<'a>(
        &self,
        cx: &mut Context<'_>,
        space: &'a mut [u8],
    ) -> Poll<Option<Frame<'a>>> {
        loop {
            let mut buffer = ReadBuf::new(space);
            match ready!(self.0.socket.poll_recv(cx, &mut buffer)) {
                Err(_) => return Poll::Ready(None),
                Ok(()) if buffer.filled().is_empty() => return Poll::Ready(None),
                Ok(()) => {}
            }
            let length = buffer.filled().len();
            if Frame::decode(&space[..length]).is_some() {
                let first = &self.0.addresses.first;
                let frame = Frame::decode(&space[..length]);
                let frame = frame.map(|it| Frame { peer: translated(first, it.peer), ..it });
                return Poll::Ready(frame);
            }
        }
    }

    /// A buffer for any message.
    pub(super) fn space() -> Vec<u8> {
        vec![0; HEADER + (1 << 16)]
    }
}

fn translated(names: &BTreeMap<Ipv6Addr, Ipv6Addr>, peer: Ipv6Addr) -> Ipv6Addr {
    names.get(&peer).copied().unwrap_or(peer)
}

impl End {
    /// False if the socket is full. A message refused for another reason is lost.
    fn try_send(&self, message: &[u8]) -> bool {
        !self.socket.try_send(message).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }

    /// Sends the queued messages.
    async fn empty(&self) {
        while !self.flush() {
            // Fails only when the runtime ends.
            let _ = self.socket.writable().await;
        }
    }

    /// Sends as many queued messages as the socket accepts; true if none are left.
    fn flush(&self) -> bool {
        let mut backlog = lock(&self.backlog);
        while backlog.front().is_some_and(|message| self.try_send(message)) {
            backlog.pop_front();
        }
        backlog.is_empty()
    }
}

/// An earlier process whose connections continue, as seen by one shard.
#[derive(Debug)]
pub(super) struct Predecessor {
    tag: ProcessTag,
    bridge: Bridge,
    is_gone: AtomicBool,
}

impl Predecessor {
    pub(super) fn bridge(&self) -> &Bridge {
        &self.bridge
    }

    /// It has ended: nothing more is forwarded to it.
    pub(super) fn note_end(&self) {
        self.is_gone.store(true, Ordering::Relaxed);
    }

    fn is_running(&self) -> bool {
        !self.is_gone.load(Ordering::Relaxed)
    }
}

/// The earlier processes whose connections continue, for which a shard forwards packets.
#[derive(Debug, Default)]
pub(super) struct Predecessors {
    own: ProcessTag,
    all: Vec<Arc<Predecessor>>,
}

impl Predecessors {
    /// Called on the shard's runtime. `own` is the tag of this process.
    pub(super) fn new(
        own: ProcessTag,
        bridges: impl IntoIterator<Item = (ProcessTag, OwnedFd)>,
    ) -> io::Result<Self> {
        let all = bridges.into_iter().map(|(tag, socket)| {
            let bridge = Bridge::new(socket)?;
            Ok(Arc::new(Predecessor { tag, bridge, is_gone: false.into() }))
        });
        Ok(Self { own, all: all.collect::<io::Result<_>>()? })
    }

    /// The tag of this process.
    pub(super) fn own(&self) -> ProcessTag {
        self.own
    }

    /// Whether any is running.
    pub(super) fn are_running(&self) -> bool {
        self.all.iter().any(|it| it.is_running())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Predecessor>> {
        self.all.iter()
    }
}

/// Received packets of predecessors, not forwarded yet.
#[derive(Debug, Default)]
pub(super) struct Diverted(Vec<Run>);

/// Datagrams of one peer for one predecessor.
#[derive(Debug)]
struct Run {
    to: usize,
    peer: Ipv6Addr,
    segment: usize,
    contents: Vec<u8>,
}

impl Diverted {
    /// Takes a QUIC packet if it is for a predecessor. If no running process created its connection
    /// id, it is for all, including this one. It may be a stateless reset (RFC 9000, section 10.3),
    /// or belong to a connection of an ended process, which this process answers with a reset.
    pub(super) fn take(&mut self, all: &Predecessors, peer: Ipv6Addr, packet: &[u8]) -> bool {
        if all.all.is_empty() {
            return false;
        }
        let Some(tag) = tag_of(packet).filter(|tag| *tag != all.own) else { return false };
        let running = || all.all.iter().enumerate().filter(|(_, it)| it.is_running());
        if let Some((to, _)) = running().find(|(_, it)| it.tag == tag) {
            self.add(to, peer, packet);
            return true;
        }
        running().for_each(|(to, _)| self.add(to, peer, packet));
        false
    }

    fn add(&mut self, to: usize, peer: Ipv6Addr, packet: &[u8]) {
        if let Some(run) = self.0.last_mut()
            && (run.to, run.peer) == (to, peer)
            // Only the last may be shorter.
            && run.contents.len().is_multiple_of(run.segment)
            && packet.len() <= run.segment
        {
            run.contents.extend_from_slice(packet);
        } else if !packet.is_empty() {
            self.0.push(Run { to, peer, segment: packet.len(), contents: packet.to_vec() });
        }
    }

    /// Flushes all pending datagrams.
    pub(super) fn send(&mut self, all: &Predecessors) {
        for Run { to, peer, segment, contents } in self.0.drain(..) {
            if let Some(to) = all.all.get(to).filter(|it| it.is_running()) {
                to.bridge.send(&Frame { peer, segment, contents: &contents });
            }
        }
    }
}

#[cfg(test)]
mod tests;
