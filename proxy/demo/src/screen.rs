//! The demo's output: a table and lines for a person, or one JSON object for a script.

use std::io::{self, Stdout};

use super::table::{Style, Summary, Table, View};
use meshport_daemon::Error;

/// The view, and how it is drawn.
#[derive(Debug)]
pub enum Screen {
    /// Nothing but the summary, as JSON; messages for a person go to standard error.
    Json,
    /// Everything, as text.
    Text(Table<Stdout>),
}

impl Screen {
    /// For a person: on a terminal of that many columns, otherwise a line per change.
    pub fn text(columns: Option<usize>) -> Self {
        let style = columns.map_or(Style::Changes, |columns| Style::InPlace { columns });
        Self::Text(Table::new(io::stdout(), style))
    }

    /// Lines that stay.
    pub(super) fn note(&mut self, text: &str) -> Result<(), Error> {
        match self {
            Self::Json => Ok(()),
            Self::Text(table) => table.note(text).map_err(lost()),
        }
    }

    /// Draws the current table.
    pub(super) fn draw(&mut self, view: &View) -> Result<(), Error> {
        match self {
            Self::Json => Ok(()),
            Self::Text(table) => table.draw(view).map_err(lost()),
        }
    }

    /// Draws the final table.
    pub(super) fn draw_last(&mut self, view: &View) -> Result<(), Error> {
        self.draw(view)?;
        if let Self::Text(table) = self {
            table.release();
        }
        Ok(())
    }

    /// Prints the summary.
    pub(super) fn summary(&mut self, summary: &Summary) -> Result<(), Error> {
        match self {
            Self::Json => write_line(&mut io::stdout(), &summary.json()),
            Self::Text(table) => table.note(&summary.text()).map_err(lost()),
        }
    }

    /// A message that is always shown.
    pub(super) fn tell(&mut self, text: &str) -> Result<(), Error> {
        match self {
            Self::Json => write_line(&mut io::stderr(), text),
            Self::Text(table) => table.note(text).map_err(lost()),
        }
    }
}

fn write_line(out: &mut impl io::Write, text: &str) -> Result<(), Error> {
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(lost())
}

fn lost() -> impl FnOnce(io::Error) -> Error {
    Error::io("write to standard output")
}
