//! The admin server: one router behind a unix socket and, if wanted, a loopback TCP port.
//!
//! Each listener has its own bounds: connections at once, in all and of one client (`slots.rs`),
//! time for a request's head, size of head and body, lifetime of a connection. A silent client
//! locks nobody out. The socket file gets its mode before its name, so no other user can ever open
//! it; a stale one is replaced only when nothing answers on it.
//!
//! What the machine lacks (a folder that cannot be written, a full disk, a port that another
//! process has) stops no daemon: the node serves its clients, a warning says what is missing, and
//! binding is tried again. It is for people and monitoring, while the daemon is for the node's
//! clients; and a user who takes the loopback port must not keep it from starting. What the
//! settings cannot mean does: an address that is not loopback, a path that is no socket or too
//! long, and above all a socket on which another daemon answers, since verbs would change that
//! other node.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::router::{self, ListenerKind};
use super::slots::{Slot, Slots};
use crate::Error;
use crate::node::driver::answers::Ask;
use crate::sessions::client::ClientId;
use crate::tcp::{self, KernelListener};
use crate::unix::{self, SocketFile, SocketPath};

/// From accepting a connection, or from its last answer, to the end of the next request's head.
const MAX_HEAD_TIME: Duration = Duration::from_secs(5);
/// Head of a request in bytes; hyper's least.
const MAX_HEAD_BYTES: usize = 8 * 1024;
/// Header lines of a request.
const MAX_HEADERS: usize = 32;
/// A connection ends after this time, whatever it does; longer than the longest ping.
const MAX_CONNECTION_TIME: Duration = Duration::from_secs(600);
/// How long answers under way may take once the daemon stops.
const MAX_DRAIN_TIME: Duration = Duration::from_secs(1);
/// Pause after a failed accept, which is mostly a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Where the socket is: for its owner alone.
pub(crate) fn socket_path(path: &Path) -> SocketPath<'_> {
    SocketPath { path, mode: 0o600, setting: "admin.socket" }
}

/// From one attempt to bind a listener to the next.
const RETRY: Duration = Duration::from_secs(2);

/// Both listeners, bound as far as the machine allows, and not yet served.
#[derive(Debug)]
pub(crate) struct AdminServer {
    path: PathBuf,
    unix: Option<(UnixListener, SocketFile)>,
    address: Option<SocketAddr>,
    http: Option<KernelListener>,
}

impl AdminServer {
    /// Binds the unix socket (mode 0600) and the loopback port; port 0 is chosen by the system.
    ///
    /// # Errors
    /// [`Error::State`] when another daemon answers on the socket or its path cannot be one,
    /// [`Error::Usage`] for an address that is not loopback. What the machine lacks is logged.
    pub(crate) async fn bind(socket: &Path, http: Option<SocketAddr>) -> Result<Self, Error> {
        let bound = match http {
            None => None,
            Some(address) => or_later(bind_loopback(address))?,
        };
        let unix = or_later(unix::bind(socket_path(socket)).await)?;
        Ok(Self { path: socket.to_owned(), unix, address: http, http: bound })
    }

    /// The address of the loopback port, if it is on.
    pub(crate) fn http_addr(&self) -> Option<SocketAddr> {
        self.http.as_ref().and_then(|listener| listener.local_addr().ok())
    }

    /// Answers until `shutdown` resolves, gives answers under way a moment, and removes the socket.
    pub(crate) async fn serve(self, ask: impl Ask, shutdown: impl Future<Output = ()>) {
        let Self { path, unix, address, http } = self;
        let (stop, stopping) = watch::channel(false);
        let on_socket = async {
            let bound = match unix {
                Some(bound) => Some(bound),
                None => again(stopping.clone(), || unix::bind(socket_path(&path))).await,
            };
            if let Some((unix, _socket)) = bound {
                accept(unix, ask.clone(), stopping.clone()).await;
            }
        };
        let on_loopback = async {
            let Some(address) = address else { return };
            let bound = match http {
                Some(bound) => Some(bound),
                None => again(stopping.clone(), async || bind_loopback(address)).await,
            };
            if let Some(listener) = bound {
                accept(listener, ask.clone(), stopping.clone()).await;
            }
        };
        let until_shutdown = async {
            shutdown.await;
            stop.send_replace(true);
        };
        tokio::join!(on_socket, on_loopback, until_shutdown);
    }
}

/// The result of binding; none if the machine lacks something, which is logged.
fn or_later<T>(bound: Result<T, Error>) -> Result<Option<T>, Error> {
    match bound {
        Ok(bound) => Ok(Some(bound)),
        Err(error @ Error::Io { .. }) => {
            let retry_s = RETRY.as_secs();
            warn!(
                %error, retry_s,
                "the admin interface is incomplete: some of status, verbs and metrics do not \
                 work until this is fixed. Clients of this node are served"
            );
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Binds once that works; nothing when the server stops before.
async fn again<T, F: Future<Output = Result<T, Error>>>(
    mut stopping: watch::Receiver<bool>,
    bind: impl Fn() -> F,
) -> Option<T> {
    loop {
        tokio::select! {
            _ = stopping.wait_for(|stop| *stop) => return None,
            () = sleep(RETRY) => {}
        }
        if let Ok(bound) = bind().await {
            info!("the admin interface is complete again");
            return Some(bound);
        }
    }
}

/// The common parts of both kinds of listener.
trait Listener {
    const KIND: ListenerKind;
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// The next connection, and whose it is.
    fn next(&self) -> impl Future<Output = io::Result<(Self::Stream, ClientId)>> + Send;
}

impl Listener for UnixListener {
    const KIND: ListenerKind = ListenerKind::Socket;
    type Stream = UnixStream;

    async fn next(&self) -> io::Result<(UnixStream, ClientId)> {
        let (stream, _) = self.accept().await?;
        let who = stream.peer_cred().map_or(ClientId::Unknown, |peer| ClientId::User(peer.uid()));
        Ok((stream, who))
    }
}

impl Listener for KernelListener {
    const KIND: ListenerKind = ListenerKind::Loopback;
    type Stream = TcpStream;

    async fn next(&self) -> io::Result<(TcpStream, ClientId)> {
        let stream = self.accept().await?;
        let who = match (stream.peer_addr(), stream.local_addr()) {
            (Ok(peer), Ok(local)) => ClientId::behind(peer, local),
            _ => ClientId::Unknown,
        };
        Ok((stream, who))
    }
}

/// Accepts until told to stop, then waits a moment for the connections.
async fn accept<L: Listener>(listener: L, ask: impl Ask, mut stopping: watch::Receiver<bool>) {
    let slots = Slots::default();
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            biased;
            _ = stopping.wait_for(|stop| *stop) => break,
            Some(_) = connections.join_next() => continue,
            accepted = listener.next() => accepted,
        };
        match accepted {
            Ok((stream, who)) => {
                let Some(slot) = slots.take(who) else {
                    tracing::debug!(%who, "admin connection refused: all of its slots are busy");
                    continue;
                };
                let (ask, stopping) = (ask.clone(), stopping.clone());
                connections.spawn(serve_connection(stream, L::KIND, ask, stopping, slot));
                // A request that is there already is read before more connections come.
                tokio::task::yield_now().await;
            }
            Err(error) => {
                tracing::debug!(%error, "admin connection not accepted");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    let drained = async { while connections.join_next().await.is_some() {} };
    // Unfinished connections are cut when the set is dropped.
    let _ = timeout(MAX_DRAIN_TIME, drained).await;
}

pub(super) async fn serve_connection<S, A: Ask>(
    stream: S,
    listener: ListenerKind,
    ask: A,
    mut stopping: watch::Receiver<bool>,
    mut slot: Slot,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let marker = slot.marker();
    let service = service_fn(move |request| {
        let (ask, answering) = (ask.clone(), marker.answering());
        async move {
            let answer = router::answer(&ask, listener, request).await;
            drop(answering);
            Ok::<_, Infallible>(answer)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(MAX_HEAD_TIME)
        .max_buf_size(MAX_HEAD_BYTES)
        .max_headers(MAX_HEADERS)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let conversation = async {
        tokio::select! {
            outcome = connection.as_mut() => return outcome,
            _ = stopping.wait_for(|stop| *stop) => {}
        }
        connection.as_mut().graceful_shutdown();
        connection.await
    };
    let ended = tokio::select! {
        ended = timeout(MAX_CONNECTION_TIME, conversation) => ended,
        () = slot.taken() => {
            return tracing::debug!("admin connection cut: another one takes its slot");
        }
    };
    match ended {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "admin connection ended early"),
        Err(_elapsed) => tracing::debug!("admin connection cut: it was open for too long"),
    }
}

fn bind_loopback(address: SocketAddr) -> Result<KernelListener, Error> {
    if !address.ip().is_loopback() {
        let text = format!(
            "admin.http is {address}; it must be a loopback address such as 127.0.0.1:7446"
        );
        return Err(Error::Usage(text));
    }
    tcp::listen_kernel(address).map_err(Error::io(format!("listen on {address} (admin.http)")))
}

#[cfg(test)]
mod tests;
