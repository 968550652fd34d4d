//! The signed record of a node: format and bounds.
//!
//! Only the owner writes its record. It is signed with the record key in the owner's credential,
//! over a domain, the mesh id and the exact bytes sent; the bytes are kept as received, so they can
//! be forwarded. Records of one node are ordered by (generation, version), and different records
//! with the same pair by their bytes, so every node keeps the same one.

use std::cmp::Ordering;
use std::fmt;
use std::net::SocketAddr;

use meshport_config::{MeshId, NodeId, RecordKey, ServiceName, Signature, VerifyKey, words};
use serde::{Deserialize, Serialize};

/// Endpoints in one record: two address families, a few interfaces each.
pub const MAX_ENDPOINTS: usize = 8;
/// Services in one record, as many as a credential has roles.
pub const MAX_SERVICES: usize = 16;
/// Distances in one record: those of the nearest origins; a relay farther away is useless.
pub const MAX_DISTANCES: usize = 16;
/// Bytes of [`NodeState::release`]: a version of three numbers with a suffix.
pub const MAX_RELEASE_BYTES: usize = 32;
/// Bytes of a record with its signature: with headers and a claim it fits one datagram.
pub const MAX_STATE_BYTES: usize = 1024;

const SIGNATURE_BYTES: usize = 64;
const DOMAIN: &[u8] = b"meshport node state v1\0";

words! {
    /// The state that an origin announces for its local instance of a service.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum OriginState {
        /// Accepts new connections.
        Ready = 0 => "ready",
        /// Answers that it is not ready.
        Unready = 1 => "unready",
        /// Draining: its connections should go elsewhere.
        Draining = 2 => "draining",
        /// Refuses new connections; open ones may still be served.
        Refusing = 3 => "refusing",
        /// Accepts connections but does not answer.
        Hung = 4 => "hung",
        /// Not probed yet, or its readiness cannot be determined.
        Unknown = 5 => "unknown",
        /// Answers that it is neither ready nor live: a dependency is stalled.
        Stalled = 6 => "stalled",
    }
}

impl OriginState {
    fn code(self) -> u8 {
        self as u8
    }

    /// A code of a later version reads as unknown.
    fn from_code(code: u8) -> Self {
        Self::ALL.get(usize::from(code)).copied().unwrap_or(Self::Unknown)
    }
}

/// The distance of an origin from the node that wrote the record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Distance {
    /// The origin.
    pub origin: NodeId,
    /// Smoothed round-trip time in microseconds; `None` if the origin does not answer.
    pub rtt_us: Option<u32>,
    /// Share of recent probes without an answer, 0 to 100.
    pub loss_percent: u8,
}

/// A node's statement about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeState {
    /// The owner.
    pub node: NodeId,
    /// Grows with every start of the owner.
    pub generation: u64,
    /// Grows within a generation each time the owner returns after being declared down.
    pub renewal: u32,
    /// Grows with every change within a generation.
    pub version: u64,
    /// Addresses at which the owner can be reached, at most [`MAX_ENDPOINTS`].
    pub endpoints: Vec<SocketAddr>,
    /// Services the owner offers, ascending by name, at most [`MAX_SERVICES`]. The reader must
    /// check whether the owner may offer them; [`crate::Entry::services`] does.
    pub services: Vec<(ServiceName, OriginState)>,
    /// Distances of origins, ascending by origin, at most [`MAX_DISTANCES`].
    pub distances: Vec<Distance>,
    /// The owner has left the mesh on purpose.
    pub left: bool,
    /// Others see the owner at an address that is not its own and that it does not announce: a node
    /// behind another NAT has no direct path to it.
    pub behind_nat: bool,
    /// The release that the owner runs, such as `0.1.0`: printable ASCII, at most
    /// [`MAX_RELEASE_BYTES`]. None from releases that do not announce it.
    pub release: Option<Box<str>>,
}

/// A record with its bytes and signature as sent. It exists only signed or verified.
#[derive(Clone, PartialEq, Eq)]
pub struct SignedState {
    state: NodeState,
    bytes: Box<[u8]>,
}

impl SignedState {
    /// Signs a record; distances that do not fit are left out, the farthest first.
    pub(crate) fn sign(mut state: NodeState, mesh: &MeshId, key: &RecordKey) -> Self {
        let room = MAX_STATE_BYTES - SIGNATURE_BYTES;
        let mut body = state.to_body();
        while body.len() > room && !state.distances.is_empty() {
            let far = |it: &(usize, &Distance)| (it.1.rtt_us.unwrap_or(u32::MAX), it.0);
            let farthest = state.distances.iter().enumerate().max_by_key(far).map_or(0, |it| it.0);
            state.distances.remove(farthest);
            body = state.to_body();
        }
        while body.len() > room && state.services.pop().is_some() {
            body = state.to_body();
        }
        let signature = key.sign(&signed_bytes(mesh, &body));
        body.extend_from_slice(signature.as_bytes());
        Self { state, bytes: body.into_boxed_slice() }
    }

    /// Reads a record without verifying it.
    ///
    /// # Errors
    ///
    /// [`BadState`] when the bytes are not a record in canonical form and within the bounds.
    pub(crate) fn read(bytes: &[u8]) -> Result<NodeState, BadState> {
        let (body, _) = split(bytes)?;
        NodeState::from_body(body)
    }

    /// Reads a record and checks its signature.
    ///
    /// # Errors
    ///
    /// [`BadState`] for malformed bytes or a signature that is not by `key` for this mesh.
    pub(crate) fn verify(bytes: &[u8], mesh: &MeshId, key: &VerifyKey) -> Result<Self, BadState> {
        let (body, signature) = split(bytes)?;
        let state = NodeState::from_body(body)?;
        key.verify(&signed_bytes(mesh, body), &Signature::from_bytes(*signature))
            .map_err(|_| BadState::Signature)?;
        Ok(Self { state, bytes: bytes.into() })
    }

    /// The statement in the record.
    pub fn get(&self) -> &NodeState {
        &self.state
    }

    /// The record as sent: body and signature.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Eight bytes that differ between records, for digests only.
    pub(crate) fn tag(&self) -> u64 {
        let mut tag = [0; 8];
        tag.copy_from_slice(&self.bytes[self.bytes.len() - 8..]);
        u64::from_le_bytes(tag)
    }

    /// The total order that decides which record of a node is kept.
    pub(crate) fn order(&self, other: &Self) -> Ordering {
        let revisions = self.state.revision().cmp(&other.state.revision());
        revisions.then_with(|| self.bytes.cmp(&other.bytes))
    }
}

impl fmt::Debug for SignedState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.state.fmt(f)
    }
}

/// Why bytes are not a record of the given node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BadState {
    /// Not a record in canonical form, or beyond a bound.
    Malformed,
    /// The signature is wrong.
    Signature,
}

fn split(bytes: &[u8]) -> Result<(&[u8], &[u8; SIGNATURE_BYTES]), BadState> {
    if bytes.len() > MAX_STATE_BYTES {
        return Err(BadState::Malformed);
    }
    bytes.split_last_chunk().ok_or(BadState::Malformed)
}

fn signed_bytes(mesh: &MeshId, body: &[u8]) -> Vec<u8> {
    [DOMAIN, mesh.as_bytes(), body].concat()
}

/// Flag of a body: [`NodeState::behind_nat`].
const FLAG_BEHIND_NAT: u8 = 1;
/// Flag of a body: [`NodeState::release`] follows the flags, a byte of length first.
const FLAG_RELEASE: u8 = 2;

/// The format of the body; the fields in this order, encoded by postcard. A byte of flags follows
/// if one is set, or if a later version has added fields, which come after it.
#[derive(Serialize, Deserialize)]
struct Body<'a> {
    node: [u8; 32],
    generation: u64,
    renewal: u32,
    version: u64,
    left: bool,
    endpoints: Vec<SocketAddr>,
    #[serde(borrow)]
    services: Vec<(&'a str, u8)>,
    distances: Vec<([u8; 32], Option<u32>, u8)>,
}

impl NodeState {
    fn to_body(&self) -> Vec<u8> {
        let services = self.services.iter().map(|(name, state)| (name.as_ref(), state.code()));
        let distance = |it: &Distance| (*it.origin.as_bytes(), it.rtt_us, it.loss_percent);
        let body = Body {
            node: *self.node.as_bytes(),
            generation: self.generation,
            renewal: self.renewal,
            version: self.version,
            left: self.left,
            endpoints: self.endpoints.clone(),
            services: services.collect(),
            distances: self.distances.iter().map(distance).collect(),
        };
        let mut body =
            postcard::to_stdvec(&body).expect("writing plain values to memory cannot fail");
        let mut flags = if self.behind_nat { FLAG_BEHIND_NAT } else { 0 };
        let release = self.release.as_deref().filter(|it| is_release(it.as_bytes()));
        flags |= if release.is_some() { FLAG_RELEASE } else { 0 };
        body.extend((flags != 0).then_some(flags));
        if let Some(release) = release {
            body.push(u8::try_from(release.len()).expect("its length is bounded"));
            body.extend_from_slice(release.as_bytes());
        }
        body
    }

    fn from_body(bytes: &[u8]) -> Result<Self, BadState> {
        let (body, rest) =
            postcard::take_from_bytes::<Body<'_>>(bytes).map_err(|_| BadState::Malformed)?;
        // Other flags, and anything after these fields, belong to later versions.
        let (flags, rest) = rest.split_first().map_or((0, rest), |(flags, rest)| (*flags, rest));
        let behind_nat = flags & FLAG_BEHIND_NAT != 0;
        let release = if flags & FLAG_RELEASE != 0 { read_release(rest) } else { None };
        let within = body.endpoints.len() <= MAX_ENDPOINTS
            && body.services.len() <= MAX_SERVICES
            && body.distances.len() <= MAX_DISTANCES
            && body.services.is_sorted_by(|a, b| a.0 < b.0)
            && body.distances.is_sorted_by(|a, b| a.0 < b.0)
            && body.distances.iter().all(|it| it.2 <= 100);
        if !within {
            return Err(BadState::Malformed);
        }
        let mut services = Vec::with_capacity(body.services.len());
        for (name, code) in body.services {
            let name: ServiceName = name.parse().map_err(|_| BadState::Malformed)?;
            services.push((name, OriginState::from_code(code)));
        }
        let distance = |(origin, rtt_us, loss_percent)| Distance {
            origin: NodeId::from_bytes(origin),
            rtt_us,
            loss_percent,
        };
        Ok(Self {
            node: NodeId::from_bytes(body.node),
            generation: body.generation,
            renewal: body.renewal,
            version: body.version,
            left: body.left,
            behind_nat,
            release,
            endpoints: body.endpoints,
            services,
            distances: body.distances.into_iter().map(distance).collect(),
        })
    }

    pub(crate) fn revision(&self) -> Revision {
        Revision { generation: self.generation, version: self.version }
    }

    /// The life in which the owner wrote this.
    pub(crate) fn life(&self) -> Life {
        Life { generation: self.generation, renewal: self.renewal }
    }
}

fn is_release(bytes: &[u8]) -> bool {
    (1..=MAX_RELEASE_BYTES).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic)
}

/// Reads the release announced by [`FLAG_RELEASE`]. It is only informative, so a malformed one
/// counts as absent.
fn read_release(bytes: &[u8]) -> Option<Box<str>> {
    let (length, rest) = bytes.split_first()?;
    let release = rest.get(..usize::from(*length)).filter(|it| is_release(it))?;
    std::str::from_utf8(release).ok().map(Into::into)
}

/// The version of a node's record; a later one replaces an earlier one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Revision {
    pub(crate) generation: u64,
    /// Grows within a generation.
    pub(crate) version: u64,
}

/// A process of a node as membership sees it; a later one takes precedence over an earlier one.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub(crate) struct Life {
    /// Grows with every start.
    pub(crate) generation: u64,
    /// Grows when the node finds itself declared down.
    pub(crate) renewal: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::Mesh;

    #[test]
    fn a_byte_of_flags_follows_only_where_one_is_set() {
        let mut state = Mesh::new(1).member(1, "fra", "node").state(1, 1);
        let plain = state.to_body();
        state.behind_nat = true;
        let flagged = state.to_body();
        assert_eq!(flagged, [&plain[..], &[1]].concat());
        assert_eq!(NodeState::from_body(&flagged), Ok(state.clone()));
        state.behind_nat = false;
        assert_eq!(NodeState::from_body(&plain), Ok(state));
    }

    #[test]
    fn the_release_of_the_owner_follows_the_flags() {
        let mut state = Mesh::new(1).member(1, "fra", "node").state(1, 1);
        let plain = state.to_body();
        for (behind_nat, flags) in [(false, 2), (true, 3)] {
            state.behind_nat = behind_nat;
            state.release = Some("0.2.0".into());
            let body = state.to_body();
            assert_eq!(body, [&plain[..], &[flags, 5], b"0.2.0"].concat());
            assert_eq!(NodeState::from_body(&body), Ok(state.clone()));
            // A later version has more after it.
            let longer = [&body[..], &[1, 2, 3]].concat();
            assert_eq!(NodeState::from_body(&longer), Ok(state.clone()));
        }
    }

    #[test]
    fn a_release_that_no_screen_shows_is_left_out() {
        let mut state = Mesh::new(1).member(1, "fra", "node").state(1, 1);
        let plain = state.to_body();
        let long = [&[2, 33][..], &[b'1'; 33]].concat();
        let ends: [&[u8]; 6] =
            [&[2], &[2, 0], &[2, 9, b'1'], &[2, 2, b'1', 0x1b], &[2, 1, 0xff], &long];
        for end in ends {
            let read = NodeState::from_body(&[&plain[..], end].concat());
            assert_eq!(read, Ok(state.clone()), "{end:?}");
        }
        for release in ["", "0.1.0 beta", "a\u{301}", &"1".repeat(33)] {
            state.release = Some(release.into());
            assert_eq!(state.to_body(), plain, "{release:?}");
        }
    }

    /// The known part is read, and the record is kept unchanged and remains valid.
    #[test]
    fn a_record_with_more_than_is_known_is_verified_and_kept() {
        let member = Mesh::new(1).member(1, "fra", "node");
        let state = member.state(1, 1);
        for (end, behind_nat) in [(&[0, 9, 9][..], false), (&[5], true), (&[4; 40], false)] {
            let body = [&state.to_body()[..], end].concat();
            let (id, key) = (member.credential.mesh, member.record_key());
            let signature = key.sign(&signed_bytes(&id, &body));
            let bytes = [&body[..], signature.as_bytes()].concat();
            let read = SignedState::verify(&bytes, &id, &key.public()).expect("it is signed");
            assert_eq!(read.as_bytes(), bytes);
            assert_eq!(*read.get(), NodeState { behind_nat, ..state.clone() });
        }
    }
}
