//! `meshport stats`: the counters of each listener, service and origin.

use super::style::Style;
use super::table::{Cell, Column, Table, left, right};
use meshport_core::units::{bytes, milliseconds};
use meshport_daemon::admin::stats::{COLUMNS, StatsKind, StatsRow};

const ROWS: [Column; 10] = [
    left("", 0),
    left("NAME", 0),
    left("SITE", 5),
    right("OPEN", 0),
    right("SESSIONS", 0),
    right("ERRORS", 0),
    right("UP", 2),
    right("DOWN", 1),
    right("CONNECT", 3),
    right("95 %", 4),
];

/// A table; origins are listed below their service.
pub(crate) fn stats(rows: &[StatsRow], style: impl Into<Style>) -> String {
    if rows.is_empty() {
        return "no service is used or offered here\n".into();
    }
    let mut table = Table::new(&ROWS);
    for row in rows {
        let name = match row.kind {
            StatsKind::Origin => format!("  {}", row.name),
            StatsKind::Listener | StatsKind::Service => row.name.clone(),
        };
        let time = |ms: Option<f64>| ms.map_or_else(|| "-".into(), milliseconds);
        table.row([
            Cell::from(row.kind.word()),
            name.into(),
            row.site.as_ref().map_or_else(String::new, ToString::to_string).into(),
            row.sessions_open.to_string().into(),
            row.sessions_total.to_string().into(),
            row.errors.to_string().into(),
            bytes(row.bytes_up).into(),
            bytes(row.bytes_down).into(),
            time(row.connect_mean_ms).into(),
            time(row.connect_p95_ms).into(),
        ]);
    }
    table.render(0, style.into())
}

/// CSV (RFC 4180) with a header, but with Unix line ends.
pub(crate) fn stats_csv(rows: &[StatsRow]) -> String {
    let mut text = COLUMNS.join(",");
    text.push('\n');
    for row in rows {
        let cells: Vec<String> = row.cells().iter().map(|cell| quoted(cell)).collect();
        text.push_str(&cells.join(","));
        text.push('\n');
    }
    text
}

/// A cell, in quotes if it contains a separator.
fn quoted(cell: &str) -> String {
    match cell.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(kind: StatsKind, name: &str) -> StatsRow {
        StatsRow {
            kind,
            name: name.to_owned(),
            service: None,
            site: None,
            sessions_open: 2,
            sessions_total: 40,
            errors: 1,
            bytes_up: 1_000,
            bytes_down: 2_000_000,
            connect_mean_ms: Some(1.5),
            connect_p95_ms: None,
        }
    }

    #[test]
    fn csv_has_a_header_and_a_line_for_each() {
        let rows = [row(StatsKind::Listener, "ci"), row(StatsKind::Origin, "a,\"b\"")];
        let text = stats_csv(&rows);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[0].split(',').count(), COLUMNS.len());
        assert_eq!(lines[1], "listener,ci,,,2,40,1,1000,2000000,1.5,");
        assert!(lines[2].starts_with("origin,\"a,\"\"b\"\"\","), "{}", lines[2]);
        // A column has the name of the JSON field.
        let value = serde_json::to_value(&rows[0]).expect("it has JSON");
        let fields: Vec<&String> = value.as_object().expect("an object").keys().collect();
        assert!(COLUMNS.iter().all(|name| fields.iter().any(|it| it == name)), "{fields:?}");
        assert_eq!(fields.len(), COLUMNS.len());
    }

    #[test]
    fn the_table_names_each() {
        let text =
            stats(&[row(StatsKind::Listener, "ci"), row(StatsKind::Origin, "cp-1")], Some(100));
        assert!(text.contains("listener") && text.contains("  cp-1"), "{text}");
        assert!(stats(&[], Some(100)).contains("no service"));
    }
}
