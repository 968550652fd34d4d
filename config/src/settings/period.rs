//! Durations in text: `500ms`, `1s`, `5m`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::text::{TextError, text_form};

/// The units, largest first, in nanoseconds.
const UNITS: [(&str, u64); 7] = [
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];
const FORM: &str = "a whole number and a unit of ms, s, m, h or d, such as 500ms, 1s or 24h";

/// A length of time whose text form is a whole number and one unit: `ns`, `us`, `ms`, `s`, `m`, `h`
/// or `d`. At most 584 years, which is 2^64 ns; longer ones are capped at that when written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Period(pub Duration);

impl Period {
    /// This length, if it is within these bounds.
    ///
    /// # Errors
    /// [`TextError::OutOfRange`].
    pub fn within(self, least: Self, most: Self) -> Result<Self, TextError> {
        if (least..=most).contains(&self) {
            return Ok(self);
        }
        let [found, least, most] = [self, least, most].map(|it| it.to_string());
        Err(TextError::OutOfRange { found, least, most })
    }

    /// The length in whole seconds, as credentials count.
    pub const fn as_secs(self) -> u64 {
        self.0.as_secs()
    }
}

impl From<Period> for Duration {
    fn from(period: Period) -> Self {
        period.0
    }
}

impl FromStr for Period {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        let wrong = || TextError::form("a duration", text, FORM);
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let (_, nanos) = UNITS.into_iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
        let number = number.parse::<u64>().map_err(|_| wrong())?;
        let total = number.checked_mul(nanos).ok_or_else(wrong)?;
        Ok(Self(Duration::from_nanos(total)))
    }
}

/// In the largest unit that gives a whole number.
impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX);
        if nanos == 0 {
            return f.pad("0s");
        }
        let whole = UNITS.into_iter().find(|(_, unit)| nanos.is_multiple_of(*unit));
        let (name, unit) = whole.unwrap_or(("ns", 1));
        f.pad(&format!("{}{name}", nanos / unit))
    }
}

text_form!(Period);
