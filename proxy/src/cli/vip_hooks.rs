//! `meshport vip-hooks`: the process that runs `on-gain` and `on-loss` for the daemon that started
//! it.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use clap::Args;
use meshport_daemon::{Error, vip_hooks};
use tokio::signal::unix::{SignalKind, signal};

use super::{logging, runtime};

/// `meshport vip-hooks`
#[derive(Debug, Args)]
pub(crate) struct VipHooksArgs {
    /// The commands, as JSON
    table: String,
}

pub(crate) fn run(args: &VipHooksArgs) -> Result<(), Error> {
    let table =
        serde_json::from_str(&args.table).map_err(|error| Error::Usage(error.to_string()))?;
    logging::start(false, "info")?;
    runtime()?.block_on(async {
        // It must outlive its daemon to run `on-loss`, so ignore the signals of a service manager
        // that stops all processes of a unit.
        let ignore = |kind| signal(kind).map_err(|source| cannot("ignore signals", source));
        let _ignored =
            [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()].map(ignore);
        let stdin = io::stdin().as_fd().try_clone_to_owned();
        let stdin = stdin.map_err(|source| cannot("use the daemon's socket", source))?;
        let served = vip_hooks::serve(table, UnixStream::from(stdin)).await;
        served.map_err(|source| cannot("read from the daemon", source))
    })
}

fn cannot(what: &str, source: io::Error) -> Error {
    Error::Io { what: what.to_owned(), source }
}
