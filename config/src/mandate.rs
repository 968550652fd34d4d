//! Mandates: the right of a member to renew the credentials of others while the authority is
//! offline.
//!
//! A mandate is a series of delegations, one for each *turn* of some days, each with its own key. A
//! renewal is an ordinary credential under the delegation of the current turn, so every release can
//! verify it. A turn's key signs only dates within its turn, and the issuer erases it when the turn
//! is over: a thief of the issuer cannot backdate anything to before the current turn. Revoking the
//! keys of a turn and later ones ([`Mandate::since`]) invalidates everything signed since that turn
//! began, and nothing earlier.
//!
//! The line of a mandate is a secret like an invite's: it contains the private keys.

#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;

use rand_core::{CryptoRng, RngCore};
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use crate::authority::{AuthorityKey, AuthoritySignature};
use crate::codec;
use crate::credential::{Credential, Delegation, Grant, Issued, Subject};
use crate::error::Error;
use crate::ids::{MeshId, NodeId, Role, Roles, SiteName, UnixSeconds, VerifyKey};
use crate::keys::DelegationKey;

/// Maximum turns of a mandate: revoking it takes as many revocations, out of
/// [`MAX_REVOCATIONS`](crate::MAX_REVOCATIONS), and they fit one line of 4 KiB before base64.
pub const MAX_TURNS: usize = 28;
/// The largest mandate, in bytes before base64.
const MAX_MANDATE_BYTES: usize = 4000;
/// Turns per lifetime of a credential. A node asks when a third of the lifetime is left, so a
/// credential of the current turn nearly always has a predecessor that is still valid.
const TURNS_PER_LIFETIME: u64 = 4;
/// A renewal is backdated by this part of its lifetime (a day of 30) to allow for clock skew.
const SLACK_PART: u64 = 30;
/// The role that marks a delegation for renewals. No credential has it.
const MARK: &str = "renewal";
const WHAT: &str = "a mandate";

/// The rights in a mandate, and its holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    /// The member that may renew.
    pub issuer: NodeId,
    /// The roles that a renewed credential may have.
    pub roles: Roles,
    /// Restricts renewals to nodes of this site; any site when absent.
    pub site: Option<SiteName>,
    /// How long a renewed credential is valid, in seconds.
    pub lifetime_s: u64,
    /// Start of its validity.
    pub from: UnixSeconds,
    /// End of its validity.
    pub until: UnixSeconds,
}

/// The public part of a turn, for a revocation of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    /// Signs in this turn.
    pub key: VerifyKey,
    /// The earliest date of its signatures.
    pub from: UnixSeconds,
    /// The latest.
    pub until: UnixSeconds,
}

/// The right to renew credentials, with its keys. Well formed, not verified: [`Mandate::verify`]
/// decides whether to accept it.
#[derive(Clone, PartialEq)]
pub struct Mandate {
    issuer: NodeId,
    /// 1 to [`MAX_TURNS`], in order. They differ only in key and times.
    parts: Vec<Part>,
}

#[derive(Clone)]
struct Part {
    delegation: Delegation,
    key: DelegationKey,
}

impl PartialEq for Part {
    fn eq(&self, other: &Self) -> bool {
        self.delegation == other.delegation
    }
}

/// The byte form: the common part of all turns, then the turns.
#[derive(Serialize, Deserialize)]
struct Body {
    issuer: NodeId,
    mesh: MeshId,
    roles: Roles,
    site: Option<SiteName>,
    lifetime_s: u64,
    turns: Vec<TurnBody>,
}

#[derive(Serialize, Deserialize, Zeroize, ZeroizeOnDrop)]
struct TurnBody {
    key: [u8; 32],
    #[zeroize(skip)]
    not_before: UnixSeconds,
    #[zeroize(skip)]
    join_until: UnixSeconds,
    /// The first has the endorsements for all; the others have none.
    #[zeroize(skip)]
    signature: AuthoritySignature,
}

impl Mandate {
    /// A mandate with fresh keys from `rng`.
    ///
    /// # Errors
    /// [`Error::ValidityEmpty`] when it would end before it begins or credentials would have no
    /// lifetime, [`Error::Text`] with too many roles, [`Error::TooLarge`] with long names.
    pub fn create(
        authority: &AuthorityKey,
        terms: &Terms,
        rng: &mut (impl CryptoRng + RngCore),
    ) -> Result<Self, Error> {
        let Terms { from, until, lifetime_s, .. } = *terms;
        let span_s = until.seconds_since(from);
        let turn_s = span_s.div_ceil(MAX_TURNS as u64).max(lifetime_s / TURNS_PER_LIFETIME).max(1);
        let roles = Roles::new(terms.roles.iter().cloned().chain([mark()]))?;
        let mut parts = Vec::new();
        let mut begins = from;
        loop {
            let ends = begins.saturating_add(turn_s).min(until);
            let key = DelegationKey::generate(rng);
            let grant = Grant {
                roles: roles.clone(),
                site: terms.site.clone(),
                name: None,
                // Signatures at its beginning are backdated.
                not_before: UnixSeconds(begins.0.saturating_sub(slack_s(lifetime_s))),
                join_until: ends,
                credential_ttl_s: lifetime_s,
            };
            let delegation = Delegation::issue(authority, key.public(), grant)?;
            parts.push(Part { delegation, key });
            begins = ends;
            if begins >= until {
                break;
            }
        }
        let mandate = Self { issuer: terms.issuer, parts };
        mandate.bytes()?;
        Ok(mandate)
    }

    /// Checks that the authority of `mesh` signed all of it, each for the key that is here.
    ///
    /// # Errors
    /// [`Error::ForeignMesh`], [`Error::Tampered`] or [`Error::WrongDelegationKey`];
    /// [`Error::Malformed`] for delegations that are not for renewals.
    pub fn verify(&self, mesh: &MeshId) -> Result<(), Error> {
        self.parts.iter().try_for_each(|Part { delegation, key }| {
            delegation.verify(mesh)?;
            if key.public() != delegation.key {
                return Err(Error::WrongDelegationKey);
            }
            let is_one = delegation.is_for_renewals() && delegation.grant.name.is_none();
            if is_one { Ok(()) } else { Err(Error::Malformed { what: WHAT }) }
        })
    }

    /// The member it is for.
    pub const fn issuer(&self) -> NodeId {
        self.issuer
    }

    /// What it allows.
    pub fn terms(&self) -> Terms {
        let (first, slack_s) = (&self.first().delegation.grant, slack_s(self.lifetime_s()));
        let roles = first.roles.iter().filter(|role| **role != mark()).cloned();
        Terms {
            issuer: self.issuer,
            // A mandate without any other role renews nobody; show it as it is.
            roles: Roles::new(roles).unwrap_or_else(|_| first.roles.clone()),
            site: first.site.clone(),
            lifetime_s: self.lifetime_s(),
            from: first.not_before.saturating_add(slack_s),
            until: self.until(),
        }
    }

    /// How long what it signs is valid, in seconds.
    pub fn lifetime_s(&self) -> u64 {
        self.first().delegation.grant.credential_ttl_s
    }

    /// Its end.
    pub fn until(&self) -> UnixSeconds {
        self.parts.last().map_or(UnixSeconds(0), |part| part.delegation.grant.join_until)
    }

    /// All its turns, in order.
    pub fn turns(&self) -> impl Iterator<Item = Turn> {
        let turn = |Part { delegation, .. }: &Part| Turn {
            key: delegation.key,
            from: delegation.grant.not_before,
            until: delegation.grant.join_until,
        };
        self.parts.iter().map(turn)
    }

    /// The turns whose keys sign dates at or after this time: all that a thief can have.
    pub fn since(&self, time: UnixSeconds) -> impl Iterator<Item = Turn> {
        self.turns().filter(move |turn| turn.until >= time)
    }

    /// Without the turns that have ended: their keys are erased with the old value. None if all
    /// have ended.
    pub fn without_ended(&self, now: UnixSeconds) -> Option<Self> {
        let parts = self.parts.iter().filter(|part| part.delegation.grant.join_until >= now);
        let parts: Vec<Part> = parts.cloned().collect();
        (!parts.is_empty()).then_some(Self { issuer: self.issuer, parts })
    }

    /// How many turns it has, at most [`MAX_TURNS`].
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    /// Whether it has no turns; always false.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Its private keys, one per turn, for checks that they appear nowhere else.
    pub fn keys(&self) -> impl Iterator<Item = &DelegationKey> {
        self.parts.iter().map(|part| &part.key)
    }

    /// Signs the next credential of `present`'s node: the same keys, name, site and roles. It is
    /// dated a little before `now`, and after `present`, so that it counts.
    ///
    /// # Errors
    /// [`Error::MandateEnded`], [`Error::NotYetValid`]; [`Error::RoleOutside`],
    /// [`Error::SiteOutside`]; [`Error::IssuedAfterInvite`] if `present` is from the future;
    /// [`Error::TooLarge`].
    pub fn renew(&self, present: &Credential, now: UnixSeconds) -> Result<Issued, Error> {
        let until = self.until();
        let current = self.parts.iter().find(|part| part.delegation.grant.join_until >= now);
        let Part { delegation, key } = current.ok_or(Error::MandateEnded { until, now })?;
        let begins = delegation.grant.not_before.saturating_add(slack_s(self.lifetime_s()));
        if begins > now.saturating_add(crate::MAX_CLOCK_SKEW_S) {
            return Err(Error::NotYetValid { valid_from: begins, now });
        }
        let dated_back = UnixSeconds(now.0.saturating_sub(slack_s(self.lifetime_s())));
        let after = present.issued_at.saturating_add(1);
        let issued_at = dated_back.max(delegation.grant.not_before).max(after);
        let subject = Subject {
            node: present.node,
            record_key: present.record_key,
            name: present.name.clone(),
            site: present.site.clone(),
            roles: present.roles.clone(),
            // Shows nodes that never knew the previous key that it is revoked.
            succession: present.succession.clone(),
        };
        let expires_at = issued_at.saturating_add(self.lifetime_s());
        Credential::issue_by_delegation(delegation, key, subject, issued_at, expires_at)
    }

    /// From the line of text; white space around it is allowed. Verifies nothing.
    ///
    /// # Errors
    /// [`Error::WrongKind`], [`Error::OtherVersion`], [`Error::SecretText`], [`Error::TooLarge`] or
    /// [`Error::Malformed`].
    pub fn from_text(text: &str) -> Result<Self, Error> {
        let bytes = codec::MANDATE.decode(text, MAX_MANDATE_BYTES, codec::MANDATE.unreadable())?;
        Self::from_bytes(&bytes)
    }

    /// The line of text: `meshport-mandate-1.` and base64url.
    ///
    /// # Errors
    /// [`Error::TooLarge`].
    pub fn to_text(&self) -> Result<Zeroizing<String>, Error> {
        Ok(codec::MANDATE.encode(&self.bytes()?))
    }

    /// From the byte form, which must be all of `bytes`.
    fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        let body: Body = codec::decode(bytes, WHAT, MAX_MANDATE_BYTES)?;
        let malformed = Error::Malformed { what: WHAT };
        let (first, later) = body.turns.split_first().ok_or(malformed.clone())?;
        // Endorsements of a later turn would be lost, so that one mandate would have two lines.
        if later.len() >= MAX_TURNS || later.iter().any(|turn| turn.signature.plain().is_err()) {
            return Err(malformed);
        }
        let part = |turn: &TurnBody| {
            let key = DelegationKey::from_bytes(turn.key);
            let grant = Grant {
                roles: body.roles.clone(),
                site: body.site.clone(),
                name: None,
                not_before: turn.not_before,
                join_until: turn.join_until,
                credential_ttl_s: body.lifetime_s,
            };
            let signature = turn.signature.with_chain_of(&first.signature);
            let delegation = Delegation { mesh: body.mesh, key: key.public(), grant, signature };
            Part { delegation, key }
        };
        Ok(Self { issuer: body.issuer, parts: body.turns.iter().map(part).collect() })
    }

    fn bytes(&self) -> Result<Zeroizing<Vec<u8>>, Error> {
        let Delegation { mesh, grant: first, .. } = &self.first().delegation;
        let turn = |(index, Part { delegation, key }): (usize, &Part)| TurnBody {
            key: *key.secret_bytes(),
            not_before: delegation.grant.not_before,
            join_until: delegation.grant.join_until,
            signature: match index {
                0 => delegation.signature.clone(),
                _ => delegation.signature.without_chain(),
            },
        };
        let body = Body {
            issuer: self.issuer,
            mesh: *mesh,
            roles: first.roles.clone(),
            site: first.site.clone(),
            lifetime_s: first.credential_ttl_s,
            turns: self.parts.iter().enumerate().map(turn).collect(),
        };
        codec::encode_secret(&body, WHAT, MAX_MANDATE_BYTES)
    }

    fn first(&self) -> &Part {
        self.parts.first().expect("a mandate has a turn")
    }
}

impl Delegation {
    /// Whether it is a turn of a mandate, rather than an invite.
    pub fn is_for_renewals(&self) -> bool {
        self.grant.roles.contains(&mark())
    }
}

impl Credential {
    /// Whether an issuer has renewed it, rather than the authority or an invite having signed it.
    pub fn is_renewal(&self) -> bool {
        self.delegation.as_ref().is_some_and(Delegation::is_for_renewals)
    }
}

impl FromStr for Mandate {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::from_text(text)
    }
}

impl fmt::Debug for Mandate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mandate")
            .field("terms", &self.terms())
            .field("turns", &self.parts.len())
            .field("keys", &"redacted")
            .finish()
    }
}

fn mark() -> Role {
    Role::read(MARK).expect("it has the form of a role's name")
}

/// How far a renewal is backdated, in seconds.
const fn slack_s(lifetime_s: u64) -> u64 {
    lifetime_s / SLACK_PART
}
