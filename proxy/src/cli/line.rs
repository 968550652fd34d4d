//! Reads lines that people pass on, such as invites, from a file, standard input or the command
//! line itself.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use zeroize::Zeroizing;

use meshport_daemon::Error;

/// The longest accepted line, in bytes; far above any invite.
const MAX_LINE_BYTES: u64 = 64 * 1024;
/// Prefix of such lines; anything else is a file name.
const TAG: &str = "meshport-";
/// The longest file name shown in a message, in bytes: a longer one may be a line that lost its
/// beginning.
const MAX_SHOWN_BYTES: usize = 100;

/// The line that an argument stands for: the argument itself, the content of the file it names, or
/// standard input for "-".
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

/// As [`read`], for an argument that may also be a name: without a file of that name that holds
/// such a line, it is itself.
pub(super) fn read_unless_name(word: &str) -> Result<Zeroizing<String>, Error> {
    if word == "-" {
        return standard_input();
    }
    let in_file = of_file(Path::new(word)).ok().filter(|text| text.trim_start().starts_with(TAG));
    Ok(in_file.unwrap_or_else(|| Zeroizing::new(word.to_owned())))
}

/// The line in a file.
pub(super) fn of_file(path: &Path) -> Result<Zeroizing<String>, Error> {
    let context = format!("read the line from {}", path.display());
    File::open(path).and_then(text).map_err(Error::io(context))
}

/// The line on standard input.
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
        let name = |word: &str| read_unless_name(word).expect("a line or a name").to_string();
        assert_eq!(name(&file.to_string_lossy()), "meshport-invite-2.AAAA\n");
        std::fs::write(&file, "a list of nodes").expect("written");
        for word in [&*file.to_string_lossy(), "worker-7", &folder.path().to_string_lossy()] {
            assert_eq!(name(word), word);
        }
        let error = read("nothing.txt").expect_err("no such file").to_string();
        assert!(error.contains("nothing.txt"), "{error}");
        // For example most of an invite.
        let cut = "x".repeat(300);
        let error = read(&cut).expect_err("no such file").to_string();
        assert!(!error.contains(&cut), "{error}");
    }
}
