//! Invites: one line of text with which a new node obtains its credential without a server.
//!
//! An invite holds the authority's delegation with its private key, the mesh secret and seeds; the
//! authority signs all of it. The line is a tag, then base64url over a checksum and the postcard
//! bytes: the checksum distinguishes a miscopied line from a forged one or one of another mesh. An
//! invite is a secret: it is erased when dropped, and its `Debug` hides its keys.

#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;

use rand_core::{CryptoRng, RngCore};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use crate::authority::{AuthorityKey, AuthoritySignature};
use crate::codec;
use crate::credential::{Credential, Delegation, Grant, MAX_CLOCK_SKEW_S, Subject};
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::ids::{MeshId, NodeId, NodeName, Roles, SiteName, UnixSeconds};
use crate::keys::{DelegationKey, MeshSecret, NodeKey, RecordKey};
use crate::revocation::Revoked;
use crate::succession::Succession;
use crate::text::TextError;

/// Maximum seeds in an invite: enough for a few sites, short enough for one line.
pub const MAX_SEEDS: usize = 8;
/// Maximum endpoints of a seed: two address families on a few links, and a name.
pub const MAX_ENDPOINTS: usize = 8;
/// The largest invite, in bytes before base64: the line fits a terminal's limit of 4096 characters,
/// so that it can be pasted.
pub const MAX_INVITE_BYTES: usize = 3000;

const WHAT: &str = "an invite";
const SEED_FORM: &str = "NODEID@HOST:PORT, with more endpoints after commas";
const CHECKSUM_DOMAIN: &[u8] = b"meshport invite checksum v1\0";
const SIGNATURE_DOMAIN: &[u8] = b"meshport invite v2\0";
/// 32 bits: a random error passes once in four billion times, and then fails as tampered.
pub(crate) const CHECKSUM_BYTES: usize = 4;

/// A member to contact first: its key and where it listens.
///
/// The text form is `NODEID@HOST:PORT,HOST:PORT`, with 1 to [`MAX_ENDPOINTS`] endpoints.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seed {
    /// Its key.
    pub node: NodeId,
    /// Where it listens; all are tried.
    pub endpoints: Vec<Endpoint>,
}

impl Seed {
    /// A seed with these endpoints.
    ///
    /// # Errors
    /// [`TextError::Empty`] or [`TextError::TooMany`] endpoints.
    pub fn new(node: NodeId, endpoints: Vec<Endpoint>) -> Result<Self, TextError> {
        check_count("endpoints of a seed", endpoints.len(), MAX_ENDPOINTS)?;
        if endpoints.is_empty() {
            return Err(TextError::Empty { what: "endpoints of a seed" });
        }
        Ok(Self { node, endpoints })
    }
}

impl fmt::Display for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let endpoints: Vec<String> = self.endpoints.iter().map(Endpoint::to_string).collect();
        write!(f, "{}@{}", self.node, endpoints.join(","))
    }
}

impl FromStr for Seed {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        let (node, endpoints) =
            text.split_once('@').ok_or_else(|| TextError::form("a seed", text, SEED_FORM))?;
        let node = node.parse()?;
        check_count("endpoints of a seed", endpoints.split(',').count(), MAX_ENDPOINTS)?;
        let endpoints = endpoints.split(',').map(|endpoint| endpoint.trim().parse());
        Self::new(node, endpoints.collect::<Result<_, TextError>>()?)
    }
}

impl Serialize for Seed {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.collect_str(self)
        } else {
            (&self.node, &self.endpoints).serialize(serializer)
        }
    }
}

impl<'de> Deserialize<'de> for Seed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            return String::deserialize(deserializer)?.parse().map_err(D::Error::custom);
        }
        let (node, endpoints) = Deserialize::deserialize(deserializer)?;
        Self::new(node, endpoints).map_err(D::Error::custom)
    }
}

/// The content of a new invite.
#[derive(Debug, Clone)]
pub struct InviteParams {
    /// What it allows.
    pub grant: Grant,
    /// The mesh's shared secret.
    pub mesh_secret: MeshSecret,
    /// Members to contact first, at most [`MAX_SEEDS`]. May be empty if the joining node gets its
    /// seeds from its settings.
    pub seeds: Vec<Seed>,
}

/// The joining node's statement about itself. Each part may be absent if the invite fixes it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Join {
    /// Its name.
    pub name: Option<NodeName>,
    /// Its site.
    pub site: Option<SiteName>,
    /// The roles it takes; all of the invite's if absent.
    pub roles: Option<Roles>,
    /// The node that it succeeds, if any.
    pub succession: Option<Succession>,
}

/// Everything that a new node needs. Well formed, not verified: [`Invite::verify`] decides whether
/// it can be used.
#[derive(Clone)]
pub struct Invite {
    /// What it allows, signed by the authority.
    pub delegation: Delegation,
    /// The mesh's shared secret.
    pub mesh_secret: MeshSecret,
    /// Members to contact first.
    pub seeds: Vec<Seed>,
    key: DelegationKey,
    /// By the authority, over all of the above: nobody who forwards the invite can send the new
    /// node to other members or give it another secret.
    signature: AuthoritySignature,
}

/// The encoded form, after the checksum.
#[derive(Serialize, Deserialize)]
struct Payload {
    body: Body,
    signature: AuthoritySignature,
}

/// The part that the authority signs.
#[derive(Serialize, Deserialize)]
struct Body {
    delegation: Delegation,
    secrets: Secrets,
    seeds: Vec<Seed>,
}

#[derive(Serialize, Deserialize, Zeroize, ZeroizeOnDrop)]
struct Secrets {
    key: [u8; 32],
    mesh: [u8; 32],
}

impl Invite {
    /// A new invite with a fresh key from `rng`.
    ///
    /// # Errors
    /// As [`Delegation::issue`]; [`TextError::TooMany`] seeds; [`Error::TooLarge`] above
    /// [`MAX_INVITE_BYTES`].
    pub fn create(
        authority: &AuthorityKey,
        params: InviteParams,
        rng: &mut (impl CryptoRng + RngCore),
    ) -> Result<Self, Error> {
        let InviteParams { grant, mesh_secret, seeds } = params;
        check_count("seeds", seeds.len(), MAX_SEEDS)?;
        let key = DelegationKey::generate(rng);
        let delegation = Delegation::issue(authority, key.public(), grant)?;
        let signature = AuthoritySignature::unsigned();
        let mut invite = Self { delegation, mesh_secret, seeds, key, signature };
        invite.signature = authority.sign(&invite.signed()?);
        invite.payload_bytes()?;
        Ok(invite)
    }

    /// The mesh it is for.
    pub const fn mesh(&self) -> &MeshId {
        &self.delegation.mesh
    }

    /// The subject of a revocation of this invite: the key of its delegation.
    pub fn revoked(&self) -> Revoked {
        Revoked::Invite(self.delegation.key)
    }

    /// Checks that the authority it names signed all of it, that its key is the one it was signed
    /// for, and that it can be used at `now`.
    ///
    /// A clock up to [`MAX_CLOCK_SKEW_S`] behind the issuer's is allowed.
    ///
    /// # Errors
    /// [`Error::Tampered`], [`Error::WrongDelegationKey`], [`Error::InviteNotYetValid`] or
    /// [`Error::InviteExpired`].
    pub fn verify(&self, now: UnixSeconds) -> Result<(), Error> {
        self.delegation.verify(self.mesh())?;
        if self.key.public() != self.delegation.key {
            return Err(Error::WrongDelegationKey);
        }
        let tampered = |_| Error::Tampered { what: "the invite" };
        self.signature.verify(self.mesh(), &self.signed()?).map_err(tampered)?;
        let Grant { not_before: valid_from, join_until, .. } = self.delegation.grant;
        if valid_from > now.saturating_add(MAX_CLOCK_SKEW_S) {
            return Err(Error::InviteNotYetValid { valid_from, now });
        }
        if now > join_until {
            return Err(Error::InviteExpired { join_until, now });
        }
        Ok(())
    }

    /// Creates this node's credential, with the roles it takes and the lifetime that the invite
    /// allows, signed by the invite's key and by the node's.
    ///
    /// # Errors
    /// As [`Invite::verify`]; [`Error::NameNeeded`], [`Error::SiteNeeded`]; [`Error::NameOutside`],
    /// [`Error::SiteOutside`], [`Error::RoleOutside`] when `join` contradicts the invite;
    /// [`Error::TooLarge`].
    pub fn accept(
        &self,
        node: &NodeKey,
        record: &RecordKey,
        join: Join,
        now: UnixSeconds,
    ) -> Result<Credential, Error> {
        self.verify(now)?;
        let delegation = &self.delegation;
        let grant = &delegation.grant;
        let name = join.name.or_else(|| grant.name.clone()).ok_or(Error::NameNeeded)?;
        let site = join.site.or_else(|| grant.site.clone()).ok_or(Error::SiteNeeded)?;
        let subject = Subject {
            node: node.public(),
            record_key: record.public(),
            name,
            site,
            roles: join.roles.unwrap_or_else(|| grant.roles.clone()),
            succession: join.succession,
        };
        // A clock slightly behind must not date the credential before its invite.
        let issued_at = now.max(grant.not_before);
        let expires_at = issued_at.saturating_add(grant.credential_ttl_s);
        let issued =
            Credential::issue_by_delegation(delegation, &self.key, subject, issued_at, expires_at)?;
        let credential = issued.countersign(node)?;
        credential.verify(self.mesh(), now)?;
        Ok(credential)
    }

    /// Parses the line; white space around it is allowed. Verifies only the checksum.
    ///
    /// # Errors
    /// [`Error::InviteMiscopied`] for a line that was truncated or mistyped,
    /// [`Error::InviteOutdated`] for one of another version, [`Error::WrongKind`] or
    /// [`Error::SecretText`] for another text, [`Error::Malformed`] if the checksum is right but
    /// the content is not an invite.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let max = CHECKSUM_BYTES + MAX_INVITE_BYTES;
        let bytes = codec::INVITE.decode(text, max, Error::InviteMiscopied);
        let bytes = bytes.map_err(|error| match error {
            Error::OtherVersion { .. } => Error::InviteOutdated,
            error => error,
        })?;
        let (sum, payload) = bytes.split_first_chunk().ok_or(Error::InviteMiscopied)?;
        if *sum != checksum(payload) {
            return Err(Error::InviteMiscopied);
        }
        let Payload { body, signature } = codec::decode(payload, WHAT, MAX_INVITE_BYTES)?;
        check_count("seeds", body.seeds.len(), MAX_SEEDS)?;
        Ok(Self {
            delegation: body.delegation,
            mesh_secret: MeshSecret::from_bytes(body.secrets.mesh),
            seeds: body.seeds,
            key: DelegationKey::from_bytes(body.secrets.key),
            signature,
        })
    }

    /// The line of text: `meshport-invite-2.` and base64url.
    ///
    /// # Errors
    /// [`TextError::TooMany`] or [`Error::TooLarge`], if `seeds` was extended beyond its bounds.
    pub fn to_text(&self) -> Result<Zeroizing<String>, Error> {
        check_count("seeds", self.seeds.len(), MAX_SEEDS)?;
        let payload = self.payload_bytes()?;
        let mut bytes = Zeroizing::new(Vec::with_capacity(CHECKSUM_BYTES + payload.len()));
        bytes.extend_from_slice(&checksum(&payload));
        bytes.extend_from_slice(&payload);
        Ok(codec::INVITE.encode(&bytes))
    }

    /// The part that the authority's signature covers.
    fn signed(&self) -> Result<Zeroizing<Vec<u8>>, Error> {
        let body = codec::encode_secret(&self.body(), WHAT, MAX_INVITE_BYTES)?;
        let mut message = Zeroizing::new(Vec::with_capacity(SIGNATURE_DOMAIN.len() + body.len()));
        message.extend_from_slice(SIGNATURE_DOMAIN);
        message.extend_from_slice(&body);
        Ok(message)
    }

    fn body(&self) -> Body {
        let secrets =
            Secrets { key: *self.key.secret_bytes(), mesh: *self.mesh_secret.secret_bytes() };
        Body { delegation: self.delegation.clone(), secrets, seeds: self.seeds.clone() }
    }

    fn payload_bytes(&self) -> Result<Zeroizing<Vec<u8>>, Error> {
        let payload = Payload { body: self.body(), signature: self.signature.clone() };
        codec::encode_secret(&payload, WHAT, MAX_INVITE_BYTES)
    }
}

impl FromStr for Invite {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::parse(text)
    }
}

impl fmt::Debug for Invite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Invite")
            .field("delegation", &self.delegation)
            .field("seeds", &self.seeds)
            .field("secrets", &"redacted")
            .finish()
    }
}

pub(crate) fn checksum(payload: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let hash = Sha256::new().chain_update(CHECKSUM_DOMAIN).chain_update(payload).finalize();
    *hash.first_chunk().expect("SHA-256 gives 32 bytes")
}

fn check_count(what: &'static str, found: usize, max: usize) -> Result<(), TextError> {
    if found > max {
        return Err(TextError::TooMany { what, found, max });
    }
    Ok(())
}
