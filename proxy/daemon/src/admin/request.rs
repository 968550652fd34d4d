//! The verbs of the admin interface: one [`Request`] each, with its reply.
//!
//! To add a command, write its request and reply with an `impl Request` next to their data
//! ([`super::api`] and its neighbours), its answer and its row in `node::driver::answers`, and the
//! command. Router and client need no change.

use std::hash::{DefaultHasher, Hasher};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Error;

/// How long the daemon may take for a request that needs no network.
pub const MAX_ANSWER_TIME: Duration = Duration::from_secs(5);

/// The longest body of a request unless it overrides this: credentials and secrets are shorter.
pub const MAX_BODY_BYTES: usize = 4 * 1024;

/// The permissions of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Reveals no secret and changes nothing: GET, on the socket and on loopback TCP.
    Query,
    /// Changes something or sends packets: POST, on the socket only.
    Command,
}

/// A command of the admin interface.
pub trait Request: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// The path of its URL.
    const PATH: &'static str;
    /// Its permissions.
    const KIND: Kind;
    /// The answer of the daemon.
    type Reply: Serialize + DeserializeOwned + Send + 'static;

    /// The longest body, in bytes.
    const MAX_BODY_BYTES: usize = MAX_BODY_BYTES;

    /// Whether the request is valid, before the daemon is asked.
    ///
    /// # Errors
    /// Checks it.
    fn check(&self) -> Result<(), Error> {
        Ok(())
    }

    /// The part of a reply's JSON that changes only with events; the `ETag` is computed from it.
    /// None for a reply that is always sent in full.
    fn news(_body: &str) -> Option<&str> {
        None
    }

    /// How long the daemon may take.
    fn limit(&self) -> Duration {
        MAX_ANSWER_TIME
    }
}

/// A tag that changes with the reply's content. Comparable only within one build.
pub(crate) fn tag(news: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(news.as_bytes());
    hasher.finish()
}
