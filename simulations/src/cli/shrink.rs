//! `meshport-sim shrink`: a smaller scenario that violates the same rule with the same seed.
//!
//! Tries repeatedly, until nothing helps: leave out one event, the clients, one path; end sooner;
//! halve the nodes of a site. Each try is a run; a try counts if the same rule is violated.

use std::path::PathBuf;
use std::process::ExitCode;

use toml::{Table, Value};

use super::run::{again, command, document, go, parse};
use super::{Choice, say, write};
use crate::Error;
use crate::report::{Violation, text};
use crate::scenario::Scenario;
use crate::world::Options;

/// Maximum number of runs.
const MAX_TRIES: usize = 500;

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    choice: Choice,
    /// The seed that fails.
    #[arg(long, value_parser = super::seed, allow_negative_numbers = true)]
    seed: u64,
    /// Where to write the smaller scenario.
    #[arg(long, value_name = "FILE", default_value = "small.toml")]
    out: PathBuf,
}

pub(super) fn main(arguments: &Arguments) -> Result<ExitCode, Error> {
    let mut best = document(&arguments.choice)?;
    let scenario = parse(&best, &arguments.choice)?;
    let (run, _) = go(scenario, arguments.seed, Options::default())?;
    let Some(Violation { rule, .. }) = run.violations.into_iter().next() else {
        let (file, seed) = (arguments.choice.file.display(), arguments.seed);
        say(&format!("nothing to shrink: {file} violates no rule with seed {seed}"))?;
        return Ok(ExitCode::SUCCESS);
    };
    let mut tries = 0;
    loop {
        let smaller = candidates(&best, arguments.seed).into_iter().find(|candidate| {
            tries += 1;
            tries <= MAX_TRIES
                && violated(candidate, arguments.seed).is_some_and(|other| other.rule == rule)
        });
        match smaller {
            Some(smaller) => best = smaller,
            None => break,
        }
    }
    write(&arguments.out, &best.to_string())?;
    let choice = Choice { file: arguments.out.clone(), sets: Vec::new() };
    let command = command("run", &choice, arguments.seed);
    let events = best.get("event").and_then(Value::as_array).map_or(0, Vec::len);
    say(&format!("\"{rule}\" still fails with {events} events after {tries} tries"))?;
    let scenario = Scenario::parse(&best.to_string())?;
    let end = scenario.duration();
    let (run, _) = go(scenario, arguments.seed, Options::default())?;
    if let Some(violation) = run.violations.iter().find(|it| it.rule == rule) {
        let again = again(&command, violation, end, None);
        say(text::violation(violation, &again).trim_end())?;
    }
    Ok(ExitCode::from(1))
}

/// The first violation; `None` also if the document is no longer a valid scenario.
fn violated(document: &Table, seed: u64) -> Option<Violation> {
    let scenario = Scenario::parse(&document.to_string()).ok()?;
    let (run, _) = go(scenario, seed, Options::default()).ok()?;
    run.violations.into_iter().next()
}

/// Smaller scenarios, the most promising first.
fn candidates(document: &Table, seed: u64) -> Vec<Table> {
    let mut all = Vec::new();
    for list in ["event", "path"] {
        let count = document.get(list).and_then(Value::as_array).map_or(0, Vec::len);
        for index in 0..count {
            let mut smaller = document.clone();
            if let Some(items) = smaller.get_mut(list).and_then(Value::as_array_mut) {
                items.remove(index);
            }
            all.push(smaller);
        }
    }
    if document.contains_key("load") {
        let mut smaller = document.clone();
        smaller.remove("load");
        all.push(smaller);
    }
    all.extend(shorter(document, seed));
    all.extend(fewer_nodes(document));
    all
}

fn shorter(document: &Table, seed: u64) -> Option<Table> {
    let at = violated(document, seed)?.at.as_secs_f64();
    let now = document.get("duration-s").and_then(number)?;
    let mut smaller = document.clone();
    let end = at.ceil() + 1.0;
    smaller.insert("duration-s".into(), end.into());
    (end < now).then_some(smaller)
}

fn fewer_nodes(document: &Table) -> Vec<Table> {
    let sites = document.get("site").and_then(Value::as_array).map_or(0, Vec::len);
    let mut all = Vec::new();
    for site in 0..sites {
        let mut smaller = document.clone();
        let table = smaller.get_mut("site").and_then(|sites| sites.get_mut(site));
        let Some(nodes) = table.and_then(|table| table.get_mut("nodes")) else { continue };
        let before = nodes.as_integer().unwrap_or(0);
        if before > 1 {
            *nodes = (before / 2).into();
            all.push(smaller);
        }
    }
    all
}

fn number(value: &Value) -> Option<f64> {
    #[expect(clippy::cast_precision_loss, reason = "seconds")]
    value.as_float().or_else(|| value.as_integer().map(|it| it as f64))
}
