//! `meshport doctor`: the checks, and the remedies for the findings.

use std::time::Duration;

use super::report::{CheckRow, CheckStatus, DoctorReport};
use crate::cli::render::{Style, Tone, toned, wrapped};
use meshport_core::findings::{Kind, Severity};
use meshport_core::units::{clean, counted};
use meshport_daemon::admin::api::ReachStatus;

/// Columns of the longest status.
const STATUS: usize = 7;
/// Column of a finding's id: after the status.
const INDENT: usize = 2 + STATUS + 2;
/// Maximum line width: longer lines are hard to read.
const MAX_WIDTH: usize = 100;

/// A block per part of the list, findings first, and a summary line.
pub(in crate::cli) fn full(report: &DoctorReport, style: impl Into<Style>) -> String {
    let style = readable(style.into());
    let mut text = String::new();
    let digit = |row: &CheckRow| row.id.chars().nth(2).unwrap_or_default();
    let machine = report.reach.as_ref().map(|reach| labelled("NAT", &nat(reach), style));
    for (digits, title, end) in [
        ('0'..='1', "This machine", machine),
        ('2'..='2', "Mesh", None),
        ('3'..='9', "Services and Kubernetes", None),
    ] {
        let part: Vec<&CheckRow> =
            report.checks.iter().filter(|row| digits.contains(&digit(row))).collect();
        text.push_str(title);
        text.push('\n');
        for status in [CheckStatus::Error, CheckStatus::Warning, CheckStatus::Late, CheckStatus::Ok]
        {
            for row in part.iter().filter(|row| row.status == status) {
                text.push_str(&check(row, style));
            }
        }
        text.push_str(&skipped(&part, style));
        text.push_str(&end.unwrap_or_default());
        text.push('\n');
    }
    text + &summary(report, style)
}

/// The style with lines of at most [`MAX_WIDTH`].
fn readable(style: Style) -> Style {
    Style { width: style.width.map(|width| width.min(MAX_WIDTH)), ..style }
}

/// A line for each finding, and a summary.
pub(super) fn short(report: &DoctorReport, style: impl Into<Style>) -> String {
    let style = style.into();
    let line = |row: &CheckRow| {
        let (word, tone) = word(row.status);
        let detail = clean(row.detail.as_deref().unwrap_or(row.title));
        format!("{} {} {detail}\n", style.paint(word, tone), row.id)
    };
    let bad = report.checks.iter().filter(|row| {
        matches!(row.status, CheckStatus::Warning | CheckStatus::Error | CheckStatus::Late)
    });
    bad.map(line).collect::<String>() + &summary(report, style)
}

/// An entry of the list.
pub(super) fn explained(kind: &Kind, style: impl Into<Style>) -> String {
    let style = readable(style.into());
    let tone = if kind.severity == Severity::Error { Tone::Bad } else { Tone::Warn };
    let title = format!("{} ({}): {}", kind.id, kind.severity.word(), kind.title);
    let mut text = toned(&title, tone, 0, style);
    for part in [kind.meaning, kind.remedy] {
        text.push_str(&wrapped(&format!("{part}."), 2, style));
    }
    text + &wrapped(&format!("see {}", kind.anchor()), 2, style)
}

fn check(row: &CheckRow, style: Style) -> String {
    let (word, tone) = word(row.status);
    let title = match row.status {
        CheckStatus::Late => format!("{} unknown: {}", row.id, row.title),
        _ => format!("{} {}", row.id, row.title),
    };
    let mark = Mark { word, tone, column: 2, columns: STATUS + 2 };
    let mut text = mark.before(&title, style);
    for part in [row.detail.clone(), row.meaning.map(|it| format!("{it}."))].into_iter().flatten() {
        text.push_str(&wrapped(&part, INDENT + 2, style));
    }
    if let Some(hint) = &row.hint {
        let arrow = Mark { word: "->", tone: Tone::Plain, column: INDENT + 2, columns: 3 };
        text.push_str(&arrow.before(&format!("{hint}."), style));
        text.push_str(&wrapped(&format!("see {}", row.anchor), INDENT + 2, style));
    }
    text
}

/// A label before a text that is indented past it.
struct Mark {
    word: &'static str,
    tone: Tone,
    /// The label's column.
    column: usize,
    /// Columns from the label to the text.
    columns: usize,
}

impl Mark {
    fn before(&self, text: &str, style: Style) -> String {
        let Self { word, tone, column, columns } = self;
        let lines = wrapped(text, column + columns, style);
        let first = lines.get(column + columns..).unwrap_or_default();
        let gap = columns.saturating_sub(word.len());
        format!("{:column$}{}{:gap$}{first}", "", style.paint(word, *tone), "")
    }
}

fn word(status: CheckStatus) -> (&'static str, Tone) {
    match status {
        CheckStatus::Ok => ("ok", Tone::Plain),
        CheckStatus::Warning => ("warning", Tone::Warn),
        CheckStatus::Error => ("error", Tone::Bad),
        CheckStatus::Skipped => ("skipped", Tone::Plain),
        CheckStatus::Late => ("late", Tone::Warn),
    }
}

/// A line for each reason, with the ids of the checks skipped for it.
fn skipped(rows: &[&CheckRow], style: Style) -> String {
    let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
    for row in rows.iter().filter(|row| row.status == CheckStatus::Skipped) {
        let why = row.detail.as_deref().unwrap_or_default();
        match reasons.iter_mut().find(|(known, _)| *known == why) {
            Some((_, ids)) => ids.push(&row.id),
            None => reasons.push((why, vec![&row.id])),
        }
    }
    let line = |(why, ids): &(&str, Vec<&str>)| {
        labelled("skipped", &format!("{}: {why}", ids.join(" ")), style)
    };
    reasons.iter().map(line).collect()
}

/// A text with a label in the status column.
fn labelled(word: &'static str, text: &str, style: Style) -> String {
    Mark { word, tone: Tone::Plain, column: 2, columns: STATUS + 2 }.before(text, style)
}

/// The NAT in front of this node and the addresses at which members see it.
fn nat(reach: &ReachStatus) -> String {
    let ReachStatus { nat, seen_at } = reach;
    let at: Vec<String> = seen_at.iter().map(ToString::to_string).collect();
    let at = if at.is_empty() { "no address".into() } else { at.join(", ") };
    match nat.as_str() {
        "none" => format!("none: members see this machine's own address {at}"),
        "endpoint-independent" => format!("endpoint-independent: all members see {at}"),
        "endpoint-dependent" => {
            format!("endpoint-dependent: each member sees another address ({at})")
        }
        "one-report" => {
            format!("unknown kind: only one member sees this node, at {at}")
        }
        "advertised" => {
            format!("not examined, because `advertise` under [mesh] is set; members see {at}")
        }
        "unknown" => "unknown: no member has reported the address of this node".into(),
        other => format!("{other}: members see {at}"),
    }
}

/// The counts, with the ids of the findings, which may have scrolled out of view.
fn summary(report: &DoctorReport, style: Style) -> String {
    let count = |wanted| report.checks.iter().filter(|row| row.status == wanted).count();
    let found = |total: usize, what: &str, wanted: &[CheckStatus]| {
        let rows = report.checks.iter().filter(|row| wanted.contains(&row.status));
        let mut ids: Vec<&str> = rows.map(|row| &*row.id).collect();
        ids.dedup();
        let counted = counted(u64::try_from(total).unwrap_or(u64::MAX), what);
        if ids.is_empty() { counted } else { format!("{counted} ({})", ids.join(" ")) }
    };
    let errors = found(report.errors, "error", &[CheckStatus::Error]);
    let warnings = found(report.warnings, "warning", &[CheckStatus::Warning, CheckStatus::Late]);
    let tone = match (report.errors, report.warnings) {
        (0, 0) => Tone::Plain,
        (0, _) => Tone::Warn,
        _ => Tone::Bad,
    };
    let (ok, skipped) = (count(CheckStatus::Ok), count(CheckStatus::Skipped));
    let seconds = Duration::from_millis(report.duration_ms).as_secs_f64();
    let rest = format!("{ok} ok, {skipped} skipped, in {seconds:.1} s");
    toned(&format!("{errors}, {warnings}"), tone, 0, style) + &wrapped(&rest, 0, style)
}
