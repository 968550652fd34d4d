//! Rotation of the mesh secret: stored on disk, then used, and the end of the former one.
//!
//! The driver never waits for a disk, and nothing is used or passed on that is not stored: the
//! driver offers a new secret ([`Rotating::offer`]), a keeper writes it ([`keep`]) and tells the
//! driver to use it. A crash in between leaves a complete file, from which the next start
//! continues. One offer is in progress at a time; a later one replaces it.

use std::time::Duration;

use meshport_config::{MeshSecrets, NextSecret, NodeId, Revocations, SecretId};
use meshport_core::overlap::Overlap;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;
use tracing::{info, warn};

use crate::admin::credentials::RotateReport;

use crate::Error;
use crate::clock;
use crate::node::driver::Driver;
use crate::node::driver::answers::Asker;
use crate::node::orders::Order;
use crate::state::{Existing, StateDir};

/// From a write that failed to the next attempt.
const RETRY: Duration = Duration::from_secs(5);

/// What a node holds, and what is on its way to the disk.
#[derive(Debug)]
pub(crate) struct Rotating {
    /// What is in use.
    pub(crate) secrets: MeshSecrets,
    offers: watch::Sender<Option<MeshSecrets>>,
    /// Who brought what is under way: a member, or an operator who waits for the outcome.
    from: Option<NodeId>,
    asker: Option<Asker<RotateReport>>,
}

impl Rotating {
    /// Nothing is under way.
    pub(crate) fn new(secrets: MeshSecrets) -> (Self, watch::Receiver<Option<MeshSecrets>>) {
        let (offers, receiver) = watch::channel(None);
        (Self { secrets, offers, from: None, asker: None }, receiver)
    }

    /// A member has handed over a secret that the mesh has verified.
    pub(crate) fn offer(&mut self, from: NodeId, secrets: MeshSecrets) {
        self.from = Some(from);
        self.offers.send_replace(Some(secrets));
    }

    fn report(&self, is_new: bool) -> RotateReport {
        RotateReport {
            number: self.secrets.number(),
            former_ends_at: self.secrets.retires_at(),
            is_new,
        }
    }
}

impl Driver {
    /// An operator brings a secret; answered when it is kept and in use.
    pub(crate) fn rotate(&mut self, next: &NextSecret, asker: Asker<RotateReport>) {
        let mesh = self.reporter.credential.mesh;
        let rotating = &mut self.rotating;
        let answer = match rotating.secrets.take(next, &mesh, clock::wall()) {
            Ok(Some(secrets)) if rotating.asker.is_none() => {
                rotating.from = None;
                rotating.asker = Some(asker);
                rotating.offers.send_replace(Some(secrets));
                return;
            }
            Ok(Some(_)) => {
                Err(Error::Refused("another new secret is being written; try again".to_owned()))
            }
            Ok(None) => Ok(rotating.report(false)),
            Err(error) => Err(Error::Refused(error.to_string())),
        };
        // An asker that went away needs no answer.
        let _ = asker.send(answer);
    }

    /// What was offered, or the end of a former one, is on disk.
    pub(crate) fn take_secrets(&mut self, secrets: MeshSecrets) {
        let before = (self.rotating.secrets.number(), self.rotating.secrets.former().is_some());
        self.mesh.set_secrets(&secrets);
        self.rotating.secrets = secrets;
        let secrets = &self.rotating.secrets;
        let (number, until) = (secrets.number(), secrets.retires_at());
        if number != before.0 {
            let (id, from) = (SecretId::of(secrets.current()), self.rotating.from);
            let until_text = until.map(tracing::field::display);
            info!(number, secret = %id, former_until = until_text, "the mesh has a new secret");
            self.reporter.audit.rotated(number, until, from.as_ref());
        } else if before.1 && secrets.former().is_none() {
            info!(number, "the former mesh secret is erased");
            self.reporter.audit.retired(number);
        }
        self.rotating.from = None;
        if let Some(asker) = self.rotating.asker.take() {
            let _ = asker.send(Ok(self.rotating.report(true)));
        }
    }

    /// What was offered cannot be written. Members offer theirs again.
    pub(crate) fn lose_secrets(&mut self, error: String) {
        warn!(%error, "a new mesh secret cannot be stored, so it is not used");
        if let Some(asker) = self.rotating.asker.take() {
            let _ = asker.send(Err(Error::Refused(error)));
        }
    }
}

/// Writes what is offered and erases a former secret when its time is over beyond doubt; until then
/// the mesh judges by the clock whether it opens anything. Never returns while the node runs.
pub(crate) async fn keep(
    state: StateDir,
    mut held: MeshSecrets,
    mut offers: watch::Receiver<Option<MeshSecrets>>,
    revocations: watch::Receiver<Revocations>,
    orders: mpsc::Sender<Order>,
) {
    let mut overlap = Overlap::default();
    loop {
        let next = tokio::select! {
            changed = offers.changed() => match changed {
                Ok(()) => offers.borrow_and_update().clone(),
                Err(_ended) => return,
            },
            () = ended(&held, &mut overlap) => Some(held.without_former()),
        };
        let Some(next) = next else { continue };
        let (to, secrets, revoked) = (state.clone(), next.clone(), revocations.borrow().clone());
        let written = tokio::task::spawn_blocking(move || {
            // First: whoever hands a secret on must know who was shut out before it.
            to.store_revocations(&revoked)?;
            to.store_mesh_secrets(&secrets, Existing::Replace)
        });
        let order = match written.await {
            Ok(Ok(())) => {
                held = next.clone();
                overlap = Overlap::default();
                Order::Secrets(Box::new(next))
            }
            Ok(Err(error)) => Order::SecretsLost(error.to_string()),
            Err(error) => Order::SecretsLost(error.to_string()),
        };
        let is_lost = matches!(order, Order::SecretsLost(_));
        if orders.send(order).await.is_err() {
            return;
        }
        if is_lost {
            sleep(RETRY).await;
        }
    }
}

/// Waits until the former secret may be erased; for ever, where there is none.
async fn ended(held: &MeshSecrets, overlap: &mut Overlap) {
    let Some(end) = held.retires_at() else { return std::future::pending().await };
    while !overlap.is_over(end, clock::wall(), clock::now()) {
        sleep(overlap.wait(clock::now())).await;
    }
}
