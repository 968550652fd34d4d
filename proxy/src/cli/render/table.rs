//! Aligned columns that fit the terminal.

use super::style::{Style, Tone};
use meshport_config::wrap;
use meshport_core::units::clean;

/// Columns of space between two cells.
const GAP: usize = 2;
/// The mark at the cut-off end of a cell.
const CUT: &str = "..";
/// A cell is not cut below this many characters.
const MIN_CELL: usize = 6;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Left,
    Right,
}

/// A column: its title, its alignment, and how soon it is dropped on a narrow terminal (higher
/// ranks first, 0 never).
#[derive(Debug, Clone, Copy)]
pub(super) struct Column {
    pub(super) title: &'static str,
    pub(super) side: Side,
    pub(super) spare: u8,
}

pub(super) const fn left(title: &'static str, spare: u8) -> Column {
    Column { title, side: Side::Left, spare }
}

pub(super) const fn right(title: &'static str, spare: u8) -> Column {
    Column { title, side: Side::Right, spare }
}

/// The content of one cell of a table.
#[derive(Debug, Clone, Default)]
pub(super) struct Cell {
    text: String,
    tone: Tone,
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self { text, tone: Tone::Plain }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl Cell {
    pub(super) fn new(text: impl Into<String>, tone: Tone) -> Self {
        Self { text: text.into(), tone }
    }
}

#[derive(Debug)]
pub(super) struct Table<'a> {
    columns: &'a [Column],
    rows: Vec<Vec<Cell>>,
}

impl<'a> Table<'a> {
    pub(super) fn new(columns: &'a [Column]) -> Self {
        Self { columns, rows: Vec::new() }
    }

    /// One cell per column, in order.
    pub(super) fn row<const N: usize>(&mut self, cells: [impl Into<Cell>; N]) {
        debug_assert_eq!(cells.len(), self.columns.len());
        let cleaned = |cell: Cell| Cell { text: clean(&cell.text), ..cell };
        self.rows.push(cells.into_iter().map(|cell| cleaned(cell.into())).collect());
    }

    /// The header and the rows, each line indented and without trailing spaces. Columns that are
    /// empty in all rows are left out.
    pub(super) fn render(&self, indent: usize, style: impl Into<Style>) -> String {
        let style = style.into();
        let said = |column: &usize| self.rows.iter().any(|row| !row[*column].text.is_empty());
        let mut shown: Vec<usize> = (0..self.columns.len()).filter(said).collect();
        let mut widths: Vec<usize> =
            (0..self.columns.len()).map(|column| self.cell_width(column)).collect();
        if let Some(width) = style.width {
            self.fit(&mut shown, &mut widths, width.saturating_sub(indent));
        }
        let titles: Vec<Cell> = self.columns.iter().map(|column| column.title.into()).collect();
        let mut text = String::new();
        for row in std::iter::once(&titles).chain(&self.rows) {
            let mut line = " ".repeat(indent);
            for (position, column) in shown.iter().enumerate() {
                let Cell { text, tone } = &row[*column];
                let cell = cut(text, widths[*column]);
                let padding = " ".repeat(widths[*column].saturating_sub(cell.chars().count()));
                let (before, after) = match self.columns[*column].side {
                    Side::Left => ("", padding.as_str()),
                    Side::Right => (padding.as_str(), ""),
                };
                let gap = if position == 0 { 0 } else { GAP };
                line.push_str(&" ".repeat(gap));
                line.push_str(before);
                line.push_str(&style.paint(&cell, *tone));
                line.push_str(after);
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }

    fn cell_width(&self, column: usize) -> usize {
        let cells = self.rows.iter().map(|row| row[column].text.chars().count());
        cells.chain([self.columns[column].title.len()]).max().unwrap_or(0)
    }

    /// Drops columns by rank, then cuts the widest texts. Numbers are not cut.
    fn fit(&self, shown: &mut Vec<usize>, widths: &mut [usize], room: usize) {
        let total = |shown: &[usize], widths: &[usize]| {
            let cells: usize = shown.iter().map(|column| widths[*column]).sum();
            cells + GAP * shown.len().saturating_sub(1)
        };
        while total(shown, widths) > room {
            let sparest = shown.iter().copied().max_by_key(|column| self.columns[*column].spare);
            match sparest {
                Some(column) if self.columns[column].spare > 0 => {
                    shown.retain(|other| *other != column);
                }
                _ => break,
            }
        }
        while total(shown, widths) > room {
            let texts = shown.iter().filter(|column| self.columns[**column].side == Side::Left);
            match texts.copied().max_by_key(|column| widths[*column]) {
                Some(column) if widths[column] > MIN_CELL => widths[column] -= 1,
                _ => break,
            }
        }
    }
}

fn cut(cell: &str, width: usize) -> String {
    if cell.chars().count() <= width {
        return cell.to_owned();
    }
    let kept: String = cell.chars().take(width.saturating_sub(CUT.len())).collect();
    kept + CUT
}

/// Wraps a sentence to the width, with each line indented; without a width it stays one line.
pub(crate) fn wrapped(text: &str, indent: usize, style: impl Into<Style>) -> String {
    toned(text, Tone::Plain, indent, style)
}

/// The same in a tone.
pub(crate) fn toned(text: &str, tone: Tone, indent: usize, style: impl Into<Style>) -> String {
    let (text, style) = (clean(text), style.into());
    let width = style.width;
    let room = width.map_or(usize::MAX, |width| width.saturating_sub(indent).max(MIN_CELL));
    let (lines, spaces) = (wrap(&text, room), " ".repeat(indent));
    lines.iter().map(|line| format!("{spaces}{}\n", style.paint(line, tone))).collect()
}

/// A sentence as a list item: a dash, and its lines indented past it.
pub(super) fn item(text: &str, tone: Tone, indent: usize, style: impl Into<Style>) -> String {
    let lines = toned(text, tone, indent + 2, style);
    format!("{}- {}", " ".repeat(indent), lines.get(indent + 2..).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 4] =
        [left("NAME", 0), right("RTT", 1), left("NOTE", 0), left("MORE", 2)];

    fn table() -> Table<'static> {
        let mut table = Table::new(&COLUMNS);
        table.row(["cp-1", "0.42 ms", "", "x"]);
        table.row(["cp-with-a-name", "12 ms", "dead", "y"]);
        table
    }

    #[test]
    fn columns_are_aligned_and_lines_end_with_text() {
        let text = "  NAME                RTT  NOTE  MORE\n  \
                    cp-1            0.42 ms        x\n  \
                    cp-with-a-name    12 ms  dead  y\n";
        assert_eq!(table().render(2, None), text);
    }

    #[test]
    fn a_narrow_terminal_costs_spare_columns_first_and_then_letters() {
        assert_eq!(
            table().render(0, Some(30)),
            "NAME                RTT  NOTE\n\
             cp-1            0.42 ms\n\
             cp-with-a-name    12 ms  dead\n"
        );
        assert_eq!(
            table().render(0, Some(15)),
            "NAME       NOTE\n\
             cp-1\n\
             cp-with..  dead\n"
        );
        let narrowest = table().render(0, Some(1));
        assert!(narrowest.contains("cp-w.."), "{narrowest}");
    }

    #[test]
    fn a_column_nobody_uses_is_left_out() {
        let mut table = Table::new(&COLUMNS);
        table.row(["cp-1", "", "", ""]);
        assert_eq!(table.render(0, None), "NAME\ncp-1\n");
    }

    #[test]
    fn colours_take_no_room() {
        let style = Style { width: Some(30), colour: true };
        let mut table = table();
        table.row([Cell::new("cp-9", Tone::Bad), "1 ms".into(), "".into(), "".into()]);
        let text = table.render(0, style);
        assert!(text.ends_with("\x1b[31mcp-9\x1b[0m               1 ms\n"), "{text:?}");
    }

    #[test]
    fn sentences_are_wrapped() {
        assert_eq!(item("one two three", Tone::Plain, 2, Some(11)), "  - one two\n    three\n");
        assert_eq!(item("", Tone::Plain, 2, None), "  - ");
        assert_eq!(wrapped("one two three", 2, Some(10)), "  one two\n  three\n");
        assert_eq!(wrapped("one two three", 0, None), "one two three\n");
    }
}
