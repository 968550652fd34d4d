//! Renewal of nodes' credentials by members with a mandate.
//!
//! On a node, [`Seeker`] decides when to ask and which issuer; on a member with a mandate,
//! [`Issuer`] decides what to sign. The request is sent at the start of a stream, like a question
//! of `doctor` ([`crate::inquiry`]): version (1 byte, [`VERSION`]), body length (2 bytes, big
//! endian), body (postcard). The answer is the byte of a session's answer, and after
//! [`Answer::Connected`](crate::wire::Answer) the length and the body of a [`Reply`]. Requests go
//! only to members with the role `issuer`; an earlier release refuses them with `bad-request`.
//! Bytes of a body after the known fields are ignored, so that later versions may append fields.
//!
//! If an issuer does not answer directly, up to [`MAX_RELAYS`] members with the role `relay` are
//! asked to pass the request on, one hop as with sessions. A relay can withhold it, make one for
//! any node at any time, and forge answers, but gains nothing: the issuer signs only the next
//! credential for the same keys, at most as often as for the node itself; it counts only with the
//! signature of the node's own key, and the node accepts nothing else ([`check_issued`]).

mod issuer;
mod seeker;
#[cfg(test)]
mod tests;

use meshport_config::{Credential, Issued, MAX_CREDENTIAL_BYTES, NodeId, UnixSeconds};
use serde::{Deserialize, Serialize};

use crate::wire::{BadMessage, Hops, decode_body, encode_body};

pub use self::issuer::{Asked, Issuer, MAX_GIVEN};
pub use self::seeker::{ASK_LIMIT, MAX_ISSUERS, STORE_LIMIT, Seeker};

/// Maximum relays asked to pass a request on to one issuer.
pub const MAX_RELAYS: usize = 2;
/// First byte of a request to an issuer, which has only `base`; 1 and 2 begin sessions, 3 a
/// question.
pub const VERSION: u8 = 4;
/// First byte of a request through a relay, which has all fields. Releases that do not relay
/// renewals refuse it instead of mistaking it for the relay's own.
pub const RELAYED_VERSION: u8 = 7;
/// Version and length.
const PREFIX_BYTES: usize = 3;
/// The longest body of a request, in bytes: two credentials, and space for later versions.
pub const MAX_REQUEST_BYTES: usize = 2 * MAX_CREDENTIAL_BYTES + 256;
/// The longest body of a reply, in bytes: a credential, and the same space.
pub const MAX_REPLY_BYTES: usize = MAX_CREDENTIAL_BYTES + 256;

/// A credential is renewed when a third of its lifetime is left.
const DUE_PART: u64 = 3;
/// Maximum warning time: enough for a manual renewal.
const MAX_WARNING_S: u64 = 30 * 86_400;

/// Requests the next credential of the node at the other end of the tunnel, whose current one was
/// presented in the tunnel, or of `client`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The last credential that the authority or an invite signed for it, encoded; empty if that is
    /// the current one. It bounds every renewal, and shows which invite the node joined with.
    pub base: Vec<u8>,
    /// The issuer that the receiver must pass it on to; `None` if that is the receiver.
    pub issuer: Option<NodeId>,
    /// The current credential of the node for which a relay passes it on, encoded; empty for the
    /// relay's own request. It is unproven.
    pub client: Vec<u8>,
}

/// The result of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply(pub Result<Vec<u8>, Refusal>);

#[derive(Serialize, Deserialize)]
struct ReplyBody {
    /// 0 for none.
    refusal: u8,
    /// The issued credential, encoded.
    issued: Vec<u8>,
}

macro_rules! refusals {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal;)*) => {
        /// Why an issuer signs nothing.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
        pub enum Refusal {
            $($(#[$doc])* #[error($text)] $name = $code,)*
        }

        impl Refusal {
            const ALL: &[Self] = &[$(Self::$name),*];
        }
    };
}

refusals! {
    /// It has no mandate.
    NoMandate = 1, "it has no mandate";
    /// Its mandate has expired, has not begun, or was revoked.
    MandateEnded = 2, "its mandate is not in force";
    /// The mandate does not cover these roles or this site.
    Outside = 3, "its mandate does not cover the roles or the site of this node";
    /// The node, or the invite that it joined with, is revoked.
    Revoked = 4, "this node or the invite that it joined with is revoked";
    /// The credential that it joined with is missing or does not match the current one.
    Base = 5, "the credential that this node joined with is missing or does not match";
    /// The current credential has expired.
    Ended = 6, "the current credential has expired";
    /// The renewed one would expire no later than the current one.
    NothingGained = 7, "what it would sign expires no later than the current credential";
    /// It has just signed one for this node.
    TooOften = 8, "it renewed this credential moments ago";
    /// The clocks of both differ too much.
    Clock = 9, "its clock disagrees with the dates in the current credential";
    /// The credential that a relay presents is not the current one.
    Former = 10, "it knows a later credential of this node";
    /// A reason of a later version.
    Other = 255, "it refuses for a reason that this version does not know";
}

impl Refusal {
    fn from_code(code: u8) -> Self {
        Self::ALL.iter().copied().find(|it| *it as u8 == code).unwrap_or(Self::Other)
    }
}

/// Why a node has no renewal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Setback {
    /// No present member has the role.
    #[error("no member with the role issuer is known to be up")]
    NoIssuer,
    /// An issuer refused, with its reason.
    #[error("{0}")]
    Refused(#[from] Refusal),
    /// An issuer did not answer, or not with a valid message.
    #[error("{0}")]
    Silent(String),
    /// The credential that an issuer signed is not the next one of this node.
    #[error("what it signed is not usable here: {0}")]
    Unfit(String),
    /// The renewed credential could not be stored.
    #[error("the renewed credential cannot be stored: {0}")]
    NotStored(String),
}

impl Request {
    /// A request to the receiver itself.
    pub fn new(base: Vec<u8>) -> Self {
        Self { base, issuer: None, client: Vec::new() }
    }

    /// The request as sent to a relay, for this issuer.
    pub fn through_relay(&self, issuer: NodeId) -> Self {
        Self { issuer: Some(issuer), ..self.clone() }
    }

    /// The request as a relay passes it on for the holder of a credential.
    pub fn carried(&self, client: &Credential) -> Self {
        Self { issuer: None, client: client.to_bytes(), ..self.clone() }
    }

    /// Whether a relay may pass it on: once.
    pub fn hops(&self) -> Hops {
        if self.client.is_empty() { Hops::One } else { Hops::None }
    }

    /// The bytes on the wire.
    pub fn encode(&self) -> Vec<u8> {
        let is_direct = self.issuer.is_none() && self.client.is_empty();
        match is_direct {
            true => encode_body(&[VERSION], &self.base, None),
            false => encode_body(&[RELAYED_VERSION], self, None),
        }
    }

    /// Reads a request from the front of `bytes`, of which the first is [`VERSION`] or
    /// [`RELAYED_VERSION`]. `Ok(None)` means that more bytes are needed.
    ///
    /// # Errors
    /// [`BadMessage`] when no continuation of these bytes can be a request.
    pub fn decode(bytes: &[u8]) -> Result<Option<Self>, BadMessage> {
        match bytes.split_first() {
            None => Ok(None),
            Some((&VERSION, rest)) => {
                Ok(decode_body(rest, MAX_REQUEST_BYTES)?.map(|(base, ..)| Self::new(base)))
            }
            Some((&RELAYED_VERSION, rest)) => {
                Ok(decode_body(rest, MAX_REQUEST_BYTES)?.map(|(request, ..)| request))
            }
            Some(_) => Err(BadMessage::Body),
        }
    }
}

impl Reply {
    /// The bytes on the wire, behind the byte of the answer.
    pub fn encode(&self) -> Vec<u8> {
        let body = match &self.0 {
            Ok(issued) => ReplyBody { refusal: 0, issued: issued.clone() },
            Err(refusal) => ReplyBody { refusal: *refusal as u8, issued: Vec::new() },
        };
        encode_body(&[], &body, None)
    }

    /// Reads a reply behind the byte of the answer; `Ok(None)` means that more bytes are needed.
    ///
    /// # Errors
    /// [`BadMessage`] when no continuation of these bytes can be a reply.
    pub fn decode(bytes: &[u8]) -> Result<Option<Self>, BadMessage> {
        let read = decode_body::<ReplyBody>(bytes, MAX_REPLY_BYTES)?;
        Ok(read.map(|(body, ..)| match body.refusal {
            0 => Self(Ok(body.issued)),
            code => Self(Err(Refusal::from_code(code))),
        }))
    }

    /// The bytes of a whole reply at most, with their prefix.
    pub const MAX_BYTES: usize = PREFIX_BYTES + MAX_REPLY_BYTES;
}

/// Whether the node may sign what an issuer signed: the same node, for longer. Anything else is not
/// a renewal.
///
/// # Errors
/// [`Setback::Unfit`].
pub fn check_issued(own: &Credential, issued: &Issued) -> Result<(), Setback> {
    let next = issued.content();
    let unfit = |what: &str| Err(Setback::Unfit(what.to_owned()));
    let is_same = (&next.mesh, &next.node, &next.record_key, &next.name, &next.site, &next.roles)
        == (&own.mesh, &own.node, &own.record_key, &own.name, &own.site, &own.roles)
        && next.succession == own.succession;
    if !is_same {
        return unfit("node, name, site or roles differ");
    }
    if next.issued_at <= own.issued_at {
        return unfit("it is dated before the current credential");
    }
    if next.expires_at <= own.expires_at {
        return unfit("it expires no later than the current credential");
    }
    Ok(())
}

/// [`check_issued`] for an answer through a relay. A relay could make requests early, keep the
/// answers and hand out old ones, so an answer that is already due for the next renewal is refused.
///
/// # Errors
/// [`Setback::Unfit`].
pub fn check_relayed(own: &Credential, issued: &Issued, wall: UnixSeconds) -> Result<(), Setback> {
    check_issued(own, issued)?;
    let next = issued.content();
    let life_s = life_s(next.issued_at, next.expires_at);
    if wall.saturating_add(life_s / DUE_PART) >= next.expires_at {
        return Err(Setback::Unfit("it is due for the next renewal already".to_owned()));
    }
    Ok(())
}

/// How long before its expiry a credential causes a warning, in seconds: a quarter of its lifetime,
/// when issuers have failed to renew it for a while, and at most 30 days.
pub fn warning_s(own: &Credential) -> u64 {
    (life_s(own.issued_at, own.expires_at) / 4).min(MAX_WARNING_S)
}

fn life_s(issued_at: UnixSeconds, expires_at: UnixSeconds) -> u64 {
    expires_at.seconds_since(issued_at)
}
