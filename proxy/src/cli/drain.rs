//! `meshport drain` and `undrain`: take this node's own instance out of use, and back.
//!
//! With --wait the answer comes when nobody uses the instance any more, so that maintenance can
//! begin with the next command of a script.

use std::time::Duration;

use clap::Args;
use meshport_config::{Period, ServiceName};
use tokio::time::{Instant, sleep};

use super::query::DaemonArgs;
use super::{output, runtime};
use crate::Error;
use crate::admin::api::{DrainReport, DrainRequest};
use crate::admin::client::AdminClient;
use crate::daemon::clock;

/// From one look at the open sessions to the next.
const INTERVAL: Duration = Duration::from_millis(500);

/// `meshport drain`
#[derive(Debug, Args)]
pub(crate) struct DrainArgs {
    #[command(flatten)]
    pub(crate) undrain: UndrainArgs,
    /// Wait until no session of another node is open here, at most this long
    #[arg(long, value_name = "TIME")]
    pub(crate) wait: Option<Period>,
}

/// `meshport undrain`
#[derive(Debug, Args)]
pub(crate) struct UndrainArgs {
    /// The service whose instance on this node is meant
    #[arg(long, value_name = "NAME", default_value = ServiceName::KUBE_APISERVER)]
    pub(crate) service: ServiceName,
    /// Show the answer as JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) daemon: DaemonArgs,
}

pub(crate) fn drain(args: &DrainArgs) -> Result<(), Error> {
    let UndrainArgs { service, json, daemon } = &args.undrain;
    let client = daemon.client()?;
    let request = DrainRequest { service: service.clone(), draining: true };
    let report = runtime()?.block_on(async {
        let report = client.drain(&request).await?;
        match args.wait {
            Some(patience) => emptied(&client, &report, patience).await,
            None => Ok(report),
        }
    })?;
    if *json {
        return output::json(&report);
    }
    output::answer(&said(&report))
}

pub(crate) fn undrain(args: &UndrainArgs) -> Result<(), Error> {
    let client = args.daemon.client()?;
    let request = DrainRequest { service: args.service.clone(), draining: false };
    let report = runtime()?.block_on(client.drain(&request))?;
    if args.json {
        return output::json(&report);
    }
    output::answer(&format!("{}: offered again, as {}\n", report.service, report.state))
}

fn said(report: &DrainReport) -> String {
    let DrainReport { service, state, sessions } = report;
    match sessions {
        0 => format!("{service}: {state}; no session of another node is open here\n"),
        1 => format!("{service}: {state}; one session of another node moves away\n"),
        many => format!("{service}: {state}; {many} sessions of other nodes move away\n"),
    }
}

/// The report once nobody uses the instance any more.
///
/// # Errors
/// [`Error::Negative`] when sessions are left at the end.
async fn emptied(
    client: &AdminClient,
    report: &DrainReport,
    patience: Period,
) -> Result<DrainReport, Error> {
    let deadline = Instant::from_std(clock::now()) + patience.0;
    loop {
        let routes = client.routes().await?;
        let mut offered = routes.iter().filter(|route| route.name == report.service);
        let offering = offered.find_map(|route| route.offering.as_ref());
        let sessions = offering.map_or(0, |offering| offering.sessions);
        if sessions == 0 {
            return Ok(DrainReport { sessions, ..report.clone() });
        }
        if Instant::from_std(clock::now()) + INTERVAL > deadline {
            return Err(Error::Negative(format!(
                "{sessions} sessions of other nodes are still open after {patience}. They are \
                 left to end by themselves if no other origin is ready; `meshport status` on \
                 another node says so"
            )));
        }
        sleep(INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_how_many_are_left() {
        let report = |sessions| {
            let service = ServiceName::kube_apiserver();
            said(&DrainReport { service, state: "draining".into(), sessions })
        };
        assert_eq!(
            report(0),
            "kube-apiserver: draining; no session of another node is open here\n"
        );
        assert!(report(1).contains("one session"), "{}", report(1));
        assert!(report(12).contains("12 sessions"), "{}", report(12));
    }
}
