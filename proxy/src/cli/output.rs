//! Standard output and standard error, written so that a closed pipe is an error value.
//!
//! Standard output carries the answer and nothing else; advice and errors go to standard error.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;

use crate::Error;

/// What a shell reports for a program that a closed pipe ended (128 + SIGPIPE).
const CLOSED_PIPE: u8 = 141;

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
///
/// # Errors
/// As [`answer`].
pub(crate) fn json<T: Serialize + ?Sized>(value: &T) -> Result<(), Error> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| Error::Bug(format!("an answer has no JSON: {error}")))?;
    answer(&(text + "\n"))
}

/// Tells the person something that is not the answer. A closed standard error loses it.
pub(crate) fn advice(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Columns of the terminal behind standard output; `None` when it is a file or a pipe.
pub(crate) fn width() -> Option<usize> {
    if !io::stdout().is_terminal() {
        return None;
    }
    terminal_size::terminal_size().map(|(terminal_size::Width(columns), _)| columns.into())
}

/// Reports a failed verb; the process's exit code.
pub(crate) fn report(error: &Error) -> u8 {
    if is_closed_pipe(error) {
        return CLOSED_PIPE;
    }
    // A verb that has shown its answer, and whose answer is "no", has nothing to add.
    let text = error.to_string();
    if !text.is_empty() {
        advice(&format!("meshport: {text}"));
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
    fn a_closed_pipe_is_told_from_other_failures() {
        let broken = || io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(is_closed_pipe(&Error::io("write to standard output")(broken())));
        assert!(!is_closed_pipe(&Error::io("write a file")(broken())));
        assert!(!is_closed_pipe(&Error::Usage(String::new())));
    }
}
