//! Files that an operator names: regular ones of limited size.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use zeroize::Zeroizing;

/// The largest file of certificates or with a key, in bytes: those of a system have 250 KiB.
pub(crate) const MAX_PEM_BYTES: u64 = 4 * 1024 * 1024;

/// Reads a regular file of at most `limit` bytes. A pipe in place of it does not block.
///
/// # Errors
/// It cannot be read, is no regular file, or is larger.
pub fn read(path: &Path, limit: u64) -> io::Result<Zeroizing<Vec<u8>>> {
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits();
    let flags = i32::try_from(flags).map_err(io::Error::other)?;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    // Growing would leave copies behind.
    let room = usize::try_from(metadata.len().min(limit)).map_err(io::Error::other)?;
    let mut bytes = Zeroizing::new(Vec::with_capacity(room.saturating_add(1)));
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(io::Error::other(format!("it is larger than {limit} bytes")));
    }
    Ok(bytes)
}

/// As [`read`], beside the runtime.
pub(crate) async fn read_aside(path: PathBuf, limit: u64) -> io::Result<Zeroizing<Vec<u8>>> {
    let reading = tokio::task::spawn_blocking(move || read(&path, limit));
    reading.await.map_err(io::Error::other)?
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    #[test]
    fn only_a_regular_file_within_the_limit_is_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        fs::write(path("file"), "12345").expect("written");
        assert_eq!(read(&path("file"), 5).expect("it fits").as_slice(), b"12345");
        let said = |name: &str, limit| read(&path(name), limit).expect_err("refused").to_string();
        assert_eq!(said("file", 4), "it is larger than 4 bytes");
        mknodat(CWD, path("pipe"), FileType::Fifo, Mode::RUSR, 0).expect("made");
        assert_eq!(said("pipe", 5), "it is not a regular file");
        assert_eq!(said(".", 5), "it is not a regular file");
    }
}
