//! `meshport-sim`: many datacenters in virtual time.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::{Parser, Subcommand};
use meshport_simulations::Error;
use meshport_simulations::scenario::Scenario;
use meshport_simulations::world::World;

/// Many datacenters in virtual time: meshport's own decisions in a simulated world.
#[derive(Debug, Parser)]
#[command(name = "meshport-sim", version)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Runs a scenario and says who routed where.
    ///
    /// The same file and the same seed give the same run, which the trace hash shows.
    ///
    /// Example: meshport-sim run simulations/scenarios/three-sites.toml --seed 7
    Run {
        /// The scenario, a TOML file.
        file: PathBuf,
        /// What everything random is drawn from.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Print one JSON object instead of tables.
        #[arg(long)]
        json: bool,
    },
}

fn main() -> ExitCode {
    let Arguments { verb: Verb::Run { file, seed, json } } = Arguments::parse();
    match run(&file, seed, json) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "meshport-sim: {error}");
            ExitCode::from(3)
        }
    }
}

fn run(file: &std::path::Path, seed: u64, json: bool) -> Result<(), Error> {
    let in_file = |source| Error::File { path: file.display().to_string(), source };
    let text = std::fs::read_to_string(file).map_err(in_file)?;
    let scenario = Scenario::parse(&text)?;
    #[expect(clippy::disallowed_methods, reason = "how long the run took, for people")]
    let start = Instant::now();
    let report = World::new(scenario, seed)?.run();
    let wall = start.elapsed();
    let name = file.file_stem().unwrap_or_default().to_string_lossy();
    let text = if json {
        report.to_json(&name, seed, wall).to_string()
    } else {
        format!("{report}\nseed         {seed}, {:.2} s of wall time", wall.as_secs_f64())
    };
    // A closed pipe means that the reader has seen enough.
    let _ = writeln!(io::stdout(), "{text}");
    Ok(())
}
