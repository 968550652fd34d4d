//! Rotation of the mesh secret: the authority's statement, its transport, and the secrets a node
//! holds during an overlap.
//!
//! A [`Rotation`] has the hash of a secret, its increasing number, and the end of the previous
//! secret. It is public. [`NextSecret`] adds the secret itself, for admitted members only.
//! [`MeshSecrets`] holds at most two: the current one and, until the end of the overlap, the
//! previous one.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use crate::authority::{AuthorityKey, AuthoritySignature, Chain, MAX_CHAIN_BYTES};
use crate::codec;
use crate::credential::MAX_CLOCK_SKEW_S;
use crate::error::Error;
use crate::ids::{MeshId, UnixSeconds};
use crate::keys::MeshSecret;
use crate::signing::{check_mesh, signed_message};

/// The largest [`NextSecret`], in bytes: several fit one datagram.
pub const MAX_NEXT_SECRET_BYTES: usize = 200 + MAX_CHAIN_BYTES;

const WHAT: &str = "a new mesh secret";
const WHAT_ROTATION: &str = "the statement about a mesh secret";
const WHAT_SECRETS: &str = "the mesh's secrets";
const MAX_ROTATION_BYTES: usize = MAX_NEXT_SECRET_BYTES - 32;
/// The last line of the text form of several, and the most lines.
const END: &str = "end";
const MAX_LINES: usize = 4;
const DOMAIN: &[u8] = b"meshport rotation v1\0";
const ID_DOMAIN: &[u8] = b"meshport secret id v1\0";

/// Identifies a mesh secret without revealing it: a hash of its 256 random bits.
///
/// Shown as its first eight bytes in hexadecimal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SecretId([u8; 32]);

impl SecretId {
    /// The name of this secret.
    pub fn of(secret: &MeshSecret) -> Self {
        let hash = Sha256::new().chain_update(ID_DOMAIN).chain_update(secret.secret_bytes());
        Self(hash.finalize().into())
    }
}

impl fmt::Display for SecretId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..8].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for SecretId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretId({self})")
    }
}

/// The authority's statement that the mesh has a new secret.
///
/// A value of this type is well formed, not verified: [`Rotation::verify`] decides whether to
/// accept it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rotation {
    /// The mesh of the authority that signed it.
    pub mesh: MeshId,
    /// Grows with every rotation; the secret that `init` made has number 0.
    pub number: u64,
    /// The secret that it is about.
    pub secret: SecretId,
    /// Time of signing, by the signer's clock.
    pub at: UnixSeconds,
    /// When the previous secret stops opening tunnels.
    pub retire_at: UnixSeconds,
    signature: AuthoritySignature,
}

impl Rotation {
    /// Checks that the authority of `mesh` signed it.
    ///
    /// # Errors
    /// [`Error::ForeignMesh`] or [`Error::Tampered`].
    pub fn verify(&self, mesh: &MeshId) -> Result<(), Error> {
        check_mesh(mesh, &self.mesh)?;
        let tampered = |_| Error::Tampered { what: "the new mesh secret" };
        self.signature.verify(mesh, &self.message()).map_err(tampered)
    }

    /// The endorsements of the authority key that signed it.
    pub fn chain(&self) -> &Chain {
        self.signature.chain()
    }

    /// Whether it was signed by a clock that was ahead, so that the previous secret would end late.
    pub fn is_ahead(&self, now: UnixSeconds) -> bool {
        self.at > now.saturating_add(MAX_CLOCK_SKEW_S)
    }

    /// The order of two secrets. Two with the same number, which only a careless operator makes,
    /// have an order too, so that all nodes end up with the same one.
    fn order(&self, other: &Self) -> Ordering {
        (self.number, self.secret).cmp(&(other.number, other.secret))
    }

    fn message(&self) -> Vec<u8> {
        let Self { mesh, number, secret, at, retire_at, .. } = self;
        signed_message(DOMAIN, &(mesh, number, secret, at, retire_at))
    }

    fn to_text(&self) -> Zeroizing<String> {
        let bytes = postcard::to_stdvec(self).expect("writing plain values to memory cannot fail");
        codec::ROTATION.encode(&bytes)
    }

    fn from_text(text: &str) -> Result<Self, Error> {
        let malformed = Error::Malformed { what: WHAT_ROTATION };
        let bytes = codec::ROTATION.decode(text, MAX_ROTATION_BYTES, malformed)?;
        codec::decode(&bytes, WHAT_ROTATION, MAX_ROTATION_BYTES)
    }
}

/// A new secret with the statement about it. The text form is a password.
#[derive(Clone)]
pub struct NextSecret {
    rotation: Rotation,
    secret: MeshSecret,
}

/// The byte form.
#[derive(Serialize, Deserialize)]
struct Payload {
    rotation: Rotation,
    secret: SecretBytes,
}

#[derive(Serialize, Deserialize, Zeroize, ZeroizeOnDrop)]
struct SecretBytes([u8; 32]);

impl NextSecret {
    /// Signed by the authority: `secret` succeeds the one with the previous number, which opens
    /// nothing after `retire_at`.
    pub fn issue(
        authority: &AuthorityKey,
        number: u64,
        secret: MeshSecret,
        at: UnixSeconds,
        retire_at: UnixSeconds,
    ) -> Self {
        let (mesh, id) = (authority.public(), SecretId::of(&secret));
        let signature = AuthoritySignature::unsigned();
        let mut rotation = Rotation { mesh, number, secret: id, at, retire_at, signature };
        rotation.signature = authority.sign(&rotation.message());
        Self { rotation, secret }
    }

    /// The authority's statement about it.
    pub const fn rotation(&self) -> &Rotation {
        &self.rotation
    }

    /// Checks that the authority of `mesh` signed the statement, and that it is about this secret.
    ///
    /// # Errors
    /// [`Error::ForeignMesh`] or [`Error::Tampered`].
    pub fn verify(&self, mesh: &MeshId) -> Result<(), Error> {
        self.rotation.verify(mesh)?;
        if SecretId::of(&self.secret) != self.rotation.secret {
            return Err(Error::Tampered { what: "the new mesh secret" });
        }
        Ok(())
    }

    /// The byte form, at most [`MAX_NEXT_SECRET_BYTES`].
    ///
    /// # Errors
    /// None in practice: the parts are of bounded size.
    pub fn to_bytes(&self) -> Result<Zeroizing<Vec<u8>>, Error> {
        let secret = SecretBytes(*self.secret.secret_bytes());
        let payload = Payload { rotation: self.rotation.clone(), secret };
        codec::encode_secret(&payload, WHAT, MAX_NEXT_SECRET_BYTES)
    }

    /// From the byte form, which must be all of `bytes`. Verifies nothing.
    ///
    /// # Errors
    /// [`Error::TooLarge`] or [`Error::Malformed`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        let payload: Payload = codec::decode(bytes, WHAT, MAX_NEXT_SECRET_BYTES)?;
        let secret = MeshSecret::from_bytes(payload.secret.0);
        Ok(Self { rotation: payload.rotation, secret })
    }

    /// The text form: `meshport-next-secret-1.` and base64url.
    ///
    /// # Errors
    /// As [`NextSecret::to_bytes`].
    pub fn to_text(&self) -> Result<Zeroizing<String>, Error> {
        Ok(codec::NEXT_SECRET.encode(&self.to_bytes()?))
    }

    /// From the text form; white space around it is allowed. Verifies nothing.
    ///
    /// # Errors
    /// [`Error::WrongKind`], [`Error::OtherVersion`], [`Error::SecretText`] or
    /// [`Error::Malformed`].
    pub fn from_text(text: &str) -> Result<Self, Error> {
        let malformed = Error::Malformed { what: WHAT };
        let bytes = codec::NEXT_SECRET.decode(text, MAX_NEXT_SECRET_BYTES, malformed)?;
        Self::from_bytes(&bytes)
    }
}

impl fmt::Debug for NextSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NextSecret").field("rotation", &self.rotation).finish_non_exhaustive()
    }
}

/// The secrets a node holds.
///
/// The text form of a first secret is just that secret. Later it has a line each for the rotation,
/// the current secret and, during an overlap, the previous secret, and an end line to detect
/// missing lines.
#[derive(Clone)]
pub struct MeshSecrets {
    current: MeshSecret,
    rotation: Option<Rotation>,
    former: Option<MeshSecret>,
}

impl From<MeshSecret> for MeshSecrets {
    /// From an invite, which lacks the number: members report it.
    fn from(current: MeshSecret) -> Self {
        Self { current, rotation: None, former: None }
    }
}

impl MeshSecrets {
    /// The one in force.
    pub const fn current(&self) -> &MeshSecret {
        &self.current
    }

    /// The previous one, while it still opens tunnels.
    pub const fn former(&self) -> Option<&MeshSecret> {
        self.former.as_ref()
    }

    /// The authority's statement about the current one; `None` for the first.
    pub const fn rotation(&self) -> Option<&Rotation> {
        self.rotation.as_ref()
    }

    /// The number of the one in force; 0 for the first, and until members have reported it.
    pub fn number(&self) -> u64 {
        self.rotation.as_ref().map_or(0, |rotation| rotation.number)
    }

    /// The current one, for a member that lacks it; `None` before the first rotation.
    pub fn next(&self) -> Option<NextSecret> {
        let rotation = self.rotation.clone()?;
        Some(NextSecret { rotation, secret: self.current.clone() })
    }

    /// End of the previous secret, while there is one.
    pub fn retires_at(&self) -> Option<UnixSeconds> {
        self.former.as_ref().and(self.rotation.as_ref()).map(|rotation| rotation.retire_at)
    }

    /// These secrets after a new one of `mesh`; `None` if it is not newer. The previous one is kept
    /// even if its time has expired, since the clock may be wrong: see [`Self::retire`].
    ///
    /// # Errors
    /// As [`NextSecret::verify`].
    pub fn take(&self, next: &NextSecret, mesh: &MeshId) -> Result<Option<Self>, Error> {
        check_mesh(mesh, &next.rotation.mesh)?;
        let known = self.rotation.as_ref();
        if known.is_some_and(|known| next.rotation.order(known) != Ordering::Greater) {
            return Ok(None);
        }
        next.verify(mesh)?;
        let mut taken = Self {
            current: next.secret.clone(),
            rotation: Some(next.rotation.clone()),
            former: Some(self.current.clone()),
        };
        if SecretId::of(&self.current) == next.rotation.secret {
            // From an invite that was made after the rotation.
            taken.former.clone_from(&self.former);
        }
        Ok(Some(taken))
    }

    /// Checks an operator's new secret: its overlap must have been computed by a right clock, and
    /// must not be over already. Between members neither counts, since a member may have been away.
    ///
    /// # Errors
    /// [`Error::RotationAhead`] or [`Error::RotationOver`].
    pub fn check_times(&self, now: UnixSeconds) -> Result<(), Error> {
        match (&self.rotation, self.retires_at()) {
            (Some(rotation), _) if rotation.is_ahead(now) => {
                Err(Error::RotationAhead { at: rotation.at, now })
            }
            (_, Some(retire_at)) if retire_at <= now => Err(Error::RotationOver { retire_at, now }),
            _ => Ok(()),
        }
    }

    /// The one in force alone.
    #[must_use]
    pub fn without_former(&self) -> Self {
        Self { former: None, ..self.clone() }
    }

    /// Erases the previous secret once its time has expired; returns whether it did.
    pub fn retire(&mut self, now: UnixSeconds) -> bool {
        let is_over = self.retires_at().is_some_and(|at| at <= now);
        if is_over {
            self.former = None;
        }
        is_over
    }

    /// The text form, to be written to a file that only its owner can read.
    pub fn to_text(&self) -> Zeroizing<String> {
        let Some(rotation) = &self.rotation else { return self.current.to_text() };
        let former = self.former.as_ref().map(MeshSecret::to_text);
        let lines = [Some(rotation.to_text()), Some(self.current.to_text()), former];
        let length: usize = lines.iter().flatten().map(|line| line.len() + 1).sum();
        let mut text = Zeroizing::new(String::with_capacity(length + END.len()));
        for line in lines.iter().flatten() {
            text.push_str(line);
            text.push('\n');
        }
        text.push_str(END);
        text
    }
}

impl FromStr for MeshSecrets {
    type Err = Error;

    /// Verifies that the statement is signed, by any authority, and is about the secret.
    fn from_str(text: &str) -> Result<Self, Error> {
        let lines: Vec<&str> = text.trim().lines().take(MAX_LINES + 1).collect();
        let (rotation, current, former) = match lines[..] {
            [current] => return Ok(Self::from(current.parse::<MeshSecret>()?)),
            [rotation, current, END] => (rotation, current, None),
            [rotation, current, former, END] => (rotation, current, Some(former)),
            _ => return Err(Error::Malformed { what: WHAT_SECRETS }),
        };
        let rotation = Some(Rotation::from_text(rotation)?);
        let former = former.map(str::parse).transpose()?;
        let secrets = Self { current: current.parse()?, rotation, former };
        if let Some(next) = secrets.next() {
            next.verify(&next.rotation.mesh)?;
        }
        Ok(secrets)
    }
}

impl fmt::Debug for MeshSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MeshSecrets")
            .field("number", &self.number())
            .field("retires_at", &self.retires_at())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
