//! The helper process: starts successors for its daemon and, under the unit, acts as the service's
//! main process.

use std::env;
use std::ffi::OsString;
use std::future::pending;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::pin::Pin;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::UnixStream;
use tokio::signal::unix::{self, SignalKind, signal};
use tokio::time::{Sleep, sleep};

use super::{NAME, SUCCESSOR, at_stage, order, receive_with, stage};

/// Limit for a daemon to stop after a signal: longer than its drain time, shorter than
/// `TimeoutStopSec` of the unit.
const STOP_TIME: Duration = Duration::from_secs(25);

/// Signals that do not end the helper: without it, the daemon cannot be upgraded.
const IGNORED: [fn() -> SignalKind; 5] = [
    SignalKind::hangup,
    SignalKind::interrupt,
    SignalKind::user_defined1,
    SignalKind::user_defined2,
    SignalKind::window_change,
];

/// Runs the helper if this process was started as one. Called first in `main`.
pub fn serve() -> Option<ExitCode> {
    let mut words = env::args_os();
    if words.next()? != NAME {
        return None;
    }
    let stage = words.next()?;
    let command: Vec<OsString> = words.collect();
    let done = io::stdin().as_fd().try_clone_to_owned().and_then(|socket| {
        if stage == stage::LAUNCH {
            at_stage(stage::SERVE, &command, socket).spawn()?;
            Ok(ExitCode::SUCCESS)
        } else if stage == stage::START {
            let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
            let mut successor = Command::new(program);
            successor.args(arguments).env(SUCCESSOR, "1").stdin(Stdio::from(socket)).spawn()?;
            Ok(ExitCode::SUCCESS)
        } else {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(attend(socket.into(), &command))
        }
    });
    Some(done.unwrap_or(ExitCode::FAILURE))
}

/// Carries out the daemon's orders until it ends.
async fn attend(daemon: StdStream, command: &[OsString]) -> io::Result<ExitCode> {
    // Those for the daemon may reach all processes of the service or terminal. A handler, unlike an
    // ignored signal, does not pass to successors.
    for kind in IGNORED {
        drop(signal(kind())?);
    }
    daemon.set_nonblocking(true)?;
    let mut daemon = UnixStream::from_std(daemon)?;
    let mut lead: Option<Lead> = None;
    // The exit code if the daemon ends without reporting one.
    let mut code = ExitCode::FAILURE;
    loop {
        let (order, descriptors) = tokio::select! {
            order = daemon.async_io(Interest::READABLE, || receive_with(&daemon)) => order?,
            () = async { match &mut lead {
                Some(lead) => lead.forward().await,
                None => pending().await,
            }} => continue,
        };
        match order {
            Some(order::START) => {
                for socket in descriptors {
                    // On failure the daemon sees the closed socket.
                    let _ = at_stage(stage::START, command, socket).status();
                }
            }
            Some(order::LEAD) => {
                lead = Lead::begin(&daemon).ok();
                let own = if lead.is_some() { std::process::id() } else { 0 };
                daemon.write_all(&own.to_ne_bytes()).await?;
            }
            Some(order::RELEASE) => return Ok(ExitCode::SUCCESS),
            Some(ends) => {
                if ends < order::FIRST {
                    code = ExitCode::from(ends);
                }
            }
            None => {
                let Some(lead) = lead else { return Ok(ExitCode::SUCCESS) };
                lead.wait_for_end();
                // The daemon was stopped before it handled signals: a clean stop.
                return Ok(if lead.too_late.is_some() { ExitCode::SUCCESS } else { code });
            }
        }
    }
}

/// What makes this process the service's main process.
struct Lead {
    daemon: OwnedFd,
    signals: [(unix::Signal, Signal); 5],
    /// Whether the daemon leaves everything to the next process; the stop signal is then for this
    /// process only.
    is_leaving: bool,
    /// Resolves when a daemon that was told to stop has exceeded its limit.
    too_late: Option<Pin<Box<Sleep>>>,
}

impl Lead {
    fn begin(daemon: &UnixStream) -> io::Result<Self> {
        // The daemon has made the socket.
        let daemon = rustix::net::sockopt::socket_peercred(daemon)?.pid;
        let _ = rustix::thread::set_name(c"meshport-main");
        let on = |kind, forwarded| Ok::<_, io::Error>((signal(kind)?, forwarded));
        Ok(Self {
            daemon: pidfd_open(daemon, PidfdFlags::empty())?,
            signals: [
                on(SignalKind::terminate(), Signal::TERM)?,
                on(SignalKind::interrupt(), Signal::INT)?,
                on(SignalKind::hangup(), Signal::HUP)?,
                on(SignalKind::user_defined2(), Signal::USR2)?,
                on(SignalKind::window_change(), Signal::WINCH)?,
            ],
            is_leaving: false,
            too_late: None,
        })
    }

    /// Forwards the next signal.
    async fn forward(&mut self) {
        let [terminate, interrupt, hangup, user2, window] = &mut self.signals;
        let signal = tokio::select! {
            // Check in this order: the stop signal follows at once.
            biased;
            _ = window.0.recv() => window.1,
            _ = terminate.0.recv() => terminate.1,
            _ = interrupt.0.recv() => interrupt.1,
            _ = hangup.0.recv() => hangup.1,
            _ = user2.0.recv() => user2.1,
            () = async { match &mut self.too_late {
                Some(too_late) => too_late.await,
                None => pending().await,
            }} => Signal::KILL,
        };
        let stops = signal == Signal::TERM || signal == Signal::INT;
        if stops && self.is_leaving {
            return;
        }
        self.is_leaving |= signal == Signal::WINCH;
        if signal == Signal::KILL {
            self.too_late = None;
        } else if stops || self.is_leaving {
            self.too_late.get_or_insert_with(|| Box::pin(sleep(STOP_TIME)));
        }
        // Fails only if it has ended.
        let _ = pidfd_send_signal(&self.daemon, signal);
    }

    /// Waits until a daemon that has closed its socket ends, so that no process of the service
    /// outlives its main process.
    fn wait_for_end(&self) {
        let mut ended = [PollFd::new(&self.daemon, PollFlags::IN)];
        let limit = Timespec::try_from(STOP_TIME).ok();
        // It cannot fail for an open descriptor.
        let _ = poll(&mut ended, limit.as_ref());
    }
}
