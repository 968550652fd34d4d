//! The identity of this node: one value, and all operations that change it. No socket, no
//! clock.
//!
//! It has no private keys: only the mesh and the core have those.

use std::sync::Arc;

use meshport_config::{Credential, MeshSecrets, NodeId, UnixSeconds};
use meshport_mesh::{MeshError, NotBelieved};

use crate::Error;
use crate::admin::api::NodeRef;
use crate::admin::credentials::{FormerKey, RenewReport, RotateKeyReport, RotateReport};
use meshport_state::{Identity, NextIdentity};

#[cfg(test)]
pub(crate) mod tests;

/// Why an identity was refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum IdentityError {
    // The fault of the supplier of the other one.
    #[error("its name, site or key differs from the current one, which needs a restart")]
    NotThisNode,
    #[error(transparent)]
    WrongKeys(#[from] meshport_config::Error),
    #[error(
        "its credential does not name this node as its predecessor. Create it here with `meshport \
         rotate-key`"
    )]
    NotItsSuccessor,
    #[error("it has another name or site than the node it succeeds")]
    Renamed,

    // The mesh: its rules, or another change that is in progress.
    #[error(transparent)]
    NotAdmitted(#[from] NotBelieved),
    #[error(transparent)]
    Mesh(#[from] MeshError),
    #[error("another change is being written; try again")]
    Busy,
    #[error("{0}. Correct the clock; if it is right, restart this daemon first")]
    Clock(String),
}

/// The admin interface answers with text.
impl From<IdentityError> for Error {
    fn from(error: IdentityError) -> Self {
        Self::Refused(error.to_string())
    }
}

/// The identity that is in use.
#[derive(Debug)]
pub(crate) struct CurrentIdentity {
    pub(crate) credential: Arc<Credential>,
    pub(crate) secrets: MeshSecrets,
    /// The previous key, while it still answers.
    pub(crate) former_key: Option<FormerKey>,
    /// The credential's name, site and NodeId, for reports.
    pub(crate) me: NodeRef,
}

/// A checked change, stored if it must outlive the process.
#[derive(Debug)]
pub(crate) enum Change {
    /// Another credential for the same keys.
    Renewed(Box<Credential>),
    /// The credential before the current one, which is unusable.
    Returned(Box<Credential>),
    /// Another set of mesh secrets.
    Rotated(Box<MeshSecrets>),
    /// New keys and their credential; the current key answers until then.
    Succeeded(Arc<NextIdentity>, UnixSeconds),
    /// The previous key no longer answers.
    Retired,
}

/// The results of a change, for the log and the audit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Changed {
    Nothing,
    Credential,
    FormerCredential,
    Secret,
    FormerSecretErased,
    Key(FormerKey),
    FormerKeyErased(FormerKey),
}

impl CurrentIdentity {
    /// The identity in the state folder.
    pub(crate) fn new(identity: &Identity) -> Self {
        Self::of(Arc::new(identity.credential.clone()), identity.secrets.clone())
    }

    /// With this credential and these secrets.
    pub(crate) fn of(credential: Arc<Credential>, secrets: MeshSecrets) -> Self {
        let me = node_ref(&credential);
        Self { credential, secrets, former_key: None, me }
    }

    /// Whether this credential replaces the current one; false if it is the same.
    ///
    /// # Errors
    /// [`IdentityError::NotThisNode`].
    pub(crate) fn judge_renewal(&self, new: &Credential) -> Result<bool, IdentityError> {
        let known = &*self.credential;
        if known == new {
            return Ok(false);
        }
        let same = (known.node, known.record_key, &known.name, &known.site);
        if same != (new.node, new.record_key, &new.name, &new.site) {
            return Err(IdentityError::NotThisNode);
        }
        Ok(true)
    }

    /// Whether these keys replace the current ones; false while the previous key still answers.
    ///
    /// # Errors
    /// [`IdentityError`] if they are not those of a successor of this node.
    pub(crate) fn judge_succession(&self, next: &NextIdentity) -> Result<bool, IdentityError> {
        if self.former_key.is_some() {
            return Ok(false);
        }
        let (known, new) = (&self.credential, &next.credential);
        next.check()?;
        let former = new.succession.as_ref().map(|it| it.former);
        if former != Some(known.node) {
            return Err(IdentityError::NotItsSuccessor);
        }
        if (&new.name, &new.site) != (&known.name, &known.site) {
            return Err(IdentityError::Renamed);
        }
        Ok(true)
    }

    /// Makes a change.
    pub(crate) fn apply(&mut self, change: Change) -> Changed {
        match change {
            Change::Renewed(credential) => {
                self.show(*credential);
                Changed::Credential
            }
            Change::Returned(credential) => {
                self.show(*credential);
                Changed::FormerCredential
            }
            Change::Rotated(secrets) => {
                let before = std::mem::replace(&mut self.secrets, *secrets);
                if self.secrets.number() != before.number() {
                    Changed::Secret
                } else if before.former().is_some() && self.secrets.former().is_none() {
                    Changed::FormerSecretErased
                } else {
                    Changed::Nothing
                }
            }
            Change::Succeeded(next, ends_at) => {
                let former = FormerKey { node: self.node(), ends_at };
                self.former_key = Some(former.clone());
                self.show(next.credential.clone());
                Changed::Key(former)
            }
            Change::Retired => match self.former_key.take() {
                Some(former) => Changed::FormerKeyErased(former),
                None => Changed::Nothing,
            },
        }
    }

    pub(crate) fn node(&self) -> NodeId {
        self.credential.node
    }

    /// The answer to an operator who supplied a secret.
    pub(crate) fn secret_report(&self, is_new: bool, now: UnixSeconds) -> RotateReport {
        let former_ends_at = self.secrets.retires_at().filter(|at| *at > now);
        RotateReport { number: self.secrets.number(), former_ends_at, is_new }
    }

    /// The answer to an operator who supplied a credential.
    pub(crate) fn renewal_report(&self, is_new: bool) -> RenewReport {
        RenewReport { expires_at: self.credential.expires_at, is_new, is_stored: true }
    }

    /// The answer to an operator who supplied keys.
    pub(crate) fn key_report(&self, is_new: bool) -> RotateKeyReport {
        RotateKeyReport { node: self.node(), former: self.former_key.clone(), is_new }
    }

    fn show(&mut self, credential: Credential) {
        self.me = node_ref(&credential);
        self.credential = Arc::new(credential);
    }
}

fn node_ref(credential: &Credential) -> NodeRef {
    let Credential { node, name, site, .. } = credential;
    NodeRef { node: *node, name: name.clone(), site: site.clone() }
}
