//! What commands read that act for the authority: its key, and lines that are handed over.

use std::io::Read;
use std::path::Path;

use meshport_config::AuthorityKey;
use zeroize::Zeroizing;

use crate::Error;
use crate::daemon::state::read_authority_key;

/// The longest line taken from standard input, in bytes; far above any invite.
const MAX_LINE_BYTES: u64 = 64 * 1024;
/// What to do without the key, for commands with --print and --import.
pub(super) const SIGN_ELSEWHERE: &str =
    "sign where it is with --print and hand the line over with --import";

/// The authority's key, from a file or from the `folder`. `otherwise` says what to do where neither
/// has it.
pub(super) fn key(
    file: Option<&Path>,
    folder: impl FnOnce() -> Result<Option<AuthorityKey>, Error>,
    otherwise: &str,
) -> Result<AuthorityKey, Error> {
    let key = match file {
        Some(path) => read_authority_key(path)?,
        None => folder()?,
    };
    key.ok_or_else(|| {
        Error::Usage(format!(
            "the authority's key is not here; name its file with --authority, or {otherwise}"
        ))
    })
}

/// A word of the command line, or what standard input says.
pub(super) fn line(word: &str) -> Result<Zeroizing<String>, Error> {
    if word != "-" {
        return Ok(Zeroizing::new(word.to_owned()));
    }
    let mut text = Zeroizing::new(String::new());
    let read = std::io::stdin().lock().take(MAX_LINE_BYTES).read_to_string(&mut text);
    read.map_err(Error::io("read standard input"))?;
    Ok(text)
}
