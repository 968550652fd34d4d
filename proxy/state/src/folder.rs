//! The opened state folder, through which all of its files are read and written.
//!
//! Root's commands work in folders of other users, who may place and swap anything there at any
//! time. So each file, and each folder in it, is opened relative to the opened folder, no symbolic
//! link is followed, and a written file has no second hard link.
//!
//! A write goes to a temporary file, is synced, takes its final name, and the folder is synced:
//! after a crash at any point the file has the old content or the new, never a part. A name that
//! must not exist yet is created with a hard link, which fails atomically if it does. Reads are
//! bounded by the caller's limit. Every file can be read by its owner only.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{
    AtFlags, CWD, Dir, Mode, OFlags, fchmod, linkat, mkdirat, openat, renameat, statat, unlinkat,
};
use rustix::io::Errno;
use zeroize::Zeroizing;

use crate::Error;

const FILE_MODE: u32 = 0o600;
const DIR_MODE: u32 = 0o700;
/// Any permission of the group and of others.
const NOT_THE_OWNER: u32 = 0o077;
/// Write permission of the group and of others.
const OTHERS_WRITE: u32 = 0o022;
/// Flags of every file: no link is followed, and opening a pipe in place of a file does not block.
const ALWAYS: OFlags =
    OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);
/// The errors of a file system that takes no new file: it is read-only, or has no inodes left.
const NO_NEW_FILES: [Errno; 3] = [Errno::ROFS, Errno::NOSPC, Errno::DQUOT];
const TEMPORARY_SUFFIX: &str = ".tmp";
/// Entries examined to remove leftovers: a state folder has a dozen.
const MAX_ENTRIES: usize = 10_000;

/// What to do if the file exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// Refuse: keys and credentials are not replaced implicitly.
    Keep,
    /// Replace it.
    Replace,
    /// Replace it with a file of the same owner: the daemon may run as a different user from the
    /// one that writes for it. A secret may only replace an earlier one, which its owner has read.
    ReplaceForOwner,
}

/// Whether others may know the content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    /// A file with permissions for others is refused.
    Secret,
    /// Permissions for others are harmless.
    Public,
}

pub(super) fn state_error(
    path: &Path,
    what: impl Into<String>,
    remedy: impl Into<String>,
) -> Error {
    Error::State { path: path.to_owned(), what: what.into(), remedy: remedy.into() }
}

/// See the module's description. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Folder {
    handle: Arc<File>,
    /// Its name in messages. It is resolved only once, to open the folder.
    path: PathBuf,
}

impl Folder {
    /// An existing folder. A link to it is followed: systemd's state folders are links.
    pub(super) fn open(path: PathBuf, remedy_if_missing: &str) -> Result<Self, Error> {
        let handle = match File::open(&path) {
            Ok(handle) => handle,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(state_error(
                    &path,
                    "this state folder does not exist",
                    remedy_if_missing,
                ));
            }
            Err(error) => return Err(Error::io(format!("open {}", path.display()))(error)),
        };
        Self::opened(handle, path)
    }

    /// An existing folder at `path` itself: a link there is refused. `None` if there is nothing.
    pub(super) fn open_itself(path: &Path) -> Result<Option<Self>, Error> {
        // A slash at the end would follow a link.
        let path: PathBuf = path.components().collect();
        let opened =
            openat(CWD, path.as_path(), OFlags::RDONLY | ALWAYS, Mode::empty()).map(File::from);
        Self::existing(opened, path)
    }

    /// As [`Folder::open_itself`], for a folder in this one.
    pub(super) fn open_in(&self, name: &str) -> Result<Option<Self>, Error> {
        Self::existing(self.open_file(name, OFlags::RDONLY), self.file(name))
    }

    /// As [`Folder::open_itself`], created with mode 0700 if missing.
    pub(super) fn create_in(&self, name: &str, is_own: fn(&str) -> bool) -> Result<Self, Error> {
        let path = self.file(name);
        let made = mkdirat(&*self.handle, name, Mode::from_raw_mode(DIR_MODE));
        made_or_there(made.map_err(io::Error::from), &path)?;
        Self::there(self.open_in(name)?, &path, is_own)
    }

    fn existing(opened: Result<File, Errno>, path: PathBuf) -> Result<Option<Self>, Error> {
        match opened {
            Ok(handle) => Self::opened(handle, path).map(Some),
            Err(error) => unopened(&path, error.into()),
        }
    }

    fn opened(handle: File, path: PathBuf) -> Result<Self, Error> {
        let looking = Error::io(format!("access the folder {}", path.display()));
        let metadata = handle.metadata().map_err(looking)?;
        if !metadata.is_dir() {
            let remedy = "Name a folder with --state-dir or `state-dir` in the configuration";
            return Err(state_error(&path, "is not a folder", remedy));
        }
        if metadata.mode() & OTHERS_WRITE != 0 {
            let what =
                format!("is writable by other users (mode {:04o})", metadata.mode() & 0o7777);
            return Err(state_error(&path, what, format!("Run `chmod 700 {}`", path.display())));
        }
        Ok(Self { handle: Arc::new(handle), path })
    }

    /// The folder, created with its parents if missing. Only the folder itself is closed to others;
    /// an existing one too, if it contains only files that `is_own` accepts.
    pub(super) fn create(
        path: PathBuf,
        is_own: fn(&str) -> bool,
        remedy: &str,
    ) -> Result<Self, Error> {
        make(&path)?;
        Ok(Self::open(path, remedy)?.closed(is_own))
    }

    /// As [`Folder::create`]; a link at `path` is refused.
    pub(super) fn create_itself(path: &Path, is_own: fn(&str) -> bool) -> Result<Self, Error> {
        make(path)?;
        Self::there(Self::open_itself(path)?, path, is_own)
    }

    /// A folder that was created or existed, closed to others.
    fn there(found: Option<Self>, path: &Path, is_own: fn(&str) -> bool) -> Result<Self, Error> {
        let gone = || Error::io(format!("open {}", path.display()))(Errno::NOENT.into());
        Ok(found.ok_or_else(gone)?.closed(is_own))
    }

    /// Closes it to others, if it contains only files that `is_own` accepts.
    fn closed(self, is_own: fn(&str) -> bool) -> Self {
        let is_ours =
            |names: Vec<String>| names.iter().all(|name| is_own(name) || is_leftover(name));
        if self.open_to_others().is_some() && self.names().is_ok_and(is_ours) {
            // `open_to_others` reports a folder whose mode this user may not change.
            let _ = fchmod(&*self.handle, Mode::from_raw_mode(DIR_MODE));
        }
        self
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a file in it, for messages.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The folder's mode, if others may do anything in it.
    pub(super) fn open_to_others(&self) -> Option<u32> {
        let mode = self.handle.metadata().ok()?.mode() & 0o7777;
        (mode & NOT_THE_OWNER != 0).then_some(mode)
    }

    /// The user that the folder belongs to.
    pub(super) fn owner(&self) -> Option<u32> {
        self.handle.metadata().ok().map(|it| it.uid())
    }

    /// The content of a file of at most `max_bytes`; `None` if it does not exist.
    pub(super) fn read(
        &self,
        name: &str,
        max_bytes: usize,
        content: Content,
    ) -> Result<Option<Zeroizing<Vec<u8>>>, Error> {
        match self.open_file(name, OFlags::RDONLY) {
            Ok(file) => read_opened(&file, &self.file(name), max_bytes, content).map(Some),
            Err(error) => unopened(&self.file(name), error.into()),
        }
    }

    /// Writes a whole file and returns once it is on disk.
    pub(super) fn write(&self, name: &str, bytes: &[u8], existing: Existing) -> Result<(), Error> {
        if existing == Existing::Keep {
            self.require_absent(name)?;
        }
        let owner = (existing == Existing::ReplaceForOwner).then(|| self.owner_of(name)).flatten();
        let temporary = Temporary::write(self, name, bytes, owner)?;
        match existing {
            Existing::Replace | Existing::ReplaceForOwner => temporary.rename()?,
            Existing::Keep => temporary.link()?,
        }
        self.sync()
    }

    /// As [`Folder::write`], replacing an existing file, for the owner of another file: a new
    /// secret for the user who has read the current one.
    pub(super) fn write_like(&self, name: &str, bytes: &[u8], other: &str) -> Result<(), Error> {
        Temporary::write(self, name, bytes, self.owner_of(other))?.rename()?;
        self.sync()
    }

    /// Permanently removes a file, if it exists.
    pub(super) fn remove(&self, name: &str) -> Result<(), Error> {
        match unlinkat(&*self.handle, name, AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            Err(error) => {
                Err(Error::io(format!("remove {}", self.file(name).display()))(error.into()))
            }
            Ok(()) => self.sync(),
        }
    }

    /// Refuses a name that exists.
    pub(super) fn require_absent(&self, name: &str) -> Result<(), Error> {
        match statat(&*self.handle, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Err(exists(&self.file(name))),
            Err(Errno::NOENT) => Ok(()),
            Err(error) => {
                Err(Error::io(format!("look at {}", self.file(name).display()))(error.into()))
            }
        }
    }

    /// A file to be locked, created if missing, for the owner of the folder. It is opened
    /// read-only, since the file system may become read-only later. `None` if the file is missing
    /// and the file system is read-only or full: the folder itself can be locked then.
    pub(super) fn open_lock(&self, name: &str) -> io::Result<Option<File>> {
        let file = match self.open_file(name, OFlags::RDONLY) {
            Err(Errno::NOENT) => match self.make_lock(name) {
                Err(error) if NO_NEW_FILES.iter().any(|it| is(&error, *it)) => return Ok(None),
                made => {
                    made?;
                    self.open_file(name, OFlags::RDONLY)?
                }
            },
            outcome => outcome?,
        };
        must_be_alone(&file)?;
        Ok(Some(file))
    }

    /// The folder as a file, to be locked.
    pub(super) fn open_folder(&self) -> Result<File, Errno> {
        self.open_file(".", OFlags::DIRECTORY)
    }

    fn make_lock(&self, name: &str) -> io::Result<()> {
        let file = self.open_file(name, OFlags::WRONLY | OFlags::CREATE)?;
        let owner = self.handle.metadata()?;
        if file.metadata()?.uid() != owner.uid() && must_be_alone(&file).is_ok() {
            // It may be created by root; without this the folder's owner could not run.
            let _ = fchown(&file, Some(owner.uid()), Some(owner.gid()));
        }
        Ok(())
    }

    /// Overwrites an existing file in place; a crash may leave it incomplete.
    pub(super) fn note(&self, name: &str, text: &str) -> io::Result<()> {
        let mut file = self.open_file(name, OFlags::WRONLY)?;
        must_be_alone(&file)?;
        file.set_len(0)?;
        file.write_all(text.as_bytes())
    }

    /// Removes what a crash during a write left behind. Call it only under the lock. Leftovers that
    /// cannot be removed are harmless.
    pub(super) fn remove_leftovers(&self) {
        for name in self.names().unwrap_or_default() {
            if is_leftover(&name) {
                let _ = unlinkat(&*self.handle, name.as_str(), AtFlags::empty());
            }
        }
    }

    pub(super) fn open_file(&self, name: &str, flags: OFlags) -> Result<File, Errno> {
        let mode = Mode::from_raw_mode(FILE_MODE);
        openat(&*self.handle, name, flags | ALWAYS, mode).map(File::from)
    }

    /// The names of everything in it.
    pub(super) fn names(&self) -> Result<Vec<String>, Errno> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&*self.handle)?.take(MAX_ENTRIES) {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name != "." && name != ".." {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn owner_of(&self, name: &str) -> Option<(u32, u32)> {
        let stat = statat(&*self.handle, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        Some((stat.st_uid, stat.st_gid))
    }

    fn sync(&self) -> Result<(), Error> {
        let syncing = Error::io(format!("sync the folder {}", self.path.display()));
        self.handle.sync_all().map_err(syncing)
    }
}

/// Creates a folder with its parents, if missing. Only the folder itself is closed to others.
fn make(path: &Path) -> Result<(), Error> {
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        fs::create_dir_all(parent)
            .map_err(Error::io(format!("create the folder {}", parent.display())))?;
    }
    made_or_there(DirBuilder::new().mode(DIR_MODE).create(path), path)
}

fn made_or_there(made: io::Result<()>, path: &Path) -> Result<(), Error> {
    match made {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made.map_err(Error::io(format!("create the folder {}", path.display()))),
    }
}

/// Whether a crash in the middle of a write may have left a file of this name.
pub(super) fn is_leftover(name: &str) -> bool {
    name.starts_with('.') && name.ends_with(TEMPORARY_SUFFIX)
}

/// The content of a file that the user named, in any folder; `None` if it does not exist.
pub(super) fn read_named(
    path: &Path,
    max_bytes: usize,
    content: Content,
) -> Result<Option<Zeroizing<Vec<u8>>>, Error> {
    match File::open(path) {
        Ok(file) => read_opened(&file, path, max_bytes, content).map(Some),
        Err(error) => unopened(path, error),
    }
}

/// Whether the system's error is this one.
pub(super) fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

/// The error for a symbolic link.
pub(super) fn linked(path: &Path) -> Error {
    let what = "is a symbolic link; links in a state folder are not followed";
    state_error(path, what, "Remove it, or put what it points to in its place")
}

/// The error for a FIFO, a socket, a device or a folder.
pub(super) fn not_a_file(path: &Path) -> Error {
    state_error(path, "is not a file", "Move it away")
}

/// The error for a file that cannot be opened.
fn unopened<T>(path: &Path, error: io::Error) -> Result<Option<T>, Error> {
    if is(&error, Errno::LOOP) {
        return Err(linked(path));
    }
    match error.kind() {
        io::ErrorKind::NotFound => Ok(None),
        io::ErrorKind::PermissionDenied => {
            let remedy = "Run as the user who owns the state folder, usually root";
            Err(state_error(path, "is not readable by this user", remedy))
        }
        _ => Err(Error::io(format!("open {}", path.display()))(error)),
    }
}

fn read_opened(
    file: &File,
    path: &Path,
    max_bytes: usize,
    content: Content,
) -> Result<Zeroizing<Vec<u8>>, Error> {
    let reading = || format!("read {}", path.display());
    let metadata = file.metadata().map_err(Error::io(reading()))?;
    if !metadata.is_file() {
        return Err(not_a_file(path));
    }
    if content == Content::Secret && metadata.mode() & NOT_THE_OWNER != 0 {
        let what =
            format!("other users can access this secret (mode {:04o})", metadata.mode() & 0o7777);
        return Err(state_error(path, what, format!("Run `chmod 600 {}`", path.display())));
    }
    // Allocated once: a growing buffer would leave copies of a secret behind.
    let expected = usize::try_from(metadata.len()).unwrap_or(usize::MAX).min(max_bytes) + 1;
    let mut bytes = Zeroizing::new(Vec::with_capacity(expected));
    let limit = u64::try_from(max_bytes).unwrap_or(u64::MAX).saturating_add(1);
    file.take(limit).read_to_end(&mut bytes).map_err(Error::io(reading()))?;
    if bytes.len() > max_bytes {
        let what = format!("exceeds its maximum of {max_bytes} bytes");
        return Err(state_error(
            path,
            what,
            "It is damaged or was not written by meshport; move it \
             away",
        ));
    }
    Ok(bytes)
}

/// A file, and no other link to it: one with a second hard link may belong to another program,
/// whose data would be overwritten.
fn must_be_alone(file: &File) -> io::Result<()> {
    let metadata = file.metadata()?;
    let kind = metadata.file_type();
    let what = match metadata.nlink() {
        _ if kind.is_fifo() => "is a FIFO, not a file",
        _ if kind.is_dir() => "is a folder, not a file",
        _ if !kind.is_file() => "is not a file",
        0 | 1 => return Ok(()),
        _ => "has another hard link",
    };
    Err(io::Error::other(format!("it {what}; move it away")))
}

fn exists(path: &Path) -> Error {
    state_error(path, "already exists", "Use --force to replace it")
}

/// A synced file under a temporary name; removed on drop unless it got its final name.
struct Temporary<'a> {
    folder: &'a Folder,
    name: String,
    target: &'a str,
    renamed: bool,
}

impl<'a> Temporary<'a> {
    /// Writes it, for this owner if one is given. The owner is set through the open file, since the
    /// folder's owner could replace the name.
    fn write(
        folder: &'a Folder,
        target: &'a str,
        bytes: &[u8],
        owner: Option<(u32, u32)>,
    ) -> Result<Self, Error> {
        static SEQUENCE: AtomicU32 = AtomicU32::new(0);
        let sequence = SEQUENCE.fetch_add(1, Ordering::Relaxed);
        let name = format!(".{target}.{}-{sequence}{TEMPORARY_SUFFIX}", std::process::id());
        let writing = || Error::io(format!("write {}", folder.file(target).display()));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let mut file = folder.open_file(&name, flags).map_err(|it| writing()(it.into()))?;
        let temporary = Self { folder, name, target, renamed: false };
        if let Some((user, group)) = owner
            && file.metadata().map_err(writing())?.uid() != user
        {
            fchown(&file, Some(user), Some(group)).map_err(writing())?;
        }
        file.write_all(bytes).and_then(|()| file.sync_all()).map_err(writing())?;
        Ok(temporary)
    }

    fn rename(mut self) -> Result<(), Error> {
        let handle = &*self.folder.handle;
        renameat(handle, self.name.as_str(), handle, self.target)
            .map_err(|error| self.failed("replace", error))?;
        self.renamed = true;
        Ok(())
    }

    fn link(self) -> Result<(), Error> {
        let handle = &*self.folder.handle;
        let empty = AtFlags::empty();
        match linkat(handle, self.name.as_str(), handle, self.target, empty) {
            Ok(()) => Ok(()),
            Err(Errno::EXIST) => Err(exists(&self.folder.file(self.target))),
            // A file system without hard links; the caller's lock excludes other processes of ours.
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM | Errno::ACCESS) => self.rename(),
            Err(error) => Err(self.failed("create", error)),
        }
    }

    fn failed(&self, verb: &str, error: Errno) -> Error {
        Error::io(format!("{verb} {}", self.folder.file(self.target).display()))(error.into())
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        if !self.renamed {
            // If it stays, the next lock removes it; there is nobody to report to.
            let _ = unlinkat(&*self.folder.handle, self.name.as_str(), AtFlags::empty());
        }
    }
}
