//! `meshport-sim hunt`: fresh seeds until the time is up or a rule is violated.

use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use super::run::{about, again, go, wide};
use super::{read, say, write};
use crate::report::{Violation, text};
use crate::scenario::Scenario;
use crate::storm;
use crate::world::Options;
use crate::{Error, rules};

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The scenario to search [default: random small worlds].
    file: Option<PathBuf>,
    /// How long to search, in seconds of wall time.
    #[arg(long = "for", value_name = "SECONDS", default_value_t = 60)]
    seconds: u64,
    /// At most this many seeds.
    #[arg(long, default_value_t = 1_000_000)]
    seeds: u64,
    /// The first seed [default: random, and printed].
    #[arg(long, value_parser = super::seed, allow_negative_numbers = true)]
    first_seed: Option<u64>,
    /// Where to write a random world that violates a rule.
    #[arg(long, value_name = "FILE", default_value = "found.toml")]
    out: PathBuf,
    /// Search only for violations of this rule, given by its text.
    #[arg(long, value_name = "RULE")]
    rule: Option<String>,
    /// Plant this bug in all nodes first, to test whether the rules find it.
    #[cfg(feature = "planted-bugs")]
    #[arg(long, value_name = "BUG")]
    planted: Option<String>,
}

pub(super) fn main(arguments: &Arguments) -> Result<ExitCode, Error> {
    #[cfg(feature = "planted-bugs")]
    super::plant(arguments.planted.as_deref())?;
    if let Some(rule) = arguments.rule.as_deref().filter(|rule| !rules::ALL.contains(rule)) {
        let all: Vec<String> = rules::ALL.iter().map(|rule| format!("\n  {rule}")).collect();
        let what = format!("--rule: unknown rule \"{rule}\"; the rules are{}", all.concat());
        return Err(Error::Scenario(what));
    }
    let is_wanted = |it: &&Violation| arguments.rule.as_ref().is_none_or(|rule| it.rule == rule);
    let first = arguments.first_seed.unwrap_or_else(fresh);
    let text = arguments.file.as_deref().map(read).transpose()?;
    if let (Some(text), Some(file)) = (&text, &arguments.file) {
        let scenario = Scenario::parse(text).map_err(|error| about(file, error))?;
        wide(&scenario)?;
    }
    say(&format!("hunting from seed {first}"))?;
    #[expect(clippy::disallowed_methods, reason = "a budget of wall time")]
    let start = Instant::now();
    let budget = Duration::from_secs(arguments.seconds);
    let mut runs = 0;
    for seed in (0..arguments.seeds).map(|more| first.wrapping_add(more)) {
        if start.elapsed() >= budget {
            break;
        }
        let story = text.clone().unwrap_or_else(|| storm::scenario(seed));
        let scenario = Scenario::parse(&story)?;
        let end = scenario.duration();
        let (run, _) = go(scenario, seed, Options::default())?;
        runs += 1;
        if let Some(violation) = run.violations.iter().find(is_wanted) {
            let file = match &arguments.file {
                Some(file) => file.clone(),
                None => {
                    write(&arguments.out, &story)?;
                    arguments.out.clone()
                }
            };
            let choice = super::Choice { file, sets: Vec::new() };
            let command = super::run::command("run", &choice, seed);
            let again = again(&command, violation, end, None);
            let words = text::violation(violation, &again);
            let _ = writeln!(io::stderr(), "seed {seed} after {runs} runs\n{words}");
            return Ok(ExitCode::from(1));
        }
    }
    match &arguments.rule {
        Some(rule) => say(&format!("{runs} runs, none violates \"{rule}\"")),
        None => say(&format!("{runs} runs, all rules hold")),
    }
}

/// A random seed.
fn fresh() -> u64 {
    // Hash keys are the standard library's only access to the system's randomness.
    RandomState::new().hash_one(std::process::id()) >> 16
}
