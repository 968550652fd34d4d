//! `meshport-sim serve`: an interactive world.

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::process::ExitCode;

use super::{Choice, run};
use crate::Error;
use crate::serve::{self, MAX_NODES, Serve, check_speed};

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    choice: Choice,
    /// Seed of all random choices.
    #[arg(long, default_value_t = 1, value_parser = super::seed, allow_negative_numbers = true)]
    seed: u64,
    /// Virtual seconds per second of real time, 0.1 to 100.
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = speed)]
    speed: f64,
    /// Start paused.
    #[arg(long)]
    paused: bool,
    /// The loopback address of the dashboard; port 0 selects a free one.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7450")]
    listen: SocketAddr,
}

pub(super) fn main(arguments: &Arguments) -> Result<ExitCode, Error> {
    let document = run::document(&arguments.choice)?;
    let scenario = run::parse(&document, &arguments.choice)?;
    run::wide(&scenario)?;
    let nodes = scenario.nodes().count();
    if nodes > MAX_NODES {
        let what = format!("{nodes} nodes; serve shows at most {MAX_NODES}");
        return Err(run::about(&arguments.choice.file, Error::Scenario(what)));
    }
    let options = Serve {
        scenario,
        name: run::name(&arguments.choice.file),
        seed: arguments.seed,
        speed: arguments.speed,
        is_paused: arguments.paused,
        listen: arguments.listen,
    };
    let tell = |address: SocketAddr| {
        let mut out = io::stdout();
        let name = run::name(&arguments.choice.file);
        let _ = writeln!(out, "{name}, {nodes} nodes: http://{address}/\nCtrl-C ends it.");
        let _ = out.flush();
    };
    let no_runtime = |error| Error::Machine(format!("no runtime: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(no_runtime)?.block_on(serve::run(options, tell))?;
    Ok(ExitCode::SUCCESS)
}

/// A speed, as it is typed.
fn speed(text: &str) -> Result<f64, String> {
    let speed = text.parse().map_err(|_| "expected a number".to_owned())?;
    check_speed(speed).map(|()| speed)
}
