//! What the attempts of one client share.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::watch;

use super::super::opening::Opening;
use crate::core::connect::Kind;

/// What the attempts of one client share: its first bytes, and which attempt may have them when
/// they must not go out twice.
#[derive(Debug, Default)]
pub(in crate::daemon) struct State {
    opening: Opening,
    /// The attempt that was connected first, while the client does not speak TLS.
    claimed: Option<u32>,
    /// Attempts that were connected, in that order.
    pub(in crate::daemon) connected: Vec<u32>,
}

/// See [`State`]. Cheap to clone.
#[derive(Debug, Clone)]
pub(in crate::daemon) struct Shared(Arc<watch::Sender<State>>);

impl Default for Shared {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(State::default())))
    }
}

impl Shared {
    pub(in crate::daemon) fn subscribe(&self) -> watch::Receiver<State> {
        self.0.subscribe()
    }

    /// Changes the client's first bytes.
    pub(in crate::daemon) fn opening<T>(&self, change: impl FnOnce(&mut Opening) -> T) -> T {
        let mut result = None;
        self.0.send_modify(|state| result = Some(change(&mut state.opening)));
        result.expect("it was called")
    }

    /// Looks at the client's first bytes.
    pub(in crate::daemon) fn look<T>(&self, look: impl FnOnce(&Opening) -> T) -> T {
        look(&self.0.borrow().opening)
    }

    /// An attempt is over: if it was to have the client's bytes, another one may.
    pub(in crate::daemon) fn release(&self, id: u32) {
        self.0.send_if_modified(|state| {
            let held = state.claimed == Some(id);
            state.claimed = state.claimed.filter(|_| !held);
            held
        });
    }

    /// An attempt is connected.
    pub(super) fn connected(&self, id: u32) {
        self.0.send_modify(|state| {
            state.connected.push(id);
            if state.opening.kind() != Kind::Tls {
                state.claimed.get_or_insert(id);
            }
        });
    }

    /// What kind of bytes an attempt may send beyond `sent`, and those; none when it has to wait.
    pub(super) fn take(&self, id: u32, connected: bool, sent: usize) -> (Kind, Option<Bytes>) {
        let state = self.0.borrow();
        let kind = state.opening.kind();
        let may = state.opening.may_go(connected) && self.is_mine(&state, id);
        let bytes = may.then(|| state.opening.before_answer(sent));
        let bytes = bytes.filter(|bytes| !bytes.is_empty());
        drop(state);
        if bytes.is_some() && kind == Kind::Other {
            self.0.send_if_modified(|state| {
                state.opening.spend();
                false
            });
        }
        (kind, bytes)
    }

    fn is_mine(&self, state: &State, id: u32) -> bool {
        state.opening.kind() == Kind::Tls || state.claimed == Some(id)
    }

    /// Whether the answer that an attempt has got may go to the client.
    pub(super) fn may_answer(&self, id: u32) -> bool {
        self.is_mine(&self.0.borrow(), id)
    }
}
