//! `meshport doctor`: the checks, and the remedies for the findings.

use std::time::Duration;

use super::style::{Style, Tone};
use super::table::{toned, wrapped};
use crate::cli::doctor::report::{CheckRow, CheckStatus, DoctorReport};
use meshport_core::findings::{Kind, Severity};
use meshport_core::units::{clean, counted};

/// Columns of the longest status.
const STATUS: usize = 7;
/// Column of a finding's details: after status and id.
const INDENT: usize = 2 + STATUS + 2;

/// A block per part of the list, and a summary line.
pub(crate) fn doctor(report: &DoctorReport, style: impl Into<Style>) -> String {
    let style = style.into();
    let mut text = String::new();
    let digit = |row: &CheckRow| row.id.chars().nth(2).unwrap_or_default();
    for (digits, title) in
        [('0'..='1', "This machine"), ('2'..='2', "Mesh"), ('3'..='9', "Services and Kubernetes")]
    {
        let part = || report.checks.iter().filter(|row| digits.contains(&digit(row)));
        text.push_str(title);
        text.push('\n');
        for row in part().filter(|row| row.status != CheckStatus::Skipped) {
            text.push_str(&check(row, style));
        }
        text.push_str(&skipped(part(), style));
        text.push('\n');
    }
    text + &summary(report, style)
}

/// A line for each finding, and a summary.
pub(crate) fn doctor_short(report: &DoctorReport, style: impl Into<Style>) -> String {
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
pub(crate) fn explain_finding(kind: &Kind, style: impl Into<Style>) -> String {
    let style = style.into();
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
    let title = wrapped(&format!("{}  {}", row.id, row.title), INDENT, style);
    let padded = format!("{word:STATUS$}");
    let title = title.get(INDENT..).unwrap_or_default();
    let mut text = format!("  {}  {title}", style.paint(&padded, tone));
    let see = row.hint.as_ref().map(|_| format!("see {}", row.anchor));
    let hint = row.hint.as_ref().map(|hint| format!("-> {hint}."));
    let meaning = row.meaning.map(|it| format!("{it}."));
    for part in [row.detail.clone(), meaning, hint, see].into_iter().flatten() {
        text.push_str(&wrapped(&part, INDENT + 2, style));
    }
    text
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

/// A line for each reason, with the ids that it kept from being checked.
fn skipped<'a>(rows: impl Iterator<Item = &'a CheckRow>, style: Style) -> String {
    let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
    for row in rows.filter(|row| row.status == CheckStatus::Skipped) {
        let why = row.detail.as_deref().unwrap_or_default();
        match reasons.iter_mut().find(|(known, _)| *known == why) {
            Some((_, ids)) => ids.push(&row.id),
            None => reasons.push((why, vec![&row.id])),
        }
    }
    let line = |(why, ids): &(&str, Vec<&str>)| {
        let text = wrapped(&format!("{}: {why}", ids.join(" ")), INDENT, style);
        format!("  {:STATUS$}  {}", "skipped", text.get(INDENT..).unwrap_or_default())
    };
    reasons.iter().map(line).collect()
}

fn summary(report: &DoctorReport, style: Style) -> String {
    let count = |wanted| report.checks.iter().filter(|row| row.status == wanted).count();
    let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    let tone = match (report.errors, report.warnings) {
        (0, 0) => Tone::Plain,
        (0, _) => Tone::Warn,
        _ => Tone::Bad,
    };
    let found = format!(
        "{}, {}",
        counted(number(report.errors), "error"),
        counted(number(report.warnings), "warning")
    );
    let (ok, skipped) = (count(CheckStatus::Ok), count(CheckStatus::Skipped));
    let seconds = Duration::from_millis(report.duration_ms).as_secs_f64();
    let rest = format!("; {ok} ok, {skipped} skipped, in {seconds:.1} s\n");
    style.paint(&found, tone) + &rest
}
