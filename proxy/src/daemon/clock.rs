//! The only place of the daemon that reads the clocks of the operating system.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use meshport_config::UnixSeconds;

/// Monotonic time. Follows tokio's clock, so that a paused runtime stops it too.
#[expect(clippy::disallowed_methods, reason = "the daemon's one reading of monotonic time")]
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Wall time, for credentials and logs only. A clock before 1970 reads as 1970.
#[expect(clippy::disallowed_methods, reason = "the daemon's one reading of wall time")]
pub(crate) fn wall() -> UnixSeconds {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixSeconds(since.as_secs())
}
