//! The results of the checks, as data. The rules of the daemon's answers apply: fields are only
//! added, and names of times end with the unit.

use std::borrow::Cow;
use std::time::Duration;

use meshport_core::findings::{Finding, Kind, PAGE, Severity, by_id};
use meshport_daemon::admin::api::{FindingRow, ReachStatus};
use meshport_daemon::admin::inquire::MemberAnswer;
use serde::Serialize;

/// The value of [`DoctorReport::version`].
const VERSION: u32 = 1;

/// Why a check was skipped, as shown to the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Skip(pub(super) String);

impl<T: Into<String>> From<T> for Skip {
    fn from(why: T) -> Self {
        Self(why.into())
    }
}

/// The result of a check.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) kinds: Vec<&'static Kind>,
    pub(super) outcome: Outcome,
    pub(super) took: Duration,
}

#[derive(Debug)]
pub(super) enum Outcome {
    Looked(Vec<Finding>),
    Skipped(Skip),
    /// It exceeded this limit.
    Late(Duration),
}

/// The results of all checks.
#[derive(Debug, Serialize)]
pub(crate) struct DoctorReport {
    /// Increases when a field changes its meaning.
    pub(crate) version: u32,
    /// Whether there is no error.
    pub(crate) success: bool,
    /// Whether a daemon answered.
    pub(crate) daemon: bool,
    /// Number of errors.
    pub(crate) errors: usize,
    /// Number of warnings and of checks that timed out.
    pub(crate) warnings: usize,
    /// Time for all checks together.
    pub(crate) duration_ms: u64,
    /// How members see this node; absent without a daemon.
    pub(crate) reach: Option<ReachStatus>,
    /// In order of id, with one row per finding.
    pub(crate) checks: Vec<CheckRow>,
    /// The answers of members to the daemon.
    pub(crate) members: Vec<MemberAnswer>,
}

/// The result for one kind of finding.
#[derive(Debug, Serialize)]
pub(crate) struct CheckRow {
    /// The id of the finding, `MP203`; it keeps its meaning.
    pub(crate) id: Cow<'static, str>,
    /// The problem, or the text for a check that found none.
    pub(crate) title: &'static str,
    /// The result.
    pub(crate) status: CheckStatus,
    /// `error` or `warning`; absent without a finding.
    pub(crate) severity: Option<&'static str>,
    /// The details, or why the check was skipped.
    pub(crate) detail: Option<String>,
    /// Its consequences.
    pub(crate) meaning: Option<&'static str>,
    /// The remedy.
    pub(crate) hint: Option<String>,
    /// The section of the page that explains it.
    pub(crate) anchor: String,
    /// Duration of the check, which may cover several findings.
    pub(crate) duration_ms: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum CheckStatus {
    Ok,
    Warning,
    Error,
    /// It cannot be checked here.
    Skipped,
    /// It timed out.
    Late,
}

impl DoctorReport {
    /// Adds the daemon's findings, if one answers: a newer daemon may report kinds that this
    /// program does not know.
    pub(super) fn new(done: Vec<Done>, reported: Option<&[FindingRow]>, took: Duration) -> Self {
        let mut checks: Vec<CheckRow> = done.into_iter().flat_map(rows).collect();
        let (daemon, reported) = (reported.is_some(), reported.unwrap_or_default());
        checks.extend(reported.iter().filter(|row| by_id(&row.id).is_none()).map(of_a_newer));
        checks.sort_by(|a, b| a.id.cmp(&b.id));
        let count = |wanted: &[CheckStatus]| {
            checks.iter().filter(|row| wanted.contains(&row.status)).count()
        };
        let errors = count(&[CheckStatus::Error]);
        // A check that did not finish in time may hide a problem.
        let warnings = count(&[CheckStatus::Warning, CheckStatus::Late]);
        Self {
            version: VERSION,
            success: errors == 0,
            daemon,
            errors,
            warnings,
            duration_ms: in_ms(took),
            reach: None,
            checks,
            members: Vec::new(),
        }
    }

    /// Adds how members see this node, and their answers.
    #[must_use]
    pub(super) fn with(self, reach: Option<&ReachStatus>, members: &[MemberAnswer]) -> Self {
        Self { reach: reach.cloned(), members: members.to_vec(), ..self }
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
            Outcome::Skipped(Skip(why)) => (CheckStatus::Skipped, Some(why.clone())),
            Outcome::Late(limit) => {
                let seconds = limit.as_secs_f64();
                (CheckStatus::Late, Some(format!("not finished within {seconds:.1} s")))
            }
        };
        rows.push(CheckRow { status, detail, ..healthy(kind, took) });
    }
    rows
}

fn healthy(kind: &'static Kind, took: Duration) -> CheckRow {
    CheckRow {
        id: kind.id.into(),
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

/// The row for a finding that only a newer daemon knows.
fn of_a_newer(row: &FindingRow) -> CheckRow {
    let (status, severity) = match row.is_error {
        true => (CheckStatus::Error, Severity::Error),
        false => (CheckStatus::Warning, Severity::Warning),
    };
    CheckRow {
        id: row.id.clone().into(),
        title: "reported by the daemon; this program does not know it",
        status,
        severity: Some(severity.word()),
        detail: Some(row.detail.clone()),
        meaning: None,
        hint: Some(row.remedy.clone()),
        anchor: PAGE.into(),
        duration_ms: 0,
    }
}

fn in_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
