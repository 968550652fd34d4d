//! One real daemon as a child process.
//!
//! The child does not outlive the demo: its standard input is a pipe whose other end only the demo
//! holds, and it ends when that is closed ([`end_with_parent`]), which the kernel does however the
//! demo ends. Dropping the value kills the child and waits for it.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use super::members::MemberFiles;
use super::plan::NodePlan;
use meshport_daemon::Error;
use meshport_daemon::admin::AdminClient;

/// The verb of this program that runs a child: the same as `run`, but hidden.
pub const VERB: &str = "demo-node";
/// Lines of a log that are shown.
const TAIL_LINES: usize = 12;
/// Bytes of a log that are read for these.
const TAIL_BYTES: u64 = 8 << 10;

/// A running daemon.
#[derive(Debug)]
pub(super) struct Daemon {
    pub(super) plan: NodePlan,
    pub(super) files: MemberFiles,
    pub(super) admin: AdminClient,
    child: Child,
    /// It ended, and that was reported.
    mourned: bool,
}

impl Daemon {
    /// Starts it, with `home` as the home folder, so that it uses none of the user's own files.
    pub(super) fn start(plan: NodePlan, files: MemberFiles, home: &Path) -> Result<Self, Error> {
        let log = &files.log;
        let log = File::create(log).map_err(Error::io(format!("make {}", log.display())))?;
        let errors = log.try_clone().map_err(Error::io("share a log file"))?;
        let program = std::env::current_exe().map_err(Error::io("find this program"))?;
        let child = Command::new(&program)
            .arg(VERB)
            .arg("--config")
            .arg(&files.config)
            .env("HOME", home)
            .stdin(Stdio::piped())
            .stdout(log)
            .stderr(errors)
            .spawn()
            .map_err(Error::io(format!("start {}", program.display())))?;
        let admin = AdminClient::new(&files.socket);
        Ok(Self { plan, files, admin, child, mourned: false })
    }

    /// Its process id.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        // An error means that the child no longer exists, and nothing is known about it.
        self.child.try_wait().ok().flatten()
    }

    /// As [`Daemon::ended`], once.
    pub(super) fn newly_ended(&mut self) -> Option<ExitStatus> {
        if self.mourned {
            return None;
        }
        let ended = self.ended();
        self.mourned = ended.is_some();
        ended
    }

    /// The end of its log, indented.
    pub(super) fn log_tail(&self) -> String {
        match tail(&self.files.log) {
            Ok(lines) if lines.is_empty() => "    (it has logged nothing)".to_owned(),
            Ok(lines) => lines,
            Err(error) => format!("    (its log cannot be read: {error})"),
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Both fail only when it has ended and was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Ends this process when standard input ends, which is when the process that started it is gone.
/// An orderly shutdown is unnecessary: the whole mesh ends at the same moment.
///
/// # Errors
/// Cannot start a thread.
pub fn end_with_parent() -> Result<(), Error> {
    let wait = || {
        // Nothing is ever written: an end and an error mean the same.
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        std::process::exit(0);
    };
    std::thread::Builder::new()
        .name("lifeline".to_owned())
        .spawn(wait)
        .map(drop)
        .map_err(Error::io("start a thread"))
}

fn tail(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    let last = &lines[lines.len().saturating_sub(TAIL_LINES)..];
    Ok(last.iter().map(|line| format!("    {line}")).collect::<Vec<_>>().join("\n"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_tail_of_a_log_is_short_and_indented() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        fs::write(&path, "").unwrap();
        assert_eq!(tail(&path).unwrap(), "");
        let long: String = (0..5000).map(|line| format!("line {line}\n")).collect();
        fs::write(&path, long).unwrap();
        let shown = tail(&path).unwrap();
        assert_eq!(shown.lines().count(), TAIL_LINES);
        assert!(shown.ends_with("    line 4999"), "{shown}");
        assert!(tail(&folder.path().join("none")).is_err());
    }
}
