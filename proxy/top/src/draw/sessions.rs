//! Sessions of this node's clients over the last minutes, with route changes on the same axis.

use meshport_core::units::{age, bytes, counted};
use meshport_daemon::admin::stats::StatsKind;
use meshport_daemon::admin::view::View;
use ratatui::text::{Line, Span};

use super::{Canvas, Words};
use crate::look::{Look, Tone, ms};
use crate::model::Model;
use crate::series::{Column, Series, series};

/// Columns of the names and values before the bars, and the same if room is short.
const LABELS: usize = 26;
const SHORT_LABELS: usize = 20;
/// Width from which there is room for the longer ones.
const ROOMY: usize = 64;
/// Columns after the bars, for the highest value.
const SCALE: usize = 11;

struct Chart {
    name: &'static str,
    of: fn(&Column) -> f64,
    /// A scale never ends below this.
    least: f64,
    unit: fn(f64) -> String,
    /// Whether a second without clients has no value.
    is_sparse: bool,
    /// Whether columns in which clients found no origin are marked.
    has_failures: bool,
}

const CHARTS: [Chart; 4] = [
    Chart {
        name: "open",
        of: |it| it.open as f64,
        least: 4.0,
        unit: |it| format!("{it:.0}"),
        is_sparse: false,
        has_failures: false,
    },
    Chart {
        name: "wait",
        of: |it| it.wait_us,
        least: 1000.0,
        unit: |it| ms(it / 1000.0),
        is_sparse: true,
        has_failures: false,
    },
    Chart {
        name: "traffic",
        of: |it| it.bytes,
        least: 1024.0,
        unit: |it| format!("{}/s", bytes(it as u64)),
        is_sparse: false,
        has_failures: false,
    },
    Chart {
        name: "connects",
        of: |it| it.connected,
        least: 1.0,
        unit: |it| if it < 9.95 { format!("{it:.1}/s") } else { format!("{it:.0}/s") },
        is_sparse: false,
        has_failures: true,
    },
];

pub(super) fn panel(canvas: &mut Canvas<'_>, view: &View, model: &Model) {
    page(canvas, view, model);
}

pub(super) fn page(canvas: &mut Canvas<'_>, view: &View, model: &Model) -> usize {
    let look = canvas.look;
    let labels = labels(canvas.width());
    let bars = canvas.width().saturating_sub(labels + SCALE).max(10);
    let data = series(view, bars);
    canvas.title("Sessions", &format!("of this node's clients, last {}", age(data.span_s)));
    let has_room = canvas.height() >= 8;
    let mut row = 1;
    if has_room {
        canvas.line(row, &totals(view, model, look));
        row += 1;
    }
    let below = if has_room { 2 } else { 0 };
    let rows = (canvas.height().saturating_sub(row + below) / CHARTS.len()).clamp(1, 6);
    for chart in &CHARTS {
        // A row between charts where they are higher than one.
        let height = if rows > 1 { rows - 1 } else { 1 };
        for (at, line) in draw_chart(chart, &data, labels, height, look).into_iter().enumerate() {
            canvas.line(row + at, &line);
        }
        row += rows;
    }
    if has_room {
        axis(canvas, &data, row);
        let row = lines(canvas, view, model, row + 3);
        let row = exposed(canvas, view, row);
        addresses(canvas, view, row);
    }
    0
}

fn totals(view: &View, model: &Model, look: Look) -> Line<'static> {
    let Some(service) = view.services.get(model.service) else { return Line::default() };
    let counts = &service.sessions;
    let failed = if counts.failed > 0 { Tone::Bad } else { Tone::Soft };
    Words::new(look)
        .add(&counted(counts.open, "session"), Tone::Strong)
        .add(" open", Tone::Plain)
        .then(&format!("{} since start", counts.total), Tone::Plain)
        .then(&format!("{} found no origin", counts.failed), failed)
        .line()
}

/// Rows from the top, the name and the current value in the lowest.
fn draw_chart(
    chart: &Chart,
    data: &Series,
    labels: usize,
    height: usize,
    look: Look,
) -> Vec<Line<'static>> {
    let highest = data.columns.iter().map(chart.of).fold(chart.least, f64::max);
    let most = ceiling(highest);
    (0..height)
        .map(|row| {
            let is_lowest = row + 1 == height;
            let label = if is_lowest { label(chart, data, labels) } else { String::new() };
            let mut spans = vec![look.text(&format!("{label:<labels$}"), Tone::Plain)];
            let below = height - 1 - row;
            spans.extend(data.columns.iter().map(|it| bar(chart, it, most, below, height, look)));
            if row == 0 {
                spans.push(look.text(&format!(" {}", (chart.unit)(most)), Tone::Soft));
            }
            Line::from(spans)
        })
        .collect()
}

fn labels(width: usize) -> usize {
    if width >= ROOMY { LABELS } else { SHORT_LABELS }
}

fn label(chart: &Chart, data: &Series, labels: usize) -> String {
    let is_quiet = chart.is_sparse && data.last.connected == 0.0;
    let value = if is_quiet { "-".to_owned() } else { (chart.unit)((chart.of)(&data.last)) };
    let room = labels.saturating_sub(chart.name.len() + 2);
    format!("{}{value:>room$}", chart.name)
}

/// The part of a column's bar that is in the row with this many rows below it.
fn bar(
    chart: &Chart,
    column: &Column,
    most: f64,
    below: usize,
    height: usize,
    look: Look,
) -> Span<'static> {
    let eighths = (chart.of)(column) / most * (height * 8) as f64;
    // Any value above zero is visible.
    let least = if (chart.of)(column) > 0.0 { 1 } else { 0 };
    let eighths = (eighths.round() as usize).max(least).saturating_sub(below * 8);
    let is_failed = chart.has_failures && column.failed > 0;
    if is_failed && below == 0 && eighths < 2 {
        return Span::styled(look.bar(2), look.style(Tone::Bad));
    }
    let tone = if is_failed { Tone::Bad } else { Tone::Bar };
    Span::styled(look.bar(eighths), look.style(tone))
}

/// Marks of route changes, and how long ago they were.
fn axis(canvas: &mut Canvas<'_>, data: &Series, row: usize) {
    let (look, labels) = (canvas.look, labels(canvas.width()));
    let moved = data.columns.iter().any(|it| it.moved);
    let name = if moved { "route changes" } else { "no route change" };
    let mut marks = vec![look.text(&format!("{name:<labels$}"), Tone::Soft)];
    marks.extend(data.columns.iter().map(|it| {
        Span::styled(if it.moved { look.moment() } else { " " }, look.style(Tone::Warn))
    }));
    canvas.line(row, &Line::from(marks));
    let width = data.columns.len();
    let ago = format!("{} ago", age(data.span_s));
    let half = format!("{} ago", age(data.span_s / 2));
    let gap = (width / 2).saturating_sub(ago.len()) + 1;
    // The middle is named where there is room for it.
    let half = if gap + half.len() + 6 > width / 2 { String::new() } else { half };
    let rest = width.saturating_sub(ago.len() + gap + half.len() + 3);
    let text = format!("{:labels$}{ago}{:gap$}{half}{:rest$}now", "", "", "");
    canvas.line(row + 1, &Line::from(look.text(&text, Tone::Soft)));
}

/// The targets of open sessions; returns the first row below.
fn lines(canvas: &mut Canvas<'_>, view: &View, model: &Model, row: usize) -> usize {
    let look = canvas.look;
    let Some(service) = view.services.get(model.service) else { return row };
    if service.lines.is_empty() || row + 1 >= canvas.height() {
        return row;
    }
    canvas.line(row, &look.rule("Open sessions", "by where they go", canvas.width()));
    for (at, line) in service.lines.iter().enumerate() {
        let relay = line.who.relay.as_ref().map_or_else(String::new, |it| format!(" through {it}"));
        let target =
            format!("{:>8}  {} in {}{relay}", line.open, line.who.name, line.who.site_or_dash());
        canvas.line(row + 1 + at, &Line::from(look.text(&target, Tone::Plain)));
    }
    row + service.lines.len() + 2
}

/// Counters of the listeners for clients outside the mesh; the row below.
fn exposed(canvas: &mut Canvas<'_>, view: &View, row: usize) -> usize {
    let look = canvas.look;
    let listeners = || view.stats.iter().filter(|it| it.kind == StatsKind::Listener);
    if listeners().next().is_none() || row + 1 >= canvas.height() {
        return row;
    }
    canvas.line(row, &look.rule("Exposed listeners", "since the start", canvas.width()));
    for (at, it) in listeners().enumerate() {
        let tone = if it.errors > 0 { Tone::Warn } else { Tone::Plain };
        let counts = format!(
            "{:>8}  {}: {} in all, {} refused or without an origin, {} to clients",
            it.sessions_open,
            it.name,
            it.sessions_total,
            it.errors,
            bytes(it.bytes_down)
        );
        canvas.line(row + 1 + at, &Line::from(look.text(&counts, tone)));
    }
    row + listeners().count() + 2
}

/// The holders of the virtual addresses.
fn addresses(canvas: &mut Canvas<'_>, view: &View, row: usize) {
    let look = canvas.look;
    if view.addresses.is_empty() || row + 1 >= canvas.height() {
        return;
    }
    canvas.line(row, &look.rule("Virtual addresses", "as their holders say", canvas.width()));
    for (at, it) in view.addresses.iter().enumerate() {
        let tone = match (&it.holder, &it.obstacle) {
            (None, _) => Tone::Bad,
            (Some(_), Some(_)) => Tone::Warn,
            (Some(_), None) => Tone::Plain,
        };
        let passed = age(view.now_s.saturating_sub(it.since_at_s));
        let holder = it.holder.as_deref().unwrap_or("no holder");
        let why = it.obstacle.as_ref().map_or_else(String::new, |why| format!(": {why}"));
        let (name, address, own) = (&it.name, it.address, &it.state);
        let line = format!("{name} {address}: {holder} for {passed}; this node {own}{why}");
        canvas.line(row + 1 + at, &Line::from(look.text(&line, tone)));
    }
}

/// A round number not below the value.
fn ceiling(value: f64) -> f64 {
    if value <= 0.0 {
        return 1.0;
    }
    let step = 10_f64.powf(value.log10().floor());
    let steps = [1.0, 2.0, 3.0, 5.0, 10.0].map(|it| it * step);
    steps.into_iter().find(|it| *it >= value).unwrap_or(value)
}
