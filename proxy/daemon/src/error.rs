//! The crate's error type, grouped by who can act on it.

use std::io;
use std::path::PathBuf;

use meshport_config::{Problem, TextError};

/// An error of the daemon or of a command.
///
/// Grouped by who caused it; [`Error::exit_code`] gives each group its own process exit code, so
/// that scripts can tell them apart without reading text.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    // The person at the keyboard.
    /// The configuration file has problems; every one of them is listed.
    #[error("{} has {}:\n{}", path.display(), counted(problems.len()), lines(problems))]
    Config {
        /// The file that was read.
        path: PathBuf,
        /// All problems, in file order.
        problems: Vec<Problem>,
    },
    /// The configuration cannot be read, or a daemon would not work with it.
    #[error("{0}")]
    Unfit(String),
    /// The command line is invalid or cannot work.
    #[error("{0}")]
    Usage(String),

    // Trust.
    /// A key, credential or invite was refused.
    #[error("{0}")]
    Trust(#[from] meshport_config::Error),

    // This machine.
    /// A file in the state folder is missing, unreadable or damaged.
    #[error("{}: {what}. {remedy}", path.display())]
    State {
        /// The file or folder.
        path: PathBuf,
        /// The problem with it.
        what: String,
        /// The remedy for the operator.
        remedy: String,
    },
    /// The system refused an address, a file or a socket.
    #[error("cannot {what}: {}", reason(what, source))]
    Io {
        /// The attempted action, as a verb phrase ("listen on 127.0.0.1:7445").
        what: String,
        /// The operating system's answer.
        source: io::Error,
    },
    /// The mesh could not start.
    #[error("the mesh cannot start: {0}")]
    Mesh(#[from] meshport_mesh::MeshError),

    // The daemon at the other end of the admin socket.
    /// No daemon answers on the admin socket.
    #[error("{} {}: {}", silent(source), path.display(), silence(source))]
    NoDaemon {
        /// The socket that was tried.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
    /// The daemon refused the request.
    #[error("the daemon refused: {0}")]
    Refused(String),
    /// The daemon was not replaced by the program on disk, and serves as before.
    #[error("no upgrade, and the daemon keeps serving: {0}")]
    NotUpgraded(String),
    /// The answer is no: a ping without reply, a wait that timed out, a demo that failed, a finding
    /// of `doctor`, an upgrade with an uncertain result.
    #[error("{0}")]
    Negative(String),

    // Us.
    /// A bug in meshport.
    #[error("internal error: {0}. Please report it with the lines before it")]
    Bug(String),
}

impl From<meshport_state::Error> for Error {
    fn from(error: meshport_state::Error) -> Self {
        match error {
            meshport_state::Error::State { path, what, remedy } => {
                Self::State { path, what, remedy }
            }
            meshport_state::Error::Io { what, source } => Self::Io { what, source },
            meshport_state::Error::Trust(error) => Self::Trust(error),
        }
    }
}

impl From<TextError> for Error {
    fn from(error: TextError) -> Self {
        Self::Trust(error.into())
    }
}

impl Error {
    /// Wraps an operating-system error with what was attempted.
    pub fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }

    /// The process exit code; 70 as in `sysexits.h`. The page of commands has these numbers with
    /// the first comments of the variants.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Negative(_) => 1,
            Self::Usage(_) => 2,
            Self::Config { .. } | Self::Unfit(_) => 3,
            Self::Trust(_) | Self::State { .. } => 4,
            Self::Io { .. } | Self::Mesh(_) => 5,
            Self::NoDaemon { .. } | Self::Refused(_) => 6,
            Self::NotUpgraded(_) => 7,
            Self::Bug(_) => 70,
        }
    }
}

/// The operating system's message, and the remedy for the most common ones.
fn reason(what: &str, source: &io::Error) -> String {
    match source.kind() {
        io::ErrorKind::AddrInUse => {
            "another process uses this address. `meshport doctor` and `ss -lntup` show which".into()
        }
        // Rights of a socket in the file system are another matter.
        io::ErrorKind::PermissionDenied
            if what.starts_with("listen on ") && !what.starts_with("listen on /") =>
        {
            "permission denied. A port below 1024 needs the capability CAP_NET_BIND_SERVICE".into()
        }
        io::ErrorKind::PermissionDenied if what.starts_with("open ") => {
            "permission denied. Run this as the user of the daemon, or as root".into()
        }
        _ => source.to_string(),
    }
}

/// What is known of the daemon at a socket.
fn silent(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::PermissionDenied => "cannot ask the daemon at the socket",
        _ => "no daemon answers on",
    }
}

/// Why there is no answer on a socket, and the remedy.
fn silence(source: &io::Error) -> String {
    match source.kind() {
        // The client has added what the state folder shows.
        io::ErrorKind::NotFound if source.get_ref().is_some() => source.to_string(),
        io::ErrorKind::NotFound => {
            "the socket does not exist. Start the daemon with `meshport run`, \
             or name its socket with --socket, --config or --state-dir"
                .into()
        }
        io::ErrorKind::ConnectionRefused => "the socket exists but nothing listens: the daemon \
                                             has stopped. Start it again with `meshport run`; its \
                                             log says why it stopped"
            .into(),
        io::ErrorKind::PermissionDenied => {
            "this user may not open it. Run this as the user of the daemon, or as root".into()
        }
        _ => format!("{source}. If this persists, read the daemon's log"),
    }
}

fn counted(problems: usize) -> String {
    if problems == 1 { "1 problem".into() } else { format!("{problems} problems") }
}

fn lines(problems: &[Problem]) -> String {
    problems.iter().map(|problem| format!("  {problem}")).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A script needs one answer from `meshport check`.
    #[test]
    fn a_broken_configuration_has_one_exit_code() {
        let malformed = Error::Config { path: "x".into(), problems: Vec::new() };
        assert_eq!(malformed.exit_code(), Error::Unfit("x".into()).exit_code());
    }

    #[test]
    fn what_people_meet_most_has_its_next_step() {
        let said = |what: &str, kind: io::ErrorKind| Error::io(what)(kind.into()).to_string();
        let taken = said("listen on 127.0.0.1:7445", io::ErrorKind::AddrInUse);
        assert!(taken.contains("meshport doctor"), "{taken}");
        let closed = said("open /var/lib/meshport", io::ErrorKind::PermissionDenied);
        assert!(closed.contains("or as root"), "{closed}");
        let low = said("listen on 127.0.0.1:443", io::ErrorKind::PermissionDenied);
        assert!(low.ends_with("needs the capability CAP_NET_BIND_SERVICE"), "{low}");
    }

    #[test]
    fn each_way_of_not_answering_has_its_next_step() {
        for (kind, says) in [
            (io::ErrorKind::NotFound, "socket does not exist"),
            (io::ErrorKind::ConnectionRefused, "nothing listens"),
            (io::ErrorKind::PermissionDenied, "may not open"),
            (io::ErrorKind::TimedOut, "the daemon's log"),
        ] {
            let error = Error::NoDaemon { path: "/run/x.sock".into(), source: kind.into() };
            let text = error.to_string();
            assert!(text.contains("/run/x.sock") && text.contains(says), "{text}");
            let is_closed = kind == io::ErrorKind::PermissionDenied;
            assert_eq!(text.contains("no daemon answers"), !is_closed, "{text}");
        }
    }
}
