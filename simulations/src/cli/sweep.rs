//! `meshport-sim sweep`: a scenario over seeds and values of settings.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use toml::Table;

use super::run::{again, command, document, events_after, go, name, parse, wide};
use super::{Choice, say, sets, write};
use crate::Error;
use crate::report::{NEVER, Run, Violation, html, json, text};
use crate::scenario::Scenario;
use crate::world::Options;

/// Runs of one sweep.
const MAX_RUNS: usize = 10_000;
/// The measures of each run.
const MEASURED: [&str; 13] = [
    "failed",
    "slow",
    "connect99ms",
    "stretch99",
    "news99s",
    "detect99s",
    "failover99s",
    "raced",
    "suspected",
    "evicted",
    "reroutes",
    "gossipB/s",
    "tunnelB/s",
];

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    choice: Choice,
    /// Number of seeds for each combination of values.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 1, value_parser = super::seed, allow_negative_numbers = true)]
    first_seed: u64,
    /// Write a page that compares the values in a table and a chart, index.html, into this folder.
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
    /// Write an SVG chart of the measures that differ.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Write all runs as a JSON array.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// A combination of values, and the worst result over its seeds.
pub(crate) struct Point {
    pub(crate) words: String,
    /// `None` if no seed had anything to measure, [`NEVER`] if some never reached it.
    pub(crate) values: [Option<f64>; MEASURED.len()],
    violations: usize,
    /// The trace hash of each seed's run.
    traces: Vec<String>,
}

pub(super) fn main(arguments: &Arguments) -> Result<ExitCode, Error> {
    let base = Choice { file: arguments.choice.file.clone(), sets: Vec::new() };
    let base = document(&base)?;
    let combinations = combinations(&arguments.choice.sets)?;
    let runs = combinations.len() * usize::try_from(arguments.seeds).unwrap_or(usize::MAX);
    if runs > MAX_RUNS {
        return Err(Error::Scenario(format!("{runs} runs; the maximum is {MAX_RUNS}")));
    }
    // Checks all combinations before the first one runs.
    let scenarios = combinations.iter().map(|combination| changed(arguments, &base, combination));
    let scenarios = scenarios.collect::<Result<Vec<Scenario>, Error>>()?;
    let mut points = Vec::new();
    let mut results = Vec::new();
    say(&of(arguments.seeds))?;
    for (combination, scenario) in combinations.iter().zip(&scenarios) {
        let mut point = measure(arguments, scenario, combination, &mut results)?;
        point.words = words(combination, &combinations);
        // The table follows at the end; a sweep can take hours.
        let done = (points.len() + 1, combinations.len());
        let _ = writeln!(io::stderr(), "{} of {}: {}", done.0, done.1, point.words);
        points.push(point);
    }
    say(&table(&points))?;
    say(&bars(&points))?;
    let late = scenarios.iter().flat_map(|it| events_after(it, it.duration()));
    let late: BTreeSet<String> = late.collect();
    let idle: Vec<String> = idle(&combinations, &points).into_iter().chain(late).collect();
    for note in &idle {
        say(note)?;
    }
    if let Some(path) = &arguments.json {
        write(path, &serde_json::Value::Array(results).to_string())?;
    }
    let rows: Vec<_> = points.iter().map(|it| (it.words.clone(), it.values.to_vec())).collect();
    if let Some(path) = &arguments.plot {
        write(path, &html::drawing(&MEASURED, &rows).to_string())?;
    }
    if let Some(folder) = &arguments.report {
        std::fs::create_dir_all(folder)
            .map_err(|source| Error::File { path: folder.display().to_string(), source })?;
        let page = html::sweep(&name(&arguments.choice.file), &MEASURED, &rows, &idle);
        write(&folder.join("index.html"), &page)?;
    }
    let violated = points.iter().any(|point| point.violations > 0);
    Ok(ExitCode::from(u8::from(violated)))
}

/// All combinations of the values of all sets.
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

/// The scenario with a combination of values.
fn changed(arguments: &Arguments, base: &Table, combination: &[String]) -> Result<Scenario, Error> {
    let mut document = base.clone();
    for set in combination {
        sets::apply(&mut document, set)?;
    }
    let scenario = parse(&document, &arguments.choice)?;
    wide(&scenario)?;
    Ok(scenario)
}

fn measure(
    arguments: &Arguments,
    scenario: &Scenario,
    combination: &[String],
    results: &mut Vec<serde_json::Value>,
) -> Result<Point, Error> {
    let words = if combination.is_empty() { "as it is".into() } else { combination.join(" ") };
    let values_of_none = [None; MEASURED.len()];
    let mut point = Point { words, values: values_of_none, violations: 0, traces: Vec::new() };
    for seed in (0..arguments.seeds).map(|more| arguments.first_seed.wrapping_add(more)) {
        let (run, effort) = go(scenario.clone(), seed, Options::default())?;
        point.violations += run.violations.len();
        point.traces.push(run.outcome.trace_hash.to_string());
        add(&mut point.values, values(&run));
        let choice = Choice { file: arguments.choice.file.clone(), sets: combination.to_vec() };
        let command = command("run", &choice, seed);
        let end = scenario.duration();
        let again = |it: &Violation| again(&command, it, end, None);
        for violation in &run.violations {
            let _ = writeln!(io::stderr(), "{}", text::violation(violation, &again(violation)));
        }
        let mut result = json::object(&run, &point.words, effort);
        json::add_commands(&mut result, &command, &run.violations, &again);
        results.push(result);
    }
    Ok(point)
}

/// Keeps the worst of the seeds, since a default must hold for all.
fn add(worst: &mut [Option<f64>; MEASURED.len()], seed: [Option<f64>; MEASURED.len()]) {
    for (slot, value) in worst.iter_mut().zip(seed) {
        *slot = (*slot).into_iter().chain(value).reduce(f64::max);
    }
}

/// The worst of some times, each with the number of nodes that should have noticed: a node that
/// never noticed is worse than any time.
fn worst(times: impl IntoIterator<Item = (usize, Option<Duration>)>) -> Option<f64> {
    let concerned = times.into_iter().filter(|(concerned, _)| *concerned > 0);
    concerned.map(|(_, time)| time.map_or(NEVER, |time| time.as_secs_f64())).reduce(f64::max)
}

fn values(run: &Run) -> [Option<f64>; MEASURED.len()] {
    let faults = run.measures.faults.iter();
    let followed: Vec<_> = faults.map(|fault| (fault, run.followed(fault))).collect();
    // A node that joins is not a fault to detect.
    let noticed = followed.iter().filter(|(fault, _)| fault.kind != "join");
    let news = match run.news_p99() {
        _ if run.news_unheard() > 0 => Some(NEVER),
        time => time.map(|time| time.as_secs_f64()),
    };
    let count = |count: u64| Some(crate::measure::share(count, 1));
    let (gossip, tunnel) = run.rates();
    [
        count(run.measures.requests.failed),
        count(run.measures.requests.slow),
        run.measures.latency.connect.quantiles(1e3).map(|it| it.p99),
        run.measures.choices.stretch_quiet.quantiles(1e3).map(|it| it.p99),
        news,
        worst(noticed.map(|(_, it)| (it.concerned, it.detected_p99))),
        worst(followed.iter().map(|(fault, it)| {
            (if fault.must_leave() { it.users } else { it.left }, it.failover_p99)
        })),
        count(run.measures.sessions.hedged),
        run.measures.suspicions.and_then(|seen| count(seen.wrong)),
        count(run.measures.false_evictions),
        count(run.measures.choices.changed),
        Some(gossip),
        Some(tunnel),
    ]
}

/// How the values come from the seeds.
fn of(seeds: u64) -> String {
    match seeds {
        1 => "one seed each".to_owned(),
        seeds => format!("the worst of {seeds} seeds each"),
    }
}

/// The label of a combination: the last part of each key that has several values.
fn words(combination: &[String], all: &[Vec<String>]) -> String {
    let varies = |index: &usize| all.iter().any(|other| other[*index] != combination[*index]);
    let words = (0..combination.len()).filter(varies).map(|index| {
        let (key, value) = combination[index].split_once('=').unwrap_or_default();
        format!("{}={value}", key.rsplit('.').next().unwrap_or(key))
    });
    let words: Vec<String> = words.collect();
    if words.is_empty() { "as it is".into() } else { words.join(" ") }
}

/// The points with their measures, in blocks as wide as a terminal. The last block has the rules.
fn table(points: &[Point]) -> String {
    /// Columns of the narrowest common terminal.
    const WIDTH: usize = 80;
    /// A value, with the spaces before it.
    const CELL: usize = 13;
    let first = points.iter().map(|point| point.words.len()).max().unwrap_or(0).max(8);
    let many = (WIDTH.saturating_sub(first) / CELL).max(1);
    let all: Vec<usize> = (0..=MEASURED.len()).collect();
    let cell = |index: usize, point: Option<&Point>| match (MEASURED.get(index), point) {
        (Some(name), None) => (*name).to_owned(),
        (None, None) => "rules".to_owned(),
        (Some(_), Some(point)) => {
            let text = said(point.values[index]);
            text.strip_suffix(".00").map_or(text.clone(), str::to_owned)
        }
        (None, Some(point)) => (if point.violations == 0 { "hold" } else { "VIOLATED" }).to_owned(),
    };
    let line = |block: &[usize], point: Option<&Point>| {
        let words = point.map_or("", |point| &point.words);
        let cells = block.iter().map(|index| format!("{:>CELL$}", cell(*index, point)));
        format!("{words:<first$}{}\n", cells.collect::<String>())
    };
    let blocks = all.chunks(many).map(|block| {
        let rows = points.iter().map(|point| line(block, Some(point)));
        std::iter::once(line(block, None)).chain(rows).collect::<String>()
    });
    blocks.collect::<Vec<_>>().join("\n")
}

/// A value as text: "-" if there was nothing to measure.
fn said(value: Option<f64>) -> String {
    match value {
        None => "-".into(),
        Some(NEVER) => "never".into(),
        Some(value) => format!("{value:.2}"),
    }
}

/// A plot of each measure that differs, for a terminal. A value never reached is as long as the
/// longest.
fn bars(points: &[Point]) -> String {
    const WIDTH: f64 = 40.0;
    let mut text = String::new();
    for (index, name) in MEASURED.iter().enumerate() {
        let values: Vec<Option<f64>> = points.iter().map(|point| point.values[index]).collect();
        if all_alike(&values) {
            continue;
        }
        let known = values.iter().flatten().copied().filter(|value| value.is_finite());
        let top = known.fold(0.0, f64::max);
        let _ = writeln!(text, "\n{name}");
        for (point, value) in points.iter().zip(&values) {
            let (share, letter) = match value {
                None => (0.0, "#"),
                Some(NEVER) => (1.0, "!"),
                Some(value) => (value / top.max(f64::MIN_POSITIVE), "#"),
            };
            #[expect(clippy::cast_possible_truncation, reason = "0 to WIDTH")]
            #[expect(clippy::cast_sign_loss, reason = "0 to WIDTH")]
            let full = (share * WIDTH).round() as usize;
            let (bar, said) = (letter.repeat(full), said(*value));
            let _ = writeln!(text, "  {:<40} {bar} {said}", point.words);
        }
    }
    text
}

/// Whether all values are within 2 % of the greatest.
fn all_alike(values: &[Option<f64>]) -> bool {
    let known = values.iter().flatten().copied().filter(|value| value.is_finite());
    let top = known.fold(0.0, f64::max);
    let is_same = |pair: &[Option<f64>]| match (pair[0], pair[1]) {
        (Some(a), Some(b)) if a.is_finite() && b.is_finite() => (a - b).abs() <= top * 0.02,
        (a, b) => a == b,
    };
    values.windows(2).all(is_same)
}

/// A sentence for each key whose values make no difference, regardless of the other keys.
fn idle(combinations: &[Vec<String>], points: &[Point]) -> Vec<String> {
    let keys = combinations.first().map_or(0, Vec::len);
    let sentence = |index: usize| {
        let mut groups: BTreeMap<Vec<&String>, Vec<&Point>> = BTreeMap::new();
        for (combination, point) in combinations.iter().zip(points) {
            let others = combination.iter().enumerate().filter(|(at, _)| *at != index);
            groups.entry(others.map(|(_, set)| set).collect()).or_default().push(point);
        }
        if groups.values().any(|group| group.len() < 2) {
            return None;
        }
        let key = combinations[0][index].split_once('=').map_or("", |(key, _)| key);
        let same_runs =
            |group: &Vec<&Point>| group.windows(2).all(|two| two[0].traces == two[1].traces);
        if groups.values().all(same_runs) {
            return Some(format!("{key} had no effect: all its values give the same runs"));
        }
        let alike = |group: &Vec<&Point>| {
            let values = |of| group.iter().map(|point| point.values[of]).collect::<Vec<_>>();
            (0..MEASURED.len()).all(|of| all_alike(&values(of)))
        };
        let words = "the runs differ, but no measure by more than 2 %";
        groups.values().all(alike).then(|| format!("{key} had hardly any effect: {words}"))
    };
    (0..keys).filter_map(sentence).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(detected: Option<f64>) -> Point {
        let mut values = [None; MEASURED.len()];
        values[5] = detected;
        Point { words: "k=v".into(), values, violations: 0, traces: Vec::new() }
    }

    #[test]
    fn a_key_that_changes_nothing_is_named() {
        let run = |detected: f64, trace: u8| Point {
            traces: vec![trace.to_string()],
            ..point(Some(detected))
        };
        let sets = ["a=1 b=1", "a=1 b=2", "a=2 b=1", "a=2 b=2"];
        let sets = sets.map(|words| words.split(' ').map(str::to_owned).collect::<Vec<_>>());
        let said = |runs: [(f64, u8); 4]| idle(&sets, &runs.map(|(it, trace)| run(it, trace)));
        assert_eq!(said([(1.0, 1), (2.0, 2), (3.0, 3), (4.0, 4)]), Vec::<String>::new());
        let same = said([(1.0, 1), (1.0, 1), (3.0, 3), (3.0, 3)]);
        assert_eq!(same, ["b had no effect: all its values give the same runs"]);
        let alike = said([(1.0, 1), (2.0, 2), (1.0, 3), (2.0, 4)]);
        assert!(alike.len() == 1 && alike[0].starts_with("a had hardly any effect"), "{alike:?}");
        let one = [vec!["a=1".to_owned()]];
        assert_eq!(idle(&one, &[run(1.0, 1)]), Vec::<String>::new(), "nothing to compare");
    }

    #[test]
    fn nodes_that_never_noticed_are_the_worst_and_unaffected_ones_do_not_count() {
        let after = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!(worst([(3, after(2)), (3, None), (0, None)]), Some(NEVER));
        assert_eq!(worst([(3, after(2)), (0, None), (2, after(5))]), Some(5.0));
        assert_eq!(worst([(0, None)]), None);
        let (mut seeds, slow) = (point(Some(2.0)), point(Some(NEVER)));
        add(&mut seeds.values, slow.values);
        add(&mut seeds.values, point(Some(3.0)).values);
        add(&mut seeds.values, point(None).values);
        assert_eq!(seeds.values[5], Some(NEVER));
        let text = table(&[point(Some(2.0)), seeds]);
        assert!(text.contains(" never") && text.contains(" hold"), "{text}");
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        assert!(MEASURED.iter().all(|name| text.contains(name)), "{text}");
        let seeds = point(Some(NEVER));
        let text = bars(&[point(Some(2.0)), seeds, point(None)]);
        let lines: Vec<&str> = text.lines().filter(|line| line.contains("k=v")).collect();
        assert!(lines[0].ends_with("# 2.00") && lines[2].ends_with("  -"), "{text}");
        assert!(lines[1].ends_with("! never"), "{text}");
    }
}
