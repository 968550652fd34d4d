//! The daemon's process: settings, state folder, admin server and signals around one [`Node`].

use std::iter;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use meshport_config::{Credential, Revocation, Settings};
use meshport_mesh::Shards;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tracing::{error, info, warn};

use crate::Error;
use crate::admin::{AdminServer, server};

use crate::admin::api::UpgradeReport;
use crate::clock;
use crate::findings;
use crate::lifecycle::DRAIN_TIME;
use crate::lifecycle::descriptors;
use crate::lifecycle::heap;
use crate::lifecycle::previous;
use crate::lifecycle::reload::{Reload, Source};
use crate::lifecycle::sandbox::Sandbox;
use crate::lifecycle::starter::Starter;
use crate::lifecycle::stop::{Stop, drain_time};
use crate::lifecycle::succession::{Draining, Earlier, Predecessor};
use crate::lifecycle::upgrade::{self, Prepared, Successor};
use crate::node::assemble;
use crate::node::commands::Command;
use crate::node::controls::Controls;
use crate::node::driver::answers::{Asker, ProcessRequest};
use crate::node::postbox::{self, Destination};
use crate::node::state_writer::StateWriter;
use crate::node::write_queue::MAX_WRITES;
use crate::node::{Environment, Node, Process};
use crate::state;
use crate::state::{Generation, Identity, StateDir, StateLock};
use crate::tcp::Host;
use crate::tcp::store::{self, Inherited};
use crate::unix;
use crate::vip::sockets::VipSockets;
use crate::wayback::socket;

/// Interval between warnings about the credential's expiry, in seconds.
const DAY_S: u64 = 86_400;

/// How long the last accepted clients may take to get an answer while later ones wait for the next
/// process: as long as most of their requests take, and short enough for those waiting.
const LAST_CLIENTS: Duration = Duration::from_secs(1);

/// The same in an upgrade, in which the answers may come later: only who needs a new connection to
/// another node must be served before.
const LAST_CONNECTIONS: Duration = Duration::from_millis(200);

/// Time between a node's departure message and its end: discovery repeats the message after a
/// second.
const FAREWELL: Duration = Duration::from_millis(1500);

/// The arguments of `meshport run`.
pub struct Options {
    /// The effective configuration.
    pub settings: Settings,
    /// The source of the configuration, now and at a reload.
    pub source: Source,
    /// Keys, credential and earlier knowledge of the mesh.
    pub state: StateDir,
    /// Listening sockets from the previous process.
    pub inherited: Inherited,
    /// Starts a successor; `None` disables upgrades.
    pub starter: Option<Starter>,
    /// The socket to the daemon that started this one as its successor.
    pub predecessor: Option<UnixStream>,
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { settings, state, .. } = self;
        f.debug_struct("Options")
            .field("settings", settings)
            .field("state", state)
            .finish_non_exhaustive()
    }
}

/// Runs the daemon on the calling thread until SIGTERM or SIGINT, then drains and leaves; or until
/// a successor has taken over.
///
/// # Errors
/// The state folder, a file named in the settings, or an address is unusable. A running daemon
/// fails only if the authority revokes this node; after a signal, a departure or an upgrade it ends
/// without an error.
pub fn run(options: Options) -> Result<(), Error> {
    // The event loop is compiled in this crate, which is optimised for speed; the command line is
    // optimised for size.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(Error::io("start the event loop"))?.block_on(run_all(options))
}

async fn run_all(options: Options) -> Result<(), Error> {
    let Options { settings, source, state, inherited, starter, predecessor } = options;
    let mut former = predecessor.map(Successor::new).transpose()?;
    let lock = match former {
        None => Some(previous::lock(&state, &settings.admin.socket).await?),
        // The former daemon holds it until this one is ready.
        Some(_) => None,
    };
    let identity = match former {
        None => state.settled_identity(clock::wall())?.0,
        // Fails while the former daemon can still stay. The state folder must not change yet.
        Some(_) => state.identity(clock::wall())?,
    };
    refuse_leaf(&state, &identity)?;
    // The keys are reread at the start, which may be much later.
    drop(identity);
    descriptors::raise();
    findings::warn_of_few_descriptors(&settings);
    // Before the sandbox: it hides the container's CPU limits and forbids creating folders.
    let shards = assemble::shards(&settings);
    make_folders(&settings);
    let mut vip_sockets = Some(VipSockets::open(&settings)?);
    let sandbox = Sandbox::enter(&settings, &source.config);
    let (lock, passed) = match (lock, &mut former) {
        (None, Some(former)) => {
            let (lock, sockets) = former.turn().await?;
            (state.take_over(lock)?, sockets)
        }
        (Some(lock), _) => (lock, Vec::new()),
        (None, None) => (state.lock()?, Vec::new()),
    };
    let mut reload = Reload::within(settings, source, state.clone(), sandbox);
    let mut failure = None;
    // Processes before this one, and what this one leaves to a successor that fails.
    let (mut earlier, passed) = Earlier::from_passed(passed);
    store::adopt(passed);
    loop {
        let vip_sockets = take_sockets(&mut vip_sockets, &reload);
        let may_wait = former.is_some() || failure.is_some();
        let started = async {
            let shards = previous::bind_mesh(reload.settings(), shards, may_wait).await?;
            let joined = earlier.join(shards).await;
            let (shards, predecessors) = joined.map_err(Error::io("continue open sessions"))?;
            let outside = Outside { shards, vip_sockets, predecessors };
            start(reload.settings(), &state, outside, failure.take()).await
        };
        let mut daemon = started.await.inspect_err(|_| {
            if former.is_some() {
                store::give_back();
            }
        })?;
        inherited.close_rest();
        if let Some(former) = &mut former {
            former.serves().await;
        }
        let end = serve(&mut daemon, &mut reload, starter.as_ref(), former.take()).await;
        let why = match end {
            Ok(End::Succeeded(next)) => match daemon.give_place(next, &lock, &mut earlier).await {
                Ok(Given::Over) => return Ok(()),
                Ok(Given::To(draining)) => {
                    drop((lock, earlier, starter));
                    return drain(draining).await;
                }
                Err(why) => why,
            },
            end => return finish(daemon, end).await,
        };
        error!(
            why,
            "the upgrade has failed: this daemon starts again, and its clients wait for that"
        );
        store::take_back();
        failure = Some(why);
    }
}

/// Makes the folders of the sockets.
fn make_folders(settings: &Settings) {
    // If this fails, the admin server reports it.
    let _ = unix::make_folder(server::socket_path(&settings.admin.socket));
    if let Some(at) = socket::socket_path(&settings.egress) {
        // The mode of the admin socket gives its group access that the usual umask removes. All
        // other files are written with explicit modes.
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o007));
        let _ = unix::make_folder(at);
    }
}

/// Takes the sockets of virtual addresses. They can be opened only once, before the sandbox.
fn take_sockets(sockets: &mut Option<VipSockets>, reload: &Reload) -> VipSockets {
    let taken = sockets.take();
    if taken.is_none() && !reload.settings().virtual_addresses.is_empty() {
        warn!("virtual addresses are not served until the next restart: other nodes hold them");
    }
    taken.unwrap_or_default()
}

/// Ends the daemon as `end` requires.
async fn finish(daemon: Daemon, end: Result<End, Error>) -> Result<(), Error> {
    match end {
        Ok(_) => daemon.stop().await,
        // All other nodes refuse this one: nothing to drain and nobody to inform.
        Err(Error::Trust(meshport_config::Error::Revoked { revoked, .. }))
            if revoked.is_departure() =>
        {
            // Discovery repeats the message, since nobody acknowledges it.
            sleep(FAREWELL).await;
            daemon.end().await;
        }
        Err(error @ Error::Trust(meshport_config::Error::Revoked { .. })) => {
            daemon.end().await;
            return Err(error);
        }
        Err(error) => {
            daemon.stop().await;
            return Err(error);
        }
    }
    Ok(())
}

/// The end of an upgrade that has not failed.
enum Given {
    /// This process was told to stop in between, and so was the successor.
    Over,
    /// The successor serves. Sessions may go on here.
    To(Option<Draining>),
}

/// Waits for the end of the sessions that a successor has left to this process, or a signal.
async fn drain(draining: Option<Draining>) -> Result<(), Error> {
    store::release();
    if let Some(mut draining) = draining {
        let mut stop = Stop::listen();
        tokio::select! {
            () = draining.ended() => {}
            () = stop.told() => info!("stopping: open sessions are reset"),
        }
    }
    info!("this process ends");
    Ok(())
}

/// Starts the daemon from the present state folder.
async fn start(
    settings: &Settings,
    state: &StateDir,
    outside: Outside,
    failure: Option<String>,
) -> Result<Daemon, Error> {
    // Keys may be replaced while the daemon runs, so only their users keep a copy.
    let (identity, unsettled) = state.settled_identity(clock::wall())?;
    if let Some(error) = unsettled {
        warn!(%error, "the new key is in use; the next start completes the change of files");
    }
    refuse_leaf(state, &identity)?;
    let daemon = Daemon::start(settings, &identity, state, outside).await?;
    if failure.is_some() {
        let _ = daemon.node.controls.commands.send(Command::FailedUpgrade(failure)).await;
    }
    Ok(daemon)
}

/// How a daemon ends without an error.
enum End {
    /// A signal.
    Stop,
    /// A successor is ready.
    Succeeded(Prepared),
}

/// Runs until the daemon must end.
async fn serve(
    daemon: &mut Daemon,
    reload: &mut Reload,
    starter: Option<&Starter>,
    former: Option<Successor>,
) -> Result<End, Error> {
    let (requests, revoked) = (daemon.node.take_process_requests(), daemon.own_revocation.take());
    let stopped = async {
        match former {
            Some(mut former) => former.stopped().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        end = wait_for_end(reload, &daemon.node.controls, requests, starter) => end,
        () = stopped => Ok(End::Stop),
        error = revocation_of_this_node(revoked) => Err(error),
        () = warn_of_end(daemon.node.credential()) => Ok(End::Stop),
        () = heap::give_back(&daemon.node) => Ok(End::Stop),
    }
}

/// Resolves once the revocation of this node is stored or storing it failed.
async fn revocation_of_this_node(told: Option<oneshot::Receiver<Revocation>>) -> Error {
    if let Some(told) = told
        && let Ok(Revocation { revoked, at, .. }) = told.await
    {
        return meshport_config::Error::Revoked { revoked, at }.into();
    }
    // The writer has ended with the node.
    std::future::pending().await
}

/// Warns once a day if this node's credential expires soon. Never returns.
async fn warn_of_end(own: watch::Receiver<Arc<Credential>>) {
    let mut days = interval(Duration::from_secs(DAY_S));
    days.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        days.tick().await;
        let found = findings::of_credential(&own.borrow(), clock::wall());
        found.iter().for_each(|found| warn!("{found}"));
    }
}

/// Refuses an operator's credential, which is only for a leaf.
fn refuse_leaf(state: &StateDir, identity: &Identity) -> Result<(), Error> {
    if !identity.credential.roles.is_leaf() {
        return Ok(());
    }
    Err(Error::State {
        path: state.path().to_owned(),
        what: "the credential here is an operator's, and a daemon cannot use it".into(),
        remedy: "Join with an invite that has the role node; an operator's machine needs only \
                 `meshport forward --invite FILE`"
            .into(),
    })
}

/// Sockets opened before all other parts start.
struct Outside {
    shards: Shards,
    vip_sockets: VipSockets,
    predecessors: Vec<Predecessor>,
}

/// All parts of a running daemon.
struct Daemon {
    node: Node,
    writer: JoinHandle<()>,
    stop_writer: oneshot::Sender<()>,
    /// Resolves when the authority revokes this node.
    own_revocation: Option<oneshot::Receiver<Revocation>>,
    admin: JoinHandle<()>,
    stop_admin: oneshot::Sender<()>,
}

impl Daemon {
    async fn start(
        settings: &Settings,
        identity: &Identity,
        state: &StateDir,
        Outside { shards, vip_sockets, predecessors }: Outside,
    ) -> Result<Self, Error> {
        // Before the start: it writes a new generation.
        state.doubts().iter().for_each(|doubt| warn!("{doubt}"));
        let key = state::authority_key_in(state.path());
        findings::of_authority_key(&key).iter().for_each(|danger| warn!("{danger}"));
        let Generation { number: generation, unkept } = state.next_generation(clock::wall());
        if let Some(error) = unkept {
            warn!(
                %error,
                "cannot store the generation of this start. The next one comes from the clock: \
                 nothing to do if that is right"
            );
        }
        let admin = AdminServer::bind(&settings.admin.socket, settings.admin.http).await?;
        let environment = Environment {
            shards,
            host: Host::Kernel,
            seed: assemble::seed()?,
            generation,
            seeds: assemble::all_seeds(settings, state),
            directory: saved_directory(state),
            revocations: state.revocations(&identity.credential.mesh)?,
            renewals: state.renewals(&identity.credential),
            nodes: known_nodes(state),
            admin_http: admin.http_addr(),
            vip_sockets,
        };
        let (writes, received) = mpsc::channel(MAX_WRITES);
        let process = Process { writer: Some(writes), predecessors };
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

    /// Says goodbye, drains sessions for a bounded time, saves, and ends.
    async fn stop(mut self) {
        let drain_s = DRAIN_TIME.as_secs();
        info!(
            drain_s,
            "leaving: no new sessions for other nodes; open ones may continue for a \
                        while"
        );
        self.node.leave(drain_time()).await;
        if store::hand_over() {
            sleep(LAST_CLIENTS).await;
        }
        self.end_saved().await;
        store::close_mesh();
    }

    /// Leaves the place to a successor. Open sessions go on in this process, which keeps everything
    /// needed to start again until the successor has passed its probation.
    ///
    /// # Errors
    /// Why the successor does not serve.
    async fn give_place(
        mut self,
        mut next: Prepared,
        lock: &StateLock,
        earlier: &mut Earlier,
    ) -> Result<Given, String> {
        let pid = next.pid;
        info!(pid, "upgrade: the successor is ready");
        let mut stop = Stop::listen();
        self.node.release_addresses().await;
        store::pass_on();
        let draining = self.detach(earlier).await;
        let passed = store::passed().and_then(|sockets| {
            let lock = iter::once(lock.share()?);
            Ok(lock.chain(sockets).chain(earlier.copies()?).collect::<Vec<OwnedFd>>())
        });
        let passed = passed.map_err(|error| format!("its sockets cannot be passed on: {error}"))?;
        let succeeded = tokio::select! {
            biased;
            () = stop.told() => None,
            succeeded = next.succeed(&passed) => Some(succeeded),
        };
        match succeeded {
            Some(Ok(())) => {
                store::make_main(pid);
                info!(pid, "upgrade: the successor serves");
                Ok(Given::To(draining))
            }
            Some(Err(why)) => Err(why),
            None => {
                next.stop().await;
                Ok(Given::Over)
            }
        }
    }

    /// Saves, and ends all but the open sessions.
    async fn detach(self, earlier: &mut Earlier) -> Option<Draining> {
        let Self { node, writer, stop_writer, mut admin, stop_admin, .. } = self;
        let _ = stop_admin.send(());
        // Its last requests ask the node.
        let _ = tokio::join!(timeout(LAST_CONNECTIONS, &mut admin), sleep(LAST_CONNECTIONS));
        let _ = stop_writer.send(());
        // The writer ends by itself unless a disk hangs.
        let _ = writer.await;
        let draining = Draining::begin(node, earlier).await;
        if !admin.is_finished() {
            let _ = admin.await;
        }
        draining.inspect_err(|error| warn!(%error, "open sessions cannot go on")).ok()
    }

    /// Resets open sessions, saves, and ends.
    async fn end(mut self) {
        info!("stopping: open sessions are reset");
        self.node.abandon().await;
        self.end_saved().await;
        store::close_mesh();
    }

    async fn end_saved(self) {
        let _ = self.stop_writer.send(());
        // The writer ends by itself unless a disk hangs.
        let _ = self.writer.await;
        let _ = self.stop_admin.send(());
        // Each may take a second.
        let _ = tokio::join!(self.node.close(), self.admin);
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
        warn!(%error, "starting without the saved nodes of the cluster; they are read anew");
        None
    })
}

async fn wait_for_end(
    reload: &mut Reload,
    controls: &Controls,
    mut requests: mpsc::Receiver<ProcessRequest>,
    starter: Option<&Starter>,
) -> Result<End, Error> {
    let listen = |kind| signal(kind).map_err(Error::io("listen for signals"));
    let mut terminate = listen(SignalKind::terminate())?;
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut hangup = listen(SignalKind::hangup())?;
    let mut user2 = listen(SignalKind::user_defined2())?;
    let mut preparing: Option<Pin<Box<_>>> = None;
    let mut asker: Option<Asker<UpgradeReport>> = None;
    loop {
        tokio::select! {
            _ = terminate.recv() => return Ok(End::Stop),
            _ = interrupt.recv() => return Ok(End::Stop),
            // The result is in the log.
            _ = hangup.recv() => drop(reload.run(controls).await),
            _ = user2.recv() => {
                preparing.get_or_insert_with(|| Box::pin(upgrade::prepare(starter)));
            }
            Some(request) = requests.recv() => match request {
                // The requester may have left.
                ProcessRequest::Reload(asker) => {
                    let _ = asker.send(reload.run(controls).await);
                }
                ProcessRequest::Upgrade(to) if preparing.is_none() => {
                    preparing = Some(Box::pin(upgrade::prepare(starter)));
                    asker = Some(to);
                }
                ProcessRequest::Upgrade(to) => {
                    let _ = to.send(Err(Error::Refused("an upgrade is under way".into())));
                }
            },
            prepared = async {
                match &mut preparing {
                    Some(preparing) => preparing.await,
                    None => std::future::pending().await,
                }
            } => {
                preparing = None;
                let answer = prepared.as_ref().map(|it| UpgradeReport { successor: it.pid });
                match &answer {
                    Ok(_) => drop(controls.commands.send(Command::FailedUpgrade(None)).await),
                    Err(error) => error!(%error, "no upgrade; this daemon keeps serving"),
                }
                let answer = answer.map_err(|error| Error::Refused(said(error)));
                if let Some(asker) = asker.take() {
                    let _ = asker.send(answer);
                }
                if let Ok(next) = prepared {
                    return Ok(End::Succeeded(next));
                }
            }
        }
    }
}

/// An error's text without the prefix that the receiver adds again.
fn said(error: &Error) -> String {
    match error {
        Error::Refused(why) => why.clone(),
        other => other.to_string(),
    }
}
