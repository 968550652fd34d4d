//! The demo's output: a table that is redrawn in place, or a line per change, and the summary.
//!
//! Rendering is pure: a [`View`] goes in, text comes out through whatever [`Write`] was given. On a
//! terminal the table overwrites itself with plain ANSI sequences, no longer than the width given,
//! so no line wraps; elsewhere (a pipe, a log) one line is written per change of the phase, of the
//! answering origin, or of the failures, so that the log stays short.
//!
//! Bounds: an [`OriginRow`] keeps the last [`WINDOW`] latencies, a [`View`] the last `TRACE`.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::time::Duration;

use serde::Serialize;

#[cfg(test)]
mod tests;

/// Number of latencies for the median: few enough to follow changes.
pub const WINDOW: usize = 64;
/// Answers in the line of latencies: three seconds of the demo's client, within 80 columns.
const TRACE: usize = 64;
/// Below 2 ms, 4 ms, ... 128 ms, and above.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// One origin of the demo, as the client sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct OriginRow {
    /// Its name.
    pub name: String,
    /// The round trip from the client's site to its own.
    pub distance: Duration,
    /// The problem of its apiserver, in a word or two; `None` while it serves.
    pub trouble: Option<String>,
    /// Requests it answered.
    pub answered: u64,
    latencies: VecDeque<Duration>,
}

impl OriginRow {
    /// An origin that has not answered yet.
    pub fn new(name: String, distance: Duration) -> Self {
        Self { name, distance, trouble: None, answered: 0, latencies: VecDeque::new() }
    }

    /// The latest latency.
    pub fn last(&self) -> Option<Duration> {
        self.latencies.back().copied()
    }

    /// The median latency of its last answers.
    pub fn median(&self) -> Option<Duration> {
        let mut sorted: Vec<Duration> = self.latencies.iter().copied().collect();
        sorted.sort_unstable();
        sorted.get(sorted.len().saturating_sub(1) / 2).copied()
    }

    fn note(&mut self, latency: Duration) {
        self.answered += 1;
        if self.latencies.len() == WINDOW {
            self.latencies.pop_front();
        }
        self.latencies.push_back(latency);
    }

    fn state(&self) -> &str {
        self.trouble.as_deref().unwrap_or("serving")
    }

    fn how_far(&self) -> String {
        match self.distance {
            Duration::ZERO => "same site".to_owned(),
            distance => format!("{} ms", distance.as_millis()),
        }
    }
}

/// Everything the table shows.
#[derive(Clone, Debug)]
pub struct View {
    /// Since the start.
    pub elapsed: Duration,
    /// The current phase, in a short sentence.
    pub phase: String,
    /// The origins, in the order they are shown.
    pub origins: Vec<OriginRow>,
    /// Which of them answered last.
    pub current: Option<usize>,
    /// The latencies of the last answers, from any origin; none for a request without one.
    recent: VecDeque<Option<Duration>>,
    /// Requests that were not answered.
    pub failed: u64,
    /// The last failure, in words.
    pub last_error: Option<String>,
}

impl View {
    /// Before the first request.
    pub fn new(phase: String, origins: Vec<OriginRow>) -> Self {
        let elapsed = Duration::ZERO;
        let recent = VecDeque::with_capacity(TRACE);
        Self { elapsed, phase, origins, current: None, recent, failed: 0, last_error: None }
    }

    /// Notes an answer. One from an origin that is not in the view is not shown.
    pub fn answered(&mut self, origin: &str, latency: Duration) {
        self.current = self.origins.iter().position(|row| row.name == origin);
        self.trace(Some(latency));
        if let Some(row) = self.current.and_then(|at| self.origins.get_mut(at)) {
            row.note(latency);
        }
    }

    /// Notes a failure.
    pub fn failed(&mut self, error: impl std::fmt::Display) {
        self.failed += 1;
        self.last_error = Some(error.to_string());
        self.trace(None);
    }

    fn trace(&mut self, latency: Option<Duration>) {
        if self.recent.len() == TRACE {
            self.recent.pop_front();
        }
        self.recent.push_back(latency);
    }

    /// The last latencies as a line of bars, the newest at the right, a cross for a failure; each
    /// bar is the next of eight steps for twice the time.
    fn latencies(&self) -> String {
        let bar = |latency: &Option<Duration>| {
            let Some(latency) = latency else { return 'x' };
            let steps = latency.as_millis().checked_ilog2().unwrap_or(0) as usize;
            BARS[steps.min(BARS.len() - 1)]
        };
        self.recent.iter().map(bar).collect()
    }

    /// The lines of the table, without line ends.
    pub fn lines(&self) -> Vec<String> {
        let names = self.origins.iter().map(|row| row.name.chars().count());
        let name = names.chain(["ANSWERED BY".len()]).max().unwrap_or(0);
        let states = self.origins.iter().map(|row| row.state().chars().count());
        let state = states.chain(["APISERVER".len()]).max().unwrap_or(0);
        let answered: u64 = self.origins.iter().map(|row| row.answered).sum();
        let mut lines = vec![
            format!("{}  {}", seconds(self.elapsed), self.phase),
            format!("          {answered} requests answered, {} failed", self.failed),
            String::new(),
            format!(
                "   {:name$}  {:>9}  {:state$}  {:>8}  {:>9}  {:>9}",
                "ANSWERED BY", "DISTANCE", "APISERVER", "REQUESTS", "MEDIAN", "LAST"
            ),
        ];
        for (at, row) in self.origins.iter().enumerate() {
            lines.push(format!(
                " {} {:name$}  {:>9}  {:state$}  {:>8}  {:>9}  {:>9}",
                if self.current == Some(at) { '>' } else { ' ' },
                row.name,
                row.how_far(),
                row.state(),
                row.answered,
                millis(row.median()),
                millis(row.last()),
            ));
        }
        lines.push(String::new());
        lines.push(format!("   LATENCY  {}", self.latencies()));
        lines
    }

    /// The changes since `before`, a line each; everything if there was no view before.
    pub fn changes(&self, before: Option<&Self>) -> Vec<String> {
        let mut lines = Vec::new();
        let at = seconds(self.elapsed);
        if before.is_none_or(|before| before.phase != self.phase) {
            lines.push(format!("{at}  {}", self.phase));
        }
        let last = before.and_then(Self::answering);
        if let Some(row) = self.answering()
            && last.is_none_or(|last| last.name != row.name)
        {
            let mut line = format!("{at}  answered by {} in {}", row.name, millis(row.last()));
            if let Some(last) = last {
                // Writing to a string does not fail.
                let _ = write!(line, " (before: {} in {})", last.name, millis(last.median()));
            }
            lines.push(line);
        }
        if self.failed > before.map_or(0, |before| before.failed) {
            let why = self.last_error.as_deref().unwrap_or("unknown reason");
            lines.push(format!("{at}  {} failed so far, last: {why}", self.failed));
        }
        lines
    }

    fn answering(&self) -> Option<&OriginRow> {
        self.current.and_then(|at| self.origins.get(at))
    }
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
    /// Over the previous table, on a terminal of this many columns.
    InPlace {
        /// Longer lines are cut.
        columns: usize,
    },
    /// A line per change.
    Changes,
}

/// Writes a [`View`] repeatedly.
#[derive(Debug)]
pub struct Table<W> {
    out: W,
    style: Style,
    /// Lines on the screen that the next drawing replaces.
    drawn: usize,
    before: Option<View>,
}

impl<W: Write> Table<W> {
    /// Writes to `out`.
    pub fn new(out: W, style: Style) -> Self {
        Self { out, style, drawn: 0, before: None }
    }

    /// Shows the view.
    pub fn draw(&mut self, view: &View) -> io::Result<()> {
        // One write per drawing: a terminal shows no half-drawn table.
        let mut text = String::new();
        match self.style {
            Style::InPlace { columns } => {
                let lines = view.lines();
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
                // A view with fewer origins leaves no old lines behind.
                text.push_str("\x1b[J");
                self.drawn = lines.len();
            }
            Style::Changes => {
                for line in view.changes(self.before.as_ref()) {
                    text.push_str(&line);
                    text.push('\n');
                }
                self.before = Some(view.clone());
            }
        }
        self.out.write_all(text.as_bytes())?;
        self.out.flush()
    }

    /// Writes permanent lines; the table continues below them.
    pub fn note(&mut self, text: &str) -> io::Result<()> {
        if self.drawn > 0 {
            write!(self.out, "\x1b[{}A\r\x1b[J", self.drawn)?;
            self.drawn = 0;
        }
        writeln!(self.out, "{text}")?;
        self.out.flush()
    }

    /// Keeps what was drawn; the next drawing and the next note go below it.
    pub fn release(&mut self) {
        self.drawn = 0;
    }

    /// Returns the output; what was drawn stays.
    pub fn finish(self) -> W {
        self.out
    }
}

/// The demo's results; as JSON the last thing that `meshport demo --json` prints.
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
    /// Whether an apiserver was to be stopped.
    #[serde(skip)]
    pub stops: bool,
    /// Whether it was to come back.
    #[serde(skip)]
    pub returns: bool,
}

impl Summary {
    /// The share of answers from the nearest origin below which the demo has failed: a few
    /// requests around each change may rightly go elsewhere.
    pub const NEAREST_SHARE_MIN: f64 = 0.9;

    /// Whether everything the demo promises was seen.
    pub fn succeeded(&self) -> bool {
        self.shortcomings().is_empty()
    }

    /// Expectations that were not met, a sentence each.
    pub fn shortcomings(&self) -> Vec<String> {
        let mut found = Vec::new();
        if self.requests == 0 {
            found.push("no request was made".to_owned());
        }
        if self.failed > 0 {
            found.push(format!("{} of {} requests failed", self.failed, self.requests));
        }
        let least = Self::NEAREST_SHARE_MIN;
        // Written this way, a share that is not a number falls short as well.
        let enough = self.nearest_share >= least;
        if !enough {
            let (share, least) = (self.nearest_share * 100.0, least * 100.0);
            found
                .push(format!("{share:.1} % were answered by the nearest, less than {least:.0} %"));
        }
        if self.stops && self.failover_ms.is_none() {
            found.push("no other apiserver took over".to_owned());
        }
        if self.returns && self.home_again_ms.is_none() {
            found.push("the traffic did not return".to_owned());
        }
        found
    }

    /// One JSON object on one line.
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("numbers under fixed keys have a JSON form")
    }

    /// A few lines for people, without a line end after the last.
    pub fn text(&self) -> String {
        let time = |planned: bool, value: Option<u64>| match value {
            Some(ms) => format!("{ms} ms"),
            None if planned => "not seen".to_owned(),
            None => "not tried".to_owned(),
        };
        let verdict = if self.succeeded() { "The demo succeeded." } else { "The demo failed." };
        format!(
            "{verdict}\n  requests          {:>9}\n  failed            {:>9}\n  nearest chosen    \
             {:>8.1}%\n  failover          {:>9}\n  returned          {:>9}",
            self.requests,
            self.failed,
            self.nearest_share * 100.0,
            time(self.stops, self.failover_ms),
            time(self.returns, self.home_again_ms),
        )
    }
}
