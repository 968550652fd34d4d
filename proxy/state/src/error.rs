//! The crate's error type, grouped by who can act on it.

use std::io;
use std::path::PathBuf;

/// An error of the state folder.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file is missing, damaged or accessible to other users.
    #[error("{}: {what}. {remedy}", path.display())]
    State {
        /// The file or folder.
        path: PathBuf,
        /// The problem with it.
        what: String,
        /// The remedy for the operator.
        remedy: String,
    },
    /// The operating system refused an operation.
    #[error("cannot {what}: {source}")]
    Io {
        /// The attempted action, as a verb phrase ("open /var/lib/meshport").
        what: String,
        /// The error from the operating system.
        source: io::Error,
    },
    /// A key or credential in it was refused.
    #[error(transparent)]
    Trust(#[from] meshport_config::Error),
}

impl Error {
    /// Wraps an error of the operating system with the attempted action.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}
