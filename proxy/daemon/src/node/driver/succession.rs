//! A new key for this node: stored on disk, then used, and the end of the former key.
//!
//! The driver never waits for a disk, and nothing is used that is not stored: it hands a new
//! identity to a keeper (`keep`), which writes it and tells the driver to use it, and later to
//! erase the former key. That one is on no disk from then on and answers from memory until the end
//! of the overlap.

use std::sync::Arc;

use meshport_config::{Credential, NodeId};
use meshport_discovery::LocalNode;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;
use tracing::{info, warn};

use crate::admin::credentials::{FormerKey, RotateKeyReport};

use crate::Error;
use crate::admin::report;
use crate::clock;
use crate::node::driver::Driver;
use crate::node::driver::answers::Asker;
use crate::node::orders::{Next, Order};
use crate::state::{NextIdentity, StateDir};

/// What is on its way to the disk.
#[derive(Debug)]
pub(crate) struct Succeeding {
    offers: watch::Sender<Option<Next>>,
    asker: Option<Asker<RotateKeyReport>>,
}

impl Succeeding {
    /// Nothing is under way.
    pub(crate) fn new() -> (Self, watch::Receiver<Option<Next>>) {
        let (offers, receiver) = watch::channel(None);
        (Self { offers, asker: None }, receiver)
    }
}

impl Driver {
    /// An operator brings a new identity; answered when it is kept and in use.
    pub(crate) fn rotate_key(&mut self, next: Next, asker: Asker<RotateKeyReport>) {
        let answer = match self.judge_next(&next.identity) {
            Ok(true) => {
                self.succeeding.asker = Some(asker);
                self.succeeding.offers.send_replace(Some(next));
                return;
            }
            Ok(false) => Ok(self.key_report(false)),
            Err(reason) => Err(Error::Refused(reason)),
        };
        // An asker that went away needs no answer.
        let _ = asker.send(answer);
    }

    /// Whether this node may go on as that one; not while it still answers for another.
    fn judge_next(&self, next: &NextIdentity) -> Result<bool, String> {
        if self.succeeding.asker.is_some() {
            return Err("another new key is being written; try again".to_owned());
        }
        if self.reporter.former_key.is_some() {
            return Ok(false);
        }
        let (known, new) = (&self.reporter.credential, &next.credential);
        next.check().map_err(|error| error.to_string())?;
        let former = new.succession.as_ref().map(|it| it.former);
        if former != Some(known.node) {
            return Err("its credential does not say that it succeeds this node".to_owned());
        }
        if (&new.name, &new.site) != (&known.name, &known.site) {
            return Err("it has another name or site than the node it succeeds".to_owned());
        }
        self.mesh.check_credential(new)?;
        Ok(true)
    }

    fn key_report(&self, is_new: bool) -> RotateKeyReport {
        let former = self.reporter.former_key.clone();
        RotateKeyReport { node: self.reporter.me.node, former, is_new }
    }

    /// The new identity is on disk: this node goes on as that one.
    pub(crate) fn succeed(&mut self, next: &Next) {
        let NextIdentity { node_key, record_key, credential } = &*next.identity;
        let identity = meshport_mesh::Identity {
            key: node_key.clone(),
            credential: credential.clone(),
            secret: self.rotating.secrets.current().clone(),
        };
        // First: peers have to know whose gossip it is.
        if let Err(error) = self.mesh.succeed(&identity) {
            return self.lose_key(error.to_string());
        }
        let former = self.reporter.me.node;
        let ends_at = clock::wall().saturating_add(next.overlap.as_secs());
        self.reporter.me = report::of_credential(credential);
        self.reporter.credential = credential.clone();
        self.reporter.former_key = Some(FormerKey { node: former, ends_at });
        self.outputs.own.send_replace(Arc::new(credential.clone()));
        let me = LocalNode { credential: credential.clone(), record_key: record_key.clone() };
        self.core.succeed(me, clock::now());
        let node = credential.node.short();
        let (old, until) = (former.short(), ends_at);
        info!(%node, former = %old, %until, "this node uses a new key");
        self.reporter.audit.key_rotated(&credential.node, &former, ends_at);
        if let Some(asker) = self.succeeding.asker.take() {
            let _ = asker.send(Ok(self.key_report(true)));
        }
    }

    /// The overlap is over.
    pub(crate) fn retire_key(&mut self) {
        let Some(former) = self.reporter.former_key.take() else { return };
        self.mesh.retire();
        info!(former = %former.node.short(), "the former key is erased");
        self.reporter.audit.key_retired(&former.node);
    }

    /// The new identity cannot be written, so this node stays who it is.
    pub(crate) fn lose_key(&mut self, error: String) {
        warn!(%error, "a new key cannot be stored, so it is not used");
        if let Some(asker) = self.succeeding.asker.take() {
            let _ = asker.send(Err(Error::Refused(error)));
        }
    }

    /// A peer goes on under another key: what was open with it goes on as the successor's.
    pub(crate) fn follow(&mut self, former: NodeId, credential: &Credential) {
        let (name, node) = (&credential.name, credential.node);
        info!(%name, node = %node.short(), former = %former.short(), "a peer has a new key");
        self.core.handle_credential(credential, clock::now(), clock::wall());
    }

    /// Nodes that are named in the settings or by the state folder, as they are called now.
    pub(crate) fn called_now<T>(&self, nodes: Vec<(NodeId, T)>) -> Vec<(NodeId, T)> {
        let revocations = self.core.discovery().revocations();
        nodes.into_iter().map(|(node, at)| (revocations.successor_of(&node), at)).collect()
    }
}

/// Writes what is offered, and says when the time of the former key is over. Never returns while
/// the node runs.
pub(crate) async fn keep(
    state: StateDir,
    mut offers: watch::Receiver<Option<Next>>,
    orders: mpsc::Sender<Order>,
) {
    while offers.changed().await.is_ok() {
        let Some(next) = offers.borrow_and_update().clone() else { continue };
        let (to, identity) = (state.clone(), next.identity.clone());
        let written = tokio::task::spawn_blocking(move || {
            to.store_next(&identity)?;
            // From here on the next start is that node, so this process has to be it too.
            if let Err(error) = to.settle_next() {
                warn!(%error, "the new key is stored; the next start completes the change of \
                               files");
            }
            Ok::<_, Error>(())
        });
        let overlap = next.overlap;
        let order = match written.await {
            Ok(Ok(())) => Order::Succeed(Box::new(next)),
            Ok(Err(error)) => Order::KeyLost(error.to_string()),
            Err(error) => Order::KeyLost(error.to_string()),
        };
        let goes_on = matches!(order, Order::Succeed(_));
        if orders.send(order).await.is_err() {
            return;
        }
        if goes_on {
            sleep(overlap).await;
            if orders.send(Order::RetireKey).await.is_err() {
                return;
            }
        }
    }
}
