//! Lines that people pass on, such as invites, and the sources from which a command reads them: a
//! file, standard input, or the command line itself.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use zeroize::Zeroizing;

use meshport_daemon::Error;

/// The longest accepted line, in bytes; far above any invite.
const MAX_LINE_BYTES: u64 = 64 * 1024;
/// The beginnings of these lines; anything else is a file's name.
const TAG: &str = "meshport-";
/// The longest file name that a message repeats, in bytes: a longer one may be a line whose
/// beginning was lost.
const MAX_SHOWN_BYTES: usize = 100;

/// The line for an argument of the command line: itself, the content of the file of that name, or
/// with "-" that of standard input.
///
/// # Errors
/// [`Error::Io`] when it cannot be read.
pub(super) fn read(word: &str) -> Result<Zeroizing<String>, Error> {
    let word = word.trim();
    if word == "-" {
        return standard_input();
    }
    if word.starts_with(TAG) {
        return Ok(Zeroizing::new(word.to_owned()));
    }
    let shown = if word.len() <= MAX_SHOWN_BYTES { word } else { "a file of that name" };
    File::open(word).and_then(text).map_err(Error::io(format!("read the line from {shown}")))
}

/// The line in a file.
///
/// # Errors
/// See [`read`].
pub(super) fn of_file(path: &Path) -> Result<Zeroizing<String>, Error> {
    let context = format!("read the line from {}", path.display());
    File::open(path).and_then(text).map_err(Error::io(context))
}

/// The line on standard input.
///
/// # Errors
/// See [`read`].
pub(super) fn standard_input() -> Result<Zeroizing<String>, Error> {
    text(std::io::stdin().lock()).map_err(Error::io("read standard input"))
}

fn text(from: impl Read) -> std::io::Result<Zeroizing<String>> {
    let mut text = Zeroizing::new(String::new());
    from.take(MAX_LINE_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_itself_or_in_a_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("invite.txt");
        std::fs::write(&file, "meshport-invite-2.AAAA\n").expect("written");
        for word in ["meshport-invite-2.AAAA", &file.to_string_lossy()] {
            assert_eq!(read(word).expect("a line").trim(), "meshport-invite-2.AAAA");
        }
        let error = read("nothing.txt").expect_err("no such file").to_string();
        assert!(error.contains("nothing.txt"), "{error}");
        // For example most of an invite.
        let cut = "x".repeat(300);
        let error = read(&cut).expect_err("no such file").to_string();
        assert!(!error.contains(&cut), "{error}");
    }
}
