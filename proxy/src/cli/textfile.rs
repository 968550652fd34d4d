//! Reads and replaces files of other programs.
//!
//! A replacement is written next to the file, synced and renamed, so that a reader sees the old
//! content or the new. It keeps the file's mode and owner; a new file has mode 0600. A symbolic
//! link that a person has named stays one: its target is replaced. It is resolved once, to a folder
//! that is then open and a name in it: nobody who may write there can make root's verb read one
//! file and replace another. Reads are bounded by `MAX_TEXT_BYTES`.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Component, Path, PathBuf};

use meshport_daemon::Error;
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, Stat, fchmod, openat, renameat, statat, unlinkat,
};
use rustix::io::Errno;

/// Maximum file size, in bytes: a kubeconfig of several hundred clusters with embedded
/// certificates.
const MAX_TEXT_BYTES: u64 = 4 * 1024 * 1024;
/// The mode of a new file.
const NEW_MODE: u32 = 0o600;
const NOT_REGULAR: &str = "it is not a regular file";

/// The text of a file; `None` if it does not exist.
///
/// # Errors
/// [`Error::Io`] if it cannot be read, is too large or is not text.
pub(crate) fn read(path: &Path) -> Result<Option<String>, Error> {
    let text = match File::open(path) {
        Ok(file) => text_of(file).map(Some),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    };
    text.map_err(Error::io(format!("read {}", path.display())))
}

fn text_of(file: File) -> io::Result<String> {
    let mut text = String::new();
    let bytes = file.take(MAX_TEXT_BYTES + 1).read_to_string(&mut text)?;
    if u64::try_from(bytes).is_ok_and(|bytes| bytes > MAX_TEXT_BYTES) {
        return Err(io::Error::other(format!("it is larger than {MAX_TEXT_BYTES} bytes")));
    }
    Ok(text)
}

/// The folder of a file, also for a bare name.
pub(crate) fn parent(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A file to be changed, which need not exist.
#[derive(Debug)]
pub(crate) struct TextFile {
    folder: File,
    name: OsString,
    /// As it was named, for messages.
    path: PathBuf,
}

impl TextFile {
    /// Follows the links in `path`, now.
    ///
    /// # Errors
    /// [`Error::Io`] if a link leads nowhere or the folder cannot be opened.
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let found = || {
            let target = match path.symlink_metadata() {
                Ok(_) => path.canonicalize()?,
                Err(_nothing_there) => path.to_owned(),
            };
            open_parent(&target)
        };
        let (folder, name) = found().map_err(Error::io(format!("find {}", path.display())))?;
        Ok(Self { folder, name, path: path.to_owned() })
    }

    /// As [`read`].
    ///
    /// # Errors
    /// See [`read`]; also if the file is a link by now.
    pub(crate) fn read(&self) -> Result<Option<String>, Error> {
        let text = match self.open_file(OFlags::RDONLY) {
            Ok(file) => text_of(file).map(Some),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        };
        text.map_err(Error::io(format!("read {}", self.path.display())))
    }

    /// Replaces the content of the file, or creates it.
    ///
    /// # Errors
    /// [`Error::Io`]; the file is then as it was.
    pub(crate) fn replace(&self, text: &str) -> Result<(), Error> {
        self.put(text).map_err(Error::io(format!("write {}", self.path.display())))
    }

    fn put(&self, text: &str) -> io::Result<()> {
        let former = statat(&self.folder, &self.name, AtFlags::SYMLINK_NOFOLLOW).ok();
        let kind = former.as_ref().map(|it| FileType::from_raw_mode(it.st_mode));
        if kind.is_some_and(|kind| !kind.is_file() && !kind.is_symlink()) {
            return Err(io::Error::other(NOT_REGULAR));
        }
        let former = former.filter(|_| kind.is_some_and(FileType::is_file));
        let temporary = Temporary::write(self, text, former.as_ref())?;
        match renameat(&self.folder, &temporary.name, &self.folder, &self.name) {
            // A mounted file, such as /etc/hosts in a container, cannot get another inode.
            Err(Errno::BUSY) => {
                let mut file = self.open_file(OFlags::WRONLY | OFlags::TRUNC)?;
                file.write_all(text.as_bytes())
            }
            Err(error) => Err(error.into()),
            Ok(()) => self.sync_folder(),
        }
    }

    /// Syncs the folder, if this user may read it.
    fn sync_folder(&self) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match openat(&self.folder, ".", flags, Mode::empty()) {
            Ok(folder) => File::from(folder).sync_all(),
            Err(Errno::ACCESS) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn open_file(&self, flags: OFlags) -> io::Result<File> {
        // Opening a pipe in place of a file must not block.
        let always = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = File::from(openat(&self.folder, &self.name, flags | always, Mode::empty())?);
        if !file.metadata()?.is_file() {
            return Err(io::Error::other(NOT_REGULAR));
        }
        Ok(file)
    }
}

/// The folder that a path names, opened for what is done relative to it, and the last name.
///
/// # Errors
/// If the folder cannot be opened, or the path names no file.
pub(crate) fn open_parent(path: &Path) -> io::Result<(File, OsString)> {
    let name = path.file_name().ok_or(ErrorKind::IsADirectory)?.to_owned();
    Ok((open_folder(&parent(path).canonicalize()?)?, name))
}

/// Opens a folder by a path without links, whatever becomes of it meanwhile.
fn open_folder(path: &Path) -> io::Result<File> {
    let always = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut at = File::from(openat(CWD, "/", always, Mode::empty())?);
    for part in path.components().filter(|it| *it != Component::RootDir) {
        at = openat(&at, part.as_os_str(), always, Mode::empty())?.into();
    }
    Ok(at)
}

/// A temporary file in the target's folder; removed on drop if it is still there.
struct Temporary<'a> {
    folder: &'a File,
    name: OsString,
}

impl<'a> Temporary<'a> {
    fn write(target: &'a TextFile, text: &str, former: Option<&Stat>) -> io::Result<Self> {
        let name = target.name.to_string_lossy();
        let name = OsString::from(format!(".{name}.{}.tmp", std::process::id()));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(NEW_MODE);
        let mut file = File::from(openat(&target.folder, &name, flags, mode)?);
        let temporary = Self { folder: &target.folder, name };
        if let Some(former) = former {
            let ours = file.metadata()?;
            if (ours.uid(), ours.gid()) != (former.st_uid, former.st_gid) {
                fchown(&file, Some(former.st_uid), Some(former.st_gid))?;
            }
            fchmod(&file, Mode::from_raw_mode(former.st_mode & 0o7777))?;
        }
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        Ok(temporary)
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        // After success the name is gone; after a failure there is nobody to report to.
        let _ = unlinkat(self.folder, &self.name, AtFlags::empty());
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn replace(path: &Path, text: &str) -> Result<(), Error> {
        TextFile::open(path)?.replace(text)
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("it is there").mode() & 0o7777
    }

    #[test]
    fn a_replacement_keeps_mode_and_link() {
        let folder = tempfile::tempdir().expect("a folder");
        let (real, link) = (folder.path().join("real"), folder.path().join("link"));
        fs::write(&real, "old").expect("written");
        fs::set_permissions(&real, Permissions::from_mode(0o640)).expect("set");
        symlink("real", &link).expect("linked");
        replace(&link, "new").expect("replaced");
        assert_eq!(read(&real).expect("reads").as_deref(), Some("new"));
        assert_eq!(mode(&real), 0o640);
        assert!(link.symlink_metadata().expect("there").is_symlink());
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 2);
    }

    #[test]
    fn a_new_file_is_private() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("config");
        assert_eq!(read(&path).expect("no error"), None);
        replace(&path, "x").expect("written");
        assert_eq!(mode(&path), 0o600);
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let error = replace(&folder.path().join("none/config"), "x").expect_err("no folder");
        assert!(error.to_string().contains("none/config"), "{error}");
    }

    /// A file in a folder, and one elsewhere with the same name.
    fn beside_another() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let root = tempfile::tempdir().expect("a folder");
        let [file, elsewhere] = ["own", "other"].map(|name| root.path().join(name).join("config"));
        for path in [&file, &elsewhere] {
            fs::create_dir(parent(path)).expect("made");
            fs::write(path, "old").expect("written");
        }
        (root, file, elsewhere)
    }

    #[test]
    fn a_file_that_became_a_link_is_neither_read_nor_followed() {
        let (_root, path, elsewhere) = beside_another();
        let file = TextFile::open(&path).expect("it is there");
        assert_eq!(file.read().expect("reads").as_deref(), Some("old"));
        fs::remove_file(&path).expect("removed");
        symlink(&elsewhere, &path).expect("linked");
        file.read().expect_err("it is a link");
        file.replace("new").expect("replaced");
        assert_eq!(fs::read_to_string(&elsewhere).expect("it is there"), "old");
        assert!(path.symlink_metadata().expect("it is there").is_file());
        assert_eq!(file.read().expect("reads").as_deref(), Some("new"));
        assert_eq!(mode(&path), NEW_MODE, "nothing is taken over from the link's target");
    }

    #[test]
    fn a_folder_that_became_a_link_is_not_followed() {
        let (root, path, elsewhere) = beside_another();
        let file = TextFile::open(&path).expect("it is there");
        let moved = root.path().join("moved");
        fs::rename(parent(&path), &moved).expect("renamed");
        symlink(parent(&elsewhere), parent(&path)).expect("linked");
        file.replace("new").expect("replaced");
        assert_eq!(fs::read_to_string(&elsewhere).expect("it is there"), "old");
        assert_eq!(fs::read_to_string(moved.join("config")).expect("it is there"), "new");
        open_folder(parent(&path)).expect_err("a link has come between");
    }

    #[test]
    fn a_pipe_is_neither_read_nor_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("config");
        rustix::fs::mkfifoat(CWD, &path, Mode::RWXU).expect("made");
        let file = TextFile::open(&path).expect("it is there");
        assert!(file.read().expect_err("a pipe").to_string().contains(NOT_REGULAR));
        assert!(file.replace("new").expect_err("a pipe").to_string().contains(NOT_REGULAR));
        assert!(!path.symlink_metadata().expect("it is there").is_file());
    }

    #[test]
    fn what_is_no_text_or_too_large_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("config");
        fs::write(&path, [0xff, 0xfe]).expect("written");
        assert!(read(&path).is_err());
        let file = File::create(&path).expect("made");
        file.set_len(MAX_TEXT_BYTES + 1).expect("a sparse file");
        assert!(read(&path).expect_err("too large").to_string().contains("larger than"));
    }
}
