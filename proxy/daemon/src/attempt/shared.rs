//! What the attempts of one client share.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::watch;

use super::super::opening::Opening;
use meshport_core::connect::Kind;

/// What the attempts of one client share: its first bytes, and which attempt may have them when
/// they must not go out twice.
#[derive(Debug, Default)]
pub(crate) struct State {
    opening: Opening,
    /// Attempts that are connected, in that order. Unless the client speaks TLS, its bytes are for
    /// the first of them alone.
    pub(crate) connected: Vec<u32>,
}

/// See [`State`]. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Shared(Arc<watch::Sender<State>>);

impl Default for Shared {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(State::default())))
    }
}

impl Shared {
    pub(crate) fn subscribe(&self) -> watch::Receiver<State> {
        self.0.subscribe()
    }

    /// Changes the client's first bytes.
    pub(crate) fn opening<T>(&self, change: impl FnOnce(&mut Opening) -> T) -> T {
        let mut result = None;
        self.0.send_modify(|state| result = Some(change(&mut state.opening)));
        result.expect("it was called")
    }

    /// Looks at the client's first bytes.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&Opening) -> T) -> T {
        look(&self.0.borrow().opening)
    }

    /// An attempt is over: if it was to have the client's bytes, the next one may, unless they are
    /// out and must not go out again.
    pub(crate) fn release(&self, id: u32) {
        self.0.send_if_modified(|state| {
            let held = state.connected.first() == Some(&id);
            if held && !state.opening.may_retry() {
                return false;
            }
            state.connected.retain(|it| *it != id);
            held
        });
    }

    /// Whether an attempt has sent what must not be sent again.
    pub(crate) fn is_spent_by(&self, id: u32) -> bool {
        let state = self.0.borrow();
        !state.opening.may_retry() && state.connected.first() == Some(&id)
    }

    /// An attempt is connected.
    pub(super) fn connected(&self, id: u32) {
        self.0.send_modify(|state| state.connected.push(id));
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
        state.opening.kind() == Kind::Tls || state.connected.first() == Some(&id)
    }

    /// Whether the answer that an attempt has got may go to the client.
    pub(super) fn may_answer(&self, id: u32) -> bool {
        self.is_mine(&self.0.borrow(), id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_two_connected(said: &[u8]) -> Shared {
        let shared = Shared::default();
        [1, 2].into_iter().for_each(|id| shared.connected(id));
        shared.opening(|opening| opening.push(said));
        shared
    }

    #[test]
    fn the_next_connected_one_takes_the_place_of_one_that_is_over() {
        let shared = with_two_connected(b"GET");
        assert!(shared.take(2, true, 0).1.is_none() && !shared.may_answer(2));
        shared.release(1);
        assert!(shared.may_answer(2));
        assert_eq!(shared.take(2, true, 0).1.as_deref(), Some(&b"GET"[..]));
        assert!(shared.is_spent_by(2) && !shared.is_spent_by(1));
    }

    #[test]
    fn what_is_out_goes_to_nobody_else_whatever_becomes_of_its_attempt() {
        let shared = with_two_connected(b"GET");
        assert!(shared.take(1, true, 0).1.is_some());
        shared.release(2);
        shared.release(1);
        shared.connected(3);
        assert!([2, 3].iter().all(|id| shared.take(*id, true, 0).1.is_none()));
        assert!(shared.is_spent_by(1));
    }

    #[test]
    fn tls_goes_to_everyone() {
        let shared = with_two_connected(&[22, 3, 1, 0, 4, 1, 0, 0, 0]);
        for id in [1, 2, 3] {
            assert!(shared.take(id, false, 0).1.is_some() && !shared.is_spent_by(id));
        }
    }
}
