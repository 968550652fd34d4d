//! The client's first bytes, kept until an origin has answered.
//!
//! Their content decides how they may be used. An unanswered TLS handshake has had no effect, so it
//! may be sent to one candidate after another; early data after it (RFC 8446, section 2.3) waits
//! for the answer, since it carries the request. An incomplete hello is not sent: it gets no
//! answer, and the silence would count against the origins, so any client could drive others away
//! from them. Anything else is sent at most once, and only to an origin that has confirmed that its
//! instance is connected.
//!
//! A preface (a PROXY header) is sent with the client's first bytes, or alone once the instance is
//! connected, since the instance may wait for it before it sends anything.
//!
//! Bounded by [`MAX_KEPT`]; beyond that nothing more is read from the client until an origin
//! answers.

use bytes::{Bytes, BytesMut};

use super::connect::Kind;

pub use claims::Claims;

mod claims;

/// Maximum bytes kept. A TLS client sends one hello (below 2 KiB, with post-quantum keys below 4)
/// and then waits.
pub const MAX_KEPT: usize = 64 * 1024;
/// First byte of a TLS handshake record (RFC 8446, section 5.1).
const TLS_HANDSHAKE: u8 = 22;
/// First byte of a TLS record with application data.
const TLS_APPLICATION_DATA: u8 = 23;
/// Type, version and length of a TLS record, in bytes.
const TLS_RECORD_HEADER: usize = 5;
/// First byte of a client's hello in the handshake (RFC 8446, section 4).
const CLIENT_HELLO: u8 = 1;
/// Type and length of a message of the handshake, in bytes (RFC 8446, section 4).
const TLS_MESSAGE_HEADER: usize = 4;
/// First byte of the version in every TLS record.
const TLS_MAJOR: u8 = 3;

/// The bytes that a client has sent until now. See the module's doc.
#[derive(Debug, Default)]
pub struct Opening {
    /// The preface, then the client's bytes.
    kept: BytesMut,
    /// The length of the preface, in bytes.
    preface: usize,
    /// The client has already half-closed.
    pub ended: bool,
    /// Whether bytes were sent that must not be sent again.
    spent: bool,
}

impl Opening {
    /// Sets what the instance gets before the client's bytes.
    pub fn set_preface(&mut self, bytes: &[u8]) {
        let said = self.kept.split_off(self.preface);
        self.kept.clear();
        self.kept.extend_from_slice(bytes);
        self.preface = bytes.len();
        self.kept.unsplit(said);
    }

    /// The bytes that the client has sent.
    fn said(&self) -> &[u8] {
        self.kept.get(self.preface..).unwrap_or_default()
    }

    /// Keeps the client's next bytes, even once the earlier ones are spent: the attempt that has
    /// those sends these too.
    pub fn push(&mut self, bytes: &[u8]) {
        self.kept.extend_from_slice(bytes);
    }

    /// How many more bytes may be read from the client now.
    pub fn remaining_capacity(&self) -> usize {
        MAX_KEPT.saturating_sub(self.kept.len())
    }

    /// The kind of these bytes.
    pub fn kind(&self) -> Kind {
        match self.said() {
            [] | [TLS_HANDSHAKE] if !self.ended => Kind::Open,
            _ if !self.begins_tls() => Kind::Other,
            _ if self.is_hello_whole() => Kind::Tls,
            _ => Kind::Open,
        }
    }

    /// Whether these bytes begin a TLS handshake.
    pub fn begins_tls(&self) -> bool {
        matches!(self.said(), [TLS_HANDSHAKE, TLS_MAJOR, ..])
    }

    /// Whether a server can answer: the first handshake message is there, in complete records.
    fn is_hello_whole(&self) -> bool {
        let (mut at, mut have, mut message) = (0, 0, [0; TLS_MESSAGE_HEADER]);
        while let Some(header) = self.said().get(at..at + TLS_RECORD_HEADER) {
            if header[0] != TLS_HANDSHAKE {
                // No client continues like this; let the server report it.
                return true;
            }
            let from = at + TLS_RECORD_HEADER;
            at = from + usize::from(u16::from_be_bytes([header[3], header[4]]));
            let Some(record) = self.said().get(from..at) else { return false };
            for (to, byte) in message.iter_mut().skip(have).zip(record) {
                *to = *byte;
            }
            have += record.len();
            if have > 0 && message[0] != CLIENT_HELLO {
                // Nor does a TLS hello begin like this.
                return true;
            }
            let length = u32::from_be_bytes([0, message[1], message[2], message[3]]) as usize;
            if have >= TLS_MESSAGE_HEADER + length {
                return true;
            }
        }
        false
    }

    /// Whether the bytes may go to a candidate, given whether its instance is known to be
    /// `connected`.
    pub fn may_go(&self, connected: bool) -> bool {
        match self.kind() {
            Kind::Open => connected && self.preface > 0,
            Kind::Tls => true,
            Kind::Other => connected,
        }
    }

    /// Whether another candidate may still be tried.
    pub fn may_retry(&self) -> bool {
        !self.spent
    }

    /// Whether the client has sent anything.
    pub fn is_empty(&self) -> bool {
        self.said().is_empty()
    }

    /// The bytes from `from` on that may go to a candidate before it has answered.
    pub fn before_answer(&self, from: usize) -> Bytes {
        let end = match self.kind() {
            Kind::Open => self.preface,
            Kind::Tls => self.handshake(),
            Kind::Other => self.kept.len(),
        };
        Bytes::copy_from_slice(self.kept.get(from..end).unwrap_or_default())
    }

    /// How many of the bytes are the preface and records of the handshake.
    fn handshake(&self) -> usize {
        let mut at = self.preface;
        while let Some(header) = self.kept.get(at..at + TLS_RECORD_HEADER) {
            if header[0] == TLS_APPLICATION_DATA {
                return at;
            }
            let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
            at += TLS_RECORD_HEADER + length;
        }
        // An incomplete header can wait for its rest.
        at.min(self.kept.len())
    }

    /// The bytes from `from` on, for the candidate that has answered.
    pub fn after(&self, from: usize) -> Bytes {
        Bytes::copy_from_slice(self.kept.get(from..).unwrap_or_default())
    }

    /// Notes that bytes other than TLS are being sent, which leaves one candidate.
    pub fn spend(&mut self) {
        self.spent = self.spent || self.kind() == Kind::Other;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record of the handshake.
    fn record(payload: &[u8]) -> Vec<u8> {
        let length = u16::try_from(payload.len()).expect("a record").to_be_bytes();
        [&[TLS_HANDSHAKE, 3, 1, length[0], length[1]], payload].concat()
    }

    /// A hello of this many bytes after the message's header.
    fn hello(length: u8) -> Vec<u8> {
        [&[1, 0, 0, length][..], &vec![9; usize::from(length)]].concat()
    }

    #[test]
    fn tls_may_go_ahead_and_again() {
        let mut opening = Opening::default();
        assert_eq!(opening.kind(), Kind::Open);
        opening.push(&record(&hello(3)));
        assert!(opening.may_go(false));
        opening.spend();
        assert!(opening.may_retry());
        assert_eq!(opening.after(1).as_ref(), &record(&hello(3))[1..]);
    }

    #[test]
    fn a_hello_is_asked_of_nobody_before_it_is_whole() {
        let split = |at: usize| {
            let (first, rest) = (&hello(40)[..at], &hello(40)[at..]);
            [record(first), record(rest)].concat()
        };
        let others = [record(&hello(0)), record(b"no hello")];
        let split = [2, 4, 20].map(split).into_iter().chain(others);
        let forms = split.chain([record(&hello(40))]);
        for whole in forms {
            let mut opening = Opening::default();
            for (at, byte) in whole.iter().enumerate() {
                assert_eq!(opening.kind(), Kind::Open, "after {at} of {} bytes", whole.len());
                assert!(!opening.may_go(true));
                opening.push(&[*byte]);
            }
            assert_eq!(opening.kind(), Kind::Tls);
            assert_eq!(opening.before_answer(0).as_ref(), whole);
        }
        // A hello with an impossible length is never complete.
        let mut opening = Opening::default();
        opening.push(&[22, 3, 1, 255, 255]);
        opening.push(&vec![0; opening.remaining_capacity()]);
        assert_eq!((opening.kind(), opening.remaining_capacity()), (Kind::Open, 0));
    }

    #[test]
    fn early_data_waits_for_the_answer() {
        let hello = [22, 3, 1, 0, 2, 1, 1];
        let change_cipher = [20, 3, 3, 0, 1, 1];
        let early = [23, 3, 3, 0, 3, 9, 9, 9];
        let mut opening = Opening::default();
        for byte in [&hello[..], &change_cipher, &early].concat() {
            opening.push(&[byte]);
        }
        let handshake = [&hello[..], &change_cipher].concat();
        assert_eq!(opening.kind(), Kind::Tls);
        assert_eq!(opening.before_answer(0).as_ref(), handshake);
        assert_eq!(opening.before_answer(handshake.len()).as_ref(), b"");
        assert_eq!(opening.after(handshake.len()).as_ref(), early);
    }

    #[test]
    fn what_follows_the_hello_goes_out_as_it_comes() {
        let mut opening = Opening::default();
        opening.push(&record(&hello(0)));
        opening.push(&[22, 3, 1, 0, 9, 1, 2, 3]);
        assert_eq!(opening.before_answer(9).len(), 8, "also before its record is whole");
        opening.push(&[0; 6]);
        opening.push(&[22, 3]);
        assert_eq!(opening.before_answer(17).len(), 6, "a header waits until it is whole");
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
    fn a_preface_goes_before_the_hello_and_again_to_the_next() {
        let mut opening = Opening::default();
        opening.push(&[22]);
        opening.set_preface(b"PROXY\r\n");
        assert_eq!(opening.kind(), Kind::Open);
        // Alone it is sent only to a connected instance, and costs no other attempt.
        assert!(!opening.may_go(false) && opening.may_go(true));
        assert_eq!(opening.before_answer(0).as_ref(), b"PROXY\r\n");
        opening.spend();
        assert!(opening.may_retry() && !opening.is_empty());
        opening.push(&record(&hello(3))[1..]);
        opening.push(&[23, 3, 3, 0, 1, 9]);
        assert_eq!(opening.kind(), Kind::Tls);
        let whole = [b"PROXY\r\n", &record(&hello(3))[..]].concat();
        assert_eq!(opening.before_answer(0).as_ref(), whole);
        assert_eq!(opening.before_answer(7).as_ref(), &whole[7..]);
        assert_eq!(opening.after(whole.len()).as_ref(), [23, 3, 3, 0, 1, 9]);
    }

    #[test]
    fn an_instance_that_speaks_first_gets_the_preface_first() {
        let mut opening = Opening::default();
        assert!(opening.is_empty() && !opening.may_go(true));
        opening.set_preface(b"P");
        assert!(opening.is_empty() && opening.may_go(true));
        assert_eq!(opening.before_answer(0).as_ref(), b"P");
        opening.push(b"GET");
        assert_eq!(opening.before_answer(1).as_ref(), b"GET");
        opening.spend();
        assert!(!opening.may_retry());
    }

    #[test]
    fn room_is_bounded() {
        let mut opening = Opening::default();
        opening.push(&vec![0; MAX_KEPT]);
        assert_eq!(opening.remaining_capacity(), 0);
    }
}
