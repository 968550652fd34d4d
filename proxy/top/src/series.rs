//! The last minutes of a node's clients, one value per column of a chart.

use meshport_daemon::admin::view::{HistoryRows, View};

/// Spans that are shown, in seconds: a daemon that has just started fills the width.
const SPANS: [u64; 3] = [60, 120, 300];

/// The traffic of the seconds that one column represents.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Column {
    /// The most sessions open.
    pub(crate) open: u64,
    /// Clients connected in a second.
    pub(crate) connected: f64,
    /// Clients that found no origin in all of these seconds.
    pub(crate) failed: u64,
    /// Bytes per second, from clients and to them.
    pub(crate) bytes: f64,
    /// The mean wait for an origin, of those who connected, in microseconds.
    pub(crate) wait_us: f64,
    /// The longest of these waits.
    pub(crate) slowest_us: u64,
    /// Whether the route changed.
    pub(crate) moved: bool,
}

/// The columns of one chart.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Series {
    /// Seconds that it covers, up to now.
    pub(crate) span_s: u64,
    /// Oldest first.
    pub(crate) columns: Vec<Column>,
    /// The last second that has ended.
    pub(crate) last: Column,
}

/// The history in this many columns. Seconds before the daemon's start are empty.
pub(crate) fn series(view: &View, columns: usize) -> Series {
    let rows = &view.history;
    let shorter = SPANS.into_iter().find(|span| view.now_s <= *span);
    let span_s = shorter.unwrap_or(rows.seconds.max(1));
    let mut sums = vec![Sum::default(); columns.max(1)];
    let first = (view.now_s + 1).saturating_sub(span_s);
    // The column of a second; those before the start of the daemon are at the left.
    let place = |at_s: u64| {
        let from_left = (at_s + span_s).saturating_sub(view.now_s + 1);
        usize::try_from(from_left).unwrap_or(0) * columns.max(1)
            / usize::try_from(span_s).unwrap_or(1)
    };
    let mut next = rows.at_s.partition_point(|at| *at < first);
    let mut row = next.checked_sub(1);
    let mut last = Sum::default();
    for at_s in first..=view.now_s {
        while rows.at_s.get(next).is_some_and(|at| *at <= at_s) {
            row = Some(next);
            next += 1;
        }
        last = Sum::default();
        if let Some(row) = row {
            last.add(rows, row);
            sums[place(at_s).min(columns.max(1) - 1)].add(rows, row);
        }
    }
    for event in view.events.iter().filter(|it| it.kind == "route" && it.at_s >= first) {
        sums[place(event.at_s).min(columns.max(1) - 1)].moved = true;
    }
    Series { span_s, columns: sums.iter().map(Sum::column).collect(), last: last.column() }
}

#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    seconds: u64,
    open: u64,
    connected: u64,
    failed: u64,
    bytes: u64,
    wait_us: u64,
    slowest_us: u64,
    moved: bool,
}

impl Sum {
    fn add(&mut self, rows: &HistoryRows, row: usize) {
        let of = |column: &[u64]| column.get(row).copied().unwrap_or(0);
        let of_short = |column: &[u32]| column.get(row).copied().map_or(0, u64::from);
        let connected = of_short(&rows.connected);
        self.seconds += 1;
        self.open = self.open.max(of(&rows.open));
        self.connected += connected;
        self.failed += of_short(&rows.failed);
        let bytes = of(&rows.up_bytes).saturating_add(of(&rows.down_bytes));
        self.bytes = self.bytes.saturating_add(bytes);
        self.wait_us += of_short(&rows.connect_us).saturating_mul(connected);
        self.slowest_us = self.slowest_us.max(of_short(&rows.slowest_us));
    }

    #[expect(clippy::cast_precision_loss, reason = "a few digits are shown")]
    fn column(&self) -> Column {
        let per = |sum: u64, all: u64| if all == 0 { 0.0 } else { sum as f64 / all as f64 };
        Column {
            open: self.open,
            connected: per(self.connected, self.seconds),
            failed: self.failed,
            bytes: per(self.bytes, self.seconds),
            wait_us: per(self.wait_us, self.connected),
            slowest_us: self.slowest_us,
            moved: self.moved,
        }
    }
}
