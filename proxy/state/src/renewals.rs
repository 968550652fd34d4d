//! Files of the state folder for renewals by issuers: the credentials before the current one, and
//! an issuer's mandate.

use meshport_config::{
    Credential, Mandate, NodeId, Revocations, Revoked, Roles, SiteName, Terms, Turn, UnixSeconds,
};
use tracing::warn;

use super::folder::Existing;
use super::{CREDENTIAL, MAX_TEXT_BYTES, StateDir, state_error};
use crate::Error;

/// The right to renew the credentials of others, with its keys.
pub(super) const MANDATE: &str = "mandate";
/// The last credential that no issuer signed: a node presents it with each request.
pub(super) const BASE: &str = "credential.base";
/// The one before the current one, to which a node returns when its issuer is revoked.
pub(super) const FORMER: &str = "credential.former";
/// The mandates signed here, with their members.
pub(super) const MANDATES: &str = "mandates";
/// A mandate has at most 4,000 bytes before base64.
const MAX_MANDATE_TEXT_BYTES: usize = 8 * 1024;
/// Maximum size of the record of mandates: some thousand turns.
const MAX_MANDATES_BYTES: usize = 512 * 1024;
const DELEGATE: &str = "Remove it, and install a new mandate: `meshport delegate` where the \
                        authority's key is";
const GIVE_LINE: &str = "Correct it, or give `meshport revoke` the line of the mandate";

/// The files that a node starts with. All may be absent.
#[derive(Debug, Default)]
pub struct KnownRenewals {
    /// See [`StateDir::mandate`].
    pub mandate: Option<Mandate>,
    /// The last credential of the node that no issuer signed; absent if that is the current one.
    pub base: Option<Credential>,
    /// The credential before the current one.
    pub former: Option<Credential>,
    /// The stored one, if the node uses the one before it since the stored one is not valid yet.
    pub early: Option<Credential>,
}

/// A line of [`MANDATES`].
struct Recorded {
    issuer: NodeId,
    turn: Turn,
    /// Absent in lines of the release before 0.1 and if unreadable: a revocation needs only the
    /// turn.
    allowed: Option<Allowed>,
}

/// What a mandate allows.
struct Allowed {
    lifetime_s: u64,
    roles: Roles,
    /// The only allowed site; any if absent.
    site: Option<SiteName>,
}

impl Allowed {
    fn read<'a>(mut words: impl Iterator<Item = &'a str>) -> Option<Self> {
        Some(Self {
            lifetime_s: words.next()?.parse().ok()?,
            roles: words.next()?.parse().ok()?,
            site: words.next().map(str::parse).transpose().ok()?,
        })
    }
}

impl Recorded {
    fn read(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let issuer = words.next()?.parse().ok()?;
        let mut time = || Some(UnixSeconds(words.next()?.parse().ok()?));
        let (from, until) = (time()?, time()?);
        let turn = Turn { from, until, key: words.next()?.parse().ok()? };
        let allowed = Allowed::read(words);
        Some(Self { issuer, turn, allowed })
    }
}

impl StateDir {
    /// Reads all of them, for the node of this credential. Unreadable files are logged and skipped,
    /// since a node runs without them.
    pub fn renewals(&self, own: &Credential) -> KnownRenewals {
        let mandate = readable(self.mandate()).filter(|mandate| {
            readable(mandate.verify(&own.mesh).map_err(Error::Trust).map(Some)).is_some()
        });
        let of_own = |name: &str| {
            let found = readable(self.public_credential(name));
            found.filter(|it| it.node == own.node && it.record_key == own.record_key)
        };
        let (base, former) = (of_own(BASE), of_own(FORMER));
        let is_revoked = |it: &Credential| {
            self.revocations(&it.mesh).map_or(true, |all| all.covering(it).is_some())
        };
        let uses_former = former.as_ref().is_some_and(|it| it.id() == own.id());
        let early = of_own(CREDENTIAL).filter(|it| uses_former && !is_revoked(it));
        KnownRenewals { mandate, base, former, early }
    }

    /// The right of this node to renew the credentials of others, if it has one.
    pub fn mandate(&self) -> Result<Option<Mandate>, Error> {
        let text = self.read_text(MANDATE, MAX_MANDATE_TEXT_BYTES, DELEGATE)?;
        text.map(|text| super::parsed(&text, &self.file(MANDATE), DELEGATE)).transpose()
    }

    /// Writes the mandate, replacing any other.
    pub fn store_mandate(&self, mandate: &Mandate) -> Result<(), Error> {
        let text = mandate.to_text()?;
        self.folder.write_like(MANDATE, text.as_bytes(), CREDENTIAL)
    }

    /// Writes a renewed credential, after its predecessors.
    pub fn store_renewed(
        &self,
        next: &Credential,
        base: &Credential,
        former: &Credential,
    ) -> Result<(), Error> {
        self.store_text(BASE, &base.to_text(), Existing::Replace)?;
        self.store_text(FORMER, &former.to_text(), Existing::Replace)?;
        self.store_credential(next, Existing::Replace)
    }

    /// Writes a renewed credential as the one before the stored one, which has not begun.
    pub fn store_former(&self, next: &Credential, base: &Credential) -> Result<(), Error> {
        self.store_text(BASE, &base.to_text(), Existing::Replace)?;
        self.store_text(FORMER, &next.to_text(), Existing::Replace)
    }

    /// The credential before `present`, if that one can be used and `present` cannot: it was
    /// revoked with its issuer, or is not valid yet. Then the clock is behind, or that of an issuer
    /// was ahead.
    pub(super) fn fallback(
        &self,
        present: &Credential,
        now: UnixSeconds,
    ) -> Result<Option<Credential>, Error> {
        if !present.is_renewal() {
            return Ok(None);
        }
        let revoked = self.revocations(&present.mesh)?;
        let is_early = now < present.valid_from();
        let is_revoked = revoked.covering(present).is_some();
        if revoked.has_node(&present.node) || !(is_revoked || is_early) {
            return Ok(None);
        }
        let former = self.public_credential(FORMER).unwrap_or(None).filter(|it| {
            it.node == present.node
                && it.verify(&present.mesh, now).is_ok()
                && revoked.covering(it).is_none()
        });
        match former {
            Some(_) if is_revoked => warn!(
                "the current credential was signed by a revoked issuer; using the previous one \
                 until another issuer renews it"
            ),
            Some(_) => warn!(
                valid_from = %present.issued_at, clock = %now,
                "the current credential is not valid yet by this machine's clock; using the \
                 previous one until it is, or an issuer renews it"
            ),
            None => {}
        }
        Ok(former)
    }

    /// Records the node and keys of a mandate, for `meshport revoke`, and what it allows, for
    /// `meshport invite`. The release before 0.1 ignores everything after the key.
    pub fn note_mandate(&self, mandate: &Mandate) -> Result<(), Error> {
        let Terms { issuer, roles, site, lifetime_s, .. } = mandate.terms();
        let site = site.map(|it| format!(" {it}")).unwrap_or_default();
        let line = |it: Turn| {
            let Turn { from, until, key } = it;
            format!("{issuer} {} {} {key} {lifetime_s} {roles}{site}\n", from.0, until.0)
        };
        let known = self.mandates_text()?;
        let lines: String = mandate.turns().map(line).collect();
        self.folder.write(MANDATES, format!("{known}{lines}").as_bytes(), Existing::Replace)
    }

    /// The turns of all mandates recorded here for a node.
    ///
    /// # Errors
    /// [`Error::State`] when the file is damaged.
    pub fn turns_of(&self, issuer: &NodeId) -> Result<Vec<Turn>, Error> {
        let of_issuer = self.recorded()?.into_iter().filter(|it| it.issuer == *issuer);
        Ok(of_issuer.map(|it| it.turn).collect())
    }

    /// The lifetime, in seconds, that an issuer would give to the credential of a node with these
    /// roles in this site, by the last mandate recorded here that allows it and lasts at least as
    /// long; `None` without one.
    ///
    /// # Errors
    /// [`Error::State`] when the file is damaged.
    pub fn renewed_lifetime_s(
        &self,
        roles: &Roles,
        site: &SiteName,
        revoked: &Revocations,
        now: UnixSeconds,
    ) -> Result<Option<u64>, Error> {
        // An operator's machine asks no issuer.
        if roles.is_leaf() {
            return Ok(None);
        }
        let is_revoked = |issuer: &NodeId, key| {
            let has_key = || revoked.iter().any(|it| it.revoked == Revoked::Invite(key));
            revoked.has_node(issuer) || has_key()
        };
        let lifetime_s = |Recorded { issuer, turn, allowed }: Recorded| {
            let Allowed { lifetime_s, roles: allowed, site: only } = allowed?;
            let lasts = turn.until >= now.saturating_add(lifetime_s);
            let covers = roles.is_subset(&allowed) && only.is_none_or(|it| it == *site);
            (lasts && covers && !is_revoked(&issuer, turn.key)).then_some(lifetime_s)
        };
        Ok(self.recorded()?.into_iter().rev().find_map(lifetime_s))
    }

    /// Turns of mandates, in the order in which they were made.
    fn recorded(&self) -> Result<Vec<Recorded>, Error> {
        let text = self.mandates_text()?;
        let read = |(index, line): (usize, &str)| {
            Recorded::read(line).ok_or_else(|| {
                let what = format!("line {} is not a turn of a mandate", index + 1);
                state_error(&self.file(MANDATES), what, GIVE_LINE)
            })
        };
        text.lines().enumerate().map(read).collect()
    }

    fn mandates_text(&self) -> Result<String, Error> {
        let text = self.read_text(MANDATES, MAX_MANDATES_BYTES, GIVE_LINE)?;
        Ok(text.map(|mut it| std::mem::take(&mut *it)).unwrap_or_default())
    }

    /// An intact credential, valid or not.
    pub(super) fn public_credential(&self, name: &str) -> Result<Option<Credential>, Error> {
        let remedy = "No action is needed: the next renewal rewrites it";
        let text = self.read_text(name, MAX_TEXT_BYTES, remedy)?;
        let Some(text) = text else { return Ok(None) };
        let credential = Credential::from_text(text.trim())?;
        credential.verify(&credential.mesh, credential.issued_at)?;
        Ok(Some(credential))
    }
}

/// The content; if it cannot be read, logs a warning and returns `None`.
fn readable<T>(read: Result<Option<T>, Error>) -> Option<T> {
    read.unwrap_or_else(|error| {
        warn!(%error, "starting without it");
        None
    })
}
