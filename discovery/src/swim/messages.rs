//! The bytes of a membership datagram: header, then a count and that many claims.

use meshport_config::NodeId;
use serde::{Deserialize, Serialize};

use super::ENVELOPE;
use crate::state::Life;
use crate::wire::{Claim, FORMER_MAX_DATAGRAM, Short};

/// A node in one of its lives, for messages in which the receiver cannot know which node is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RawId(pub(crate) [u8; 32], pub(crate) Life);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum RawMessage {
    Ping(u8),
    Ack(u8),
    PingReq(RawId, u8),
    IndirectPing(RawId, u8),
    IndirectAck(RawId, u8),
    ForwardedAck(RawId, u8),
    Announce,
    Feed,
    Gossip,
    Broadcast,
    TurnUndead,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RawHeader {
    pub(crate) from: Life,
    pub(crate) incarnation: u16,
    pub(crate) to: Life,
    pub(crate) message: RawMessage,
}

/// Why a message of the protocol cannot be written or read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadFormat {
    #[error("no room left in the packet")]
    Room,
    #[error("not a membership packet")]
    Malformed,
}

/// A membership datagram that does not parse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BadSwim;

impl RawId {
    pub(crate) fn short(&self) -> Short {
        Short::of(&NodeId::from_bytes(self.0))
    }
}

impl RawMessage {
    /// The third node, if there is one.
    pub(crate) fn third(&mut self) -> Option<&mut RawId> {
        match self {
            Self::PingReq(third, _)
            | Self::IndirectPing(third, _)
            | Self::IndirectAck(third, _)
            | Self::ForwardedAck(third, _) => Some(third),
            Self::Ping(_)
            | Self::Ack(_)
            | Self::Announce
            | Self::Feed
            | Self::Gossip
            | Self::Broadcast
            | Self::TurnUndead => None,
        }
    }
}

/// The same message with another header; `None` if it would not fit.
pub(crate) fn rewrite(header: &RawHeader, rest: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = postcard::to_stdvec(header).ok()?;
    bytes.extend_from_slice(rest);
    (bytes.len() + ENVELOPE <= FORMER_MAX_DATAGRAM).then_some(bytes)
}

/// The same message to a member in another life; `None` if it would not fit.
pub(crate) fn readdress(header: &RawHeader, to: Life, rest: &[u8]) -> Option<Vec<u8>> {
    rewrite(&RawHeader { to, ..*header }, rest)
}

/// The same message with the first few of its claims.
pub(crate) fn shorten(header: &RawHeader, rest: &[u8], most: usize) -> Vec<u8> {
    let mut bytes = postcard::to_stdvec(header).unwrap_or_default();
    let mut claims = read_claims(rest).unwrap_or_default();
    claims.truncate(most);
    bytes.extend(u16::try_from(claims.len()).unwrap_or(0).to_be_bytes());
    for claim in claims {
        bytes.extend(postcard::to_stdvec(&claim).unwrap_or_default());
    }
    bytes
}

/// Whether it is gossip without claims.
pub(crate) fn is_empty_gossip(bytes: &[u8]) -> bool {
    postcard::take_from_bytes::<RawHeader>(bytes).is_ok_and(|(header, rest)| {
        header.message == RawMessage::Gossip && matches!(rest, [] | [0, 0])
    })
}

pub(crate) fn read_claims(mut rest: &[u8]) -> Result<Vec<(Short, Claim)>, BadSwim> {
    if rest.is_empty() {
        return Ok(Vec::new());
    }
    let (count, tail) = rest.split_first_chunk().ok_or(BadSwim)?;
    rest = tail;
    let mut claims = Vec::new();
    for _ in 0..u16::from_be_bytes(*count) {
        let (claim, tail) =
            postcard::take_from_bytes::<(Short, Claim)>(rest).map_err(|_| BadSwim)?;
        rest = tail;
        claims.push(claim);
    }
    if rest.is_empty() { Ok(claims) } else { Err(BadSwim) }
}
