//! `meshport-sim run`, and code shared with other verbs.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use toml::Table;

use super::{Choice, fewer, read, sets, write};
use crate::report::{Effort, Run, Violation, html, json, text};
use crate::scenario::{self, Event, Level, Scenario, When};
use crate::world::{Options, World};
use crate::{Error, full};

/// Interval between updates of the progress bar.
const BAR_EVERY: Duration = Duration::from_millis(200);
/// Width of the progress bar, in characters.
const BAR: usize = 32;

/// Options of one run of a scenario, at any level.
#[derive(Debug, clap::Args)]
pub(super) struct Once {
    #[command(flatten)]
    pub(super) choice: Choice,
    /// Seed of all random choices.
    #[arg(long, default_value_t = 1, value_parser = super::seed, allow_negative_numbers = true)]
    pub(super) seed: u64,
    /// End the run at this second.
    #[arg(long, value_name = "SECOND", value_parser = super::second, allow_negative_numbers = true)]
    until: Option<f64>,
    /// Use at most this many nodes per site, origins first, to fit the full level or the lab.
    #[arg(long, value_name = "M")]
    nodes_per_site: Option<NonZero<usize>>,
    /// Write the result as one JSON object; `-` prints it instead of the tables.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl Once {
    /// The scenario's text with its changes, and the arguments for this verb.
    pub(super) fn document(&self, verb: &str) -> Result<(Table, String), Error> {
        let (mut document, mut command) =
            (document(&self.choice)?, command(verb, &self.choice, self.seed));
        if let Some(most) = self.nodes_per_site {
            let _ = writeln!(io::stderr(), "{}", fewer::apply(&mut document, most.get()));
            let _ = write!(command, " --nodes-per-site {most}");
        }
        Ok((document, command))
    }

    /// The end of the run, if set.
    pub(super) fn until(&self) -> Option<Duration> {
        self.until.map(Duration::from_secs_f64)
    }

    /// Writes or prints the result of a run that ends then, and its violations.
    pub(super) fn tell(
        &self,
        run: &Run,
        effort: Effort,
        command: &str,
        end: Duration,
        summary: impl FnOnce() -> String,
    ) -> Result<(), Error> {
        let again = |it: &Violation| again(command, it, end, self.until());
        let prints_json = self.json.as_deref() == Some(Path::new("-"));
        if let Some(path) = &self.json {
            let mut object = json::object(run, &name(&self.choice.file), effort);
            let whole = format!("{command}{}", self.until_words());
            json::add_commands(&mut object, &whole, &run.violations, &again);
            let text = object.to_string();
            if prints_json {
                super::say(&text)?;
            } else {
                write(path, &text)?;
            }
        }
        if !prints_json {
            super::say(summary().trim_end())?;
        }
        for violation in &run.violations {
            let _ = writeln!(io::stderr(), "{}", text::violation(violation, &again(violation)));
        }
        Ok(())
    }

    fn until_words(&self) -> String {
        self.until().map(until_words).unwrap_or_default()
    }
}

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    once: Once,
    /// Write a page with charts, index.html, into this folder.
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
    /// Write one line for each event and datagram.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Run twice and fail if the two traces differ.
    #[arg(long)]
    twice: bool,
    /// Run at the full level: up to 100 nodes with everything real above the socket, as with
    /// level = "full" in the scenario.
    #[arg(long)]
    full: bool,
    /// Also measure CPU time and memory of a few nodes of each role, for the JSON; wide level only.
    #[arg(long)]
    costs: bool,
    /// Plant this bug in all nodes first.
    #[cfg(feature = "planted-bugs")]
    #[arg(long, value_name = "BUG")]
    planted: Option<String>,
}

pub(super) fn main(arguments: &Arguments) -> Result<ExitCode, Error> {
    #[cfg(feature = "planted-bugs")]
    super::plant(arguments.planted.as_deref())?;
    let once = &arguments.once;
    let (mut document, mut command) = once.document("run")?;
    if arguments.full {
        document.insert("level".into(), "full".into());
        command.push_str(" --full");
    }
    let until = once.until();
    let trace = match &arguments.trace {
        Some(path) => {
            let file = File::create(path)
                .map_err(|source| Error::File { path: path.display().to_string(), source })?;
            Some(Box::new(BufWriter::new(file)) as Box<dyn Write + Send>)
        }
        None => None,
    };
    let scenario = parse(&document, &once.choice)?;
    let end = scenario.duration().min(until.unwrap_or(Duration::MAX));
    let (film, costs) = (arguments.report.is_some(), arguments.costs);
    let options = Options { trace, until, progress: bar(end), live: false, film, costs };
    let is_full = scenario.level == Level::Full;
    let (run, effort) = match is_full {
        true => go_full(arguments, scenario.clone(), options)?,
        false => go(scenario.clone(), once.seed, options)?,
    };
    if let Some(folder) = &arguments.report {
        std::fs::create_dir_all(folder)
            .map_err(|source| Error::File { path: folder.display().to_string(), source })?;
        let again = |it: &Violation| again(&command, it, end, until);
        let (name, whole) = (name(&once.choice.file), format!("{command}{}", once.until_words()));
        let page = html::page(&run, &name, effort, &whole, &again);
        write(&folder.join("index.html"), &page)?;
    }
    once.tell(&run, effort, &command, end, || {
        let notes = notes(&scenario, end).join("\n");
        format!("{}\n{notes}", text::summary(&run, effort).trim_end())
    })?;
    if arguments.twice {
        let first = run.outcome.trace_hash.to_string();
        let second = second_hash(arguments, scenario, until)?;
        if first != second {
            let _ = writeln!(io::stderr(), "VIOLATION: two runs differ, {first} and {second}");
            let _ = writeln!(io::stderr(), "  again: {command}{} --twice", once.until_words());
            return Ok(ExitCode::from(1));
        }
    }
    Ok(ExitCode::from(u8::from(!run.violations.is_empty())))
}

/// Notes on a scenario that a reader of the result may miss: an isolated site that serves itself,
/// and events after the end.
fn notes(scenario: &Scenario, end: Duration) -> Vec<String> {
    let isolates = |name: &str| {
        scenario.events.iter().any(|event| event.isolate.as_deref().is_some_and(|it| it == name))
    };
    let sites = scenario.sites.iter().filter(|site| site.origins > 0);
    let names = sites.map(|site| site.name.to_string()).filter(|name| isolates(name));
    let note = |name: String| {
        format!(
            "note         isolate leaves {name} its own origins, so its nodes serve themselves and \
             only others go elsewhere; for a site that loses power: crash = \"{name}\""
        )
    };
    let late = events_after(scenario, end).into_iter().map(|it| format!("note         {it}"));
    names.map(note).chain(late).collect()
}

/// A sentence for each event that a run which ends then does not reach.
pub(super) fn events_after(scenario: &Scenario, end: Duration) -> Vec<String> {
    let end_s = end.as_secs_f64();
    let first = |event: &Event| match event.at_s {
        Some(When::At(at) | When::Between([at, _])) => at,
        None => 0.0,
    };
    let times = scenario.events.iter().map(first).enumerate();
    let said = |(index, at_s): (usize, f64)| {
        format!("event.{index} has no effect: at-s = {at_s}, and the run ends after {end_s} s")
    };
    times.filter(|(_, at_s)| *at_s > end_s).map(said).collect()
}

/// The scenario's text with the changes of `--set`.
pub(super) fn document(choice: &Choice) -> Result<Table, Error> {
    let text = read(&choice.file)?;
    // Errors of the file itself are better reported by its own reader, which knows the lines.
    Scenario::parse(&text).map_err(|error| about(&choice.file, error))?;
    let mut document: Table = scenario::read(&text)?;
    for set in &choice.sets {
        sets::apply(&mut document, set)?;
    }
    Ok(document)
}

/// The scenario of a [`document`] that the command line may have changed: an error in it now
/// belongs to no line of the file.
pub(super) fn parse(document: &Table, choice: &Choice) -> Result<Scenario, Error> {
    Scenario::parse(&document.to_string()).map_err(|error| match error {
        Error::Scenario(message) => {
            let message = scenario::without_line(&message);
            about(&choice.file, Error::Scenario(format!("with the changed settings, {message}")))
        }
        error => error,
    })
}

/// An error of a scenario, with the name of its file.
pub(super) fn about(file: &Path, error: Error) -> Error {
    match error {
        Error::Scenario(message) => Error::Scenario(format!("{}: {message}", file.display())),
        error => error,
    }
}

/// A run at the wide level, and its cost.
pub(super) fn go(scenario: Scenario, seed: u64, options: Options) -> Result<(Run, Effort), Error> {
    wide(&scenario)?;
    measured(|| Ok(World::new(scenario, seed, options)?.run()))
}

/// Refuses a scenario of another level than the wide one.
pub(super) fn wide(scenario: &Scenario) -> Result<(), Error> {
    if scenario.level == Level::Wide {
        return Ok(());
    }
    let what = "this command runs scenarios at the wide level; run and lab accept level = \"full\"";
    Err(Error::Scenario(what.into()))
}

/// A run at the full level, on its own thread.
fn go_full(
    arguments: &Arguments,
    scenario: Scenario,
    options: Options,
) -> Result<(Run, Effort), Error> {
    let seed = arguments.once.seed;
    #[cfg(feature = "planted-bugs")]
    let planted = arguments.planted.clone();
    let run = move || {
        // A bug is planted per thread.
        #[cfg(feature = "planted-bugs")]
        super::plant(planted.as_deref())?;
        measured(|| full::run(scenario, seed, options))
    };
    let thread = std::thread::Builder::new().name("full".into()).spawn(run);
    let thread = thread.map_err(|error| Error::Machine(format!("start a thread: {error}")))?;
    thread.join().map_err(|_| Error::Machine("the run panicked".into()))?
}

/// The trace hash of a second run.
fn second_hash(
    arguments: &Arguments,
    scenario: Scenario,
    until: Option<Duration>,
) -> Result<String, Error> {
    if scenario.level == Level::Full {
        return hash_of_another_process(arguments);
    }
    let options = Options { until, ..Options::default() };
    Ok(go(scenario, arguments.once.seed, options)?.0.outcome.trace_hash.to_string())
}

/// The trace hash of the same run in another process: the full level runs once in each.
fn hash_of_another_process(arguments: &Arguments) -> Result<String, Error> {
    let failed = |error: io::Error| Error::Machine(format!("run meshport-sim: {error}"));
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    let once = &arguments.once;
    command.arg("run").arg(&once.choice.file).arg("--full").args(["--json", "-"]);
    command.arg("--seed").arg(once.seed.to_string());
    for set in &once.choice.sets {
        command.arg("--set").arg(set);
    }
    if let Some(until) = once.until {
        command.arg("--until").arg(until.to_string());
    }
    if let Some(most) = once.nodes_per_site {
        command.arg("--nodes-per-site").arg(most.to_string());
    }
    #[cfg(feature = "planted-bugs")]
    command.args(arguments.planted.iter().flat_map(|bug| ["--planted", bug]));
    let output = command.stderr(Stdio::null()).output().map_err(failed)?;
    let result: serde_json::Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| Error::Machine(format!("the second run gave no result: {error}")))?;
    Ok(result["trace_hash"].as_str().unwrap_or_default().to_owned())
}

fn measured(run: impl FnOnce() -> Result<Run, Error>) -> Result<(Run, Effort), Error> {
    let before = processor_time();
    #[expect(clippy::disallowed_methods, reason = "how long the run took, for people")]
    let start = Instant::now();
    let run = run()?;
    let wall = start.elapsed();
    // If the system counts it, the time of other processes is excluded.
    let busy = processor_time().zip(before).map(|(after, before)| after.saturating_sub(before));
    let effort = Effort { wall, processor: busy.unwrap_or(wall), memory: most_memory() };
    Ok((run, effort))
}

pub(super) fn name(file: &Path) -> String {
    file.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

/// The command for the same run.
pub(super) fn command(verb: &str, choice: &Choice, seed: u64) -> String {
    let sets: String = choice.sets.iter().map(|set| format!(" --set {}", quoted(set))).collect();
    let file = choice.file.display().to_string();
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "/._-".contains(letter);
    let file = if file.chars().all(plain) { file } else { quoted(&file) };
    format!("cargo run --release -p meshport-simulations -- {verb} {file} --seed {seed}{sets}")
}

/// The command that shows a violation again: the same run until shortly after it. A violation found
/// in the checks at the planned end is found only if the end is the same.
pub(super) fn again(
    command: &str,
    violation: &Violation,
    end: Duration,
    until: Option<Duration>,
) -> String {
    let is_at_end = violation.at >= end;
    let shortly_after = Duration::from_secs(violation.at.as_secs() + 2);
    let until = if is_at_end { until } else { Some(shortly_after) };
    format!("{command}{}", until.map(until_words).unwrap_or_default())
}

pub(super) fn until_words(until: Duration) -> String {
    format!(" --until {}", until.as_secs_f64())
}

/// A word that a shell does not change.
pub(super) fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// A bar on the terminal, if any.
fn bar(end: Duration) -> Option<Box<dyn FnMut(Duration) + Send>> {
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

/// The most memory this process has had, in bytes; 0 if the system does not report it.
fn most_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Processor time of this thread, where the system reports it.
fn processor_time() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_after_the_end_is_named() {
        let text = "description = \"x\"\nduration-s = 60\n\
                    [[site]]\nname = \"fra\"\nnodes = 2\norigins = 1\n\
                    [[event]]\nat-s = 30\nkill = \"fra-1\"\n\
                    [[event]]\nat-s = [70, 80]\nrecover = \"fra-1\"\n";
        let scenario = Scenario::parse(text).expect("it is good");
        let said = "event.1 has no effect: at-s = 70, and the run ends after 60 s";
        assert_eq!(events_after(&scenario, scenario.duration()), [said]);
        assert_eq!(events_after(&scenario, Duration::from_secs(90)), [""; 0]);
        assert_eq!(notes(&scenario, Duration::from_secs(20)).len(), 2);
    }
}
