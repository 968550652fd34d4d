//! Errors that name the line, the key, and the nearest valid key.

use std::ops::Range;

use serde::de::DeserializeOwned;
use toml::de::DeTable;

use crate::Error;

/// The maximum number of changed letters for a misspelling.
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
        Some(span) => format!("{}: {message}{hint}", position(text, &span)),
        None => format!("{message}{hint}"),
    }
}

/// The wrong word and the valid ones, from a message that lists them.
fn unknown(message: &str) -> Option<(&str, Vec<&str>)> {
    let is_about = ["unknown field", "unknown variant"];
    is_about.iter().find(|start| message.starts_with(**start))?;
    let mut words = message.split('`').skip(1).step_by(2);
    Some((words.next()?, words.collect()))
}

fn position(text: &str, span: &Range<usize>) -> String {
    let before = &text[..span.start.min(text.len())];
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().map_or(0, |line| line.chars().count()) + 1;
    format!("line {line}, column {column}")
}

/// A message without its leading line number, for text that the user did not write.
pub(crate) fn without_line(message: &str) -> &str {
    let rest = message.strip_prefix("line ").and_then(|rest| rest.split_once(": "));
    rest.map_or(message, |(_, rest)| rest)
}

/// An error of one item of a list, with its number from 1 and its subject.
pub(super) fn of_item(list: &str, index: usize, about: &str, error: Error) -> Error {
    let Error::Scenario(message) = error else { return error };
    let about = if about.is_empty() { String::new() } else { format!(" ({about})") };
    Error::Scenario(format!("{list} {}{about}: {message}", index + 1))
}

/// Adds the line to a validation error that names an item of a list or quotes a word of the file.
pub(super) fn with_line(text: &str, error: Error) -> Error {
    let Error::Scenario(message) = error else { return error };
    let item = item(&message);
    let about = item.map_or(message.as_str(), |(_, _, about)| about);
    let quoted = about.split('"').nth(1).filter(|word| !word.is_empty());
    let key = about.split(' ').next().filter(|word| word.contains('-'));
    let found = match item {
        Some((list, index, _)) => find_in(text, list, index, quoted.or(key)),
        None => quoted.and_then(|word| find(text, word)).or_else(|| find(text, key?)),
    };
    match found {
        Some(line) if !message.starts_with("line ") => {
            Error::Scenario(format!("line {line}: {message}"))
        }
        _ => Error::Scenario(message),
    }
}

/// The list, the index in it, and the rest of a message of [`of_item`].
fn item(message: &str) -> Option<(&str, usize, &str)> {
    let (head, about) = message.split_once(": ")?;
    let mut words = head.split(' ');
    let list = words.next().filter(|list| matches!(*list, "event" | "path" | "site"))?;
    let number: usize = words.next()?.parse().ok()?;
    Some((list, number.checked_sub(1)?, about))
}

/// The line of the key in an item that is the word, or else has it in its value; or else of the
/// item's first key.
fn find_in(text: &str, list: &str, index: usize, word: Option<&str>) -> Option<usize> {
    let document = DeTable::parse(text).ok()?;
    let item = document.get_ref().get(list)?.get_ref().as_array()?.get(index)?;
    let keys = item.get_ref().as_table()?.iter();
    let keys = keys.map(|(key, value)| (key.span().start, key.get_ref().as_ref(), value.span()));
    let mut keys: Vec<(usize, &str, Range<usize>)> = keys.collect();
    keys.sort_unstable_by_key(|(start, ..)| *start);
    let is_it = |(_, key, _): &&(usize, &str, Range<usize>)| Some(*key) == word;
    let has_it = |(_, _, value): &&(usize, &str, Range<usize>)| {
        word.is_some_and(|word| text.get(value.clone()).is_some_and(|value| value.contains(word)))
    };
    let found = keys.iter().find(is_it).or_else(|| keys.iter().find(has_it));
    let start = found.or_else(|| keys.first()).map_or(item.span().start, |(start, ..)| *start);
    Some(text[..start].matches('\n').count() + 1)
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
