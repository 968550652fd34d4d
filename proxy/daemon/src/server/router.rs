//! Answers a request, for both listeners.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::Body;
use hyper::header::{ACCEPT, ALLOW, CACHE_CONTROL, ETAG, HeaderValue, IF_NONE_MATCH};
use hyper::{Method, Request, StatusCode};
use tokio::time::timeout;

use crate::Error;
use crate::admin::local_server;
use crate::admin::metrics::{self, Format};
use crate::admin::pace::Purpose;
use crate::admin::page as web;
use crate::admin::reply::{Reply, complaint, json, text};
use crate::admin::request::{self, Kind, MAX_ANSWER_TIME};
use crate::driver::answers::{Ask, Failure, Lacking, Row, Samples, rows};

/// Limit for the driver to prove that it is alive.
const MAX_HEALTH_TIME: Duration = Duration::from_secs(2);
/// Limit for a client to send the body.
const MAX_BODY_TIME: Duration = Duration::from_secs(5);

/// The listener that received a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ListenerKind {
    /// The Unix socket: a client that can open it may send every request.
    Socket,
    /// Loopback TCP: open to any local user, and to any web page in a local browser.
    Loopback,
}

/// Pages that are not requests of the table.
const PAGES: [&str; 5] = ["/", "/metrics", "/healthz", "/livez", "/readyz"];

/// What a request for this path is for.
pub(super) fn purpose(path: &str) -> Purpose {
    match path {
        "/healthz" | "/livez" | "/readyz" => Purpose::Health,
        _ => Purpose::View,
    }
}

/// Answers one request; a failure is an answer too.
pub(super) async fn answer<A: Ask, B>(ask: &A, listener: ListenerKind, request: Request<B>) -> Reply
where
    B: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Unpin,
{
    if let Some(refused) =
        local_server::refusal(&request).filter(|_| listener == ListenerKind::Loopback)
    {
        return refused;
    }
    let path = request.uri().path().to_owned();
    let row = rows::<A>().into_iter().find(|row| row.path == path);
    let row = row.filter(|row| listener == ListenerKind::Socket || row.kind == Kind::Query);
    let is_command = match &row {
        Some(row) => row.kind == Kind::Command,
        None if PAGES.contains(&path.as_str()) => false,
        None => return complaint(StatusCode::NOT_FOUND, &no_such_page::<A>()),
    };
    let fits = match *request.method() {
        Method::GET | Method::HEAD => !is_command,
        Method::POST => is_command,
        _ => false,
    };
    if !fits {
        let allowed = if is_command { "POST" } else { "GET, HEAD" };
        let text = format!("{path} needs the method {allowed}");
        let mut answer = complaint(StatusCode::METHOD_NOT_ALLOWED, &text);
        answer.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
        return answer;
    }
    let accept = request.headers().get_all(ACCEPT).iter();
    let format = Format::wanted(accept.filter_map(|value| value.to_str().ok()));
    let outcome = match row {
        Some(row) => {
            let known = request.headers().get(IF_NONE_MATCH).cloned();
            answer_row(&row, ask, request.into_body(), known).await
        }
        None => answer_page(ask, &path, format).await,
    };
    outcome.unwrap_or_else(|refusal| refusal)
}

fn no_such_page<A: Ask>() -> String {
    let queries = rows::<A>().into_iter().filter(|row| row.kind == Kind::Query);
    let paths: Vec<&str> = queries.map(|row| row.path).chain(PAGES).collect();
    format!("no such page; available: {}", paths.join(" "))
}

/// `known` is the tag of the client's cached reply.
async fn answer_row<A, B>(
    row: &Row<A>,
    ask: &A,
    body: B,
    known: Option<HeaderValue>,
) -> Result<Reply, Reply>
where
    B: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Unpin,
{
    let body = match row.kind {
        Kind::Query => Bytes::new(),
        Kind::Command => read(body, row.max_body).await?,
    };
    let reply = (row.serve)(ask, &body).await.map_err(refusal)?;
    let tag = (row.news)(&reply).and_then(tag);
    let is_known = tag.is_some() && tag == known;
    let mut answer = match is_known {
        true => text(StatusCode::NOT_MODIFIED, "application/json", String::new()),
        false => json(StatusCode::OK, reply),
    };
    if let Some(tag) = tag {
        answer.headers_mut().insert(ETAG, tag);
        // The client may keep it, but must revalidate it each time.
        answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    }
    Ok(answer)
}

/// A weak tag: replies with the same tag differ only in their time.
fn tag(news: &str) -> Option<HeaderValue> {
    HeaderValue::from_str(&format!("W/\"{:016x}\"", request::tag(news))).ok()
}

async fn answer_page<A: Ask>(ask: &A, path: &str, format: Format) -> Result<Reply, Reply> {
    match path {
        "/" => Ok(web::answer()),
        "/metrics" => {
            let samples = in_time(MAX_ANSWER_TIME, ask.ask(Samples)).await?;
            Ok(text(StatusCode::OK, format.content_type(), metrics::render(&samples, format)))
        }
        "/readyz" => {
            let lacking = in_time(MAX_HEALTH_TIME, ask.ask(Lacking)).await?;
            let names: Vec<&str> = lacking.iter().map(AsRef::as_ref).collect();
            match names.is_empty() {
                true => Ok(fine()),
                false => {
                    let text = format!("not ready: no healthy origin for {}", names.join(", "));
                    Err(complaint(StatusCode::SERVICE_UNAVAILABLE, &text))
                }
            }
        }
        // Alive means that the driver still answers.
        _ => {
            in_time(MAX_HEALTH_TIME, ask.ask(Lacking)).await?;
            Ok(fine())
        }
    }
}

/// Reads the body of a request, up to `most` bytes.
async fn read<B>(body: B, most: usize) -> Result<Bytes, Reply>
where
    B: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Unpin,
{
    let body = timeout(MAX_BODY_TIME, Limited::new(body, most).collect())
        .await
        .map_err(|_slow| complaint(StatusCode::REQUEST_TIMEOUT, "the request could not be read"))?
        .map_err(|_failed| {
            let text = format!("the request is incomplete or over {most} bytes");
            complaint(StatusCode::PAYLOAD_TOO_LARGE, &text)
        })?;
    Ok(body.to_bytes())
}

async fn in_time<T>(
    limit: Duration,
    question: impl Future<Output = Result<T, Error>>,
) -> Result<T, Reply> {
    let answer = timeout(limit, question).await.map_err(|_late| Failure::Late(limit));
    answer.and_then(|answer| answer.map_err(Failure::Refused)).map_err(refusal)
}

/// The answer to a failure; the status shows who caused it.
fn refusal(failure: Failure) -> Reply {
    let (status, why) = match failure {
        Failure::Malformed(why) => (StatusCode::BAD_REQUEST, why),
        Failure::Late(limit) => {
            let text = format!("the daemon did not answer within {} s", limit.as_secs());
            (StatusCode::GATEWAY_TIMEOUT, text)
        }
        Failure::Refused(Error::Usage(why)) => (StatusCode::UNPROCESSABLE_ENTITY, why),
        Failure::Refused(Error::Refused(why)) => (StatusCode::SERVICE_UNAVAILABLE, why),
        Failure::Refused(error @ (Error::Config { .. } | Error::Unfit(_))) => {
            (StatusCode::CONFLICT, error.to_string())
        }
        Failure::Refused(error @ Error::Trust(_)) => (StatusCode::BAD_REQUEST, error.to_string()),
        Failure::Refused(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    };
    complaint(status, &why)
}

/// The body that probes expect.
fn fine() -> Reply {
    text(StatusCode::OK, "text/plain; charset=utf-8", "ok\n".into())
}
