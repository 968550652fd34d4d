//! Private keys, the mesh's shared secret, and signatures.
//!
//! Primitives come from the dalek crates, `hkdf` and `sha2`. Every secret is erased when dropped,
//! has a `Debug` that hides it, and a text form with a tag, except the node key, which has the form
//! of `wg genkey`. Random bytes come from the caller.

#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;

use curve25519_dalek::MontgomeryPoint;
use data_encoding::BASE64;
use ed25519_dalek::hazmat::{ExpandedSecretKey, raw_sign};
use ed25519_dalek::{Signer, SigningKey, VerifyingKey};
use hkdf::Hkdf;
use rand_core::{CryptoRng, RngCore};
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::ser::SerializeTuple;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256, Sha512};
use x25519_dalek::{PublicKey, StaticSecret};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use crate::codec::{self, Tag};
use crate::error::Error;
use crate::ids::{NodeId, VerifyKey, key_from_text};

/// Salt of the pre-shared keys, which separates them from every other use of the mesh secret.
const PSK_SALT: &[u8] = b"meshport psk v1";

/// Separates the nonces of [`NodeKey::sign`] from every other use of the key.
const NONCE_DOMAIN: &[u8] = b"meshport node signature nonce v1\0";

/// A node's X25519 private key: its WireGuard key and its identity.
///
/// The text form is base64 as `wg genkey` writes it.
#[derive(Clone)]
pub struct NodeKey(StaticSecret);

impl NodeKey {
    /// A new key from `rng`.
    pub fn generate(rng: &mut (impl CryptoRng + RngCore)) -> Self {
        Self(StaticSecret::random_from_rng(rng))
    }

    /// From the key's 32 bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(StaticSecret::from(*Zeroizing::new(bytes)))
    }

    /// The identity of this key.
    pub fn public(&self) -> NodeId {
        NodeId::from_bytes(PublicKey::from(&self.0).to_bytes())
    }

    /// The key itself, for the WireGuard handshake.
    pub const fn secret(&self) -> &StaticSecret {
        &self.0
    }

    /// Signs a message with the WireGuard key itself, as XEdDSA does
    /// (<https://signal.org/docs/specifications/xeddsa/>): with the Ed25519 key of the same point,
    /// whose sign, which a Montgomery key lacks, is set to 0. The nonce is derived from the key and
    /// the message (RFC 8032), so none is ever reused. As for [`RecordKey::sign`], a message begins
    /// with its kind.
    pub(crate) fn sign(&self, message: &[u8]) -> Signature {
        let mut secret = Zeroizing::new([0; 64]);
        secret[..32].copy_from_slice(self.0.as_bytes());
        let prefix = Sha256::new().chain_update(NONCE_DOMAIN).chain_update(self.0.as_bytes());
        secret[32..].copy_from_slice(&prefix.finalize());
        let mut key = ExpandedSecretKey::from_bytes(&secret);
        if VerifyingKey::from(&key).as_bytes()[31] >> 7 == 1 {
            key.scalar = -key.scalar;
        }
        let public = VerifyingKey::from(&key);
        Signature(raw_sign::<Sha512>(&key, message, &public).to_bytes())
    }

    /// The text form, to be written to a file that only its owner can read.
    pub fn to_text(&self) -> Zeroizing<String> {
        let bytes = Zeroizing::new(self.0.to_bytes());
        let mut text = Zeroizing::new(String::with_capacity(BASE64.encode_len(bytes.len())));
        BASE64.encode_append(&*bytes, &mut text);
        text
    }
}

impl FromStr for NodeKey {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let expected = "32 bytes in base64: 44 characters, as `wg genkey` prints";
        key_from_text(text.trim())
            .map(Self::from_bytes)
            .ok_or(Error::SecretText { what: "a node key", expected })
    }
}

impl fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NodeKey(redacted)")
    }
}

/// 32 random bytes that are erased when dropped.
fn random_bytes(rng: &mut (impl CryptoRng + RngCore)) -> Zeroizing<[u8; 32]> {
    let mut bytes = Zeroizing::new([0; 32]);
    rng.fill_bytes(&mut *bytes);
    bytes
}

/// Length in bytes of the checksum before a secret in a file. Any 32 bytes are a valid secret:
/// without a checksum a changed letter would yield another secret, and a node that can reach no
/// other for no visible reason.
const CHECKSUM_BYTES: usize = 4;
const CHECKSUM_DOMAIN: &[u8] = b"meshport secret checksum v1\0";

fn checksum(secret: &[u8; 32]) -> [u8; CHECKSUM_BYTES] {
    let hash = Sha256::new().chain_update(CHECKSUM_DOMAIN).chain_update(secret).finalize();
    *hash.first_chunk().expect("SHA-256 gives 32 bytes")
}

/// The text form of 32 secret bytes.
fn tagged_text(tag: Tag, secret: &[u8; 32]) -> Zeroizing<String> {
    let mut bytes = Zeroizing::new([0; CHECKSUM_BYTES + 32]);
    bytes[..CHECKSUM_BYTES].copy_from_slice(&checksum(secret));
    bytes[CHECKSUM_BYTES..].copy_from_slice(secret);
    tag.encode(&*bytes)
}

/// The 32 secret bytes in a tagged text.
fn tagged_bytes(tag: Tag, text: &str) -> Result<Zeroizing<[u8; 32]>, Error> {
    let bytes = tag.decode(text, CHECKSUM_BYTES + 32, tag.unreadable())?;
    let (sum, secret) = bytes.split_at_checked(CHECKSUM_BYTES).ok_or_else(|| tag.unreadable())?;
    let secret = <&[u8; 32]>::try_from(secret).map_err(|_| tag.unreadable())?;
    if *sum != checksum(secret) {
        return Err(tag.unreadable());
    }
    Ok(Zeroizing::new(*secret))
}

macro_rules! signing_key {
    ($(#[$doc:meta])* $vis:vis $name:ident, $tag:expr) => {
        $(#[$doc])*
        #[derive(Clone)]
        $vis struct $name(SigningKey);

        impl $name {
            /// A new key from `rng`.
            $vis fn generate(rng: &mut (impl CryptoRng + RngCore)) -> Self {
                Self(SigningKey::from_bytes(&random_bytes(rng)))
            }

            /// From the key's 32 secret bytes (the seed of RFC 8032).
            $vis fn from_bytes(bytes: [u8; 32]) -> Self {
                Self(SigningKey::from_bytes(&Zeroizing::new(bytes)))
            }

            /// The public half.
            $vis fn public(&self) -> VerifyKey {
                VerifyKey::from_bytes(self.0.verifying_key().to_bytes())
            }

            /// The text form, to be written to a file that only its owner can read.
            $vis fn to_text(&self) -> Zeroizing<String> {
                tagged_text($tag, self.0.as_bytes())
            }

            /// Signs a message. A message begins with its kind (a version string), so that a
            /// signature of one kind is never valid for another.
            $vis fn sign(&self, message: &[u8]) -> Signature {
                Signature(self.0.sign(message).to_bytes())
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self, Error> {
                tagged_bytes($tag, text).map(|bytes| Self(SigningKey::from_bytes(&bytes)))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(concat!(stringify!($name), "(redacted)"))
            }
        }
    };
}

signing_key! {
    /// A node's Ed25519 key for signing the records it publishes.
    pub RecordKey, codec::RECORD_KEY
}
signing_key! {
    /// The secret of an [`AuthorityKey`](crate::AuthorityKey).
    pub(crate) AuthoritySecret, codec::AUTHORITY_KEY
}
signing_key! {
    /// The Ed25519 key of an invite: signs credentials within the limits of its delegation.
    pub DelegationKey, codec::DELEGATION_KEY
}

impl DelegationKey {
    /// The secret bytes, to be put into an invite.
    pub(crate) fn secret_bytes(&self) -> &[u8; 32] {
        self.0.as_bytes()
    }
}

/// An Ed25519 signature (RFC 8032). The text form in human-readable formats is base64.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Signature([u8; 64]);

impl Signature {
    /// From its 64 bytes.
    pub const fn from_bytes(bytes: [u8; 64]) -> Self {
        Self(bytes)
    }

    /// Its 64 bytes.
    pub const fn as_bytes(&self) -> &[u8; 64] {
        &self.0
    }
}

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let start = BASE64.encode(&self.0[..6]);
        write!(f, "Signature({start})")
    }
}

impl VerifyKey {
    /// Checks that this key signed exactly `message`.
    ///
    /// Strict: refuses keys of small order and malleable signatures, so that a signature binds one
    /// key to one message.
    ///
    /// # Errors
    /// [`Error::BadSignature`], also if these bytes are not a usable Ed25519 key.
    pub fn verify(&self, message: &[u8], signature: &Signature) -> Result<(), Error> {
        let signature = ed25519_dalek::Signature::from_bytes(&signature.0);
        VerifyingKey::from_bytes(self.as_bytes())
            .and_then(|key| key.verify_strict(message, &signature))
            .map_err(|_| Error::BadSignature)
    }
}

impl NodeId {
    /// Checks that the node of this WireGuard key signed exactly `message`; as strict as
    /// [`VerifyKey::verify`].
    ///
    /// # Errors
    /// [`Error::BadSignature`], also if these bytes are not a valid node key.
    pub(crate) fn verify(&self, message: &[u8], signature: &Signature) -> Result<(), Error> {
        let point = MontgomeryPoint(*self.as_bytes()).to_edwards(0).ok_or(Error::BadSignature)?;
        VerifyKey::from_bytes(point.compress().to_bytes()).verify(message, signature)
    }
}

impl Serialize for Signature {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            return serializer.serialize_str(&BASE64.encode(&self.0));
        }
        let mut tuple = serializer.serialize_tuple(self.0.len())?;
        for byte in &self.0 {
            tuple.serialize_element(byte)?;
        }
        tuple.end()
    }
}

impl<'de> Deserialize<'de> for Signature {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl<'de> Visitor<'de> for Reader {
            type Value = Signature;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the 64 bytes of an Ed25519 signature")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Signature, A::Error> {
                let mut bytes = [0; 64];
                for (index, byte) in bytes.iter_mut().enumerate() {
                    *byte = seq
                        .next_element()?
                        .ok_or_else(|| A::Error::invalid_length(index, &self))?;
                }
                Ok(Signature(bytes))
            }
        }

        if deserializer.is_human_readable() {
            let text = String::deserialize(deserializer)?;
            let bytes = BASE64.decode(text.as_bytes()).map_err(D::Error::custom)?;
            let bytes = bytes.try_into().map_err(|_| D::Error::custom("not 64 bytes"))?;
            return Ok(Self(bytes));
        }
        deserializer.deserialize_tuple(64, Reader)
    }
}

/// The secret that all members of a mesh share. It prevents those without it from completing a
/// handshake, and adds a symmetric layer to WireGuard's key exchange.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct MeshSecret([u8; 32]);

impl MeshSecret {
    /// A new secret from `rng`.
    pub fn generate(rng: &mut (impl CryptoRng + RngCore)) -> Self {
        Self(*random_bytes(rng))
    }

    /// From its 32 bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Its 32 bytes, to be put into an invite.
    pub(crate) const fn secret_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The text form, to be written to a file that only its owner can read.
    pub fn to_text(&self) -> Zeroizing<String> {
        tagged_text(codec::MESH_SECRET, &self.0)
    }

    /// WireGuard's pre-shared key for a pair of nodes, the same from both sides.
    ///
    /// HKDF-SHA256 (RFC 5869) with the smaller id first.
    pub fn psk(&self, a: &NodeId, b: &NodeId) -> Zeroizing<[u8; 32]> {
        let mut psk = Zeroizing::new([0; 32]);
        let info = [a.min(b).as_bytes().as_slice(), a.max(b).as_bytes().as_slice()];
        Hkdf::<Sha256>::new(Some(PSK_SALT), &self.0)
            .expand_multi_info(&info, &mut *psk)
            .expect("32 bytes are within HKDF-SHA256's 8160");
        psk
    }
}

impl FromStr for MeshSecret {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        tagged_bytes(codec::MESH_SECRET, text).map(|bytes| Self(*bytes))
    }
}

impl fmt::Debug for MeshSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MeshSecret(redacted)")
    }
}
