//! Aligned columns that fit a width: long texts are cut to their minimum, then dispensable columns
//! are left out.

use std::ops::Range;

use meshport_config::wrap;
use ratatui::style::Modifier;
use ratatui::text::{Line, Span};

use crate::look::{Look, Tone};

/// Between two columns.
const GAP: usize = 2;

/// A column.
#[derive(Debug, Clone)]
pub(crate) struct Column {
    title: String,
    right: bool,
    /// How soon it is left out when room is short: higher ranks first, 0 never.
    spare: u8,
    /// Characters below which its cells are not cut; 0 if they are never cut.
    least: usize,
}

/// A column of words.
pub(crate) fn left(title: impl Into<String>, spare: u8) -> Column {
    Column { title: title.into(), right: false, spare, least: 0 }
}

/// A column of numbers.
pub(crate) fn right(title: impl Into<String>, spare: u8) -> Column {
    Column { title: title.into(), right: true, spare, least: 0 }
}

/// A column of sentences, which may be cut to this many characters.
pub(crate) fn long(title: impl Into<String>, spare: u8, least: usize) -> Column {
    Column { title: title.into(), right: false, spare, least }
}

/// The content of one cell.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cell {
    text: String,
    tone: Tone,
}

impl Cell {
    pub(crate) fn new(text: impl Into<String>, tone: Tone) -> Self {
        Self { text: text.into(), tone }
    }

    pub(crate) fn plain(text: impl Into<String>) -> Self {
        Self::new(text, Tone::Plain)
    }

    pub(crate) fn into_text(self) -> String {
        self.text
    }
}

/// See the module's doc.
#[derive(Debug)]
pub(crate) struct Grid {
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
}

impl Grid {
    pub(crate) fn new(columns: Vec<Column>) -> Self {
        Self { columns, rows: Vec::new() }
    }

    /// One cell per column, in order.
    pub(crate) fn row(&mut self, cells: Vec<Cell>) {
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(cells);
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// The titles and the rows of the range, the selected one reversed.
    pub(crate) fn lines(
        &self,
        width: usize,
        look: Look,
        shown: Range<usize>,
        selected: Option<usize>,
    ) -> Vec<Line<'static>> {
        let widths = self.fit(width);
        let titles: Vec<Cell> =
            self.columns.iter().map(|it| Cell::new(it.title.clone(), Tone::Soft)).collect();
        let mut lines = vec![self.line(&titles, &widths, look)];
        let range = shown.start.min(self.rows.len())..shown.end.min(self.rows.len());
        for at in range {
            let mut line = self.line(&self.rows[at], &widths, look);
            if selected == Some(at) {
                line.spans.push(Span::raw(" ".repeat(width.saturating_sub(line.width()))));
                line = line.patch_style(Modifier::REVERSED);
            }
            lines.push(line);
        }
        lines
    }

    fn line(&self, cells: &[Cell], widths: &[Option<usize>], look: Look) -> Line<'static> {
        let mut spans = Vec::new();
        for ((cell, column), width) in cells.iter().zip(&self.columns).zip(widths) {
            let Some(width) = *width else { continue };
            if !spans.is_empty() {
                spans.push(Span::raw(" ".repeat(GAP)));
            }
            let span = cut(look.text(&cell.text, cell.tone), width, look);
            let padding = Span::raw(" ".repeat(width.saturating_sub(span.width())));
            let pair = if column.right { [padding, span] } else { [span, padding] };
            spans.extend(pair);
        }
        Line::from(spans)
    }

    /// The width of each column; none for one that is left out or empty.
    fn fit(&self, room: usize) -> Vec<Option<usize>> {
        let wanted = |at: usize| {
            let cells = self.rows.iter().map(|row| Span::raw(row[at].text.as_str()).width());
            let most = cells.max().unwrap_or(0);
            let is_said = most > 0 || self.rows.is_empty();
            is_said.then(|| most.max(Span::raw(self.columns[at].title.as_str()).width()))
        };
        let mut widths: Vec<Option<usize>> = (0..self.columns.len()).map(wanted).collect();
        let least = |at: usize, width: usize| match self.columns[at].least {
            0 => width,
            least => width.min(least),
        };
        let total = |widths: &[Option<usize>], of: &dyn Fn(usize, usize) -> usize| {
            let shown = widths.iter().enumerate().filter_map(|(at, width)| Some((at, (*width)?)));
            let cells: Vec<usize> = shown.map(|(at, width)| of(at, width)).collect();
            cells.iter().sum::<usize>() + GAP * cells.len().saturating_sub(1)
        };
        while total(&widths, &least) > room {
            let spare = (0..widths.len()).filter(|at| widths[*at].is_some());
            match spare.max_by_key(|at| self.columns[*at].spare) {
                Some(at) if self.columns[at].spare > 0 => widths[at] = None,
                _ => break,
            }
        }
        loop {
            let surplus = total(&widths, &|_, width| width).saturating_sub(room);
            let loose = (0..widths.len()).filter_map(|at| {
                let width = widths[at]?;
                (least(at, width) < width).then_some((width, at))
            });
            match loose.max() {
                Some((width, at)) if surplus > 0 => widths[at] = Some(width - 1),
                _ => return widths,
            }
        }
    }
}

/// The text in at most this many columns of the terminal.
pub(crate) fn cut(span: Span<'static>, width: usize, look: Look) -> Span<'static> {
    if span.width() <= width {
        return span;
    }
    let end = look.cut();
    let room = width.saturating_sub(Span::raw(end).width());
    let mut kept = String::new();
    let mut used = 0;
    for c in span.content.chars() {
        used += Span::raw(c.to_string()).width();
        if used > room {
            break;
        }
        kept.push(c);
    }
    kept.push_str(end);
    Span::styled(kept, span.style)
}

/// A sentence on lines of at most this width, at most this many of them.
pub(crate) fn wrapped(text: &str, tone: Tone, width: usize, look: Look) -> Vec<Line<'static>> {
    let lines = wrap(text, width).into_iter();
    lines.map(|line| Line::from(cut(look.text(&line, tone), width, look))).collect()
}
