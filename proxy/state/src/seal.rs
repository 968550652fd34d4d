//! Checksums of plain text files, in their last line.
//!
//! A flipped bit in an address or a generation yields another valid one, which only a checksum
//! detects. It proves nothing and does not lock the files: a user who edits one marks the change in
//! the last line. The content is used either way, with a warning about anything odd.

use data_encoding::HEXLOWER;
use meshport_config::Seed;
use sha2::{Digest, Sha256};

use super::folder::is_leftover;
use super::{GENERATION, MAX_SEEDS_BYTES, MAX_TEXT_BYTES, SEEDS, StateDir, content};

/// Start of the last line, before the checksum.
const SEAL: &str = "# checksum ";
/// The last line of a file that was edited by hand.
const BY_HAND: &str = "# by hand";
/// Files of others in the folder that are named.
const MAX_NAMED: usize = 3;
/// Bytes of the checksum: it misses damage once in four billion times.
const CHECKSUM_BYTES: usize = 4;
const CHECKSUM_DOMAIN: &[u8] = b"meshport state checksum v1\0";

/// The lines, with their checksum line.
pub(super) fn sealed(lines: &str) -> String {
    let hash = Sha256::new().chain_update(CHECKSUM_DOMAIN).chain_update(lines).finalize();
    format!("{lines}{SEAL}{}\n", HEXLOWER.encode(&hash[..CHECKSUM_BYTES]))
}

/// The file content for these seeds.
pub(super) fn of_seeds(seeds: &[Seed]) -> String {
    let lines: String = seeds.iter().map(|seed| format!("{seed}\n")).collect();
    sealed(&lines)
}

/// The generation in the content of its file.
pub(super) fn generation(text: &str) -> Option<u64> {
    let mut lines = text.lines().filter(|line| !line.starts_with('#'));
    let number = lines.next()?.trim().parse().ok()?;
    // The highest number has no successor, so it was never written.
    (lines.next().is_none() && number < u64::MAX).then_some(number)
}

/// The problem with a file's content; `None` if it is as written, or marked as edited by hand.
fn oddity(text: &str) -> Option<&'static str> {
    let body = text.strip_suffix('\n').unwrap_or(text);
    let (lines, last) = text.split_at(body.rfind('\n').map_or(0, |at| at + 1));
    if *text == sealed(lines) || last.trim_end() == BY_HAND {
        return None;
    }
    Some(match last.starts_with(SEAL) {
        true => "was edited by hand or is damaged: the checksum in its last line does not match",
        false => {
            "was edited by hand, is truncated or is from an earlier version: its last line is not \
             a checksum"
        }
    })
}

/// Every new ext4 volume has it.
const LOST_AND_FOUND: &str = "lost+found";

impl StateDir {
    /// Problems of the folder and of files that are used anyway, each with its meaning and remedy:
    /// for startup and for read-only checks. An unreadable file is reported where it is needed.
    pub fn doubts(&self) -> Vec<String> {
        let all = [self.doubt_of_mode(), self.doubt_of_seeds(), self.doubt_of_generation()];
        all.into_iter().flatten().collect()
    }

    /// The doubts about the folder itself, for a verb that begins to use it.
    pub fn doubts_of_folder(&self) -> Vec<String> {
        let contents = self.doubt_of_others().or_else(|| self.doubt_of_mode());
        let owner = self.doubt_of_owner(rustix::process::geteuid().as_raw());
        contents.into_iter().chain(owner).collect()
    }

    /// Whether the folder belongs to another user than the one who writes to it.
    pub(super) fn doubt_of_owner(&self, writer: u32) -> Option<String> {
        let owner = self.folder.owner().filter(|owner| *owner != writer)?;
        Some(format!(
            "{}: belongs to user {owner}, who can replace the files that user {writer} writes \
             there; run this as user {owner}, or name another folder with --state-dir",
            self.path().display()
        ))
    }

    /// Files of somebody else stay where they are, and keep the folder as open as it is.
    fn doubt_of_others(&self) -> Option<String> {
        let mut names = self.folder.names().ok()?;
        names
            .retain(|name| content(name).is_none() && !is_leftover(name) && name != LOST_AND_FOUND);
        names.sort();
        let more = names.len().saturating_sub(MAX_NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let named = names.get(..MAX_NAMED.min(names.len()))?.join(", ");
        (!named.is_empty()).then(|| {
            let open = self.folder.open_to_others().map_or_else(String::new, |mode| {
                format!(", so it stays accessible to other users (mode {mode:04o})")
            });
            format!(
                "{}: also holds files that are not meshport's ({named}{more}){open}; name a folder \
                 of its own with --state-dir",
                self.path().display()
            )
        })
    }

    /// Other users can do no harm, but can see which files exist and when they change.
    fn doubt_of_mode(&self) -> Option<String> {
        let (path, mode) = (self.path().display(), self.folder.open_to_others()?);
        Some(format!(
            "{path}: is accessible to other users (mode {mode:04o}); run `chmod 700 \
             {path}`"
        ))
    }

    /// As [`StateDir::doubts`], of the seeds alone.
    pub fn doubt_of_seeds(&self) -> Option<String> {
        let what = self.oddity_of(SEEDS, MAX_SEEDS_BYTES)?;
        Some(format!(
            "{}: {what}. Its nodes and addresses are used as read. Compare them with another \
             node's file, or join again with `meshport join INVITE --force`; if they are correct, \
             end the file with the line `{BY_HAND}`",
            self.file(SEEDS).display()
        ))
    }

    fn doubt_of_generation(&self) -> Option<String> {
        let what = match self.generation() {
            Ok(_) => self.oddity_of(GENERATION, MAX_TEXT_BYTES)?,
            Err(error) => return Some(error.to_string()),
        };
        Some(format!(
            "{}: {what}. Each start of the daemon takes a number above the stored one and not \
             below the wall clock, and rewrites the file; if other nodes know a higher one, the \
             node exceeds it as soon as it receives it. No action is needed if this machine's \
             clock is correct",
            self.file(GENERATION).display()
        ))
    }

    fn oddity_of(&self, name: &str, max_bytes: usize) -> Option<&'static str> {
        // The error is reported where the file is needed.
        let text = self.read_text(name, max_bytes, "").ok()??;
        oddity(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_says_whether_it_is_as_it_was_written() {
        for lines in ["", "one\n", "one\n\ntwo\n"] {
            let whole = sealed(lines);
            assert_eq!(oddity(&whole), None, "{whole:?}");
            for at in 0..whole.len() {
                assert!(oddity(&whole[..at]).is_some(), "{:?}", &whole[..at]);
                let mut changed = whole.clone().into_bytes();
                for bit in 0..7 {
                    changed[at] ^= 1 << bit;
                    let text = String::from_utf8(changed.clone()).expect("ASCII");
                    assert!(oddity(&text).is_some(), "{text:?}");
                    changed[at] ^= 1 << bit;
                }
            }
        }
        assert!(oddity("one\n").is_some_and(|why| why.contains("its last line is not a checksum")));
        let other = sealed("one\n").replace("one", "two");
        assert!(oddity(&other).is_some_and(|why| why.contains("does not match")));
        assert_eq!(oddity("two\n# by hand\n"), None);
        assert_eq!(oddity("two\n# by hand"), None);
        assert!(oddity("# by hand\ntwo\n").is_some());
    }

    #[test]
    fn a_generation_is_one_number() {
        assert_eq!(generation("7\n"), Some(7));
        assert_eq!(generation(&sealed("7\n")), Some(7));
        for bad in [
            "",
            "# 7\n",
            "7\n8\n",
            "7 8\n",
            "seven\n",
            "7# checksum 00000000\n",
            "18446744073709551615\n",
        ] {
            assert_eq!(generation(bad), None, "{bad:?}");
        }
    }
}
