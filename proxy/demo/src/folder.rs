//! The demo's folder: keys, configurations, sockets and logs of all nodes.
//!
//! Only its owner can enter it. It is removed on drop, unless it is to be kept.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use rand_core::{OsRng, RngCore as _};

use meshport_daemon::Error;

/// Attempts to find a free name; a second one is needed once in four billion times.
const MAX_ATTEMPTS: usize = 8;
/// The longest path of a Unix socket that every system accepts, in bytes, with its final zero.
const MAX_SOCKET_PATH: usize = 104;

/// The demo's own folder.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    kept: bool,
}

impl Folder {
    /// A new folder among the system's temporary files.
    pub(super) fn create() -> Result<Self, Error> {
        let base = std::env::temp_dir();
        for _ in 0..MAX_ATTEMPTS {
            let path = base.join(format!("meshport-demo-{:08x}", OsRng.next_u32()));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self { path, kept: false }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(Error::io(format!("make {}", path.display()))(error)),
            }
        }
        let taken = io::Error::from(io::ErrorKind::AlreadyExists);
        Err(Error::io(format!("make a folder in {}", base.display()))(taken))
    }

    /// A file or folder in it.
    pub(super) fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub(super) fn socket(&self, name: &str) -> Result<PathBuf, Error> {
        let path = self.join(name);
        if path.as_os_str().len() < MAX_SOCKET_PATH {
            return Ok(path);
        }
        Err(Error::Usage(format!(
            "{} is too long for a socket: set TMPDIR to a shorter path, such as /tmp",
            path.display()
        )))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Keeps it, so that the user can find the cause of a failure.
    pub(super) fn keep(&mut self) {
        self.kept = true;
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !self.kept {
            // Files that cannot be removed are left to the system's cleanup of temporary files.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn it_is_private_and_goes_away_unless_kept() {
        let mut folder = Folder::create().unwrap();
        let path = folder.path().to_owned();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        fs::write(folder.join("file"), "text").unwrap();
        folder.keep();
        drop(folder);
        assert!(path.exists());
        drop(Folder { path: path.clone(), kept: false });
        assert!(!path.exists());
    }

    #[test]
    fn a_socket_that_could_not_be_bound_is_refused() {
        let folder = Folder { path: PathBuf::from("/tmp"), kept: true };
        assert!(folder.socket("mad-cp.sock").is_ok());
        let error = folder.socket(&"x".repeat(MAX_SOCKET_PATH)).unwrap_err();
        assert!(error.to_string().contains("TMPDIR"), "{error}");
    }
}
