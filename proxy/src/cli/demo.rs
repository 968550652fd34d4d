//! `meshport demo`: a mesh with a failover on one machine, in half a minute.

use std::time::Duration;

use clap::Args;

use super::run::RunArgs;
use super::{clock, output, runtime};
use meshport_daemon::Error;
use meshport_demo::{self, Options, Screen};

/// `meshport demo`
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// How long to send requests; 20 or more show everything
    #[arg(
        long = "for", value_name = "SECONDS", default_value_t = 30,
        value_parser = clap::value_parser!(u64).range(1..=86_400)
    )]
    seconds: u64,
    /// Print only one JSON object, at the end
    #[arg(long)]
    json: bool,
    /// Keep everything running afterwards until Ctrl-C, to try it by hand
    #[arg(long)]
    keep_running: bool,
    /// Open the dashboard of the node that serves the requests in a browser
    #[arg(long)]
    open: bool,
    /// Seed of the emulated WAN's delays and losses
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
}

/// A daemon of the demo: like `run`, but it stops with the demo.
#[derive(Debug, Args)]
pub(crate) struct NodeArgs {
    #[command(flatten)]
    run: RunArgs,
}

pub(crate) fn run(args: &DemoArgs) -> Result<(), Error> {
    let options = Options {
        length: Duration::from_secs(args.seconds),
        keep_running: args.keep_running,
        open: args.open,
        seed: args.seed,
        now: clock::wall(),
    };
    let mut screen = if args.json { Screen::Json } else { Screen::text(output::width()) };
    runtime()?.block_on(meshport_demo::run(&options, &mut screen))
}

pub(crate) fn node(args: &NodeArgs) -> Result<(), Error> {
    meshport_demo::end_with_parent()?;
    super::run::run(&args.run)
}
