//! What the checks found, as data. The same rules as for the daemon's answers: fields are only ever
//! added, times have their unit in the name.

use std::time::Duration;

use meshport_core::findings::{Finding, Kind, Severity};
use serde::Serialize;

use super::checks::{Done, Outcome};

/// Grows when a field changes its meaning.
const VERSION: u32 = 1;

/// `meshport doctor --json`
#[derive(Debug, Serialize)]
pub(crate) struct DoctorReport {
    pub(crate) version: u32,
    /// Whether there is no error.
    pub(crate) success: bool,
    /// Whether a daemon answered.
    pub(crate) daemon: bool,
    pub(crate) errors: usize,
    pub(crate) warnings: usize,
    pub(crate) duration_ms: u64,
    /// In the order of their ids; one that found several things has a row for each.
    pub(crate) checks: Vec<CheckRow>,
}

/// A kind of finding that was looked for.
#[derive(Debug, Serialize)]
pub(crate) struct CheckRow {
    pub(crate) id: &'static str,
    /// What is wrong, or what is so when nothing is.
    pub(crate) title: &'static str,
    pub(crate) status: CheckStatus,
    /// Of what was found.
    pub(crate) severity: Option<&'static str>,
    /// What was found, or why it was not looked for.
    pub(crate) detail: Option<String>,
    /// What follows from it.
    pub(crate) meaning: Option<&'static str>,
    /// What to do.
    pub(crate) hint: Option<String>,
    /// The section of the page that explains it.
    pub(crate) anchor: String,
    pub(crate) duration_ms: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum CheckStatus {
    Ok,
    Warning,
    Error,
    /// It cannot be looked for here.
    Skipped,
    /// It ran out of time.
    Late,
}

impl DoctorReport {
    pub(super) fn new(done: Vec<Done>, daemon: bool, took: Duration) -> Self {
        let mut checks: Vec<CheckRow> = done.into_iter().flat_map(rows).collect();
        checks.sort_by_key(|row| row.id);
        let count = |wanted: &[CheckStatus]| {
            checks.iter().filter(|row| wanted.contains(&row.status)).count()
        };
        let errors = count(&[CheckStatus::Error]);
        // What could not be found out in time may well be wrong.
        let warnings = count(&[CheckStatus::Warning, CheckStatus::Late]);
        let (success, duration_ms) = (errors == 0, in_ms(took));
        Self { version: VERSION, success, daemon, errors, warnings, duration_ms, checks }
    }
}

fn rows(done: Done) -> Vec<CheckRow> {
    let Done { kinds, outcome, took } = done;
    let found = match &outcome {
        Outcome::Looked(found) => found.as_slice(),
        Outcome::Skipped(_) | Outcome::Late(_) => &[],
    };
    let mut rows: Vec<CheckRow> = found.iter().map(|it| of_finding(it, took)).collect();
    for kind in kinds.into_iter().filter(|kind| found.iter().all(|it| it.kind != *kind)) {
        let (status, detail) = match &outcome {
            Outcome::Looked(_) => (CheckStatus::Ok, None),
            Outcome::Skipped(why) => (CheckStatus::Skipped, Some(why.clone())),
            Outcome::Late(limit) => {
                (CheckStatus::Late, Some(format!("not finished within {limit:.1?}")))
            }
        };
        rows.push(CheckRow { status, detail, ..healthy(kind, took) });
    }
    rows
}

fn healthy(kind: &'static Kind, took: Duration) -> CheckRow {
    CheckRow {
        id: kind.id,
        title: kind.healthy,
        status: CheckStatus::Ok,
        severity: None,
        detail: None,
        meaning: None,
        hint: None,
        anchor: kind.anchor(),
        duration_ms: in_ms(took),
    }
}

fn of_finding(it: &Finding, took: Duration) -> CheckRow {
    let status = match it.severity {
        Severity::Warning => CheckStatus::Warning,
        Severity::Error => CheckStatus::Error,
    };
    CheckRow {
        title: it.kind.title,
        status,
        severity: Some(it.severity.word()),
        detail: Some(it.detail.clone()),
        meaning: Some(it.kind.meaning),
        hint: Some(it.remedy.clone().into_owned()),
        ..healthy(it.kind, took)
    }
}

fn in_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
