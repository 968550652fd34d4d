//! Why a request got no answer.

use std::io;
use std::time::Duration;

use hyper::StatusCode;

/// Why a request got no answer. Not a failure of this crate: finding out is the client's purpose.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// No TCP connection was made.
    #[error("cannot connect: {0}")]
    Connect(#[source] io::Error),
    /// No TLS session was established.
    #[error("TLS handshake failed: {0}")]
    Tls(#[source] io::Error),
    /// The connection broke, or the HTTP was invalid.
    #[error("HTTP failed: {0}")]
    Http(#[from] hyper::Error),
    /// It took too long.
    #[error("no answer within {} ms (while it was {stage})", limit.as_millis())]
    Timeout {
        /// The stage that the request was in.
        stage: Stage,
        /// The limit that was exceeded.
        limit: Duration,
    },
    /// The status was not the expected one.
    #[error("{origin} answered {status}")]
    Status {
        /// The origin that answered.
        origin: String,
        /// What.
        status: StatusCode,
    },
    /// The answer is invalid.
    #[error("unexpected answer: {0}")]
    Unexpected(String),
}

/// The stages of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The TCP connect.
    Connecting,
    /// The TLS handshake.
    Handshaking,
    /// Sending the request, waiting for the answer, reading it.
    Requesting,
}

impl std::fmt::Display for Stage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Connecting => "connecting",
            Self::Handshaking => "in the TLS handshake",
            Self::Requesting => "waiting for the answer",
        })
    }
}
