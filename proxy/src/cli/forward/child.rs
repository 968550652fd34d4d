//! The command that `meshport forward --exec` runs.
//!
//! It has the terminal and receives signals as if started directly; its exit code is passed on. If
//! the forward ends first, the command is terminated, with time to clean up.

use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind, IsTerminal};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{self, Command};
use tokio::time::timeout;

use super::EndSignal;
use super::context::TemporaryKubeconfig;
use meshport_daemon::Error;

/// Variable with the service's local address, for the command.
const ADDRESS: &str = "MESHPORT_ADDRESS";
/// The offset that shells add to the number of the signal that ended a program.
const BY_SIGNAL: i32 = 128;
/// How long the command may take to end after SIGTERM: to clean up, not to finish.
const END_LIMIT: Duration = Duration::from_secs(5);

/// A running command.
#[derive(Debug)]
pub(super) struct Child {
    process: process::Child,
    _kubeconfig: Option<TemporaryKubeconfig>,
}

impl Child {
    /// Starts it.
    ///
    /// # Errors
    /// [`Error::Usage`] when there is no such program, [`Error::Io`] when it cannot be started.
    pub(super) fn start(
        program: &OsStr,
        arguments: &[OsString],
        local: SocketAddr,
        kubeconfig: Option<TemporaryKubeconfig>,
    ) -> Result<Self, Error> {
        let mut command = Command::new(program);
        command.args(arguments).env(ADDRESS, local.to_string()).kill_on_drop(true);
        if let Some(kubeconfig) = &kubeconfig {
            command.env("KUBECONFIG", &kubeconfig.list);
        }
        let process = command.spawn().map_err(|error| match error.kind() {
            ErrorKind::NotFound => Error::Usage(format!(
                "{}: command not found; check its name and PATH",
                program.to_string_lossy()
            )),
            _ => Error::io(format!("run {}", program.to_string_lossy()))(error),
        })?;
        Ok(Self { process, _kubeconfig: kubeconfig })
    }

    /// Passes a signal on. Ctrl-C on a terminal has reached the command already, as every
    /// foreground program.
    pub(super) fn pass_on(&mut self, end: EndSignal) {
        let signal = match end {
            EndSignal::Interrupt | EndSignal::Quit if io::stdin().is_terminal() => return,
            EndSignal::Interrupt => Signal::INT,
            EndSignal::Quit => Signal::QUIT,
            EndSignal::Terminate => Signal::TERM,
            EndSignal::Hangup => Signal::HUP,
        };
        let id = self.process.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        if let Some(id) = id {
            // The command may just have ended.
            let _ = kill_process(id, signal);
        }
    }
}

/// Resolves with the command's exit code; never, if there is no command.
pub(super) async fn ended(child: &mut Option<Child>) -> Result<u8, Error> {
    let Some(child) = child else { return std::future::pending().await };
    let status = child.process.wait().await.map_err(Error::io("wait for the command"))?;
    Ok(code(status))
}

/// Ends the command, if there is one, and kills it if it has not ended in time, or when `hurry`
/// resolves.
pub(super) async fn terminate(child: Option<Child>, hurry: impl Future<Output = ()>) {
    let Some(mut child) = child else { return };
    child.pass_on(EndSignal::Terminate);
    let has_ended = tokio::select! {
        ended = timeout(END_LIMIT, child.process.wait()) => ended.is_ok(),
        () = hurry => false,
    };
    if !has_ended {
        // It may just have ended.
        let _ = child.process.kill().await;
    }
}

fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| BY_SIGNAL + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn run(script: &str, signal: Option<EndSignal>) -> u8 {
        let arguments = ["-c", script].map(OsString::from);
        let local = "127.0.0.1:7445".parse().expect("an address");
        let child = Child::start(OsStr::new("sh"), &arguments, local, None).expect("a shell");
        let mut child = Some(child);
        if let Some(signal) = signal {
            child.iter_mut().for_each(|child| child.pass_on(signal));
        }
        ended(&mut child).await.expect("it ends")
    }

    #[tokio::test]
    async fn its_exit_code_is_ours() {
        assert_eq!(run("exit 7", None).await, 7);
        assert_eq!(run("kill -KILL $$", None).await, 137);
        assert_eq!(run("test \"$MESHPORT_ADDRESS\" = 127.0.0.1:7445", None).await, 0);
    }

    #[tokio::test]
    async fn a_signal_reaches_it() {
        assert_eq!(
            run("while :; do read line < /dev/zero; done", Some(EndSignal::Terminate)).await,
            143
        );
    }

    #[tokio::test]
    async fn a_command_that_does_not_end_is_killed_at_once_on_request() {
        let folder = tempfile::tempdir().expect("a folder");
        let begun = folder.path().join("begun");
        let script = "trap '' TERM; : >\"$0\"; while :; do read line < /dev/zero; done";
        let arguments = [OsStr::new("-c"), OsStr::new(script), begun.as_os_str()];
        let arguments = arguments.map(OsStr::to_owned);
        let local = "127.0.0.1:7445".parse().expect("an address");
        let child = Child::start(OsStr::new("sh"), &arguments, local, None).expect("a shell");
        while !begun.exists() {
            tokio::task::yield_now().await;
        }
        let ended = terminate(Some(child), std::future::ready(()));
        timeout(END_LIMIT / 2, ended).await.expect("it was asked for");
    }

    #[tokio::test]
    async fn a_program_that_is_not_there_is_named() {
        let local = "127.0.0.1:7445".parse().expect("an address");
        let error = Child::start(OsStr::new("no-such-program-here"), &[], local, None);
        let error = error.expect_err("nothing to run");
        assert!(error.to_string().contains("no-such-program-here"), "{error}");
        assert_eq!(error.exit_code(), 2);
    }
}
