//! The helper process that starts a daemon's successor.
//!
//! The sandbox forbids starting programs, and a successor would inherit it. So before the sandbox
//! the daemon starts a helper: the same program under another name, without keys, waiting on a
//! socket. A compromised daemon can only ask it to run the command line that started the daemon.
//! The helper ends with the daemon.
//!
//! The helper starts the successor, launches another helper to replace itself and ends. The
//! successor is then a child of PID 1, the service manager, as the daemon is.

use std::env;
use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// The helper's name in the process list.
const NAME: &str = "meshport-starter";
/// Set in a process whose standard input is the socket to the daemon it succeeds.
const SUCCESSOR: &str = "MESHPORT_SUCCESSOR";
/// This program, even if its file has been replaced.
const THIS_PROGRAM: &str = "/proc/self/exe";
/// Descriptors per message: below the kernel's limit (`SCM_MAX_FD`).
pub(super) const MAX_DESCRIPTORS: usize = 128;

/// The daemon's end of the socket. Dropping it ends the helper.
#[derive(Debug)]
pub struct Starter(UnixStream);

impl Starter {
    /// Starts the helper. A daemon calls this before its sandbox and its threads.
    ///
    /// # Errors
    /// The program cannot be executed again.
    pub fn launch() -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        // The first helper only starts the next one and ends, so this process has no child left.
        helper(theirs.into()).status()?;
        Ok(Self(ours))
    }

    /// Starts the successor and returns the socket to it.
    ///
    /// # Errors
    /// The helper has ended, or no descriptors are left.
    pub(super) fn start(&self) -> io::Result<UnixStream> {
        let (ours, theirs) = UnixStream::pair()?;
        send(&self.0, &[theirs.as_fd()])?;
        Ok(ours)
    }
}

/// The socket to the daemon that started this process as its successor, if one did.
pub fn predecessor() -> Option<UnixStream> {
    env::var_os(SUCCESSOR)?;
    Some(io::stdin().as_fd().try_clone_to_owned().ok()?.into())
}

/// Runs the helper if this process was started as one. Called first in `main`.
pub fn serve() -> Option<ExitCode> {
    let mut words = env::args_os();
    if words.next()? != NAME {
        return None;
    }
    let command: Vec<OsString> = words.collect();
    let done = serve_once(&command);
    Some(if done.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn serve_once(command: &[OsString]) -> io::Result<()> {
    let asked = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    // The daemon waits for its first helper, which starts no successor.
    let link = match env::var_os(SUCCESSOR) {
        Some(_) => {
            let Some(link) = receive(&asked)?.pop() else { return Ok(()) };
            Some(link)
        }
        None => None,
    };
    next_helper(asked.into(), command).spawn()?;
    let (Some(link), Some((program, arguments))) = (link, command.split_first()) else {
        return Ok(());
    };
    Command::new(program).args(arguments).env(SUCCESSOR, "1").stdin(Stdio::from(link)).spawn()?;
    Ok(())
}

/// The first helper, with this process's command line and program path.
fn helper(asked: OwnedFd) -> Command {
    let mut words = env::args_os();
    let named = words.next().filter(|word| word.to_string_lossy().contains('/'));
    let program = named.or_else(|| env::current_exe().ok().map(Into::into)).unwrap_or_default();
    let mut command = Command::new(THIS_PROGRAM);
    command.arg0(NAME).arg(program).args(words).env_remove(SUCCESSOR).stdin(Stdio::from(asked));
    command
}

fn next_helper(asked: OwnedFd, line: &[OsString]) -> Command {
    let mut command = Command::new(THIS_PROGRAM);
    command.arg0(NAME).args(line).env(SUCCESSOR, "1").stdin(Stdio::from(asked));
    command
}

/// Sends descriptors, with the single byte of data that a message needs.
pub(super) fn send(to: &impl AsFd, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    let fit = descriptors.len() <= MAX_DESCRIPTORS;
    if !fit || !rights.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("more descriptors than a message may have"));
    }
    sendmsg(to, &[IoSlice::new(b"f")], &mut rights, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives the descriptors of one message; none if the peer has closed.
pub(super) fn receive(from: &impl AsFd) -> io::Result<Vec<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut rights = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut into = [IoSliceMut::new(&mut byte)];
    recvmsg(from, &mut into, &mut rights, RecvFlags::CMSG_CLOEXEC)?;
    let messages = rights.drain();
    let descriptors = messages.filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    Ok(descriptors.flatten().collect())
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
            use std::io::{Read, Write};
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
