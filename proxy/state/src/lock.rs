//! The lock of a state folder: only one process may use it.

use std::fs::{File, TryLockError};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::folder::{self, state_error};
use super::{LOCK, StateDir};
use crate::Error;

const NEEDS_WRITING: &str = "Make it writable for this user, since it stores what the next start \
                             needs, or name another one with --state-dir";

/// The lock of the only process on a state folder; released on drop.
#[derive(Debug)]
pub struct StateLock {
    file: File,
}

impl StateLock {
    /// A copy for the successor of this process; the folder is unlocked when both are dropped.
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn share(&self) -> io::Result<OwnedFd> {
        self.file.try_clone().map(Into::into)
    }
}

impl StateDir {
    /// Takes over the lock from the process that holds it. If that lock belongs to another folder,
    /// this folder is locked anew.
    pub fn take_over(&self, shared: OwnedFd) -> Result<StateLock, Error> {
        let file = File::from(shared);
        let inode = |file: &File| file.metadata().map(|it| (it.dev(), it.ino())).ok();
        let here = [self.folder.open_file(LOCK, OFlags::RDONLY), self.folder.open_folder()];
        let is_shared = |it: &File| inode(it).is_some_and(|it| Some(it) == inode(&file));
        if !here.iter().flatten().any(is_shared) {
            return self.lock();
        }
        let _ = self.folder.note(LOCK, &format!("{}\n", std::process::id()));
        Ok(StateLock { file })
    }

    /// Makes this the only process on the folder, and removes what a crashed one left half-written.
    ///
    /// # Errors
    /// [`Error::State`] when another process holds the lock.
    pub fn lock(&self) -> Result<StateLock, Error> {
        self.locked_by_me()?.map_err(|mut file| self.locked(&mut file))
    }

    /// As [`StateDir::lock`]; `None` when another process holds the lock.
    ///
    /// # Errors
    /// [`Error::Io`] if the folder cannot be locked.
    pub fn try_lock(&self) -> Result<Option<StateLock>, Error> {
        Ok(self.locked_by_me()?.ok())
    }

    /// The process that holds the lock, by its note; `None` if nobody does, as far as this user can
    /// see. Changes nothing.
    pub fn holder(&self) -> Option<u32> {
        let mut file = self.folder.open_file(LOCK, OFlags::RDONLY).ok()?;
        let is_held = matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock));
        if is_held { noted(&mut file).parse().ok() } else { None }
    }

    /// The lock, or the file of the process that holds it.
    fn locked_by_me(&self) -> Result<Result<StateLock, File>, Error> {
        let path = self.file(LOCK);
        let locking = |error: io::Error| match error.kind() {
            io::ErrorKind::PermissionDenied => {
                let what = format!(
                    "this process has no permission to write to the state folder \
                     ({error})"
                );
                state_error(&path, what, NEEDS_WRITING)
            }
            _ if folder::is(&error, Errno::LOOP) => folder::linked(&path),
            _ => Error::io(format!("lock {}", path.display()))(error),
        };
        let file = match self.locked_file().map_err(locking)? {
            Ok(file) => file,
            Err(file) => return Ok(Err(file)),
        };
        // The process id only improves the message below, and a full disk cannot store it; only the
        // lock matters.
        let _ = self.folder.note(LOCK, &format!("{}\n", std::process::id()));
        self.folder.remove_leftovers();
        Ok(Ok(StateLock { file }))
    }

    /// The locked file, or the file that another process has locked.
    ///
    /// Without a lock file, where none can be created, the folder itself is locked. So a process
    /// that has locked the file checks that the folder is not locked, and one that has locked the
    /// folder checks that there is still no file: of two, at least one notices the other.
    fn locked_file(&self) -> io::Result<Result<File, File>> {
        let Some(file) = self.folder.open_lock(LOCK)? else {
            let folder = self.folder.open_folder()?;
            let is_alone = is_free(folder.try_lock())?
                && matches!(self.folder.open_file(LOCK, OFlags::RDONLY), Err(Errno::NOENT));
            return Ok(if is_alone { Ok(folder) } else { Err(folder) });
        };
        if !is_free(file.try_lock())? {
            return Ok(Err(file));
        }
        match self.folder.open_folder() {
            // Not every file system can lock a folder.
            Ok(folder) if matches!(is_free(folder.try_lock_shared()), Ok(false)) => Ok(Err(folder)),
            _ => Ok(Ok(file)),
        }
    }

    fn locked(&self, file: &mut File) -> Error {
        let pid = noted(file);
        let who = match pid.as_str() {
            digits if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                format!("process {digits}")
            }
            _ => "another process".into(),
        };
        let what = format!("{who} is using this state folder");
        let remedy = "Stop it first, or name another folder with --state-dir";
        state_error(&self.file(LOCK), what, remedy)
    }
}

fn is_free(lock: Result<(), TryLockError>) -> io::Result<bool> {
    match lock {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// The other process's note: bounded, and only for display.
fn noted(file: &mut File) -> String {
    let mut pid = String::new();
    let _ = file.take(20).read_to_string(&mut pid);
    pid.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_is_known_while_it_holds_and_looking_changes_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let state = StateDir::open(folder.path()).expect("a state folder");
        assert_eq!(state.holder(), None);
        assert!(!folder.path().join(LOCK).exists());
        let lock = state.lock().expect("it is free");
        assert_eq!(state.holder(), Some(std::process::id()));
        drop(lock);
        assert_eq!(state.holder(), None);
        drop(state.lock().expect("the lock is free again"));
    }

    #[test]
    fn a_shared_lock_is_held_until_both_are_gone() {
        let folder = tempfile::tempdir().expect("a folder");
        let state = StateDir::open(folder.path()).expect("a state folder");
        let former = state.lock().expect("it is free");
        let next = state.take_over(former.share().expect("a copy")).expect("it is shared");
        drop(former);
        state.lock().expect_err("the successor holds it");
        drop(next);
        drop(state.lock().expect("the lock is free again"));
    }

    /// As where no lock file can be created.
    #[test]
    fn a_locked_folder_is_in_use_though_its_lock_file_is_free() {
        let folder = tempfile::tempdir().expect("a folder");
        let state = StateDir::open(folder.path()).expect("a state folder");
        drop(state.lock().expect("it is free"));
        let former = File::open(folder.path()).expect("a folder");
        former.lock().expect("it is free");
        let error = state.lock().expect_err("another process holds it").to_string();
        assert!(error.contains("is using this state folder"), "{error}");
        let shared = former.try_clone().expect("a copy").into();
        let next = state.take_over(shared).expect("it is this folder's");
        drop(former);
        state.lock().expect_err("the successor holds it");
        drop(next);
        drop(state.lock().expect("the lock is free again"));
    }

    #[test]
    fn the_lock_of_another_folder_is_none_here() {
        let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
        let [here, there] =
            folders.each_ref().map(|it| StateDir::open(it.path()).expect("a state folder"));
        let other = there.lock().expect("it is free");
        let lock = here.take_over(other.share().expect("a copy")).expect("this one is free");
        here.lock().expect_err("this one is locked");
        drop(lock);
    }
}
