//! The picture: a head, one page, and the keys. Pure: characters go into a buffer.

mod events;
mod head;
mod help;
mod nodes;
mod origins;
mod paths;
mod sessions;

use std::time::Instant;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use meshport_daemon::admin::view::View;

use crate::look::{Look, Tone};
use crate::model::{Model, Page};

/// Below this there is no room for anything.
const MIN_WIDTH: u16 = 40;
const MIN_HEIGHT: u16 = 10;
/// Width from which the overview has two columns.
const WIDE: u16 = 140;
/// Height from which charts have several rows.
const TALL: u16 = 34;

/// Draws everything; how many rows of the page could be scrolled off.
pub fn draw(buffer: &mut Buffer, area: Rect, model: &Model, look: Look, now: Instant) -> usize {
    if area.width < MIN_WIDTH || area.height < MIN_HEIGHT {
        let text = format!("needs {MIN_WIDTH}x{MIN_HEIGHT}");
        Canvas::new(buffer, area, look).line(0, &Line::from(look.text(&text, Tone::Plain)));
        return 0;
    }
    let (top, rest) = cut_top(area, head::height(model, area.height));
    let (body, keys) = cut_bottom(rest, 1);
    head::draw(&mut Canvas::new(buffer, top, look), model, now);
    help::keys(&mut Canvas::new(buffer, keys, look), model);
    let mut canvas = Canvas::new(buffer, body, look);
    if model.is_help {
        return help::draw(&mut canvas, model);
    }
    let Some(view) = &model.view else { return 0 };
    match model.page {
        Page::Overview => overview(&mut canvas, view, model),
        Page::Attention => head::attention(&mut canvas, view, model.scrolled),
        Page::Paths => paths::page(&mut canvas, view, model),
        Page::Origins => origins::page(&mut canvas, view, model),
        Page::Sessions => sessions::page(&mut canvas, view, model),
        Page::Events => events::page(&mut canvas, view, model.scrolled),
        Page::Nodes => nodes::page(&mut canvas, view, &model.nodes),
    }
}

/// The most important facts of all pages, as many as fit.
fn overview(canvas: &mut Canvas<'_>, view: &View, model: &Model) -> usize {
    let findings = view.findings.len().min(if canvas.area.height < TALL { 2 } else { 5 });
    if findings > 0 {
        head::findings(&mut canvas.take_top(to_rows(findings)), view, findings);
        if canvas.area.height >= TALL {
            canvas.take_top(1);
        }
    }
    if canvas.area.width >= WIDE {
        let mut side = canvas.take_right(canvas.area.width * 2 / 5);
        let charts = (side.area.height / 2).clamp(7, 22);
        sessions::panel(&mut side.take_top(charts), view, model);
        side.take_top(1);
        events::panel(&mut side, view);
        let rows = canvas.area.height;
        tables(canvas, view, model, rows / 3);
        nodes::panel(canvas, view);
        return 0;
    }
    let rows = canvas.area.height;
    tables(canvas, view, model, (rows / 4).max(5));
    let charts = if rows >= TALL { 10 } else { 5 };
    sessions::panel(&mut canvas.take_top(charts), view, model);
    if rows < TALL {
        events::panel(canvas, view);
        return 0;
    }
    canvas.take_top(1);
    events::panel(&mut canvas.take_top(rows / 5), view);
    canvas.take_top(1);
    nodes::panel(canvas, view);
    0
}

/// Origins and paths, each limited in height, with a row between if there is room.
fn tables(canvas: &mut Canvas<'_>, view: &View, model: &Model, most: u16) {
    let gap = u16::from(canvas.area.height >= 24);
    let origins = origins::rows(view, model).saturating_add(2).min(most);
    origins::panel(&mut canvas.take_top(origins), view, model);
    canvas.take_top(gap);
    let paths = to_rows(view.sites.len()).saturating_add(2).min(most);
    paths::panel(&mut canvas.take_top(paths), view, model);
    canvas.take_top(gap);
    let matrix = paths::matrix_rows(view).saturating_add(2);
    if matrix > 2 && matrix <= most && canvas.area.height >= matrix * 3 {
        paths::matrix(&mut canvas.take_top(matrix), view);
        canvas.take_top(gap);
    }
}

fn to_rows(count: usize) -> u16 {
    u16::try_from(count).unwrap_or(u16::MAX)
}

fn cut_top(area: Rect, rows: u16) -> (Rect, Rect) {
    let rows = rows.min(area.height);
    let rest = Rect { y: area.y + rows, height: area.height - rows, ..area };
    (Rect { height: rows, ..area }, rest)
}

fn cut_bottom(area: Rect, rows: u16) -> (Rect, Rect) {
    let rows = rows.min(area.height);
    let rest = Rect { height: area.height - rows, ..area };
    (rest, Rect { y: area.y + rest.height, height: rows, ..area })
}

/// A part of the screen.
struct Canvas<'a> {
    buffer: &'a mut Buffer,
    area: Rect,
    look: Look,
}

impl<'a> Canvas<'a> {
    fn new(buffer: &'a mut Buffer, area: Rect, look: Look) -> Self {
        Self { buffer, area, look }
    }

    fn width(&self) -> usize {
        self.area.width.into()
    }

    fn height(&self) -> usize {
        self.area.height.into()
    }

    /// Writes into a row of this part; rows below it are left out.
    fn line(&mut self, row: usize, line: &Line<'_>) {
        if row < self.height() {
            let y = self.area.y + to_rows(row);
            self.buffer.set_line(self.area.x, y, line, self.area.width);
        }
    }

    /// Writes at the right end of a row.
    fn right(&mut self, row: usize, line: &Line<'_>) {
        if row < self.height() {
            let width = to_rows(line.width()).min(self.area.width);
            let x = self.area.x + self.area.width - width;
            self.buffer.set_line(x, self.area.y + to_rows(row), line, width);
        }
    }

    /// Writes a title with a rule.
    fn title(&mut self, title: &str, note: &str) {
        let line = self.look.rule(title, note, self.width());
        self.line(0, &line);
    }

    /// Writes lines from a row on, without those scrolled off above; returns how many do not fit.
    fn lines(&mut self, from: usize, lines: &[Line<'_>], scrolled: usize) -> usize {
        let room = self.height().saturating_sub(from);
        let surplus = lines.len().saturating_sub(room);
        for (row, line) in lines.iter().skip(scrolled.min(surplus)).take(room).enumerate() {
            self.line(from + row, line);
        }
        surplus
    }

    /// The upper rows; this part is what remains below.
    fn take_top(&mut self, rows: u16) -> Canvas<'_> {
        let (top, rest) = cut_top(self.area, rows);
        self.area = rest;
        Canvas::new(self.buffer, top, self.look)
    }

    /// The right columns, with a gap before them; this part is what remains on the left.
    fn take_right(&mut self, columns: u16) -> Canvas<'_> {
        let columns = columns.min(self.area.width);
        let left = self.area.width - columns;
        let side = Rect { x: self.area.x + left, width: columns, ..self.area };
        self.area.width = left.saturating_sub(2);
        Canvas::new(self.buffer, side, self.look)
    }
}

/// Spans of text with tones.
#[derive(Clone)]
struct Words(Look, Vec<Span<'static>>);

impl Words {
    fn new(look: Look) -> Self {
        Self(look, Vec::new())
    }

    fn add(mut self, text: &str, tone: Tone) -> Self {
        if !text.is_empty() {
            self.1.push(self.0.text(text, tone));
        }
        self
    }

    /// Preceded by a dot if it is not the first.
    fn then(self, text: &str, tone: Tone) -> Self {
        if text.is_empty() || self.1.is_empty() {
            return self.add(text, tone);
        }
        let dot = self.0.dot();
        let span = Span::styled(dot, self.0.style(Tone::Soft));
        let Self(look, mut spans) = self;
        spans.push(span);
        Self(look, spans).add(text, tone)
    }

    fn mark(mut self, tone: Tone) -> Self {
        self.1.push(self.0.mark(tone));
        self.1.push(Span::raw(" "));
        self
    }

    fn line(self) -> Line<'static> {
        Line::from(self.1)
    }
}
