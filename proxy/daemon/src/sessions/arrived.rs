//! An accepted client that does not have a session yet.

use std::sync::Arc;

use bytes::Bytes;

use crate::sessions::client::ClientId;
use crate::sessions::exposed::Tally;
use crate::sessions::pacing::Paid;

/// A client, as passed on by its listener.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) paid: Paid,
    /// The bytes for the instance before the client's own bytes.
    pub(crate) preface: Bytes,
    /// The bytes already read from the client.
    pub(crate) said: Bytes,
    /// The client, if its listener has identified it.
    pub(crate) client: Option<ClientId>,
    /// Counters that also count its bytes, in addition to those of the service.
    pub(crate) tally: Option<Arc<Tally>>,
}

impl Arrived {
    /// A client from which nothing was read.
    pub(crate) fn unread(paid: Paid) -> Self {
        Self { paid, preface: Bytes::new(), said: Bytes::new(), client: None, tally: None }
    }
}
