//! What the demo shows: a table that is drawn anew in place, or a line per change, and the summary.
//!
//! Rendering is pure: a [`Board`] goes in, text comes out through whatever [`Write`] was given.
//! On a terminal the table overwrites itself with plain ANSI sequences, no longer than the width
//! given, so that no line wraps; elsewhere (a pipe, a log) one line is written per change of the
//! phase, of who answers a site, or of the failures, so that the log stays short.
//!
//! Bounds: a [`Tally`] keeps the last [`WINDOW`] latencies.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::time::Duration;

use serde::Serialize;

#[cfg(test)]
mod tests;

/// How many latencies the median is taken over: few enough to follow what is going on.
pub const WINDOW: usize = 64;

/// Requests of one site, as they come in.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Requests that were answered.
    pub ok: u64,
    /// Requests that were not.
    pub failed: u64,
    /// Who answered last.
    pub origin: Option<String>,
    /// The last failure, in words.
    pub last_error: Option<String>,
    latencies: VecDeque<Duration>,
}

impl Tally {
    /// Notes an answer.
    pub fn answered(&mut self, origin: &str, latency: Duration) {
        self.ok += 1;
        if self.origin.as_deref() != Some(origin) {
            self.origin = Some(origin.to_owned());
            // The median of two origins would be the latency of neither.
            self.latencies.clear();
        }
        if self.latencies.len() == WINDOW {
            self.latencies.pop_front();
        }
        self.latencies.push_back(latency);
    }

    /// Notes a failure.
    pub fn failed(&mut self, error: impl std::fmt::Display) {
        self.failed += 1;
        self.last_error = Some(error.to_string());
    }

    /// The latest latency.
    pub fn last(&self) -> Option<Duration> {
        self.latencies.back().copied()
    }

    /// The median latency of the last answers, all from the same origin.
    pub fn median(&self) -> Option<Duration> {
        let mut sorted: Vec<Duration> = self.latencies.iter().copied().collect();
        sorted.sort_unstable();
        sorted.get(sorted.len().saturating_sub(1) / 2).copied()
    }
}

/// One site of the demo.
#[derive(Clone, Debug)]
pub struct SiteRow {
    /// Its name.
    pub site: String,
    /// The address behind which its clients find an apiserver.
    pub local: SocketAddr,
    /// What is wrong with its own apiserver, in a word or two; `None` while it serves.
    pub trouble: Option<String>,
    /// Its requests.
    pub tally: Tally,
}

/// Everything the table shows.
#[derive(Clone, Debug)]
pub struct Board {
    /// Since the start.
    pub elapsed: Duration,
    /// What is going on, in a short sentence.
    pub phase: String,
    /// The sites, in the order they are shown.
    pub sites: Vec<SiteRow>,
}

impl Board {
    /// The lines of the table, without line ends.
    pub fn lines(&self) -> Vec<String> {
        let width = |header: &str, cell: fn(&SiteRow) -> String| {
            let cells = self.sites.iter().map(|site| cell(site).chars().count());
            cells.chain([header.len()]).max().unwrap_or(0)
        };
        let site = width("SITE", |row| row.site.clone());
        let local = width("LOCAL ADDRESS", |row| row.local.to_string());
        let origin = width("ANSWERED BY", answered_by);
        let mut lines = vec![format!("{}  {}", seconds(self.elapsed), self.phase), String::new()];
        lines.push(format!(
            "{:site$}  {:local$}  {:origin$}  {:>9}  {:>9}  {:>7}  {:>6}  OWN APISERVER",
            "SITE", "LOCAL ADDRESS", "ANSWERED BY", "MEDIAN", "LAST", "OK", "FAILED"
        ));
        for row in &self.sites {
            lines.push(format!(
                "{:site$}  {:local$}  {:origin$}  {:>9}  {:>9}  {:>7}  {:>6}  {}",
                row.site,
                row.local.to_string(),
                answered_by(row),
                millis(row.tally.median()),
                millis(row.tally.last()),
                row.tally.ok,
                row.tally.failed,
                row.trouble.as_deref().unwrap_or("serving"),
            ));
        }
        lines
    }

    /// What changed since `before`, a line each; everything if there was nothing before.
    pub fn changes(&self, before: Option<&Self>) -> Vec<String> {
        let mut lines = Vec::new();
        let at = seconds(self.elapsed);
        if before.is_none_or(|before| before.phase != self.phase) {
            lines.push(format!("{at}  {}", self.phase));
        }
        for row in &self.sites {
            let old = before.and_then(|b| b.sites.iter().find(|old| old.site == row.site));
            let (site, tally) = (&row.site, &row.tally);
            if old.and_then(|old| old.trouble.as_ref()) != row.trouble.as_ref() {
                let state = row.trouble.as_deref().unwrap_or("serving");
                lines.push(format!("{at}  {site}: own apiserver is {state}"));
            }
            let previous = old.and_then(|old| old.tally.origin.as_ref());
            if let Some(origin) = &tally.origin
                && previous != Some(origin)
            {
                let mut line =
                    format!("{at}  {site}: answered by {origin} in {}", millis(tally.last()));
                if let Some(previous) = previous {
                    // Writing to a string does not fail.
                    let _ = write!(line, " (before: {previous})");
                }
                lines.push(line);
            }
            if tally.failed > old.map_or(0, |old| old.tally.failed) {
                let why = tally.last_error.as_deref().unwrap_or("no reason known");
                lines.push(format!("{at}  {site}: {} failed so far, last: {why}", tally.failed));
            }
        }
        lines
    }
}

fn answered_by(row: &SiteRow) -> String {
    row.tally.origin.clone().unwrap_or_else(|| "-".to_owned())
}

fn millis(latency: Option<Duration>) -> String {
    latency.map_or_else(|| "-".to_owned(), |l| format!("{:.1} ms", l.as_secs_f64() * 1000.0))
}

fn seconds(elapsed: Duration) -> String {
    format!("{:>6.1} s", elapsed.as_secs_f64())
}

/// How [`Table`] writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Over itself, on a terminal of this many columns.
    InPlace {
        /// Longer lines are cut.
        columns: usize,
    },
    /// A line per change.
    Changes,
}

/// Writes a [`Board`] again and again.
#[derive(Debug)]
pub struct Table<W> {
    out: W,
    style: Style,
    /// Lines on the screen that the next drawing replaces.
    drawn: usize,
    before: Option<Board>,
}

impl<W: Write> Table<W> {
    /// Writes to `out`.
    pub fn new(out: W, style: Style) -> Self {
        Self { out, style, drawn: 0, before: None }
    }

    /// Shows the board.
    ///
    /// # Errors
    /// The output does.
    pub fn draw(&mut self, board: &Board) -> io::Result<()> {
        // One write per drawing: a terminal shows no half-drawn table.
        let mut text = String::new();
        match self.style {
            Style::InPlace { columns } => {
                let lines = board.lines();
                if self.drawn > 0 {
                    // Writing to a string does not fail.
                    let _ = write!(text, "\x1b[{}A", self.drawn);
                }
                for line in &lines {
                    let cut: String = line.chars().take(columns).collect();
                    text.push_str("\r\x1b[2K");
                    text.push_str(cut.trim_end());
                    text.push('\n');
                }
                // A board with fewer sites leaves no old lines behind.
                text.push_str("\x1b[J");
                self.drawn = lines.len();
            }
            Style::Changes => {
                for line in board.changes(self.before.as_ref()) {
                    text.push_str(&line);
                    text.push('\n');
                }
                self.before = Some(board.clone());
            }
        }
        self.out.write_all(text.as_bytes())?;
        self.out.flush()
    }

    /// Writes lines that stay; the table goes on below them.
    ///
    /// # Errors
    /// The output does.
    pub fn note(&mut self, text: &str) -> io::Result<()> {
        if self.drawn > 0 {
            write!(self.out, "\x1b[{}A\r\x1b[J", self.drawn)?;
            self.drawn = 0;
        }
        writeln!(self.out, "{text}")?;
        self.out.flush()
    }

    /// Gives the output back; what was drawn stays.
    pub fn finish(self) -> W {
        self.out
    }
}

/// How the demo went; as JSON it is the last thing `meshport demo --json` prints.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// All requests.
    pub requests: u64,
    /// Those without an answer.
    pub failed: u64,
    /// Share of answers that came from the nearest origin that served at that time, in `0..=1`.
    pub nearest_share: f64,
    /// From the stop of an apiserver until its clients were answered by another, in ms; `null` if
    /// that was not tried or never happened.
    pub failover_ms: Option<u64>,
    /// From its restart until its clients were answered by it again, in ms; `null` likewise.
    pub home_again_ms: Option<u64>,
}

impl Summary {
    /// The share of answers from the nearest origin below which the demo has failed: a few
    /// requests around each change may rightly go elsewhere.
    pub const NEAREST_SHARE_MIN: f64 = 0.9;

    /// Whether everything the demo promises was seen.
    pub fn succeeded(&self) -> bool {
        self.requests > 0
            && self.failed == 0
            && self.nearest_share >= Self::NEAREST_SHARE_MIN
            && self.failover_ms.is_some()
            && self.home_again_ms.is_some()
    }

    /// One JSON object on one line.
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("numbers under fixed keys have a JSON form")
    }

    /// A few lines for people, without a line end after the last.
    pub fn text(&self) -> String {
        let time = |value: Option<u64>| {
            value.map_or_else(|| "not seen".to_owned(), |ms| format!("{ms} ms"))
        };
        let verdict = if self.succeeded() { "All well." } else { "This is not as it should be." };
        format!(
            "{verdict}\n  \
             requests          {:>9}\n  \
             failed            {:>9}\n  \
             nearest chosen    {:>8.1}%\n  \
             failover          {:>9}\n  \
             home again        {:>9}",
            self.requests,
            self.failed,
            self.nearest_share * 100.0,
            time(self.failover_ms),
            time(self.home_again_ms),
        )
    }
}
