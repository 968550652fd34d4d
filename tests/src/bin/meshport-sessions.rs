//! Holds watches and opens new connections until a file appears, and prints the clients'
//! observations as JSON: for tests of restarts, from inside a network namespace.

use std::fs::File;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use meshport_tests::sessions::{Plan, Sessions};
use meshport_tests::wait;

/// How long all watches may take to open.
const OPEN_LIMIT: Duration = Duration::from_secs(60);
/// How long the test may take.
const LIMIT: Duration = Duration::from_secs(1800);

#[derive(Parser)]
struct Args {
    /// Where clients connect
    address: SocketAddr,
    /// Authority that they trust (PEM)
    authority: PathBuf,
    /// Watches over HTTP/1.1
    #[arg(long, default_value_t = 0)]
    plain: usize,
    /// Watches over HTTP/2
    #[arg(long, default_value_t = 0)]
    h2: usize,
    /// New connections a second
    #[arg(long, default_value_t = 0)]
    per_second: u32,
    /// Created once all watches are open
    #[arg(long)]
    open: PathBuf,
    /// The run ends when this file appears
    #[arg(long)]
    stop: PathBuf,
}

#[expect(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool")]
fn main() -> ExitCode {
    let Args { address, authority, plain, h2, per_second, open, stop } = Args::parse();
    let sessions = Sessions::start(address, &authority, Plan { plain, h2, per_second });
    sessions.all_open(OPEN_LIMIT);
    if let Err(error) = File::create(&open) {
        eprintln!("meshport-sessions: {}: {error}", open.display());
        return ExitCode::FAILURE;
    }
    wait::until("the test ends", LIMIT, || stop.exists().then_some(()));
    println!("{}", serde_json::json!(sessions.finish()));
    ExitCode::SUCCESS
}
