//! `meshport version`: the version of this program and of the running daemon.

use std::io::ErrorKind;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tokio::time::timeout;

use super::query::DaemonArgs;
use super::render::age;
use super::{output, runtime};
use meshport_daemon::Error;
use meshport_daemon::admin::api::Status;
use meshport_daemon::admin::queries::StatusRequest;

const PROGRAM: &str = env!("CARGO_PKG_VERSION");
/// Limit for the daemon to answer; a busy one is not waited for.
const PATIENCE: Duration = Duration::from_secs(2);

/// `meshport version`
#[derive(Debug, Args)]
pub(crate) struct VersionArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) daemon: DaemonArgs,
}

/// The versions of this program and of the daemon.
#[derive(Debug, Serialize)]
struct Versions {
    /// The version of this program.
    version: &'static str,
    /// The running daemon; absent when none answers.
    daemon: Option<Daemon>,
}

/// A running daemon.
#[derive(Debug, Serialize)]
struct Daemon {
    /// Its version.
    version: String,
    /// The name of the node.
    name: String,
    /// Seconds since it started.
    uptime_s: u64,
}

pub(crate) fn run(args: &VersionArgs) -> Result<(), Error> {
    let asked = args.daemon.client().and_then(|client| {
        let silent = || Error::Refused("timed out waiting for the daemon".into());
        runtime()?.block_on(async {
            timeout(PATIENCE, client.ask(&StatusRequest))
                .await
                .unwrap_or_else(|_late| Err(silent()))
        })
    });
    if args.json {
        let daemon = asked.ok().map(|Status { process, me, .. }| Daemon {
            version: process.version,
            name: me.name.to_string(),
            uptime_s: process.uptime_s,
        });
        return output::json(&Versions { version: PROGRAM, daemon });
    }
    output::answer(&format!("meshport {PROGRAM}\n{}\n", of_daemon(&asked)))?;
    if let Some(remark) = asked.ok().and_then(|status| remark(&status.process.version)) {
        output::advice(&remark);
    }
    Ok(())
}

fn of_daemon(asked: &Result<Status, Error>) -> String {
    match asked {
        Ok(Status { process, me, .. }) => {
            let (version, uptime) = (&process.version, age(process.uptime_s));
            format!("daemon {version} ({} in {}), up {uptime}", me.name, me.site)
        }
        // The socket is missing, and nothing more is known.
        Err(Error::NoDaemon { path, source })
            if source.kind() == ErrorKind::NotFound && source.get_ref().is_none() =>
        {
            format!("no daemon answers on {}", path.display())
        }
        Err(error @ Error::NoDaemon { .. }) => error.to_string(),
        Err(error) => format!("daemon: {error}"),
    }
}

fn remark(daemon: &str) -> Option<String> {
    let todo = "run `meshport upgrade` or restart the daemon after an update";
    (daemon != PROGRAM).then(|| format!("warning: the daemon runs version {daemon}; {todo}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_that_is_not_there_or_of_another_version_is_said() {
        let none = |kind: ErrorKind| {
            of_daemon(&Err(Error::NoDaemon { path: "/run/x.sock".into(), source: kind.into() }))
        };
        assert_eq!(none(ErrorKind::NotFound), "no daemon answers on /run/x.sock");
        let closed = none(ErrorKind::PermissionDenied);
        assert!(closed.contains("/run/x.sock: this user may not open"), "{closed}");
        let status = crate::cli::render::tests::sample();
        assert_eq!(of_daemon(&Ok(status)), "daemon 0.1.0 (worker-7 in fra), up 3d 4h");
        assert_eq!(remark(PROGRAM), None);
        let other = remark("0.0.9").expect("it differs");
        assert!(other.contains("0.0.9; run `meshport upgrade`"), "{other}");
    }
}
