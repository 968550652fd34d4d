//! The tool `meshport-sim`.
//!
//! Exit codes: 0 success, 1 a rule was violated or a comparison found more violations, 2 invalid
//! command line, 3 a file could not be read or written, or the run failed.

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
mod serve;
mod sets;
mod shrink;
mod sweep;

/// The maximum second that can be requested: some years.
const MAX_SECOND: f64 = 1e8;

/// Simulate a mesh of many sites in virtual time, with the daemon's own decision code.
#[derive(Debug, Parser)]
#[command(
    name = "meshport-sim",
    version,
    after_help = "Exit codes: 0 success, 1 a rule was violated or a comparison found more \
                  violations, 2 invalid command line, 3 a file could not be read or written, or \
                  the run failed.\nScenarios are described in simulations/REFERENCE.md."
)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run a scenario and print the result.
    ///
    /// The same file and seed always give the same run, as the trace hash shows.
    ///
    /// Example: meshport-sim run simulations/scenarios/three-sites.toml --seed 7 --report out
    Run(run::Arguments),
    /// Run a scenario in real or accelerated time, and serve the daemon's dashboard for it.
    ///
    /// The dashboard shows any node's view. Clicks cut links, stop instances and isolate sites;
    /// without clicks the run is the same as with `run`.
    ///
    /// Example: meshport-sim serve simulations/scenarios/three-sites.toml --speed 5
    Serve(serve::Arguments),
    /// Run a scenario with several seeds and values of settings, and compare them.
    ///
    /// Example: meshport-sim sweep simulations/scenarios/site-loss.toml --seeds 3
    /// --set discovery.probe-interval=500ms,1s,2s --report out
    Sweep(sweep::Arguments),
    /// Run a scenario in real time, with a real daemon process for every node.
    ///
    /// Example: meshport-sim lab simulations/scenarios/site-loss.toml --nodes-per-site 3
    Lab(lab::Arguments),
    /// Run a scenario at several sizes and extrapolate the cost per node to a larger mesh.
    ///
    /// Example: meshport-sim scale simulations/bars/quiet.toml --sizes 100,300,1000,3000
    /// --origins 5,25 --carry 100000 --sites 200
    Scale(scale::Arguments),
    /// Compare two results of `run --json`.
    ///
    /// Example: meshport-sim compare before.json after.json
    Compare {
        /// The earlier result.
        before: PathBuf,
        /// The later result.
        after: PathBuf,
    },
    /// Search for rule violations with fresh seeds, in a scenario or in random small worlds.
    ///
    /// Example: meshport-sim hunt --for 60
    Hunt(hunt::Arguments),
    /// Reduce a failing scenario as long as it violates the same rule.
    ///
    /// Example: meshport-sim shrink failing.toml --seed 99 --out small.toml
    Shrink(shrink::Arguments),
    /// Print the JSON schema of scenarios.
    Schema,
    /// Print the reference of all scenario keys, as in simulations/REFERENCE.md.
    Reference {
        /// Print the keys of a result instead.
        #[arg(long)]
        result: bool,
    },
}

/// The scenario, the seed and changed settings.
#[derive(Debug, Args)]
struct Choice {
    /// The scenario, a TOML file.
    file: PathBuf,
    /// Change a setting: any key of the daemon's configuration (discovery.suspicion=4s) or of the
    /// scenario (scenario.duration-s=60, scenario.site.0.nodes=50). May be repeated. `sweep` takes
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
        Verb::Serve(arguments) => serve::main(&arguments),
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
    text.parse().map_err(|_| format!("expected a whole number from 0 to {}", u64::MAX))
}

/// A time in seconds, as it is typed.
fn second(text: &str) -> Result<f64, String> {
    let wanted = text.parse().ok().filter(|second| (0.0..=MAX_SECOND).contains(second));
    wanted.ok_or_else(|| format!("expected seconds from 0 to {MAX_SECOND}"))
}

/// Prints to standard output. A closed pipe means that the reader is done.
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
    let unknown = || Error::Scenario(format!("unknown bug \"{name}\""));
    planted::plant(Some(bug.ok_or_else(unknown)?));
    Ok(())
}
