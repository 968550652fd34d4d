//! The client: typed questions to the daemon over its Unix socket.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::api::{
    DrainReport, DrainRequest, PeerRow, PingReport, PingRequest, ReloadReport, RevokeReport,
    RevokeRequest, SeedRow, ServiceStatus, Status,
};
use super::certificates::{CertificatesRequest, OriginCertificate};
use super::credentials::{
    CredentialRow, RenewReport, RenewRequest, RotateKeyReport, RotateKeyRequest, RotateReport,
    RotateRequest,
};
use super::explain::Explanation;
use crate::Error;

/// How long a question that needs no network may take.
const MAX_TIME: Duration = Duration::from_secs(10);
/// A ping waits for its probes, each at most some seconds.
const MAX_PING_TIME_PER_PROBE: Duration = Duration::from_secs(6);
/// Ten thousand peers at one KiB each, with room to spare.
const MAX_ANSWER_BYTES: usize = 32 * 1024 * 1024;

/// Asks one daemon. Holds no connection between questions.
#[derive(Debug, Clone)]
pub struct AdminClient {
    socket: PathBuf,
}

#[derive(Deserialize)]
struct Complaint {
    error: String,
}

impl AdminClient {
    /// A client of the daemon that serves this socket.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self { socket: socket.into() }
    }

    /// The socket it asks on.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The whole view.
    ///
    /// # Errors
    /// [`Error::NoDaemon`] when nobody answers, [`Error::Refused`] when the answer is a refusal or
    /// not understood; so for every question here.
    pub async fn status(&self) -> Result<Status, Error> {
        self.ask(Method::GET, "/status", None, MAX_TIME).await
    }

    /// Per service, the order in which a new session would try the origins.
    ///
    /// # Errors
    /// As [`AdminClient::status`].
    pub async fn routes(&self) -> Result<Vec<ServiceStatus>, Error> {
        self.ask(Method::GET, "/routes", None, MAX_TIME).await
    }

    /// Every node the mesh knows.
    ///
    /// # Errors
    /// As [`AdminClient::status`].
    pub async fn peers(&self) -> Result<Vec<PeerRow>, Error> {
        self.ask(Method::GET, "/peers", None, MAX_TIME).await
    }

    /// Every member that is not away, as others can begin with it; the daemon's own node first.
    ///
    /// # Errors
    /// As [`AdminClient::status`].
    pub async fn seeds(&self) -> Result<Vec<SeedRow>, Error> {
        self.ask(Method::GET, "/seeds", None, MAX_TIME).await
    }

    /// All the credentials the daemon knows, its own first.
    ///
    /// # Errors
    /// As [`AdminClient::status`].
    pub async fn credentials(&self) -> Result<Vec<CredentialRow>, Error> {
        self.ask(Method::GET, "/credentials", None, MAX_TIME).await
    }

    /// Takes a credential of the daemon's node into use, which is on disk already.
    ///
    /// # Errors
    /// As [`AdminClient::status`], and when it is not for that node or not valid.
    pub async fn renew(&self, request: &RenewRequest) -> Result<RenewReport, Error> {
        self.ask(Method::POST, "/renew", Some(to_json(request)?), MAX_TIME).await
    }

    /// Why the route of each service is what it is.
    ///
    /// # Errors
    /// As [`AdminClient::status`].
    pub async fn explain(&self) -> Result<Vec<Explanation>, Error> {
        self.ask(Method::GET, "/explain", None, MAX_TIME).await
    }

    /// Lets other nodes leave the daemon's local instance of a service, or use it again.
    ///
    /// # Errors
    /// As [`AdminClient::status`], and when the daemon does not offer the service.
    pub async fn drain(&self, request: &DrainRequest) -> Result<DrainReport, Error> {
        self.ask(Method::POST, "/drain", Some(to_json(request)?), MAX_TIME).await
    }

    /// Takes back what the authority says, in the whole mesh.
    ///
    /// # Errors
    /// As [`AdminClient::status`], and when the authority of the daemon's mesh has not signed it.
    pub async fn revoke(&self, request: &RevokeRequest) -> Result<RevokeReport, Error> {
        self.ask(Method::POST, "/revoke", Some(to_json(request)?), MAX_TIME).await
    }

    /// Gives the mesh a new secret, through the daemon; answered when that has kept it.
    ///
    /// # Errors
    /// As [`AdminClient::status`], and when the authority of the daemon's mesh has not signed it.
    pub async fn rotate(&self, request: &RotateRequest) -> Result<RotateReport, Error> {
        self.ask(Method::POST, "/rotate-secret", Some(to_json(request)?), MAX_TIME).await
    }

    /// Lets the daemon's node go on under a new key; answered when that is kept and in use.
    ///
    /// # Errors
    /// As [`AdminClient::status`], and when it is not the successor of the daemon's node.
    pub async fn rotate_key(&self, request: &RotateKeyRequest) -> Result<RotateKeyReport, Error> {
        self.ask(Method::POST, "/rotate-key", Some(to_json(request)?), MAX_TIME).await
    }

    /// The certificates that the origins of a service show.
    ///
    /// # Errors
    /// As [`AdminClient::status`], and when the daemon has no such service.
    pub async fn certificates(
        &self,
        request: &CertificatesRequest,
    ) -> Result<Vec<OriginCertificate>, Error> {
        self.ask(Method::POST, "/certificates", Some(to_json(request)?), MAX_TIME).await
    }

    /// Round trips through the tunnel.
    ///
    /// # Errors
    /// As [`AdminClient::status`], and when no node has that name.
    pub async fn ping(&self, request: &PingRequest) -> Result<PingReport, Error> {
        let limit = MAX_TIME + MAX_PING_TIME_PER_PROBE * request.count;
        let body = to_json(request)?;
        self.ask(Method::POST, "/ping", Some(body), limit).await
    }

    /// Reads the daemon's configuration again, as SIGHUP does.
    ///
    /// # Errors
    /// As [`AdminClient::status`], and when the configuration has problems.
    pub async fn reload(&self) -> Result<ReloadReport, Error> {
        self.ask(Method::POST, "/reload", None, MAX_TIME).await
    }

    /// Whether `/livez` or `/readyz` says yes.
    ///
    /// # Errors
    /// As [`AdminClient::status`]: [`Error::Refused`] with the reason when it says no.
    pub async fn check(&self, path: &str) -> Result<(), Error> {
        self.answer(Method::GET, path, None, MAX_TIME).await.map(drop)
    }

    async fn answer(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
        limit: Duration,
    ) -> Result<Bytes, Error> {
        let answer = timeout(limit, self.exchange(method, path, body)).await.map_err(|_late| {
            self.no_daemon(io::Error::new(io::ErrorKind::TimedOut, "it did not answer in time"))
        })?;
        let (status, bytes) = answer?;
        if status == StatusCode::OK {
            return Ok(bytes);
        }
        let why = serde_json::from_slice::<Complaint>(&bytes)
            .map_or_else(|_not_ours| format!("it answered {status}"), |complaint| complaint.error);
        match status {
            // The daemon would do it for another request.
            StatusCode::UNPROCESSABLE_ENTITY => Err(Error::Usage(why)),
            _ => Err(Error::Refused(why)),
        }
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
        limit: Duration,
    ) -> Result<T, Error> {
        let bytes = self.answer(method, path, body, limit).await?;
        serde_json::from_slice(&bytes).map_err(|error| {
            Error::Refused(format!(
                "its answer cannot be parsed ({error}); does it have the same version as this \
                 program ({})?",
                env!("CARGO_PKG_VERSION")
            ))
        })
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<(StatusCode, Bytes), Error> {
        let stream =
            UnixStream::connect(&self.socket).await.map_err(|error| self.no_daemon(error))?;
        let lost = |error: hyper::Error| self.no_daemon(io::Error::other(error));
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(lost)?;
        let request = request(method, path, body);
        let talk = async {
            let answer = sender.send_request(request).await.map_err(lost)?;
            let (head, body) = answer.into_parts();
            let body = Limited::new(body, MAX_ANSWER_BYTES)
                .collect()
                .await
                .map_err(|error| self.no_daemon(io::Error::other(error)))?;
            Ok((head.status, body.to_bytes()))
        };
        let mut connection = std::pin::pin!(connection);
        let mut talk = std::pin::pin!(talk);
        tokio::select! {
            answer = &mut talk => return answer,
            // The connection ends with its last byte; the answer may still be in the queue.
            _ = &mut connection => {}
        }
        talk.await
    }

    fn no_daemon(&self, source: io::Error) -> Error {
        Error::NoDaemon { path: self.socket.clone(), source }
    }
}

fn request(method: Method, path: &str, body: Option<Vec<u8>>) -> Request<Full<Bytes>> {
    let has_body = body.is_some();
    let mut request = Request::new(Full::new(Bytes::from(body.unwrap_or_default())));
    *request.method_mut() = method;
    *request.uri_mut() = path.parse().expect("our own paths are URIs");
    request.headers_mut().insert(HOST, HeaderValue::from_static("localhost"));
    if has_body {
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    request
}

fn to_json<T: Serialize>(value: &T) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(value)
        .map_err(|error| Error::Bug(format!("a question has no JSON: {error}")))
}
