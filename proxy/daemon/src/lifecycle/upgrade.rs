//! An upgrade (`meshport upgrade`, SIGUSR2): the running daemon starts the program on disk as its
//! successor and hands over to it once it is ready.
//!
//! The two processes share a socket. The successor reads its configuration and its state folder,
//! enters its sandbox and sends `ready PID`, or `failed WHY` if it cannot run; until then the
//! running daemon serves normally. Then the running daemon stops accepting, saves, and sends the
//! lock on the state folder and its sockets: listeners, the mesh's UDP sockets, and those over
//! which its open sessions continue (see module `succession`). The successor starts and sends
//! `serving`. If it ends before [`PROBATION`] is over, the previous daemon starts again with what
//! it has kept.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixStream;
use tokio::time::timeout;
use tracing::info;

use super::starter::{self, Starter};
use crate::Error;
use crate::admin::queries::READY_TIME;
use crate::tcp::store;

/// How long a successor may take to serve once it has the sockets.
pub const START_TIME: Duration = Duration::from_secs(15);
/// How long a successor must run before the previous daemon gives up what it needs to start again.
pub const PROBATION: Duration = Duration::from_secs(5);
/// How long to wait for a stopping successor: its drain time and a margin.
const STOP_TIME: Duration = Duration::from_secs(15);
/// The longest line, in bytes: an error about a file with many problems.
const MAX_LINE: usize = 8 << 10;

const READY: &str = "ready ";
const SERVING: &str = "serving";
const FAILED: &str = "failed ";
/// From the running daemon to its successor: stop the service.
const STOP: u8 = b's';

/// Why a successor does not serve.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("its sockets cannot be passed on: {0}")]
    NotPassed(#[source] io::Error),
    #[error("the successor exited before it took over: {0}")]
    Gone(#[source] io::Error),
    #[error(
        "the successor exited without an answer: the program on disk may be incomplete or older \
         than this one; see its log"
    )]
    NoAnswer,
    #[error("the successor was not ready within {} s", .0.as_secs())]
    TooLate(Duration),
    #[error("the successor cannot run: {0}")]
    CannotRun(String),
    #[error("the successor exited in its first seconds; see its log")]
    Ended,
}

/// A successor that is ready to take over.
#[derive(Debug)]
pub(super) struct Prepared {
    link: UnixStream,
    /// The successor's process id.
    pub(super) pid: u32,
}

/// Starts a successor and waits until it is ready.
///
/// # Errors
/// [`Error::Refused`] with the reason if there is no successor or it cannot run.
pub(super) async fn prepare(starter: Option<&Starter>) -> Result<Prepared, Error> {
    if std::process::id() == 1 {
        let what = "this daemon is the main process of a container, which ends with it. Replace \
                    the container";
        return Err(Error::Refused(what.into()));
    }
    info!("upgrade: starting the program on disk as the successor");
    let none = || io::Error::other("its helper process could not be started; see the log");
    let link = starter.ok_or_else(none).and_then(Starter::start);
    let link = link.and_then(|link| {
        link.set_nonblocking(true)?;
        UnixStream::from_std(link)
    });
    let mut link = link.map_err(|error| {
        Error::Refused(format!("no successor can be started: {error}. Restart the daemon"))
    })?;
    let refused = |failure: Failure| Error::Refused(failure.to_string());
    let answer = answer(&mut link, READY_TIME).await.map_err(refused)?;
    let pid = answer.strip_prefix(READY).and_then(|pid| pid.parse().ok());
    let pid = pid.ok_or_else(|| refused(failure(&answer)))?;
    Ok(Prepared { link, pid })
}

impl Prepared {
    /// Sends the lock and the sockets to the successor. Returns when it serves and has passed its
    /// probation.
    pub(super) async fn succeed(&mut self, passed: &[OwnedFd]) -> Result<(), Failure> {
        let descriptors: Vec<_> = passed.iter().map(AsFd::as_fd).collect();
        let sent =
            self.link.async_io(Interest::WRITABLE, || starter::send(&self.link, &descriptors));
        sent.await.map_err(Failure::Gone)?;
        let answer = answer(&mut self.link, START_TIME).await?;
        if answer != SERVING {
            return Err(failure(&answer));
        }
        match timeout(PROBATION, line(&mut self.link)).await {
            Err(_elapsed) => Ok(()),
            Ok(Ok(answer)) if answer.starts_with(FAILED) => Err(failure(&answer)),
            Ok(_) => Err(Failure::Ended),
        }
    }

    /// Stops the successor and waits until it has ended.
    pub(super) async fn stop(mut self) {
        if self.link.write_all(&[STOP]).await.is_ok() {
            let ended = async { while line(&mut self.link).await.is_ok() {} };
            // The service manager kills a successor that takes longer.
            let _ = timeout(STOP_TIME, ended).await;
        }
    }
}

/// The successor's end of the socket.
#[derive(Debug)]
pub(super) struct Successor(UnixStream);

impl Successor {
    pub(super) fn new(link: StdStream) -> Result<Self, Error> {
        let link = link.set_nonblocking(true).and_then(|()| UnixStream::from_std(link));
        link.map(Self).map_err(Error::io("reach the running daemon"))
    }

    /// Reports that this process is ready. Returns the lock on the state folder and the sockets
    /// once the running daemon sends them.
    ///
    /// # Errors
    /// [`Error::Refused`] if the running daemon does not hand over, because it keeps running or has
    /// been stopped.
    pub(super) async fn turn(&mut self) -> Result<(OwnedFd, Vec<OwnedFd>), Error> {
        let gone = |error: Option<io::Error>| {
            let why = error.map_or_else(|| "it has withdrawn".into(), |error| error.to_string());
            Error::Refused(format!("the running daemon does not hand over: {why}"))
        };
        let ready = format!("{READY}{}\n", std::process::id());
        self.0.write_all(ready.as_bytes()).await.map_err(|error| gone(Some(error)))?;
        let received = self.0.async_io(Interest::READABLE, || starter::receive(&self.0)).await;
        let mut passed = received.map_err(|error| gone(Some(error)))?.into_iter();
        let lock = passed.next().ok_or_else(|| gone(None))?;
        Ok((lock, passed.collect()))
    }

    /// Reports that this process serves.
    pub(super) async fn serves(&mut self) {
        // If the previous daemon has ended meanwhile, nobody needs the report.
        let _ = self.0.write_all(format!("{SERVING}\n").as_bytes()).await;
    }

    /// Waits until the previous daemon ends. True if that was told to stop, which then applies to
    /// this process; false if this process is now the service.
    pub(super) async fn tells_to_stop(&mut self) -> bool {
        let is_stop = self.0.read_u8().await.ok() == Some(STOP);
        if !is_stop {
            store::say_again();
        }
        is_stop
    }
}

/// Tells the running daemon why this process cannot run.
pub fn say_failure(link: &StdStream, error: &Error) {
    use std::io::Write;
    let _ = link.set_nonblocking(false);
    let text = error.to_string().replace('\n', "; ");
    let _ = (&mut &*link).write_all(format!("{FAILED}{text}\n").as_bytes());
}

/// Reads a successor's answer: one line, with a timeout.
async fn answer(link: &mut UnixStream, limit: Duration) -> Result<String, Failure> {
    match timeout(limit, line(link)).await {
        Ok(Ok(line)) => Ok(line),
        Ok(Err(_ended)) => Err(Failure::NoAnswer),
        Err(_elapsed) => Err(Failure::TooLate(limit)),
    }
}

fn failure(answer: &str) -> Failure {
    let why = answer.strip_prefix(FAILED).unwrap_or("this version does not understand its answer");
    Failure::CannotRun(why.to_owned())
}

/// Reads one line and returns at most its first [`MAX_LINE`] bytes.
async fn line(link: &mut UnixStream) -> io::Result<String> {
    let mut bytes = Vec::new();
    loop {
        match link.read_u8().await? {
            b'\n' => return Ok(String::from_utf8_lossy(&bytes).into_owned()),
            byte if bytes.len() < MAX_LINE => bytes.push(byte),
            _ => {}
        }
    }
}
