//! Files of the state folder for renewals by issuers: the credentials before the current one, and
//! an issuer's mandate.

use meshport_config::{Credential, Mandate, NodeId, Turn, UnixSeconds};
use tracing::warn;

use super::folder::{Content, Existing};
use super::{CREDENTIAL, MAX_TEXT_BYTES, StateDir, state_error};
use crate::Error;

/// The right to renew others, with its keys.
pub(super) const MANDATE: &str = "mandate";
/// The last credential that no issuer signed: a node presents it with each request.
pub(super) const BASE: &str = "credential.base";
/// The one before the current one, to which a node returns when its issuer is revoked.
pub(super) const FORMER: &str = "credential.former";
/// The members that got mandates from the authority's key used here, so that they can be revoked.
pub(super) const MANDATES: &str = "mandates";
/// A mandate has 4,000 bytes at most before base64.
const MAX_MANDATE_TEXT_BYTES: usize = 8 * 1024;
/// The size of the record of mandates: some thousand turns.
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
        KnownRenewals { mandate, base: of_own(BASE), former: of_own(FORMER) }
    }

    /// The right of this node to renew the credentials of others, if it has one.
    ///
    /// # Errors
    /// As [`StateDir::node_key`].
    pub fn mandate(&self) -> Result<Option<Mandate>, Error> {
        let max = MAX_MANDATE_TEXT_BYTES;
        let text = self.read_text(MANDATE, max, Content::Secret, DELEGATE)?;
        text.map(|text| super::parsed(&text, &self.file(MANDATE), DELEGATE)).transpose()
    }

    /// Writes the mandate in place of any other.
    ///
    /// # Errors
    /// As [`StateDir::store_node_key`].
    pub fn store_mandate(&self, mandate: &Mandate) -> Result<(), Error> {
        let text = mandate.to_text()?;
        self.folder.write_like(MANDATE, text.as_bytes(), CREDENTIAL)
    }

    /// Writes a renewed credential, after its predecessors.
    ///
    /// # Errors
    /// As [`StateDir::store_node_key`].
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

    /// The credential before `present`, if `present` was revoked with its issuer and the one before
    /// was not.
    ///
    /// # Errors
    /// As [`StateDir::revocations`].
    pub(super) fn fallback(
        &self,
        present: &Credential,
        now: UnixSeconds,
    ) -> Result<Option<Credential>, Error> {
        if !present.is_renewal() {
            return Ok(None);
        }
        let revoked = self.revocations(&present.mesh)?;
        if revoked.covering(present).is_none() || revoked.has_node(&present.node) {
            return Ok(None);
        }
        let former = self.public_credential(FORMER).unwrap_or(None).filter(|it| {
            it.node == present.node
                && it.verify(&present.mesh, now).is_ok()
                && revoked.covering(it).is_none()
        });
        if former.is_some() {
            warn!(
                "the present credential was signed by an issuer that is revoked: the one before it \
                 is used until another issuer renews it"
            );
        }
        Ok(former)
    }

    /// Records for `meshport revoke` which node's mandate has which keys.
    ///
    /// # Errors
    /// As [`StateDir::store_directory`].
    pub fn note_mandate(&self, mandate: &Mandate) -> Result<(), Error> {
        let issuer = mandate.issuer();
        let line = |it: Turn| format!("{issuer} {} {} {}\n", it.from.0, it.until.0, it.key);
        let known = self.read_text(MANDATES, MAX_MANDATES_BYTES, Content::Public, GIVE_LINE)?;
        let known = known.map(|mut it| std::mem::take(&mut *it)).unwrap_or_default();
        let lines: String = mandate.turns().map(line).collect();
        self.folder.write(MANDATES, format!("{known}{lines}").as_bytes(), Existing::Replace)
    }

    /// The turns of all mandates recorded here for a node.
    ///
    /// # Errors
    /// [`Error::State`] when the file is damaged.
    pub fn turns_of(&self, issuer: &NodeId) -> Result<Vec<Turn>, Error> {
        let text = self.read_text(MANDATES, MAX_MANDATES_BYTES, Content::Public, GIVE_LINE)?;
        let text = text.map(|mut it| std::mem::take(&mut *it)).unwrap_or_default();
        let read = |line: &str| -> Option<(NodeId, Turn)> {
            let mut words = line.split(' ');
            let node = words.next()?.parse().ok()?;
            let mut time = || Some(UnixSeconds(words.next()?.parse().ok()?));
            let (from, until) = (time()?, time()?);
            Some((node, Turn { from, until, key: words.next()?.parse().ok()? }))
        };
        let mut turns = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let Some((node, turn)) = read(line) else {
                let what = format!("line {} is not a turn of a mandate", index + 1);
                return Err(state_error(&self.file(MANDATES), what, GIVE_LINE));
            };
            if node == *issuer {
                turns.push(turn);
            }
        }
        Ok(turns)
    }

    /// An intact credential, valid or not.
    pub(super) fn public_credential(&self, name: &str) -> Result<Option<Credential>, Error> {
        let remedy = "Nothing to do: it is written anew with the next renewal";
        let text = self.read_text(name, MAX_TEXT_BYTES, Content::Public, remedy)?;
        let Some(text) = text else { return Ok(None) };
        let credential = Credential::from_text(text.trim())?;
        credential.verify(&credential.mesh, credential.issued_at)?;
        Ok(Some(credential))
    }
}

/// The content that was read, or a warning and nothing.
fn readable<T>(read: Result<Option<T>, Error>) -> Option<T> {
    read.unwrap_or_else(|error| {
        warn!(%error, "starting without it");
        None
    })
}
