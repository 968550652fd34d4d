//! Files that are written whole or not at all, and that only their owner can read.
//!
//! A write goes to a temporary file in the same folder, is synced, takes its final name, and the
//! folder is synced: after a crash at any point the old content or the new is there, never a part.
//! A name that must not exist yet is taken with a hard link, which fails atomically when it does.
//! Reads are bounded by the caller's limit.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use zeroize::Zeroizing;

use crate::Error;

const FILE_MODE: u32 = 0o600;
const DIR_MODE: u32 = 0o700;
/// Group and others, any right.
const NOT_THE_OWNER: u32 = 0o077;
/// Group and others, the right to write.
const OTHERS_WRITE: u32 = 0o022;
const TEMPORARY_SUFFIX: &str = ".tmp";

/// What to do when the file exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// Refuse: keys and credentials are not replaced unasked.
    Keep,
    /// Replace it.
    Replace,
    /// Replace it by a file of the same owner: a daemon may run as another user than whoever writes
    /// for it. A secret only in the place of an earlier one, which its owner has read.
    ReplaceForOwner,
}

/// Whether others may know the content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    /// A file with rights for others is refused.
    Secret,
    /// Rights for others do no harm.
    Public,
}

pub(super) fn state_error(
    path: &Path,
    what: impl Into<String>,
    remedy: impl Into<String>,
) -> Error {
    Error::State { path: path.to_owned(), what: what.into(), remedy: remedy.into() }
}

/// Makes the folder and those above it; only the folder itself is closed to others.
pub(super) fn create_dir(path: &Path) -> Result<(), Error> {
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        fs::create_dir_all(parent)
            .map_err(Error::io(format!("create the folder {}", parent.display())))?;
    }
    match DirBuilder::new().mode(DIR_MODE).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        outcome => outcome.map_err(Error::io(format!("create the folder {}", path.display()))),
    }
}

/// Refuses what is no folder, and a folder in which others could swap the files.
pub(super) fn check_dir(path: &Path, remedy_if_missing: &str) -> Result<(), Error> {
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(state_error(path, "there is no such state folder", remedy_if_missing));
        }
        Err(error) => {
            return Err(Error::io(format!("look at the folder {}", path.display()))(error));
        }
    };
    if !metadata.is_dir() {
        let remedy = "Name a folder with --state-dir or `state-dir` in the configuration";
        return Err(state_error(path, "is not a folder", remedy));
    }
    if metadata.mode() & OTHERS_WRITE != 0 {
        let what = format!("others may write here (mode {:04o})", metadata.mode() & 0o7777);
        return Err(state_error(path, what, format!("Run `chmod 700 {}`", path.display())));
    }
    Ok(())
}

/// The content of a file of at most `max_bytes`; `None` when there is no such file.
pub(super) fn read(
    path: &Path,
    max_bytes: usize,
    content: Content,
) -> Result<Option<Zeroizing<Vec<u8>>>, Error> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let remedy = "Run as the user who owns the state folder, usually root";
            return Err(state_error(path, "this user may not read it", remedy));
        }
        Err(error) => return Err(Error::io(format!("open {}", path.display()))(error)),
    };
    let reading = || format!("read {}", path.display());
    let metadata = file.metadata().map_err(Error::io(reading()))?;
    if !metadata.is_file() {
        return Err(state_error(path, "is not a file", "Move it away"));
    }
    if content == Content::Secret && metadata.mode() & NOT_THE_OWNER != 0 {
        let what =
            format!("others have rights to this secret (mode {:04o})", metadata.mode() & 0o7777);
        return Err(state_error(path, what, format!("Run `chmod 600 {}`", path.display())));
    }
    // Sized once, so that no copy of a secret is left behind by a growing buffer.
    let expected = usize::try_from(metadata.len()).unwrap_or(usize::MAX).min(max_bytes) + 1;
    let mut bytes = Zeroizing::new(Vec::with_capacity(expected));
    let limit = u64::try_from(max_bytes).unwrap_or(u64::MAX).saturating_add(1);
    Read::by_ref(&mut file).take(limit).read_to_end(&mut bytes).map_err(Error::io(reading()))?;
    if bytes.len() > max_bytes {
        let what = format!("is larger than the {max_bytes} bytes it can have");
        return Err(state_error(path, what, "It is damaged or not meshport's; move it away"));
    }
    Ok(Some(bytes))
}

/// Writes a file whole, mode 0600, and returns when it is on disk.
pub(super) fn write(path: &Path, bytes: &[u8], existing: Existing) -> Result<(), Error> {
    if existing == Existing::Keep {
        require_absent(path)?;
    }
    let former = (existing == Existing::ReplaceForOwner).then(|| path.symlink_metadata().ok());
    let owner = former.flatten().map(|it| (it.uid(), it.gid()));
    let temporary = Temporary::write(path, bytes, owner)?;
    match existing {
        Existing::Replace | Existing::ReplaceForOwner => temporary.rename_to(path)?,
        Existing::Keep => temporary.link_to(path)?,
    }
    sync_dir_of(path)
}

/// As [`write()`], replacing what is there, for the owner of another file: a new secret for whoever
/// has read the present one.
pub(super) fn write_like(path: &Path, bytes: &[u8], other: &Path) -> Result<(), Error> {
    let owner = other.symlink_metadata().ok().map(|it| (it.uid(), it.gid()));
    Temporary::write(path, bytes, owner)?.rename_to(path)?;
    sync_dir_of(path)
}

/// Removes a file for good.
pub(super) fn remove(path: &Path) -> Result<(), Error> {
    fs::remove_file(path).map_err(Error::io(format!("remove {}", path.display())))?;
    sync_dir_of(path)
}

fn sync_dir_of(path: &Path) -> Result<(), Error> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let sync = File::open(dir).and_then(|dir| dir.sync_all());
    sync.map_err(Error::io(format!("sync the folder {}", dir.display())))
}

/// Refuses a path that is taken.
pub(super) fn require_absent(path: &Path) -> Result<(), Error> {
    match path.symlink_metadata() {
        Ok(_) => Err(exists(path)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Error::io(format!("look at {}", path.display()))(error)),
    }
}

fn exists(path: &Path) -> Error {
    state_error(path, "exists already", "It is replaced only with --force")
}

/// Removes what a crash in the middle of a write left behind. Call it only under the lock.
pub(super) fn remove_leftovers(dir: &Path) -> Result<(), Error> {
    let reading = || Error::io(format!("list {}", dir.display()));
    for entry in fs::read_dir(dir).map_err(reading())? {
        let entry = entry.map_err(reading())?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with('.') && name.ends_with(TEMPORARY_SUFFIX) {
            let path = entry.path();
            fs::remove_file(&path).map_err(Error::io(format!("remove {}", path.display())))?;
        }
    }
    Ok(())
}

/// A synced file under a name of its own; removed on drop unless it got its final name.
struct Temporary {
    path: PathBuf,
    renamed: bool,
}

impl Temporary {
    /// Of this owner, if one is given. The file is given away by its handle: its name may be
    /// exchanged by whoever owns the folder.
    fn write(target: &Path, bytes: &[u8], owner: Option<(u32, u32)>) -> Result<Self, Error> {
        static SEQUENCE: AtomicU32 = AtomicU32::new(0);
        let sequence = SEQUENCE.fetch_add(1, Ordering::Relaxed);
        let name = target.file_name().unwrap_or_default().to_string_lossy();
        let pid = std::process::id();
        let path = target.with_file_name(format!(".{name}.{pid}-{sequence}{TEMPORARY_SUFFIX}"));
        let writing = || Error::io(format!("write {}", target.display()));
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(FILE_MODE)
            .open(&path)
            .map_err(writing())?;
        let temporary = Self { path, renamed: false };
        if let Some((user, group)) = owner
            && file.metadata().map_err(writing())?.uid() != user
        {
            fchown(&file, Some(user), Some(group)).map_err(writing())?;
        }
        file.write_all(bytes).and_then(|()| file.sync_all()).map_err(writing())?;
        Ok(temporary)
    }

    fn rename_to(mut self, target: &Path) -> Result<(), Error> {
        fs::rename(&self.path, target)
            .map_err(Error::io(format!("replace {}", target.display())))?;
        self.renamed = true;
        Ok(())
    }

    fn link_to(self, target: &Path) -> Result<(), Error> {
        match fs::hard_link(&self.path, target) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(exists(target)),
            // A file system without hard links; the caller's lock keeps others of us out.
            Err(error) if no_hard_links(&error) => self.rename_to(target),
            Err(error) => Err(Error::io(format!("create {}", target.display()))(error)),
        }
    }
}

fn no_hard_links(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Unsupported | io::ErrorKind::PermissionDenied)
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.renamed {
            // Left over, it is removed by the next lock; there is no one to tell.
            let _ = fs::remove_file(&self.path);
        }
    }
}
