//! The only task of a daemon that writes to its state folder.
//!
//! One write at a time, in the driver's order; each is answered. A writer that stops takes no more.
//! The directory is large and changes constantly, so it is fetched from the driver just before it
//! is written: every [`SAVE_INTERVAL`] and at the end.

use std::time::Duration;

use meshport_config::Revocation;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};
use tracing::warn;

use crate::Error;
use crate::driver::commands::Command;
use crate::driver::write_queue::{RevocationsWrite, Snapshot, Write};
use crate::node;
use meshport_state::{Existing, StateDir};

/// Interval between writes of the directory.
const SAVE_INTERVAL: Duration = Duration::from_secs(60);

/// The state of a folder's writer.
#[derive(Debug)]
pub(crate) struct StateWriter {
    pub(crate) state: StateDir,
    pub(crate) writes: mpsc::Receiver<Write>,
    pub(crate) commands: mpsc::Sender<Command>,
    /// Signalled once the revocation of this node itself is stored, or cannot be.
    pub(crate) own_revocation: Option<oneshot::Sender<Revocation>>,
}

impl StateWriter {
    /// Writes until it is stopped, then the queued values and the directory.
    pub(crate) async fn run(mut self, mut stop: oneshot::Receiver<()>) {
        let mut save_at = Instant::from_std(crate::clock::now()) + SAVE_INTERVAL;
        loop {
            tokio::select! {
                _ = &mut stop => break,
                write = self.writes.recv() => match write {
                    Some(write) => self.handle(write).await,
                    None => return,
                },
                () = sleep_until(save_at) => {
                    self.save().await;
                    save_at = Instant::from_std(crate::clock::now()) + SAVE_INTERVAL;
                }
            }
        }
        // From here on the driver refuses what would be lost.
        self.writes.close();
        while let Some(write) = self.writes.recv().await {
            self.handle(write).await;
        }
        self.save().await;
    }

    async fn save(&self) {
        let Some(snapshot) = node::snapshot(&self.commands).await else { return };
        let (write, written) = self.write(Write::Directory(snapshot)).await;
        if let Err(error) = &written {
            warn!(%error, "cannot save the directory, so the next start relies on the seeds");
        }
        if let Some(write) = write {
            self.answer(write, written).await;
        }
    }

    async fn handle(&mut self, write: Write) {
        let (write, written) = self.write(write).await;
        if let Some(Write::Revocations(RevocationsWrite { own: Some(own), .. })) = &write
            && let Some(own_revocation) = self.own_revocation.take()
        {
            // Fails only if the daemon is already stopping for another reason.
            let _ = own_revocation.send(own.clone());
        }
        let Some(write) = write else { return written.unwrap_or_else(|error| warn!(%error)) };
        self.answer(write, written).await;
    }

    async fn answer(&self, write: Write, written: Result<(), Error>) {
        let command = match written {
            Ok(()) => Command::Stored(write),
            Err(error) => Command::NotStored(write, error.to_string()),
        };
        // A stopped driver no longer needs the answer.
        let _ = self.commands.send(command).await;
    }

    /// fsync takes milliseconds and must not hold up the data path. A queued value is lost only if
    /// the writer panics.
    async fn write(&self, write: Write) -> (Option<Write>, Result<(), Error>) {
        let state = self.state.clone();
        let written = tokio::task::spawn_blocking(move || {
            let outcome = store(&state, &write).map_err(Error::from);
            (Some(write), outcome)
        });
        written.await.unwrap_or_else(|error| (None, Err(Error::Bug(error.to_string()))))
    }
}

fn store(state: &StateDir, write: &Write) -> Result<(), meshport_state::Error> {
    match write {
        Write::Revocations(revoked) => state.store_revocations(&revoked.all),
        Write::Secrets(new) => {
            state.store_revocations(&new.revoked)?;
            state.store_mesh_secrets(&new.secrets, Existing::Replace)
        }
        Write::Key(next) => {
            state.store_next(&next.identity)?;
            // The next start will use the new identity, so this process must too.
            if let Err(error) = state.settle_next() {
                warn!(%error, "the new key is stored; the next start finishes replacing the \
                               files");
            }
            Ok(())
        }
        Write::Renewal(new) => {
            // New keys may not be in place yet.
            state.settle_next()?;
            match new.early {
                Some(_) => state.store_former(&new.next, &new.base),
                None => state.store_renewed(&new.next, &new.base, &new.former),
            }
        }
        Write::Credential(next) => {
            state.settle_next()?;
            state.store_credential(next, Existing::Replace)
        }
        Write::Mandate(mandate) | Write::Unexpired(mandate) => state.store_mandate(mandate),
        Write::Nodes(bytes) => state.store_nodes(bytes),
        Write::Directory(Snapshot { directory, generation }) => {
            state.keep_generation(*generation)?;
            state.store_directory(directory)
        }
    }
}

#[cfg(test)]
mod tests {
    use meshport_config::{NodeKey, Revocations};
    use meshport_core::testing::WALL;
    use tokio::sync::mpsc::error::TrySendError;

    use super::*;
    use crate::driver::write_queue::{MAX_WRITES, SecretsWrite};
    use crate::identity::tests::{next, next_at, rotated, secrets};
    use crate::renewal::state::RenewalWrite;
    use crate::testing::{self, credential};

    struct Bench {
        _folder: tempfile::TempDir,
        state: StateDir,
        writes: mpsc::Sender<Write>,
        commands: mpsc::Receiver<Command>,
        own_revocation: oneshot::Receiver<Revocation>,
        stop: oneshot::Sender<()>,
        task: tokio::task::JoinHandle<()>,
    }

    fn bench() -> Bench {
        let folder = tempfile::tempdir().expect("a folder");
        let state = StateDir::create(folder.path().join("state")).expect("it is made");
        let (writes, receiver) = mpsc::channel(MAX_WRITES);
        let (commands, command) = mpsc::channel(1);
        let (told, own_revocation) = oneshot::channel();
        let (stop, stopped) = oneshot::channel();
        let writer = StateWriter {
            state: state.clone(),
            writes: receiver,
            commands,
            own_revocation: Some(told),
        };
        let task = tokio::spawn(writer.run(stopped));
        Bench { _folder: folder, state, writes, commands: command, own_revocation, stop, task }
    }

    fn revoked() -> Revocations {
        testing::revocations(credential(3, "node").node)
    }

    fn keep_secrets() -> Write {
        let secrets = rotated(&secrets(), WALL.saturating_add(60));
        Write::Secrets(Box::new(SecretsWrite { secrets, from: None, revoked: revoked() }))
    }

    #[tokio::test]
    async fn secrets_are_answered_when_they_and_the_revocations_are_stored() {
        let mut bench = bench();
        bench.writes.send(keep_secrets()).await.expect("it runs");
        let Some(Command::Stored(Write::Secrets(new))) = bench.commands.recv().await else {
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
        bench.writes.send(keep_secrets()).await.expect("it runs");
        let command = bench.commands.recv().await;
        assert!(matches!(command, Some(Command::NotStored(Write::Secrets(_), _))), "{command:?}");
        assert!(bench.state.mesh_secrets().expect("readable").is_none());
    }

    /// The next start would put them in place together with the credential that came with them.
    #[tokio::test]
    async fn new_keys_are_put_in_place_before_a_credential_for_them() {
        let pending = next(4, Some(3));
        let next = next_at(4, Some(3), WALL.saturating_add(1)).credential;
        let former = || pending.credential.clone();
        let renewal =
            RenewalWrite { next: next.clone(), base: former(), former: former(), early: None };
        let supplied = Write::Credential(Box::new(next.clone()));
        for write in [supplied, Write::Renewal(Box::new(renewal))] {
            let mut bench = bench();
            let key = NodeKey::from_bytes([3; 32]);
            bench.state.store_node_key(&key, Existing::Keep).expect("stored");
            bench.state.store_next(&pending).expect("stored");
            bench.writes.send(write).await.expect("it runs");
            let command = bench.commands.recv().await;
            assert!(matches!(command, Some(Command::Stored(_))), "{command:?}");
            bench.state.settle_next().expect("nothing is left to do");
            assert_eq!(bench.state.credential().expect("whole").as_ref(), Some(&next));
        }
    }

    #[tokio::test]
    async fn a_writer_that_stops_writes_what_waits_and_the_directory_and_takes_no_more() {
        let mut bench = bench();
        let all = revoked();
        let own = all.iter().next().cloned();
        bench.stop.send(()).expect("it runs");
        let write = Write::Revocations(RevocationsWrite { all, own: own.clone() });
        bench.writes.try_send(write).expect("there is room");
        assert!(matches!(
            bench.commands.recv().await,
            Some(Command::Stored(Write::Revocations(_)))
        ));
        assert_eq!(bench.own_revocation.await.ok(), own);
        let Some(Command::Snapshot(to)) = bench.commands.recv().await else { panic!("it asks") };
        let late = bench.writes.try_send(keep_secrets());
        assert!(matches!(late, Err(TrySendError::Closed(Write::Secrets(_)))), "{late:?}");
        let snapshot = Snapshot { directory: b"all".to_vec(), generation: 7 };
        to.send(snapshot).map_err(drop).expect("it waits");
        bench.task.await.expect("it ends");
        assert_eq!(bench.state.directory().expect("readable").as_deref(), Some(&b"all"[..]));
    }

    #[tokio::test]
    async fn a_directory_that_cannot_be_saved_is_answered_with_its_file_and_the_error() {
        let mut bench = bench();
        let file = bench.state.path().join("directory");
        std::fs::create_dir(&file).expect("made");
        bench.stop.send(()).expect("it runs");
        let Some(Command::Snapshot(to)) = bench.commands.recv().await else { panic!("it asks") };
        let snapshot = Snapshot { directory: b"all".to_vec(), generation: 7 };
        to.send(snapshot).map_err(drop).expect("it waits");
        let answer = bench.commands.recv().await;
        let Some(Command::NotStored(Write::Directory(_), why)) = answer else {
            panic!("{answer:?}");
        };
        assert!(why.contains(&*file.to_string_lossy()) && why.contains("os error"), "{why}");
    }
}
