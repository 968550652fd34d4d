//! One request to one answer, for both listeners.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Body;
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use meshport_config::{Credential, NextSecret, Revocation};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::api::{DrainRequest, PingRequest, RevokeRequest};
use super::certificates::CertificatesRequest;
use super::credentials::{RenewRequest, RotateKeyRequest, RotateRequest};
use super::metrics;
use crate::Error;
use crate::Handle;
use crate::node::orders::Next;
use crate::state::NextIdentity;

/// How long the driver may take for a question that needs no network.
const MAX_ANSWER_TIME: Duration = Duration::from_secs(5);
/// How long the driver may take to show that it lives.
const MAX_HEALTH_TIME: Duration = Duration::from_secs(2);
/// A ping answers when its last probe is back or given up, one after another.
const MAX_PING_TIME_PER_PROBE: Duration = Duration::from_secs(5);
/// Probes of one request; whoever wants more asks again.
pub(super) const MAX_PING_COUNT: u32 = 100;
/// A ping request is a name and a number, in bytes.
pub(super) const MAX_BODY_BYTES: usize = 4 * 1024;
/// How long a client may take to send that much.
const MAX_BODY_TIME: Duration = Duration::from_secs(5);

/// Through which listener a request came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Door {
    /// The unix socket: whoever can open it is trusted with every question.
    Socket,
    /// Loopback TCP: any local user, and any web page a local browser shows.
    Loopback,
}

pub(super) type Answer = Response<Full<Bytes>>;

#[derive(Serialize)]
struct Complaint<'a> {
    error: &'a str,
}

/// Answers one request; every failure is an answer too.
pub(super) async fn answer<B>(handle: &Handle, door: Door, request: Request<B>) -> Answer
where
    B: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Unpin,
{
    if door == Door::Loopback && !is_for_loopback(&request) {
        let text = "this port answers only to localhost and loopback addresses in the Host header";
        return complaint(StatusCode::MISDIRECTED_REQUEST, text);
    }
    let path = request.uri().path().to_owned();
    let (allowed, posted) = match (path.as_str(), door) {
        (
            "/status" | "/routes" | "/explain" | "/peers" | "/seeds" | "/credentials" | "/metrics"
            | "/healthz" | "/livez" | "/readyz",
            _,
        ) => ("GET, HEAD", false),
        (
            "/ping" | "/certificates" | "/drain" | "/reload" | "/revoke" | "/renew"
            | "/rotate-secret" | "/rotate-key",
            Door::Socket,
        ) => ("POST", true),
        _ => {
            let text = "no such page; there are /status /routes /explain /peers \
                        /seeds /credentials /metrics /livez /readyz";
            return complaint(StatusCode::NOT_FOUND, text);
        }
    };
    let fits = match *request.method() {
        Method::GET | Method::HEAD => !posted,
        Method::POST => posted,
        _ => false,
    };
    if !fits {
        let text = format!("{path} needs the method {allowed}");
        let mut answer = complaint(StatusCode::METHOD_NOT_ALLOWED, &text);
        answer.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
        return answer;
    }
    let outcome = match path.as_str() {
        "/ping" => answer_ping(handle, request.into_body()).await,
        "/certificates" => answer_certificates(handle, request.into_body()).await,
        "/reload" => answer_reload(handle).await,
        "/drain" => answer_drain(handle, request.into_body()).await,
        "/revoke" => answer_revoke(handle, request.into_body()).await,
        "/renew" => answer_renew(handle, request.into_body()).await,
        "/rotate-secret" => answer_rotate(handle, request.into_body()).await,
        "/rotate-key" => answer_rotate_key(handle, request.into_body()).await,
        _ => answer_page(handle, &path).await,
    };
    outcome.unwrap_or_else(|refusal| refusal)
}

async fn answer_page(handle: &Handle, path: &str) -> Result<Answer, Answer> {
    match path {
        "/status" => Ok(json(StatusCode::OK, &in_time(MAX_ANSWER_TIME, handle.status()).await?)),
        "/routes" => Ok(json(StatusCode::OK, &in_time(MAX_ANSWER_TIME, handle.routes()).await?)),
        "/explain" => Ok(json(StatusCode::OK, &in_time(MAX_ANSWER_TIME, handle.explain()).await?)),
        "/peers" => Ok(json(StatusCode::OK, &in_time(MAX_ANSWER_TIME, handle.peers()).await?)),
        "/seeds" => Ok(json(StatusCode::OK, &in_time(MAX_ANSWER_TIME, handle.seeds()).await?)),
        "/credentials" => {
            let rows = in_time(MAX_ANSWER_TIME, handle.credentials()).await?;
            Ok(json(StatusCode::OK, &rows))
        }
        "/metrics" => {
            let samples = in_time(MAX_ANSWER_TIME, handle.samples()).await?;
            Ok(page(StatusCode::OK, metrics::CONTENT_TYPE, metrics::exposition(&samples)))
        }
        "/readyz" => {
            let lacking = in_time(MAX_HEALTH_TIME, handle.lacking()).await?;
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
            in_time(MAX_HEALTH_TIME, handle.lacking()).await?;
            Ok(fine())
        }
    }
}

async fn answer_reload(handle: &Handle) -> Result<Answer, Answer> {
    Ok(json(StatusCode::OK, &in_time(MAX_ANSWER_TIME, handle.reload()).await?))
}

/// The request in a body.
async fn read<T, B>(body: B, what: &str) -> Result<T, Answer>
where
    T: DeserializeOwned,
    B: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Unpin,
{
    let body = timeout(MAX_BODY_TIME, Limited::new(body, MAX_BODY_BYTES).collect())
        .await
        .map_err(|_slow| complaint(StatusCode::REQUEST_TIMEOUT, "the request could not be read"))?
        .map_err(|_failed| {
            let text = format!("the request is incomplete or over {MAX_BODY_BYTES} bytes");
            complaint(StatusCode::PAYLOAD_TOO_LARGE, &text)
        })?
        .to_bytes();
    serde_json::from_slice(&body).map_err(|error| {
        complaint(StatusCode::BAD_REQUEST, &format!("this is not a {what} request: {error}"))
    })
}

async fn answer_certificates<B>(handle: &Handle, body: B) -> Result<Answer, Answer>
where
    B: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Unpin,
{
    let request: CertificatesRequest = read(body, "certificates").await?;
    Ok(json(StatusCode::OK, &in_time(MAX_ANSWER_TIME, handle.certificates(request)).await?))
}

async fn answer_drain<B>(handle: &Handle, body: B) -> Result<Answer, Answer>
where
    B: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Unpin,
{
    let request: DrainRequest = read(body, "drain").await?;
    Ok(json(StatusCode::OK, &in_time(MAX_ANSWER_TIME, handle.drain(request)).await?))
}

async fn answer_revoke<B>(handle: &Handle, body: B) -> Result<Answer, Answer>
where
    B: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Unpin,
{
    let request: RevokeRequest = read(body, "revoke").await?;
    let revocation = Revocation::from_text(&request.revocation)
        .map_err(|error| complaint(StatusCode::BAD_REQUEST, &error.to_string()))?;
    Ok(json(StatusCode::OK, &in_time(MAX_ANSWER_TIME, handle.revoke(revocation)).await?))
}

async fn answer_renew<B>(handle: &Handle, body: B) -> Result<Answer, Answer>
where
    B: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Unpin,
{
    let request: RenewRequest = read(body, "renew").await?;
    let credential = Credential::from_text(&request.credential)
        .map_err(|error| complaint(StatusCode::BAD_REQUEST, &error.to_string()))?;
    Ok(json(StatusCode::OK, &in_time(MAX_ANSWER_TIME, handle.renew(credential)).await?))
}

async fn answer_rotate<B>(handle: &Handle, body: B) -> Result<Answer, Answer>
where
    B: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Unpin,
{
    let request: RotateRequest = read(body, "rotate-secret").await?;
    let next = NextSecret::from_text(&request.next)
        .map_err(|error| complaint(StatusCode::BAD_REQUEST, &error.to_string()))?;
    Ok(json(StatusCode::OK, &in_time(MAX_ANSWER_TIME, handle.rotate(next)).await?))
}

async fn answer_rotate_key<B>(handle: &Handle, body: B) -> Result<Answer, Answer>
where
    B: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Unpin,
{
    let request: RotateKeyRequest = read(body, "rotate-key").await?;
    let identity: Result<NextIdentity, meshport_config::Error> = request.identity.parse();
    let identity =
        identity.map_err(|error| complaint(StatusCode::BAD_REQUEST, &error.to_string()))?;
    let overlap = Duration::from_secs(request.overlap_s);
    let next = Next { identity: Arc::new(identity), overlap };
    Ok(json(StatusCode::OK, &in_time(MAX_ANSWER_TIME, handle.rotate_key(next)).await?))
}

async fn answer_ping<B>(handle: &Handle, body: B) -> Result<Answer, Answer>
where
    B: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Unpin,
{
    let request: PingRequest = read(body, "ping").await?;
    if !(1..=MAX_PING_COUNT).contains(&request.count) {
        let text = format!("count is {}, allowed are 1 to {MAX_PING_COUNT}", request.count);
        return Err(complaint(StatusCode::BAD_REQUEST, &text));
    }
    let limit = MAX_PING_TIME_PER_PROBE * request.count;
    Ok(json(StatusCode::OK, &in_time(limit, handle.ping(request)).await?))
}

async fn in_time<T>(
    limit: Duration,
    question: impl Future<Output = Result<T, Error>>,
) -> Result<T, Answer> {
    match timeout(limit, question).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(Error::Usage(why))) => Err(complaint(StatusCode::UNPROCESSABLE_ENTITY, &why)),
        Ok(Err(Error::Refused(why))) => Err(complaint(StatusCode::SERVICE_UNAVAILABLE, &why)),
        Ok(Err(error)) => Err(complaint(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string())),
        Err(_late) => {
            let text = format!("the daemon did not answer within {} s", limit.as_secs());
            Err(complaint(StatusCode::GATEWAY_TIMEOUT, &text))
        }
    }
}

/// Whether the request names this machine. A web page that points a name of its own at 127.0.0.1
/// (DNS rebinding) sends that name.
fn is_for_loopback<B>(request: &Request<B>) -> bool {
    let in_uri = request.uri().authority().map(|authority| authority.as_str().to_owned());
    let mut hosts = request.headers().get_all(HOST).iter();
    let in_header = hosts.next().map(|host| host.to_str().unwrap_or("").to_owned());
    if hosts.next().is_some() {
        return false;
    }
    match (in_header, in_uri) {
        (None, None) => false,
        (header, uri) => header.iter().chain(&uri).all(|host| is_loopback_host(host)),
    }
}

fn is_loopback_host(host: &str) -> bool {
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((address, rest)) => {
                (address, rest.strip_prefix(':').or(rest.is_empty().then_some("0")))
            }
            None => return false,
        },
        None => match host.rsplit_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (host, Some("0")),
        },
    };
    let port_is_fine = port.is_some_and(|port| port.parse::<u16>().is_ok());
    let name_is_fine = name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    port_is_fine && name_is_fine
}

/// What probes want to read.
fn fine() -> Answer {
    page(StatusCode::OK, "text/plain; charset=utf-8", "ok\n".into())
}

fn json<T: Serialize>(status: StatusCode, value: &T) -> Answer {
    match serde_json::to_string(value) {
        Ok(text) => page(status, "application/json", text + "\n"),
        Err(error) => complaint(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
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
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_hosts_are_ours() {
        for host in
            ["localhost", "LocalHost:7446", "127.0.0.1", "127.0.0.2:80", "[::1]", "[::1]:7446"]
        {
            assert!(is_loopback_host(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example:7446",
            "10.0.0.1",
            "[fd00::1]:7446",
            "[::1",
            "[::1]x",
            "localhost:http",
            "localhost@evil.example",
            "::1",
        ] {
            assert!(!is_loopback_host(host), "{host}");
        }
    }

    fn request(uri: &str, hosts: &[&str]) -> Request<()> {
        let mut request = Request::new(());
        *request.uri_mut() = uri.parse().expect("a URI");
        for host in hosts {
            request.headers_mut().append(HOST, HeaderValue::from_str(host).expect("a header"));
        }
        request
    }

    #[test]
    fn header_and_target_must_both_name_loopback() {
        assert!(is_for_loopback(&request("/status", &["localhost"])));
        assert!(is_for_loopback(&request("http://127.0.0.1:7446/status", &[])));
        assert!(!is_for_loopback(&request("/status", &[])));
        assert!(!is_for_loopback(&request("/status", &["localhost", "localhost"])));
        assert!(!is_for_loopback(&request("http://evil.example/status", &["localhost"])));
        assert!(!is_for_loopback(&request("http://localhost/status", &["evil.example"])));
    }
}
