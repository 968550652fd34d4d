//! The log of `meshport run`: lines of text or JSON on standard error.

use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;

use crate::Error;

/// Overrides the level for parts of the program, in `tracing`'s words: `meshport=debug,info`.
const VARIABLE: &str = "MESHPORT_LOG";
/// Comes before every choice, so that any choice can undo it: boringtun logs at ERROR what is the
/// normal end of a session, and the mesh has words of its own for what matters. The audit log does
/// not depend on the level of the rest.
const BASE: &str = "boringtun=off,audit=info";

/// Starts logging at `level` unless the variable says otherwise. Call it once.
///
/// # Errors
/// [`Error::Usage`] when the level or the variable is not understood.
pub(crate) fn start(json: bool, level: &str) -> Result<(), Error> {
    let (from, directives) = match std::env::var(VARIABLE) {
        Ok(directives) if !directives.is_empty() => (VARIABLE, directives),
        _ => ("log level", level.to_owned()),
    };
    let filter = EnvFilter::try_new(format!("{BASE},{directives}")).map_err(|error| {
        Error::Usage(format!("{from} {directives:?} is not understood: {error}"))
    })?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        // A closed standard error must not end the daemon.
        .log_internal_errors(false);
    let outcome = if json { builder.json().try_init() } else { builder.try_init() };
    outcome.map_err(|error| Error::Bug(format!("logging was started twice: {error}")))
}
