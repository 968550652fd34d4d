//! The client: sends typed requests to the daemon over its Unix socket.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, StatusCode};
use meshport_state::{Error as StateError, StateDir};
use serde::{Deserialize, Serialize};
use tokio::net::UnixStream;
use tokio::time::timeout;

use meshport_core::units::clean;

use super::request::{Kind, MAX_ANSWER_TIME, Request};
use crate::{Error, clock, http};

/// How much longer than the daemon's own limit a client waits.
const GRACE: Duration = Duration::from_secs(5);
/// Ten thousand peers at one KiB each, with room to spare.
const MAX_ANSWER_BYTES: usize = 32 * 1024 * 1024;

/// A client of one daemon. Keeps no connection between requests.
#[derive(Debug, Clone)]
pub struct AdminClient {
    socket: PathBuf,
    state_dir: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Complaint {
    error: String,
}

impl AdminClient {
    /// A client of the daemon that serves this socket.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self { socket: socket.into(), state_dir: None }
    }

    /// Sets the daemon's state folder: if the socket does not exist, the error names the process
    /// that uses the folder, or why no daemon can.
    #[must_use]
    pub fn with_state_dir(self, state_dir: PathBuf) -> Self {
        Self { state_dir: Some(state_dir), ..self }
    }

    /// The daemon's socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The process that serves the socket; `None` if there is none or the kernel does not report
    /// it.
    pub async fn pid(&self) -> Option<i32> {
        let stream = UnixStream::connect(&self.socket).await.ok()?;
        stream.peer_cred().ok()?.pid()
    }

    /// Sends a request and waits for the reply.
    ///
    /// # Errors
    /// [`Error::NoDaemon`] if no daemon answers, [`Error::Usage`] for a request that the daemon
    /// finds invalid, [`Error::Unfit`] if its configuration is, [`Error::Refused`] for another
    /// refusal or an answer that cannot be parsed.
    pub async fn ask<R: Request>(&self, request: &R) -> Result<R::Reply, Error> {
        let (method, body) = match R::KIND {
            Kind::Query => (Method::GET, None),
            Kind::Command => (Method::POST, Some(to_json(request)?)),
        };
        let bytes = self.answer(method, R::PATH, body, request.limit() + GRACE).await?;
        serde_json::from_slice(&bytes).map_err(|error| {
            Error::Refused(format!(
                "its answer cannot be parsed ({}); is it the same version as this program ({})?",
                harmless(&error.to_string()),
                env!("CARGO_PKG_VERSION")
            ))
        })
    }

    /// Whether `/livez` or `/readyz` answers with success.
    ///
    /// # Errors
    /// As [`AdminClient::ask`]: [`Error::Refused`] with the reason if not.
    pub async fn check(&self, path: &str) -> Result<(), Error> {
        self.answer(Method::GET, path, None, MAX_ANSWER_TIME + GRACE).await.map(drop)
    }

    /// The metrics as a scraper reads them.
    pub async fn metrics(&self) -> Result<Vec<u8>, Error> {
        let page = self.answer(Method::GET, "/metrics", None, MAX_ANSWER_TIME + GRACE).await?;
        Ok(page.to_vec())
    }

    async fn answer(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
        limit: Duration,
    ) -> Result<Bytes, Error> {
        let answer = timeout(limit, self.exchange(method, path, body)).await.map_err(|_late| {
            self.no_daemon(io::Error::new(
                io::ErrorKind::TimedOut,
                "timed out waiting for an answer",
            ))
        })?;
        let (status, bytes) = answer?;
        if status == StatusCode::OK {
            return Ok(bytes);
        }
        let why = serde_json::from_slice::<Complaint>(&bytes)
            .map_or_else(|_not_ours| format!("it answered {status}"), |it| harmless(&it.error));
        match status {
            // The request is at fault, not the daemon.
            StatusCode::UNPROCESSABLE_ENTITY => Err(Error::Usage(why)),
            StatusCode::CONFLICT => Err(Error::Unfit(format!("the daemon refused: {why}"))),
            StatusCode::PAYLOAD_TOO_LARGE => Err(Error::Refused(format!(
                "{why}. If the daemon runs an earlier release, which has lower limits, upgrade \
                 it first"
            ))),
            _ => Err(Error::Refused(why)),
        }
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<(StatusCode, Bytes), Error> {
        let stream =
            UnixStream::connect(&self.socket).await.map_err(|error| self.no_daemon(error))?;
        let answer = http::exchange(stream, request(method, path, body), async |answer| {
            let (head, body) = answer.into_parts();
            let body = Limited::new(body, MAX_ANSWER_BYTES).collect().await?;
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>((head.status, body.to_bytes()))
        });
        answer.await.map_err(|error| self.no_daemon(io::Error::other(error)))
    }

    fn no_daemon(&self, source: io::Error) -> Error {
        let source = match source.kind() {
            io::ErrorKind::NotFound => self.obstacle().unwrap_or(source),
            _ => source,
        };
        Error::NoDaemon { path: self.socket.clone(), source }
    }

    /// The reason if a process uses the state folder without this socket, or if no daemon can start
    /// with that folder.
    fn obstacle(&self) -> Option<io::Error> {
        let folder = self.state_dir.as_ref()?;
        let state = StateDir::open(folder);
        let what = match state.as_ref().ok().and_then(StateDir::holder) {
            Some(pid) => format!(
                "the socket does not exist, but process {pid} uses the state folder {}. If it is a \
                 daemon with another socket, name that with --socket, or its configuration with \
                 --config",
                folder.display()
            ),
            None => match state.and_then(|it| it.identity(clock::wall())).err()? {
                // Another user's folder says nothing.
                StateError::Io { .. } => return None,
                error => format!(
                    "the socket does not exist, and no daemon can start here: {error}. To ask \
                     another daemon, name its socket with --socket, or its configuration with \
                     --config"
                ),
            },
        };
        Some(io::Error::new(io::ErrorKind::NotFound, what))
    }
}

/// What a daemon says, for a terminal: any user may serve a socket that root asks. Lists of
/// problems keep their lines.
fn harmless(text: &str) -> String {
    text.split('\n').map(clean).collect::<Vec<_>>().join("\n")
}

fn request(method: Method, path: &str, body: Option<Vec<u8>>) -> hyper::Request<Full<Bytes>> {
    let has_body = body.is_some();
    let mut request = hyper::Request::new(Full::new(Bytes::from(body.unwrap_or_default())));
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
        .map_err(|error| Error::Bug(format!("cannot encode the request as JSON: {error}")))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixListener;

    use super::*;

    #[tokio::test]
    async fn a_complaint_cannot_control_the_terminal() {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("s");
        let listener = UnixListener::bind(&socket).expect("it is free");
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a client");
            let _ = stream.read(&mut [0; 4096]).await.expect("a request");
            let body = r#"{"error":"a\u001b]0;x\u0007\n  b\u202e\r"}"#;
            let head = format!("HTTP/1.1 409 Conflict\r\ncontent-length: {}\r\n\r\n", body.len());
            stream.write_all(format!("{head}{body}").as_bytes()).await.expect("it reads");
        });
        let said = AdminClient::new(&socket).check("/livez").await.expect_err("it refuses");
        assert_eq!(said.to_string(), "the daemon refused: a?]0;x?\n  b??");
    }
}
