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

/// The values being stored, the callers that wait for them, and the previous values that still have
/// to expire.
#[derive(Debug)]
pub(crate) struct Persistence {
    writes: WriteQueue,
    /// `None` for a node without a disk: everything counts as stored at once.
    writer: Option<mpsc::Sender<Write>>,
    askers: Askers,
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
            askers: Askers::default(),
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
}

/// The operators whose values are being written.
#[derive(Debug, Default)]
struct Askers {
    /// With the number of the secret.
    secret: Option<(u64, Asker<RotateReport>)>,
    key: Option<Asker<RotateKeyReport>>,
    renewal: Option<Asker<RenewReport>>,
    mandate: Option<Asker<MandateReport>>,
}

impl Askers {
    /// Whether a key or credential is being written: another is judged after it.
    fn has_identity(&self) -> bool {
        self.key.is_some() || self.renewal.is_some()
    }

    /// The operator whose secret a secret with this number answers.
    fn take_secret(&mut self, number: u64) -> Option<Asker<RotateReport>> {
        self.secret.take_if(|(asked, _)| *asked <= number).map(|(_, asker)| asker)
    }
}

/// Answers an operator, who may be gone.
fn answer<T>(asker: Option<Asker<T>>, answer: Result<T, Error>) {
    if let Some(asker) = asker {
        let _ = asker.send(answer);
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
            Ok(Some(secrets)) if self.persistence.askers.secret.is_none() => {
                self.persistence.askers.secret = Some((secrets.number(), asker));
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
        self.offer(Write::Secrets(Box::new(SecretsWrite { secrets, from, revoked })));
    }

    /// An operator supplies a new identity. Not used while a previous key still answers.
    pub(crate) fn rotate_key(&mut self, next: KeyWrite, asker: Asker<RotateKeyReport>) {
        let own = &self.state.identity;
        let judged =
            self.judge_identity(own.judge_succession(&next.identity), &next.identity.credential);
        let known = judged.map(|is_new| (!is_new).then(|| own.key_report(false)));
        self.supply(known, Write::Key(next), asker, |it| &mut it.key);
    }

    /// An operator supplies a credential.
    pub(crate) fn renew(&mut self, next: Credential, asker: Asker<RenewReport>) {
        let own = &self.state.identity;
        let judged = self.judge_identity(own.judge_renewal(&next), &next);
        let known = judged.map(|is_new| (!is_new).then(|| own.renewal_report(false)));
        self.supply(known, Write::Credential(Box::new(next)), asker, |it| &mut it.renewal);
    }

    /// Whether this node may use a key or credential, which it has `judged` by its own; false if it
    /// does already.
    fn judge_identity(
        &self,
        judged: Result<bool, IdentityError>,
        next: &Credential,
    ) -> Result<bool, IdentityError> {
        if self.persistence.askers.has_identity() {
            return Err(IdentityError::Busy);
        }
        let is_new = judged?;
        if is_new {
            // Other members would refuse it, and so would this node once its clock is right.
            if let Some(wrong) = self.reporter().wrong_clock() {
                return Err(IdentityError::Clock(wrong.detail));
            }
            self.mesh.check_credential(next)?;
        }
        Ok(is_new)
    }

    /// An operator supplies a mandate.
    pub(crate) fn install(&mut self, mandate: Mandate, asker: Asker<MandateReport>) {
        let known = match self.persistence.askers.mandate {
            Some(_) => Err(IdentityError::Busy.into()),
            None => self.judge_mandate(&mandate).map(|()| None).map_err(Error::Trust),
        };
        self.supply(known, Write::Mandate(Box::new(mandate)), asker, |it| &mut it.mandate);
    }

    /// Queues an operator's value; answered when it is stored and in use, or at once if it is
    /// refused or `known`.
    fn supply<T, E: Into<Error>>(
        &mut self,
        known: Result<Option<T>, E>,
        write: Write,
        asker: Asker<T>,
        slot: fn(&mut Askers) -> &mut Option<Asker<T>>,
    ) {
        match known.transpose() {
            Some(known) => answer(Some(asker), known.map_err(Into::into)),
            None => {
                *slot(&mut self.persistence.askers) = Some(asker);
                self.offer(write);
            }
        }
    }

    /// Stores revocations for the next start; they are in force already.
    pub(crate) fn store_revocations(&mut self, all: Revocations) {
        let own = all.covering(&self.state.identity.credential).cloned();
        self.offer(Write::Revocations(RevocationsWrite { all, own }));
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
        self.persistence.writes.handle_stored(&write);
        match write {
            Write::Secrets(new) => {
                let (number, change) =
                    (new.secrets.number(), Change::Rotated(Box::new(new.secrets)));
                let changed = self.change_identity(change, new.from);
                let own = &self.state.identity;
                let used = changed.map(|()| own.secret_report(true, clock::wall()));
                self.persistence.former_secret = Overlap::default();
                self.persistence.look_at = own.secrets.retires_at().map(|_| now);
                answer(
                    self.persistence.askers.take_secret(number),
                    used.map_err(|error| Error::Refused(error.to_string())),
                );
            }
            Write::Key(KeyWrite { identity, overlap }) => {
                let ends_at = clock::wall().saturating_add(overlap.as_secs());
                match self.change_identity(Change::Succeeded(identity, ends_at), None) {
                    Ok(()) => {
                        self.persistence.former_key_until = Some(now + overlap);
                        answer(
                            self.persistence.askers.key.take(),
                            Ok(self.state.identity.key_report(true)),
                        );
                    }
                    Err(error) => self.lose_key(error.to_string()),
                }
            }
            Write::Renewal(new) => self.take_renewal(&new),
            Write::Credential(next) => {
                let used = self.use_stored(*next).map_err(Error::from);
                let report = used.map(|()| self.state.identity.renewal_report(true));
                answer(self.persistence.askers.renewal.take(), report);
            }
            Write::Mandate(mandate) => {
                let report = self.take_mandate(*mandate);
                answer(self.persistence.askers.mandate.take(), Ok(report));
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
        let is_first = self.persistence.writes.handle_failure(write, now);
        match write {
            Write::Secrets(new) => {
                // Members offer theirs again.
                warn!(%error, "a new mesh secret cannot be stored, so it is not used");
                self.persistence.look_at = self.state.identity.secrets.retires_at().map(|_| now);
                let asker = self.persistence.askers.take_secret(new.secrets.number());
                answer(asker, Err(Error::Refused(error)));
            }
            Write::Key(_) => self.lose_key(error),
            Write::Revocations(_) if is_first => {
                warn!(%error, "cannot store a revocation; retrying");
            }
            Write::Renewal(_) => self.lose_renewal(error),
            Write::Credential(_) => {
                warn!(%error, "a new credential cannot be stored, so it is not used");
                answer(self.persistence.askers.renewal.take(), Err(Error::Refused(error)));
            }
            Write::Mandate(_) => {
                warn!(%error, "a mandate cannot be stored, so it is not used");
                answer(self.persistence.askers.mandate.take(), Err(Error::Refused(error)));
            }
            Write::Unexpired(_) => {
                warn!(%error, "cannot erase expired keys of the mandate; retrying later");
            }
            Write::Nodes(_) => warn!(%error, "cannot store the nodes of the cluster"),
            Write::Revocations(_) | Write::Directory(_) => {}
        }
    }

    /// Queues a value to be stored.
    pub(crate) fn offer(&mut self, write: Write) {
        self.persistence.writes.offer(write);
    }

    fn lose_key(&mut self, error: String) {
        warn!(%error, "a new key cannot be stored, so it is not used");
        answer(self.persistence.askers.key.take(), Err(Error::Refused(error)));
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
