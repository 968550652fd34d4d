//! The reader of TLS hellos from memory; only with the feature `fuzzing`.

use super::hello::{Hello, HelloReader};

/// Parses bytes that arrive in pieces of these lengths, in turn: returns the server name if they
/// are a complete ClientHello with one, and after how many bytes the result was known.
///
/// # Panics
/// If a ClientHello has a name that is not valid DNS text.
pub fn client_hello(bytes: &[u8], pieces: &[usize]) -> (String, usize) {
    let mut reader = HelloReader::default();
    let mut lengths = pieces.iter().copied().cycle();
    let mut at = 0;
    while at < bytes.len() {
        let length = lengths.next().unwrap_or(usize::MAX).max(1);
        let end = at.saturating_add(length).min(bytes.len());
        let hello = reader.feed(&bytes[at..end]);
        at = end;
        if let Hello::Whole(Some(name)) = &hello {
            let is_fine =
                |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-._".contains(&b);
            assert!(name.len() <= 254 && name.bytes().all(is_fine), "{name:?}");
        }
        if hello != Hello::Partial {
            return (format!("{hello:?}"), at);
        }
    }
    (format!("{:?}", Hello::Partial), at)
}
