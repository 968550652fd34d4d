//! Errors that name the line, the key, and the nearest valid key.

use std::ops::Range;

use serde::de::DeserializeOwned;

use crate::Error;

/// Most changed letters at which a word still counts as a misspelling of another.
const MAX_EDITS: usize = 3;

/// Reads TOML into a value; unknown keys are errors.
///
/// # Errors
/// [`Error::Scenario`] with line and column, the key, and the nearest valid one.
pub fn read<T: DeserializeOwned>(text: &str) -> Result<T, Error> {
    toml::from_str(text).map_err(|error| Error::Scenario(explain(text, &error)))
}

fn explain(text: &str, error: &toml::de::Error) -> String {
    let message = error.message();
    let hint = unknown(message).map(|(found, valid)| near(found, valid)).unwrap_or_default();
    match error.span() {
        Some(span) => format!("{}: {message}{hint}", place(text, &span)),
        None => format!("{message}{hint}"),
    }
}

/// The wrong word and the valid ones, of a message that lists them.
fn unknown(message: &str) -> Option<(&str, Vec<&str>)> {
    let is_about = ["unknown field", "unknown variant"];
    is_about.iter().find(|start| message.starts_with(**start))?;
    let mut words = message.split('`').skip(1).step_by(2);
    Some((words.next()?, words.collect()))
}

fn place(text: &str, span: &Range<usize>) -> String {
    let before = &text[..span.start.min(text.len())];
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().map_or(0, |line| line.chars().count()) + 1;
    format!("line {line}, column {column}")
}

/// Adds the line to an error of the check that quotes a word of the file.
pub(super) fn with_line(text: &str, error: Error) -> Error {
    let Error::Scenario(message) = error else { return error };
    let quoted = message.split('"').nth(1).filter(|word| !word.is_empty());
    let key = message.split(' ').next().filter(|word| word.contains('-'));
    let found = quoted.and_then(|word| find(text, word)).or_else(|| find(text, key?));
    match found {
        Some(line) if !message.starts_with("line ") => {
            Error::Scenario(format!("line {line}: {message}"))
        }
        _ => Error::Scenario(message),
    }
}

/// The last line outside comments that has the word: definitions come before uses.
fn find(text: &str, word: &str) -> Option<usize> {
    let code = |line: &str| line.split('#').next().is_some_and(|code| code.contains(word));
    text.lines().enumerate().filter(|(_, line)| code(line)).map(|(at, _)| at + 1).last()
}

/// ", did you mean ..." if one of the valid words is near.
pub(crate) fn near<'a>(found: &str, valid: impl IntoIterator<Item = &'a str>) -> String {
    let scored = valid.into_iter().map(|word| (strsim::damerau_levenshtein(found, word), word));
    let best = scored.min().filter(|(edits, _)| *edits <= MAX_EDITS);
    best.map(|(_, word)| format!("; did you mean \"{word}\"?")).unwrap_or_default()
}
