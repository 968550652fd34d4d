//! A world in real or accelerated time, with the daemon's own page on it: what `meshport-sim serve`
//! runs.
//!
//! The world has a thread of its own ([`keeper`]) and passes through the same code as a run; what
//! people click is an event of a scenario that happens now. This module is the HTTP side. It
//! answers programs of this machine and the page itself: Host is checked for every request, and for
//! those that change something, Origin too, so that no page of another site changes the world.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderMap, HeaderValue, ORIGIN,
    X_CONTENT_TYPE_OPTIONS,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use meshport_daemon::admin::loopback::{is_for_loopback, is_from_here};
use meshport_daemon::admin::page::{Addition, Page};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{sleep, timeout};

use crate::Error;
use crate::scenario::{Event, Scenario};
use crate::world::{Options, World};

mod keeper;
mod pace;

use keeper::{Asked, Keeper, MAX_EVENTS, Question, Refusal};

pub(crate) use keeper::check_speed;

/// Nodes of a world that is looked at: more do not fit into one view.
pub(crate) const MAX_NODES: usize = meshport_daemon::admin::view::MAX_NODES;
/// Connections at once: some tabs.
const MAX_CONNECTIONS: usize = 64;
/// Questions that wait for the world: each connection has one at most.
const MAX_QUESTIONS: usize = MAX_CONNECTIONS;
/// A request is a few lines; many events are a few more. In bytes.
const MAX_BODY_BYTES: usize = 32 * 1024;
const MAX_HEAD_BYTES: usize = 16 * 1024;
/// How long a client may take for its request, the world for an answer, and a connection in all.
const MAX_REQUEST_TIME: Duration = Duration::from_secs(5);
const MAX_ANSWER_TIME: Duration = Duration::from_secs(10);
const MAX_CONNECTION_TIME: Duration = Duration::from_secs(300);
/// After a connection that could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// What a browser may do with an answer that is no page: nothing.
const NOTHING: &str = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'";

/// What to serve, and how.
#[derive(Debug)]
pub(crate) struct Serve {
    pub(crate) scenario: Scenario,
    /// What it is called.
    pub(crate) name: String,
    pub(crate) seed: u64,
    pub(crate) speed: f64,
    pub(crate) is_paused: bool,
    /// A loopback address; port 0 is chosen by the system.
    pub(crate) listen: SocketAddr,
}

type Reply = Response<Full<Bytes>>;

/// What all connections share.
struct Server {
    page: Page,
    world: SyncSender<Asked>,
}

/// Serves a world for ever; `tell` learns the address.
///
/// # Errors
/// [`Error`] when the scenario is none, or the address cannot be had.
pub(crate) async fn run(options: Serve, tell: impl FnOnce(SocketAddr)) -> Result<(), Error> {
    let Serve { scenario, name, seed, speed, is_paused, listen } = options;
    if !listen.ip().is_loopback() {
        let what = format!("--listen {listen}: only a loopback address, such as 127.0.0.1:7450");
        return Err(Error::Scenario(what));
    }
    let no_address = |error| Error::Machine(format!("listen on {listen}: {error}"));
    let listener = TcpListener::bind(listen).await.map_err(no_address)?;
    let keeper = move || {
        let world = World::new(scenario, seed, Options { live: true, ..Options::default() })?;
        Ok(Keeper::new(world, name, speed, is_paused))
    };
    let server = Arc::new(Server { page: page(), world: keeper::start(keeper, MAX_QUESTIONS)? });
    tell(listener.local_addr().map_err(no_address)?);
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let Ok(place) = places.clone().try_acquire_owned() else { continue };
        let server = server.clone();
        tokio::spawn(async move {
            serve_connection(stream, server).await;
            drop(place);
        });
    }
}

/// The daemon's page, with what it takes to change the world.
fn page() -> Page {
    Page::with(Addition {
        style: include_str!("live.css"),
        body: include_str!("live.html"),
        script: include_str!("live.js"),
    })
}

async fn serve_connection(stream: TcpStream, server: Arc<Server>) {
    let service = service_fn(move |request| {
        let server = server.clone();
        async move { Ok::<_, Infallible>(answer(&server, request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(MAX_REQUEST_TIME)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    // One that breaks off, or lasts too long, is a tab that comes again.
    let _ = timeout(MAX_CONNECTION_TIME, connection).await;
}

async fn answer(server: &Server, request: Request<Incoming>) -> Reply {
    if !is_for_loopback(&request) {
        let text = "this port answers only to localhost and loopback addresses in the Host header";
        return complaint(StatusCode::MISDIRECTED_REQUEST, text);
    }
    if !is_from_here(request.headers()) {
        let text = "this port answers no requests that a page of another site makes";
        return complaint(StatusCode::FORBIDDEN, text);
    }
    let path = request.uri().path().to_owned();
    let changes = matches!(path.as_str(), "/happen" | "/pace");
    let wanted = if changes { Method::POST } else { Method::GET };
    let asks = *request.method() == wanted || (!changes && *request.method() == Method::HEAD);
    let named = |key: &str| parameter(request.uri().query(), key);
    let question = match path.as_str() {
        "/" if asks => return server.page.answer(),
        "/view" if asks => Question::View(named("node")),
        "/world" if asks => Question::World(named("site")),
        "/happen" | "/pace" if asks => match change(&path, request).await {
            Ok(question) => question,
            Err(refused) => return refused,
        },
        "/" | "/view" | "/world" | "/happen" | "/pace" => {
            let text = format!("{path} needs the method {wanted}");
            return complaint(StatusCode::METHOD_NOT_ALLOWED, &text);
        }
        _ => {
            let text = "no such page; available: / /view /world, and with POST /happen /pace";
            return complaint(StatusCode::NOT_FOUND, text);
        }
    };
    ask(server, question).await
}

/// A request that changes something: of a program, or of our own page.
async fn change(path: &str, request: Request<Incoming>) -> Result<Question, Reply> {
    let headers = request.headers();
    if !is_of_own_page(headers) {
        let text = "only the page of this port itself may change the world";
        return Err(complaint(StatusCode::FORBIDDEN, text));
    }
    // What a page of another site could send without asking is never this.
    if headers.get(CONTENT_TYPE).is_none_or(|it| it != "application/json") {
        let text = "a change is JSON: Content-Type: application/json";
        return Err(complaint(StatusCode::UNSUPPORTED_MEDIA_TYPE, text));
    }
    let body = Limited::new(request.into_body(), MAX_BODY_BYTES).collect();
    let body = match timeout(MAX_REQUEST_TIME, body).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(_)) => {
            let text = format!("the request is incomplete or over {MAX_BODY_BYTES} bytes");
            return Err(complaint(StatusCode::PAYLOAD_TOO_LARGE, &text));
        }
        Err(_) => {
            let text = "the request could not be read in time";
            return Err(complaint(StatusCode::REQUEST_TIMEOUT, text));
        }
    };
    let wrong = |error: serde_json::Error| complaint(StatusCode::BAD_REQUEST, &error.to_string());
    if path == "/pace" {
        return serde_json::from_slice(&body).map(Question::Pace).map_err(wrong);
    }
    let events: Vec<Event> = serde_json::from_slice(&body).map_err(wrong)?;
    if events.len() > MAX_EVENTS {
        let text = format!("at most {MAX_EVENTS} events at once");
        return Err(complaint(StatusCode::BAD_REQUEST, &text));
    }
    Ok(Question::Happen(events))
}

/// Browsers name the page that a change comes from: it has to be this port under the name it was
/// asked by. Other programs name none.
fn is_of_own_page(headers: &HeaderMap) -> bool {
    let mut origins = headers.get_all(ORIGIN).iter();
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    origins.all(|origin| {
        let origin = origin.to_str().ok().and_then(|it| it.strip_prefix("http://"));
        origin.is_some() && origin == host
    })
}

async fn ask(server: &Server, what: Question) -> Reply {
    let (answer, answered) = oneshot::channel();
    match server.world.try_send(Asked { what, answer }) {
        Ok(()) => {}
        Err(TrySendError::Full(_)) => {
            return complaint(StatusCode::SERVICE_UNAVAILABLE, "too many questions wait");
        }
        Err(TrySendError::Disconnected(_)) => {
            return complaint(StatusCode::INTERNAL_SERVER_ERROR, "the world has ended: a bug");
        }
    }
    match timeout(MAX_ANSWER_TIME, answered).await {
        Ok(Ok(Ok(document))) => reply(StatusCode::OK, document + "\n"),
        Ok(Ok(Err(Refusal::Wrong(why)))) => complaint(StatusCode::UNPROCESSABLE_ENTITY, &why),
        Ok(Ok(Err(Refusal::Absent(why)))) => complaint(StatusCode::SERVICE_UNAVAILABLE, &why),
        Ok(Err(_)) => complaint(StatusCode::INTERNAL_SERVER_ERROR, "the world has ended: a bug"),
        Err(_) => complaint(StatusCode::GATEWAY_TIMEOUT, "the world is busy"),
    }
}

/// A parameter of a query. Names of nodes and sites need no escapes.
fn parameter(query: Option<&str>, key: &str) -> Option<String> {
    let mut pairs = query?.split('&').filter_map(|pair| pair.split_once('='));
    pairs.find(|(name, _)| *name == key).map(|(_, value)| value.to_owned())
}

fn complaint(status: StatusCode, text: &str) -> Reply {
    reply(status, serde_json::json!({ "error": text }).to_string() + "\n")
}

fn reply(status: StatusCode, body: String) -> Reply {
    let mut reply = Response::new(Full::new(Bytes::from(body)));
    *reply.status_mut() = status;
    for (name, value) in [
        (CONTENT_TYPE, "application/json"),
        (CACHE_CONTROL, "no-store"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (CONTENT_SECURITY_POLICY, NOTHING),
    ] {
        reply.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    reply
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(host: &'static str, origins: &[&'static str]) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, HeaderValue::from_static(host));
        for origin in origins {
            headers.append(ORIGIN, HeaderValue::from_static(origin));
        }
        is_of_own_page(&headers)
    }

    #[test]
    fn a_change_comes_from_the_own_page_or_from_no_page() {
        assert!(of("127.0.0.1:7450", &[]));
        assert!(of("127.0.0.1:7450", &["http://127.0.0.1:7450"]));
        for other in [
            "http://127.0.0.1:7451",
            "http://localhost:7450",
            "https://127.0.0.1:7450",
            "http://evil.example",
            "null",
            "",
        ] {
            assert!(!of("127.0.0.1:7450", &[other]), "{other}");
            assert!(!of("127.0.0.1:7450", &["http://127.0.0.1:7450", other]), "{other}");
        }
    }

    #[test]
    fn parameters_are_found_by_their_whole_name() {
        assert_eq!(parameter(Some("anode=x&node=fra-1"), "node"), Some("fra-1".into()));
        assert_eq!(parameter(Some("node"), "node"), None);
        assert_eq!(parameter(None, "node"), None);
    }
}
