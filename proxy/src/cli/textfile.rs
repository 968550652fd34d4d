//! Files of other programs that a verb changes: read and replaced completely.
//!
//! A replacement is written next to the file, synced and renamed, so that a reader sees the old
//! content or the new. It keeps the file's mode and owner; a new file has mode 0600. A symbolic
//! link stays one: its target is replaced. Reads are bounded by `MAX_TEXT_BYTES`.

use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use meshport_daemon::Error;

/// The largest file that is read, in bytes: a kubeconfig of several hundred clusters with their
/// certificates inside.
const MAX_TEXT_BYTES: u64 = 4 * 1024 * 1024;
/// The mode of a new file.
const NEW_MODE: u32 = 0o600;

/// The text of a file; `None` if it does not exist.
///
/// # Errors
/// [`Error::Io`] if it cannot be read, is too large or is not text.
pub(crate) fn read(path: &Path) -> Result<Option<String>, Error> {
    let reading = || Error::io(format!("read {}", path.display()));
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(reading()(error)),
    };
    let mut text = String::new();
    let bytes = file.take(MAX_TEXT_BYTES + 1).read_to_string(&mut text).map_err(reading())?;
    if u64::try_from(bytes).is_ok_and(|bytes| bytes > MAX_TEXT_BYTES) {
        let error = io::Error::other(format!("it is larger than {MAX_TEXT_BYTES} bytes"));
        return Err(reading()(error));
    }
    Ok(Some(text))
}

/// Replaces the content of a file, or creates it.
///
/// # Errors
/// [`Error::Io`]; the file is then as it was.
pub(crate) fn replace(path: &Path, text: &str) -> Result<(), Error> {
    let target = match path.symlink_metadata() {
        Ok(_) => path.canonicalize(),
        Err(_nothing_there) => Ok(path.to_owned()),
    };
    let target = target.map_err(Error::io(format!("follow {}", path.display())))?;
    let former = fs::metadata(&target).ok();
    let writing = || Error::io(format!("write {}", path.display()));
    let temporary = Temporary::write(&target, text, former.as_ref()).map_err(writing())?;
    match fs::rename(&temporary.0, &target) {
        // A mounted file, such as /etc/hosts in a container, cannot get another inode.
        Err(error) if error.kind() == ErrorKind::ResourceBusy => {
            fs::write(&target, text).map_err(writing())
        }
        Err(error) => Err(writing()(error)),
        Ok(()) => {
            let folder = parent(&target);
            let sync = File::open(folder).and_then(|folder| folder.sync_all());
            sync.map_err(Error::io(format!("sync the folder {}", folder.display())))
        }
    }
}

/// The folder of a file, also for a bare name.
pub(crate) fn parent(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A temporary file in the target's folder; removed on drop if it is still there.
struct Temporary(PathBuf);

impl Temporary {
    fn write(target: &Path, text: &str, former: Option<&Metadata>) -> io::Result<Self> {
        let name = target.file_name().unwrap_or_default().to_string_lossy();
        let path = target.with_file_name(format!(".{name}.{}.tmp", std::process::id()));
        let mut file =
            OpenOptions::new().write(true).create_new(true).mode(NEW_MODE).open(&path)?;
        let temporary = Self(path);
        if let Some(former) = former {
            let ours = file.metadata()?;
            if (ours.uid(), ours.gid()) != (former.uid(), former.gid()) {
                fchown(&file, Some(former.uid()), Some(former.gid()))?;
            }
            file.set_permissions(Permissions::from_mode(former.mode() & 0o7777))?;
        }
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        Ok(temporary)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // Already renamed on success; otherwise there is nobody to report to.
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("it is there").mode() & 0o7777
    }

    #[test]
    fn a_replacement_keeps_mode_and_link() {
        let folder = tempfile::tempdir().expect("a folder");
        let (real, link) = (folder.path().join("real"), folder.path().join("link"));
        fs::write(&real, "old").expect("written");
        fs::set_permissions(&real, Permissions::from_mode(0o640)).expect("set");
        std::os::unix::fs::symlink("real", &link).expect("linked");
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
