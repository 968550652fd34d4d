//! Errors in text written by people.

/// Malformed text, or a list of the wrong length.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// Malformed text.
    #[error("{found} is not {what}: expected {expected}")]
    Form {
        /// The expected kind, with its article ("a site name").
        what: &'static str,
        /// The text, quoted, escaped and truncated to a readable length.
        found: String,
        /// The form that is accepted.
        expected: &'static str,
    },
    /// A duration out of its bounds.
    #[error("{found} is not between {least} and {most}")]
    OutOfRange {
        /// The value.
        found: String,
        /// The shortest that is accepted.
        least: String,
        /// The longest that is accepted.
        most: String,
    },
    /// A list is longer than its bound.
    #[error("{found} {what} are too many; at most {max} are allowed")]
    TooMany {
        /// Its elements, in the plural.
        what: &'static str,
        /// How many there are.
        found: usize,
        /// How many there may be.
        max: usize,
    },
    /// A list that needs at least one element has none.
    #[error("no {what} given; give at least one")]
    Empty {
        /// Its elements, in the plural.
        what: &'static str,
    },
}

impl TextError {
    /// The error that `text` is not `what` (with its article); `expected` is the accepted form.
    pub fn form(what: &'static str, text: &str, expected: &'static str) -> Self {
        Self::Form { what, found: shown(text), expected }
    }
}

/// Implements serde's traits with the text form that `Display` writes and `FromStr` reads.
macro_rules! text_form {
    ($type:ty) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <String as serde::Deserialize>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}
pub(crate) use text_form;

/// The words of a text in lines of at most this many characters; a longer word has its own line.
pub fn wrap(text: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= columns => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Longest part of a malformed text that is repeated, in characters.
const MAX_SHOWN: usize = 60;

/// A text for an error message: quoted, control characters escaped, cut.
pub(crate) fn shown(text: &str) -> String {
    let cut: String = text.chars().take(MAX_SHOWN).collect();
    let dots = if cut.len() < text.len() { "..." } else { "" };
    format!("\"{}{dots}\"", cut.escape_debug())
}
