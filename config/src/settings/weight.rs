//! The weight of an origin among those that share sessions.

use std::fmt;
use std::str::FromStr;

use super::Pin;
use crate::text::TextError;

/// The largest weight; an unlisted origin has 1.
pub const MAX_WEIGHT: u32 = 100;

/// The weight of an origin, as in `cp-1=3`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Weight {
    /// The origin.
    pub origin: Pin,
    /// 1 to [`MAX_WEIGHT`].
    pub weight: u32,
}

impl Weight {
    /// The accepted form of a list's entries, to follow "expected".
    pub const FORM: &str = "a node's name or id and a weight of 1 to 100, such as \"cp-1=3\"";
}

impl FromStr for Weight {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        let wrong = || TextError::form("a weight", text, Self::FORM);
        // Keys in base64 end with "=" themselves.
        let (origin, weight) = text.rsplit_once('=').ok_or_else(wrong)?;
        let is_number = !weight.is_empty() && weight.bytes().all(|b| b.is_ascii_digit());
        let weight = weight.parse().ok().filter(|weight| (1..=MAX_WEIGHT).contains(weight));
        let weight = weight.filter(|_| is_number).ok_or_else(wrong)?;
        Ok(Self { origin: origin.parse().map_err(|_| wrong())?, weight })
    }
}

impl fmt::Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.origin, self.weight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_read_and_written() {
        let node = "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=";
        for text in ["cp-1=3", "cp-1.example=100", &format!("{node}=1")] {
            let weight: Weight = text.parse().expect("a weight");
            assert_eq!(weight.to_string(), text);
        }
        for text in ["", "cp-1", "cp-1=", "cp-1=0", "cp-1=101", "cp-1=+3", "=3", "cp 1=3", node] {
            assert!(text.parse::<Weight>().is_err(), "{text}");
        }
    }
}
