//! Secrets on the command line are overwritten as soon as this process has read them.
//!
//! Every user of a machine can read the command line of every process (`/proc/PID/cmdline`, `ps`).
//! The kernel shows the memory that holds the process's arguments, and the process may write there:
//! here through `/proc/self/mem`, at the address in `/proc/self/stat`. Only `std::env::args` uses
//! that memory, and copies it. docs/security.md lists what remains: the moment before, and the
//! copies that shells, `sudo` and audit logs keep.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;

use super::output;

/// Tags of secret lines.
const SECRETS: [&[u8]; 3] = [b"meshport-invite-", b"meshport-next-secret-", b"meshport-mandate-"];
/// The byte that overwrites them.
const FILLER: u8 = b'x';
/// The position of the command line's address in `/proc/self/stat`, counted from the state, which
/// is the third field (proc_pid_stat(5): `arg_start` is the 48th).
const ARG_START: usize = 48 - 3;

/// The command-line arguments. Overwrites secrets among them, and warns the user to pass them by
/// file.
pub(super) fn words() -> Vec<OsString> {
    let words: Vec<OsString> = env::args_os().collect();
    let line: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    if secrets(&line.join(&0)).is_empty() {
        return words;
    }
    let outcome = match overwrite() {
        Ok(()) => "It is overwritten now",
        Err(_) => "It stays readable while this command runs",
    };
    output::advice(&format!(
        "warning: a secret was on the command line, where other users of this machine and the \
         shell history can see it. {outcome}. Pass a file instead, or - for standard input"
    ));
    words
}

fn overwrite() -> io::Result<()> {
    let line = || fs::read("/proc/self/cmdline");
    let lacks = || io::Error::from(io::ErrorKind::NotFound);
    let stat = fs::read_to_string("/proc/self/stat")?;
    let (_, fields) = stat.rsplit_once(')').ok_or_else(lacks)?;
    let start = fields.split_ascii_whitespace().nth(ARG_START);
    let start: u64 = start.and_then(|start| start.parse().ok()).ok_or_else(lacks)?;
    let memory = File::options().write(true).open("/proc/self/mem")?;
    for range in secrets(&line()?) {
        let at = start + u64::try_from(range.start).map_err(io::Error::other)?;
        memory.write_all_at(&vec![FILLER; range.len()], at)?;
    }
    // If the process has set its title, the kernel shows different memory.
    let hidden = |range: Range<usize>, line: &[u8]| line[range].iter().all(|it| *it == FILLER);
    let line = line()?;
    let all = secrets(&line).into_iter().all(|range| hidden(range, &line));
    if all { Ok(()) } else { Err(io::Error::other("it is still to be seen")) }
}

/// Positions of the secret parts of a command line whose arguments end with zeros.
fn secrets(line: &[u8]) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut begin = 0;
    for word in line.split(|byte| *byte == 0) {
        for tag in SECRETS {
            // Also after the `=` of a flag.
            if let Some(at) = word.windows(tag.len()).position(|window| window == tag) {
                found.push(begin + at + tag.len()..begin + word.len());
            }
        }
        begin += word.len() + 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_the_tag_of_a_secret_is_found() {
        let line = b"meshport\0renew\0meshport-invite-2.AB\0--import=meshport-next-secret-1.C\0-\0";
        let found: Vec<&[u8]> = secrets(line).into_iter().map(|range| &line[range]).collect();
        assert_eq!(found, [b"2.AB", &b"1.C"[..]]);
        assert!(secrets(b"meshport\0join\0invite.txt\0").is_empty());
        assert!(secrets(b"").is_empty());
    }
}
