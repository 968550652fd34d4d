//! Checks that need other members: they report what they see of this node and their own settings.
//!
//! The daemon queries them once for all these checks. If it is older than this program, or busy
//! with another such query, checks that need members are skipped.

use std::sync::Arc;
use std::time::Duration;

use meshport_core::findings::{
    Finding, Kind, NARROW_PATH, SETTINGS_DIFFER, UDP_IN, VERSIONS_DIFFER, WRONG_CLOCK,
};

use super::checks::{Check, Looked};
use super::facts::Facts;
use super::{machine, mesh};
use meshport_daemon::admin::api::FindingRow;

/// Members have 2 s to answer, and call-backs arrive slightly later.
const LIMIT: Duration = Duration::from_secs(4);
/// Values of `udp_in` that are conclusive.
const DECIDED: [&str; 2] = ["reached", "not-reached"];

pub(super) fn checks(facts: &Arc<Facts>) -> Vec<Check> {
    let check = |kind: &'static Kind| {
        let facts = facts.clone();
        Check::new(&[kind], async move { look(kind, &facts).await }).within(LIMIT)
    };
    [&WRONG_CLOCK, &UDP_IN, &NARROW_PATH, &SETTINGS_DIFFER, &VERSIONS_DIFFER].map(check).into()
}

async fn look(kind: &'static Kind, facts: &Facts) -> Looked {
    let inquiry = facts.inquiry().await;
    let mut found = match kind {
        // Works without members too.
        it if *it == WRONG_CLOCK => mesh::clock(facts)?,
        it if *it == NARROW_PATH => facts.daemon()?.found(&NARROW_PATH),
        it if *it == VERSIONS_DIFFER => machine::version(&facts.daemon()?.status.process.version),
        _ => match &inquiry {
            Ok(report) if *kind == UDP_IN && !DECIDED.contains(&&*report.udp_in) => {
                return Err(report.udp_in.as_str().into());
            }
            Ok(_) => Vec::new(),
            Err(why) => return Err(why.clone()),
        },
    };
    if let Ok(report) = inquiry {
        let all: Vec<Finding> = report.findings.iter().filter_map(FindingRow::read).collect();
        found.extend(all.into_iter().filter(|it| it.kind == kind));
    }
    Ok(found)
}
