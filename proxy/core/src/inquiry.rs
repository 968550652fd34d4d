//! The questions of one member to another for `meshport doctor`, and the findings from the answers.
//!
//! A question travels at the start of a stream like the header of a session ([`crate::wire`]):
//! version (1 byte, [`VERSION`]), body length (2 bytes, big endian), body (postcard). The answer is
//! the byte of a session's answer, and after [`Answer::Connected`](crate::wire::Answer) the length
//! (2 bytes) and the body of a [`Testimony`]. An earlier release refuses the question's version
//! with `bad-request`. Bytes of a body after the known fields are ignored, so that later versions
//! may append fields; nothing else of it ever changes.
//!
//! An answer is a hint for people: it changes no route and no session. A call-back goes only to the
//! address of the requester's tunnel and to addresses in its signed record, limited by
//! [`CallBudget`].

mod budget;
mod judge;

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::wire::{BadMessage, LENGTH_BYTES, decode_body, encode_body};

pub use self::budget::CallBudget;
pub use self::judge::{Account, Asked, Heard, LocalFacts, judge};

/// First byte of a question; 1 and 2 begin sessions.
pub const VERSION: u8 = 3;
/// Version and length.
const PREFIX_BYTES: usize = 3;
/// The longest question, in bytes: a token, and space for later versions.
pub const MAX_QUESTION_BYTES: usize = 256;
/// The longest answer after its first byte, in bytes: a version and some settings, and space for
/// later versions.
pub const MAX_TESTIMONY_BYTES: usize = 2048;
/// Maximum settings in an answer; 3 must agree now.
const MAX_SETTINGS: usize = 32;
/// Maximum length of a version, a key or a value, in bytes.
const MAX_TEXT_BYTES: usize = 64;
/// Token that a member repeats in its call-back.
pub type CallToken = [u8; 16];

/// A question to a member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// Call back with this token, from a socket that the requester has not sent to.
    pub call: Option<CallToken>,
}

/// A member's reaction to the request for a call-back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Call {
    /// None was requested.
    NotAsked,
    /// It sends to this many addresses.
    Sent(u8),
    /// It made one recently, to this requester or another.
    TooOften,
    /// It knows no address of the requester.
    NoAddress,
}

/// A member's statement about itself and its path to the requester.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Testimony {
    /// The version of its daemon.
    pub version: String,
    /// Its time of day, in seconds since 1970.
    pub wall_s: u64,
    /// The source address of the requester's packets.
    pub sees_you_at: Option<SocketAddr>,
    /// Length in bytes of the largest IP packet known to reach the requester from it; it may not
    /// have probed larger ones yet.
    pub mtu: Option<u16>,
    /// Whether its large packets to the requester are lost.
    pub is_narrow: bool,
    /// Its reaction to the request for a call-back.
    pub call: Call,
    /// Settings that must agree.
    pub settings: Vec<Setting>,
}

/// A setting that must agree, with its current value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// The key with its table, `discovery.suspicion`.
    pub key: String,
    /// As written in a file.
    pub value: String,
}

impl Question {
    /// The bytes on the wire.
    pub fn encode(&self) -> Vec<u8> {
        encode_body(&[VERSION], self, None)
    }

    /// Reads a question from the front of `bytes`, of which the first is [`VERSION`]. `Ok(None)`
    /// means that more bytes are needed; otherwise the question and how many bytes it took.
    ///
    /// # Errors
    /// [`BadMessage`] when no continuation of these bytes can be a question.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, BadMessage> {
        match bytes.split_first() {
            None => Ok(None),
            Some((&VERSION, rest)) => Ok(decode_body(rest, MAX_QUESTION_BYTES)?
                .map(|(question, _later, length)| (question, PREFIX_BYTES + length))),
            Some(_) => Err(BadMessage::Body),
        }
    }
}

impl Testimony {
    /// The bytes on the wire, after the byte of the answer.
    pub fn encode(&self) -> Vec<u8> {
        let bytes = encode_body(&[], self, None);
        debug_assert!(bytes.len() <= LENGTH_BYTES + MAX_TESTIMONY_BYTES);
        bytes
    }

    /// Reads an answer after its byte; `Ok(None)` means that more bytes are needed.
    ///
    /// # Errors
    /// [`BadMessage`] when no continuation of these bytes can be an answer.
    pub fn decode(bytes: &[u8]) -> Result<Option<Self>, BadMessage> {
        let read = decode_body::<Self>(bytes, MAX_TESTIMONY_BYTES)?;
        let Some((testimony, _later, _)) = read else { return Ok(None) };
        let is_plain = |text: &str| {
            text.len() <= MAX_TEXT_BYTES && text.bytes().all(|it| (0x20..0x7f).contains(&it))
        };
        let is_fit = is_plain(&testimony.version)
            && testimony.settings.len() <= MAX_SETTINGS
            && testimony.settings.iter().all(|it| is_plain(&it.key) && is_plain(&it.value));
        if is_fit { Ok(Some(testimony)) } else { Err(BadMessage::Body) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::{BadHeader, Header};

    fn testimony() -> Testimony {
        Testimony {
            version: "0.1.0".into(),
            wall_s: 1_800_000_000,
            sees_you_at: Some("[2001:db8::7]:51820".parse().expect("an address")),
            mtu: Some(1500),
            is_narrow: false,
            call: Call::Sent(2),
            settings: vec![Setting { key: "discovery.suspicion".into(), value: "5s".into() }],
        }
    }

    #[test]
    fn questions_and_answers_round_trip_in_pieces() {
        for question in [Question { call: None }, Question { call: Some([7; 16]) }] {
            let mut bytes = question.encode();
            for cut in 0..bytes.len() {
                assert_eq!(Question::decode(&bytes[..cut]), Ok(None), "cut at {cut}");
            }
            let whole = bytes.len();
            bytes.push(9);
            assert_eq!(Question::decode(&bytes), Ok(Some((question, whole))));
        }
        let bytes = testimony().encode();
        for cut in 0..bytes.len() {
            assert_eq!(Testimony::decode(&bytes[..cut]), Ok(None), "cut at {cut}");
        }
        assert_eq!(Testimony::decode(&bytes), Ok(Some(testimony())));
    }

    /// The reaction of an earlier version to a question.
    #[test]
    fn a_header_of_a_session_refuses_the_version_of_a_question() {
        let bytes = Question { call: Some([7; 16]) }.encode();
        assert_eq!(Header::decode(&bytes), Err(BadHeader::Version(VERSION)));
    }

    #[test]
    fn a_later_version_may_add_to_the_end() {
        let longer = |bytes: &[u8], at: usize| {
            let mut longer = bytes.to_vec();
            longer.extend([1, 2, 3]);
            longer[at + 1] += 3;
            longer
        };
        let question = Question { call: Some([7; 16]) };
        let bytes = longer(&question.encode(), 1);
        assert_eq!(Question::decode(&bytes), Ok(Some((question, bytes.len()))));
        assert_eq!(Testimony::decode(&longer(&testimony().encode(), 0)), Ok(Some(testimony())));
    }

    #[test]
    fn what_is_long_or_not_plain_is_refused() {
        assert_eq!(Question::decode(&[VERSION, 2, 0]), Err(BadMessage::TooLong(512)));
        assert_eq!(Question::decode(&[1]), Err(BadMessage::Body));
        let with = |change: fn(&mut Testimony)| {
            let mut testimony = testimony();
            change(&mut testimony);
            Testimony::decode(&testimony.encode())
        };
        assert_eq!(with(|it| it.version = "0.1\x1b[31m".into()), Err(BadMessage::Body));
        assert_eq!(with(|it| it.version = "x".repeat(65)), Err(BadMessage::Body));
        let many = |it: &mut Testimony| it.settings = vec![it.settings[0].clone(); 33];
        assert_eq!(with(many), Err(BadMessage::Body));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_value(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Question::decode(&bytes);
            let _ = Testimony::decode(&bytes);
            let _ = Question::decode(&[&[VERSION, 0, 40], &bytes[..]].concat());
        }
    }
}
