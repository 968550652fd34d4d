//! The helper process that starts a daemon's successor.
//!
//! The sandbox forbids starting programs, and a successor would inherit it. So before the sandbox
//! the daemon starts a helper: the same program under another name, without keys, waiting on a
//! socket. A compromised daemon can only ask it to run the command line that started the daemon.
//! The helper ends with the daemon.
//!
//! In a unit that sets `MESHPORT_KEEP_SESSIONS` the helper is the service's main process while the
//! daemon serves: it forwards signals to the daemon, ends when the daemon has ended, and kills a
//! daemon that does not stop in time. A restart ends the main process; the daemon continues without
//! it until its open sessions have ended. See `lifecycle::succession`.

mod helper;

use std::cell::Cell;
use std::env;
use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use tokio::io::AsyncReadExt;
use tracing::info;

use crate::tcp::store;

pub use helper::serve;

/// The helper's name in the process list.
const NAME: &str = "meshport-starter";
/// Set in a process whose standard input is the socket to the daemon it succeeds.
const SUCCESSOR: &str = "MESHPORT_SUCCESSOR";
/// Set in a unit that stops only the main process (`KillMode=process`) and accepts notifications of
/// all (`NotifyAccess=all`).
const KEEP_SESSIONS: &str = "MESHPORT_KEEP_SESSIONS";
/// This program, even if its file has been replaced.
const THIS_PROGRAM: &str = "/proc/self/exe";
/// Descriptors per message: below the kernel's limit (`SCM_MAX_FD`).
pub(super) const MAX_DESCRIPTORS: usize = 128;
/// How long the helper may take to answer.
const ANSWER_TIME: Duration = Duration::from_secs(2);

/// The first argument of a helper process: what it does.
mod stage {
    /// Start the helper and end, so that the daemon has no child.
    pub(super) const LAUNCH: &str = "launch";
    /// Be the helper.
    pub(super) const SERVE: &str = "serve";
    /// Start a successor and end, so that the successor is a child of process 1, as the daemon is.
    pub(super) const START: &str = "start";
}

/// Orders of the daemon, one byte each.
mod order {
    /// Bytes below this are the exit code of the ending daemon, with which the helper exits.
    pub(super) const FIRST: u8 = b' ';
    /// Start a successor, with the passed descriptor as its standard input.
    pub(super) const START: u8 = b'f';
    /// Become the main process. The answer is the helper's process id, or 0 if it cannot.
    pub(super) const LEAD: u8 = b'm';
    /// End now with success: the daemon is no longer the service.
    pub(super) const RELEASE: u8 = b'e';
}

/// The daemon's end of the socket. Dropping it ends the helper, or lets it wait for the daemon's
/// end if it is the main process.
#[derive(Debug)]
pub struct Starter {
    link: UnixStream,
    leads: Cell<bool>,
}

impl Starter {
    /// Starts the helper. A daemon calls this before its sandbox and its threads.
    ///
    /// # Errors
    /// The program cannot be executed again.
    pub fn launch() -> io::Result<Self> {
        let (link, theirs) = UnixStream::pair()?;
        let mut words = env::args_os();
        let named = words.next().filter(|word| word.to_string_lossy().contains('/'));
        let program = named.or_else(|| env::current_exe().ok().map(Into::into)).unwrap_or_default();
        let command: Vec<OsString> = std::iter::once(program).chain(words).collect();
        at_stage(stage::LAUNCH, &command, theirs.into()).env_remove(SUCCESSOR).status()?;
        Ok(Self { link, leads: Cell::new(false) })
    }

    /// Starts the successor and returns the socket to it.
    ///
    /// # Errors
    /// The helper has ended, or no descriptors are left.
    pub(super) fn start(&self) -> io::Result<UnixStream> {
        let (ours, theirs) = UnixStream::pair()?;
        send(&self.link, &[theirs.as_fd()])?;
        Ok(ours)
    }

    /// Makes the helper the service's main process if the unit keeps sessions across a restart.
    pub(super) fn lead(&self) {
        if self.leads.get() || env::var_os(KEEP_SESSIONS).is_none() {
            return;
        }
        let answer = || {
            self.link.set_read_timeout(Some(ANSWER_TIME))?;
            self.say(order::LEAD)?;
            let mut answer = [0; size_of::<u32>()];
            (&self.link).read_exact(&mut answer)?;
            match u32::from_ne_bytes(answer) {
                0 => Err(io::Error::other("this needs Linux 5.3 or later")),
                helper => store::make_main(helper),
            }
        };
        match answer() {
            Ok(()) => self.leads.set(true),
            Err(error) => info!(
                %error,
                "open sessions will end at a restart: the helper process cannot become the \
                 service's main process"
            ),
        }
    }

    /// Whether the helper is the service's main process.
    pub(super) fn leads(&self) -> bool {
        self.leads.get()
    }

    /// Resolves when the helper has ended.
    pub(super) async fn lost(&self) {
        let link = self.link.try_clone().and_then(|link| {
            link.set_nonblocking(true)?;
            tokio::net::UnixStream::from_std(link)
        });
        match link {
            // It only answers.
            Ok(mut link) => drop(link.read_u8().await),
            Err(_) => std::future::pending().await,
        }
    }

    /// Announces the exit code of this process.
    pub(super) fn ends(&self, code: u8) {
        debug_assert!(code < order::FIRST, "{code} is an order");
        // Fails only if the helper has ended.
        let _ = self.say(code);
    }

    /// Ends the helper: another process is the service from now on.
    pub(super) fn release(self) {
        let _ = self.say(order::RELEASE);
    }

    fn say(&self, order: u8) -> io::Result<()> {
        rustix::net::send(&self.link, &[order], SendFlags::NOSIGNAL)?;
        Ok(())
    }
}

/// The socket to the daemon that started this process as its successor, if one did.
pub fn predecessor() -> Option<UnixStream> {
    env::var_os(SUCCESSOR)?;
    Some(io::stdin().as_fd().try_clone_to_owned().ok()?.into())
}

/// This program as a helper, for the daemon with this command line.
fn at_stage(stage: &str, command: &[OsString], socket: OwnedFd) -> Command {
    let mut helper = Command::new(THIS_PROGRAM);
    helper.arg0(NAME).arg(stage).args(command).stdin(Stdio::from(socket));
    helper
}

/// Sends descriptors, with the single byte of data that a message needs.
pub(super) fn send(to: &impl AsFd, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    let fit = descriptors.len() <= MAX_DESCRIPTORS;
    if !fit || !rights.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("more descriptors than a message may have"));
    }
    sendmsg(to, &[IoSlice::new(&[order::START])], &mut rights, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives the descriptors of one message; empty if the peer has closed.
pub(super) fn receive(from: &impl AsFd) -> io::Result<Vec<OwnedFd>> {
    receive_with(from).map(|(_, descriptors)| descriptors)
}

/// The same, with the message's byte; `None` if the peer has closed.
fn receive_with(from: &impl AsFd) -> io::Result<(Option<u8>, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut rights = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut into = [IoSliceMut::new(&mut byte)];
    let received = recvmsg(from, &mut into, &mut rights, RecvFlags::CMSG_CLOEXEC)?.bytes;
    let messages = rights.drain();
    let descriptors = messages.filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let descriptors = descriptors.flatten().collect();
    Ok((byte.first().copied().filter(|_| received > 0), descriptors))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_arrive_in_their_order_and_an_end_has_none() {
        let (here, there) = UnixStream::pair().expect("sockets");
        let pairs = [(); 2].map(|()| UnixStream::pair().expect("sockets"));
        send(&here, &[pairs[0].0.as_fd(), pairs[1].0.as_fd()]).expect("they are sent");
        let sent = receive(&there).expect("they arrive");
        for (number, sent) in sent.into_iter().enumerate() {
            use std::io::Write;
            let mut text = [0; 1];
            UnixStream::from(sent).write_all(&[u8::try_from(number).expect("small")]).expect("it");
            (&pairs[number].1).read_exact(&mut text).expect("it is the same socket");
            assert_eq!(usize::from(text[0]), number);
        }
        drop(here);
        assert!(receive(&there).expect("the end").is_empty());
    }

    #[test]
    fn no_message_has_more_than_the_limit() {
        let (here, _there) = UnixStream::pair().expect("sockets");
        let many = vec![here.as_fd(); MAX_DESCRIPTORS + 1];
        send(&here, &many).expect_err("too many");
    }
}
