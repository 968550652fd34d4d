//! Decides which of a client's attempts gets its first bytes.

use bytes::Bytes;

use super::Opening;
use crate::connect::Kind;

/// The client's first bytes, and the attempt that may send them if they must not be sent twice.
#[derive(Debug, Default)]
pub struct Claims {
    /// The first bytes.
    pub opening: Opening,
    /// Connected attempts, in order of connection. Unless the client speaks TLS, only the first may
    /// send its bytes.
    connected: Vec<u32>,
}

impl Claims {
    /// Connected attempts, in that order.
    pub fn connected(&self) -> &[u32] {
        &self.connected
    }

    /// Handles that an attempt is connected.
    pub fn handle_connected(&mut self, id: u32) {
        self.connected.push(id);
    }

    /// Handles the end of an attempt. If it had the client's bytes, the next one may have them,
    /// unless they were sent and must not be sent again. Returns whether that changes anything for
    /// the others.
    pub fn handle_end(&mut self, id: u32) -> bool {
        let held = self.connected.first() == Some(&id);
        if held && !self.opening.may_retry() {
            return false;
        }
        self.connected.retain(|it| *it != id);
        held
    }

    /// Whether an attempt has sent what must not be sent again.
    pub fn is_spent_by(&self, id: u32) -> bool {
        !self.opening.may_retry() && self.connected.first() == Some(&id)
    }

    /// The bytes beyond `sent` that an attempt must now send, given whether its instance is known
    /// to be `connected`; `None` if it must wait.
    pub fn take(&mut self, id: u32, connected: bool, sent: usize) -> Option<Bytes> {
        let may = self.opening.may_go(connected) && self.may_answer(id);
        let bytes = may.then(|| self.opening.before_answer(sent))?;
        let has_some = !bytes.is_empty();
        if has_some {
            self.opening.spend();
        }
        has_some.then_some(bytes)
    }

    /// Whether the answer that an attempt has got may go to the client.
    pub fn may_answer(&self, id: u32) -> bool {
        self.opening.kind() == Kind::Tls || self.connected.first() == Some(&id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_two_connected(said: &[u8]) -> Claims {
        let mut claims = Claims::default();
        [1, 2].into_iter().for_each(|id| claims.handle_connected(id));
        claims.opening.push(said);
        claims
    }

    #[test]
    fn the_next_connected_one_takes_the_place_of_one_that_is_over() {
        let mut claims = with_two_connected(b"GET");
        assert!(claims.take(2, true, 0).is_none() && !claims.may_answer(2));
        assert!(claims.handle_end(1));
        assert!(claims.may_answer(2));
        assert_eq!(claims.take(2, true, 0).as_deref(), Some(&b"GET"[..]));
        assert!(claims.is_spent_by(2) && !claims.is_spent_by(1));
    }

    #[test]
    fn what_is_out_goes_to_nobody_else_whatever_becomes_of_its_attempt() {
        let mut claims = with_two_connected(b"GET");
        assert!(claims.take(1, true, 0).is_some());
        assert!(!claims.handle_end(2) && !claims.handle_end(1));
        claims.handle_connected(3);
        assert!([2, 3].iter().all(|id| claims.take(*id, true, 0).is_none()));
        assert!(claims.is_spent_by(1));
    }

    #[test]
    fn tls_goes_to_everyone() {
        let mut claims = with_two_connected(&[22, 3, 1, 0, 4, 1, 0, 0, 0]);
        for id in [1, 2, 3] {
            assert!(claims.take(id, false, 0).is_some() && !claims.is_spent_by(id));
        }
    }
}
