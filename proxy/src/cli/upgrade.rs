//! `meshport upgrade`: replaces the running daemon with the program on disk.

use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::time::sleep;

use super::query::QueryArgs;
use super::{output, runtime};
use meshport_daemon::admin::client::AdminClient;
use meshport_daemon::admin::queries::{StatusRequest, UpgradeRequest};
use meshport_daemon::lifecycle::upgrade::{PROBATION, START_TIME};
use meshport_daemon::{Error, clock};

/// Interval at which the daemon is polled.
const INTERVAL: Duration = Duration::from_millis(100);
/// Limit for the previous daemon to hand over and save its state.
const LEAVE_TIME: Duration = Duration::from_secs(20);
/// How long a successor must serve for the upgrade to count as done.
const PROVED: Duration = PROBATION.saturating_add(Duration::from_secs(1));

/// The process that serves after the upgrade.
#[derive(Debug, Serialize)]
struct Upgraded {
    /// The process that serves now.
    process: u32,
    /// Its version.
    version: String,
}

pub(crate) fn run(args: &QueryArgs) -> Result<(), Error> {
    let client = args.daemon.client()?;
    let done = runtime()?.block_on(async {
        let before = process(&client).await;
        let answer = client.ask(&UpgradeRequest).await.map_err(|error| match error {
            Error::Refused(why) => Error::NotUpgraded(why),
            other => other,
        });
        let successor = answer?.successor;
        taken_over(&client, before, successor).await
    })?;
    output::either(args.json, &done, |Upgraded { process, version }| {
        format!("process {process} serves now, version {version}\n")
    })
}

/// The process that answers.
async fn process(client: &AdminClient) -> Option<u32> {
    client.pid().await.and_then(|pid| u32::try_from(pid).ok())
}

/// Waits until the successor has served long enough or has failed.
async fn taken_over(
    client: &AdminClient,
    before: Option<u32>,
    successor: u32,
) -> Result<Upgraded, Error> {
    let limit = LEAVE_TIME + START_TIME + PROVED;
    let begun = clock::now();
    let mut serves: Option<Instant> = None;
    loop {
        let pid = process(client).await;
        let now = clock::now();
        let is_late = now.duration_since(begun) > limit;
        match client.ask(&StatusRequest).await {
            Ok(status) if pid == Some(successor) => {
                if now.duration_since(*serves.get_or_insert(now)) >= PROVED {
                    return Ok(Upgraded { process: successor, version: status.process.version });
                }
            }
            // A new upgrade clears the failure of an earlier one.
            Ok(status) => {
                if let Some(why) = status.process.failed_upgrade {
                    return Err(Error::NotUpgraded(why));
                }
                if is_late {
                    return Err(late(before == pid, successor, limit));
                }
            }
            Err(error @ Error::NoDaemon { .. }) if is_late => return Err(error),
            Err(_) if is_late => return Err(late(false, successor, limit)),
            Err(_) => serves = None,
        }
        sleep(INTERVAL).await;
    }
}

/// The error if the daemon that answers is not the successor.
fn late(is_the_same: bool, successor: u32, limit: Duration) -> Error {
    let limit = limit.as_secs();
    if is_the_same {
        return Error::NotUpgraded(format!(
            "the successor, process {successor}, has not taken over within {limit} s; see its log"
        ));
    }
    Error::Negative(format!(
        "it is not certain which process serves: the successor, process {successor}, has not \
         answered within {limit} s, or has been restarted"
    ))
}
