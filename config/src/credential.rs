//! Delegations and credentials: who may be in the mesh, and how the chain of signatures is
//! verified.
//!
//! The authority signs a [`Delegation`] (the public part of an invite); the delegation's key signs
//! a [`Credential`] for a node that joins. The authority may also sign a credential directly. A
//! signature covers a version string and the postcard bytes of everything above it in the struct,
//! so neither a field nor the kind of statement can be exchanged.
//!
//! An issuer signs an [`Issued`]. It becomes a credential only when the node's WireGuard key signs
//! it too. If a node has two credentials, the later one counts, whatever its issuer; without the
//! node's signature the holder of any invite could replace any node's credential.
//!
//! The holder of an invite can backdate a credential to before `join_until`. It still expires at
//! most `credential_ttl_s` after `join_until`, which bounds a leaked invite.

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::authority::{AuthorityKey, AuthoritySignature, Chain};
use crate::codec;
use crate::error::Error;
use crate::ids::{MeshId, NodeId, NodeName, Role, Roles, SiteName, UnixSeconds, VerifyKey};
use crate::keys::{DelegationKey, NodeKey, Signature};
use crate::signing::{check_mesh, encoded, signed_message};
use crate::succession::Succession;

/// Bytes of the node's signature, at the end of a credential.
const COUNTERSIGNATURE_BYTES: usize = 64;
/// The largest value that an issuer signs, in bytes.
const MAX_ISSUED_BYTES: usize = 640;
/// The largest credential, in bytes: it must fit one datagram, and a typical one together with a
/// record.
pub const MAX_CREDENTIAL_BYTES: usize = MAX_ISSUED_BYTES + COUNTERSIGNATURE_BYTES;
/// How far a clock may be behind the issuer's, in seconds.
pub const MAX_CLOCK_SKEW_S: u64 = 300;

const _: () = assert!(MAX_CREDENTIAL_BYTES <= crate::signing::ROOM, "what is signed in one piece");

const WHAT: &str = "a credential";
const DELEGATION_DOMAIN: &[u8] = b"meshport delegation v1\0";
const CREDENTIAL_DOMAIN: &[u8] = b"meshport credential v1\0";
const COUNTERSIGNATURE_DOMAIN: &[u8] = b"meshport credential countersignature v1\0";
const ID_DOMAIN: &[u8] = b"meshport credential id v1\0";

/// The rights in an invite. Encoded and signed in the order of its fields, which must not change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The roles a credential under it may have.
    pub roles: Roles,
    /// The site it is for; any when absent.
    pub site: Option<SiteName>,
    /// The name it is for; any when absent.
    pub name: Option<NodeName>,
    /// The earliest time at which credentials are issued.
    pub not_before: UnixSeconds,
    /// The latest one.
    pub join_until: UnixSeconds,
    /// The longest a credential under it may be valid, in seconds.
    pub credential_ttl_s: u64,
}

/// The authority's statement that a key may sign credentials within limits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delegation {
    /// The mesh of the authority that signed it.
    pub mesh: MeshId,
    /// The key that may sign.
    pub key: VerifyKey,
    /// Its limits.
    pub grant: Grant,
    pub(crate) signature: AuthoritySignature,
}

impl Delegation {
    /// Lets `key` sign credentials within `grant`.
    ///
    /// # Errors
    /// [`Error::ValidityEmpty`] if joining would end before it begins or credentials would have no
    /// lifetime.
    pub fn issue(authority: &AuthorityKey, key: VerifyKey, grant: Grant) -> Result<Self, Error> {
        let (from, until) = (grant.not_before, grant.join_until);
        if until <= from || grant.credential_ttl_s == 0 {
            let until = if until <= from { until } else { from };
            return Err(Error::ValidityEmpty { from, until });
        }
        let signature = AuthoritySignature::unsigned();
        let mut delegation = Self { mesh: authority.public(), key, grant, signature };
        delegation.signature = authority.sign(&delegation.message());
        Ok(delegation)
    }

    /// Checks that the authority of `mesh` signed it.
    ///
    /// # Errors
    /// [`Error::ForeignMesh`] or [`Error::Tampered`].
    pub fn verify(&self, mesh: &MeshId) -> Result<(), Error> {
        check_mesh(mesh, &self.mesh)?;
        let tampered = |_| Error::Tampered { what: "the invite's delegation" };
        self.signature.verify(mesh, &self.message()).map_err(tampered)
    }

    fn message(&self) -> Vec<u8> {
        signed_message(DELEGATION_DOMAIN, &(&self.mesh, &self.key, &self.grant))
    }
}

/// The node that a credential is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// The node's WireGuard key.
    pub node: NodeId,
    /// The key that signs the node's records.
    pub record_key: VerifyKey,
    /// Its name.
    pub name: NodeName,
    /// Its site.
    pub site: SiteName,
    /// What it may do.
    pub roles: Roles,
    /// The node that it succeeds, with that node's consent.
    pub succession: Option<Succession>,
}

/// An issuer's statement about a node: it takes effect once that node has signed it too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issued(Credential);

impl Issued {
    /// The credential, with the node's consent. `key` must be the node's own.
    ///
    /// # Errors
    /// [`Error::WrongNodeKey`].
    pub fn countersign(self, key: &NodeKey) -> Result<Credential, Error> {
        let (Self(mut credential), node) = (self, key.public());
        if credential.node != node {
            return Err(Error::WrongNodeKey { expected: node, found: credential.node });
        }
        credential.countersignature = key.sign(&credential.countersigned());
        Ok(credential)
    }

    /// The issued content, without the node's signature, to check before signing.
    pub const fn content(&self) -> &Credential {
        &self.0
    }

    /// The byte form: that of the credential without its end, the node's signature.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.0.issued_bytes()
    }

    /// From the byte form, which must be all of `bytes`. Verifies nothing.
    ///
    /// # Errors
    /// [`Error::TooLarge`] or [`Error::Malformed`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        let max = MAX_ISSUED_BYTES;
        if bytes.len() > max {
            return Err(Error::TooLarge { what: WHAT, bytes: bytes.len(), max });
        }
        Credential::read_issued(bytes).map(Self)
    }

    /// Parses the text form, `meshport-credential-1.` and base64url, which credentials had before
    /// nodes signed them; white space around it is allowed. Verifies nothing.
    ///
    /// # Errors
    /// As [`Credential::from_text`].
    pub fn from_text(text: &str) -> Result<Self, Error> {
        let malformed = Error::Malformed { what: WHAT };
        let bytes = codec::ISSUED.decode(text, MAX_ISSUED_BYTES, malformed)?;
        Credential::read_issued(&bytes).map(Self)
    }
}

/// A statement about one node, signed by its issuer and by the node itself.
///
/// A value of this type is well formed, not verified: [`Credential::verify`] decides whether to
/// accept it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credential {
    /// The mesh the node belongs to.
    pub mesh: MeshId,
    /// The node's WireGuard key.
    pub node: NodeId,
    /// The key that signs the node's records.
    pub record_key: VerifyKey,
    /// Its name.
    pub name: NodeName,
    /// Its site.
    pub site: SiteName,
    /// What it may do.
    pub roles: Roles,
    /// Valid from this time...
    pub issued_at: UnixSeconds,
    /// ...until just before this.
    pub expires_at: UnixSeconds,
    /// Under which delegation it was signed; by the authority itself when absent.
    pub delegation: Option<Delegation>,
    /// By the delegation's key, or by the authority.
    signature: AuthoritySignature,
    /// The node that this one succeeds; covered by the signature. Encoded after the issuer's
    /// signature; omitted for a node that succeeds no other.
    #[serde(skip)]
    pub succession: Option<Succession>,
    /// By the node's own key, over all of the above as signed by the issuer. The encoded form ends
    /// with it.
    #[serde(skip, default = "unsigned")]
    countersignature: Signature,
}

/// A placeholder for a signature.
const fn unsigned() -> Signature {
    Signature::from_bytes([0; 64])
}

impl Credential {
    /// Issued by the authority itself; the node countersigns it.
    ///
    /// # Errors
    /// [`Error::ValidityEmpty`] when it would end before it begins, [`Error::TooLarge`] above
    /// [`MAX_CREDENTIAL_BYTES`].
    pub fn issue_by_authority(
        authority: &AuthorityKey,
        subject: Subject,
        issued_at: UnixSeconds,
        expires_at: UnixSeconds,
    ) -> Result<Issued, Error> {
        let mesh = authority.public();
        let mut credential = Self::unsigned(mesh, subject, issued_at, expires_at, None);
        credential.signature = authority.sign(&credential.message());
        credential.check_issued()
    }

    /// Issued by a delegation's key, within what the delegation allows; the node countersigns it.
    /// The delegation itself is not verified here.
    ///
    /// # Errors
    /// [`Error::WrongDelegationKey`], the variant for a value outside the delegation, and as
    /// [`Credential::issue_by_authority`].
    pub fn issue_by_delegation(
        delegation: &Delegation,
        key: &DelegationKey,
        subject: Subject,
        issued_at: UnixSeconds,
        expires_at: UnixSeconds,
    ) -> Result<Issued, Error> {
        if key.public() != delegation.key {
            return Err(Error::WrongDelegationKey);
        }
        let (mesh, under) = (delegation.mesh, Some(delegation.clone()));
        let mut credential = Self::unsigned(mesh, subject, issued_at, expires_at, under);
        credential.signature = key.sign(&credential.message()).into();
        credential.check_issued()
    }

    /// Checks the whole chain from the authority of `mesh`, the node's consent, and that it is
    /// valid at `now`.
    ///
    /// A clock up to [`MAX_CLOCK_SKEW_S`] behind the issuer's is allowed.
    ///
    /// # Errors
    /// One variant for each possible fault: [`Error::ForeignMesh`], [`Error::Tampered`],
    /// [`Error::WrongCountersignature`], [`Error::ValidityEmpty`], [`Error::IssuedAfterInvite`],
    /// [`Error::IssuedBeforeInvite`], [`Error::LifetimeTooLong`], [`Error::RoleOutside`],
    /// [`Error::SiteOutside`], [`Error::NameOutside`], [`Error::NotYetValid`], [`Error::Expired`].
    pub fn verify(&self, mesh: &MeshId, now: UnixSeconds) -> Result<(), Error> {
        check_mesh(mesh, &self.mesh)?;
        let message = self.message();
        let signed = match &self.delegation {
            None => self.signature.verify(mesh, &message),
            Some(delegation) => {
                delegation.verify(mesh)?;
                self.signature.plain().and_then(|it| delegation.key.verify(&message, it))
            }
        };
        signed.map_err(|_| Error::Tampered { what: "the credential" })?;
        let stranger = |_| Error::WrongCountersignature { node: self.node };
        self.node.verify(&self.countersigned(), &self.countersignature).map_err(stranger)?;
        if let Some(succession) = &self.succession {
            succession.verify(mesh, &self.node)?;
        }
        self.check_limits()?;
        if now < self.valid_from() {
            return Err(Error::NotYetValid { valid_from: self.issued_at, now });
        }
        if now >= self.expires_at {
            return Err(Error::Expired { expired_at: self.expires_at, now });
        }
        Ok(())
    }

    /// The time in its validity that is nearest to `now`, for [`Self::verify`] of all but the time.
    pub fn nearest_valid(&self, now: UnixSeconds) -> UnixSeconds {
        let last = UnixSeconds(self.expires_at.0.saturating_sub(1));
        now.max(self.issued_at).min(last)
    }

    /// The earliest time at which it is accepted: a clock may be [`MAX_CLOCK_SKEW_S`] behind the
    /// issuer's.
    pub fn valid_from(&self) -> UnixSeconds {
        UnixSeconds(self.issued_at.0.saturating_sub(MAX_CLOCK_SKEW_S))
    }

    /// Whether `now` is within its validity.
    pub fn is_valid_at(&self, now: UnixSeconds) -> bool {
        (self.valid_from()..self.expires_at).contains(&now)
    }

    /// The endorsements of the authority key that it was signed under.
    pub fn chain(&self) -> &Chain {
        self.delegation.as_ref().map_or(&self.signature, |it| &it.signature).chain()
    }

    /// Checks that it was made for these keys of a node.
    ///
    /// # Errors
    /// [`Error::WrongNodeKey`] or [`Error::WrongRecordKey`].
    pub fn check_keys(&self, node: &NodeId, record_key: &VerifyKey) -> Result<(), Error> {
        if self.node != *node {
            return Err(Error::WrongNodeKey { expected: *node, found: self.node });
        }
        if self.record_key != *record_key {
            return Err(Error::WrongRecordKey);
        }
        Ok(())
    }

    /// The byte form, at most [`MAX_CREDENTIAL_BYTES`].
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.issued_bytes();
        bytes.extend_from_slice(self.countersignature.as_bytes());
        bytes
    }

    /// From the byte form, which must be all of `bytes`. Verifies nothing.
    ///
    /// # Errors
    /// [`Error::TooLarge`], [`Error::NotCountersigned`] for what an issuer alone has signed, else
    /// [`Error::Malformed`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        let (what, max) = (WHAT, MAX_CREDENTIAL_BYTES);
        if bytes.len() > max {
            return Err(Error::TooLarge { what, bytes: bytes.len(), max });
        }
        let Some((issued, countersignature)) = bytes.split_last_chunk() else {
            return Err(Error::Malformed { what });
        };
        let mut credential = Self::read_issued(issued).map_err(|error| {
            let lacks_it = Self::read_issued(bytes).is_ok();
            if lacks_it { Error::NotCountersigned } else { error }
        })?;
        credential.countersignature = Signature::from_bytes(*countersignature);
        Ok(credential)
    }

    /// The issued part, from all of `bytes`.
    fn read_issued(bytes: &[u8]) -> Result<Self, Error> {
        let malformed = Error::Malformed { what: WHAT };
        let Ok((mut credential, rest)) = postcard::take_from_bytes::<Self>(bytes) else {
            return Err(malformed);
        };
        if !rest.is_empty() {
            credential.succession = Some(codec::decode(rest, WHAT, MAX_ISSUED_BYTES)?);
        }
        if credential.issued_bytes() == bytes { Ok(credential) } else { Err(malformed) }
    }

    /// The data signed by the issuer, with that signature.
    fn issued_bytes(&self) -> Vec<u8> {
        let mut bytes = encoded(self);
        self.succession.iter().for_each(|succession| bytes.extend(encoded(succession)));
        bytes
    }

    /// The data covered by the node's signature. The mesh is its first field.
    fn countersigned(&self) -> Vec<u8> {
        [COUNTERSIGNATURE_DOMAIN, &self.issued_bytes()].concat()
    }

    /// The text form: `meshport-credential-2.` and base64url.
    pub fn to_text(&self) -> String {
        std::mem::take(&mut *codec::CREDENTIAL.encode(&self.to_bytes()))
    }

    /// From the text form; white space around it is allowed. Verifies nothing.
    ///
    /// # Errors
    /// [`Error::WrongKind`], [`Error::OtherVersion`], [`Error::SecretText`] if it is not a text of
    /// meshport; [`Error::NotCountersigned`] for a text of version 1, which had no signature of the
    /// node; [`Error::TooLarge`] or [`Error::Malformed`].
    pub fn from_text(text: &str) -> Result<Self, Error> {
        let malformed = Error::Malformed { what: WHAT };
        match codec::CREDENTIAL.decode(text, MAX_CREDENTIAL_BYTES, malformed.clone()) {
            // One of this version was written completely: without its end it was truncated.
            Ok(bytes) => Self::from_bytes(&bytes).map_err(|error| match error {
                Error::NotCountersigned => malformed,
                error => error,
            }),
            Err(Error::OtherVersion { .. }) if Issued::from_text(text).is_ok() => {
                Err(Error::NotCountersigned)
            }
            Err(error) => Err(error),
        }
    }

    /// A short id of exactly this credential: 64 bits of a hash over all of it. Distinguishes
    /// credentials in messages and logs; proves nothing.
    pub fn id(&self) -> [u8; 8] {
        let hash = Sha256::new().chain_update(ID_DOMAIN).chain_update(self.to_bytes()).finalize();
        *hash.first_chunk().expect("SHA-256 gives 32 bytes")
    }

    /// Eight bytes of the node's signature, which differ between credentials: for digests of many,
    /// where [`Credential::id`] would cost a hash each. From its second half, since the first half
    /// is equal for two credentials if a malicious node reuses a nonce.
    pub fn tag(&self) -> u64 {
        let (_, half) = self.countersignature.as_bytes().split_at(32);
        u64::from_le_bytes(*half.first_chunk().expect("32 bytes"))
    }

    fn unsigned(
        mesh: MeshId,
        subject: Subject,
        issued_at: UnixSeconds,
        expires_at: UnixSeconds,
        delegation: Option<Delegation>,
    ) -> Self {
        Self {
            mesh,
            node: subject.node,
            record_key: subject.record_key,
            name: subject.name,
            site: subject.site,
            roles: subject.roles,
            issued_at,
            expires_at,
            delegation,
            signature: AuthoritySignature::unsigned(),
            succession: subject.succession,
            countersignature: unsigned(),
        }
    }

    /// Returns a new credential only if it verifies.
    fn check_issued(self) -> Result<Issued, Error> {
        self.check_limits()?;
        let (bytes, max) = (self.to_bytes().len(), MAX_CREDENTIAL_BYTES);
        if bytes > max {
            return Err(Error::TooLarge { what: WHAT, bytes, max });
        }
        Ok(Issued(self))
    }

    /// The checks that need neither clock nor signature.
    fn check_limits(&self) -> Result<(), Error> {
        let (issued_at, expires_at) = (self.issued_at, self.expires_at);
        if expires_at <= issued_at {
            return Err(Error::ValidityEmpty { from: issued_at, until: expires_at });
        }
        let Some(delegation) = &self.delegation else {
            return Ok(());
        };
        let Grant { not_before, join_until, credential_ttl_s: allowed_s, .. } = delegation.grant;
        if issued_at > join_until {
            return Err(Error::IssuedAfterInvite { issued_at, join_until });
        }
        if issued_at < not_before {
            return Err(Error::IssuedBeforeInvite { issued_at, not_before });
        }
        let lifetime_s = expires_at.seconds_since(issued_at);
        if lifetime_s > allowed_s {
            return Err(Error::LifetimeTooLong { lifetime_s, allowed_s });
        }
        self.check_identity(delegation)
    }

    fn check_identity(&self, delegation: &Delegation) -> Result<(), Error> {
        let Grant { roles, site, name, .. } = &delegation.grant;
        if let Some(role) = self.roles.iter().find(|role| !roles.contains(role)) {
            return Err(Error::RoleOutside { role: role.clone(), allowed: roles.to_string() });
        }
        // The role removes a right, so the joining node must not drop it.
        let forbids = !delegation.is_for_renewals() && roles.contains(&Role::NoKubelet);
        if forbids && !self.roles.contains(&Role::NoKubelet) {
            return Err(Error::RoleDropped { role: Role::NoKubelet });
        }
        if let Some(allowed) = site.as_ref().filter(|site| **site != self.site) {
            return Err(Error::SiteOutside { site: self.site.clone(), allowed: allowed.clone() });
        }
        if let Some(allowed) = name.as_ref().filter(|name| **name != self.name) {
            return Err(Error::NameOutside { name: self.name.clone(), allowed: allowed.clone() });
        }
        Ok(())
    }

    fn message(&self) -> Vec<u8> {
        let Self { mesh, node, record_key, name, site, roles, .. } = self;
        let Self { issued_at, expires_at, delegation, .. } = self;
        let body = (mesh, node, record_key, name, site, roles, issued_at, expires_at, delegation);
        let mut message = signed_message(CREDENTIAL_DOMAIN, &body);
        self.succession.iter().for_each(|succession| message.extend(encoded(succession)));
        message
    }
}
