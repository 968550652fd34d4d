//! The view of a node, read through the mesh by an operator: `meshport dashboard`.
//!
//! A request travels at the start of a stream like the header of a session ([`crate::wire`]):
//! version (1 byte, [`VERSION`]), length of the rest (2 bytes, big endian), body (postcard), and,
//! if a member forwards the request, the operator's credential. The reply is the byte of a
//! session's answer and, after [`Answer::Connected`](crate::wire::Answer), its length (4 bytes), a
//! tag (8 bytes) and the JSON document of `/view`; the document is omitted if the requester has the
//! one with this tag. An earlier release refuses the request's version with `bad-request`.
//!
//! Only the role `operator` may ask. Any member that runs a daemon forwards an operator's request
//! to another member, over one hop at most: requests are small, and an operator's machine has
//! tunnels to a few members only. The operator's credential that it presents is unproven, which
//! suffices: a view contains no secret, and members know most of it themselves.

use std::sync::Arc;

use meshport_config::{Credential, MAX_CREDENTIAL_BYTES, NodeId, Role, UnixSeconds};
use serde::{Deserialize, Serialize};

use crate::access::Denial;
use crate::egress::{Credentials, shown};
use crate::wire::{BadHeader, Hops, decode_body, decode_client, encode_body};

/// First byte of a request; 1 and 2 begin sessions, 3 a question, 4 a renewal, 5 a stream of the
/// way back.
pub const VERSION: u8 = 6;
/// Version and length.
const PREFIX_BYTES: usize = 3;
/// Room for a NodeId and small numbers, in bytes: twice what they take.
const MAX_PLAIN_BYTES: usize = 128;
/// The longest request, in bytes.
pub const MAX_REQUEST_BYTES: usize = PREFIX_BYTES + MAX_PLAIN_BYTES + MAX_CREDENTIAL_BYTES;
/// Length and tag of a reply.
const REPLY_PREFIX_BYTES: usize = 12;
/// The longest reply after its first byte, in bytes: a view of 1,000 nodes takes less than a tenth.
pub const MAX_REPLY_BYTES: usize = 4 << 20;

/// Distinguishes documents: those with equal tags differ only in their time. No document has 0.
pub type Tag = u64;

/// A request for a view.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The node whose view is requested; `None` for the receiver's.
    pub node: Option<NodeId>,
    /// Whether the receiver may forward the request to that node.
    pub hops: Hops,
    /// The tag of the requester's document; 0 for none.
    pub tag: Tag,
    /// The operator for whom a member forwards it. Well formed, not verified.
    #[serde(skip)]
    pub client: Option<Box<Credential>>,
}

impl Request {
    /// A request to the receiver itself, or to a node that it reaches.
    pub fn new(node: Option<NodeId>, tag: Tag) -> Self {
        let hops = if node.is_some() { Hops::One } else { Hops::None };
        Self { node, hops, tag, client: None }
    }

    /// The request as a member forwards it, for the operator with the credential `client`.
    pub fn carried(&self, client: Credential) -> Self {
        Self { hops: Hops::None, client: Some(Box::new(client)), ..self.clone() }
    }

    /// The bytes on the wire.
    pub fn encode(&self) -> Vec<u8> {
        let bytes = encode_body(&[VERSION], self, self.client.as_deref());
        debug_assert!(bytes.len() <= MAX_REQUEST_BYTES);
        bytes
    }

    /// Reads a request from the front of `bytes`; `Ok(None)` means that more bytes are needed.
    ///
    /// # Errors
    /// [`BadHeader`] when no continuation of these bytes can be a request.
    pub fn decode(bytes: &[u8]) -> Result<Option<Self>, BadHeader> {
        let Some((&version, rest)) = bytes.split_first() else { return Ok(None) };
        if version != VERSION {
            return Err(BadHeader::Version(version));
        }
        let read = decode_body::<Self>(rest, MAX_REQUEST_BYTES - PREFIX_BYTES)?;
        let Some((request, rest, _)) = read else { return Ok(None) };
        Ok(Some(Self { client: decode_client(rest)?, ..request }))
    }
}

/// A reply, after the byte of the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The tag of the current document; 0 if there is none.
    pub tag: Tag,
    /// The document; `None` if the requester has it.
    pub document: Option<String>,
}

/// Why bytes are not a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadReply {
    /// Longer than [`MAX_REPLY_BYTES`].
    #[error("a view of {0} bytes is too long")]
    TooLong(usize),
    /// Not text.
    #[error("the view is malformed")]
    Malformed,
}

impl Reply {
    /// The reply to a requester that has the document `tag`, if the current one has the tag `now`.
    pub fn to(tag: Tag, now: Tag, document: String) -> Self {
        let is_known = now != 0 && tag == now;
        Self { tag: now, document: Some(document).filter(|_| !is_known) }
    }

    /// The bytes on the wire, after the byte of the answer; none if they are too many.
    pub fn encode(&self) -> Option<Vec<u8>> {
        let document = self.document.as_deref().unwrap_or_default().as_bytes();
        let length = u32::try_from(document.len()).ok()?;
        let bytes = [&length.to_be_bytes()[..], &self.tag.to_be_bytes(), document].concat();
        Some(bytes).filter(|bytes| bytes.len() <= MAX_REPLY_BYTES)
    }

    /// The length of a reply that begins with these bytes; none if they are too few.
    ///
    /// # Errors
    /// [`BadReply::TooLong`].
    pub fn length(bytes: &[u8]) -> Result<Option<usize>, BadReply> {
        let Some(length) = bytes.first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_be_bytes(*length) as usize;
        let length = length.saturating_add(REPLY_PREFIX_BYTES);
        if length > MAX_REPLY_BYTES { Err(BadReply::TooLong(length)) } else { Ok(Some(length)) }
    }

    /// Reads a whole reply from the front of `bytes`; `Ok(None)` means that more are needed.
    ///
    /// # Errors
    /// [`BadReply`] when no continuation of these bytes can be a reply.
    pub fn decode(bytes: &[u8]) -> Result<Option<Self>, BadReply> {
        let Some(length) = Self::length(bytes)? else { return Ok(None) };
        let Some(whole) = bytes.get(..length) else { return Ok(None) };
        let (tag, document) = whole[4..].split_first_chunk::<8>().ok_or(BadReply::Malformed)?;
        let document = std::str::from_utf8(document).map_err(|_| BadReply::Malformed)?;
        let document = Some(document.to_owned()).filter(|it| !it.is_empty());
        Ok(Some(Self { tag: Tag::from_be_bytes(*tag), document }))
    }
}

/// Whether the holder of a credential may read views.
pub fn may_view(holder: &Credential, now: UnixSeconds) -> Result<(), Denial> {
    match holder.roles.contains(&Role::Operator) {
        _ if holder.expires_at <= now => Err(Denial::Ended),
        true => Ok(()),
        false => Err(Denial::NoOperator),
    }
}

/// The credential of the operator who asks: the peer's own, or that of the `client` for whom it
/// forwards the request.
///
/// # Errors
/// [`Denial`] if the peer is unknown or may not forward requests, if it presents an invalid
/// credential, and as [`may_view`].
pub fn holder(
    peer: &NodeId,
    client: Option<&Credential>,
    credentials: &impl Credentials,
    now: UnixSeconds,
) -> Result<Arc<Credential>, Denial> {
    let own = credentials.of_peer(peer).ok_or(Denial::Unknown)?;
    let holder = match client {
        None => own,
        Some(_) if own.expires_at <= now => return Err(Denial::Ended),
        Some(_) if own.roles.is_leaf() => return Err(Denial::NoRelay),
        Some(client) => shown(client, credentials)?,
    };
    may_view(&holder, now).map(|()| holder)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{WALL, credential};

    #[test]
    fn requests_round_trip_in_pieces() {
        let node = credential(7, "node").node;
        let asked = Request::new(Some(node), 0x0102_0304_0506_0708);
        for request in
            [Request::new(None, 0), asked.clone(), asked.carried(credential(4, "operator"))]
        {
            let bytes = request.encode();
            for cut in 0..bytes.len() {
                assert_eq!(Request::decode(&bytes[..cut]), Ok(None), "cut at {cut}");
            }
            assert_eq!(Request::decode(&bytes), Ok(Some(request)));
        }
        assert_eq!(Request::decode(&[VERSION, 0xff, 0xff]), Err(BadHeader::TooLong(0xffff)));
        assert_eq!(Request::decode(&[1]), Err(BadHeader::Version(1)));
    }

    #[test]
    fn a_document_that_the_asker_has_is_left_out() {
        let whole = Reply::to(0, 7, "{}".into());
        assert_eq!(whole.document.as_deref(), Some("{}"));
        assert_eq!(Reply::to(7, 7, "{}".into()).document, None);
        assert_eq!(Reply::to(0, 0, "{}".into()).document.as_deref(), Some("{}"));
        for reply in [whole, Reply::to(7, 7, "{}".into())] {
            let bytes = reply.encode().expect("it is short");
            for cut in 0..bytes.len() {
                assert_eq!(Reply::decode(&bytes[..cut]), Ok(None), "cut at {cut}");
            }
            assert_eq!(Reply::decode(&bytes), Ok(Some(reply)));
        }
    }

    #[test]
    fn a_long_reply_is_neither_written_nor_read() {
        let reply = Reply { tag: 1, document: Some("x".repeat(MAX_REPLY_BYTES)) };
        assert_eq!(reply.encode(), None);
        assert_eq!(Reply::decode(&[0xff; 12]), Err(BadReply::TooLong(0xffff_ffff + 12)));
        let not_text = [&[0, 0, 0, 1][..], &[0; 8], &[0xff]].concat();
        assert_eq!(Reply::decode(&not_text), Err(BadReply::Malformed));
    }

    /// Peers 4 and up, with these roles.
    struct Mesh(&'static [&'static str]);

    impl Credentials for Mesh {
        fn of_peer(&self, node: &NodeId) -> Option<Arc<Credential>> {
            let all = (4..).zip(self.0).map(|(number, roles)| credential(number, roles));
            all.map(Arc::new).find(|it| it.node == *node)
        }

        fn known(&self, node: &NodeId) -> Option<Arc<Credential>> {
            self.of_peer(node)
        }

        fn is_valid(&self, credential: &Credential) -> bool {
            credential.expires_at > WALL
        }
    }

    #[test]
    fn only_an_operator_reads_views_and_only_daemons_carry_its_requests() {
        let mesh = Mesh(&["operator", "node", "origin:kube-apiserver", "operator"]);
        let by = |number: u8, client: Option<&Credential>| {
            let peer = credential(number, "node").node;
            holder(&peer, client, &mesh, WALL).map(|it| it.node)
        };
        let operator = credential(4, "operator");
        assert_eq!(by(4, None), Ok(operator.node));
        assert_eq!(by(5, None), Err(Denial::NoOperator));
        assert_eq!(by(6, None), Err(Denial::NoOperator));
        assert_eq!(by(9, None), Err(Denial::Unknown));
        for carrier in [5, 6] {
            assert_eq!(by(carrier, Some(&operator)), Ok(operator.node));
            let other = credential(8, "node");
            assert_eq!(by(carrier, Some(&other)), Err(Denial::NoOperator));
        }
        assert_eq!(by(7, Some(&operator)), Err(Denial::NoRelay));
        let mut ended = credential(8, "operator");
        ended.expires_at = WALL;
        assert_eq!(by(5, Some(&ended)), Err(Denial::BadClient));
        assert_eq!(may_view(&ended, WALL), Err(Denial::Ended));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_value(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = Request::decode(&bytes);
            let _ = Request::decode(&[&[VERSION, 0, 60], &bytes[..]].concat());
            let _ = Reply::decode(&bytes);
            let _ = Reply::decode(&[&[0, 0, 0, 30], &bytes[..]].concat());
        }
    }
}
