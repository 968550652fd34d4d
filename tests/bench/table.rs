//! The table of one MTU: a block per workload, a line per contender, medians of the rounds and how
//! many times better or worse meshport is.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::contenders::ALL;
use crate::load::Work;
use crate::row::{Row, median};

/// How a column is computed and shown.
struct Column {
    name: &'static str,
    value: fn(&Row) -> Option<f64>,
    places: usize,
}

const BULK: [Column; 4] = [
    Column { name: "MB/s", value: |row| row.mb_per_s, places: 0 },
    Column { name: "CPU-s/GiB", value: |row| row.cpu_s_per_gib, places: 2 },
    Column { name: "fairness", value: |row| row.fairness, places: 2 },
    Column { name: "RSS MiB", value: |row| Some(row.rss_mib), places: 0 },
];
const SMALL: [Column; 4] = [
    Column { name: "p50 us", value: |row| row.p50_us.map(whole), places: 0 },
    Column { name: "p99 us", value: |row| row.p99_us.map(whole), places: 0 },
    Column { name: "per s", value: |row| row.per_s, places: 0 },
    Column { name: "CPU us each", value: |row| row.cpu_us_each, places: 0 },
];
const IDLE: [Column; 2] = [
    Column { name: "KiB a session", value: |row| row.kib_per_session, places: 1 },
    Column { name: "RSS MiB", value: |row| Some(row.rss_mib), places: 0 },
];

#[expect(clippy::cast_precision_loss, reason = "microseconds of one exchange")]
fn whole(value: u64) -> f64 {
    value as f64
}

fn columns(work: Work) -> &'static [Column] {
    match work {
        Work::Upload | Work::Download => &BULK,
        Work::Idle => &IDLE,
        _ => &SMALL,
    }
}

fn title(work: Work, connections: usize) -> String {
    let many = match connections {
        1 => "1 connection".to_owned(),
        more => format!("{more} connections"),
    };
    match work {
        Work::Upload => format!("upload, {many}"),
        Work::Download => format!("download, {many}"),
        Work::Request => format!("small request and answer, {many}"),
        Work::RequestBesideBulk => "small request beside 8 saturating downloads".to_owned(),
        Work::FirstByte => "new connection to its first byte".to_owned(),
        Work::FirstBytePlain => "the same, not beginning as TLS does".to_owned(),
        Work::Connect => "new connections, 8 clients".to_owned(),
        Work::List => "answers of a given length".to_owned(),
        Work::Idle => format!("{connections} idle sessions"),
    }
}

/// The table of one MTU.
pub(crate) fn of(rows: &[Row], mtu: u32) -> String {
    let mut text = format!("\nMTU {mtu}; medians, in brackets each figure over meshport's\n");
    let mut seen = BTreeSet::new();
    for row in rows.iter().filter(|row| row.case.mtu == mtu) {
        let title = title(row.case.workload, row.case.connections);
        if seen.insert(title.clone()) {
            block(&mut text, rows, row, &title);
        }
    }
    text
}

fn block(text: &mut String, rows: &[Row], kind: &Row, title: &str) {
    let columns = columns(kind.case.workload);
    let _ = write!(text, "\n{title:<44}");
    for column in columns {
        let _ = write!(text, "{:>22}", column.name);
    }
    text.push('\n');
    let of = |name: &'static str, column: &Column| {
        let those =
            rows.iter().filter(|row| row.kind() == kind.kind() && row.case.contender == name);
        median(those, column.value)
    };
    for contender in ALL.map(crate::Contender::name) {
        if !rows.iter().any(|row| row.kind() == kind.kind() && row.case.contender == contender) {
            continue;
        }
        let _ = write!(text, "  {contender:<42}");
        for column in columns {
            let (own, ours) = (of(contender, column), of(ALL[0].name(), column));
            let cell = match (own, ours.filter(|ours| *ours > 0.0 && contender != ALL[0].name())) {
                (None, _) => "-".to_owned(),
                (Some(own), None) => format!("{own:.*}       ", column.places),
                (Some(own), Some(ours)) => {
                    format!("{own:.*} {:>6}", column.places, format!("({:.2})", own / ours))
                }
            };
            let _ = write!(text, "{cell:>22}");
        }
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Contender;
    use crate::load::{Job, Seen};
    use crate::row::Subject;

    #[test]
    fn rivals_are_compared_with_meshport() {
        let job = Job {
            at: ([127, 0, 0, 1], 1).into(),
            work: Work::Upload,
            connections: 1,
            millis: 1000,
            bytes: 0,
        };
        let row = |contender, bytes| {
            let seen = Seen { bytes, seconds: 1.0, ..Seen::default() };
            Row::of(
                Subject { contender, mtu: 1500, round: 1 },
                job,
                &seen,
                Duration::from_secs(1),
                1024,
            )
        };
        let rows = [row(Contender::Meshport, 200_000_000), row(Contender::Haproxy, 100_000_000)];
        let text = of(&rows, 1500);
        let line = |name: &str| {
            let mut lines = text.lines();
            lines.find(|line| line.trim_start().starts_with(name)).expect("a line").to_owned()
        };
        assert!(line("meshport").contains("200"), "{text}");
        assert!(line("haproxy").contains("100 (0.50)"), "{text}");
        assert!(line("haproxy").contains("(2.00)"), "twice the processor time\n{text}");
        assert_eq!(of(&rows, 8950).lines().count(), 2, "nothing was measured there");
    }
}
