//! The lock of a state folder: only one process may use it.
//!
//! A process locks the file `lock`, and the folder itself, so that removing the file frees nothing.
//! The lock on the folder is shared: the process that takes over has its own, and programs of
//! earlier releases, which only look at the folder, may do so.

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
    /// Not every file system can lock a folder; and it may be `file`.
    _folder: Option<File>,
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
        let of = |file: &File| file.metadata().map(|it| (it.dev(), it.ino())).ok();
        let [lock, folder] =
            [self.folder.open_file(LOCK, OFlags::RDONLY), self.folder.open_folder()];
        let is_shared = |it: &File| of(it).is_some_and(|it| Some(it) == of(&file));
        if folder.as_ref().is_ok_and(is_shared) {
            return Ok(self.locked_with(file, None));
        }
        if lock.as_ref().is_ok_and(is_shared) {
            return Ok(self.locked_with(file, self.share_folder()));
        }
        // Somebody has removed the file. The holder's lock on the folder keeps all others out.
        if file.metadata().is_ok_and(|it| it.nlink() == 0)
            && let Ok(Some(anew)) = self.folder.open_lock(LOCK)
            && matches!(is_free(anew.try_lock()), Ok(true))
        {
            return Ok(self.locked_with(anew, self.share_folder()));
        }
        drop(file);
        self.lock()
    }

    fn locked_with(&self, file: File, folder: Option<File>) -> StateLock {
        // The process id only improves messages, and a full disk cannot store it.
        let _ = self.folder.note(LOCK, &format!("{}\n", std::process::id()));
        StateLock { file, _folder: folder }
    }

    /// A lock on the folder beside that of the process from which this one takes over.
    fn share_folder(&self) -> Option<File> {
        self.folder.open_folder().ok().filter(|it| it.try_lock_shared().is_ok())
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
            // A socket cannot even be opened.
            _ if folder::is(&error, Errno::NXIO) => folder::not_a_file(&path),
            _ => Error::io(format!("lock {}", path.display()))(error),
        };
        let (file, folder) = match self.locked_files().map_err(locking)? {
            Ok(files) => files,
            Err(file) => return Ok(Err(file)),
        };
        let lock = self.locked_with(file, folder);
        self.folder.remove_leftovers();
        Ok(Ok(lock))
    }

    /// The locked file and folder, or the one that another process has locked.
    ///
    /// Without a lock file, where none can be created, only the folder is locked. One that has
    /// locked the folder checks that there is still no file, which a process of an earlier release
    /// may have locked alone: of two, at least one notices the other.
    fn locked_files(&self) -> io::Result<Result<(File, Option<File>), File>> {
        let Some(file) = self.folder.open_lock(LOCK)? else {
            let folder = self.folder.open_folder()?;
            let is_alone = is_free(folder.try_lock())?
                && matches!(self.folder.open_file(LOCK, OFlags::RDONLY), Err(Errno::NOENT));
            return Ok(if is_alone { Ok((folder, None)) } else { Err(folder) });
        };
        if !is_free(file.try_lock())? {
            return Ok(Err(file));
        }
        let Ok(folder) = self.folder.open_folder() else { return Ok(Ok((file, None))) };
        // Alone first: a holder whose file was removed shares it. Of two such starts both may fail.
        let is_alone = is_free(folder.try_lock());
        let is_locked = is_alone.and_then(|it| Ok(it && is_free(folder.try_lock_shared())?));
        Ok(match is_locked {
            Ok(true) => Ok((file, Some(folder))),
            Ok(false) => Err(folder),
            // Not every file system can lock a folder.
            Err(_) => Ok((file, None)),
        })
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

    #[test]
    fn a_lock_whose_file_was_removed_is_held_and_can_be_taken_over() {
        let folder = tempfile::tempdir().expect("a folder");
        let state = StateDir::open(folder.path()).expect("a state folder");
        let former = state.lock().expect("it is free");
        let remove = || std::fs::remove_file(folder.path().join(LOCK)).expect("it is there");
        remove();
        let error = state.lock().expect_err("it is in use").to_string();
        assert!(error.contains("another process is using this state folder"), "{error}");
        let next = state.take_over(former.share().expect("a copy")).expect("it is shared");
        drop(former);
        remove();
        assert!(state.try_lock().expect("it can be looked at").is_none(), "the successor has it");
        drop(next);
        drop(state.lock().expect("the lock is free again"));
    }

    /// A program of an earlier release looks whether it could share the folder.
    #[test]
    fn a_locked_folder_can_be_shared() {
        let folder = tempfile::tempdir().expect("a folder");
        let state = StateDir::open(folder.path()).expect("a state folder");
        let _lock = state.lock().expect("it is free");
        let former = File::open(folder.path()).expect("a folder");
        former.try_lock_shared().expect("it can be shared");
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
