//! The UDP socket that quinn uses: the only file that implements quinn's socket trait.
//!
//! Addresses here are inner ones. Sending seals a whole `Transmit` into one buffer and passes it to
//! the outer socket in one call. It never reports a full socket: the sealed batch is kept, and the
//! next one waits in [`UdpPoller::poll_writable`]. Receiving opens every datagram of the outer
//! batches, packs the QUIC payloads of each peer contiguously into quinn's buffers and leaves the
//! rest to the core.

use std::fmt::Debug;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};

use super::bridge::{Bridge, Diverted, Frame, Writable};
use super::link::Link;
use super::lock;
use super::outer::OuterMeta;
use meshport_proto::core::{Batch, Claim, StreamPacket};
use meshport_proto::event::Route;
use meshport_proto::inner::UDP_OVERHEAD;
use meshport_proto::ports;
use meshport_proto::tunnel::MIN_OUTPUT;

/// Outer messages received per call; each may carry dozens of datagrams.
const MESSAGES: usize = 8;
/// Length in bytes of a receive buffer: the most that the kernel joins into one message (GRO).
const MESSAGE_SIZE: usize = 1 << 16;
/// Fruitless receive calls per poll before other tasks get a turn.
const ROUNDS: usize = 16;

/// The link as a socket for quinn.
#[derive(Debug)]
pub(super) struct QuicSocket {
    link: Arc<Link>,
    address: Ipv6Addr,
    segments: usize,
    receiver: Mutex<Receiver>,
}

/// Outer messages that are received but not opened yet, and their buffers.
struct Receiver {
    space: Vec<u8>,
    meta: [OuterMeta; MESSAGES],
    /// Number of filled entries of `meta`, the next one to open, and the offset in it.
    filled: usize,
    message: usize,
    offset: usize,
    /// Set if the messages are an initiation that another shard has checked: what it claims.
    claimed: Option<Claim>,
    /// Whether other shards have the next turn; otherwise the socket does.
    others_first: bool,
    /// Buffer to open a datagram in, or to receive a message from the successor.
    opened: Vec<u8>,
    /// Packets for previous processes.
    diverted: Diverted,
}

impl Debug for Receiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Receiver").field("filled", &self.filled).finish_non_exhaustive()
    }
}

impl QuicSocket {
    /// `max_payload` is the largest QUIC datagram accepted.
    pub(super) fn new(link: Arc<Link>, max_payload: u16) -> Self {
        let address = link.look(meshport_proto::core::Core::address);
        Self {
            link,
            address,
            segments: MESSAGE_SIZE / usize::from(max_payload) + 1,
            receiver: Mutex::new(Receiver {
                space: vec![0; MESSAGES * MESSAGE_SIZE],
                meta: [OuterMeta::default(); MESSAGES],
                filled: 0,
                message: 0,
                offset: 0,
                claimed: None,
                others_first: false,
                opened: Bridge::space(),
                diverted: Diverted::default(),
            }),
        }
    }
}

impl Receiver {
    /// Receives from other shards and from the socket in turn.
    fn fill(&mut self, link: &Link, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if link.inboxes.is_alone() {
            return self.fill_from_socket(link, cx);
        }
        self.others_first = !self.others_first;
        if self.others_first && self.fill_from_others(link, cx).is_ready() {
            return Poll::Ready(Ok(()));
        }
        match self.fill_from_socket(link, cx) {
            Poll::Pending => self.fill_from_others(link, cx).map(Ok),
            ready => ready,
        }
    }

    fn fill_from_others(&mut self, link: &Link, cx: &mut Context<'_>) -> Poll<()> {
        let Batch { route, bytes, stride, claimed } = ready!(link.inboxes.poll(cx));
        let length = bytes.len().min(MESSAGE_SIZE);
        self.space[..length].copy_from_slice(&bytes[..length]);
        self.meta[0] = OuterMeta { from: route.remote, local: route.local, length, stride };
        (self.filled, self.message, self.offset) = (1, 0, 0);
        self.claimed = claimed;
        Poll::Ready(())
    }

    fn fill_from_socket(&mut self, link: &Link, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut chunks = self.space.chunks_exact_mut(MESSAGE_SIZE);
        let mut buffers: [IoSliceMut<'_>; MESSAGES] =
            std::array::from_fn(|_| IoSliceMut::new(chunks.next().unwrap_or_default()));
        let count = ready!(link.socket.poll_recv(cx, &mut buffers, &mut self.meta))?;
        (self.filled, self.message, self.offset) = (count, 0, 0);
        self.claimed = None;
        Poll::Ready(Ok(()))
    }

    /// Opens received datagrams until none are left or `pack` is full, in one turn of the core.
    fn open(&mut self, link: &Link, pack: &mut Pack<'_, '_>) {
        link.turn(|core, now| {
            while self.message < self.filled {
                let meta = &self.meta[self.message];
                let route = Route { remote: meta.from, local: meta.local };
                let start = self.message * MESSAGE_SIZE;
                let message = &self.space[start..start + meta.length];
                while self.offset < message.len() {
                    if !pack.has_room() {
                        return;
                    }
                    let end = message.len().min(self.offset + meta.stride.max(1));
                    let datagram = &message[self.offset..end];
                    self.offset = end;
                    if let Some(claim) = self.claimed {
                        core.handle_claimed(now, route, datagram, &mut self.opened, claim);
                        continue;
                    }
                    let is_elsewhere =
                        |from, packet: &[u8]| self.diverted.take(&link.predecessors, from, packet);
                    let opened = |out: &mut [u8]| core.handle_datagram(now, route, datagram, out);
                    pack.open(datagram.len(), &mut self.opened, opened, is_elsewhere);
                    if let Some(joined) = core.poll_joined() {
                        let (from, packet) = (joined.from, joined.payload());
                        if !self.diverted.take(&link.predecessors, from, packet) {
                            pack.push(from, packet);
                        }
                    }
                }
                self.message += 1;
                self.offset = 0;
            }
        });
        self.diverted.send(&link.predecessors);
    }

    /// Receives what the successor forwards.
    fn receive_from(
        &mut self,
        bridge: &Bridge,
        cx: &mut Context<'_>,
        pack: &mut Pack<'_, '_>,
    ) -> Poll<()> {
        match ready!(bridge.poll_recv(cx, &mut self.opened)) {
            Some(frame) => frame.datagrams().for_each(|it| pack.push(frame.peer, it)),
            // The successor has ended, and this process is about to end too.
            None => return Poll::Pending,
        }
        Poll::Ready(())
    }

    fn is_done(&self) -> bool {
        self.message >= self.filled
    }
}

/// Fills quinn's buffers. Each holds a *run*: datagrams of one peer and of equal size; the last may
/// be shorter.
struct Pack<'a, 'b> {
    buffers: &'a mut [IoSliceMut<'b>],
    meta: &'a mut [RecvMeta],
    used: usize,
    /// Whether the last run has ended with a shorter datagram.
    closed: bool,
}

impl Pack<'_, '_> {
    /// Whether there is room for a datagram of any peer and size.
    fn has_room(&self) -> bool {
        self.used < self.buffers.len().min(self.meta.len())
    }

    /// Adds the QUIC datagram that `open` finds in an outer datagram of `length` bytes. Opens it
    /// right behind the last run, to avoid a copy, or in `scratch` if that is not possible. Skips
    /// it if `is_elsewhere` took it for another process.
    fn open(
        &mut self,
        length: usize,
        scratch: &mut [u8],
        open: impl FnOnce(&mut [u8]) -> Option<StreamPacket>,
        is_elsewhere: impl FnOnce(Ipv6Addr, &[u8]) -> bool,
    ) {
        let Some((last, start)) = self.place_behind(length) else {
            let Some(packet) = open(scratch) else { return };
            let payload = &scratch[UDP_OVERHEAD..][..packet.length];
            if !is_elsewhere(packet.from, payload) {
                self.push(packet.from, payload);
            }
            return;
        };
        // The packet's headers overwrite the end of the run until it is restored below.
        let space = &mut self.buffers[last][start..];
        let mut covered = [0; UDP_OVERHEAD];
        covered.copy_from_slice(&space[..UDP_OVERHEAD]);
        let opened = open(space);
        space[..UDP_OVERHEAD].copy_from_slice(&covered);
        let Some(packet) = opened else { return };
        let payload = &space[UDP_OVERHEAD..][..packet.length];
        if is_elsewhere(packet.from, payload) {
            return;
        }
        if self.meta[last].addr.ip() == IpAddr::V6(packet.from)
            && (1..=self.meta[last].stride).contains(&packet.length)
        {
            self.meta[last].len += packet.length;
            self.closed = packet.length < self.meta[last].stride;
        } else {
            scratch[..packet.length].copy_from_slice(payload);
            self.push(packet.from, &scratch[..packet.length]);
        }
    }

    /// The last buffer, and the offset at which a packet must start so that its payload follows the
    /// run. `None` if the run is closed or there is no room to open an outer datagram of `length`
    /// bytes.
    fn place_behind(&self, length: usize) -> Option<(usize, usize)> {
        let last = self.used.checked_sub(1).filter(|_| !self.closed)?;
        let start = self.meta[last].len.checked_sub(UDP_OVERHEAD)?;
        let room = self.buffers[last].len().checked_sub(start)?;
        (room >= length.max(MIN_OUTPUT)).then_some((last, start))
    }

    fn push(&mut self, from: Ipv6Addr, payload: &[u8]) {
        if payload.is_empty() || self.append(from, payload) || !self.has_room() {
            return;
        }
        let Some(space) = self.buffers[self.used].get_mut(..payload.len()) else { return };
        space.copy_from_slice(payload);
        self.meta[self.used] = RecvMeta {
            addr: SocketAddr::new(IpAddr::V6(from), ports::STREAMS),
            len: payload.len(),
            stride: payload.len(),
            ecn: None,
            dst_ip: None,
        };
        self.used += 1;
        self.closed = false;
    }

    /// Appends to the last run if the datagram fits there.
    fn append(&mut self, from: Ipv6Addr, payload: &[u8]) -> bool {
        let Some(last) = self.used.checked_sub(1).filter(|_| !self.closed) else { return false };
        let meta = &mut self.meta[last];
        if meta.addr.ip() != IpAddr::V6(from) || payload.len() > meta.stride {
            return false;
        }
        let Some(space) = self.buffers[last].get_mut(meta.len..meta.len + payload.len()) else {
            return false;
        };
        space.copy_from_slice(payload);
        meta.len += payload.len();
        self.closed = payload.len() < meta.stride;
        true
    }
}

impl AsyncUdpSocket for QuicSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Poller { link: self.link.clone(), writable: None })
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        if let IpAddr::V6(to) = transmit.destination.ip() {
            let (contents, whole) = (transmit.contents, transmit.contents.len());
            let segment = transmit.segment_size.unwrap_or(whole);
            match self.link.bridge() {
                Some(bridge) => bridge.send(&Frame { peer: to, segment, contents }),
                None => self.link.send_streams(&to, contents, segment),
            }
        }
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut receiver = lock(&self.receiver);
        let mut pack = Pack { buffers: bufs, meta, used: 0, closed: false };
        self.link.note_reader(cx.waker());
        for _ in 0..ROUNDS {
            if let Some(bridge) = self.link.bridge() {
                ready!(receiver.receive_from(bridge, cx, &mut pack));
                if pack.used > 0 {
                    return Poll::Ready(Ok(pack.used));
                }
                continue;
            }
            if receiver.is_done() {
                match receiver.fill(&self.link, cx) {
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(error)) => {
                        tracing::debug!(%error, "receiving failed");
                        continue;
                    }
                    Poll::Pending => return Poll::Pending,
                }
            }
            receiver.open(&self.link, &mut pack);
            if pack.used > 0 {
                return Poll::Ready(Ok(pack.used));
            }
        }
        // Nothing was for quinn so far: let other tasks run, then continue.
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(SocketAddr::new(IpAddr::V6(self.address), ports::STREAMS))
    }

    fn max_transmit_segments(&self) -> usize {
        // Even if the outer socket sends one by one, a batch is sealed in one turn of the core.
        super::quic_config::MAX_BATCH
    }

    fn max_receive_segments(&self) -> usize {
        self.segments
    }

    fn may_fragment(&self) -> bool {
        false
    }
}

/// Waits for room in the outer socket on behalf of one connection.
struct Poller {
    link: Arc<Link>,
    writable: Option<Writable>,
}

impl Debug for Poller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Poller").finish_non_exhaustive()
    }
}

impl UdpPoller for Poller {
    fn poll_writable(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let has_room = match self.link.bridge() {
                Some(bridge) => bridge.has_room(),
                None => self.link.flush_backlog(),
            };
            if has_room {
                self.writable = None;
                return Poll::Ready(Ok(()));
            }
            let link = self.link.clone();
            let writable = self.writable.get_or_insert_with(|| match link.bridge() {
                Some(bridge) => bridge.writable(),
                None => link.socket.clone().writable(),
            });
            let result = ready!(writable.as_mut().poll(cx));
            self.writable = None;
            if let Err(error) = result {
                tracing::debug!(%error, "waiting for the socket failed");
            }
        }
    }
}

#[cfg(test)]
mod tests;
