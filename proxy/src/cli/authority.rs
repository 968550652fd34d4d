//! The authority's key, for the commands that need it.

use std::path::Path;

use meshport_config::AuthorityKey;

use meshport_daemon::Error;
use meshport_daemon::state::read_authority_key;

/// Advice for a machine without the key, for commands with --print and --import.
pub(super) const SIGN_ELSEWHERE: &str =
    "sign on the machine that has it with --print, and use the line here with --import";

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
