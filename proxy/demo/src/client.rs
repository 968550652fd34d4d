//! An HTTPS client that measures: one new TLS connection per request, and for each answer which
//! origin gave it (by its certificate), how long the connection took and how long all of it.
//!
//! It verifies the server against one authority, speaks HTTP/2 if the server does (ALPN), resumes
//! no session (so that each request is a full handshake with the answering server), never retries:
//! a failure that a user would see is a failure here.
//!
//! Bounds: answers up to [`MAX_BODY_BYTES`], watch lines up to [`MAX_LINE_BYTES`]; transfers are
//! hashed as they pass and not kept.

use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::header::{AUTHORIZATION, HOST};
use hyper::{Method, Request, Response, StatusCode, Version};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use sha2::{Digest, Sha256};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;

use super::apiserver::authority::{ALPN, Leaf, origin_name, roots};
use super::apiserver::body::{Body, hex};
use meshport_daemon::Error;

mod error;
#[cfg(test)]
mod tests;

pub use error::{ClientError, Stage};

/// The longest answer that is read completely, in bytes.
pub const MAX_BODY_BYTES: usize = 1 << 20;
/// The longest line of a watch, in bytes.
pub const MAX_LINE_BYTES: usize = 64 << 10;
/// The default of [`Client::with_timeout`]: what an impatient user grants.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);
/// HTTP/2 flow-control window, in bytes: 1 Gbit/s over 30 ms.
const WINDOW: u32 = 4 << 20;

/// A complete answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The origin, by its certificate.
    pub origin: String,
    /// The status, of any kind.
    pub status: StatusCode,
    /// HTTP/2 or HTTP/1.1.
    pub version: Version,
    /// From the start until the TLS handshake was done. TCP alone shows little behind a local
    /// proxy, which accepts before it knows an origin.
    pub connect: Duration,
    /// From the start until the last byte of the answer.
    pub total: Duration,
    /// The body.
    pub body: Bytes,
}

/// A complete big transfer.
#[derive(Clone, Debug)]
pub struct Transfer {
    /// The origin, by its certificate.
    pub origin: String,
    /// Payload bytes.
    pub bytes: u64,
    /// SHA-256 of the payload, in hexadecimal, as its receiver computed it.
    pub sha256: String,
    /// From the start until the last byte.
    pub total: Duration,
}

/// A client of one address. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Client {
    target: SocketAddr,
    /// The address in the server's certificate.
    certified: IpAddr,
    tls: Arc<ClientConfig>,
    timeout: Duration,
    bearer_token: Option<String>,
}

impl Client {
    /// A client of `target` that trusts the authority `ca_pem`. The server is verified by the IP
    /// address of `target`, as a kubelet with `server: https://127.0.0.1:7445` does.
    ///
    /// # Errors
    /// `ca_pem` is no certificate.
    pub fn new(target: SocketAddr, ca_pem: &str) -> Result<Self, Error> {
        Self::build(target, ca_pem, None)
    }

    /// As [`Client::new`], with a client certificate.
    ///
    /// # Errors
    /// A certificate or the key is damaged.
    pub fn with_certificate(
        target: SocketAddr,
        ca_pem: &str,
        certificate: &Leaf,
    ) -> Result<Self, Error> {
        Self::build(target, ca_pem, Some(certificate))
    }

    fn build(target: SocketAddr, ca_pem: &str, leaf: Option<&Leaf>) -> Result<Self, Error> {
        let damaged = |error: rustls::Error| Error::Usage(format!("the TLS setup: {error}"));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(damaged)?
            .with_root_certificates(roots(ca_pem)?);
        let mut tls = match leaf {
            None => builder.with_no_client_auth(),
            Some(leaf) => {
                let (chain, key) = leaf.to_rustls()?;
                builder.with_client_auth_cert(chain, key).map_err(damaged)?
            }
        };
        tls.alpn_protocols = ALPN.iter().map(|protocol| protocol.to_vec()).collect();
        tls.resumption = Resumption::disabled();
        let (certified, timeout) = (target.ip(), DEFAULT_TIMEOUT);
        Ok(Self { target, certified, tls: Arc::new(tls), timeout, bearer_token: None })
    }

    /// Sets the limit for a whole request. For a watch it ends when the answer begins; a big
    /// transfer may take longer, but must not stall for longer.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Expects this address in the server's certificate, wherever it connects to.
    #[must_use]
    pub fn with_certified(mut self, address: IpAddr) -> Self {
        self.certified = address;
        self
    }

    /// Sends this bearer token with each request.
    #[must_use]
    pub fn with_bearer_token(mut self, token: impl Into<String>) -> Self {
        self.bearer_token = Some(token.into());
        self
    }

    /// Offers HTTP/1.1 only.
    #[must_use]
    pub fn http1_only(mut self) -> Self {
        let mut tls = ClientConfig::clone(&self.tls);
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        self.tls = Arc::new(tls);
        self
    }

    /// Gets `path`, on a new connection.
    ///
    /// # Errors
    /// There was no complete answer in time. A status of any kind is an answer.
    pub async fn get(&self, path: &str) -> Result<Answer, ClientError> {
        let started = clock();
        let deadline = started + self.timeout;
        let mut connection = self.connect(started, deadline).await?;
        let request = self.request(Method::GET, path, Body::Text(None))?;
        let exchange = async {
            let response = connection.send(request).await?;
            let (head, body) = response.into_parts();
            let limited = http_body_util::Limited::new(body, MAX_BODY_BYTES);
            let body = limited
                .collect()
                .await
                .map_err(|error| match error.downcast::<hyper::Error>() {
                    Ok(error) => ClientError::Http(*error),
                    Err(error) => ClientError::Unexpected(error.to_string()),
                })?
                .to_bytes();
            Ok((head, body))
        };
        let (head, body) = self.by(deadline, Stage::Requesting, exchange).await?;
        let total = started.elapsed();
        connection.finish();
        Ok(Answer {
            origin: connection.origin,
            status: head.status,
            version: head.version,
            connect: connection.took,
            total,
            body,
        })
    }

    /// Asks which origin answers. The certificate and the answer must agree.
    ///
    /// # Errors
    /// There was no answer, no success, or two names.
    pub async fn whoami(&self) -> Result<Answer, ClientError> {
        let answer = self.get("/whoami").await?;
        if answer.status != StatusCode::OK {
            return Err(ClientError::Status { origin: answer.origin, status: answer.status });
        }
        let said = serde_json::from_slice::<serde_json::Value>(&answer.body).ok();
        let said = said.as_ref().and_then(|said| said.get("origin")?.as_str());
        if said == Some(answer.origin.as_str()) {
            return Ok(answer);
        }
        Err(ClientError::Unexpected(format!(
            "the certificate says {:?}, the answer says {said:?}",
            answer.origin
        )))
    }

    /// Gets `/bytes/{length}` and hashes what arrives.
    ///
    /// # Errors
    /// It did not arrive completely, or stalled for longer than the timeout.
    pub async fn fetch(&self, length: u64) -> Result<Transfer, ClientError> {
        let request = self.request(Method::GET, &format!("/bytes/{length}"), Body::Text(None))?;
        let (started, connection, mut body) = self.open(request).await?;
        let mut hash = Sha256::new();
        let mut bytes = 0;
        loop {
            let deadline = clock() + self.timeout;
            let next = async { body.frame().await.transpose().map_err(ClientError::from) };
            let Some(frame) = self.by(deadline, Stage::Requesting, next).await? else { break };
            if let Some(data) = frame.data_ref() {
                hash.update(data);
                bytes += data.len() as u64;
            }
        }
        if bytes != length {
            let what = format!("{bytes} bytes instead of {length}");
            return Err(ClientError::Unexpected(what));
        }
        let total = started.elapsed();
        Ok(Transfer { origin: connection.close(), bytes, sha256: hex(&hash.finalize()), total })
    }

    /// Posts `length` bytes of the pattern to `/sink`; the hash is the one the server computed.
    ///
    /// # Errors
    /// It did not arrive completely, or stalled for longer than the timeout.
    pub async fn send(&self, length: u64) -> Result<Transfer, ClientError> {
        let started = clock();
        let mut connection = self.connect(started, started + self.timeout).await?;
        let moved = Arc::new(AtomicU64::new(0));
        let request =
            self.request(Method::POST, "/sink", Body::pattern(length, Arc::clone(&moved)))?;
        let response = self.while_moving(&moved, connection.send(request)).await?;
        if response.status() != StatusCode::OK {
            return Err(ClientError::Status {
                origin: connection.close(),
                status: response.status(),
            });
        }
        let body = response.into_body().collect().await?.to_bytes();
        let total = started.elapsed();
        let said: serde_json::Value = serde_json::from_slice(&body)
            .map_err(|error| ClientError::Unexpected(error.to_string()))?;
        let bytes = said.get("bytes").and_then(serde_json::Value::as_u64).unwrap_or(0);
        let sha256 = said.get("sha256").and_then(|hash| hash.as_str()).unwrap_or_default();
        Ok(Transfer { bytes, sha256: sha256.to_owned(), total, origin: connection.close() })
    }

    /// Opens the endless `/watch`.
    ///
    /// # Errors
    /// The stream did not begin in time.
    pub async fn watch(&self) -> Result<Watching, ClientError> {
        let request = self.request(Method::GET, "/watch", Body::Text(None))?;
        let (_, connection, body) = self.open(request).await?;
        Ok(Watching { connection, body, pending: BytesMut::new() })
    }

    /// Waits for `work` for as long as `moved` grows.
    async fn while_moving<T>(
        &self,
        moved: &AtomicU64,
        work: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, ClientError> {
        let mut work = pin!(work);
        loop {
            let before = moved.load(Ordering::Relaxed);
            match tokio::time::timeout(self.timeout, &mut work).await {
                Ok(done) => return done,
                Err(_) if moved.load(Ordering::Relaxed) > before => {}
                Err(_) => {
                    let (stage, limit) = (Stage::Requesting, self.timeout);
                    return Err(ClientError::Timeout { stage, limit });
                }
            }
        }
    }

    /// A new connection and the beginning of a successful answer.
    async fn open(
        &self,
        request: Request<Body>,
    ) -> Result<(Instant, Connection, Incoming), ClientError> {
        let started = clock();
        let deadline = started + self.timeout;
        let mut connection = self.connect(started, deadline).await?;
        let response = connection.send(request);
        let response = self.by(deadline, Stage::Requesting, response).await?;
        if response.status() != StatusCode::OK {
            return Err(ClientError::Status {
                origin: connection.close(),
                status: response.status(),
            });
        }
        Ok((started, connection, response.into_body()))
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        body: Body,
    ) -> Result<Request<Body>, ClientError> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("https://{}{path}", self.target))
            .header(HOST, self.target.to_string());
        if let Some(token) = &self.bearer_token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        request.body(body).map_err(|error| ClientError::Unexpected(error.to_string()))
    }

    async fn connect(
        &self,
        started: Instant,
        deadline: Instant,
    ) -> Result<Connection, ClientError> {
        let connect = async { TcpStream::connect(self.target).await.map_err(ClientError::Connect) };
        let tcp = self.by(deadline, Stage::Connecting, connect).await?;
        tcp.set_nodelay(true).map_err(ClientError::Connect)?;
        let name = ServerName::IpAddress(self.certified.into());
        let connector = TlsConnector::from(Arc::clone(&self.tls));
        let handshake = async { connector.connect(name, tcp).await.map_err(ClientError::Tls) };
        let tls = self.by(deadline, Stage::Handshaking, handshake).await?;
        let took = started.elapsed();
        let session = tls.get_ref().1;
        let origin = session
            .peer_certificates()
            .and_then(|chain| origin_name(chain.first()?))
            .ok_or_else(|| ClientError::Unexpected("a certificate without a name".to_owned()))?;
        let (sender, driver) = if session.alpn_protocol() == Some(b"h2") {
            let (sender, connection) = http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .initial_stream_window_size(WINDOW)
                .initial_connection_window_size(WINDOW)
                .handshake(TokioIo::new(tls))
                .await?;
            (Sender::Http2(sender), tokio::spawn(connection))
        } else {
            let (sender, connection) = http1::handshake(TokioIo::new(tls)).await?;
            (Sender::Http1(sender), tokio::spawn(connection))
        };
        Ok(Connection { origin, took, sender: Some(sender), driver: Driver(Some(driver)) })
    }

    async fn by<T>(
        &self,
        deadline: Instant,
        stage: Stage,
        work: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, ClientError> {
        tokio::time::timeout_at(deadline.into(), work)
            .await
            .unwrap_or(Err(ClientError::Timeout { stage, limit: self.timeout }))
    }
}

/// An open watch. Dropping it cuts the connection.
#[derive(Debug)]
pub struct Watching {
    connection: Connection,
    body: Incoming,
    pending: BytesMut,
}

impl Watching {
    /// The origin, by its certificate.
    pub fn origin(&self) -> &str {
        &self.connection.origin
    }

    /// The next line, without its end; `None` if the server ended the stream in order. Waits
    /// without limit.
    ///
    /// # Errors
    /// The connection broke, or a line is too long.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        loop {
            if let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
                let mut line = self.pending.split_to(end + 1);
                line.truncate(end);
                return Ok(Some(line.freeze()));
            }
            if self.pending.len() > MAX_LINE_BYTES {
                return Err(ClientError::Unexpected("a watch line without an end".to_owned()));
            }
            let Some(frame) = self.body.frame().await else { return Ok(None) };
            if let Some(data) = frame?.data_ref() {
                self.pending.extend_from_slice(data);
            }
        }
    }
}

#[derive(Debug)]
enum Sender {
    Http1(http1::SendRequest<Body>),
    Http2(http2::SendRequest<Body>),
}

#[derive(Debug)]
struct Connection {
    origin: String,
    took: Duration,
    sender: Option<Sender>,
    driver: Driver,
}

impl Connection {
    async fn send(
        &mut self,
        mut request: Request<Body>,
    ) -> Result<Response<Incoming>, ClientError> {
        match &mut self.sender {
            Some(Sender::Http2(sender)) => {
                // HTTP/2 has the authority in the request line; some servers reject a second one.
                request.headers_mut().remove(HOST);
                Ok(sender.send_request(request).await?)
            }
            Some(Sender::Http1(sender)) => {
                let path = request.uri().path_and_query().cloned();
                let path = path.ok_or_else(|| ClientError::Unexpected("no path".to_owned()))?;
                *request.uri_mut() = path.into();
                Ok(sender.send_request(request).await?)
            }
            None => Err(ClientError::Unexpected("the connection is finished".to_owned())),
        }
    }

    /// Lets the connection close in order, in the background.
    fn finish(&mut self) {
        self.sender = None;
        // Detached: it ends by itself once nobody can send on it.
        self.driver.0 = None;
    }

    fn close(mut self) -> String {
        self.finish();
        self.origin
    }
}

/// The task that moves a connection's bytes; ends with its owner unless it is released.
#[derive(Debug)]
struct Driver(Option<JoinHandle<hyper::Result<()>>>);

impl Drop for Driver {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the client is an I/O edge: it measures real time")]
pub(super) fn clock() -> Instant {
    Instant::now()
}
