//! Mesh secrets, keys, operators' credentials, mandates and revocations: the writer stores them,
//! then the driver uses them. Retires expired ones. The driver never waits for a disk.

use std::time::Instant;

use meshport_config::{
    Credential, Mandate, MeshSecrets, NextSecret, NodeId, Revocations, UnixSeconds,
};
use meshport_core::overlap::Overlap;
use tokio::sync::mpsc;
use tracing::warn;

use crate::Error;
use crate::admin::credentials::{MandateReport, RenewReport, RotateKeyReport, RotateReport};
use crate::clock;
use crate::driver::Driver;
use crate::driver::answers::Asker;
use crate::driver::write_queue::KeyWrite;
use crate::driver::write_queue::{RevocationsWrite, SecretsWrite, Write, WriteQueue};
use crate::identity::{Change, IdentityError};
use meshport_state::NextIdentity;

/// The values being stored, the callers that wait for them, and the previous values that still have
/// to expire.
#[derive(Debug)]
pub(crate) struct Persistence {
    writes: WriteQueue,
    /// `None` for a node without a disk: everything counts as stored at once.
    writer: Option<mpsc::Sender<Write>>,
    /// The operator who supplied the secret with this number.
    secret_asker: Option<(u64, Asker<RotateReport>)>,
    key_asker: Option<Asker<RotateKeyReport>>,
    renewal_asker: Option<Asker<RenewReport>>,
    mandate_asker: Option<Asker<MandateReport>>,
    former_secret: Overlap,
    /// When to check again whether the previous secret, if any, has expired.
    look_at: Option<Instant>,
    former_key_until: Option<Instant>,
}

impl Persistence {
    /// Nothing is being stored.
    pub(crate) fn new(secrets: &MeshSecrets, writer: Option<mpsc::Sender<Write>>) -> Self {
        Self {
            writes: WriteQueue::default(),
            writer,
            secret_asker: None,
            key_asker: None,
            renewal_asker: None,
            mandate_asker: None,
            former_secret: Overlap::default(),
            look_at: secrets.retires_at().map(|_| clock::now()),
            former_key_until: None,
        }
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        [self.writes.poll_timeout(), self.look_at, self.former_key_until]
            .into_iter()
            .flatten()
            .min()
    }

    /// Whether a key or credential of an operator is being written: another is judged after it.
    fn has_identity_asker(&self) -> bool {
        self.key_asker.is_some() || self.renewal_asker.is_some()
    }

    /// Answers the operator, who may be gone, once.
    fn answer_secret(&mut self, number: u64, answer: Result<RotateReport, Error>) {
        if let Some((_, asker)) = self.secret_asker.take_if(|(asked, _)| *asked <= number) {
            let _ = asker.send(answer);
        }
    }

    fn answer_key(&mut self, answer: Result<RotateKeyReport, Error>) {
        if let Some(asker) = self.key_asker.take() {
            let _ = asker.send(answer);
        }
    }

    fn answer_renewal(&mut self, answer: Result<RenewReport, Error>) {
        if let Some(asker) = self.renewal_asker.take() {
            let _ = asker.send(answer);
        }
    }

    fn answer_mandate(&mut self, answer: Result<MandateReport, Error>) {
        if let Some(asker) = self.mandate_asker.take() {
            let _ = asker.send(answer);
        }
    }
}

impl Driver {
    /// An operator supplies a secret; answered when it is stored and in use.
    pub(crate) fn rotate(&mut self, next: &NextSecret, asker: Asker<RotateReport>) {
        let own = &self.state.identity;
        let timely = |it: MeshSecrets| it.check_times(clock::wall()).map(|()| it);
        let taken = own.secrets.take(next, &own.credential.mesh);
        let taken = taken.and_then(|taken| taken.map(timely).transpose());
        let answer = match taken {
            Ok(Some(secrets)) if self.persistence.secret_asker.is_none() => {
                self.persistence.secret_asker = Some((secrets.number(), asker));
                return self.offer_secrets(secrets, None);
            }
            Ok(Some(_)) => {
                Err(Error::Refused("another new secret is being written; try again".to_owned()))
            }
            Ok(None) => Ok(own.secret_report(false, clock::wall())),
            Err(error) => Err(Error::Refused(error.to_string())),
        };
        let _ = asker.send(answer);
    }

    /// Secrets that the mesh has verified, or the current one without the previous.
    pub(crate) fn offer_secrets(&mut self, secrets: MeshSecrets, from: Option<NodeId>) {
        let revoked = self.core.discovery().revocations().clone();
        self.persistence.writes.offer(Write::Secrets(Box::new(SecretsWrite {
            secrets,
            from,
            revoked,
        })));
    }

    /// An operator supplies a new identity; answered when it is stored and in use.
    pub(crate) fn rotate_key(&mut self, next: KeyWrite, asker: Asker<RotateKeyReport>) {
        let answer = match self.judge_next(&next.identity) {
            Ok(true) => {
                self.persistence.key_asker = Some(asker);
                return self.persistence.writes.offer(Write::Key(next));
            }
            Ok(false) => Ok(self.state.identity.key_report(false)),
            Err(error) => Err(error.into()),
        };
        let _ = asker.send(answer);
    }

    /// Whether this node may continue with that identity; not while a previous key still answers.
    fn judge_next(&self, next: &NextIdentity) -> Result<bool, IdentityError> {
        if self.persistence.has_identity_asker() {
            return Err(IdentityError::Busy);
        }
        if !self.state.identity.judge_succession(next)? {
            return Ok(false);
        }
        self.mesh.check_credential(&next.credential)?;
        Ok(true)
    }

    /// An operator supplies a credential; answered when it is stored and in use.
    pub(crate) fn renew(&mut self, next: Credential, asker: Asker<RenewReport>) {
        let answer = match self.judge_credential(&next) {
            Ok(true) => {
                self.persistence.renewal_asker = Some(asker);
                return self.offer(Write::Credential(Box::new(next)));
            }
            Ok(false) => Ok(self.state.identity.renewal_report(false)),
            Err(error) => Err(error.into()),
        };
        let _ = asker.send(answer);
    }

    /// Whether this node may use that credential; false if it does already.
    fn judge_credential(&self, next: &Credential) -> Result<bool, IdentityError> {
        if self.persistence.has_identity_asker() {
            return Err(IdentityError::Busy);
        }
        if !self.state.identity.judge_renewal(next)? {
            return Ok(false);
        }
        self.mesh.check_credential(next)?;
        Ok(true)
    }

    /// An operator supplies a mandate; answered when it is stored and in use.
    pub(crate) fn install(&mut self, mandate: Mandate, asker: Asker<MandateReport>) {
        let judged = match self.persistence.mandate_asker {
            Some(_) => Err(IdentityError::Busy.into()),
            None => self.judge_mandate(&mandate).map_err(Error::Trust),
        };
        if let Err(error) = judged {
            let _ = asker.send(Err(error));
            return;
        }
        self.persistence.mandate_asker = Some(asker);
        self.offer(Write::Mandate(Box::new(mandate)));
    }

    /// Stores revocations for the next start; they are in force already.
    pub(crate) fn store_revocations(&mut self, all: Revocations) {
        let own = all.covering(&self.state.identity.credential).cloned();
        self.persistence.writes.offer(Write::Revocations(RevocationsWrite { all, own }));
    }

    /// Passes queued writes to the writer.
    pub(crate) fn hand_over(&mut self, now: Instant) {
        while let Some(write) = self.persistence.writes.poll(now) {
            let Some(writer) = &self.persistence.writer else {
                self.take_stored(write);
                continue;
            };
            if let Err(error) = writer.try_send(write) {
                self.lose(&error.into_inner(), "this daemon is stopping".to_owned());
            }
        }
    }

    /// It is stored, so it takes effect.
    pub(crate) fn take_stored(&mut self, write: Write) {
        let now = clock::now();
        self.persistence.writes.handle(&write, true, now);
        match write {
            Write::Secrets(new) => {
                let (number, change) =
                    (new.secrets.number(), Change::Rotated(Box::new(new.secrets)));
                let changed = self.change_identity(change, new.from);
                let own = &self.state.identity;
                let answer = changed.map(|()| own.secret_report(true, clock::wall()));
                self.persistence.former_secret = Overlap::default();
                self.persistence.look_at = own.secrets.retires_at().map(|_| now);
                self.persistence.answer_secret(
                    number,
                    answer.map_err(|error| Error::Refused(error.to_string())),
                );
            }
            Write::Key(KeyWrite { identity, overlap }) => {
                let ends_at = clock::wall().saturating_add(overlap.as_secs());
                match self.change_identity(Change::Succeeded(identity, ends_at), None) {
                    Ok(()) => {
                        self.persistence.former_key_until = Some(now + overlap);
                        self.persistence.answer_key(Ok(self.state.identity.key_report(true)));
                    }
                    Err(error) => self.lose_key(error.to_string()),
                }
            }
            Write::Renewal(new) => self.take_renewal(&new),
            Write::Credential(next) => {
                let used = self.use_stored(*next).map_err(Error::from);
                let report = used.map(|()| self.state.identity.renewal_report(true));
                self.persistence.answer_renewal(report);
            }
            Write::Mandate(mandate) => {
                let report = self.take_mandate(*mandate);
                self.persistence.answer_mandate(Ok(report));
            }
            Write::Unexpired(left) => {
                if let Some(issuer) = &mut self.state.renewals.issuer {
                    issuer.set_mandate(*left);
                }
            }
            Write::Revocations(_) | Write::Nodes(_) | Write::Directory(_) => {}
        }
    }

    /// A value cannot be stored, so it is not used.
    pub(crate) fn lose(&mut self, write: &Write, error: String) {
        let now = clock::now();
        self.persistence.writes.handle(write, false, now);
        match write {
            Write::Secrets(new) => {
                // Members offer theirs again.
                warn!(%error, "a new mesh secret cannot be stored, so it is not used");
                self.persistence.look_at = self.state.identity.secrets.retires_at().map(|_| now);
                self.persistence.answer_secret(new.secrets.number(), Err(Error::Refused(error)));
            }
            Write::Key(_) => self.lose_key(error),
            Write::Revocations(_) => {
                warn!(%error, "cannot store a revocation; other nodes send it again after a \
                               restart");
            }
            Write::Renewal(_) => self.lose_renewal(error),
            Write::Credential(_) => {
                warn!(%error, "a new credential cannot be stored, so it is not used");
                self.persistence.answer_renewal(Err(Error::Refused(error)));
            }
            Write::Mandate(_) => {
                warn!(%error, "a mandate cannot be stored, so it is not used");
                self.persistence.answer_mandate(Err(Error::Refused(error)));
            }
            Write::Unexpired(_) => {
                warn!(%error, "cannot erase expired keys of the mandate; retrying later");
            }
            Write::Nodes(_) => warn!(%error, "cannot store the nodes of the cluster"),
            Write::Directory(_) => {}
        }
    }

    /// Queues a value to be stored.
    pub(crate) fn offer(&mut self, write: Write) {
        self.persistence.writes.offer(write);
    }

    fn lose_key(&mut self, error: String) {
        warn!(%error, "a new key cannot be stored, so it is not used");
        self.persistence.answer_key(Err(Error::Refused(error)));
    }

    /// Erases the previous secret and key once they have expired: the secret only when its expiry
    /// is certain; until then the mesh checks it by the wall clock.
    pub(crate) fn end_former(&mut self, now: Instant, wall: UnixSeconds) {
        if self.persistence.former_key_until.take_if(|until| *until <= now).is_some() {
            // This change cannot be refused.
            let _ = self.change_identity(Change::Retired, None);
        }
        let own = &self.state.identity;
        let Some(end) = own.secrets.retires_at() else { return };
        if self.persistence.look_at.is_none_or(|at| now < at) {
            return;
        }
        let is_over = self.persistence.former_secret.is_over(end, wall, now);
        self.persistence.look_at = Some(now + self.persistence.former_secret.wait(now));
        if is_over && !self.persistence.writes.has_secrets() {
            let secrets = own.secrets.without_former();
            self.offer_secrets(secrets, None);
        }
    }
}

#[cfg(test)]
mod tests;
