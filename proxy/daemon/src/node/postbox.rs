//! Posts events as JSON to the address in `[events]`, and to Kubernetes as Events of this node's
//! Node object; [`meshport_core::outbox`] decides which and when.
//!
//! One post at a time to each receiver, within [`LIMIT`]. The server's certificate is verified with
//! `ca-file` or the system's certificates, which are reread for each post, since they are replaced
//! in place. Redirects are not followed.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue, USER_AGENT};
use hyper::{Method, Request, StatusCode};
use meshport_config::{Host as Name, HttpUrl, ServiceName, UnixSeconds};
use meshport_core::journal::{Event, Kind};
use meshport_core::outbox::Receiver;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_rustls::TlsConnector;
use tracing::{info, warn};

use crate::clock;
use crate::driver::Driver;
use crate::driver::answers::{Answer, Ask, Asker};
use crate::kubernetes::roster::{ListError, Source};
use crate::{files, http};

mod kubernetes;

/// Interval between reads of the journal.
const LOOK: Duration = Duration::from_secs(1);
/// Limit for a post, including lookup and connecting.
const LIMIT: Duration = Duration::from_secs(10);
/// The system's trusted certificates: Debian, Red Hat, SUSE, Alpine.
const SYSTEM_ROOTS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Reports the result of the last post to a receiver. The reply is the next post, if any: the
/// bodies of its requests.
#[derive(Debug)]
pub(crate) struct NextPost {
    to: Receiver,
    outcome: Option<Result<(), PostError>>,
}

impl Answer for NextPost {
    type Reply = Option<Vec<Vec<u8>>>;

    fn answer(self, driver: &mut Driver, to: Asker<Self::Reply>) {
        let (now, wall) = (clock::now(), clock::wall());
        let state = &mut driver.state;
        let events = state.outboxes.get_mut(&self.to).and_then(|outbox| {
            if let Some(outcome) = self.outcome {
                outbox.handle_outcome(outcome.map_err(Into::into), now);
            }
            outbox.handle_journal(&state.journal, now);
            outbox.poll_transmit(now)
        });
        let me = &state.identity.me;
        let at = |event: &Event| {
            let age = now.saturating_duration_since(event.at).as_secs();
            UnixSeconds(wall.0.saturating_sub(age))
        };
        let post = events.map(|events| match self.to {
            Receiver::Url => {
                let rows = events.iter().map(|(kind, it)| PostedEvent::of(*kind, it, at(it)));
                let events: Vec<PostedEvent<'_>> = rows.collect();
                let (node, name, site) =
                    (me.node.to_string(), me.name.to_string(), me.site.to_string());
                vec![json(&Post { format: 1, node, name, site, events })]
            }
            Receiver::Kubernetes => {
                let bodies = events.iter();
                bodies.map(|(kind, it)| kubernetes::body(&me.name, *kind, it, at(it))).collect()
            }
        });
        let _ = to.send(Ok(post));
    }
}

fn json(body: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(body).expect("plain data has JSON")
}

/// The body of a post. Fields are only added; docs/page.md has them.
#[derive(Debug, Serialize)]
struct Post<'a> {
    format: u32,
    node: String,
    name: String,
    site: String,
    events: Vec<PostedEvent<'a>>,
}

/// One event; as in `/view`, with the time of day.
#[derive(Debug, Serialize)]
struct PostedEvent<'a> {
    at: UnixSeconds,
    kind: &'static str,
    names: &'a [String],
    others: u32,
    service: Option<&'a ServiceName>,
    detail: &'a str,
}

impl<'a> PostedEvent<'a> {
    fn of(kind: Kind, event: &'a Event, at: UnixSeconds) -> Self {
        let Event { names, others, service, detail, .. } = event;
        Self { at, kind: kind.word(), names, others: *others, service: service.as_ref(), detail }
    }
}

/// Why a post was not accepted.
#[derive(Debug, thiserror::Error)]
enum PostError {
    #[error("cannot connect to {to}: {source}")]
    Connect { to: String, source: io::Error },
    #[error("{path}: {why}; set events.ca-file to the server's certificates")]
    Roots { path: PathBuf, why: String },
    #[error("no system certificates were found; set events.ca-file")]
    NoRoots,
    #[error("the request failed: {0}")]
    Http(#[from] hyper::Error),
    #[error("no answer within {} s", LIMIT.as_secs())]
    Late,
    #[error("it answers {0}")]
    Status(StatusCode),
    #[error(transparent)]
    Cluster(#[from] ListError),
    #[error("these credentials may not create events in the namespace default (403)")]
    Forbidden,
}

/// Where events are posted.
pub(crate) enum Destination {
    /// An address, verified with these certificates or the system's.
    Url(HttpUrl, Option<PathBuf>),
    /// The cluster.
    Kubernetes(Source),
}

impl Destination {
    fn receiver(&self) -> Receiver {
        match self {
            Self::Url(..) => Receiver::Url,
            Self::Kubernetes(_) => Receiver::Kubernetes,
        }
    }

    async fn post(&self, bodies: Vec<Vec<u8>>) -> Result<(), PostError> {
        match self {
            Self::Url(url, ca_file) => {
                for body in bodies {
                    send(url, ca_file.as_deref(), body).await?;
                }
                Ok(())
            }
            Self::Kubernetes(source) => kubernetes::post(source, bodies).await,
        }
    }
}

/// Posts until the node no longer answers.
pub(crate) async fn follow(destination: Destination, ask: impl Ask) {
    let mut ticks = interval(LOOK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let to = destination.receiver();
    let (mut outcome, mut is_failing) = (None, false);
    loop {
        ticks.tick().await;
        let Ok(post) = ask.ask(NextPost { to, outcome: outcome.take() }).await else { return };
        let Some(bodies) = post else { continue };
        let posted = timeout(LIMIT, destination.post(bodies)).await;
        let posted = posted.unwrap_or(Err(PostError::Late));
        match &posted {
            // Logs each state once, not each attempt, and no URL path, which may contain a secret.
            Err(error) if !is_failing => {
                let to = match &destination {
                    Destination::Url(url, _) => url.endpoint().to_string(),
                    Destination::Kubernetes(_) => "kubernetes".to_owned(),
                };
                warn!(to, %error, "cannot post events; retrying with backoff");
            }
            Ok(()) if is_failing => info!("events are posted again"),
            _ => {}
        }
        is_failing = posted.is_err();
        outcome = Some(posted);
    }
}

async fn send(url: &HttpUrl, ca_file: Option<&Path>, body: Vec<u8>) -> Result<(), PostError> {
    let to = url.endpoint().to_string();
    let failed = |source| PostError::Connect { to: to.clone(), source };
    let tcp = TcpStream::connect(&to).await.map_err(failed)?;
    if !url.is_tls() {
        return exchange(tcp, url, body).await;
    }
    let name = match url.endpoint().host() {
        Name::Ip(ip) => ServerName::from(*ip),
        Name::Name(name) => {
            ServerName::try_from(name.clone()).map_err(|error| failed(io::Error::other(error)))?
        }
    };
    let tls = connector(ca_file)?.connect(name, tcp).await.map_err(failed)?;
    exchange(tls, url, body).await
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    url: &HttpUrl,
    body: Vec<u8>,
) -> Result<(), PostError> {
    let mut request = Request::new(Full::new(Bytes::from(body)));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = url.path().parse().expect("the settings have checked the path");
    let headers = request.headers_mut();
    headers.insert(USER_AGENT, HeaderValue::from_static("meshport"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let host = HeaderValue::try_from(url.endpoint().to_string());
    headers.extend(host.map(|host| (HOST, host)));
    http::exchange(stream, request, async |answer| {
        let status = answer.status();
        if status.is_success() { Ok(()) } else { Err(PostError::Status(status)) }
    })
    .await
}

fn connector(ca_file: Option<&Path>) -> Result<TlsConnector, PostError> {
    let file = match ca_file {
        Some(file) => file,
        None => {
            let found = SYSTEM_ROOTS.iter().map(Path::new).find(|file| file.exists());
            found.ok_or(PostError::NoRoots)?
        }
    };
    let unusable = |why: String| PostError::Roots { path: file.to_owned(), why };
    let mut roots = RootCertStore::empty();
    let pem = files::read(file, files::MAX_PEM_BYTES);
    let pem = pem.map_err(|error| unusable(error.to_string()))?;
    // Skip system certificates that cannot be parsed.
    let all = CertificateDer::pem_slice_iter(&pem).filter_map(Result::ok);
    roots.add_parsable_certificates(all);
    if roots.is_empty() {
        return Err(unusable("it holds no certificate".into()));
    }
    let mut config = http::tls_client().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![http::ALPN.to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    /// Takes one request over TLS with a certificate for localhost; its certificate as PEM.
    async fn receiver() -> (u16, String, tokio::task::JoinHandle<String>) {
        let (acceptor, pem) = crate::testing::tls_server();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let port = listener.local_addr().expect("bound").port();
        let serving = tokio::spawn(async move {
            loop {
                let (tcp, _) = listener.accept().await.expect("open");
                let Ok(mut tls) = acceptor.accept(tcp).await else { continue };
                let mut text = String::new();
                while !text.ends_with("{\"a\":1}") {
                    let mut bytes = [0; 512];
                    let read = tls.read(&mut bytes).await.expect("a request");
                    text.push_str(&String::from_utf8_lossy(&bytes[..read]));
                }
                let answer = b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n";
                tls.write_all(answer).await.expect("it is answered");
                tls.shutdown().await.expect("it is answered");
                return text;
            }
        });
        (port, pem, serving)
    }

    #[tokio::test]
    async fn a_server_is_believed_only_with_the_certificates_of_the_settings() {
        let folder = tempfile::tempdir().expect("a folder");
        let (port, pem, serving) = receiver().await;
        let (right, wrong) = (folder.path().join("right.crt"), folder.path().join("wrong.crt"));
        std::fs::write(&right, pem).expect("written");
        std::fs::write(&wrong, receiver().await.1).expect("written");
        let url: HttpUrl = format!("https://localhost:{port}/x?y=1").parse().expect("a URL");
        let body = || b"{\"a\":1}".to_vec();
        let error = send(&url, Some(&wrong), body()).await.expect_err("another certificate");
        assert!(matches!(error, PostError::Connect { .. }), "{error}");
        let missing = folder.path().join("missing.crt");
        let error = send(&url, Some(&missing), body()).await.expect_err("no certificates");
        assert!(error.to_string().contains("events.ca-file"), "{error}");
        send(&url, Some(&right), body()).await.expect("it is taken");
        let text = serving.await.expect("it has served").to_lowercase();
        assert!(text.starts_with("post /x?y=1 http/1.1\r\n"), "{text}");
        assert!(text.contains("content-type: application/json"), "{text}");
    }
}
