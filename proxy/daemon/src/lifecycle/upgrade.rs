//! An upgrade (`meshport upgrade`, SIGUSR2): the running daemon starts the program on disk as its
//! successor and gives it its place once that can take it.
//!
//! Both talk over one socket. The successor reads its configuration and its state folder, enters
//! its sandbox and says `ready PID`; until then the running daemon serves as if nothing happened,
//! and a successor that cannot run says `failed WHY`. Then the daemon lets its sessions end, stops
//! accepting, saves, and sends the lock of the state folder and its listening sockets. The
//! successor starts and says `serving`. If it ends before [`PROBATION`] is over, the former daemon
//! starts again on what it has kept.

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
use crate::tcp::store;

/// How long a successor may take to read its settings and its state: a slow disk, and some more.
pub const READY_TIME: Duration = Duration::from_secs(30);
/// How long a successor may take to serve after it was given the sockets.
pub const START_TIME: Duration = Duration::from_secs(15);
/// How long a successor must go on before the former daemon ends.
pub const PROBATION: Duration = Duration::from_secs(5);
/// How long a successor that is told to stop is waited for: until its sessions have ended.
const STOP_TIME: Duration = Duration::from_secs(15);
/// Longest line, in bytes: an error with a file of many problems.
const MAX_LINE: usize = 8 << 10;

const READY: &str = "ready ";
const SERVING: &str = "serving";
const FAILED: &str = "failed ";
/// From the daemon to its successor: the service is to stop.
const STOP: u8 = b's';

/// A successor that waits for its turn.
#[derive(Debug)]
pub(super) struct Prepared {
    link: UnixStream,
    /// The successor's process.
    pub(super) pid: u32,
}

/// Starts a successor and waits until it is ready.
///
/// # Errors
/// [`Error::Refused`] with what keeps it from running.
pub(super) async fn prepare(starter: Option<&Starter>) -> Result<Prepared, Error> {
    if std::process::id() == 1 {
        let what = "this daemon is the first process of a container, which ends with it. Replace \
                    the container";
        return Err(Error::Refused(what.into()));
    }
    info!("upgrade: starting the program on disk as the successor");
    let none = || io::Error::other("its helper process could not be started; the log says why");
    let link = starter.ok_or_else(none).and_then(Starter::start);
    let link = link.and_then(|link| {
        link.set_nonblocking(true)?;
        UnixStream::from_std(link)
    });
    let mut link = link.map_err(|error| {
        Error::Refused(format!("no successor can be started: {error}. Restart the daemon"))
    })?;
    let said = said(&mut link, READY_TIME).await.map_err(Error::Refused)?;
    let pid = said.strip_prefix(READY).and_then(|pid| pid.parse().ok());
    let pid = pid.ok_or_else(|| Error::Refused(failure(&said)))?;
    Ok(Prepared { link, pid })
}

impl Prepared {
    /// Gives the successor the lock and the sockets, and waits until it serves and has gone on for
    /// its probation.
    ///
    /// # Errors
    /// Why it does not serve.
    pub(super) async fn succeed(&mut self, passed: &[OwnedFd]) -> Result<(), String> {
        let descriptors: Vec<_> = passed.iter().map(AsFd::as_fd).collect();
        let sent =
            self.link.async_io(Interest::WRITABLE, || starter::send(&self.link, &descriptors));
        sent.await.map_err(|error| format!("the successor has ended before its turn: {error}"))?;
        let word = said(&mut self.link, START_TIME).await?;
        if word != SERVING {
            return Err(failure(&word));
        }
        match timeout(PROBATION, line(&mut self.link)).await {
            Err(_elapsed) => Ok(()),
            Ok(Ok(word)) if word.starts_with(FAILED) => Err(failure(&word)),
            Ok(_) => Err("the successor ended in its first seconds; its log lines say more".into()),
        }
    }

    /// Tells the successor to stop, and waits for its end.
    pub(super) async fn stop(mut self) {
        if self.link.write_all(&[STOP]).await.is_ok() {
            let ended = async { while line(&mut self.link).await.is_ok() {} };
            // One that takes longer is the service manager's.
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
        link.map(Self).map_err(Error::io("reach the daemon that this one is to succeed"))
    }

    /// Says that this process can run, and waits for the lock of the state folder and the sockets.
    ///
    /// # Errors
    /// [`Error::Refused`] when the former daemon goes on by itself or stops altogether.
    pub(super) async fn turn(&mut self) -> Result<(OwnedFd, Vec<OwnedFd>), Error> {
        let gone = |error: Option<io::Error>| {
            let why = error.map_or_else(|| "it has withdrawn".into(), |error| error.to_string());
            Error::Refused(format!(
                "the daemon that this one was to succeed keeps its place: {why}"
            ))
        };
        let ready = format!("{READY}{}\n", std::process::id());
        self.0.write_all(ready.as_bytes()).await.map_err(|error| gone(Some(error)))?;
        let received = self.0.async_io(Interest::READABLE, || starter::receive(&self.0)).await;
        let mut passed = received.map_err(|error| gone(Some(error)))?.into_iter();
        let lock = passed.next().ok_or_else(|| gone(None))?;
        Ok((lock, passed.collect()))
    }

    /// Says that this process serves. The former daemon notices an end by itself.
    pub(super) async fn serves(&mut self) {
        let _ = self.0.write_all(format!("{SERVING}\n").as_bytes()).await;
    }

    /// Resolves when the former daemon has been told to stop, and means this one. Never once that
    /// has ended and made this one the service's main process.
    pub(super) async fn stopped(&mut self) {
        if self.0.read_u8().await.ok() != Some(STOP) {
            store::say_again();
            std::future::pending::<()>().await;
        }
    }
}

/// Tells the daemon that waits for this process why it cannot run.
pub fn say_failure(link: &StdStream, error: &Error) {
    use std::io::Write;
    let _ = link.set_nonblocking(false);
    let text = error.to_string().replace('\n', "; ");
    let _ = (&mut &*link).write_all(format!("{FAILED}{text}\n").as_bytes());
}

/// One line of a successor within a time.
async fn said(link: &mut UnixStream, limit: Duration) -> Result<String, String> {
    match timeout(limit, line(link)).await {
        Ok(Ok(line)) => Ok(line),
        Ok(Err(_ended)) => {
            Err("the successor ended without a word: is the program on disk whole, and as new as \
                 this one? Its log lines say more"
                .into())
        }
        Err(_elapsed) => Err(format!("the successor was not ready within {} s", limit.as_secs())),
    }
}

fn failure(said: &str) -> String {
    let why = said.strip_prefix(FAILED).unwrap_or("it says what this version does not understand");
    format!("the successor cannot run: {why}")
}

/// One line, at most [`MAX_LINE`] bytes of it.
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
