//! The tables: one per fault and run, and the verdict at the end.

use crate::bars::Verdict;
use crate::score::Row;

/// The columns of a fault's table.
const HEADINGS: [&str; 13] = [
    "balancer",
    "failed",
    "last at s",
    "p50 ms",
    "worst ms",
    "until s",
    "victim's cut",
    "by s",
    "others' cut",
    "dark s",
    "back s",
    "home s",
    "after heal: failed/cut",
];

/// Explains the columns; printed once.
pub(crate) const LEGEND: &str = "\
failed, last at: new connections that failed, and when the last of them began
p50, worst: time to the first byte of an answer, before the fault and the longest since
until: when the last new connection began that failed or was over 100 ms slower than before
victim's cut, by: held connections to the victim that ended before healing, and the last's time
others' cut: held connections to others that ended before healing
dark: the longest time for which a client of the victim's held connections heard nothing
back, home: from healing to the first new connection there, and to where all go there
Times are since the fault or, for back and home, since healing; \"-\" is never.";

/// The table of one fault in one run.
pub(crate) fn of_fault(rows: &[Row]) -> String {
    let mut lines = vec![HEADINGS.map(str::to_owned).to_vec()];
    lines.extend(rows.iter().map(|row| {
        vec![
            row.balancer.clone(),
            format!("{}/{}", row.connects.failed, row.connects.attempts),
            decimals(row.connects.last_failure_s, 1),
            decimals(row.connects.p50_before_ms, 1),
            decimals(row.connects.worst_connect_ms, 0),
            decimals(row.connects.disturbed_until_s, 1),
            format!("{}/{}", row.held.victim_held_ended, row.held.victim_held),
            decimals(row.held.victim_held_cut_s, 1),
            format!("{}/{}", row.held.healthy_held_cut, row.held.healthy_held),
            decimals(row.held.held_dark_s, 1),
            decimals(row.rotation.back_in_use_s, 1),
            decimals(row.rotation.home_s, 1),
            format!("{}/{}", row.connects.failed_after_heal, row.held.cut_after_heal),
        ]
    }));
    align(&lines)
}

/// The verdict over all runs.
pub(crate) fn of_verdicts(verdicts: &[Verdict]) -> String {
    let headings = ["fault", "bar", "limit", "median", "worst", "best rival", "", "met", "rival"];
    let mut lines = vec![headings.map(str::to_owned).to_vec()];
    lines.extend(verdicts.iter().map(|verdict| {
        let (name, value) = verdict
            .rival
            .map_or(("-", "-".to_owned()), |(name, value)| (name, verdict.show(value)));
        vec![
            verdict.bar.fault.to_owned(),
            verdict.bar.what.to_owned(),
            verdict.show(verdict.bar.limit),
            verdict.show(verdict.median),
            verdict.show(verdict.worst),
            value,
            name.to_owned(),
            if verdict.met() { "yes" } else { "NO" }.to_owned(),
            verdict.against_rival().to_owned(),
        ]
    }));
    align(&lines)
}

fn decimals(value: Option<f64>, places: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.places$}"))
}

/// Columns of equal width; the first two with words, left-aligned, the others with figures,
/// right-aligned.
fn align(lines: &[Vec<String>]) -> String {
    let count = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        lines.iter().filter_map(|line| line.get(column)).map(|it| it.chars().count()).max()
    };
    let widths: Vec<usize> = (0..count).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for line in lines {
        let cells = line.iter().zip(&widths).map(|(cell, width)| {
            let figure = cell.starts_with(|c: char| c.is_ascii_digit() || c == '-');
            if figure { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        let joined = cells.collect::<Vec<_>>().join("  ");
        text.push_str(joined.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_under_each_other() {
        let lines = [["a", "count"], ["longer", "7"]].map(|line| line.map(str::to_owned).to_vec());
        assert_eq!(align(&lines), "a       count\nlonger      7\n");
    }

    #[test]
    fn what_never_came_is_a_dash() {
        let table = of_fault(&[Row { balancer: "x".to_owned(), ..Row::default() }]);
        assert!(table.lines().nth(1).is_some_and(|line| line.contains('-')), "{table}");
    }
}
