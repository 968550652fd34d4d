//! `meshport doctor`: checks for all known problems, with or without a daemon.
//!
//! It reads the settings and queries the daemon, then runs all checks in parallel, each with its
//! own limit. Each result is a [`Finding`] of the list in `meshport_core::findings`. A check that
//! cannot run here reports why, which is not a finding. `doctor` changes nothing and only sends
//! queries.
//!
//! [`Finding`]: meshport_core::findings::Finding

mod checks;
mod facts;
mod holder;
mod kubernetes;
mod machine;
mod members;
mod mesh;
pub(super) mod report;
#[cfg(test)]
mod tests;
pub(super) mod text;

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use meshport_core::findings;

use self::checks::Check;
use self::facts::Facts;
use self::report::DoctorReport;
use super::query::DaemonArgs;
use super::{clock, output, runtime};
use meshport_daemon::Error;

/// Limit for all checks together: people and timers wait for the result.
const MAX_TIME: Duration = Duration::from_secs(10);

/// `meshport doctor`
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Show all checks as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// One line for each finding
    #[arg(long, conflicts_with = "json")]
    pub(crate) short: bool,
    /// Exit with 1 for warnings too
    #[arg(long)]
    pub(crate) strict: bool,
    /// Explain a finding by its id and check nothing
    #[arg(long, value_name = "ID", conflicts_with_all = ["json", "short", "strict"])]
    pub(crate) explain: Option<String>,
    #[command(flatten)]
    pub(crate) daemon: DaemonArgs,
}

/// The exit code: 1 for errors.
pub(crate) fn run(args: &DoctorArgs) -> Result<u8, Error> {
    if let Some(id) = &args.explain {
        let kind = findings::by_id(id).ok_or_else(|| unknown(id))?;
        return output::answer(&text::explained(kind, output::style())).map(|()| 0);
    }
    let runtime = runtime()?;
    let report = runtime.block_on(examine(&args.daemon));
    // Do not wait for the thread of a lookup that hangs.
    runtime.shutdown_background();
    let report = report?;
    let text = if args.short { text::short } else { text::full };
    output::either(args.json, &report, |report| text(report, output::style()))?;
    Ok(u8::from(!report.success || (args.strict && report.warnings > 0)))
}

fn unknown(id: &str) -> Error {
    Error::Usage(format!("no finding has the id {id}; {} lists all", findings::PAGE))
}

pub(super) async fn examine(args: &DaemonArgs) -> Result<DoctorReport, Error> {
    let begun = clock::now();
    let facts = Arc::new(Facts::gather(args).await?);
    let left = MAX_TIME.saturating_sub(clock::now().saturating_duration_since(begun));
    let done = checks::run_all(all(&facts), left).await;
    let took = clock::now().saturating_duration_since(begun);
    let status = facts.daemon.as_ref().ok().map(|it| &it.status);
    let reported = status.map(|it| it.findings.as_slice());
    let reach = status.and_then(|it| it.reach.as_ref());
    Ok(DoctorReport::new(done, reported, took).with(reach, facts.members()))
}

/// The checks for every kind of finding.
fn all(facts: &Arc<Facts>) -> Vec<Check> {
    let mut all = machine::checks(facts);
    all.extend(mesh::checks(facts));
    all.extend(members::checks(facts));
    all.extend(kubernetes::checks(facts));
    all
}
