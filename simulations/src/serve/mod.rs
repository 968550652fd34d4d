//! A world in real or accelerated time with the daemon's own page, as run by `meshport-sim serve`.
//!
//! The world has its own thread ([`keeper`]) and runs the same code as `run`; a click becomes an
//! event of the scenario at the current time. This module is the HTTP side. For requests that
//! change something it also checks Origin, so a page of another site cannot change the world.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HOST, HeaderMap, ORIGIN};
use hyper::{Method, Request, StatusCode};
use meshport_daemon::admin::local_server::{self, MAX_CONNECTIONS, parameter};
use meshport_daemon::admin::page::{Addition, Page};
use meshport_daemon::admin::reply::{Reply, complaint, json};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::Error;
use crate::scenario::{Event, Scenario};
use crate::world::{Options, World};

mod keeper;
mod pace;

use keeper::{Asked, Keeper, MAX_EVENTS, Question, Refusal};

pub(crate) use keeper::check_speed;

/// Most nodes of a served world: more do not fit into one view.
pub(crate) const MAX_NODES: usize = meshport_daemon::admin::view::MAX_NODES;
/// Requests that wait for the world: each connection has at most one.
const MAX_QUESTIONS: usize = MAX_CONNECTIONS;
/// Largest request in bytes: a few lines, and a few more for many events.
const MAX_BODY_BYTES: usize = 32 * 1024;
/// How long a client may take for its request, and the world for an answer.
const MAX_REQUEST_TIME: Duration = Duration::from_secs(5);
const MAX_ANSWER_TIME: Duration = Duration::from_secs(10);

/// The served world, with options.
#[derive(Debug)]
pub(crate) struct Serve {
    pub(crate) scenario: Scenario,
    /// Its name.
    pub(crate) name: String,
    pub(crate) seed: u64,
    pub(crate) speed: f64,
    pub(crate) is_paused: bool,
    /// A loopback address; port 0 is chosen by the system.
    pub(crate) listen: SocketAddr,
}

/// State shared by all connections.
struct Server {
    page: Page,
    world: SyncSender<Asked>,
}

/// Serves a world and never returns; `tell` gets the address.
pub(crate) async fn run(options: Serve, tell: impl FnOnce(SocketAddr)) -> Result<(), Error> {
    let Serve { scenario, name, seed, speed, is_paused, listen } = options;
    let listener = local_server::bind(listen).await.map_err(|error| match error {
        meshport_daemon::Error::Usage(why) => Error::Scenario(why),
        error => Error::Machine(error.to_string()),
    })?;
    let keeper = move || {
        let world = World::new(scenario, seed, Options { live: true, ..Options::default() })?;
        Ok(Keeper::new(world, name, speed, is_paused))
    };
    let server = Arc::new(Server { page: page(), world: keeper::start(keeper, MAX_QUESTIONS)? });
    let address = listener.local_addr();
    tell(address.map_err(|error| Error::Machine(format!("listen on {listen}: {error}")))?);
    local_server::serve(listener, move |request| {
        let server = server.clone();
        async move { answer(&server, request).await }
    })
    .await;
    Ok(())
}

/// The daemon's page, with the controls that change the world.
fn page() -> Page {
    Page::with(Addition {
        style: include_str!("live.css"),
        body: include_str!("live.html"),
        script: include_str!("live.js"),
    })
}

async fn answer(server: &Server, request: Request<Incoming>) -> Reply {
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

/// A request that changes something: from a program, or from our own page.
async fn change(path: &str, request: Request<Incoming>) -> Result<Question, Reply> {
    let headers = request.headers();
    if !is_of_own_page(headers) {
        let text = "only the page of this port itself may change the world";
        return Err(complaint(StatusCode::FORBIDDEN, text));
    }
    // A page of another site cannot send this content type without a preflight request.
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

/// Browsers name the page that a change comes from: it must be this port, under the requested name.
/// Other programs name none.
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
        Ok(Ok(Ok(document))) => json(StatusCode::OK, document),
        Ok(Ok(Err(Refusal::Wrong(why)))) => complaint(StatusCode::UNPROCESSABLE_ENTITY, &why),
        Ok(Ok(Err(Refusal::Absent(why)))) => complaint(StatusCode::SERVICE_UNAVAILABLE, &why),
        Ok(Err(_)) => complaint(StatusCode::INTERNAL_SERVER_ERROR, "the world has ended: a bug"),
        Err(_) => complaint(StatusCode::GATEWAY_TIMEOUT, "the world is busy"),
    }
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

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
    fn a_change_comes_from_its_own_page_or_from_no_page() {
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
}
