//! Errors before or after a run; a run itself cannot fail.

/// Why the tool cannot do what was requested.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The scenario is not TOML, has unknown or wrong keys, or contradicts itself.
    #[error("{0}")]
    Scenario(String),
    /// Not supported by this machine or program.
    #[error("{0}")]
    Machine(String),
    /// A node cannot start.
    #[error("node {name}: {source}")]
    Node {
        /// The node's name.
        name: String,
        /// The cause.
        source: meshport_daemon::Error,
    },
    /// A part of the product reports an error.
    #[error("{0}")]
    Part(meshport_daemon::Error),
    /// A result file is not one that this tool wrote.
    #[error("{path}: {reason}")]
    Result {
        /// The file.
        path: String,
        /// The problem.
        reason: String,
    },
    /// A file cannot be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: String,
        /// The operating system's answer.
        source: std::io::Error,
    },
}
