//! An HTTPS client that measures: one new TLS connection per request, and for each answer which
//! origin gave it (by its certificate) and how long all of it took.
//!
//! It verifies the server against one authority, speaks HTTP/2, resumes no session (so that each
//! request is a full handshake with the answering server), never retries: a failure that a user
//! would see is a failure here.
//!
//! Bounds: answers up to [`MAX_BODY_BYTES`], watch lines up to [`MAX_LINE_BYTES`].

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;

use super::apiserver::authority::{origin_name, roots};
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
    /// From the start until the last byte of the answer.
    pub total: Duration,
    /// The body.
    pub body: Bytes,
}

/// A client of one address. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Client {
    target: SocketAddr,
    /// The address in the server's certificate.
    certified: IpAddr,
    tls: Arc<ClientConfig>,
    timeout: Duration,
}

impl Client {
    /// A client of `target` that trusts the authority `ca_pem`. The server is verified by the IP
    /// address of `target`, as a kubelet with `server: https://127.0.0.1:7445` does.
    ///
    /// # Errors
    /// `ca_pem` is no certificate.
    pub fn new(target: SocketAddr, ca_pem: &str) -> Result<Self, Error> {
        let damaged = |error: rustls::Error| Error::Usage(format!("the TLS setup: {error}"));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(damaged)?
            .with_root_certificates(roots(ca_pem)?)
            .with_no_client_auth();
        tls.alpn_protocols = vec![b"h2".to_vec()];
        tls.resumption = Resumption::disabled();
        let (certified, timeout) = (target.ip(), DEFAULT_TIMEOUT);
        Ok(Self { target, certified, tls: Arc::new(tls), timeout })
    }

    /// Sets the limit for a whole request. For a watch it ends when the answer begins.
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

    /// Gets `path`, on a new connection.
    ///
    /// # Errors
    /// There was no complete answer in time. A status of any kind is an answer.
    pub async fn get(&self, path: &str) -> Result<Answer, ClientError> {
        let started = clock();
        let deadline = started + self.timeout;
        let mut connection = self.connect(deadline).await?;
        let request = self.request(path)?;
        let exchange = async {
            let response = connection.sender.send_request(request).await?;
            let status = response.status();
            let body = http_body_util::Limited::new(response.into_body(), MAX_BODY_BYTES);
            let body =
                body.collect().await.map_err(|error| match error.downcast::<hyper::Error>() {
                    Ok(error) => ClientError::Http(*error),
                    Err(error) => ClientError::Unexpected(error.to_string()),
                })?;
            Ok((status, body.to_bytes()))
        };
        let (status, body) = self.by(deadline, Stage::Requesting, exchange).await?;
        let total = started.elapsed();
        Ok(Answer { origin: connection.finish(), status, total, body })
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

    /// Opens the endless `/watch`.
    ///
    /// # Errors
    /// The stream did not begin in time.
    pub async fn watch(&self) -> Result<Watching, ClientError> {
        let deadline = clock() + self.timeout;
        let mut connection = self.connect(deadline).await?;
        let response = async { Ok(connection.sender.send_request(self.request("/watch")?).await?) };
        let response: Response<Incoming> = self.by(deadline, Stage::Requesting, response).await?;
        let status = response.status();
        if status != StatusCode::OK {
            return Err(ClientError::Status { origin: connection.finish(), status });
        }
        Ok(Watching { connection, body: response.into_body(), pending: BytesMut::new() })
    }

    fn request(&self, path: &str) -> Result<Request<Empty<Bytes>>, ClientError> {
        Request::get(format!("https://{}{path}", self.target))
            .body(Empty::new())
            .map_err(|error| ClientError::Unexpected(error.to_string()))
    }

    async fn connect(&self, deadline: Instant) -> Result<Connection, ClientError> {
        let connect = async { TcpStream::connect(self.target).await.map_err(ClientError::Connect) };
        let tcp = self.by(deadline, Stage::Connecting, connect).await?;
        tcp.set_nodelay(true).map_err(ClientError::Connect)?;
        let name = ServerName::IpAddress(self.certified.into());
        let connector = TlsConnector::from(Arc::clone(&self.tls));
        let handshake = async { connector.connect(name, tcp).await.map_err(ClientError::Tls) };
        let tls = self.by(deadline, Stage::Handshaking, handshake).await?;
        let origin = (tls.get_ref().1.peer_certificates())
            .and_then(|chain| origin_name(chain.first()?))
            .ok_or_else(|| ClientError::Unexpected("a certificate without a name".to_owned()))?;
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .handshake(TokioIo::new(tls))
            .await?;
        Ok(Connection { origin, sender, driver: Driver(Some(tokio::spawn(connection))) })
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
struct Connection {
    origin: String,
    sender: http2::SendRequest<Empty<Bytes>>,
    driver: Driver,
}

impl Connection {
    /// Lets the connection close in order, in the background; the origin.
    fn finish(mut self) -> String {
        // Detached: it ends by itself once nobody can send on it.
        self.driver.0 = None;
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
