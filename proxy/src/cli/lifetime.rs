//! Lifetime of an invite or a credential on the command line: `30m`, `24h`, `365d`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use meshport_config::{Period, TextError};

const MIN: Period = Period(Duration::from_secs(1));
/// Ten years: a longer lifetime is a typing error.
const MAX: Period = Period(Duration::from_secs(3_660 * 86_400));

/// A span in whole seconds, from one second to ten years.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lifetime(Period);

impl Lifetime {
    pub(crate) const fn seconds(self) -> u64 {
        self.0.as_secs()
    }
}

impl FromStr for Lifetime {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        text.parse::<Period>()?.within(MIN, MAX).map(Self)
    }
}

impl fmt::Display for Lifetime {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_and_shown() {
        for (text, seconds) in [("1s", 1), ("30m", 1_800), ("24h", 86_400), ("365d", 31_536_000)] {
            let lifetime: Lifetime = text.parse().expect("a lifetime");
            assert_eq!(lifetime.seconds(), seconds);
        }
    }

    #[test]
    fn what_is_too_short_or_too_long_is_refused() {
        for text in ["", "24", "0s", "500ms", "-1h", "1.5h", "3661d"] {
            assert!(text.parse::<Lifetime>().is_err(), "{text}");
        }
    }
}
