//! Knowledge of others, for the next start: the directory, and the nodes of the cluster.

use super::folder::{Existing, state_error};
use super::{DIRECTORY, NODES, StateDir};
use crate::Error;

/// A directory of ten thousand members at 3 KiB each, in bytes.
pub(super) const MAX_DIRECTORY_BYTES: usize = 32 * 1024 * 1024;
/// Ten thousand nodes of the cluster at 800 bytes each, in bytes.
const MAX_NODES_BYTES: usize = 8 * 1024 * 1024;

impl StateDir {
    /// The members as last written; `None` before the first write. The caller that restores the
    /// bytes verifies them.
    pub fn directory(&self) -> Result<Option<Vec<u8>>, Error> {
        let bytes = self.read(DIRECTORY, MAX_DIRECTORY_BYTES)?;
        Ok(bytes.map(|bytes| bytes.to_vec()))
    }

    /// Replaces the stored directory.
    pub fn store_directory(&self, snapshot: &[u8]) -> Result<(), Error> {
        if snapshot.len() > MAX_DIRECTORY_BYTES {
            let what = format!("{} bytes exceed this file's size limit", snapshot.len());
            let remedy = "The mesh has too many members for this node";
            return Err(state_error(&self.file(DIRECTORY), what, remedy));
        }
        self.folder.write(DIRECTORY, snapshot, Existing::Replace)
    }

    /// The nodes of the cluster as last written; `None` before the first write. The caller verifies
    /// the bytes.
    pub fn nodes(&self) -> Result<Option<Vec<u8>>, Error> {
        let bytes = self.read(NODES, MAX_NODES_BYTES)?;
        Ok(bytes.map(|bytes| bytes.to_vec()))
    }

    /// Replaces the nodes of the cluster.
    pub fn store_nodes(&self, bytes: &[u8]) -> Result<(), Error> {
        if bytes.len() > MAX_NODES_BYTES {
            let what = format!("{} bytes exceed this file's size limit", bytes.len());
            let remedy = "The cluster has more nodes than this file can hold";
            return Err(state_error(&self.file(NODES), what, remedy));
        }
        self.folder.write(NODES, bytes, Existing::Replace)
    }

    /// Removes the members of a mesh that this node has left.
    pub fn remove_directory(&self) -> Result<(), Error> {
        self.folder.remove(DIRECTORY)
    }
}
