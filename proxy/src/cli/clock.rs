//! The wall clock, for credentials only.

use std::time::{SystemTime, UNIX_EPOCH};

use meshport_config::UnixSeconds;

/// The wall time now; a clock before 1970 counts as 1970.
#[expect(clippy::disallowed_methods, reason = "the verbs are the edge that reads the wall clock")]
pub(crate) fn wall() -> UnixSeconds {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixSeconds(since.as_secs())
}
