//! Carries UDP datagrams between real processes as if a wide-area network lay between them.
//!
//! Every node has a public address, a socket that the shaper owns. A datagram that node A sends to
//! B's public address is judged by the [`Link`] between their sites and then delivered to B's real
//! address *from A's public address*: to both it looks as if the other lived at its public
//! address. The sender is known by its real source address, so a node must send from the socket it
//! receives on, as WireGuard does.
//!
//! The shaper runs on a thread and runtime of its own: its timing does not depend on what else the
//! process does, and blocking code can use it. Every method returns at once.
//!
//! Bounds: [`MAX_NODES`], [`MAX_IN_FLIGHT_DATAGRAMS`], [`MAX_IN_FLIGHT_BYTES`]; what exceeds them
//! is dropped and counted. Accuracy: a datagram leaves up to about 1 ms late, the granularity of
//! the timer, and never early.

use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tokio::net::UdpSocket;
use tokio::runtime::{Builder, Handle};
use tokio::sync::{Notify, oneshot};

use super::link::{DropReason, Link, LinkConfig, LinkCounters, Verdict};
use crate::Error;

#[cfg(test)]
mod tests;

/// How many nodes one shaper serves; each costs a socket.
pub const MAX_NODES: usize = 512;
/// How many datagrams may be on the way at once: a second of 10 Gbit/s in full-size datagrams
/// would be 800,000, a tenth of it is more than userspace carries.
pub const MAX_IN_FLIGHT_DATAGRAMS: usize = 131_072;
/// How many payload bytes may be on the way at once: 1 Gbit/s over 300 ms needs 38 MiB.
pub const MAX_IN_FLIGHT_BYTES: usize = 256 << 20;
/// The kernel's buffers per socket, in bytes; the kernel may grant less.
const SOCKET_BUFFER_BYTES: usize = 4 << 20;
/// The largest UDP payload.
const MAX_PAYLOAD: usize = 65_535;
/// How many due datagrams are delivered before other tasks get a turn.
const DELIVERY_BATCH: usize = 128;
/// Pause after a failed receive, so that a broken socket does not occupy the thread.
const RECEIVE_ERROR_PAUSE: Duration = Duration::from_millis(5);

/// How a shaper starts.
#[derive(Clone, Debug)]
pub struct ShaperConfig {
    /// Decides every random draw; two links differ by the names of their sites.
    pub seed: u64,
    /// Where the public sockets live.
    pub bind: IpAddr,
    /// The link between two sites, or inside one, for which none was set.
    pub default_link: LinkConfig,
}

impl Default for ShaperConfig {
    /// Seed 0, on 127.0.0.1, perfect links.
    fn default() -> Self {
        Self { seed: 0, bind: Ipv4Addr::LOCALHOST.into(), default_link: LinkConfig::default() }
    }
}

/// Something that stops carrying datagrams until it is healed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cut {
    /// Both directions between two sites (or inside one, if both are the same).
    Between(String, String),
    /// One direction between two sites.
    OneWay {
        /// The sending site.
        from: String,
        /// The receiving site.
        to: String,
    },
    /// Everything that enters or leaves a site; its inside goes on.
    Site(String),
    /// Everything one node sends or would receive.
    Node(String),
}

impl Cut {
    fn applies(&self, from: &Node, to: &Node) -> bool {
        match self {
            Self::Between(a, b) => {
                (from.site == *a && to.site == *b) || (from.site == *b && to.site == *a)
            }
            Self::OneWay { from: source, to: target } => from.site == *source && to.site == *target,
            Self::Site(site) => (from.site == *site) != (to.site == *site),
            Self::Node(name) => from.name == *name || to.name == *name,
        }
    }
}

/// What a shaper has done so far. `received` is the sum of everything dropped, what is still on
/// the way and the delivered datagrams without their duplicates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ShaperCounters {
    /// Datagrams that reached a public address.
    pub received: u64,
    /// Their payload bytes.
    pub received_bytes: u64,
    /// Datagrams handed to a node, duplicates included.
    pub delivered: u64,
    /// Second copies put on the way.
    pub duplicated: u64,
    /// Dropped: the source is no node's real address.
    pub dropped_unknown_sender: u64,
    /// Dropped on arrival: the receiver has no real address yet.
    pub dropped_no_address: u64,
    /// Dropped: a [`Cut`] applies.
    pub dropped_cut: u64,
    /// Dropped: the link is down, by its settings.
    pub dropped_down: u64,
    /// Dropped: larger than the link's MTU.
    pub dropped_too_big: u64,
    /// Dropped: the queue before the link's bottleneck was full.
    pub dropped_queue_full: u64,
    /// Dropped: lost on the link.
    pub dropped_lost: u64,
    /// Dropped: a bound of the shaper itself was reached.
    pub dropped_overflow: u64,
    /// Dropped on arrival: the kernel did not take the datagram.
    pub dropped_send: u64,
    /// Receive calls that failed.
    pub receive_errors: u64,
    /// Datagrams on the way now.
    pub in_flight: u64,
}

struct Node {
    name: String,
    site: String,
    public: SocketAddr,
    real: Option<SocketAddr>,
    socket: Arc<UdpSocket>,
}

/// A datagram on the way.
struct Pending {
    at: Duration,
    /// Keeps equal arrivals in the order of sending.
    sequence: u64,
    from: usize,
    to: usize,
    payload: Arc<[u8]>,
}

impl PartialEq for Pending {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Pending {}
impl PartialOrd for Pending {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Pending {
    /// The earliest is the greatest, because [`BinaryHeap`] yields the greatest first.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.at, other.sequence).cmp(&(self.at, self.sequence))
    }
}

struct State {
    config: ShaperConfig,
    nodes: Vec<Node>,
    by_real: BTreeMap<SocketAddr, usize>,
    /// By sending and receiving site.
    links: BTreeMap<(String, String), Link>,
    cuts: BTreeSet<Cut>,
    queue: BinaryHeap<Pending>,
    queued_bytes: usize,
    sequence: u64,
    counters: ShaperCounters,
}

struct Shared {
    epoch: Instant,
    state: Mutex<State>,
    /// Told when the earliest arrival moved forward.
    earlier: Notify,
}

/// A userspace wide-area network. Dropping it stops it.
pub struct Shaper {
    shared: Arc<Shared>,
    runtime: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl std::fmt::Debug for Shaper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shaper").field("counters", &self.counters()).finish_non_exhaustive()
    }
}

impl Shaper {
    /// Starts a network without nodes.
    ///
    /// # Errors
    /// The system grants no thread or no event queue.
    pub fn start(config: ShaperConfig) -> Result<Self, Error> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(Error::io("start the runtime of the WAN shaper"))?;
        let shared = Arc::new(Shared {
            epoch: read_clock(),
            state: Mutex::new(State::new(config)),
            earlier: Notify::new(),
        });
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let delivering = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("wan-shaper".to_owned())
            .spawn(move || {
                runtime.block_on(async move {
                    tokio::select! {
                        () = deliver_forever(&delivering) => {}
                        _ = stopped => {}
                    }
                });
            })
            .map_err(Error::io("start the thread of the WAN shaper"))?;
        Ok(Self { shared, runtime: handle, stop: Some(stop), thread: Some(thread) })
    }

    /// Adds a node and returns its public address. `real` may be set later.
    ///
    /// # Errors
    /// The name or the real address is taken, [`MAX_NODES`] is reached, or no socket is to be had.
    pub fn add_node(
        &self,
        name: &str,
        site: &str,
        real: Option<SocketAddr>,
    ) -> Result<SocketAddr, Error> {
        let bind = self.shared.lock().config.bind;
        let socket = self.bind(bind).map_err(Error::io(format!("bind a UDP socket on {bind}")))?;
        let public = socket.local_addr().map_err(Error::io("read the address of a UDP socket"))?;
        let socket = Arc::new(socket);
        let index = {
            let mut state = self.shared.lock();
            if state.nodes.len() >= MAX_NODES {
                return Err(Error::Usage(format!(
                    "a WAN shaper carries {MAX_NODES} nodes at most"
                )));
            }
            if state.nodes.iter().any(|node| node.name == name) {
                return Err(Error::Usage(format!("the WAN shaper already has a node {name:?}")));
            }
            let index = state.nodes.len();
            state.learn(index, real)?;
            state.nodes.push(Node {
                name: name.to_owned(),
                site: site.to_owned(),
                public,
                real,
                socket: Arc::clone(&socket),
            });
            index
        };
        self.runtime.spawn(receive_forever(Arc::clone(&self.shared), index, socket));
        Ok(public)
    }

    fn bind(&self, address: IpAddr) -> std::io::Result<UdpSocket> {
        let address = SocketAddr::new(address, 0);
        let domain = socket2::Domain::for_address(address);
        let socket = socket2::Socket::new(domain, socket2::Type::DGRAM, None)?;
        socket.set_nonblocking(true)?;
        // A smaller buffer than asked for only means more drops under load.
        let _ = socket.set_recv_buffer_size(SOCKET_BUFFER_BYTES);
        let _ = socket.set_send_buffer_size(SOCKET_BUFFER_BYTES);
        socket.bind(&address.into())?;
        let _context = self.runtime.enter();
        UdpSocket::from_std(socket.into())
    }

    /// Tells where a node really listens, for example after its process started anew. The former
    /// address is forgotten.
    ///
    /// # Errors
    /// No node has that name, or another node has that address.
    pub fn set_real(&self, name: &str, real: SocketAddr) -> Result<(), Error> {
        let mut state = self.shared.lock();
        let Some(index) = state.nodes.iter().position(|node| node.name == name) else {
            return Err(Error::Usage(format!("the WAN shaper has no node {name:?}")));
        };
        state.learn(index, Some(real))?;
        state.nodes[index].real = Some(real);
        Ok(())
    }

    /// The public address of a node.
    pub fn public_addr(&self, name: &str) -> Option<SocketAddr> {
        self.shared.lock().nodes.iter().find(|node| node.name == name).map(|node| node.public)
    }

    /// Sets the link between two sites, in both directions, each with its own queue and its own
    /// random numbers. The latency is one way. Both names equal: the inside of a site.
    pub fn set_link(&self, a: &str, b: &str, config: &LinkConfig) {
        self.set_link_one_way(a, b, config);
        if a != b {
            self.set_link_one_way(b, a, config);
        }
    }

    /// Sets one direction between two sites.
    pub fn set_link_one_way(&self, from: &str, to: &str, config: &LinkConfig) {
        self.shared.lock().link(from, to).set_config(config.clone());
    }

    /// Cuts or heals. Datagrams already on the way still arrive. Cutting twice is cutting once.
    pub fn set_down(&self, cut: Cut, down: bool) {
        let mut state = self.shared.lock();
        if down {
            state.cuts.insert(cut);
        } else {
            state.cuts.remove(&cut);
        }
    }

    /// What the shaper has done so far.
    pub fn counters(&self) -> ShaperCounters {
        let state = self.shared.lock();
        ShaperCounters { in_flight: state.queue.len() as u64, ..state.counters }
    }

    /// What each link has done so far: sending site, receiving site, counters.
    pub fn links(&self) -> Vec<(String, String, LinkCounters)> {
        let state = self.shared.lock();
        let row = |((from, to), link): (&(String, String), &Link)| {
            (from.clone(), to.clone(), link.counters())
        };
        state.links.iter().map(row).collect()
    }

    /// Stops, drops what is on the way, closes all sockets and returns the last counters.
    pub fn shutdown(mut self) -> ShaperCounters {
        self.stop();
        self.counters()
    }

    fn stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            // Nobody listens when the thread is gone already.
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the WAN shaper's thread panicked");
        }
    }
}

impl Drop for Shaper {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    /// State is consistent between statements, so a panic elsewhere does not spoil it.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        read_clock().saturating_duration_since(self.epoch)
    }
}

impl State {
    fn new(config: ShaperConfig) -> Self {
        Self {
            config,
            nodes: Vec::new(),
            by_real: BTreeMap::new(),
            links: BTreeMap::new(),
            cuts: BTreeSet::new(),
            queue: BinaryHeap::new(),
            queued_bytes: 0,
            sequence: 0,
            counters: ShaperCounters::default(),
        }
    }

    fn learn(&mut self, index: usize, real: Option<SocketAddr>) -> Result<(), Error> {
        let Some(real) = real else { return Ok(()) };
        if self.by_real.get(&real).is_some_and(|owner| *owner != index) {
            return Err(Error::Usage(format!("{real} is already another node's real address")));
        }
        self.by_real.retain(|_, owner| *owner != index);
        self.by_real.insert(real, index);
        Ok(())
    }

    fn link(&mut self, from: &str, to: &str) -> &mut Link {
        let config = &self.config;
        self.links.entry((from.to_owned(), to.to_owned())).or_insert_with(|| {
            Link::new(config.default_link.clone(), config.seed ^ hash_names(from, to))
        })
    }

    /// Judges one datagram. True if the earliest arrival moved forward.
    fn judge(&mut self, to: usize, source: SocketAddr, payload: &[u8], now: Duration) -> bool {
        self.counters.received += 1;
        self.counters.received_bytes += payload.len() as u64;
        let Some(&from) = self.by_real.get(&source) else {
            self.counters.dropped_unknown_sender += 1;
            return false;
        };
        if self.cuts.iter().any(|cut| cut.applies(&self.nodes[from], &self.nodes[to])) {
            self.counters.dropped_cut += 1;
            return false;
        }
        let sites = (self.nodes[from].site.clone(), self.nodes[to].site.clone());
        let headers = if source.is_ipv4() { 20 + 8 } else { 40 + 8 };
        let deliveries = match self.link(&sites.0, &sites.1).send(now, payload.len() + headers) {
            Verdict::Deliver(deliveries) => deliveries,
            Verdict::Drop(reason) => {
                *self.drop_counter(reason) += 1;
                return false;
            }
        };
        let before = self.queue.peek().map(|pending| pending.at);
        let payload: Arc<[u8]> = payload.into();
        self.enqueue(deliveries.at, from, to, &payload);
        if let Some(at) = deliveries.duplicate_at {
            self.counters.duplicated += 1;
            self.enqueue(at, from, to, &payload);
        }
        before.is_none_or(|before| deliveries.at < before)
    }

    fn drop_counter(&mut self, reason: DropReason) -> &mut u64 {
        match reason {
            DropReason::Down => &mut self.counters.dropped_down,
            DropReason::TooBig => &mut self.counters.dropped_too_big,
            DropReason::QueueFull => &mut self.counters.dropped_queue_full,
            DropReason::Lost => &mut self.counters.dropped_lost,
        }
    }

    fn enqueue(&mut self, at: Duration, from: usize, to: usize, payload: &Arc<[u8]>) {
        if self.queue.len() >= MAX_IN_FLIGHT_DATAGRAMS
            || self.queued_bytes + payload.len() > MAX_IN_FLIGHT_BYTES
        {
            self.counters.dropped_overflow += 1;
            return;
        }
        self.queued_bytes += payload.len();
        self.sequence += 1;
        let payload = Arc::clone(payload);
        self.queue.push(Pending { at, sequence: self.sequence, from, to, payload });
    }

    /// Hands over at most [`DELIVERY_BATCH`] due datagrams; returns when the next one is due.
    fn deliver_due(&mut self, now: Duration) -> Option<Duration> {
        for _ in 0..DELIVERY_BATCH {
            if self.queue.peek()?.at > now {
                break;
            }
            let pending = self.queue.pop()?;
            self.queued_bytes -= pending.payload.len();
            let Some(real) = self.nodes[pending.to].real else {
                self.counters.dropped_no_address += 1;
                continue;
            };
            // From the sender's public socket: that is who the receiver shall see.
            match self.nodes[pending.from].socket.try_send_to(&pending.payload, real) {
                Ok(_) => self.counters.delivered += 1,
                Err(_) => self.counters.dropped_send += 1,
            }
        }
        self.queue.peek().map(|pending| pending.at)
    }
}

async fn receive_forever(shared: Arc<Shared>, index: usize, socket: Arc<UdpSocket>) {
    let mut buffer = vec![0; MAX_PAYLOAD];
    loop {
        match socket.recv_from(&mut buffer).await {
            Ok((length, source)) => {
                let now = shared.now();
                if shared.lock().judge(index, source, &buffer[..length], now) {
                    shared.earlier.notify_one();
                }
            }
            Err(_) => {
                shared.lock().counters.receive_errors += 1;
                tokio::time::sleep(RECEIVE_ERROR_PAUSE).await;
            }
        }
    }
}

async fn deliver_forever(shared: &Shared) {
    loop {
        let now = shared.now();
        let next = shared.lock().deliver_due(now);
        match next {
            None => shared.earlier.notified().await,
            Some(at) if at <= now => tokio::task::yield_now().await,
            // An arrival too far away for the clock is as good as never.
            Some(at) => match shared.epoch.checked_add(at) {
                None => shared.earlier.notified().await,
                Some(at) => tokio::select! {
                    () = tokio::time::sleep_until(at.into()) => {}
                    () = shared.earlier.notified() => {}
                },
            },
        }
    }
}

/// FNV-1a over both names, with a separator: distinct, stable seeds for the links.
fn hash_names(from: &str, to: &str) -> u64 {
    from.bytes().chain([0]).chain(to.bytes()).fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[expect(clippy::disallowed_methods, reason = "the shaper is an I/O edge: it places real arrivals")]
fn read_clock() -> Instant {
    Instant::now()
}
