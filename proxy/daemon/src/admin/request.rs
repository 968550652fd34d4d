//! The requests of the admin interface: one [`Request`] per command, with its reply.
//!
//! To add a command, write its request and reply next to their data ([`super::api`] and its
//! neighbours) with a row of `verbs!`, or an `impl Request` if a default does not suit, its answer
//! and its row in `driver::answers`, and the command. Router and client need no change.

use std::hash::{DefaultHasher, Hasher};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Error;

/// Limit for a request that needs no network.
pub const MAX_ANSWER_TIME: Duration = Duration::from_secs(5);

/// Default limit for the body of a request: credentials and secrets are shorter.
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

    /// Validates the request before it is sent to the daemon.
    fn check(&self) -> Result<(), Error> {
        Ok(())
    }

    /// The part of a reply's JSON that changes only with events; the `ETag` is its hash. `None` for
    /// a reply that is always sent in full.
    fn news(_body: &str) -> Option<&str> {
        None
    }

    /// Limit for the daemon's answer.
    fn limit(&self) -> Duration {
        MAX_ANSWER_TIME
    }
}

/// Implements [`Request`] where all but its path, kind and reply is the default.
macro_rules! verbs {
    ($($name:ident, $path:literal, $kind:ident, $reply:ty;)*) => {
        $(
            impl $crate::admin::request::Request for $name {
                const PATH: &'static str = $path;
                const KIND: $crate::admin::request::Kind = $crate::admin::request::Kind::$kind;
                type Reply = $reply;
            }
        )*
    };
}
pub(crate) use verbs;

/// A tag that changes with the reply's content. Comparable only within one build.
pub(crate) fn tag(news: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(news.as_bytes());
    hasher.finish()
}
