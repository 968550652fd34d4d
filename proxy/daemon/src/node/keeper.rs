//! The one task of a daemon that writes to its state folder.
//!
//! One write at a time, in the order in which the driver hands them over; each is answered. The
//! directory is large and changes all the time, so it is fetched from the driver when it is to be
//! written: every [`SAVE_INTERVAL`], and last of all.

use std::time::Duration;

use meshport_config::Revocation;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};
use tracing::warn;

use crate::Error;
use crate::node;
use crate::node::keep::Snapshot;
use crate::node::keep::{Keep, RevokedNow};
use crate::node::orders::Order;
use crate::state::{Existing, StateDir};

/// From one writing of the directory to the next.
const SAVE_INTERVAL: Duration = Duration::from_secs(60);

/// What the keeper of a folder holds.
#[derive(Debug)]
pub(crate) struct Keeper {
    pub(crate) state: StateDir,
    pub(crate) keeps: mpsc::Receiver<Keep>,
    pub(crate) orders: mpsc::Sender<Order>,
    /// Told once the revocation of this node itself is stored, or cannot be.
    pub(crate) shut_out: Option<oneshot::Sender<Revocation>>,
}

impl Keeper {
    /// Writes until it is told to stop, and then what waits and the directory.
    pub(crate) async fn run(mut self, mut stop: oneshot::Receiver<()>) {
        let mut save_at = Instant::from_std(crate::clock::now()) + SAVE_INTERVAL;
        loop {
            tokio::select! {
                _ = &mut stop => break,
                keep = self.keeps.recv() => match keep {
                    Some(keep) => self.keep(keep).await,
                    None => return,
                },
                () = sleep_until(save_at) => {
                    self.save().await;
                    save_at = Instant::from_std(crate::clock::now()) + SAVE_INTERVAL;
                }
            }
        }
        while let Ok(keep) = self.keeps.try_recv() {
            self.keep(keep).await;
        }
        self.save().await;
    }

    async fn save(&self) {
        let Some(snapshot) = node::snapshot(&self.orders).await else { return };
        if let (_, Err(error)) = self.write(Keep::Directory(snapshot)).await {
            warn!(%error, "cannot save the directory; the next start relies on the seeds");
        }
    }

    async fn keep(&mut self, keep: Keep) {
        let (keep, written) = self.write(keep).await;
        if let Some(Keep::Revocations(RevokedNow { own: Some(own), .. })) = &keep
            && let Some(shut_out) = self.shut_out.take()
        {
            // Without a daemon that waits for it, it is about to end for another reason.
            let _ = shut_out.send(own.clone());
        }
        let Some(keep) = keep else { return written.unwrap_or_else(|error| warn!(%error)) };
        let order = match written {
            Ok(()) => Order::Kept(keep),
            Err(error) => Order::NotKept(keep, error.to_string()),
        };
        // A driver that has ended uses nothing any more.
        let _ = self.orders.send(order).await;
    }

    /// fsync takes milliseconds and must not hold up the data path. What was to be written is lost
    /// only with a panic of the writer.
    async fn write(&self, keep: Keep) -> (Option<Keep>, Result<(), Error>) {
        let state = self.state.clone();
        let written = tokio::task::spawn_blocking(move || {
            let outcome = store(&state, &keep);
            (Some(keep), outcome)
        });
        written.await.unwrap_or_else(|error| (None, Err(Error::Bug(error.to_string()))))
    }
}

fn store(state: &StateDir, keep: &Keep) -> Result<(), Error> {
    match keep {
        Keep::Revocations(revoked) => state.store_revocations(&revoked.all),
        Keep::Secrets(new) => {
            state.store_revocations(&new.revoked)?;
            state.store_mesh_secrets(&new.secrets, Existing::Replace)
        }
        Keep::Key(next) => {
            state.store_next(&next.identity)?;
            // From here on the next start is that node, so this process has to be it too.
            if let Err(error) = state.settle_next() {
                warn!(%error, "the new key is stored; the next start completes the change of \
                               files");
            }
            Ok(())
        }
        Keep::Directory(Snapshot { directory, generation }) => {
            state.keep_generation(*generation)?;
            state.store_directory(directory)
        }
    }
}

#[cfg(test)]
mod tests {
    use meshport_config::Revocations;
    use meshport_core::testing::WALL;

    use super::*;
    use crate::node::keep::{MAX_WRITES, NewSecrets};
    use crate::node::own::tests::{rotated, secrets};
    use crate::testing::{self, credential};

    struct Bench {
        _folder: tempfile::TempDir,
        state: StateDir,
        keeps: mpsc::Sender<Keep>,
        orders: mpsc::Receiver<Order>,
        shut_out: oneshot::Receiver<Revocation>,
        stop: oneshot::Sender<()>,
        task: tokio::task::JoinHandle<()>,
    }

    fn bench() -> Bench {
        let folder = tempfile::tempdir().expect("a folder");
        let state = StateDir::create(folder.path().join("state")).expect("it is made");
        let (keeps, receiver) = mpsc::channel(MAX_WRITES);
        let (orders, order) = mpsc::channel(1);
        let (told, shut_out) = oneshot::channel();
        let (stop, stopped) = oneshot::channel();
        let keeper = Keeper { state: state.clone(), keeps: receiver, orders, shut_out: Some(told) };
        let task = tokio::spawn(keeper.run(stopped));
        Bench { _folder: folder, state, keeps, orders: order, shut_out, stop, task }
    }

    fn revoked() -> Revocations {
        testing::revocations(credential(3, "node").node)
    }

    fn keep_secrets() -> Keep {
        let secrets = rotated(&secrets(), WALL.saturating_add(60));
        Keep::Secrets(Box::new(NewSecrets { secrets, from: None, revoked: revoked() }))
    }

    #[tokio::test]
    async fn secrets_are_answered_when_they_and_the_revocations_are_stored() {
        let mut bench = bench();
        bench.keeps.send(keep_secrets()).await.expect("it runs");
        let Some(Order::Kept(Keep::Secrets(new))) = bench.orders.recv().await else {
            panic!("they are stored");
        };
        let stored = bench.state.mesh_secrets().expect("readable").expect("there");
        assert_eq!(stored.to_text(), new.secrets.to_text());
        let revocations = bench.state.revocations(&credential(3, "node").mesh).expect("readable");
        assert!(revocations.has_node(&credential(3, "node").node));
    }

    #[tokio::test]
    async fn secrets_stay_unused_when_the_revocations_before_them_cannot_be_stored() {
        let mut bench = bench();
        std::fs::create_dir(bench.state.path().join("revocations")).expect("made");
        bench.keeps.send(keep_secrets()).await.expect("it runs");
        let order = bench.orders.recv().await;
        assert!(matches!(order, Some(Order::NotKept(Keep::Secrets(_), _))), "{order:?}");
        assert!(bench.state.mesh_secrets().expect("readable").is_none());
    }

    #[tokio::test]
    async fn a_keeper_that_stops_writes_what_waits_and_the_directory() {
        let mut bench = bench();
        let all = revoked();
        let own = all.iter().next().cloned();
        bench.stop.send(()).expect("it runs");
        let keep = Keep::Revocations(RevokedNow { all, own: own.clone() });
        bench.keeps.try_send(keep).expect("there is room");
        assert!(matches!(bench.orders.recv().await, Some(Order::Kept(Keep::Revocations(_)))));
        assert_eq!(bench.shut_out.await.ok(), own);
        let Some(Order::Snapshot(to)) = bench.orders.recv().await else { panic!("it asks") };
        let snapshot = Snapshot { directory: b"all".to_vec(), generation: 7 };
        to.send(snapshot).map_err(drop).expect("it waits");
        bench.task.await.expect("it ends");
        assert_eq!(bench.state.directory().expect("readable").as_deref(), Some(&b"all"[..]));
    }
}
