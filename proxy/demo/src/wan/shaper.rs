//! Carries UDP datagrams between real processes like a wide-area network.
//!
//! Every node has a public address, a socket that the shaper owns. A datagram that node A sends to
//! B's public address is judged by the [`Link`](super::Link) between their sites and then delivered
//! to B's real address *from A's public address*: to each, the other appears to be at its public
//! address. The sender is known by its real source address, so a node must send from the socket it
//! receives on, as WireGuard does. Others are strangers, which a network may admit or not.
//!
//! The shaper has two separate threads, one that receives (a tokio runtime) and one that delivers:
//! its timing does not depend on what else the process does, and blocking code can use it. Every
//! method returns at once.
//!
//! Bounds: [`MAX_NODES`], [`MAX_IN_FLIGHT_DATAGRAMS`], [`MAX_IN_FLIGHT_BYTES`]; what exceeds them
//! is dropped and counted. Accuracy: never early; late by what the kernel needs to wake a thread,
//! 0.1 to 0.4 ms on an idle machine. (A tokio timer would round up to the next millisecond, as
//! much as the whole latency inside a region.)

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tokio::net::UdpSocket;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use super::link::LinkConfig;
use meshport_daemon::Error;

mod state;
#[cfg(test)]
mod tests;

pub use state::{Cut, MAX_IN_FLIGHT_BYTES, MAX_IN_FLIGHT_DATAGRAMS, ShaperCounters};

use state::{Node, State};

/// Maximum number of nodes per shaper; each needs a socket.
pub const MAX_NODES: usize = 512;
/// The kernel's buffers per socket, in bytes; the kernel may grant less.
const SOCKET_BUFFER_BYTES: usize = 4 << 20;
/// The largest UDP payload.
const MAX_PAYLOAD: usize = 65_535;
/// Pause after a failed receive, so that a broken socket does not occupy the thread.
const RECEIVE_ERROR_PAUSE: Duration = Duration::from_millis(5);

/// How a shaper starts.
#[derive(Clone, Debug)]
pub struct ShaperConfig {
    /// The seed of all random numbers; two links differ by the names of their sites.
    pub seed: u64,
    /// The address of the public sockets.
    pub bind: IpAddr,
    /// The link between two sites, or inside one, for which none was set.
    pub default_link: LinkConfig,
    /// Whether to carry datagrams of senders other than the nodes, over the link inside the
    /// receiver's site and from the receiver's own public address; otherwise they are dropped.
    pub strangers: bool,
}

impl Default for ShaperConfig {
    /// Seed 0, on 127.0.0.1, perfect links, without strangers.
    fn default() -> Self {
        let default_link = LinkConfig::default();
        Self { seed: 0, bind: Ipv4Addr::LOCALHOST.into(), default_link, strangers: false }
    }
}

struct Shared {
    epoch: Instant,
    state: Mutex<State>,
    /// Notified when the earliest arrival moves forward, and at the end.
    earlier: Condvar,
}

/// A userspace wide-area network. Dropping it stops it.
pub struct Shaper {
    shared: Arc<Shared>,
    runtime: Handle,
    stop: Option<oneshot::Sender<()>>,
    threads: Vec<thread::JoinHandle<()>>,
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
    /// The system provides no thread or no event queue.
    pub fn start(config: ShaperConfig) -> Result<Self, Error> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(Error::io("start the runtime of the WAN shaper"))?;
        let shared = Arc::new(Shared {
            epoch: read_clock(),
            state: Mutex::new(State::new(config)),
            earlier: Condvar::new(),
        });
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        // From here on the value exists, so a failure stops the started threads.
        let mut shaper =
            Self { shared, runtime: handle, stop: Some(stop), threads: Vec::with_capacity(2) };
        shaper.spawn("wan-receive", move || {
            // An error means that the other end is gone, which is the end as well.
            let _ = runtime.block_on(stopped);
        })?;
        let delivering = Arc::clone(&shaper.shared);
        shaper.spawn("wan-deliver", move || deliver_until_stopped(&delivering))?;
        Ok(shaper)
    }

    fn spawn(&mut self, name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), Error> {
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(run)
            .map_err(Error::io(format!("start the thread {name}")))?;
        self.threads.push(thread);
        Ok(())
    }

    /// Adds a node and returns its public address. `real` may be set later.
    ///
    /// # Errors
    /// The name or the real address is taken, [`MAX_NODES`] is reached, or no socket is available.
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
        // A smaller buffer than requested only means more drops under load.
        let _ = socket.set_recv_buffer_size(SOCKET_BUFFER_BYTES);
        let _ = socket.set_send_buffer_size(SOCKET_BUFFER_BYTES);
        socket.bind(&address.into())?;
        let _context = self.runtime.enter();
        UdpSocket::from_std(socket.into())
    }

    /// Sets the real address of a node, for example after its process has restarted. The previous
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

    /// Cuts or heals. Datagrams already in transit still arrive. A second cut has no further
    /// effect.
    pub fn set_down(&self, cut: Cut, down: bool) {
        let mut state = self.shared.lock();
        if down {
            state.cuts.insert(cut);
        } else {
            state.cuts.remove(&cut);
        }
    }

    /// Whether strangers' datagrams are carried from now on, as [`ShaperConfig::strangers`].
    pub fn set_strangers(&self, carried: bool) {
        self.shared.lock().config.strangers = carried;
    }

    /// The counters of the shaper.
    pub fn counters(&self) -> ShaperCounters {
        self.shared.lock().counters()
    }

    /// Stops, drops datagrams in transit, closes all sockets and returns the last counters.
    pub fn shutdown(mut self) -> ShaperCounters {
        self.stop();
        self.counters()
    }

    fn stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            // Nobody listens if the thread is already gone.
            let _ = stop.send(());
        }
        self.shared.lock().stopped = true;
        self.shared.earlier.notify_all();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the WAN shaper panicked");
            }
        }
    }
}

impl Drop for Shaper {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    /// State is consistent between statements, so a panic elsewhere does not corrupt it.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        read_clock().saturating_duration_since(self.epoch)
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

fn deliver_until_stopped(shared: &Shared) {
    let mut due = Vec::new();
    let mut state = shared.lock();
    while !state.stopped {
        let now = shared.now();
        let next = state.take_due(now, &mut due);
        if !due.is_empty() {
            drop(state);
            let sent = due.drain(..).map(|due| due.socket.try_send_to(&due.payload, due.real));
            let (delivered, refused) = sent.fold((0, 0), |(delivered, refused), sent| {
                if sent.is_ok() { (delivered + 1, refused) } else { (delivered, refused + 1) }
            });
            state = shared.lock();
            state.counters.delivered += delivered;
            state.counters.dropped_send += refused;
            // Datagrams that have arrived meanwhile may already be due.
            continue;
        }
        state = match next {
            None => shared.earlier.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(at) => {
                let wait = at.saturating_sub(now);
                let woken = shared.earlier.wait_timeout(state, wait);
                woken.unwrap_or_else(PoisonError::into_inner).0
            }
        };
    }
}

#[expect(clippy::disallowed_methods, reason = "the shaper is an I/O edge: it places real arrivals")]
fn read_clock() -> Instant {
    Instant::now()
}
