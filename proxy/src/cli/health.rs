//! `meshport health`: liveness and readiness of the daemon as an exit code, for probes.
//!
//! It uses the admin socket, which only the daemon's user and root can open, so no other user can
//! block it.

use clap::Args;

use super::query::DaemonArgs;
use super::{output, runtime};
use meshport_daemon::Error;

/// `meshport health`
#[derive(Debug, Args)]
pub(crate) struct HealthArgs {
    /// Ask whether each service has a healthy origin, not only whether the daemon is alive
    #[arg(long)]
    pub(crate) ready: bool,
    #[command(flatten)]
    pub(crate) daemon: DaemonArgs,
}

pub(crate) fn run(args: &HealthArgs) -> Result<(), Error> {
    let client = args.daemon.client()?;
    let path = if args.ready { "/readyz" } else { "/livez" };
    match runtime()?.block_on(client.check(path)) {
        Ok(()) => output::answer("ok\n"),
        Err(Error::Refused(why)) => Err(Error::Negative(why)),
        Err(error) => Err(error),
    }
}
