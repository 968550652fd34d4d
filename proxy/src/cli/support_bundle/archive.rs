//! A gzipped tar archive in memory: regular files in one folder, nothing else.
//!
//! The format is POSIX ustar, which every tar reads. Entries have uid and gid 0 and mode 0600.

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use meshport_config::UnixSeconds;

/// The size of a header, and the multiple to which contents are padded, in bytes.
const BLOCK: usize = 512;
/// Longest name of an entry, in bytes; the field has one more for the terminator.
pub(super) const MAX_NAME: usize = 99;
/// Longest name of the folder, in bytes.
pub(super) const MAX_FOLDER: usize = 154;

/// An archive that is being written.
pub(super) struct Archive {
    folder: String,
    at: UnixSeconds,
    out: GzEncoder<Vec<u8>>,
}

impl Archive {
    /// An empty archive; its entries are in `folder`, with the time `at`.
    pub(super) fn new(folder: &str, at: UnixSeconds) -> Self {
        debug_assert!(folder.len() <= MAX_FOLDER);
        let out = GzEncoder::new(Vec::new(), Compression::default());
        Self { folder: folder.to_owned(), at, out }
    }

    /// Adds a file.
    ///
    /// # Errors
    /// Writing to memory does not fail.
    pub(super) fn add(&mut self, name: &str, content: &[u8]) -> io::Result<()> {
        let header = self.header(name, content.len());
        self.out.write_all(&header)?;
        self.out.write_all(content)?;
        let rest = content.len().next_multiple_of(BLOCK) - content.len();
        self.out.write_all(&[0; BLOCK][..rest])
    }

    /// The whole archive.
    ///
    /// # Errors
    /// Writing to memory does not fail.
    pub(super) fn finish(mut self) -> io::Result<Vec<u8>> {
        // Two empty blocks end the archive.
        self.out.write_all(&[0; 2 * BLOCK])?;
        self.out.finish()
    }

    fn header(&self, name: &str, length: usize) -> [u8; BLOCK] {
        debug_assert!(name.len() <= MAX_NAME);
        let mut header = [0; BLOCK];
        let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, name.as_bytes());
        put(100, b"0000600\0");
        put(108, b"0000000\0");
        put(116, b"0000000\0");
        put(124, format!("{length:011o}\0").as_bytes());
        put(136, format!("{:011o}\0", self.at.0).as_bytes());
        // The checksum is computed with its own field as spaces.
        put(148, b"        ");
        put(156, b"0");
        put(257, b"ustar\x0000");
        put(345, self.folder.as_bytes());
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        header
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn tar_reads_it() {
        let mut archive = Archive::new("bundle", UnixSeconds(1_800_000_000));
        archive.add("short.txt", b"one line\n").expect("added");
        archive.add("block.bin", &[7; BLOCK]).expect("added");
        archive.add("empty", b"").expect("added");
        let bytes = archive.finish().expect("finished");
        let folder = tempfile::tempdir().expect("a folder");
        let mut tar = Command::new("tar");
        tar.args(["-xzf", "-", "-C"]).arg(folder.path()).stdin(Stdio::piped());
        let mut tar = tar.spawn().expect("tar is there");
        tar.stdin.take().expect("piped").write_all(&bytes).expect("it reads");
        assert!(tar.wait().expect("it ends").success());
        let read = |name: &str| std::fs::read(folder.path().join("bundle").join(name));
        assert_eq!(read("short.txt").expect("there"), b"one line\n");
        assert_eq!(read("block.bin").expect("there"), [7; BLOCK]);
        assert_eq!(read("empty").expect("there"), b"");
    }
}
