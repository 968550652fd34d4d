//! A clock that keeps running while the machine is suspended.

use std::ops::Add;
use std::time::Duration;

/// Time since the machine started, suspension included (`CLOCK_BOOTTIME`).
///
/// `std::time::Instant` stops while a machine is suspended, so a holder that wakes up would
/// consider its lease still fresh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct BootTime(Duration);

impl BootTime {
    /// The time `since_boot` after the start of the machine.
    pub fn new(since_boot: Duration) -> Self {
        Self(since_boot)
    }

    /// How much later this is than `earlier`; zero if it is not later.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for BootTime {
    type Output = Self;

    fn add(self, by: Duration) -> Self {
        Self(self.0.saturating_add(by))
    }
}
