//! `meshport-sim run`, and what the other verbs share with it.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use toml::Table;

use super::{Choice, read, sets, write};
use crate::Error;
use crate::report::{Effort, Run, html, json, text};
use crate::scenario::{self, Scenario};
use crate::world::{Options, World};

/// From one look of the progress bar to the next.
const BAR_EVERY: Duration = Duration::from_millis(200);
/// Letters of the progress bar.
const BAR: usize = 32;

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    choice: Choice,
    /// What everything random is drawn from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Ends the run at this virtual second.
    #[arg(long, value_name = "SECOND")]
    until: Option<f64>,
    /// Writes the result as one JSON object; `-` prints it instead of the tables.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Writes a page with charts, index.html, into this folder.
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
    /// Writes one line for each event.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Runs twice and fails when the two traces differ.
    #[arg(long)]
    twice: bool,
}

pub(super) fn main(arguments: &Arguments) -> Result<ExitCode, Error> {
    let name = name(&arguments.choice.file);
    let document = document(&arguments.choice)?;
    let until = arguments.until.map(|until| Duration::from_secs_f64(until.max(0.0)));
    let trace = match &arguments.trace {
        Some(path) => {
            let file = File::create(path)
                .map_err(|source| Error::File { path: path.display().to_string(), source })?;
            Some(Box::new(BufWriter::new(file)) as Box<dyn Write>)
        }
        None => None,
    };
    let scenario = parse(&document, &arguments.choice)?;
    let end = scenario.duration().min(until.unwrap_or(Duration::MAX));
    let options = Options { trace, until, progress: bar(end) };
    let (run, effort) = go(scenario.clone(), arguments.seed, options)?;
    let command = command(&arguments.choice, arguments.seed);
    let prints_json = arguments.json.as_deref() == Some(Path::new("-"));
    if let Some(path) = &arguments.json {
        let text = json::object(&run, &name, effort).to_string();
        if prints_json {
            super::say(&text)?;
        } else {
            write(path, &text)?;
        }
    }
    if let Some(folder) = &arguments.report {
        std::fs::create_dir_all(folder)
            .map_err(|source| Error::File { path: folder.display().to_string(), source })?;
        let page = html::page(&run, &name, effort, &command);
        write(&folder.join("index.html"), &page)?;
    }
    if !prints_json {
        super::say(text::summary(&run, effort).trim_end())?;
    }
    for violation in &run.violations {
        let _ = writeln!(io::stderr(), "{}", text::violation(violation, &command));
    }
    if arguments.twice {
        let (again, _) = go(scenario, arguments.seed, Options { until, ..Options::default() })?;
        let (first, second) = (run.outcome.trace_hash, again.outcome.trace_hash);
        if first != second {
            let _ = writeln!(io::stderr(), "VIOLATION: two runs differ, {first} and {second}");
            return Ok(ExitCode::from(1));
        }
    }
    Ok(ExitCode::from(u8::from(!run.violations.is_empty())))
}

/// The scenario's text with what `--set` changes.
pub(super) fn document(choice: &Choice) -> Result<Table, Error> {
    let text = read(&choice.file)?;
    // Errors of the file itself are better told by its own reader, which knows the lines.
    Scenario::parse(&text)?;
    let mut document: Table = scenario::read(&text)?;
    for set in &choice.sets {
        sets::apply(&mut document, set)?;
    }
    Ok(document)
}

pub(super) fn parse(document: &Table, choice: &Choice) -> Result<Scenario, Error> {
    let text = if choice.sets.is_empty() { read(&choice.file)? } else { document.to_string() };
    Scenario::parse(&text)
}

/// One run, and what it took.
pub(super) fn go(scenario: Scenario, seed: u64, options: Options) -> Result<(Run, Effort), Error> {
    let before = processor_time();
    #[expect(clippy::disallowed_methods, reason = "how long the run took, for people")]
    let start = Instant::now();
    let run = World::new(scenario, seed, options)?.run();
    let wall = start.elapsed();
    // Where the system counts it, time in which other processes ran is left out.
    let busy = processor_time().zip(before).map(|(after, before)| after.saturating_sub(before));
    let effort = Effort { wall, processor: busy.unwrap_or(wall), memory: most_memory() };
    Ok((run, effort))
}

pub(super) fn name(file: &Path) -> String {
    file.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

/// What to type for the same run.
pub(super) fn command(choice: &Choice, seed: u64) -> String {
    let sets: String = choice.sets.iter().map(|set| format!(" --set '{set}'")).collect();
    format!(
        "cargo run --release -p meshport-simulations -- run {} --seed {seed}{sets}",
        choice.file.display()
    )
}

/// A bar on the terminal, if there is one.
fn bar(end: Duration) -> Option<Box<dyn FnMut(Duration)>> {
    if !io::stderr().is_terminal() {
        return None;
    }
    let mut last: Option<Instant> = None;
    Some(Box::new(move |now| {
        #[expect(clippy::disallowed_methods, reason = "a progress bar is for people")]
        let here = Instant::now();
        let is_over = now + Duration::from_secs(1) > end;
        if last.is_some_and(|last| here.duration_since(last) < BAR_EVERY) && !is_over {
            return;
        }
        last = Some(here);
        let share = now.as_secs_f64() / end.as_secs_f64().max(1e-9);
        #[expect(clippy::cast_possible_truncation, reason = "0 to BAR")]
        #[expect(clippy::cast_sign_loss, reason = "0 to BAR")]
        #[expect(clippy::cast_precision_loss, reason = "0 to BAR")]
        let full = (share.clamp(0.0, 1.0) * BAR as f64) as usize;
        let (done, left) = ("#".repeat(full), "-".repeat(BAR - full));
        let (now, end) = (now.as_secs(), end.as_secs());
        let mut err = io::stderr();
        let _ = if is_over {
            write!(err, "\r{}\r", " ".repeat(BAR + 40))
        } else {
            write!(err, "\r[{done}{left}] {now} of {end} virtual seconds ")
        };
        let _ = err.flush();
    }))
}

/// The most memory this process has had, in bytes; 0 where the system does not say.
fn most_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Processor time of this thread so far, where the system says it.
fn processor_time() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}
