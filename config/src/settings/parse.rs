//! Parses text into [`Settings`]: reads the document, then checks the rules between its keys.

use toml::de::DeTable;

use super::problem::{Problem, ProblemKind, Problems};
use super::read::{Positions, Reader};
use super::{Defaults, MAX_SETTINGS_BYTES, Settings, check};

/// Reads a settings file, with the folders of a system service as defaults.
///
/// # Errors
/// Every problem of the text, in file order, at most [`super::MAX_PROBLEMS`].
pub fn parse(text: &str) -> Result<Settings, Vec<Problem>> {
    parse_with(text, &Defaults::default())
}

/// Reads a settings file; where it names no folders, those of `defaults` are used.
///
/// # Errors
/// See [`parse`].
pub fn parse_with(text: &str, defaults: &Defaults) -> Result<Settings, Vec<Problem>> {
    match parse_leniently(text, defaults) {
        (Some(settings), problems) if problems.is_empty() => Ok(settings),
        (_, problems) => Err(problems),
    }
}

/// Like [`parse_with`], but returns the settings that could be read from a text with problems; the
/// others have their defaults. For requests to a running daemon, which started with an earlier
/// text. `None` if the text is too large.
pub fn parse_leniently(text: &str, defaults: &Defaults) -> (Option<Settings>, Vec<Problem>) {
    let mut problems = Problems::of(text);
    if text.len() > MAX_SETTINGS_BYTES {
        let found = format!("the file has {} bytes", text.len());
        let expected = format!("at most {MAX_SETTINGS_BYTES}");
        problems.add(ProblemKind::Syntax, &(0..0), "", found, expected);
        return (None, problems.finish());
    }
    let (document, errors) = DeTable::parse_recoverable(text);
    for error in errors {
        let span = error.span().unwrap_or(0..0);
        let message = error.message().replace('\n', ", ");
        let (found, expected) = message.split_once(", expected ").unwrap_or((&message, "TOML"));
        problems.add(ProblemKind::Syntax, &span, "", found, expected);
    }
    let mut reader = Reader { problems, positions: Positions::new() };
    let settings = reader.settings(document.get_ref(), defaults);
    let mut problems = reader.problems;
    check::check(&settings, &reader.positions, &mut problems);
    (Some(settings), problems.finish())
}
