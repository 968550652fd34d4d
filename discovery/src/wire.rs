//! The one datagram format of discovery: a version byte, a kind byte, a postcard body.
//!
//! Every message is made to fit one datagram of [`MAX_DATAGRAM`] bytes and is read without
//! allocating more than a small multiple of its size. Bytes that do not parse, or have trailing
//! data, are an error value. Nodes are identified by the first eight bytes of their id if the
//! reader must know them anyway; ids are public keys, so these bytes are practically random.

use meshport_config::{NodeId, ServiceName};
use serde::{Deserialize, Serialize};

use crate::state::{Life, Revision};

/// Bytes of the largest datagram that is made here: with all headers no more than the smallest MTU
/// of IPv6, 1,280.
pub const MAX_DATAGRAM: usize = 1152;
/// Bytes of the largest datagram that the release before makes: it is read, and passed on if it is
/// for another member.
pub(crate) const FORMER_MAX_DATAGRAM: usize = 1180;
/// Bytes of a probe of a path's width, and of its echo: the smallest datagram that QUIC requires,
/// so the packets have the same length.
pub const WIDE_DATAGRAM: usize = 1200;
/// Bytes of a split probe and of its echo: as many as any other datagram may have.
const SPLIT_DATAGRAM: usize = MAX_DATAGRAM;
/// Bytes of a long probe before its padding: version, kind, nonce and the length of the padding.
const WIDE_REST: usize = 12;
/// The first byte of every datagram.
pub const VERSION: u8 = 1;
/// Buckets for the digests of the directory.
pub(crate) const BUCKETS: usize = 64;
/// Maximum number of records in a `Want`.
pub(crate) const MAX_WANTED: usize = 16;

/// Maximum number of services in an `Ask`: a user forwards one or a few.
pub const MAX_ASKED_SERVICES: usize = 8;

/// The first eight bytes of a node's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Short(pub(crate) [u8; 8]);

impl Short {
    pub(crate) const FIRST: Self = Self([0; 8]);
    pub(crate) const LAST: Self = Self([255; 8]);

    pub(crate) fn of(node: &NodeId) -> Self {
        let mut short = [0; 8];
        short.copy_from_slice(&node.as_bytes()[..8]);
        Self(short)
    }

    /// The first id that begins with these bytes.
    pub(crate) fn lowest(self) -> NodeId {
        self.filled(0)
    }

    /// The last id that begins with these bytes.
    pub(crate) fn highest(self) -> NodeId {
        self.filled(255)
    }

    fn filled(self, rest: u8) -> NodeId {
        let mut bytes = [rest; 32];
        bytes[..8].copy_from_slice(&self.0);
        NodeId::from_bytes(bytes)
    }

    /// The short id just below this one; the first one is its own.
    pub(crate) fn before(self) -> Self {
        Self(u64::from_be_bytes(self.0).saturating_sub(1).to_be_bytes())
    }

    /// The bucket of this node: the top six bits.
    pub(crate) fn bucket(self) -> usize {
        usize::from(self.0[0] >> 2)
    }

    /// The first and the last short id of a bucket.
    pub(crate) fn bounds(bucket: usize) -> (Self, Self) {
        let first = u8::try_from(bucket % BUCKETS).unwrap_or(0) << 2;
        let (mut low, mut high) = (Self::FIRST, Self::LAST);
        low.0[0] = first;
        high.0[0] = first | 3;
        (low, high)
    }
}

/// The standing of a member according to the claimant, in the order in which SWIM lets one claim
/// override another of the same incarnation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Standing {
    Alive,
    Suspect,
    Down,
}

/// One node's claim about the membership of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Claim {
    pub(crate) life: Life,
    pub(crate) incarnation: u16,
    pub(crate) standing: Standing,
}

/// An entry of a node's directory in short form, for lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Have {
    pub(crate) short: Short,
    pub(crate) revision: Revision,
    /// Four bytes of the digest of credential and record; distinguishes what the numbers do not.
    pub(crate) digest: [u8; 4],
    /// The last life known to membership, if any.
    pub(crate) life: Option<LastLife>,
}

/// The last known life of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct LastLife {
    pub(crate) life: Life,
    pub(crate) is_over: bool,
}

impl LastLife {
    /// The claim about the node's membership in it.
    pub(crate) fn claim(self) -> Claim {
        let standing = if self.is_over { Standing::Down } else { Standing::Alive };
        Claim { life: self.life, incarnation: 0, standing }
    }
}

/// A requested record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Wanted {
    pub(crate) short: Short,
    pub(crate) with_credential: bool,
}

/// All entries of the sender in a range of short ids, both ends included.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Haves {
    pub(crate) from: Short,
    pub(crate) to: Short,
    pub(crate) entries: Vec<Have>,
}

/// Data about one node, each part optional.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Item<'a> {
    pub(crate) short: Short,
    #[serde(borrow)]
    pub(crate) credential: Option<&'a [u8]>,
    #[serde(borrow)]
    pub(crate) state: Option<&'a [u8]>,
    pub(crate) claim: Option<Claim>,
}

impl Item<'_> {
    /// Nothing about a node yet.
    pub(crate) fn about(node: &NodeId) -> Self {
        Self { short: Short::of(node), credential: None, state: None, claim: None }
    }
}

/// A leaf's question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ask {
    /// The services whose origins it wants.
    pub(crate) services: Vec<ServiceName>,
    /// The digest of what it has: the records of those origins and of the member it asks.
    pub(crate) digest: [u8; 8],
    /// The digest of the revocations it knows.
    pub(crate) revoked: [u8; 8],
}

/// A datagram. The order of the kinds is the wire format, and the content of a kind never changes:
/// anything new is a new kind at the end, which versions that do not know it drop.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Message<'a> {
    /// Membership: header and updates in the format of `swim`.
    Swim(#[serde(borrow)] &'a [u8]),
    /// The digest of the sender's whole directory. Answered by `Same` or by a `Summary`.
    Root([u8; 8]),
    /// The digests of all buckets and of the revocations, eight bytes each. Answered by `Haves` and
    /// `Revoked` where they differ.
    Summary(#[serde(borrow)] &'a [u8]),
    /// The sender's entries in some range. Answered by items it lacks and a `Want`.
    Haves(Haves),
    /// The sender requests these nodes, with or without credential. Answered by `Items`.
    Want(Vec<Wanted>),
    /// Records that were requested, or that the receiver lacks.
    Items(#[serde(borrow)] Vec<Item<'a>>),
    /// Records that are news, to be forwarded by receivers that did not know them.
    Rumours(#[serde(borrow)] Vec<Item<'a>>),
    /// The sender's own record, urgent. Answered by `NewsSeen`, always.
    News(#[serde(borrow)] Item<'a>),
    /// The receiver's record of this generation and version has arrived.
    NewsSeen(Revision),
    /// Measures a path. Answered by an `Echo` with the same bytes.
    Probe([u8; 8]),
    /// The answer to a `Probe`.
    Echo([u8; 8]),
    /// The receiver's directory is the same as the sender's.
    Same,
    /// Revocations by the authority.
    Revoked(#[serde(borrow)] Vec<&'a [u8]>),
    /// The digest of the sender's revocations. Answered by `Revoked` if the receiver's differ.
    Revocations([u8; 8]),
    /// A leaf asks for the origins of some services. Answered by `Same` or by `Items`.
    Ask(Ask),
    /// Measures whether a path carries what QUIC needs. Answered by a `WideEcho` with the same
    /// bytes.
    WideProbe(Wide<'a>),
    /// The answer to a `WideProbe`, of the same length.
    WideEcho(Wide<'a>),
    /// The receiver does not acknowledge the sender's long packets, so it should check whether the
    /// path still carries them. A version that does not know this kind drops it.
    Unacknowledged,
    /// Measures whether a path carries what QUIC needs in fragments: the mesh splits this one for a
    /// peer with a narrow path, but no `WideProbe`. Answered by a `SplitEcho` with the same bytes,
    /// which is split as well. A version that does not know this kind drops it.
    SplitProbe(Wide<'a>),
    /// The answer to a `SplitProbe`, of the same length.
    SplitEcho(Wide<'a>),
}

/// Bytes that an answer repeats, and padding up to [`WIDE_DATAGRAM`] or [`SPLIT_DATAGRAM`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Wide<'a> {
    pub(crate) nonce: [u8; 8],
    padding: &'a [u8],
}

impl Wide<'_> {
    pub(crate) fn of(nonce: [u8; 8]) -> Self {
        Self { nonce, padding: &[0; WIDE_DATAGRAM - WIDE_REST] }
    }

    pub(crate) fn split(nonce: [u8; 8]) -> Self {
        Self { nonce, padding: &[0; SPLIT_DATAGRAM - WIDE_REST] }
    }

    fn is_padded_to(&self, length: usize) -> bool {
        self.padding.len() + WIDE_REST == length
    }
}

impl<'a> Message<'a> {
    /// The largest datagram of its kind, in any release.
    fn limit(&self) -> usize {
        match self {
            Self::WideProbe(_) | Self::WideEcho(_) => WIDE_DATAGRAM,
            _ => FORMER_MAX_DATAGRAM,
        }
    }

    /// The datagram; `None` if it would be larger than any of its kind.
    pub(crate) fn encode(&self) -> Option<Vec<u8>> {
        let mut buffer = [0; WIDE_DATAGRAM];
        buffer[0] = VERSION;
        let body = postcard::to_slice(self, &mut buffer[1..self.limit()]).ok()?.len();
        Some(buffer[..=body].to_vec())
    }

    /// Reads a datagram.
    ///
    /// # Errors
    ///
    /// [`BadDatagram`] for everything that is not exactly one datagram of this version.
    pub(crate) fn decode(bytes: &'a [u8]) -> Result<Self, BadDatagram> {
        if bytes.len() > WIDE_DATAGRAM {
            return Err(BadDatagram::Malformed);
        }
        let (&version, body) = bytes.split_first().ok_or(BadDatagram::Malformed)?;
        if version != VERSION {
            return Err(BadDatagram::Version(version));
        }
        // Kinds are numbered without a gap, in one byte as long as there are fewer than 128.
        if body.first().is_some_and(|kind| usize::from(*kind) >= KINDS.len()) {
            return Err(BadDatagram::Kind(body[0]));
        }
        match postcard::take_from_bytes::<Self>(body) {
            Ok((message, [])) if message.is_sound() && bytes.len() <= message.limit() => {
                Ok(message)
            }
            _ => Err(BadDatagram::Malformed),
        }
    }

    fn is_sound(&self) -> bool {
        match self {
            Self::Summary(digests) => digests.len() == (BUCKETS + 1) * 8,
            Self::Want(wanted) => wanted.len() <= MAX_WANTED,
            Self::Haves(haves) => {
                let inside = |it: &Have| (haves.from..=haves.to).contains(&it.short);
                haves.entries.iter().all(inside)
                    && haves.entries.is_sorted_by(|a, b| a.short < b.short)
            }
            Self::Ask(ask) => ask.services.len() <= MAX_ASKED_SERVICES,
            // Its answer has the same length, so it amplifies nothing.
            Self::WideProbe(wide) | Self::WideEcho(wide) => wide.is_padded_to(WIDE_DATAGRAM),
            Self::SplitProbe(wide) | Self::SplitEcho(wide) => wide.is_padded_to(SPLIT_DATAGRAM),
            Self::Swim(_)
            | Self::Root(_)
            | Self::Items(_)
            | Self::Rumours(_)
            | Self::News(_)
            | Self::NewsSeen(_)
            | Self::Probe(_)
            | Self::Echo(_)
            | Self::Revoked(_)
            | Self::Revocations(_)
            | Self::Unacknowledged
            | Self::Same => true,
        }
    }
}

/// The purpose of a datagram; traffic is counted by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// Membership.
    Swim,
    /// Comparison of directories, and records.
    Sync,
    /// News and rumours.
    News,
    /// Path probes and echoes.
    Path,
}

/// The family of an encoded datagram.
pub fn family(datagram: &[u8]) -> Family {
    match datagram.get(1) {
        Some(0) => Family::Swim,
        Some(6..=8) => Family::News,
        Some(9 | 10 | 15..=19) => Family::Path,
        _ => Family::Sync,
    }
}

/// The kinds of [`Message`], in their order.
const KINDS: [&str; 20] = [
    "swim",
    "root",
    "summary",
    "haves",
    "want",
    "items",
    "rumours",
    "news",
    "seen",
    "probe",
    "echo",
    "same",
    "revoked",
    "revocations",
    "ask",
    "wide-probe",
    "wide-echo",
    "unacknowledged",
    "split-probe",
    "split-echo",
];

/// The kind of an encoded datagram, as a word for traces.
pub fn kind(datagram: &[u8]) -> &'static str {
    let code = datagram.get(1).map_or(usize::MAX, |code| usize::from(*code));
    KINDS.get(code).copied().unwrap_or("unknown")
}

/// Why bytes are not a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BadDatagram {
    /// Another version of the format.
    Version(u8),
    /// A kind of a later version.
    Kind(u8),
    /// Not one well-formed datagram within the bounds.
    Malformed,
}

/// Encoded datagrams.
#[derive(Debug)]
pub(crate) struct Packed {
    pub(crate) datagrams: Vec<Vec<u8>>,
    /// Number of items completely in them.
    pub(crate) items: usize,
}

/// Packs items into as few datagrams as their order allows, at most `limit`. Credential and record
/// of one node are split when they do not fit together.
pub(crate) fn pack<'a>(
    items: impl IntoIterator<Item = Item<'a>>,
    wrap: impl Fn(Vec<Item<'a>>) -> Message<'a>,
    limit: usize,
) -> Packed {
    let mut packer = Packer { wrap, open: Vec::new(), size: 0, limit, done: Vec::new() };
    let mut packed = 0;
    for item in items {
        let fits = if size_of(&item) <= ROOM {
            packer.push(item)
        } else {
            packer.push(Item { state: None, claim: None, ..item })
                && packer.push(Item { credential: None, ..item })
        };
        if !fits {
            break;
        }
        packed += 1;
    }
    packer.close();
    Packed { datagrams: packer.done, items: packed }
}

/// Bytes for items in a datagram: version, kind and the number of items take up to four.
const ROOM: usize = MAX_DATAGRAM - 4;

struct Packer<'a, W> {
    wrap: W,
    open: Vec<Item<'a>>,
    size: usize,
    limit: usize,
    done: Vec<Vec<u8>>,
}

impl<'a, W: Fn(Vec<Item<'a>>) -> Message<'a>> Packer<'a, W> {
    fn push(&mut self, item: Item<'a>) -> bool {
        let size = size_of(&item);
        if self.size + size > ROOM {
            self.close();
        }
        if self.done.len() >= self.limit || size > ROOM {
            return false;
        }
        self.size += size;
        self.open.push(item);
        true
    }

    fn close(&mut self) {
        if !self.open.is_empty() {
            self.done.extend((self.wrap)(std::mem::take(&mut self.open)).encode());
        }
        self.size = 0;
    }
}

/// Bytes a value takes in a datagram.
pub(crate) fn size_of(value: &impl Serialize) -> usize {
    let counted = postcard::ser_flavors::Size::default();
    postcard::serialize_with_flavor(value, counted).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests;
