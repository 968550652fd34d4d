//! Standard output and standard error; a closed pipe is an error value.
//!
//! Standard output carries the answer and nothing else; advice and errors go to standard error. On
//! a terminal both are wrapped to its width, and problems have a colour if [`colour`] allows it.

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;

use serde::Serialize;

use super::render::{Style, Tone, wrapped};
use meshport_daemon::{Error, colour};

/// Standard output was closed. Shells report this for a program that SIGPIPE ended (128 + 13).
const CLOSED_PIPE: u8 = 141;

/// Prefix of an error.
const PROGRAM: &str = "meshport: ";

/// Writes an answer to standard output.
///
/// # Errors
/// [`Error::Io`], also for a closed pipe.
pub(crate) fn answer(text: &str) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(Error::io("write to standard output"))
}

/// Writes an answer as indented JSON, the same for every `--json`.
pub(crate) fn json<T: Serialize + ?Sized>(value: &T) -> Result<(), Error> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| Error::Bug(format!("cannot encode the answer as JSON: {error}")))?;
    answer(&(text + "\n"))
}

/// Writes an answer as JSON or as text.
pub(crate) fn either<T: Serialize + ?Sized>(
    as_json: bool,
    value: &T,
    text: impl FnOnce(&T) -> String,
) -> Result<(), Error> {
    if as_json { json(value) } else { answer(&text(value)) }
}

/// Writes an answer as JSON, or as text with advice, which may be empty.
pub(crate) fn with_advice<T: Serialize>(
    as_json: bool,
    value: &T,
    text: &str,
    advised: &str,
) -> Result<(), Error> {
    either(as_json, value, |_| text.to_owned())?;
    if !as_json {
        advice(advised);
    }
    Ok(())
}

/// Prefix of a warning.
const WARNING: &str = "warning:";

/// Prints advice to standard error. It is lost if that is closed.
pub(crate) fn advice(text: &str) {
    let tone = if text.starts_with(WARNING) { Tone::Warn } else { Tone::Plain };
    tell(text, WARNING, tone);
}

/// Draws progress on one line of the terminal, over the previous text; an empty text erases it.
pub(crate) fn draw(text: &str) {
    // If standard error is closed, progress is lost.
    let _ = write!(io::stderr().lock(), "\r\x1b[K{text}");
}

/// Writes to standard error, with the prefix in its colour.
fn tell(text: &str, prefix: &str, tone: Tone) {
    let style = style_of(&io::stderr());
    let folded = folded(text, style.width);
    let painted = match folded.strip_prefix(prefix) {
        Some(rest) => format!("{}{rest}", style.paint(prefix, tone)),
        None => folded,
    };
    let _ = io::stderr().lock().write_all(painted.as_bytes());
}

/// The text with each of its lines wrapped after its own indentation.
fn folded(text: &str, width: Option<usize>) -> String {
    let fold = |line: &str| {
        let indent = line.len() - line.trim_start_matches(' ').len();
        let fits = width.is_none_or(|width| line.chars().count() <= width);
        if fits { format!("{line}\n") } else { wrapped(line, indent, width) }
    };
    text.lines().map(fold).collect()
}

/// The style of standard output.
pub(crate) fn style() -> Style {
    style_of(&io::stdout())
}

/// Columns of the terminal behind standard output; `None` when it is a file or a pipe.
pub(crate) fn width() -> Option<usize> {
    style().width
}

/// Lines of the terminal behind standard output; `None` when it is a file or a pipe.
pub(crate) fn height() -> Option<usize> {
    let is_terminal = io::stdout().is_terminal();
    let size = terminal_size::terminal_size().filter(|_| is_terminal);
    size.map(|(_, terminal_size::Height(lines))| lines.into())
}

fn style_of(output: &(impl IsTerminal + AsFd)) -> Style {
    if !output.is_terminal() {
        return Style::default();
    }
    let size = terminal_size::terminal_size_of(output);
    let width = size.map(|(terminal_size::Width(columns), _)| columns.into());
    Style { width, colour: colour::is_wanted(output) }
}

/// Reports a failed verb; the process's exit code.
pub(crate) fn report(error: &Error) -> u8 {
    if is_closed_pipe(error) {
        return CLOSED_PIPE;
    }
    // A verb that has printed a negative answer has nothing to add.
    let text = error.to_string();
    if !text.is_empty() {
        tell(&format!("{PROGRAM}{text}"), PROGRAM, Tone::Bad);
    }
    error.exit_code()
}

fn is_closed_pipe(error: &Error) -> bool {
    matches!(error, Error::Io { what, source }
        if source.kind() == io::ErrorKind::BrokenPipe && what == "write to standard output")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_folded_behind_their_indentation() {
        let text = "two problems:\n  the first of them is long\n\nEnd";
        assert_eq!(folded(text, None), format!("{text}\n"));
        let expected = "two problems:\n  the first of\n  them is long\n\nEnd\n";
        assert_eq!(folded(text, Some(16)), expected);
    }

    #[test]
    fn a_closed_pipe_is_distinguished_from_other_failures() {
        let broken = || io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(is_closed_pipe(&Error::io("write to standard output")(broken())));
        assert!(!is_closed_pipe(&Error::io("write a file")(broken())));
        assert!(!is_closed_pipe(&Error::Usage(String::new())));
    }
}
