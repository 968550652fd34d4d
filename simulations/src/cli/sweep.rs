//! `meshport-sim sweep`: a scenario over seeds and values of settings.

use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use toml::Table;

use super::run::{document, go, name};
use super::{Choice, say, sets, write};
use crate::Error;
use crate::report::{Effort, Run, html, plot};
use crate::scenario::Scenario;
use crate::world::Options;

/// Runs of one sweep.
const MAX_RUNS: usize = 10_000;
/// What each run is judged by.
const MEASURED: [&str; 11] = [
    "failed",
    "slow",
    "connect99ms",
    "stretch99",
    "news99s",
    "detect99s",
    "failover99s",
    "evicted",
    "reroutes",
    "gossipB/s",
    "tunnelB/s",
];

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    choice: Choice,
    /// How many seeds for each combination of values.
    #[arg(long, default_value_t = 3)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    first_seed: u64,
    /// Writes a page with a chart for each measure, index.html, into this folder.
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
    /// Writes a drawing of the measures that differ, for a page of documentation.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Writes all runs as a JSON array.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// One combination of values, and the mean (or worst) over its seeds.
pub(crate) struct Point {
    pub(crate) words: String,
    pub(crate) values: [Option<f64>; MEASURED.len()],
    violations: usize,
}

pub(super) fn main(arguments: &Arguments) -> Result<ExitCode, Error> {
    let base = Choice { file: arguments.choice.file.clone(), sets: Vec::new() };
    let base = document(&base)?;
    let combinations = combinations(&arguments.choice.sets)?;
    let runs = combinations.len() * usize::try_from(arguments.seeds).unwrap_or(usize::MAX);
    if runs > MAX_RUNS {
        return Err(Error::Scenario(format!("{runs} runs; at most {MAX_RUNS} at once")));
    }
    let mut points = Vec::new();
    let mut results = Vec::new();
    header(arguments, &combinations);
    for combination in &combinations {
        let mut point = measure(arguments, &base, combination, &mut results)?;
        point.words = words(combination, &combinations);
        say(&row(&point, width(&combinations)))?;
        points.push(point);
    }
    say(&bars(&points))?;
    if let Some(path) = &arguments.json {
        write(path, &serde_json::Value::Array(results).to_string())?;
    }
    let rows: Vec<_> = points.iter().map(|it| (it.words.clone(), it.values.to_vec())).collect();
    if let Some(path) = &arguments.plot {
        write(path, &plot::sweep(&MEASURED, &rows))?;
    }
    if let Some(folder) = &arguments.report {
        std::fs::create_dir_all(folder)
            .map_err(|source| Error::File { path: folder.display().to_string(), source })?;
        let page = html::sweep(&name(&arguments.choice.file), &MEASURED, &rows);
        write(&folder.join("index.html"), &page)?;
    }
    let violated = points.iter().any(|point| point.violations > 0);
    Ok(ExitCode::from(u8::from(violated)))
}

/// All values of all sets with each other.
fn combinations(all: &[String]) -> Result<Vec<Vec<String>>, Error> {
    let mut combinations = vec![Vec::new()];
    for set in all {
        let (key, values) = sets::values(set)?;
        combinations = combinations
            .into_iter()
            .flat_map(|before| {
                values.iter().map(move |value| {
                    let one = format!("{key}={value}");
                    before.iter().cloned().chain([one]).collect::<Vec<String>>()
                })
            })
            .collect();
    }
    Ok(combinations)
}

fn measure(
    arguments: &Arguments,
    base: &Table,
    combination: &[String],
    results: &mut Vec<serde_json::Value>,
) -> Result<Point, Error> {
    let mut changed = base.clone();
    for set in combination {
        sets::apply(&mut changed, set)?;
    }
    let scenario = Scenario::parse(&changed.to_string())?;
    let words = if combination.is_empty() { "as it is".into() } else { combination.join(" ") };
    let mut point = Point { words, values: [None; MEASURED.len()], violations: 0 };
    for seed in arguments.first_seed..arguments.first_seed + arguments.seeds {
        let (run, effort) = go(scenario.clone(), seed, Options::default())?;
        point.violations += run.violations.len();
        for (slot, value) in point.values.iter_mut().zip(values(&run)) {
            // The worst of the seeds: a default has to hold for all.
            *slot = match (*slot, value) {
                (Some(before), Some(now)) => Some(before.max(now)),
                (before, now) => before.or(now),
            };
        }
        results.push(result(&run, &point.words, effort));
    }
    Ok(point)
}

fn result(run: &Run, words: &str, effort: Effort) -> serde_json::Value {
    crate::report::json::object(run, words, effort)
}

fn values(run: &Run) -> [Option<f64>; MEASURED.len()] {
    let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
    let followed: Vec<_> = run.measures.faults.iter().map(|fault| run.followed(fault)).collect();
    let worst = |times: &mut dyn Iterator<Item = Option<Duration>>| seconds(times.flatten().max());
    let count = |count: u64| Some(crate::report::share(count, 1));
    let (gossip, tunnel) = run.rates();
    [
        count(run.measures.requests.failed),
        count(run.measures.requests.slow),
        run.measures.connect.quantiles(1e3).map(|it| it.p99),
        run.measures.stretch_quiet.quantiles(1e3).map(|it| it.p99),
        seconds(run.news_p99()),
        worst(&mut followed.iter().map(|it| it.detected_p99)),
        worst(&mut followed.iter().map(|it| it.failover_p99)),
        count(run.measures.false_evictions),
        count(run.measures.route_changes),
        Some(gossip),
        Some(tunnel),
    ]
}

fn header(arguments: &Arguments, combinations: &[Vec<String>]) {
    let width = width(combinations);
    let names: String = MEASURED.iter().map(|name| format!(" {name:>12}")).collect();
    let seeds = arguments.seeds;
    let _ = say(&format!("the worst of {seeds} seeds each\n{:<width$}{names}  rules", ""));
}

/// What tells a combination from the others: the last part of each key that has several values.
fn words(combination: &[String], all: &[Vec<String>]) -> String {
    let varies = |place: &usize| all.iter().any(|other| other[*place] != combination[*place]);
    let words = (0..combination.len()).filter(varies).map(|place| {
        let (key, value) = combination[place].split_once('=').unwrap_or_default();
        format!("{}={value}", key.rsplit('.').next().unwrap_or(key))
    });
    let words: Vec<String> = words.collect();
    if words.is_empty() { "as it is".into() } else { words.join(" ") }
}

/// Letters of the longest combination.
fn width(combinations: &[Vec<String>]) -> usize {
    combinations.iter().map(|it| words(it, combinations).len()).max().unwrap_or(0).max(8)
}

fn row(point: &Point, width: usize) -> String {
    let mut row = format!("{:<width$}", point.words);
    for value in point.values {
        let text = value.map_or("-".into(), |value| format!("{value:.2}"));
        let text = text.strip_suffix(".00").map_or(text.clone(), str::to_owned);
        let _ = write!(row, " {text:>12}");
    }
    let rules = if point.violations == 0 { "hold" } else { "VIOLATED" };
    format!("{row}  {rules}")
}

/// A plot of each measure that differs, for a terminal.
fn bars(points: &[Point]) -> String {
    const WIDTH: f64 = 40.0;
    let mut text = String::new();
    for (place, name) in MEASURED.iter().enumerate() {
        let values: Vec<f64> =
            points.iter().map(|point| point.values[place].unwrap_or(0.0)).collect();
        let top = values.iter().copied().fold(0.0, f64::max);
        let differs = values.windows(2).any(|pair| (pair[0] - pair[1]).abs() > top * 0.02);
        if !differs {
            continue;
        }
        let _ = writeln!(text, "\n{name}");
        for (point, value) in points.iter().zip(&values) {
            #[expect(clippy::cast_possible_truncation, reason = "0 to WIDTH")]
            #[expect(clippy::cast_sign_loss, reason = "0 to WIDTH")]
            let full = (value / top * WIDTH).round() as usize;
            let _ = writeln!(text, "  {:<40} {} {value:.2}", point.words, "#".repeat(full));
        }
    }
    text
}
