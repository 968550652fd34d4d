//! The process around a daemon: settings, state folder and signals.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use meshport_config::{Credential, Revocation, Settings};
use meshport_mesh::Shards;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{MissedTickBehavior, interval, sleep};
use tracing::{error, info, warn};

use super::daemon::{Daemon, Given, Outside, refuse_leaf};
use crate::Error;
use crate::admin::api::UpgradeReport;
use crate::clock;
use crate::descriptors;
use crate::driver::answers::{Asker, ProcessRequest};
use crate::driver::commands::Command;
use crate::egress::socket;
use crate::findings;
use crate::lifecycle::draining::Draining;
use crate::lifecycle::heap;
use crate::lifecycle::previous;
use crate::lifecycle::reload::{Reload, Source};
use crate::lifecycle::sandbox::Sandbox;
use crate::lifecycle::starter::{self, Starter};
use crate::lifecycle::stop::{Restart, Stop};
use crate::lifecycle::upgrade::{self, Prepared, Successor};
use crate::node::assemble;
use crate::node::controls::Controls;
use crate::server;
use crate::succession::Earlier;
use crate::tcp::store::{self, Inherited};
use crate::unix;
use crate::vip::sockets::VipSockets;
use meshport_state::{StateDir, StateLock};

/// Interval between warnings about the credential's expiry, in seconds.
const DAY_S: u64 = 86_400;

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

async fn run_all(mut options: Options) -> Result<(), Error> {
    let starter = options.starter.take();
    let over = match run_until_end(options, starter.as_ref()).await {
        Ok(Over::Left { draining, place }) => {
            if let Some(starter) = starter {
                starter.release();
            }
            drain(draining).await;
            drop(place);
            return Ok(());
        }
        Ok(Over::Stopped) => Ok(()),
        Err(error) => Err(error),
    };
    if let Some(starter) = &starter {
        starter.ends(over.as_ref().err().map_or(0, Error::exit_code));
    }
    over
}

/// How a process ends without an error.
enum Over {
    /// It stopped, with its sessions.
    Stopped,
    /// Another process serves. Open sessions may continue here.
    Left {
        draining: Vec<Draining>,
        /// The socket left for that process, kept while sessions are open.
        place: Option<UnixStream>,
    },
}

async fn run_until_end(options: Options, starter: Option<&Starter>) -> Result<Over, Error> {
    let Options { settings, source, state, inherited, predecessor, .. } = options;
    let mut previous = predecessor.map(Successor::new).transpose()?;
    let mut restart = Restart::listen(starter)?;
    if previous.is_none() {
        // Before the state folder is locked: a process that is stopped earlier leaves it to the
        // next.
        restart.lead();
    }
    let mut place = match previous {
        Some(_) => {
            // Fail while the previous daemon, which serves until this one is ready, can still
            // continue. The state folder must not change yet.
            refuse_leaf(&state, &state.identity(clock::wall())?)?;
            None
        }
        None => Some(take_place(&inherited, &state, &settings).await?),
    };
    descriptors::raise();
    findings::warn_of_few_descriptors(&settings);
    // Before the sandbox: it hides the container's CPU limits and forbids creating folders.
    let shards = assemble::shards(&settings);
    make_folders(&settings);
    let mut vip_sockets = Some(VipSockets::open(&settings)?);
    let sandbox = Sandbox::enter(&settings, &source.config);
    if let Some(previous) = &mut previous {
        let (lock, sockets) = previous.turn().await?;
        place = Some((state.take_over(lock)?, sockets));
    }
    let (lock, passed) = place.expect("it is taken above or here");
    let mut reload = Reload { settings, source, state: state.clone(), sandbox };
    let mut failure: Option<String> = None;
    // Earlier processes, and what this process needs again if its successor fails.
    let (mut earlier, passed) = Earlier::from_passed(passed);
    // Sessions of this process from before failed upgrades.
    let mut draining = Vec::new();
    store::adopt(passed);
    loop {
        let bound = previous::bind_mesh(&reload.settings, shards).await;
        let started = async {
            let vip_sockets = take_sockets(&mut vip_sockets, &reload);
            start(&reload, &state, bound?, vip_sockets, &mut earlier).await
        };
        let mut daemon = started.await.inspect_err(|_| {
            if previous.is_some() {
                store::give_back();
            }
        })?;
        daemon.report_upgrade(failure.take()).await;
        inherited.close_rest();
        if let Some(previous) = &mut previous {
            previous.serves().await;
        }
        let why = match serve(&mut daemon, &mut reload, &mut restart, previous.take()).await {
            Ok(End::Succeeded(next)) => {
                let given =
                    daemon.give_place(next, &mut restart, &lock, &mut earlier, &mut draining);
                match given.await {
                    Ok(Given::Over) => return Ok(Over::Stopped),
                    Ok(Given::ToSuccessor) => return Ok(Over::Left { draining, place: None }),
                    Err(why) => why,
                }
            }
            Ok(End::Restart) => {
                let left = daemon.leave_place(&lock, &mut earlier, &mut draining).await;
                let place = Some(left.map_err(Error::io("leave sessions to a restart"))?);
                return Ok(Over::Left { draining, place });
            }
            end => return finish(daemon, end).await.map(|()| Over::Stopped),
        };
        error!(%why, "the upgrade failed: restarting this daemon; clients wait");
        store::take_back();
        failure = Some(why.to_string());
    }
}

/// Starts the daemon next to the processes before this one.
async fn start(
    reload: &Reload,
    state: &StateDir,
    shards: Shards,
    vip_sockets: VipSockets,
    earlier: &mut Earlier,
) -> Result<Daemon, Error> {
    let joined = earlier.join(shards).await;
    let (shards, predecessors) = joined.map_err(Error::io("continue open sessions"))?;
    let drained = earlier.drained.clone();
    let outside = Outside { shards, vip_sockets, predecessors, drained };
    Daemon::start(&reload.settings, state, outside).await
}

/// Locks the state folder, or takes over the lock and the sockets that the process before a restart
/// left.
async fn take_place(
    inherited: &Inherited,
    state: &StateDir,
    settings: &Settings,
) -> Result<(StateLock, Vec<OwnedFd>), Error> {
    // Empty if a start that failed has taken it.
    let left = inherited.place().and_then(|place| starter::receive(&place).ok());
    let mut left = left.unwrap_or_default().into_iter();
    let lock = match left.next() {
        Some(lock) => state.take_over(lock)?,
        None => previous::lock(state, &settings.admin.socket).await?,
    };
    // The start, maybe much later, rereads the keys.
    refuse_leaf(state, &state.settled_identity(clock::wall())?.0)?;
    Ok((lock, left.collect()))
}

/// Creates the folders of the sockets.
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

/// Takes the sockets of virtual addresses, which can be opened only before the sandbox.
fn take_sockets(sockets: &mut Option<VipSockets>, reload: &Reload) -> VipSockets {
    let taken = sockets.take();
    if taken.is_none() && !reload.settings.virtual_addresses.is_empty() {
        warn!("virtual addresses are not served until the next restart; other nodes hold them");
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

/// Waits until the sessions in this process have ended, or for a signal.
async fn drain(mut draining: Vec<Draining>) {
    store::release();
    let mut stop = Stop::listen();
    let ended = async {
        for it in &mut draining {
            it.ended().await;
        }
    };
    let is_told = tokio::select! {
        () = ended => false,
        () = stop.told() => true,
    };
    if is_told {
        info!("stopping: open sessions are reset");
        for it in draining {
            it.stop().await;
        }
    }
    info!("exiting");
}

/// How a daemon ends without an error.
enum End {
    /// A signal.
    Stop,
    /// The service manager starts another process next, which takes charge of this one's sessions.
    Restart,
    /// A successor is ready.
    Succeeded(Prepared),
}

/// Runs until the daemon must end.
async fn serve(
    daemon: &mut Daemon,
    reload: &mut Reload,
    restart: &mut Restart<'_>,
    previous: Option<Successor>,
) -> Result<End, Error> {
    let (requests, revoked) = (daemon.node.take_process_requests(), daemon.own_revocation.take());
    let starter = restart.starter;
    let ended = async {
        if let Some(mut previous) = previous {
            if previous.tells_to_stop().await {
                return End::Stop;
            }
            restart.lead();
        }
        restart.told().await;
        End::Restart
    };
    tokio::select! {
        end = wait_for_end(reload, &daemon.node.controls, requests, starter) => end,
        end = ended => Ok(end),
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
