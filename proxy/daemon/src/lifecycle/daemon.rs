//! All parts of a running daemon: the [`Node`], what writes its state, and the admin server.

use std::io;
use std::iter;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use meshport_config::{Revocation, Settings};
use meshport_mesh::Shards;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::DRAIN_TIME;
use super::draining::Draining;
use super::starter;
use super::stop::{Restart, Stop, drain_time};
use super::upgrade::{Failure, Prepared};
use crate::Error;
use crate::clock;
use crate::driver::commands::{Command, Drained};
use crate::driver::write_queue::MAX_WRITES;
use crate::findings;
use crate::node::assemble;
use crate::node::postbox::{self, Destination};
use crate::node::state_writer::StateWriter;
use crate::node::{Environment, Node, Process};
use crate::random;
use crate::server::AdminServer;
use crate::succession::{Earlier, Predecessor};
use crate::tcp::Host;
use crate::tcp::store;
use crate::vip::sockets::VipSockets;
use meshport_state::{Generation, Identity, StateDir, StateLock};

/// How long the last accepted clients may wait for an answer while later ones wait for the next
/// process: enough for most requests, and short enough for those waiting.
const LAST_CLIENTS: Duration = Duration::from_secs(1);

/// The same in an upgrade, in which answers may come later: only clients that need a new connection
/// to another node must be served before.
const LAST_CONNECTIONS: Duration = Duration::from_millis(200);

/// How long the answers to requests that have failed may take then.
const LAST_ANSWERS: Duration = Duration::from_millis(50);

/// The end of an upgrade that has not failed.
pub(super) enum Given {
    /// This process was told to stop meanwhile, and so was the successor.
    Over,
    /// The successor serves. Sessions may continue here.
    ToSuccessor,
}

/// Sockets opened before all other parts start.
pub(super) struct Outside {
    pub(super) shards: Shards,
    pub(super) vip_sockets: VipSockets,
    pub(super) predecessors: Vec<Predecessor>,
    pub(super) drained: Drained,
}

/// All parts of a running daemon.
pub(super) struct Daemon {
    pub(super) node: Node,
    writer: JoinHandle<()>,
    stop_writer: oneshot::Sender<()>,
    /// Resolves when the authority revokes this node.
    pub(super) own_revocation: Option<oneshot::Receiver<Revocation>>,
    admin: JoinHandle<()>,
    stop_admin: oneshot::Sender<()>,
}

impl Daemon {
    /// Starts the daemon from the current state folder.
    pub(super) async fn start(
        settings: &Settings,
        state: &StateDir,
        outside: Outside,
    ) -> Result<Self, Error> {
        // Keys may be replaced while the daemon runs, so only their users keep a copy.
        let (identity, unsettled) = state.settled_identity(clock::wall())?;
        if let Some(error) = unsettled {
            warn!(%error, "the new key is in use; the next start finishes replacing the files");
        }
        refuse_leaf(state, &identity)?;
        Self::with_identity(settings, &identity, state, outside).await
    }

    async fn with_identity(
        settings: &Settings,
        identity: &Identity,
        state: &StateDir,
        Outside { shards, vip_sockets, predecessors, drained }: Outside,
    ) -> Result<Self, Error> {
        // Before the start, which writes a new generation.
        state.doubts().iter().for_each(|doubt| warn!("{doubt}"));
        let key = meshport_state::authority_key_in(state.path());
        findings::of_authority_key(&key).iter().for_each(|danger| warn!("{danger}"));
        let Generation { number: generation, unkept } = state.next_generation(clock::wall());
        if let Some(error) = unkept {
            warn!(
                %error,
                "cannot save the generation (the start counter); the next start derives it from \
                 the clock (no action needed if the clock is correct)"
            );
        }
        let admin = AdminServer::bind(&settings.admin.socket, settings.admin.http).await?;
        let environment = Environment {
            shards,
            host: Host::Kernel,
            seed: random::seed()?,
            generation,
            seeds: assemble::all_seeds(settings, state),
            directory: saved_directory(state),
            revocations: state.revocations(&identity.credential.mesh)?,
            renewals: state.renewals(&identity.credential),
            nodes: known_nodes(state),
            vip_sockets,
        };
        let (writes, received) = mpsc::channel(MAX_WRITES);
        let facts = Some(admin.facts());
        let process = Process { writer: Some(writes), admin: facts, predecessors, drained };
        let node = Node::start_with(settings, identity, environment, process)?;
        let (told, own_revocation) = oneshot::channel();
        let writer = StateWriter {
            state: state.clone(),
            writes: received,
            commands: node.controls.commands.clone(),
            own_revocation: Some(told),
        };
        let (stop_writer, writer_stopped) = oneshot::channel();
        let writer = tokio::spawn(writer.run(writer_stopped));
        let (stop_admin, admin_stopped) = oneshot::channel::<()>();
        if let Some(url) = settings.events.url.clone() {
            let destination = Destination::Url(url, settings.events.ca_file.clone());
            tokio::spawn(postbox::follow(destination, node.handle()));
        }
        let handle = node.handle();
        let admin = tokio::spawn(admin.serve(handle, async {
            let _ = admin_stopped.await;
        }));
        Ok(Self {
            node,
            writer,
            stop_writer,
            own_revocation: Some(own_revocation),
            admin,
            stop_admin,
        })
    }

    /// Shows a failed upgrade in the status.
    pub(super) async fn report_upgrade(&self, failure: Option<String>) {
        if failure.is_some() {
            let _ = self.node.controls.commands.send(Command::FailedUpgrade(failure)).await;
        }
    }

    /// Announces its departure, drains sessions for a limited time, saves, and ends.
    pub(super) async fn stop(mut self) {
        let drain_s = DRAIN_TIME.as_secs();
        info!(drain_s, "leaving: refusing new sessions of other nodes; draining open ones");
        self.node.leave(drain_time()).await;
        if store::hand_over() {
            sleep(LAST_CLIENTS).await;
        }
        self.end_saved().await;
        store::close_mesh();
    }

    /// Hands over to a successor. Open sessions continue in this process, which keeps everything
    /// needed to start again until the successor has passed its probation.
    pub(super) async fn give_place(
        self,
        mut next: Prepared,
        restart: &mut Restart<'_>,
        lock: &StateLock,
        earlier: &mut Earlier,
        draining: &mut Vec<Draining>,
    ) -> Result<Given, Failure> {
        let pid = next.pid;
        info!(pid, "upgrade: the successor is ready");
        let mut stop = Stop::listen();
        let passed = self.withdraw(lock, earlier, draining).await.map_err(Failure::NotPassed)?;
        let succeeded = tokio::select! {
            biased;
            () = stop.told() => None,
            // The service manager starts another process once this one and its successor have
            // ended.
            () = restart.told() => None,
            succeeded = async {
                next.succeed(&passed).await?;
                store::make_main_before_the_end(pid).await;
                Ok(())
            } => Some(succeeded),
        };
        match succeeded {
            Some(Ok(())) => {
                info!(pid, "upgrade: the successor serves");
                Ok(Given::ToSuccessor)
            }
            Some(Err(why)) => Err(why),
            None => {
                next.stop().await;
                Ok(Given::Over)
            }
        }
    }

    /// Leaves everything to the next process that the service manager starts. While the returned
    /// socket is open, sessions continue in this process and that process takes charge of them.
    ///
    /// # Errors
    /// Nothing could be left.
    pub(super) async fn leave_place(
        self,
        lock: &StateLock,
        earlier: &mut Earlier,
        draining: &mut Vec<Draining>,
    ) -> io::Result<UnixStream> {
        info!("restart: open sessions continue in this process");
        let passed = self.withdraw(lock, earlier, draining).await?;
        let (ours, theirs) = UnixStream::pair()?;
        starter::send(&ours, &passed.iter().map(AsFd::as_fd).collect::<Vec<_>>())?;
        store::leave(&theirs)?;
        Ok(ours)
    }

    /// Stops accepting, saves, and ends everything but the open sessions, which move to `draining`.
    /// Returns the lock and the sockets for the next process.
    async fn withdraw(
        mut self,
        lock: &StateLock,
        earlier: &mut Earlier,
        draining: &mut Vec<Draining>,
    ) -> io::Result<Vec<OwnedFd>> {
        self.node.release_addresses().await;
        store::pass_on();
        draining.extend(self.detach(earlier).await);
        let lock = iter::once(lock.share()?);
        Ok(lock.chain(store::passed()?).chain(earlier.copies()?).collect())
    }

    /// Saves, and ends everything but the open sessions.
    async fn detach(self, earlier: &mut Earlier) -> Option<Draining> {
        let Self { node, writer, stop_writer, mut admin, stop_admin, .. } = self;
        let _ = stop_admin.send(());
        // Its last requests still need the node.
        let _ = tokio::join!(timeout(LAST_CONNECTIONS, &mut admin), sleep(LAST_CONNECTIONS));
        let _ = stop_writer.send(());
        // The writer stops unless a disk hangs.
        let _ = writer.await;
        // As late as this: `drain` is answered until here.
        earlier.drained = node.retire().await;
        let draining = Draining::begin(node, earlier).await;
        // Requests that waited have failed, and one that is only half sent must not delay the
        // successor.
        if !admin.is_finished() && timeout(LAST_ANSWERS, &mut admin).await.is_err() {
            admin.abort();
            let _ = admin.await;
        }
        draining.inspect_err(|error| warn!(%error, "cannot keep open sessions")).ok()
    }

    /// Resets open sessions, saves, and ends.
    pub(super) async fn end(mut self) {
        info!("stopping: open sessions are reset");
        self.node.abandon().await;
        self.end_saved().await;
        store::close_mesh();
    }

    async fn end_saved(self) {
        let _ = self.stop_writer.send(());
        // The writer stops unless a disk hangs.
        let _ = self.writer.await;
        let _ = self.stop_admin.send(());
        // First, since its last answers may take a second and the node closes the local addresses.
        let _ = self.admin.await;
        self.node.close().await;
        info!("stopped");
    }
}

fn saved_directory(state: &StateDir) -> Option<Vec<u8>> {
    state.directory().unwrap_or_else(|error| {
        warn!(%error, "starting without the saved directory; it is fetched from the seeds");
        None
    })
}

fn known_nodes(state: &StateDir) -> Option<Vec<u8>> {
    state.nodes().unwrap_or_else(|error| {
        warn!(%error, "starting without the saved nodes of the cluster; fetching them again");
        None
    })
}

/// Refuses an operator's credential, which is only for a leaf.
pub(super) fn refuse_leaf(state: &StateDir, identity: &Identity) -> Result<(), Error> {
    if !identity.credential.roles.is_leaf() {
        return Ok(());
    }
    Err(Error::State {
        path: state.path().to_owned(),
        what: "the credential here is an operator's, which a daemon cannot use".into(),
        remedy: "Join with an invite that has the role node; an operator's machine needs only \
                 `meshport forward --invite FILE`"
            .into(),
    })
}
