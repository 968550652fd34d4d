//! One request to one answer, for both listeners.

use std::hash::{DefaultHasher, Hasher};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Body;
use hyper::header::{
    ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HeaderValue,
    IF_NONE_MATCH, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Method, Request, Response, StatusCode};
use serde::Serialize;
use tokio::time::timeout;

use super::loopback::{is_for_loopback, is_from_here};
use super::metrics::{self, Format};
use super::page as web;
use super::request::{Kind, MAX_ANSWER_TIME};
use crate::Error;
use crate::node::driver::answers::{Ask, Failure, Lacking, Row, Samples, rows};

/// How long the driver may take to show that it lives.
const MAX_HEALTH_TIME: Duration = Duration::from_secs(2);
/// A request is a line or two, in bytes.
pub(super) const MAX_BODY_BYTES: usize = 4 * 1024;
/// How long a client may take to send that much.
const MAX_BODY_TIME: Duration = Duration::from_secs(5);

/// Through which listener a request came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ListenerKind {
    /// The unix socket: a client that can open it may ask everything.
    Socket,
    /// Loopback TCP: any local user, and any web page a local browser shows.
    Loopback,
}

type Answer = Response<Full<Bytes>>;

#[derive(Serialize)]
struct Complaint<'a> {
    error: &'a str,
}

/// What a browser may do with an answer that is no page of ours: show it, in no frame.
const NOTHING: &str = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'";

/// Pages that are no requests of the table.
const PAGES: [&str; 5] = ["/", "/metrics", "/healthz", "/livez", "/readyz"];

/// Answers one request; every failure is an answer too.
pub(super) async fn answer<A: Ask, B>(
    ask: &A,
    listener: ListenerKind,
    request: Request<B>,
) -> Answer
where
    B: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Unpin,
{
    if listener == ListenerKind::Loopback && !is_for_loopback(&request) {
        let text = "this port answers only to localhost and loopback addresses in the Host header";
        return complaint(StatusCode::MISDIRECTED_REQUEST, text);
    }
    if listener == ListenerKind::Loopback && !is_from_here(request.headers()) {
        let text = "this port answers no requests that a page of another site makes";
        return complaint(StatusCode::FORBIDDEN, text);
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

/// `known` is the tag of the reply that the client has already.
async fn answer_row<A, B>(
    row: &Row<A>,
    ask: &A,
    body: B,
    known: Option<HeaderValue>,
) -> Result<Answer, Answer>
where
    B: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Unpin,
{
    let body = match row.kind {
        Kind::Query => Bytes::new(),
        Kind::Command => read(body).await?,
    };
    let reply = (row.serve)(ask, &body).await.map_err(refusal)?;
    let tag = (row.news)(&reply).and_then(tag);
    let is_known = tag.is_some() && tag == known;
    let mut answer = match is_known {
        true => page(StatusCode::NOT_MODIFIED, "application/json", String::new()),
        false => page(StatusCode::OK, "application/json", reply + "\n"),
    };
    if let Some(tag) = tag {
        answer.headers_mut().insert(ETAG, tag);
        // Kept by its asker, and to be asked for again each time.
        answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    }
    Ok(answer)
}

/// A weak tag: replies with the same one say the same, at different times.
fn tag(news: &str) -> Option<HeaderValue> {
    let mut hasher = DefaultHasher::new();
    hasher.write(news.as_bytes());
    HeaderValue::from_str(&format!("W/\"{:016x}\"", hasher.finish())).ok()
}

async fn answer_page<A: Ask>(ask: &A, path: &str, format: Format) -> Result<Answer, Answer> {
    match path {
        "/" => Ok(web::answer()),
        "/metrics" => {
            let samples = in_time(MAX_ANSWER_TIME, ask.ask(Samples)).await?;
            Ok(page(StatusCode::OK, format.content_type(), metrics::render(&samples, format)))
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
        // Alive means that the one thread that does everything still answers.
        _ => {
            in_time(MAX_HEALTH_TIME, ask.ask(Lacking)).await?;
            Ok(fine())
        }
    }
}

/// The body of a request.
async fn read<B>(body: B) -> Result<Bytes, Answer>
where
    B: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Unpin,
{
    let body = timeout(MAX_BODY_TIME, Limited::new(body, MAX_BODY_BYTES).collect())
        .await
        .map_err(|_slow| complaint(StatusCode::REQUEST_TIMEOUT, "the request could not be read"))?
        .map_err(|_failed| {
            let text = format!("the request is incomplete or over {MAX_BODY_BYTES} bytes");
            complaint(StatusCode::PAYLOAD_TOO_LARGE, &text)
        })?;
    Ok(body.to_bytes())
}

async fn in_time<T>(
    limit: Duration,
    question: impl Future<Output = Result<T, Error>>,
) -> Result<T, Answer> {
    let answer = timeout(limit, question).await.map_err(|_late| Failure::Late(limit));
    answer.and_then(|answer| answer.map_err(Failure::Refused)).map_err(refusal)
}

/// Why there is no reply, as an answer whose status says who is to blame.
fn refusal(failure: Failure) -> Answer {
    let (status, why) = match failure {
        Failure::Malformed(why) => (StatusCode::BAD_REQUEST, why),
        Failure::Late(limit) => {
            let text = format!("the daemon did not answer within {} s", limit.as_secs());
            (StatusCode::GATEWAY_TIMEOUT, text)
        }
        Failure::Refused(Error::Usage(why)) => (StatusCode::UNPROCESSABLE_ENTITY, why),
        Failure::Refused(Error::Refused(why)) => (StatusCode::SERVICE_UNAVAILABLE, why),
        Failure::Refused(error @ Error::Trust(_)) => (StatusCode::BAD_REQUEST, error.to_string()),
        Failure::Refused(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    };
    complaint(status, &why)
}

/// What probes want to read.
fn fine() -> Answer {
    page(StatusCode::OK, "text/plain; charset=utf-8", "ok\n".into())
}

fn complaint(status: StatusCode, text: &str) -> Answer {
    let body = serde_json::to_string(&Complaint { error: text }).unwrap_or_default();
    page(status, "application/json", body + "\n")
}

fn page(status: StatusCode, content_type: &'static str, body: String) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from(body)));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(NOTHING));
    answer
}
