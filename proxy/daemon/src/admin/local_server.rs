//! A small HTTP server on a loopback address, for programs besides the daemon that serve its page:
//! `meshport dashboard` and the simulator.
//!
//! It answers local programs and its own page: every request's Host is checked, and requests from
//! pages of other sites are refused ([`super::loopback`]). Any local user can connect, so
//! connections are limited per user as in the admin server (`slots.rs`).

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::loopback::{is_for_loopback, is_from_here};
use super::reply::{Reply, complaint};
use super::slots::{self, Slot, Slots};
use crate::Error;
use crate::sessions::client::ClientId;

/// Concurrent connections of all users; `slots.rs` limits each user.
pub const MAX_CONNECTIONS: usize = slots::MAX_CONNECTIONS;
/// Head of a request, in bytes.
const MAX_HEAD_BYTES: usize = 16 * 1024;
/// How long a client may take for the head of its request.
const MAX_HEAD_TIME: Duration = Duration::from_secs(5);
/// Maximum lifetime of a connection.
const MAX_CONNECTION_TIME: Duration = Duration::from_secs(300);
/// Pause after a failed accept, usually for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Binds a loopback address; port 0 is chosen by the system.
///
/// # Errors
/// [`Error::Usage`] if the address is not loopback, [`Error::Io`] if it is in use.
pub async fn bind(listen: SocketAddr) -> Result<TcpListener, Error> {
    if !listen.ip().is_loopback() {
        let what = format!("--listen {listen}: only a loopback address, such as 127.0.0.1:7450");
        return Err(Error::Usage(what));
    }
    TcpListener::bind(listen).await.map_err(Error::io(format!("listen on {listen} (--listen)")))
}

/// Answers requests and never returns; connections end when the future is dropped.
pub async fn serve<A, F>(listener: TcpListener, answer: A)
where
    A: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Reply> + Send + 'static,
{
    let slots = Slots::default();
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
        };
        let Ok((stream, _)) = accepted else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let Some(slot) = slots.take(ClientId::of(&stream)) else { continue };
        connections.spawn(serve_connection(stream, answer.clone(), slot));
        // A request that has already arrived is read before more connections are accepted.
        tokio::task::yield_now().await;
    }
}

async fn serve_connection<A, F>(stream: TcpStream, answer: A, mut slot: Slot)
where
    A: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Reply> + Send + 'static,
{
    let marker = slot.marker();
    let service = service_fn(move |request: Request<Incoming>| {
        let (answer, answering) = (answer.clone(), marker.answering());
        async move {
            let reply = match refusal(&request) {
                Some(refused) => refused,
                None => answer(request).await,
            };
            drop(answering);
            Ok::<_, Infallible>(reply)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(MAX_HEAD_TIME)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    // A broken, expired or replaced connection belongs to a browser tab, which reconnects.
    tokio::select! {
        _ = timeout(MAX_CONNECTION_TIME, connection) => {}
        () = slot.taken() => {}
    }
}

/// Why a request on a loopback port is refused before anything else is read.
pub(crate) fn refusal<B>(request: &Request<B>) -> Option<Reply> {
    if !is_for_loopback(request) {
        let text = "this port answers only to localhost and loopback addresses in the Host header";
        return Some(complaint(StatusCode::MISDIRECTED_REQUEST, text));
    }
    if !is_from_here(request.headers()) {
        let text = "this port refuses requests from pages of other sites";
        return Some(complaint(StatusCode::FORBIDDEN, text));
    }
    None
}

/// A parameter of a query. Names and ids of nodes and sites need no escapes.
pub fn parameter(query: Option<&str>, key: &str) -> Option<String> {
    let mut pairs = query?.split('&').filter_map(|pair| pair.split_once('='));
    pairs.find(|(name, _)| *name == key).map(|(_, value)| value.to_owned())
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[test]
    fn parameters_are_found_by_their_whole_name() {
        assert_eq!(parameter(Some("anode=x&node=fra-1"), "node"), Some("fra-1".into()));
        assert_eq!(parameter(Some("node"), "node"), None);
        assert_eq!(parameter(None, "node"), None);
    }

    /// All connections of a test are of one user. Other users have shares of their own, see
    /// `slots.rs`.
    #[tokio::test]
    async fn silent_connections_lock_nobody_out() {
        let listener = bind("127.0.0.1:0".parse().expect("an address")).await.expect("free");
        let local = listener.local_addr().expect("bound");
        let answer = |_request| async { complaint(StatusCode::NOT_FOUND, "nothing here") };
        let server = tokio::spawn(serve(listener, answer));
        let mut silent = Vec::new();
        for _ in 0..2 * MAX_CONNECTIONS {
            silent.push(TcpStream::connect(local).await.expect("it listens"));
        }
        let asked = async {
            let mut client = TcpStream::connect(local).await.expect("it listens");
            let request = format!("GET / HTTP/1.1\r\nHost: {local}\r\nConnection: close\r\n\r\n");
            client.write_all(request.as_bytes()).await.expect("it is connected");
            let mut text = String::new();
            client.read_to_string(&mut text).await.map(|_| text)
        };
        let text = timeout(MAX_HEAD_TIME / 2, asked).await.expect("in time").expect("an answer");
        assert!(text.starts_with("HTTP/1.1 404"), "{text}");
        server.abort();
    }

    #[tokio::test]
    async fn only_loopback_addresses_are_bound() {
        let any = bind("0.0.0.0:0".parse().expect("an address")).await;
        assert!(matches!(any, Err(Error::Usage(_))), "{any:?}");
        let bound = bind("127.0.0.1:0".parse().expect("an address")).await;
        assert!(bound.is_ok(), "{bound:?}");
    }
}
