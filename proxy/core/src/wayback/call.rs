//! The start of a stream of the way back, and the answer to it.
//!
//! Layout as of a session's header ([`crate::wire`]): version (1 byte, [`VERSION`]), body length (2
//! bytes, big endian), body (postcard); after the body, the credential of the origin for which a
//! relay carries it. A node of an earlier version refuses the version with `bad-request`. The
//! answer is the byte of a session's answer, followed by the code of a [`Refusal`] unless it is
//! `connected`.

use std::net::SocketAddr;
use std::time::Duration;

use meshport_config::{Credential, MAX_CREDENTIAL_BYTES, NodeId};
use serde::{Deserialize, Serialize};

use super::refusal::Refusal;
use crate::wire::{Answer, BadHeader, Hops, MAX_DEADLINE, decode_body, decode_client, encode_body};

/// First byte of a stream of the way back; 1 and 2 begin sessions, 3 a question, 4 a request for a
/// renewal.
pub const VERSION: u8 = 5;
/// Version and length.
const PREFIX_BYTES: usize = 3;
/// Space for a NodeId, an address and small numbers, in bytes: twice what they take.
const MAX_PLAIN_BYTES: usize = 192;
/// The longest start of a stream, in bytes.
pub const MAX_CALL_BYTES: usize = MAX_PLAIN_BYTES + MAX_CREDENTIAL_BYTES;

/// The target to dial at the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Want {
    /// Its own kubelet, on this port.
    Kubelet(u16),
    /// One of its own pods.
    Pod(SocketAddr),
    /// A service of the cluster; requires the role `egress`.
    Service(SocketAddr),
}

impl Want {
    /// The word used in labels and logs.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Kubelet(_) => "kubelet",
            Self::Pod(_) => "pod",
            Self::Service(_) => "service",
        }
    }
}

/// The request of a stream's opener.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// The only node that may dial.
    pub node: NodeId,
    /// The target that it should dial.
    pub want: Want,
    /// Whether the receiver may relay it to that node.
    pub hops: Hops,
    /// How long the opener waits for the answer, in milliseconds.
    deadline_ms: u32,
    /// The node for which a relay carries it. Well formed, not verified.
    #[serde(skip)]
    pub client: Option<Box<Credential>>,
}

impl Call {
    /// A call of the receiver itself, to be answered within `deadline` (capped at
    /// [`MAX_DEADLINE`]).
    pub fn direct(node: NodeId, want: Want, deadline: Duration) -> Self {
        let deadline_ms = deadline.min(MAX_DEADLINE).as_millis();
        let deadline_ms = u32::try_from(deadline_ms).expect("a minute in milliseconds fits");
        Self { node, want, hops: Hops::None, deadline_ms, client: None }
    }

    /// A call that the receiver should relay to `node`.
    pub fn relayed(node: NodeId, want: Want, deadline: Duration) -> Self {
        Self { hops: Hops::One, ..Self::direct(node, want, deadline) }
    }

    /// The call as a relay passes it on, for the node with the credential `client`.
    pub fn carried(&self, client: Credential) -> Self {
        Self { hops: Hops::None, client: Some(Box::new(client)), ..self.clone() }
    }

    /// How long the opener waits, capped at [`MAX_DEADLINE`].
    pub fn deadline(&self) -> Duration {
        Duration::from_millis(u64::from(self.deadline_ms)).min(MAX_DEADLINE)
    }

    /// The bytes on the wire.
    pub fn encode(&self) -> Vec<u8> {
        let bytes = encode_body(&[VERSION], self, self.client.as_deref());
        debug_assert!(bytes.len() <= MAX_CALL_BYTES);
        bytes
    }

    /// Reads a call from the front of `bytes`. `Ok(None)` means that more bytes are needed;
    /// otherwise the call and how many bytes it took.
    ///
    /// # Errors
    /// [`BadHeader`] when no continuation of these bytes can be a call.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, BadHeader> {
        let Some((&version, rest)) = bytes.split_first() else { return Ok(None) };
        if version != VERSION {
            return Err(BadHeader::Version(version));
        }
        let read = decode_body::<Self>(rest, MAX_CALL_BYTES - PREFIX_BYTES)?;
        let Some((call, rest, length)) = read else { return Ok(None) };
        Ok(Some((Self { client: decode_client(rest)?, ..call }, PREFIX_BYTES + length)))
    }
}

/// The answer of the node, or of a relay, as bytes.
pub fn answer(outcome: Result<(), Refusal>) -> Vec<u8> {
    match outcome {
        Ok(()) => vec![Answer::Connected.code()],
        Err(why) => vec![answer_for(why).code(), why.code()],
    }
}

/// The byte that represents a refusal in counters of streams.
pub fn answer_for(why: Refusal) -> Answer {
    match why {
        Refusal::NoPath | Refusal::Silent => Answer::NoPath,
        Refusal::Connection => Answer::Refused,
        Refusal::Timeout => Answer::TimedOut,
        Refusal::Failed => Answer::Failed,
        Refusal::Overloaded => Answer::Overloaded,
        Refusal::Leaving => Answer::Leaving,
        _ => Answer::NotAllowed,
    }
}

/// Reads an answer from the front of `bytes`; returns it and its length. `None` means that more
/// bytes are needed, unless this was the end of the stream.
pub fn read_answer(bytes: &[u8], is_end: bool) -> Option<(Result<(), Refusal>, usize)> {
    let (&first, rest) = bytes.split_first()?;
    match (Answer::from_code(first), rest.first()) {
        (Some(Answer::Connected), _) => Some((Ok(()), 1)),
        // The answer of a version without a way back.
        (Some(Answer::BadRequest), _) => Some((Err(Refusal::Older), 1)),
        (_, Some(&code)) => Some((Err(Refusal::from_code(code)), 2)),
        (_, None) if is_end => Some((Err(Refusal::Failed), 1)),
        (_, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::credential;
    use crate::wire::Header;

    fn sample() -> Call {
        let pod = "[fd00:10:244::7]:8443".parse().expect("an address");
        Call::direct(credential(7, "node").node, Want::Pod(pod), Duration::from_secs(4))
    }

    #[test]
    fn calls_round_trip_in_pieces() {
        let client = credential(4, "origin:kube-apiserver");
        let relayed = Call::relayed(sample().node, Want::Kubelet(10_250), Duration::from_secs(1));
        for call in [sample(), relayed.clone(), relayed.carried(client)] {
            let mut bytes = call.encode();
            for cut in 0..bytes.len() {
                assert_eq!(Call::decode(&bytes[..cut]), Ok(None), "cut at {cut}");
            }
            let whole = bytes.len();
            bytes.extend_from_slice(b"\x16\x03\x01");
            assert_eq!(Call::decode(&bytes), Ok(Some((call, whole))));
        }
    }

    #[test]
    fn a_version_without_a_way_back_refuses_the_version() {
        assert_eq!(Header::decode(&sample().encode()), Err(BadHeader::Version(VERSION)));
        let [older, refused] = [Answer::BadRequest, Answer::Refused].map(|it| [it.code()]);
        assert_eq!(read_answer(&older, false), Some((Err(Refusal::Older), 1)));
        assert_eq!(read_answer(&refused, false), None);
        assert_eq!(read_answer(&refused, true), Some((Err(Refusal::Failed), 1)));
    }

    #[test]
    fn answers_round_trip() {
        assert_eq!(read_answer(&answer(Ok(())), false), Some((Ok(()), 1)));
        for why in [Refusal::Pod, Refusal::NotOrigin, Refusal::Connection, Refusal::NoPath] {
            assert_eq!(read_answer(&answer(Err(why)), false), Some((Err(why), 2)));
        }
        assert_eq!(read_answer(&[], true), None);
    }

    #[test]
    fn what_is_long_or_no_call_is_refused() {
        assert_eq!(Call::decode(&[VERSION, 0xff, 0xff]), Err(BadHeader::TooLong(0xffff)));
        assert_eq!(Call::decode(&[1]), Err(BadHeader::Version(1)));
        let mut bytes = sample().encode();
        // A kind of target that a later version adds.
        bytes[PREFIX_BYTES + 32] = 9;
        assert_eq!(Call::decode(&bytes), Err(BadHeader::Body));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_value(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = Call::decode(&bytes);
            let _ = Call::decode(&[&[VERSION, 0, 60], &bytes[..]].concat());
            let _ = read_answer(&bytes, false);
        }
    }
}
