//! The client's first bytes, kept until an origin has answered.
//!
//! What may be done with them depends on what they are. A TLS handshake that got no answer has had
//! no effect, so its bytes may be sent to one candidate after another. Anything else goes out at
//! most once, and only to an origin that has said that its instance is connected.
//!
//! Bounded by [`MAX_KEPT`]; beyond that nothing more is read from the client until an origin
//! answers.

use bytes::{Bytes, BytesMut};

use crate::core::connect::Kind;

/// Most bytes kept. A TLS client sends one hello (below 2 KiB, with post-quantum keys below 4) and
/// then waits.
pub(super) const MAX_KEPT: usize = 64 * 1024;
/// First byte of a TLS handshake record (RFC 8446, section 5.1).
const TLS_HANDSHAKE: u8 = 22;
/// First byte of the version in every TLS record.
const TLS_MAJOR: u8 = 3;

/// See the module's doc.
#[derive(Debug, Default)]
pub(super) struct Opening {
    kept: BytesMut,
    /// The client has half-closed already.
    pub(super) ended: bool,
    /// Bytes went out that must not go out again.
    spent: bool,
}

impl Opening {
    /// Keeps what the client sent next, also once it is spent: the attempt that has the earlier
    /// bytes takes these along.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.kept.extend_from_slice(bytes);
    }

    /// How many more bytes may be read from the client now.
    pub(super) fn room(&self) -> usize {
        MAX_KEPT.saturating_sub(self.kept.len())
    }

    /// What the bytes so far are.
    pub(super) fn kind(&self) -> Kind {
        match self.kept.as_ref() {
            [] | [TLS_HANDSHAKE] if !self.ended => Kind::Open,
            [TLS_HANDSHAKE, TLS_MAJOR, ..] => Kind::Tls,
            _ => Kind::Other,
        }
    }

    /// Whether the bytes may go to a candidate, whose instance is `connected` or not known to be.
    pub(super) fn may_go(&self, connected: bool) -> bool {
        match self.kind() {
            Kind::Open => false,
            Kind::Tls => true,
            Kind::Other => connected,
        }
    }

    /// Whether another candidate may still be tried.
    pub(super) fn may_retry(&self) -> bool {
        !self.spent
    }

    /// Whether the client has sent anything.
    pub(super) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// The bytes from `from` on, to send to a candidate.
    pub(super) fn after(&self, from: usize) -> Bytes {
        Bytes::copy_from_slice(self.kept.get(from..).unwrap_or_default())
    }

    /// How many bytes are kept.
    pub(super) fn len(&self) -> usize {
        self.kept.len()
    }

    /// Notes that bytes other than TLS go out now; from here on there is one candidate.
    pub(super) fn spend(&mut self) {
        self.spent = self.spent || self.kind() != Kind::Tls;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tls_may_go_ahead_and_again() {
        let mut opening = Opening::default();
        assert_eq!(opening.kind(), Kind::Open);
        opening.push(&[22]);
        assert!(!opening.may_go(true), "the next byte tells whether it may go again");
        opening.push(&[3, 1, 2, 0]);
        assert!(opening.may_go(false));
        opening.spend();
        assert!(opening.may_retry());
        assert_eq!(opening.after(1).as_ref(), &[3, 1, 2, 0]);
    }

    #[test]
    fn anything_else_goes_out_once() {
        for first in [&b"GET / HTTP/1.1"[..], &[22, 4], &[0]] {
            let mut opening = Opening::default();
            opening.push(first);
            assert!(!opening.may_go(false));
            assert!(opening.may_go(true));
            assert!(opening.may_retry());
            opening.spend();
            assert!(!opening.may_retry());
        }
    }

    #[test]
    fn at_the_end_what_there_is_goes_out() {
        let mut opening = Opening::default();
        opening.push(&[22]);
        opening.ended = true;
        assert_eq!(opening.kind(), Kind::Other);
    }

    #[test]
    fn room_is_bounded() {
        let mut opening = Opening::default();
        opening.push(&vec![0; MAX_KEPT]);
        assert_eq!(opening.room(), 0);
    }
}
