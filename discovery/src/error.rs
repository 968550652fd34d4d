//! The crate's errors, grouped by who caused them.

/// Errors that the caller must handle. Bytes from a peer are never an error: they are counted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DiscoveryError {
    /// Environment: the snapshot is truncated, altered or no snapshot at all. Nothing was restored.
    #[error(
        "the saved directory is damaged ({what}) and is ignored; no action needed: seeds and peers \
         send it again"
    )]
    SnapshotDamaged {
        /// The value that does not fit.
        what: &'static str,
    },
    /// Environment: the snapshot was written by another version. Nothing was restored.
    #[error(
        "the saved directory has format {found}, this version reads {expected}, and is ignored; \
         no action needed: seeds and peers send it again"
    )]
    SnapshotVersion {
        /// The format number found.
        found: u8,
        /// The format number this version reads.
        expected: u8,
    },
    /// Caller: the snapshot belongs to another mesh. Nothing was restored.
    #[error("the saved directory belongs to another mesh; check which state folder is used")]
    SnapshotForeign,
}
