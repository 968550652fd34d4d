//! The admin server: one router behind a Unix socket and, if configured, a loopback TCP port.
//!
//! Each listener has its own limits: connections in total and per client (`slots.rs`), time for a
//! request's head, size of head and body, lifetime of a connection. So a silent client locks nobody
//! out. On the port, where any user can send requests, each has a part of the time (`pace.rs`), and
//! new connections beyond that are reset unread. The socket gets its mode before its final name, so
//! no other user can ever open it; a stale socket is replaced only if nothing answers on it.
//!
//! Missing resources (a folder that is not writable, a full disk, a port in use) do not stop the
//! daemon: it serves its node's clients, logs a warning, and retries. The admin server is only for
//! people and monitoring, and a user who takes the loopback port must not keep the daemon from
//! starting. Invalid settings do stop it: an address that is not loopback, a path that is too long
//! or not a socket, and above all a socket on which another daemon answers, since commands would go
//! to that node.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use self::router::ListenerKind;
use crate::Error;
use crate::admin::pace::{Pace, Purpose, Turn};
use crate::admin::slots::{Slot, Slots};
use crate::driver::answers::Ask;
use crate::report::{AdminCount, AdminFacts, AdminHttp};
use crate::sessions::claim::Loss;
use crate::sessions::client::ClientId;
use crate::tcp::{self, KernelListener, Tcp};
use crate::unix::{self, SocketFile, SocketPath};

#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod router;

/// Time from accepting a connection, or from its last answer, to the end of the next request's
/// head.
const MAX_HEAD_TIME: Duration = Duration::from_secs(5);
/// Maximum size of a request's head in bytes; hyper's minimum.
const MAX_HEAD_BYTES: usize = 8 * 1024;
/// How long an idle connection may still send a request when the server stops.
const FIRST_REQUEST: Duration = Duration::from_millis(100);
/// Maximum number of header lines in a request.
const MAX_HEADERS: usize = 32;
/// Lifetime of a connection; longer than the longest ping.
const MAX_CONNECTION_TIME: Duration = Duration::from_secs(600);
/// How long pending answers may take once the daemon stops.
const MAX_DRAIN_TIME: Duration = Duration::from_secs(1);
/// Pause after a failed accept, usually for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Connections refused before other tasks run: sessions must not wait for a whole queue of them.
const REFUSED_AT_ONCE: u32 = 8;

/// The path of the socket, accessible to its owner only.
pub(crate) fn socket_path(path: &Path) -> SocketPath<'_> {
    SocketPath { path, mode: 0o600, setting: "admin.socket" }
}

/// Interval between attempts to bind a listener.
const RETRY: Duration = Duration::from_secs(2);

/// Both listeners, bound if possible but not served yet.
#[derive(Debug)]
pub(crate) struct AdminServer {
    path: PathBuf,
    unix: Option<(UnixListener, SocketFile)>,
    address: Option<SocketAddr>,
    http: Option<KernelListener>,
    facts: Arc<AdminFacts>,
}

impl AdminServer {
    /// Binds the unix socket (mode 0600) and the loopback port; port 0 is chosen by the system.
    ///
    /// # Errors
    /// [`Error::State`] if another daemon answers on the socket or its path cannot be a socket's,
    /// [`Error::Usage`] for an address that is not loopback. Missing resources are logged.
    pub(crate) async fn bind(socket: &Path, http: Option<SocketAddr>) -> Result<Self, Error> {
        let facts = Arc::new(AdminFacts::default());
        let bound = match http {
            None => None,
            Some(address) => or_later(bind_loopback(address, &facts))?,
        };
        let unix = or_later(unix::bind(socket_path(socket)).await)?;
        Ok(Self { path: socket.to_owned(), unix, address: http, http: bound, facts })
    }

    /// What it reports of itself, now and later.
    pub(crate) fn facts(&self) -> Arc<AdminFacts> {
        self.facts.clone()
    }

    /// Answers until `shutdown` resolves, waits a moment for pending answers, and removes the
    /// socket.
    pub(crate) async fn serve(self, ask: impl Ask, shutdown: impl Future<Output = ()>) {
        let Self { path, unix, address, http, facts } = self;
        let (stop, stopping) = watch::channel(false);
        let on_socket = async {
            let mut bound = unix;
            loop {
                let socket = match bound.take() {
                    Some(socket) => Some(socket),
                    None => again(stopping.clone(), || unix::bind(socket_path(&path))).await,
                };
                let Some((unix, file)) = socket else { return };
                facts.note_socket(None);
                tokio::select! {
                    () = accept(unix, ask.clone(), facts.clone(), stopping.clone()) => return,
                    () = file.removed() => {
                        // Before there is another, which may get its inode.
                        drop(file);
                        bound = anew(&path, &facts).await;
                    }
                }
            }
        };
        let on_loopback = async {
            let Some(address) = address else { return };
            let bound = match http {
                Some(bound) => Some(bound),
                None => again(stopping.clone(), async || bind_loopback(address, &facts)).await,
            };
            if let Some(listener) = bound {
                accept(listener, ask.clone(), facts.clone(), stopping.clone()).await;
            }
        };
        let until_shutdown = async {
            shutdown.await;
            stop.send_replace(true);
        };
        tokio::join!(on_socket, on_loopback, until_shutdown);
    }
}

/// The result of binding; none if a resource is missing, which is logged.
fn or_later<T>(bound: Result<T, Error>) -> Result<Option<T>, Error> {
    match bound {
        Ok(bound) => Ok(Some(bound)),
        Err(error @ Error::Io { .. }) => {
            let retry_s = RETRY.as_secs();
            warn!(
                %error, retry_s,
                "the admin interface is incomplete: some of status, commands and metrics do not \
                 work until this is fixed. Clients of this node are still served"
            );
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Another socket in place of one that somebody removed, if it can be created at once.
async fn anew(path: &Path, facts: &AdminFacts) -> Option<(UnixListener, SocketFile)> {
    warn!(path = %path.display(), "the admin socket is gone; creating another");
    match unix::bind(socket_path(path)).await {
        Ok(bound) => Some(bound),
        Err(error) => {
            warn!(
                %error,
                "cannot create the admin socket again, so status and commands do not work. In its \
                 sandbox the daemon writes only in folders that exist at its start: if the folder \
                 was removed, create it and restart the daemon. Clients of this node are still \
                 served"
            );
            facts.note_socket(Some(error.to_string()));
            None
        }
    }
}

/// Retries binding until it succeeds; none if the server stops first.
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
            info!("the admin interface is fully available again");
            return Some(bound);
        }
    }
}

/// The interface of both kinds of listener.
trait Listener {
    const KIND: ListenerKind;
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Accepts a connection and identifies its client.
    fn next(&self) -> impl Future<Output = io::Result<(Self::Stream, ClientId)>> + Send;

    /// Closes a connection that is not served, so that nothing of it stays.
    fn refuse(stream: Self::Stream) {
        drop(stream);
    }
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
        let who = ClientId::of(&stream);
        Ok((stream, who))
    }

    fn refuse(stream: TcpStream) {
        Tcp::Kernel(stream).reset_on_drop();
    }
}

/// Accepts until a stop, then waits a moment for the connections.
async fn accept<L: Listener>(
    listener: L,
    ask: impl Ask,
    facts: Arc<AdminFacts>,
    mut stopping: watch::Receiver<bool>,
) {
    let (slots, pace) = (Slots::default(), Pace::default());
    let mut connections = JoinSet::new();
    let mut refused = 0;
    loop {
        let accepted = tokio::select! {
            biased;
            _ = stopping.wait_for(|stop| *stop) => break,
            Some(_) = connections.join_next() => continue,
            accepted = listener.next() => accepted,
        };
        match accepted {
            Ok((stream, who)) if L::KIND == ListenerKind::Loopback && !pace.admits(who) => {
                facts.note_refused(who, AdminCount::OverPace);
                L::refuse(stream);
                refused = (refused + 1) % REFUSED_AT_ONCE;
                if refused == 0 {
                    tokio::task::yield_now().await;
                }
            }
            Ok((stream, who)) => {
                let Some(slot) = slots.take(who) else {
                    facts.note_refused(who, AdminCount::OverLimit);
                    continue;
                };
                let (ask, stopping) = (ask.clone(), stopping.clone());
                let client = Client { who, listener: L::KIND, pace: pace.clone() };
                connections.spawn(serve_connection(stream, client, ask, stopping, slot));
                // A request that has already arrived is read before more connections are accepted.
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

/// The client of a connection.
struct Client {
    who: ClientId,
    listener: ListenerKind,
    pace: Pace,
}

impl Client {
    /// Waits until it is the turn of a request for this path; the socket's never wait.
    async fn turn(&self, path: &str) -> Option<Turn> {
        if self.listener == ListenerKind::Socket {
            return None;
        }
        let purpose = router::purpose(path);
        let turn = self.pace.turn(self.who, purpose).await;
        // One health check does not wait until another has its answer.
        (purpose != Purpose::Health).then_some(turn)
    }
}

async fn serve_connection<S, A: Ask>(
    stream: S,
    client: Client,
    ask: A,
    mut stopping: watch::Receiver<bool>,
    mut slot: Slot,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let marker = slot.marker();
    let (asked, mut first) = watch::channel(false);
    let client = Arc::new(client);
    let service = service_fn(move |request: Request<Incoming>| {
        asked.send_replace(true);
        let (client, ask, marker) = (client.clone(), ask.clone(), marker.clone());
        async move {
            // Its slot may still be taken.
            let turn = client.turn(request.uri().path()).await;
            let answering = marker.answering();
            let answer = router::answer(&ask, client.listener, request).await;
            drop((answering, turn));
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
        let stopped = async {
            let _ = stopping.wait_for(|stop| *stop).await;
            // Give a request that is on its way time to arrive before the connection is closed.
            let _ = timeout(FIRST_REQUEST, first.wait_for(|asked| *asked)).await;
        };
        tokio::select! {
            outcome = connection.as_mut() => return outcome,
            () = stopped => {}
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

/// Binds the loopback port, and publishes the result.
fn bind_loopback(address: SocketAddr, facts: &AdminFacts) -> Result<KernelListener, Error> {
    if !address.ip().is_loopback() {
        let text = format!(
            "admin.http is {address}; it must be a loopback address such as 127.0.0.1:7446"
        );
        return Err(Error::Usage(text));
    }
    let bound = tcp::listen_kernel(address);
    let now = match &bound {
        Ok(listener) => listener.local_addr().ok().map(AdminHttp::Open),
        Err(error) => Loss::of(error).map(|loss| AdminHttp::Lost(address, loss)),
    };
    facts.note_http(now.unwrap_or(AdminHttp::Off));
    bound.map_err(Error::io(format!("listen on {address} (admin.http)")))
}

#[cfg(test)]
mod tests;
