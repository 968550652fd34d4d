//! What the unit tests share: a start of time and made-up identities.

use std::time::Instant;

/// Where virtual time starts; tests only ever add to it.
pub(crate) fn base() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "an arbitrary start; no test reads it again")]
    Instant::now()
}
