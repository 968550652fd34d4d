//! What can go wrong before a run; a run itself cannot fail, only disappoint.

/// Why a scenario cannot be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The scenario file is not TOML, or has unknown or wrong keys.
    #[error("{0}")]
    Syntax(#[from] toml::de::Error),
    /// The scenario contradicts itself.
    #[error("{0}")]
    Scenario(String),
    /// A file cannot be read or written.
    #[error("{path}: {source}")]
    File {
        /// Which file.
        path: String,
        /// The operating system's answer.
        source: std::io::Error,
    },
}
