//! The tool `meshport-sim`.
//!
//! Exit status: 0 when all is well, 1 when a rule was violated (or a comparison found a
//! regression), 2 for a wrong command line, 3 when something could not be read, run or written.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::Error;
use crate::report::keys;
use crate::scenario::reference;

mod compare;
mod fewer;
mod hunt;
mod lab;
mod run;
mod scale;
mod sets;
mod shrink;
mod sweep;

/// The last second that can be asked for: some years.
const MAX_SECOND: f64 = 1e8;

/// Many datacenters in virtual time: meshport's own decisions in a simulated world.
#[derive(Debug, Parser)]
#[command(
    name = "meshport-sim",
    version,
    after_help = "Exit status: 0 on success, 1 when a rule was violated or a comparison \
                  found more violations, 2 for a wrong command line, 3 when something could not be \
                  read, run or written.\nScenarios are described in simulations/REFERENCE.md."
)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Runs a scenario and prints the result.
    ///
    /// The same file and the same seed give the same run, which the trace hash shows.
    ///
    /// Example: meshport-sim run simulations/scenarios/three-sites.toml --seed 7 --report out
    Run(run::Arguments),
    /// Runs a scenario over several seeds and values of settings, one line each.
    ///
    /// Example: meshport-sim sweep simulations/scenarios/site-loss.toml --seeds 3
    /// --set discovery.probe-interval=500ms,1s,2s --report out
    Sweep(sweep::Arguments),
    /// Runs a scenario in real time, with a real daemon as a process for every node.
    ///
    /// Example: meshport-sim lab simulations/scenarios/site-loss.toml --nodes-per-site 3
    Lab(lab::Arguments),
    /// Runs a scenario at several sizes, fits laws to the cost of a node, and extrapolates them to
    /// a size that cannot be run.
    ///
    /// Example: meshport-sim scale simulations/bars/quiet.toml --sizes 100,300,1000,3000
    /// --origins 5,25 --carry 100000 --sites 200
    Scale(scale::Arguments),
    /// Compares two results of `run --json`.
    ///
    /// Example: meshport-sim compare before.json after.json
    Compare {
        /// The earlier result.
        before: PathBuf,
        /// The later result.
        after: PathBuf,
    },
    /// Looks for violations with fresh seeds, in a scenario or in random small worlds.
    ///
    /// Example: meshport-sim hunt --for 60
    Hunt(hunt::Arguments),
    /// Reduces a failing scenario as long as it fails in the same way.
    ///
    /// Example: meshport-sim shrink failing.toml --seed 99 --out small.toml
    Shrink(shrink::Arguments),
    /// Prints the JSON schema of scenarios.
    Schema,
    /// Prints the reference of all scenario keys, as in simulations/REFERENCE.md.
    Reference {
        /// Prints the keys of a result instead.
        #[arg(long)]
        result: bool,
    },
}

/// Which scenario, with which seed and settings.
#[derive(Debug, Args)]
struct Choice {
    /// The scenario, a TOML file.
    file: PathBuf,
    /// Changes a setting: any key of the daemon's settings file (discovery.suspicion=4s), or of the
    /// scenario (scenario.duration-s=60, scenario.site.0.nodes=50). May be repeated. A sweep takes
    /// several values, separated by commas, and runs all combinations.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
}

/// Runs the tool.
pub fn main() -> ExitCode {
    let Arguments { verb } = Arguments::parse();
    let done = match verb {
        Verb::Run(arguments) => run::main(&arguments),
        Verb::Lab(arguments) => lab::main(&arguments),
        Verb::Sweep(arguments) => sweep::main(&arguments),
        Verb::Scale(arguments) => scale::main(&arguments),
        Verb::Compare { before, after } => compare::main(&before, &after),
        Verb::Hunt(arguments) => hunt::main(&arguments),
        Verb::Shrink(arguments) => shrink::main(&arguments),
        Verb::Schema => say(&reference::schema()),
        Verb::Reference { result: false } => say(&reference::markdown()),
        Verb::Reference { result: true } => say(&keys::markdown()),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            let _ = writeln!(io::stderr(), "meshport-sim: {error}");
            ExitCode::from(3)
        }
    }
}

/// A seed, as it is typed.
fn seed(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("a whole number from 0 to {} is wanted", u64::MAX))
}

/// A time in seconds, as it is typed.
fn second(text: &str) -> Result<f64, String> {
    let wanted = text.parse().ok().filter(|second| (0.0..=MAX_SECOND).contains(second));
    wanted.ok_or_else(|| format!("seconds from 0 to {MAX_SECOND} are wanted"))
}

/// Prints to standard output. A closed pipe means that the reader has seen enough.
fn say(text: &str) -> Result<ExitCode, Error> {
    let _ = writeln!(io::stdout(), "{text}");
    Ok(ExitCode::SUCCESS)
}

fn write(path: &std::path::Path, text: &str) -> Result<(), Error> {
    std::fs::write(path, text)
        .map_err(|source| Error::File { path: path.display().to_string(), source })
}

fn read(path: &std::path::Path) -> Result<String, Error> {
    std::fs::read_to_string(path)
        .map_err(|source| Error::File { path: path.display().to_string(), source })
}

/// Plants a bug of this name in all nodes.
#[cfg(feature = "planted-bugs")]
fn plant(name: Option<&str>) -> Result<(), Error> {
    use meshport_config::planted::{self, Bug};

    let Some(name) = name else { return Ok(()) };
    let bug = Bug::ALL.into_iter().find(|bug| format!("{bug:?}") == name);
    let unknown = || Error::Scenario(format!("there is no bug \"{name}\" to plant"));
    planted::plant(Some(bug.ok_or_else(unknown)?));
    Ok(())
}
