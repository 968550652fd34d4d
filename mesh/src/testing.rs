//! An outer network in memory, for tests and simulations: [`Switch`] hands out sockets that reach
//! each other by address, with optional delay and loss. Time is tokio's, so it can be stopped. The
//! same seed and order of sends give the same losses.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::time::{Instant, Sleep, sleep_until};

use super::lock;
use super::outer::{OuterMeta, OuterSocket, OuterTransmit};
use super::shards::Shards;
use super::steer::steer;
use super::udp::UdpOuter;

mod packets;

pub use packets::Packets;

/// Bytes that may be queued at one socket, as in a kernel.
const QUEUE_BYTES: usize = 4 << 20;
/// Bytes that may be in transit to one socket in addition: 10 Gbit/s over 100 ms.
const ON_THE_WAY_BYTES: usize = 128 << 20;
/// Datagrams kept by [`Switch::capture`].
const CAPTURED: usize = 65_536;

/// A datagram on the switch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Datagram {
    /// The sender.
    pub from: SocketAddr,
    /// The receiver.
    pub to: SocketAddr,
    /// The bytes.
    pub bytes: Vec<u8>,
}

type Filter = Box<dyn FnMut(&Datagram) -> bool + Send>;

/// The limits of the path to each socket.
#[derive(Debug, Clone, Copy)]
pub struct Bottleneck {
    /// Bytes per second.
    pub rate: u32,
    /// Maximum time that a datagram waits before it; beyond that, it is dropped.
    pub queue: Duration,
}

struct Network {
    ports: BTreeMap<SocketAddr, Arc<Mutex<Port>>>,
    delay: Duration,
    bottleneck: Option<Bottleneck>,
    loss: f64,
    filter: Option<Filter>,
    captured: Option<VecDeque<Datagram>>,
    rng: StdRng,
}

struct Waiting {
    at: Instant,
    from: SocketAddr,
    bytes: Vec<u8>,
    stride: usize,
}

#[derive(Default)]
struct Port {
    queue: VecDeque<Waiting>,
    bytes: usize,
    sent: u64,
    dropped: u64,
    /// Time at which its bottleneck has sent everything.
    free_at: Option<Instant>,
    waker: Option<Waker>,
    timer: Option<Pin<Box<Sleep>>>,
}

/// Shards of one port whose datagrams all arrive at the first, as on a kernel that accepts no
/// filter and sees one sender.
pub fn unsteered(address: SocketAddr, count: usize) -> io::Result<Shards> {
    let group = UdpOuter::open_group(address, count)?;
    steer(&group[0], 1)?;
    Shards::on(group, u16::MAX)
}

/// A network of in-memory sockets. Clones are the same network.
#[derive(Clone)]
pub struct Switch(Arc<Mutex<Network>>);

impl std::fmt::Debug for Switch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Switch")
    }
}

impl Switch {
    /// An empty network without delay or loss.
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(Network {
            ports: BTreeMap::new(),
            delay: Duration::ZERO,
            bottleneck: None,
            loss: 0.0,
            filter: None,
            captured: None,
            rng: StdRng::seed_from_u64(seed),
        })))
    }

    /// A socket at `address`. An earlier one at the same address neither sends nor receives any
    /// more.
    pub fn attach(&self, address: SocketAddr) -> Arc<dyn OuterSocket> {
        let port = Arc::new(Mutex::new(Port::default()));
        lock(&self.0).ports.insert(address, port.clone());
        Arc::new(MemorySocket { address: Mutex::new(address), port, switch: self.clone() })
    }

    /// Moves the socket at `from` to `to`, as a NAT or a changed network does.
    pub fn move_port(&self, from: SocketAddr, to: SocketAddr) {
        let mut network = lock(&self.0);
        if let Some(port) = network.ports.remove(&from) {
            network.ports.insert(to, port);
        }
    }

    /// One-way delay of datagrams sent from now on.
    pub fn set_delay(&self, delay: Duration) {
        lock(&self.0).delay = delay;
    }

    /// Sets or removes the bottleneck before each socket.
    pub fn set_bottleneck(&self, bottleneck: Option<Bottleneck>) {
        lock(&self.0).bottleneck = bottleneck;
    }

    /// How many batches were sent to the socket at `address`, and how many found no room.
    pub fn sent_to(&self, address: SocketAddr) -> (u64, u64) {
        let network = lock(&self.0);
        let port = network.ports.get(&address).map(|port| lock(port));
        port.map_or((0, 0), |port| (port.sent, port.dropped))
    }

    /// Share of datagrams lost, 0 to 1.
    pub fn set_loss(&self, loss: f64) {
        lock(&self.0).loss = loss;
    }

    /// Drops datagrams for which `keep` returns false.
    pub fn set_filter(&self, keep: impl FnMut(&Datagram) -> bool + Send + 'static) {
        lock(&self.0).filter = Some(Box::new(keep));
    }

    /// Removes the filter.
    pub fn clear_filter(&self) {
        lock(&self.0).filter = None;
    }

    /// Starts to keep a copy of every datagram sent, including lost ones.
    pub fn capture(&self) {
        lock(&self.0).captured = Some(VecDeque::new());
    }

    /// The datagrams that were captured since the last call.
    pub fn captured(&self) -> Vec<Datagram> {
        lock(&self.0).captured.as_mut().map(std::mem::take).into_iter().flatten().collect()
    }

    /// Puts a datagram on the network as if `from` had sent it, without filter and loss.
    pub fn inject(&self, datagram: &Datagram) {
        let network = lock(&self.0);
        network.deliver(datagram.from, datagram.to, datagram.bytes.clone(), datagram.bytes.len());
    }

    fn send(&self, from: SocketAddr, transmit: &OuterTransmit<'_>) {
        let network = &mut *lock(&self.0);
        let to = transmit.destination;
        let is_whole = network.loss == 0.0 && network.bottleneck.is_none();
        if is_whole && network.filter.is_none() && network.captured.is_none() {
            network.deliver(from, to, transmit.contents.to_vec(), transmit.segment);
            return;
        }
        for bytes in transmit.contents.chunks(transmit.segment) {
            let datagram = Datagram { from, to, bytes: bytes.to_vec() };
            if let Some(captured) = &mut network.captured
                && captured.len() < CAPTURED
            {
                captured.push_back(datagram.clone());
            }
            let kept = network.filter.as_mut().is_none_or(|keep| keep(&datagram));
            if kept && !network.rng.random_bool(network.loss) {
                network.deliver(from, to, datagram.bytes, bytes.len());
            }
        }
    }
}

impl Network {
    fn deliver(&self, from: SocketAddr, to: SocketAddr, bytes: Vec<u8>, stride: usize) {
        let Some(port) = self.ports.get(&to) else { return };
        #[expect(clippy::disallowed_methods, reason = "the network has its own clock, tokio's")]
        let now = Instant::now();
        let mut port = lock(port);
        port.sent += 1;
        let on_the_way = if self.delay.is_zero() { 0 } else { ON_THE_WAY_BYTES };
        if port.bytes + bytes.len() > QUEUE_BYTES + on_the_way {
            port.dropped += 1;
            return;
        }
        let Some(sent_at) = port.pass(self.bottleneck, now, bytes.len()) else {
            port.dropped += 1;
            return;
        };
        let at = sent_at + self.delay;
        port.bytes += bytes.len();
        // Delays may shrink while datagrams are in transit; they arrive in order of time.
        let place = port.queue.partition_point(|waiting| waiting.at <= at);
        port.queue.insert(place, Waiting { at, from, bytes, stride: stride.max(1) });
        if let Some(waker) = port.waker.take() {
            waker.wake();
        }
    }
}

impl Port {
    /// Time at which the bottleneck has sent this many bytes, if its queue has room.
    fn pass(&mut self, limit: Option<Bottleneck>, now: Instant, bytes: usize) -> Option<Instant> {
        let Some(Bottleneck { rate, queue }) = limit else { return Some(now) };
        let begins = self.free_at.unwrap_or(now).max(now);
        if begins - now > queue {
            return None;
        }
        let nanos = bytes as u64 * 1_000_000_000 / u64::from(rate.max(1));
        let ends = begins + Duration::from_nanos(nanos);
        self.free_at = Some(ends);
        Some(ends)
    }
}

struct MemorySocket {
    address: Mutex<SocketAddr>,
    port: Arc<Mutex<Port>>,
    switch: Switch,
}

impl std::fmt::Debug for MemorySocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("MemorySocket").field(&*lock(&self.address)).finish()
    }
}

impl MemorySocket {
    /// The current address of this port, which may have been moved. `None` if another one took its
    /// place.
    fn here(&self) -> Option<SocketAddr> {
        let mut known = lock(&self.address);
        let network = lock(&self.switch.0);
        if network.ports.get(&known).is_some_and(|port| Arc::ptr_eq(port, &self.port)) {
            return Some(*known);
        }
        let moved = network.ports.iter().find(|(_, port)| Arc::ptr_eq(port, &self.port));
        *known = *moved?.0;
        Some(*known)
    }
}

impl OuterSocket for MemorySocket {
    fn try_send(&self, transmit: &OuterTransmit<'_>) -> io::Result<()> {
        if let Some(here) = self.here() {
            self.switch.send(here, transmit);
        }
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [OuterMeta],
    ) -> Poll<io::Result<usize>> {
        let mut port = lock(&self.port);
        #[expect(clippy::disallowed_methods, reason = "the network has its own clock, tokio's")]
        let now = Instant::now();
        let mut count = 0;
        while count < buffers.len().min(meta.len())
            && port.queue.front().is_some_and(|waiting| waiting.at <= now)
            && let Some(waiting) = port.queue.pop_front()
        {
            port.bytes -= waiting.bytes.len();
            let length = waiting.bytes.len().min(buffers[count].len());
            buffers[count][..length].copy_from_slice(&waiting.bytes[..length]);
            meta[count] =
                OuterMeta { from: waiting.from, local: None, length, stride: waiting.stride };
            count += 1;
        }
        if count > 0 {
            return Poll::Ready(Ok(count));
        }
        port.waker = Some(cx.waker().clone());
        port.timer = port.queue.front().map(|waiting| Box::pin(sleep_until(waiting.at)));
        if let Some(timer) = &mut port.timer
            && timer.as_mut().poll(cx).is_ready()
        {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    fn writable(self: Arc<Self>) -> Pin<Box<dyn Future<Output = io::Result<()>> + Send + Sync>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.here().unwrap_or(*lock(&self.address)))
    }

    fn max_gso_segments(&self) -> usize {
        64
    }
}
