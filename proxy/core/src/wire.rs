//! The header at the start of every proxied stream, and the one-byte answer to it.
//!
//! Layout: version (1 byte), body length (2 bytes, big endian), body (postcard). Version 2 is for
//! relayed streams: after the body of version 1 it has the credential of the client's node. The
//! client's first bytes follow at once, in the same flight; the answer byte precedes everything the
//! origin sends back. Decoding is incremental, bounded by [`MAX_HEADER_BYTES`], and total: any
//! bytes give a header, "more needed", or an error.

use std::time::Duration;

use meshport_config::{Credential, MAX_CREDENTIAL_BYTES, NodeId, ServiceName, words};
use serde::{Deserialize, Serialize};

/// A stream of the peer's own. A change gets a new version; the body of a version never changes.
const VERSION: u8 = 1;
/// A stream that the peer carries for another node.
const VERSION_CARRIED: u8 = 2;
/// The length in front of a body.
pub(crate) const LENGTH_BYTES: usize = 2;
/// Version and length.
const PREFIX_BYTES: usize = 1 + LENGTH_BYTES;
/// Space for a service name (63), a NodeId and three small numbers, in bytes: twice what they take.
const MAX_PLAIN_BYTES: usize = 256;
/// The longest header accepted, in bytes.
pub const MAX_HEADER_BYTES: usize = MAX_PLAIN_BYTES + MAX_CREDENTIAL_BYTES;
/// The longest deadline a header can carry; no client waits longer.
pub const MAX_DEADLINE: Duration = Duration::from_secs(60);

/// How often the stream may still be forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Hops {
    /// The receiver must be the origin itself.
    None,
    /// The receiver may forward it to the target only.
    One,
}

/// The request of a stream's opener.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The service the client wants.
    pub service: ServiceName,
    /// The target origin; `None` for the receiver itself.
    pub target: Option<NodeId>,
    /// Whether the receiver may forward it.
    pub hops: Hops,
    /// How long the opener waits for the [`Answer`], in milliseconds.
    deadline_ms: u32,
    /// The client's node, if the opener carries it for that node. Well formed, not verified.
    #[serde(skip)]
    pub client: Option<Box<Credential>>,
}

impl Header {
    /// A request to the receiver itself, answered within `deadline` (capped at [`MAX_DEADLINE`]).
    pub fn direct(service: ServiceName, deadline: Duration) -> Self {
        let deadline_ms = deadline.min(MAX_DEADLINE).as_millis();
        let deadline_ms = u32::try_from(deadline_ms).expect("a minute in milliseconds fits");
        Self { service, target: None, hops: Hops::None, deadline_ms, client: None }
    }

    /// A request to the receiver to relay the stream to `origin`.
    pub fn relayed(service: ServiceName, origin: NodeId, deadline: Duration) -> Self {
        let direct = Self::direct(service, deadline);
        Self { target: Some(origin), hops: Hops::One, ..direct }
    }

    /// A request to the receiver itself, on behalf of the node with the credential `client`.
    pub fn carried(service: ServiceName, client: Credential, deadline: Duration) -> Self {
        Self { client: Some(Box::new(client)), ..Self::direct(service, deadline) }
    }

    /// How long the opener waits, capped at [`MAX_DEADLINE`].
    pub fn deadline(&self) -> Duration {
        Duration::from_millis(u64::from(self.deadline_ms)).min(MAX_DEADLINE)
    }

    /// The bytes on the wire.
    pub fn encode(&self) -> Vec<u8> {
        let version = if self.client.is_some() { VERSION_CARRIED } else { VERSION };
        let bytes = encode_body(&[version], self, self.client.as_deref());
        debug_assert!(bytes.len() <= MAX_HEADER_BYTES);
        bytes
    }

    /// Reads a header from the front of `bytes`. `Ok(None)` means that more bytes are needed;
    /// otherwise the header and how many bytes it took.
    ///
    /// # Errors
    /// [`BadHeader`] when no continuation of these bytes can be a header.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, BadHeader> {
        let Some((&version, rest)) = bytes.split_first() else { return Ok(None) };
        if ![VERSION, VERSION_CARRIED].contains(&version) {
            return Err(BadHeader::Version(version));
        }
        let read = decode_body::<Self>(rest, MAX_HEADER_BYTES - PREFIX_BYTES)?;
        let Some((header, rest, length)) = read else { return Ok(None) };
        let client = decode_client(rest)?;
        if client.is_some() != (version == VERSION_CARRIED) {
            return Err(BadHeader::Body);
        }
        Ok(Some((Self { client, ..header }, PREFIX_BYTES + length)))
    }
}

/// `front`, the length of the rest (2 bytes, big endian), the value in postcard, and the credential
/// if there is one.
pub(crate) fn encode_body(
    front: &[u8],
    value: &impl Serialize,
    client: Option<&Credential>,
) -> Vec<u8> {
    let mut body = postcard::to_allocvec(value).expect("plain data serialises");
    body.extend(client.iter().flat_map(|client| client.to_bytes()));
    let length = u16::try_from(body.len()).expect("messages are bounded");
    [front, &length.to_be_bytes(), &body].concat()
}

/// A value, the bytes behind it, and the length of both.
type Decoded<'a, T> = (T, &'a [u8], usize);

/// Reads a length of at most `most` bytes, and that much; `Ok(None)`: more bytes are needed.
pub(crate) fn decode_body<'a, T: Deserialize<'a>>(
    bytes: &'a [u8],
    most: usize,
) -> Result<Option<Decoded<'a, T>>, BadMessage> {
    let Some((length, rest)) = bytes.split_first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
    let length = usize::from(u16::from_be_bytes(*length));
    if length > most {
        return Err(BadMessage::TooLong(length));
    }
    let Some(body) = rest.get(..length) else { return Ok(None) };
    let (value, rest) = postcard::take_from_bytes(body).map_err(|_| BadMessage::Body)?;
    Ok(Some((value, rest, length)))
}

/// The credential behind a value, if there is one.
pub(crate) fn decode_client(bytes: &[u8]) -> Result<Option<Box<Credential>>, BadMessage> {
    if bytes.is_empty() {
        return Ok(None);
    }
    Credential::from_bytes(bytes).map(|it| Some(Box::new(it))).map_err(|_| BadMessage::Body)
}

/// Why bytes are not a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadMessage {
    /// Longer than allowed.
    #[error("a message of {0} bytes is too long")]
    TooLong(usize),
    /// A body that is not one.
    #[error("the message is malformed")]
    Body,
}

impl From<BadMessage> for BadHeader {
    fn from(why: BadMessage) -> Self {
        match why {
            BadMessage::TooLong(length) => Self::TooLong(length),
            BadMessage::Body => Self::Body,
        }
    }
}

/// Why bytes are not a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadHeader {
    /// A version that this program does not know.
    #[error("stream header version {0} is not supported; the peer may run a newer version")]
    Version(u8),
    /// A body longer than [`MAX_HEADER_BYTES`] allows.
    #[error("stream header of {0} bytes is too long")]
    TooLong(usize),
    /// A body that is not one.
    #[error("stream header body is malformed")]
    Body,
}

words! {
    /// The first byte that an origin sends back.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    #[repr(u8)]
    pub enum Answer {
        /// The instance is connected; its own bytes follow.
        Connected = 0 => "connected",
        /// This node does not offer that service.
        NoSuchService = 1 => "no-such-service",
        /// The peer's credential or the service's rules do not allow it.
        NotAllowed = 2 => "not-allowed",
        /// The instance refused the connection.
        Refused = 3 => "refused",
        /// The instance did not answer in time.
        TimedOut = 4 => "timed-out",
        /// A limit of this node is reached.
        Overloaded = 5 => "overloaded",
        /// The header was not understood.
        BadRequest = 6 => "bad-request",
        /// This node is leaving.
        Leaving = 7 => "leaving",
        /// The instance could not be dialled for another reason.
        Failed = 8 => "failed",
        /// This node does not relay, or does not reach the origin itself.
        NoPath = 9 => "no-path",
    }
}

impl Answer {
    /// The byte on the wire.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// Decodes the byte; `None` if this version does not know it.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|answer| answer.code() == code)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> Header {
        let service = "kube-apiserver".parse().expect("a valid name");
        Header::direct(service, Duration::from_secs(5))
    }

    #[test]
    fn round_trips_and_asks_for_more_until_whole() {
        let mut bytes = sample().encode();
        for cut in 0..bytes.len() {
            assert_eq!(Header::decode(&bytes[..cut]), Ok(None), "cut at {cut}");
        }
        let whole = bytes.len();
        bytes.extend_from_slice(b"\x16\x03\x01client hello");
        assert_eq!(Header::decode(&bytes), Ok(Some((sample(), whole))));
    }

    #[test]
    fn refuses_other_versions_long_bodies_and_trailing_bytes() {
        let mut bytes = sample().encode();
        bytes[0] = 9;
        assert_eq!(Header::decode(&bytes), Err(BadHeader::Version(9)));
        assert_eq!(Header::decode(&[VERSION, 0xff, 0xff]), Err(BadHeader::TooLong(0xffff)));
        let mut bytes = sample().encode();
        bytes[2] += 1;
        bytes.push(0);
        assert_eq!(Header::decode(&bytes), Err(BadHeader::Body));
    }

    #[test]
    fn a_carried_stream_brings_the_credential_of_its_client() {
        let client = crate::testing::credential(4, "node");
        let header = Header::carried(sample().service, client.clone(), sample().deadline());
        let bytes = header.encode();
        assert!(bytes.len() <= MAX_HEADER_BYTES);
        for cut in 0..bytes.len() {
            assert_eq!(Header::decode(&bytes[..cut]), Ok(None), "cut at {cut}");
        }
        let (read, used) = Header::decode(&bytes).expect("a header").expect("it is whole");
        assert_eq!((read.client.as_deref(), used), (Some(&client), bytes.len()));
        // Without the credential, with half of it, and with one that the version does not have.
        let mut plain = sample().encode();
        plain[0] = VERSION_CARRIED;
        assert_eq!(Header::decode(&plain), Err(BadHeader::Body));
        let mut other = bytes.clone();
        other[0] = VERSION;
        assert_eq!(Header::decode(&other), Err(BadHeader::Body));
        let half = u16::try_from(bytes.len() - PREFIX_BYTES - 9).expect("small").to_be_bytes();
        other.clone_from(&bytes);
        other[1..3].copy_from_slice(&half);
        assert_eq!(Header::decode(&other), Err(BadHeader::Body));
    }

    #[test]
    fn answers_are_distinct_and_round_trip() {
        for answer in Answer::ALL {
            assert_eq!(Answer::from_code(answer.code()), Some(answer));
        }
        assert_eq!(Answer::from_code(200), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_value(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = Header::decode(&bytes);
        }

        #[test]
        fn any_body_is_a_value(body in proptest::collection::vec(any::<u8>(), 0..200)) {
            let version = if body.len() % 2 == 0 { VERSION } else { VERSION_CARRIED };
            let mut bytes = vec![version, 0, u8::try_from(body.len()).expect("below 200")];
            bytes.extend_from_slice(&body);
            if let Ok(Some((header, used))) = Header::decode(&bytes) {
                prop_assert!(used <= bytes.len());
                prop_assert!(header.deadline() <= MAX_DEADLINE);
            }
        }
    }
}
