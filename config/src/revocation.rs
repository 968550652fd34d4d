//! Revocations: signed statements of the authority, and the set a node knows.
//!
//! A [`Revocation`] names a node or an invite and is permanent: the key is never accepted again,
//! with any credential. Revoking an invite covers every credential under its delegation, including
//! those of nodes that joined long ago, since its holder can backdate a credential. Sets merge by
//! union, so gossip may deliver them in any order.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::authority::{AuthorityKey, AuthoritySignature, Chain, MAX_CHAIN_BYTES};
use crate::codec;
use crate::credential::Credential;
use crate::error::Error;
use crate::ids::{MeshId, NodeId, NodeName, UnixSeconds, VerifyKey};
use crate::keys::NodeKey;
use crate::revoked::NOBODY;
pub use crate::revoked::Revoked;
use crate::signing::{check_mesh, signed_message};
use crate::succession::Succession;

/// The largest revocation, in bytes: six by the mesh's first key fit one datagram, three by others.
pub const MAX_REVOCATION_BYTES: usize = 176 + MAX_CHAIN_BYTES;
/// Maximum revocations of a mesh. They are kept forever; one costs about 200 bytes on each node. A
/// mesh that needs more should be recreated.
pub const MAX_REVOCATIONS: usize = 1024;

/// Maximum nodes with a new key whose previous one is remembered; counted separately, so that
/// statements signed by nodes do not displace those of the authority.
pub const MAX_SUCCESSIONS: usize = 4096;

const WHAT: &str = "a revocation";
const DOMAIN: &[u8] = b"meshport revocation v1\0";
const DIGEST_DOMAIN: &[u8] = b"meshport revocation id v1\0";

/// The authority's statement that a node or an invite is no longer valid, or a node's own that
/// another one succeeds it.
///
/// A value of this type is well formed, not verified: [`Revocation::verify`] decides whether to
/// accept it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revocation {
    /// The mesh of the authority that signed it.
    pub mesh: MeshId,
    /// The node or invite that is revoked.
    pub revoked: Revoked,
    /// Time of signing; informational only.
    pub at: UnixSeconds,
    signature: AuthoritySignature,
}

impl Revocation {
    /// Signed by the authority.
    pub fn issue(authority: &AuthorityKey, revoked: Revoked, at: UnixSeconds) -> Self {
        let signature = AuthoritySignature::unsigned();
        let mut revocation = Self { mesh: authority.public(), revoked, at, signature };
        revocation.signature = authority.sign(&revocation.message());
        revocation
    }

    /// The revocation of the node that agreed to this succession.
    pub fn of_succession(mesh: &MeshId, by: &NodeId, succession: &Succession) -> Self {
        let revoked = Revoked::Succeeded { node: succession.former, by: *by };
        Self { mesh: *mesh, revoked, at: succession.at, signature: succession.signature.into() }
    }

    /// A node's own statement that it leaves permanently: a succession without a successor, which
    /// the previous release understands as a revocation of the key.
    pub fn of_departure(key: &NodeKey, mesh: &MeshId, at: UnixSeconds) -> Self {
        Self::of_succession(mesh, &NOBODY, &Succession::agree(key, &NOBODY, mesh, at))
    }

    /// The node that replaces the revoked one, if any.
    pub fn successor(&self) -> Option<NodeId> {
        match self.revoked {
            Revoked::Succeeded { by, .. } if !self.revoked.is_departure() => Some(by),
            Revoked::Succeeded { .. } | Revoked::Node(_) | Revoked::Invite(_) => None,
        }
    }

    /// Checks that the authority of `mesh` signed it, or the node itself that was replaced.
    ///
    /// # Errors
    /// [`Error::ForeignMesh`] or [`Error::Tampered`].
    pub fn verify(&self, mesh: &MeshId) -> Result<(), Error> {
        check_mesh(mesh, &self.mesh)?;
        let tampered = |_| Error::Tampered { what: "the revocation" };
        if let Revoked::Succeeded { node, by } = self.revoked {
            let signature = *self.signature.plain().map_err(tampered)?;
            return Succession { former: node, at: self.at, signature }.verify(mesh, &by);
        }
        self.signature.verify(mesh, &self.message()).map_err(tampered)
    }

    /// Whether it invalidates this credential.
    pub fn covers(&self, credential: &Credential) -> bool {
        match self.revoked {
            Revoked::Node(node) | Revoked::Succeeded { node, .. } => credential.node == node,
            Revoked::Invite(key) => {
                credential.delegation.as_ref().is_some_and(|it| it.key == key)
                    || self.ends(credential.chain())
            }
        }
    }

    /// The endorsements of the authority key that signed it.
    fn chain(&self) -> &Chain {
        self.signature.chain()
    }

    /// Whether it revokes an authority key of this chain: one at or below its own signer.
    fn ends(&self, chain: &Chain) -> bool {
        chain.keys().enumerate().any(|(index, key)| {
            self.revoked == Revoked::Invite(key) && self.chain().is_above(chain, index + 1)
        })
    }

    /// The byte form, at most [`MAX_REVOCATION_BYTES`].
    pub fn to_bytes(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("writing plain values to memory cannot fail")
    }

    /// From the byte form, which must be all of `bytes`. Verifies nothing.
    ///
    /// # Errors
    /// [`Error::TooLarge`] or [`Error::Malformed`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        codec::decode(bytes, WHAT, MAX_REVOCATION_BYTES)
    }

    /// The text form: `meshport-revocation-1.` and base64url.
    pub fn to_text(&self) -> String {
        std::mem::take(&mut *codec::REVOCATION.encode(&self.to_bytes()))
    }

    /// From the text form; white space around it is allowed. Verifies nothing.
    ///
    /// # Errors
    /// As [`Credential::from_text`].
    pub fn from_text(text: &str) -> Result<Self, Error> {
        let malformed = Error::Malformed { what: WHAT };
        let bytes = codec::REVOCATION.decode(text, MAX_REVOCATION_BYTES, malformed)?;
        Self::from_bytes(&bytes)
    }

    fn message(&self) -> Vec<u8> {
        signed_message(DOMAIN, &(&self.mesh, &self.revoked, self.at))
    }

    /// 64 bits of a hash over the subject, and over the signing key if it is not the first. For
    /// comparing sets; proves nothing.
    fn tag(&self) -> u64 {
        let subject = postcard::to_stdvec(&self.revoked).expect("plain values");
        let mut hash = Sha256::new().chain_update(DIGEST_DOMAIN).chain_update(subject);
        self.chain().keys().for_each(|key| hash.update(key.as_bytes()));
        let hash = hash.finalize();
        u64::from_le_bytes(*hash.first_chunk().expect("SHA-256 gives 32 bytes"))
    }
}

/// The result of adding a revocation to [`Revocations`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Added {
    /// It is new.
    New,
    /// It was known.
    Known,
    /// The limit of [`MAX_REVOCATIONS`] or [`MAX_SUCCESSIONS`] is reached.
    Full,
}

/// The subject, and the endorsed keys in the signer's chain.
type Subject = (Revoked, Vec<VerifyKey>);

/// The revocations that a node knows, each verified before it was added. Cheap to clone. Two values
/// are equal if they have the same subjects, whatever names are known.
#[derive(Debug, Clone, Default)]
pub struct Revocations {
    /// Signed by the authority, each with the endorsed keys of its signer's chain. Whether one
    /// counts depends on the known chains below other keys, so all are kept.
    all: Arc<BTreeMap<Subject, Revocation>>,
    /// Signed by the nodes themselves, each with its previous key.
    replaced: Arc<BTreeMap<NodeId, Revocation>>,
    /// The names of revoked nodes, for display. No signature covers them.
    names: Arc<BTreeMap<NodeId, NodeName>>,
    digest: u64,
}

impl PartialEq for Revocations {
    fn eq(&self, other: &Self) -> bool {
        self.all == other.all && self.replaced == other.replaced
    }
}

impl Eq for Revocations {}

impl Revocations {
    /// Adds a verified revocation. Of several by one key about the same subject the first is kept.
    /// Those signed by a revoked authority key are dropped, whether they come before its revocation
    /// or after.
    pub fn add(&mut self, revocation: Revocation) -> Added {
        if let Revoked::Succeeded { node, .. } = revocation.revoked {
            return self.add_replaced(node, revocation);
        }
        if self.is_void(&revocation) {
            return Added::Known;
        }
        let subject = (revocation.revoked, revocation.chain().keys().collect());
        if self.all.contains_key(&subject) {
            return Added::Known;
        }
        if self.all.len() >= MAX_REVOCATIONS {
            return Added::Full;
        }
        let (all, digest) = (Arc::make_mut(&mut self.all), &mut self.digest);
        all.retain(|_, it| {
            let stays = !revocation.ends(it.chain());
            *digest ^= if stays { 0 } else { it.tag() };
            stays
        });
        *digest ^= revocation.tag();
        all.insert(subject, revocation);
        Added::New
    }

    /// Whether the authority key that signed it is revoked, other than by this statement.
    fn is_void(&self, revocation: &Revocation) -> bool {
        let chain = revocation.chain();
        let of_keys = chain.keys().flat_map(|key| self.about(Revoked::Invite(key)));
        let is_same = |it: &Revocation| it.revoked == revocation.revoked && it.chain() == chain;
        of_keys.into_iter().any(|it| it.ends(chain) && !is_same(it))
    }

    /// Whether one of these authority keys is revoked by one above it, or by itself.
    pub fn ends(&self, chain: &Chain) -> bool {
        let of_keys = chain.keys().flat_map(|key| self.about(Revoked::Invite(key)));
        of_keys.into_iter().any(|it| it.ends(chain))
    }

    /// All by the authority about this node or invite.
    fn about(&self, revoked: Revoked) -> impl Iterator<Item = &Revocation> {
        let all = self.all.range((revoked, Vec::new())..);
        all.take_while(move |((it, _), _)| *it == revoked).map(|(_, it)| it)
    }

    fn add_replaced(&mut self, node: NodeId, revocation: Revocation) -> Added {
        match self.replaced.len() {
            _ if self.replaced.contains_key(&node) => Added::Known,
            MAX_SUCCESSIONS.. => Added::Full,
            _ => {
                Arc::make_mut(&mut self.replaced).insert(node, revocation);
                Added::New
            }
        }
    }

    /// Notes the name of a revoked node; ignores other nodes.
    pub fn note_name(&mut self, node: NodeId, name: &NodeName) {
        if self.has_node(&node) {
            Arc::make_mut(&mut self.names).insert(node, name.clone());
        }
    }

    /// The name of a revoked node, if known by that key or its previous one.
    pub fn name_of(&self, node: &NodeId) -> Option<&NodeName> {
        let is_former = |it: &Revocation| it.successor() == Some(*node);
        self.names.get(node).or_else(|| {
            let (former, _) = self.replaced.iter().find(|(_, it)| is_former(it))?;
            self.names.get(former)
        })
    }

    /// The revocation that covers this credential, if any.
    pub fn covering(&self, credential: &Credential) -> Option<&Revocation> {
        let invite = credential.delegation.as_ref().map(|it| it.key);
        let keys = invite.into_iter().chain(credential.chain().keys()).map(Revoked::Invite);
        let mut by_key = keys.flat_map(|it| self.about(it)).filter(|it| it.covers(credential));
        self.get(&Revoked::Node(credential.node)).or_else(|| by_key.next())
    }

    /// The revocation of this node or invite, if any; the authority's takes precedence over a
    /// node's own.
    pub fn get(&self, revoked: &Revoked) -> Option<&Revocation> {
        match revoked {
            Revoked::Node(node) => self.about(*revoked).next().or_else(|| self.replaced.get(node)),
            Revoked::Invite(_) => self.about(*revoked).next(),
            Revoked::Succeeded { node, .. } => self.replaced.get(node),
        }
    }

    /// Whether this node is revoked by its own key.
    pub fn has_node(&self, node: &NodeId) -> bool {
        self.get(&Revoked::Node(*node)).is_some()
    }

    /// The node that succeeds this one, as far as known; itself if it was not replaced.
    pub fn successor_of(&self, node: &NodeId) -> NodeId {
        let mut last = *node;
        // Bounded, since a signer for two keys can make each succeed the other.
        for _ in 0..self.replaced.len() {
            match self.replaced.get(&last).and_then(Revocation::successor) {
                Some(next) => last = next,
                None => break,
            }
        }
        last
    }

    /// All, in a fixed order: the authority's first.
    pub fn iter(&self) -> impl Iterator<Item = &Revocation> {
        self.by_authority().chain(self.replaced.values())
    }

    /// Those by the authority, in a fixed order.
    pub fn by_authority(&self) -> impl Iterator<Item = &Revocation> {
        self.all.values()
    }

    /// The number made by the authority, at most [`MAX_REVOCATIONS`].
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether the authority has made none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// A digest of the authority's revocations: equal for equal sets, almost certainly different
    /// for different sets, and 0 for the empty set.
    pub fn digest(&self) -> u64 {
        self.digest
    }
}

impl Credential {
    /// The revocation of the node that this one succeeds; `None` if it succeeds no other.
    pub fn ends_former(&self) -> Option<Revocation> {
        self.succession.as_ref().map(|it| Revocation::of_succession(&self.mesh, &self.node, it))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{DAY, NOW, TestRng, grant, invite_with};
    use crate::{Join, NodeKey, RecordKey};

    fn node(number: u8) -> NodeId {
        NodeId::from_bytes([number; 32])
    }

    #[test]
    fn only_the_authority_revokes() {
        let (authority, _) = invite_with(grant(), &mut TestRng::new(1));
        let (stranger, _) = invite_with(grant(), &mut TestRng::new(2));
        let mesh = authority.public();
        let revocation = Revocation::issue(&authority, Revoked::Node(node(7)), NOW);
        revocation.verify(&mesh).unwrap();
        let text = revocation.to_text();
        assert!(text.starts_with("meshport-revocation-1."), "{text}");
        assert_eq!(Revocation::from_text(&text).unwrap(), revocation);
        let bytes = revocation.to_bytes();
        assert!(bytes.len() <= MAX_REVOCATION_BYTES);
        assert_eq!(Revocation::from_bytes(&bytes).unwrap(), revocation);
        let theirs = Revocation::issue(&stranger, Revoked::Node(node(7)), NOW);
        assert!(matches!(theirs.verify(&mesh), Err(Error::ForeignMesh { .. })));
        let moved = Revocation { mesh, ..theirs };
        assert!(matches!(moved.verify(&mesh), Err(Error::Tampered { .. })));
        let other = Revocation { revoked: Revoked::Node(node(8)), ..revocation.clone() };
        assert!(matches!(other.verify(&mesh), Err(Error::Tampered { .. })));
        let later = Revocation { at: NOW.saturating_add(1), ..revocation };
        assert!(matches!(later.verify(&mesh), Err(Error::Tampered { .. })));
    }

    #[test]
    fn no_flipped_bit_is_believed() {
        let (authority, _) = invite_with(grant(), &mut TestRng::new(1));
        let bytes = Revocation::issue(&authority, Revoked::Node(node(7)), NOW).to_bytes();
        for at in 0..bytes.len() * 8 {
            let mut bytes = bytes.clone();
            bytes[at / 8] ^= 1 << (at % 8);
            let believed = Revocation::from_bytes(&bytes)
                .is_ok_and(|it| it.verify(&authority.public()).is_ok());
            assert!(!believed, "bit {at}");
        }
    }

    #[test]
    fn an_invite_takes_all_that_joined_with_it_along() {
        let mut rng = TestRng::new(3);
        let (authority, invite) = invite_with(grant(), &mut rng);
        let (node, record) = (NodeKey::generate(&mut rng), RecordKey::generate(&mut rng));
        let join = Join { name: Some("worker-1".parse().unwrap()), ..Join::default() };
        let credential = invite.accept(&node, &record, join, NOW).unwrap();
        let key = credential.delegation.as_ref().unwrap().key;
        let mut all = Revocations::default();
        assert!(all.covering(&credential).is_none());
        let other = Revoked::Invite(RecordKey::generate(&mut rng).public());
        assert_eq!(all.add(Revocation::issue(&authority, other, NOW)), Added::New);
        assert!(all.covering(&credential).is_none());
        let revocation = Revocation::issue(&authority, Revoked::Invite(key), NOW);
        assert_eq!(all.add(revocation.clone()), Added::New);
        assert_eq!(all.covering(&credential), Some(&revocation));
        assert_eq!(all.get(&revocation.revoked), Some(&revocation));
        assert_eq!(all.get(&Revoked::Node(credential.node)), None);
        assert!(!all.has_node(&credential.node));
        let again = Revocation::issue(&authority, Revoked::Invite(key), NOW.saturating_add(DAY));
        assert_eq!(all.add(again), Added::Known);
        assert_eq!(all.len(), 2);
    }

    #[test]
    fn a_revoked_node_keeps_its_name_and_no_other_has_one() {
        let (authority, _) = invite_with(grant(), &mut TestRng::new(1));
        let mut all = Revocations::default();
        let name: NodeName = "worker-7".parse().unwrap();
        all.add(Revocation::issue(&authority, Revoked::Node(node(7)), NOW));
        let nameless = all.clone();
        for number in [7, 8] {
            all.note_name(node(number), &name);
        }
        assert_eq!((all.name_of(&node(7)), all.name_of(&node(8))), (Some(&name), None));
        assert_eq!(all, nameless, "a name is no difference");
    }

    /// Its new credential may not have arrived yet.
    #[test]
    fn a_revoked_node_whose_new_key_nobody_named_has_the_name_of_the_former() {
        let (authority, _) = invite_with(grant(), &mut TestRng::new(1));
        let (mesh, former) = (authority.public(), NodeKey::generate(&mut TestRng::new(2)));
        let succession = Succession::agree(&former, &node(9), &mesh, NOW);
        let mut all = Revocations::default();
        all.add(Revocation::of_succession(&mesh, &node(9), &succession));
        let name: NodeName = "worker-7".parse().unwrap();
        all.note_name(former.public(), &name);
        all.add(Revocation::issue(&authority, Revoked::Node(node(9)), NOW));
        assert_eq!(all.name_of(&node(9)), Some(&name));
    }

    #[test]
    fn a_node_takes_itself_out_and_nobody_else() {
        let mut rng = TestRng::new(4);
        let (authority, invite) = invite_with(grant(), &mut rng);
        let (key, mesh) = (NodeKey::generate(&mut rng), authority.public());
        let record = RecordKey::generate(&mut rng);
        let join = Join { name: Some("worker-1".parse().unwrap()), ..Join::default() };
        let credential = invite.accept(&key, &record, join, NOW).unwrap();
        let departure = Revocation::of_departure(&key, &mesh, NOW);
        departure.verify(&mesh).unwrap();
        assert_eq!(Revocation::from_text(&departure.to_text()).unwrap(), departure);
        assert!(departure.revoked.is_departure() && departure.successor().is_none());
        assert!(departure.revoked.to_string().ends_with("which has left"));
        let mut all = Revocations::default();
        assert_eq!(all.add(departure.clone()), Added::New);
        assert_eq!(all.covering(&credential), Some(&departure));
        assert_eq!(all.successor_of(&key.public()), key.public());
        // Another node cannot state it, nor can it be stated in another mesh.
        let thief = NodeKey::generate(&mut rng);
        let mut forged = Revocation::of_departure(&thief, &mesh, NOW);
        forged.revoked = departure.revoked;
        assert!(matches!(forged.verify(&mesh), Err(Error::Tampered { .. })));
        let elsewhere = AuthorityKey::generate(&mut rng).public();
        let foreign = Revocation { mesh: elsewhere, ..departure };
        assert!(matches!(foreign.verify(&elsewhere), Err(Error::Tampered { .. })));
    }

    #[test]
    fn a_set_is_bounded() {
        let (authority, _) = invite_with(grant(), &mut TestRng::new(1));
        let mut all = Revocations::default();
        let of = |number: usize| {
            let mut bytes = [0; 32];
            bytes[..8].copy_from_slice(&(number as u64).to_be_bytes());
            Revocation::issue(&authority, Revoked::Node(NodeId::from_bytes(bytes)), NOW)
        };
        for number in 0..MAX_REVOCATIONS {
            assert_eq!(all.add(of(number)), Added::New);
        }
        assert_eq!(all.add(of(MAX_REVOCATIONS)), Added::Full);
        assert_eq!(all.len(), MAX_REVOCATIONS);
    }

    proptest! {
        /// Union is commutative, associative and idempotent, and the digest distinguishes sets.
        #[test]
        fn sets_merge_in_any_order(
            one in proptest::collection::vec(0_u8..24, 0..12),
            two in proptest::collection::vec(0_u8..24, 0..12),
        ) {
            let (authority, _) = invite_with(grant(), &mut TestRng::new(1));
            let set = |lists: &[&[u8]]| {
                let mut all = Revocations::default();
                for number in lists.iter().copied().flatten() {
                    all.add(Revocation::issue(&authority, Revoked::Node(node(*number)), NOW));
                }
                all
            };
            let (both, reversed) = (set(&[&one, &two]), set(&[&two, &one, &two]));
            prop_assert_eq!(&both, &reversed);
            let (first, second) = (set(&[&one]), set(&[&two]));
            prop_assert_eq!(first == second, first.digest() == second.digest());
        }
    }
}
