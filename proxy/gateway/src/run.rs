//! The main loop: sends an offer to the daemon after each change of the cluster, and renews it
//! before it expires.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use meshport_core::offered::MAX_OFFER_TIME;
use meshport_daemon::admin::client::AdminClient;
use meshport_daemon::admin::offers::OffersReport;
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{info, warn};

use crate::Error;
use crate::plan::{Plan, Rules, key, plan};
use crate::report::{Offered, Outcome, Reports};
use crate::watch::Cluster;

/// Interval between renewals: a third of the lifetime of an offer.
const RENEWAL: Duration = Duration::from_secs(20);
/// Interval between attempts while the daemon does not accept the offer.
const RETRY: Duration = Duration::from_secs(1);
/// How long changes are batched into one offer. A removed endpoint stays offered for this long.
const GATHER: Duration = Duration::from_millis(50);

/// The options.
#[derive(Debug)]
pub(crate) struct Options {
    /// The daemon's socket.
    pub(crate) socket: PathBuf,
    /// The limits for the cluster.
    pub(crate) rules: Rules,
}

/// Offers the Services of the cluster until `stop`. The last offer stays valid for up to
/// [`MAX_OFFER_TIME`], so that a restart is not visible in the mesh.
pub(crate) async fn run(
    client: kube::Client,
    options: Options,
    stop: impl Future<Output = ()>,
) -> Result<(), Error> {
    let (outcomes, latest) = watch::channel(Outcome::default());
    let reports = Reports::new(client.clone(), options.rules.addresses.clone());
    let work = async {
        let cluster = Cluster::watch(&client).await?;
        offer(cluster, options, outcomes).await;
        Ok(())
    };
    tokio::select! {
        result = work => result,
        () = reports.run(latest) => Err(Error::Ended),
        () = stop => Ok(()),
    }
}

async fn offer(mut cluster: Cluster, options: Options, outcomes: watch::Sender<Outcome>) {
    let Options { socket, rules } = options;
    let daemon = AdminClient::new(socket);
    let mut fails = false;
    loop {
        // A notification before this wait is not lost: `Notify` stores it.
        let changed = cluster.changed();
        let plan = plan(&cluster.snapshot(&rules).await, &rules);
        let pause = match daemon.ask(&plan.request(MAX_OFFER_TIME.as_secs())).await {
            Ok(report) => {
                if std::mem::take(&mut fails) {
                    info!("the daemon accepts offers again");
                }
                // The reporting task ends only with this one.
                outcomes.send_replace(outcome(plan, &report));
                RENEWAL
            }
            Err(error) => {
                if !std::mem::replace(&mut fails, true) {
                    warn!(%error, "the daemon does not accept the offer; retrying every second");
                }
                RETRY
            }
        };
        tokio::select! {
            () = changed => sleep(GATHER).await,
            () = sleep(pause) => {}
        }
    }
}

/// The outcome of a plan after this answer of the daemon: a Service counts as offered if all of its
/// ports are.
fn outcome(plan: Plan, report: &OffersReport) -> Outcome {
    let Plan { offers, mut refusals } = plan;
    let mut offered: BTreeMap<_, Offered> = BTreeMap::new();
    for (name, offer) in offers {
        match report.refused.get(&name) {
            Some(why) => {
                let cause = crate::plan::Cause::Daemon { name, why: why.clone() };
                refusals.push(crate::plan::Refusal { service: offer.service, cause });
            }
            None => {
                let service = offer.service.clone();
                let entry = offered.entry(key(&service)).or_insert_with(|| Offered {
                    service,
                    names: Vec::new(),
                    incomplete: Vec::new(),
                });
                if offer.left_out > 0 {
                    entry.incomplete.push(name.to_string());
                }
                entry.names.push(format!("{name} (port {})", offer.port));
            }
        }
    }
    for refusal in &refusals {
        offered.remove(&key(&refusal.service));
    }
    Outcome { offered: offered.into_values().collect(), refusals }
}

/// The output of `--dry-run`.
pub(crate) fn describe(plan: &Plan) -> String {
    let mut rows = vec![["NAME", "SERVICE", "PORT", "READY", "ALLOW"].map(str::to_owned)];
    for (name, offer) in &plan.offers {
        let ready = offer.instances.iter().filter(|it| it.ready).count();
        let all = offer.instances.len();
        let mut ready = format!("{ready}/{all}");
        if offer.left_out > 0 {
            ready.push_str(&format!(" ({} left out)", offer.left_out));
        }
        let allow = offer.allow.as_ref().map_or_else(|| "default".to_owned(), |it| it.join(","));
        rows.push([
            name.to_string(),
            key(&offer.service).to_string(),
            offer.port.to_string(),
            ready,
            allow,
        ]);
    }
    let mut text = table(&rows);
    if plan.offers.is_empty() {
        text = "no Service is offered\n".to_owned();
    }
    for refusal in &plan.refusals {
        text.push_str(&format!("not offered: {}: {}\n", key(&refusal.service), refusal.cause));
    }
    text
}

/// Aligns columns to their widest cell.
fn table(rows: &[[String; 5]]) -> String {
    let width =
        |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths = [0, 1, 2, 3, 4].map(width);
    let line = |row: &[String; 5]| {
        let cells: Vec<String> =
            row.iter().zip(widths).map(|(it, width)| format!("{it:width$}")).collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}
