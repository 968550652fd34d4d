//! Server names in rules: `api.example.com`, `*.prod.example.com`.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::text::TextError;

/// The longest host name, in bytes (RFC 1035, 2.3.4).
const MAX_HOST_NAME_BYTES: usize = 253;

/// A name, or with `*` all names with one more label, as in certificates (RFC 6125, 6.4.3).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamePattern {
    is_wildcard: bool,
    /// Lower case.
    name: Arc<str>,
}

impl NamePattern {
    /// The accepted form of a list's entries, to follow "expected".
    pub const FORM: &str =
        "a DNS name, such as \"api.example.com\", or one with \"*\" as its first label";

    /// Whether it matches this name. Case makes no difference.
    pub fn matches(&self, name: &str) -> bool {
        let name = name.strip_suffix('.').unwrap_or(name);
        if !self.is_wildcard {
            return name.eq_ignore_ascii_case(&self.name);
        }
        name.split_once('.')
            .is_some_and(|(first, rest)| !first.is_empty() && rest.eq_ignore_ascii_case(&self.name))
    }

    /// Whether its first label may be any.
    pub fn is_wildcard(&self) -> bool {
        self.is_wildcard
    }
}

impl FromStr for NamePattern {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        let (is_wildcard, name) = match text.strip_prefix("*.") {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let is_allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        let is_label = |label: &str| {
            (1..=63).contains(&label.len())
                && label.bytes().all(is_allowed)
                && !label.starts_with('-')
                && !label.ends_with('-')
        };
        // Clients do not send an IP address as a server name (RFC 6066, section 3).
        let is_address = name.parse::<std::net::Ipv4Addr>().is_ok();
        if text.len() > MAX_HOST_NAME_BYTES || is_address || !name.split('.').all(is_label) {
            return Err(TextError::form("a server name", text, Self::FORM));
        }
        Ok(Self { is_wildcard, name: name.to_ascii_lowercase().into() })
    }
}

impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_wildcard { "*." } else { "" })?;
        f.write_str(&self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> NamePattern {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn names_match_whole_and_wildcards_one_label() {
        let exact = pattern("Api.Example.com");
        assert_eq!(exact.to_string(), "api.example.com");
        for (name, means) in [
            ("api.example.com", true),
            ("API.EXAMPLE.COM", true),
            ("api.example.com.", true),
            ("xapi.example.com", false),
            ("x.api.example.com", false),
            ("example.com", false),
            ("", false),
        ] {
            assert_eq!(exact.matches(name), means, "{name}");
        }
        let wild = pattern("*.prod.example.com");
        assert_eq!(wild.to_string(), "*.prod.example.com");
        for (name, means) in [
            ("a.prod.example.com", true),
            ("A.Prod.Example.Com", true),
            ("prod.example.com", false),
            (".prod.example.com", false),
            ("a.b.prod.example.com", false),
            ("aprod.example.com", false),
            ("a.prod.example.com.evil", false),
        ] {
            assert_eq!(wild.matches(name), means, "{name}");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        let long = "a.".repeat(130);
        for text in [
            "",
            "*",
            "*.",
            "*.*.a",
            "a.*.b",
            "a*.b",
            "a..b",
            ".a",
            "a.",
            "-a.b",
            "a b",
            "1.2.3.4",
            "ä.example",
            &long,
        ] {
            assert!(text.parse::<NamePattern>().is_err(), "{text}");
        }
    }
}
