//! State that the attempts of one client share.

use std::sync::Arc;

use bytes::Bytes;
use meshport_core::connect::Kind;
use meshport_core::opening::{Claims, Opening};
use tokio::sync::watch;

/// The client's first bytes, and which attempt may send them. Every change wakes all attempts.
/// Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Shared(Arc<watch::Sender<Claims>>);

impl Default for Shared {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(Claims::default())))
    }
}

impl Shared {
    pub(crate) fn subscribe(&self) -> watch::Receiver<Claims> {
        self.0.subscribe()
    }

    /// Changes the client's first bytes.
    pub(crate) fn opening<T>(&self, change: impl FnOnce(&mut Opening) -> T) -> T {
        let mut result = None;
        self.0.send_modify(|claims| result = Some(change(&mut claims.opening)));
        result.expect("it was called")
    }

    /// Reads the client's first bytes.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&Opening) -> T) -> T {
        look(&self.0.borrow().opening)
    }

    /// Removes an attempt that has ended.
    pub(crate) fn release(&self, id: u32) {
        self.0.send_if_modified(|claims| claims.handle_end(id));
    }

    /// Whether an attempt has sent bytes that must not be sent again.
    pub(crate) fn is_spent_by(&self, id: u32) -> bool {
        self.0.borrow().is_spent_by(id)
    }

    /// Marks an attempt as connected.
    pub(super) fn connected(&self, id: u32) {
        self.0.send_modify(|claims| claims.handle_connected(id));
    }

    /// The kind of the client's bytes, and what an attempt must now send beyond `sent`.
    pub(super) fn take(&self, id: u32, connected: bool, sent: usize) -> (Kind, Option<Bytes>) {
        let (mut kind, mut bytes) = (Kind::Open, None);
        self.0.send_if_modified(|claims| {
            (kind, bytes) = (claims.opening.kind(), claims.take(id, connected, sent));
            false
        });
        (kind, bytes)
    }

    /// Whether the answer of an attempt may go to the client.
    pub(super) fn may_answer(&self, id: u32) -> bool {
        self.0.borrow().may_answer(id)
    }
}
