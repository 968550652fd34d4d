//! A small HTTP server on a loopback address, for programs besides the daemon that serve its page:
//! `meshport dashboard` and the simulator.
//!
//! It answers programs of this machine and its own page: Host is checked for every request, and
//! requests from pages of other sites are refused ([`super::loopback`]).

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::loopback::{is_for_loopback, is_from_here};
use super::reply::{Reply, complaint};
use crate::Error;

/// Concurrent connections: several tabs.
pub const MAX_CONNECTIONS: usize = 64;
/// Head of a request, in bytes.
const MAX_HEAD_BYTES: usize = 16 * 1024;
/// How long a client may take for the head of its request.
const MAX_HEAD_TIME: Duration = Duration::from_secs(5);
/// A connection ends after this time in any case.
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
    F: Future<Output = Reply> + Send,
{
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
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
        let Ok(slot) = slots.clone().try_acquire_owned() else { continue };
        let answer = answer.clone();
        connections.spawn(async move {
            serve_connection(stream, answer).await;
            drop(slot);
        });
    }
}

async fn serve_connection<A, F>(stream: TcpStream, answer: A)
where
    A: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Reply> + Send,
{
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = answer.clone();
        async move {
            let reply = match refusal(&request) {
                Some(refused) => refused,
                None => answer(request).await,
            };
            Ok::<_, Infallible>(reply)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(MAX_HEAD_TIME)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    // A connection that breaks, or lasts too long, belongs to a tab, which reconnects.
    let _ = timeout(MAX_CONNECTION_TIME, connection).await;
}

/// Why a request on a loopback port is refused before anything else is read.
pub(super) fn refusal<B>(request: &Request<B>) -> Option<Reply> {
    if !is_for_loopback(request) {
        let text = "this port answers only to localhost and loopback addresses in the Host header";
        return Some(complaint(StatusCode::MISDIRECTED_REQUEST, text));
    }
    if !is_from_here(request.headers()) {
        let text = "this port answers no requests that a page of another site makes";
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
    use super::*;

    #[test]
    fn parameters_are_found_by_their_whole_name() {
        assert_eq!(parameter(Some("anode=x&node=fra-1"), "node"), Some("fra-1".into()));
        assert_eq!(parameter(Some("node"), "node"), None);
        assert_eq!(parameter(None, "node"), None);
    }

    #[tokio::test]
    async fn only_loopback_addresses_are_bound() {
        let any = bind("0.0.0.0:0".parse().expect("an address")).await;
        assert!(matches!(any, Err(Error::Usage(_))), "{any:?}");
        let bound = bind("127.0.0.1:0".parse().expect("an address")).await;
        assert!(bound.is_ok(), "{bound:?}");
    }
}
