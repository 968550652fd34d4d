//! A stand-in for a Kubernetes apiserver: real TLS, HTTP/1.1 and HTTP/2, and the faults real ones
//! have.
//!
//! A [`StandIn`] answers the health paths, `/version`, an endless watch-like stream and big
//! downloads (the list is in `http.rs`), and can be made unready, hung, refusing or dead while it
//! runs. Each one has its own certificate from a shared [`Authority`], which shows a client which
//! origin answered. [`process`] runs one as a separate process, for tests that use `kill`.
//!
//! Bounds: [`MAX_CONNECTIONS`] and [`MAX_STREAMS`] per connection; at the bound new connections
//! wait in the kernel's backlog. It is meant for tests and the demo, not for untrusted clients.

use std::convert::Infallible;
use std::future::ready;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use meshport_daemon::Error;

pub mod authority;
mod body;
mod gate;
mod http;
pub mod process;
#[cfg(test)]
mod tests;

pub use authority::{Authority, Leaf};
pub use process::{ServeOptions, TlsSource, serve_forever};

use gate::{Gate, Gated};

/// Connections served at once; a thousand nodes with a few connections each.
pub const MAX_CONNECTIONS: usize = 4096;
/// HTTP/2 streams per connection, the apiserver's own default.
pub const MAX_STREAMS: u32 = 250;
/// The kernel's queue of connections not yet accepted; a hung stand-in fills it.
const BACKLOG: u32 = 1024;
/// How long a client may take for its TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// HTTP/2 flow-control window of a stream, in bytes: 1 Gbit/s over 30 ms.
const STREAM_WINDOW: u32 = 4 << 20;
/// HTTP/2 flow-control window of a connection, in bytes.
const CONNECTION_WINDOW: u32 = 16 << 20;
/// Pause after a failed accept (out of descriptors), so that it does not occupy the runtime.
const ACCEPT_ERROR_PAUSE: Duration = Duration::from_millis(20);

/// How a stand-in starts.
#[derive(Clone, Debug)]
pub struct StandInConfig {
    /// Where to listen; port 0 picks a free one.
    pub listen: SocketAddr,
    /// Certificate and key; [`Leaf::name`] is what `/whoami` answers.
    pub leaf: Leaf,
    /// If set, client certificates of this authority (PEM) are requested, and verified if sent.
    pub client_ca: Option<String>,
    /// Time between two lines of `/watch`.
    pub watch_interval: Duration,
}

impl StandInConfig {
    /// On a free port of 127.0.0.1, a watch line each second.
    pub fn new(leaf: Leaf) -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            leaf,
            client_ca: None,
            watch_interval: Duration::from_secs(1),
        }
    }
}

/// State shared by the connections of one stand-in.
struct Shared {
    name: String,
    watch_interval: Duration,
    tls: TlsAcceptor,
    ready: AtomicBool,
    gate: Arc<Gate>,
    /// Incremented to cut every open connection.
    cut: watch::Sender<u64>,
    slots: Arc<Semaphore>,
    open_connections: AtomicUsize,
}

/// A running stand-in. Dropping it closes its port and cuts its connections.
pub struct StandIn {
    shared: Arc<Shared>,
    addr: SocketAddr,
    accepting: Mutex<Option<JoinHandle<()>>>,
    /// Bound but never listening: keeps the port while the stand-in refuses.
    _reservation: socket2::Socket,
}

impl std::fmt::Debug for StandIn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StandIn")
            .field("name", &self.shared.name)
            .field("addr", &self.addr)
            .finish_non_exhaustive()
    }
}

impl StandIn {
    /// Starts to serve, on the runtime this is called in.
    ///
    /// # Errors
    /// The address cannot be bound, or certificate, key or authority are damaged.
    pub fn start(config: StandInConfig) -> Result<Self, Error> {
        let tls = config.leaf.server_config(config.client_ca.as_deref())?;
        let listen = config.listen;
        let reservation = reserve(listen).map_err(Error::io(format!("bind {listen}")))?;
        let addr = reservation
            .local_addr()
            .ok()
            .and_then(|addr| addr.as_socket())
            .ok_or_else(|| Error::Bug("a bound socket has no address".to_owned()))?;
        let shared = Arc::new(Shared {
            name: config.leaf.name,
            watch_interval: config.watch_interval,
            tls: TlsAcceptor::from(Arc::new(tls)),
            ready: AtomicBool::new(true),
            gate: Arc::new(Gate::default()),
            cut: watch::Sender::new(0),
            slots: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
            open_connections: AtomicUsize::new(0),
        });
        let stand_in =
            Self { shared, addr, accepting: Mutex::new(None), _reservation: reservation };
        stand_in.resume()?;
        Ok(stand_in)
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The origin's name, as in its certificate.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    fn open_connections(&self) -> usize {
        self.shared.open_connections.load(Ordering::Relaxed)
    }

    /// Sets the answer of `/readyz`: 200 or 500. Everything else is still served.
    pub fn set_ready(&self, ready: bool) {
        self.shared.ready.store(ready, Ordering::Relaxed);
    }

    /// Stops reading, writing and accepting on every connection; the kernel still completes TCP
    /// handshakes. It looks like a process under SIGSTOP.
    pub fn hang(&self) {
        self.shared.gate.close();
    }

    /// Ends [`StandIn::hang`]: everything continues where it stopped.
    pub fn unhang(&self) {
        self.shared.gate.open();
    }

    /// Closes the listening socket: new connections are refused once this returns. Open ones are
    /// still served, as by an apiserver that terminates gracefully.
    pub async fn refuse(&self) {
        let task = self.accepting.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task {
            task.abort();
            // The listener is closed when the task has ended; its cancellation is expected.
            let _ = task.await;
        }
    }

    /// Listens again, on the same port. Does nothing if it listens already.
    ///
    /// # Errors
    /// The port cannot be bound.
    pub fn resume(&self) -> Result<(), Error> {
        let mut accepting = self.accepting.lock().unwrap_or_else(PoisonError::into_inner);
        if accepting.is_none() {
            let listener =
                listen(self.addr).map_err(Error::io(format!("listen on {}", self.addr)))?;
            *accepting = Some(tokio::spawn(accept_forever(Arc::clone(&self.shared), listener)));
        }
        Ok(())
    }

    /// Cuts every open connection.
    pub fn cut_connections(&self) {
        self.shared.cut.send_modify(|count| *count += 1);
    }

    /// Refuses new connections and cuts the open ones, as when the process is killed.
    /// [`StandIn::resume`] is its restart.
    pub async fn kill(&self) {
        self.refuse().await;
        self.cut_connections();
    }

    /// Ends it permanently and releases the port.
    pub async fn stop(self) {
        self.kill().await;
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        if let Some(task) = self.accepting.lock().unwrap_or_else(PoisonError::into_inner).take() {
            task.abort();
        }
        self.cut_connections();
        // A hung connection must run once more to end.
        self.shared.gate.open();
    }
}

/// Binds without listening. Reuse lets the listener bind the same address.
fn reserve(address: SocketAddr) -> std::io::Result<socket2::Socket> {
    let domain = socket2::Domain::for_address(address);
    let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

async fn accept_forever(shared: Arc<Shared>, listener: TcpListener) {
    loop {
        let Ok(slot) = Arc::clone(&shared.slots).acquire_owned().await else { return };
        shared.gate.opened().await;
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_ERROR_PAUSE).await;
            continue;
        };
        let shared = Arc::clone(&shared);
        let mut cut = shared.cut.subscribe();
        tokio::spawn(async move {
            let _slot = slot;
            let _open = Open::count(&shared.open_connections);
            tokio::select! {
                () = serve(&shared, stream) => {}
                // Fails only when the stand-in is gone, which ends its connections as well.
                _ = cut.changed() => {}
            }
        });
    }
}

/// Counts something as open while it exists.
struct Open<'a>(&'a AtomicUsize);

impl<'a> Open<'a> {
    fn count(counter: &'a AtomicUsize) -> Self {
        counter.fetch_add(1, Ordering::Relaxed);
        Self(counter)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn serve(shared: &Arc<Shared>, stream: TcpStream) {
    // Without it the 40 ms of delayed acknowledgements would show up as latency.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "cannot set TCP_NODELAY");
    }
    let stream = Gated::new(stream, Arc::clone(&shared.gate));
    let handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, shared.tls.accept(stream)).await;
    let Ok(Ok(stream)) = handshake else { return };
    let service = service_fn(|request| ready(Ok::<_, Infallible>(http::answer(shared, &request))));
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new());
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW);
    if let Err(error) = builder.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(name = shared.name, %error, "a connection to the stand-in ended");
    }
}
