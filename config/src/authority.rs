//! The authority of a mesh: its keys, and what they sign.
//!
//! A mesh begins with one key, whose public half is its [`MeshId`] forever. That key can endorse
//! others, which may then sign everything that it may: invites, credentials, revocations, rotations
//! of the mesh secret. So losing a key does not mean losing the mesh, and a key can be replaced
//! while credentials under both are valid. A signature by an endorsed key carries its endorsements,
//! the [`Chain`] from the mesh's first key, so a verifier needs nothing but the [`MeshId`].
//!
//! An endorsed key is revoked like an invite, by its public half
//! ([`Revoked::Invite`](crate::Revoked::Invite)), with everything signed under it. That takes the
//! signature of a key above it in its chain, or its own: an endorsed key cannot revoke another one
//! beside it. The first key cannot be revoked, since every chain starts with it.

#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;

use rand_core::{CryptoRng, RngCore};
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::ser::SerializeTuple;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zeroize::Zeroizing;

use crate::codec;
use crate::error::Error;
use crate::ids::{MeshId, UnixSeconds, VerifyKey};
use crate::keys::{AuthoritySecret, Signature};
use crate::signing::signed_message;

/// Maximum endorsements in a chain: an endorsed key can endorse one more, for a mesh that has lost
/// its first key.
pub const MAX_ENDORSEMENTS: usize = 2;
/// Bytes of an endorsement in a signature: key, time, signature.
const ENDORSEMENT_BYTES: usize = 32 + 8 + SIGNATURE_BYTES;
const SIGNATURE_BYTES: usize = 64;
/// Most bytes that a chain adds to a statement.
pub(crate) const MAX_CHAIN_BYTES: usize = MAX_ENDORSEMENTS * ENDORSEMENT_BYTES;
/// The highest bit of a signature. Its second half is a number below 2^253 in little-endian order
/// (RFC 8032, 5.1.7), so the bit is 0; 1 means that an endorsement follows.
const FOLLOWED: u8 = 0x80;

const WHAT: &str = "the endorsement of an authority key";
const DOMAIN: &[u8] = b"meshport endorsement v1\0";
const PROOF_DOMAIN: &[u8] = b"meshport endorsed key v1\0";

/// An authority key's statement that another key may also sign for the mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endorsement {
    /// The key that is endorsed.
    pub key: VerifyKey,
    /// Time of signing; informational only.
    pub at: UnixSeconds,
    signature: Signature,
}

impl Endorsement {
    fn message(&self, mesh: &MeshId, by: &VerifyKey) -> Vec<u8> {
        signed_message(DOMAIN, &(mesh, by, &self.key, self.at))
    }
}

/// The endorsements from a mesh's first key to the key that signs: none for the first key itself,
/// at most [`MAX_ENDORSEMENTS`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Chain(Vec<Endorsement>);

impl Chain {
    /// Its endorsements, beginning with the one by the first key.
    pub fn endorsements(&self) -> &[Endorsement] {
        &self.0
    }

    /// The endorsed keys, the signer last.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = VerifyKey> {
        self.0.iter().map(|it| it.key)
    }

    /// Whether its signer is one of the first `length` keys of `other`, or above all of them, so
    /// that it may revoke the last of them.
    pub(crate) fn is_above(&self, other: &Self, length: usize) -> bool {
        self.0.len() <= length && self.keys().zip(other.keys()).all(|(ours, theirs)| ours == theirs)
    }

    /// The signer, once every endorsement is verified.
    fn signer(&self, mesh: &MeshId) -> Result<VerifyKey, Error> {
        self.0.iter().try_fold(mesh.verify_key(), |by, it| {
            by.verify(&it.message(mesh, &by), &it.signature)?;
            Ok(it.key)
        })
    }
}

/// A key that signs for a mesh: its first one, or an endorsed one. Kept offline.
///
/// The text form is a line with the secret and, for an endorsed key, one with mesh and chain.
#[derive(Clone)]
pub struct AuthorityKey {
    secret: AuthoritySecret,
    mesh: MeshId,
    chain: Chain,
}

/// The public part of an endorsed key, in its text form.
#[derive(Serialize, Deserialize)]
struct Endorsed {
    mesh: MeshId,
    /// By the key itself, over the mesh; contains its chain.
    proof: AuthoritySignature,
}

impl AuthorityKey {
    /// The first key of a new mesh, from `rng`.
    pub fn generate(rng: &mut (impl CryptoRng + RngCore)) -> Self {
        Self::first(AuthoritySecret::generate(rng))
    }

    /// The first key of a mesh, from its 32 secret bytes (the seed of RFC 8032).
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self::first(AuthoritySecret::from_bytes(bytes))
    }

    fn first(secret: AuthoritySecret) -> Self {
        let mesh = MeshId::from_bytes(*secret.public().as_bytes());
        Self { secret, mesh, chain: Chain::default() }
    }

    /// Another key for the same mesh, from `rng`.
    ///
    /// # Errors
    /// [`Error::ChainTooLong`] when this key was endorsed by one that was itself endorsed.
    pub fn endorse(
        &self,
        at: UnixSeconds,
        rng: &mut (impl CryptoRng + RngCore),
    ) -> Result<Self, Error> {
        if self.chain.0.len() >= MAX_ENDORSEMENTS {
            return Err(Error::ChainTooLong { max: MAX_ENDORSEMENTS });
        }
        let secret = AuthoritySecret::generate(rng);
        let signature = Signature::from_bytes([0; SIGNATURE_BYTES]);
        let mut endorsement = Endorsement { key: secret.public(), at, signature };
        endorsement.signature = self.secret.sign(&endorsement.message(&self.mesh, &self.key()));
        let mut chain = self.chain.clone();
        chain.0.push(endorsement);
        Ok(Self { secret, mesh: self.mesh, chain })
    }

    /// The mesh that it signs for.
    pub fn public(&self) -> MeshId {
        self.mesh
    }

    /// Its public half; for the first key, that is the mesh id.
    pub fn key(&self) -> VerifyKey {
        self.secret.public()
    }

    /// The endorsements that let it sign for the mesh.
    pub const fn chain(&self) -> &Chain {
        &self.chain
    }

    /// Signs a message. The first bytes of a message identify its kind (a version string), so that
    /// a signature of one kind is never valid for another.
    pub fn sign(&self, message: &[u8]) -> AuthoritySignature {
        AuthoritySignature { signature: self.secret.sign(message), chain: self.chain.clone() }
    }

    /// The text form, to be written to a file that only its owner can read.
    pub fn to_text(&self) -> Zeroizing<String> {
        let secret = self.secret.to_text();
        if self.chain.0.is_empty() {
            return secret;
        }
        let endorsed = Endorsed { mesh: self.mesh, proof: self.sign(PROOF_DOMAIN) };
        let bytes = postcard::to_stdvec(&endorsed).expect("keys and signatures have a byte form");
        let public = codec::ENDORSEMENT.encode(&bytes);
        let mut text = Zeroizing::new(String::with_capacity(secret.len() + 1 + public.len()));
        text.push_str(&secret);
        text.push('\n');
        text.push_str(&public);
        text
    }
}

impl FromStr for AuthorityKey {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        const MAX_BYTES: usize = 32 + SIGNATURE_BYTES + MAX_CHAIN_BYTES;
        let Some((secret, public)) = text.trim().split_once(char::is_whitespace) else {
            return text.parse().map(Self::first);
        };
        let secret: AuthoritySecret = secret.parse()?;
        let malformed = Error::Malformed { what: WHAT };
        let bytes = codec::ENDORSEMENT.decode(public, MAX_BYTES, malformed.clone())?;
        let Endorsed { mesh, proof } = codec::decode(&bytes, WHAT, MAX_BYTES)?;
        // Also checks that both lines belong together.
        let is_whole = !proof.chain.0.is_empty()
            && proof.verify(&mesh, PROOF_DOMAIN).is_ok()
            && proof.chain.signer(&mesh) == Ok(secret.public());
        if is_whole { Ok(Self { secret, mesh, chain: proof.chain }) } else { Err(malformed) }
    }
}

impl fmt::Debug for AuthorityKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AuthorityKey(redacted)")
    }
}

/// A signature for a mesh, with the endorsements of the signing key. By the mesh's first key it is
/// encoded as the signature alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthoritySignature {
    signature: Signature,
    chain: Chain,
}

impl From<Signature> for AuthoritySignature {
    /// By the first key, or by none of the authority's.
    fn from(signature: Signature) -> Self {
        Self { signature, chain: Chain::default() }
    }
}

impl AuthoritySignature {
    /// A placeholder for a signature.
    pub(crate) const fn unsigned() -> Self {
        Self { signature: Signature::from_bytes([0; SIGNATURE_BYTES]), chain: Chain(Vec::new()) }
    }

    /// Checks that a key of the mesh's authority signed exactly `message`.
    ///
    /// # Errors
    /// [`Error::BadSignature`], also for an endorsement that was not signed.
    pub fn verify(&self, mesh: &MeshId, message: &[u8]) -> Result<(), Error> {
        self.chain.signer(mesh)?.verify(message, &self.signature)
    }

    /// The signature alone, by a key that needs no endorsement.
    ///
    /// # Errors
    /// [`Error::BadSignature`] if it has some.
    pub(crate) fn plain(&self) -> Result<&Signature, Error> {
        if self.chain.0.is_empty() { Ok(&self.signature) } else { Err(Error::BadSignature) }
    }

    /// The endorsements of its signer.
    pub const fn chain(&self) -> &Chain {
        &self.chain
    }

    /// This signature without endorsements, for use next to one by the same key that has them.
    pub(crate) fn without_chain(&self) -> Self {
        self.signature.into()
    }

    /// This signature with the endorsements of another one.
    pub(crate) fn with_chain_of(&self, other: &Self) -> Self {
        Self { signature: self.signature, chain: other.chain.clone() }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(SIGNATURE_BYTES + MAX_CHAIN_BYTES);
        let flagged = |signature: &Signature, is_last: bool| {
            let mut signature = *signature.as_bytes();
            signature[SIGNATURE_BYTES - 1] |= if is_last { 0 } else { FOLLOWED };
            signature
        };
        bytes.extend(flagged(&self.signature, self.chain.0.is_empty()));
        let last = self.chain.0.len().saturating_sub(1);
        for (index, it) in self.chain.0.iter().enumerate() {
            bytes.extend(it.key.as_bytes());
            bytes.extend(it.at.0.to_be_bytes());
            bytes.extend(flagged(&it.signature, index == last));
        }
        bytes
    }

    /// Reads one, byte by byte as far as it goes. `None` when there is no next byte, or too many
    /// endorsements.
    fn read<E>(mut next: impl FnMut() -> Result<Option<u8>, E>) -> Result<Option<Self>, E> {
        let mut take = |bytes: &mut [u8]| -> Result<bool, E> {
            for byte in bytes {
                let Some(read) = next()? else { return Ok(false) };
                *byte = read;
            }
            Ok(true)
        };
        let followed = |bytes: &mut [u8; SIGNATURE_BYTES]| {
            let last = &mut bytes[SIGNATURE_BYTES - 1];
            let followed = *last & FOLLOWED != 0;
            *last &= !FOLLOWED;
            followed
        };
        let mut bytes = [0; SIGNATURE_BYTES];
        if !take(&mut bytes)? {
            return Ok(None);
        }
        let mut goes_on = followed(&mut bytes);
        let mut chain = Vec::new();
        while goes_on {
            let (mut key, mut at, mut signed) = ([0; 32], [0; 8], [0; SIGNATURE_BYTES]);
            let is_whole = chain.len() < MAX_ENDORSEMENTS
                && take(&mut key)?
                && take(&mut at)?
                && take(&mut signed)?;
            if !is_whole {
                return Ok(None);
            }
            goes_on = followed(&mut signed);
            let (key, at) = (VerifyKey::from_bytes(key), UnixSeconds(u64::from_be_bytes(at)));
            chain.push(Endorsement { key, at, signature: Signature::from_bytes(signed) });
        }
        Ok(Some(Self { signature: Signature::from_bytes(bytes), chain: Chain(chain) }))
    }
}

impl Serialize for AuthoritySignature {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let bytes = self.bytes();
        let mut tuple = serializer.serialize_tuple(bytes.len())?;
        for byte in &bytes {
            tuple.serialize_element(byte)?;
        }
        tuple.end()
    }
}

impl<'de> Deserialize<'de> for AuthoritySignature {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl<'de> Visitor<'de> for Reader {
            type Value = AuthoritySignature;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an authority's signature")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let read = AuthoritySignature::read(|| seq.next_element())?;
                read.ok_or_else(|| A::Error::custom("cut off, or too many endorsements"))
            }
        }

        // Its length is in the bytes themselves.
        deserializer.deserialize_tuple(SIGNATURE_BYTES + MAX_CHAIN_BYTES, Reader)
    }
}
