//! Bar charts in panels next to each other, with a bar for each row.

use maud::{Markup, html};

use crate::{Drawing, WIDTH, count, px, short, title_width, width};

/// Height of the titles of panels, and of a bar with the room around it.
const TITLE: f64 = 26.0;
const ROW: f64 = 17.0;
/// Distance from the top of a row to the baseline of its text.
const FOOT: f64 = 12.0;
/// Room between words and bars, and for the number right of the longest bar.
const GAP: f64 = 10.0;
const NUMBER: f64 = 55.0;

/// Panels next to each other that have the same rows.
#[derive(Debug)]
pub struct Panels<'a> {
    /// The common title of the rows; may be empty.
    pub title: String,
    /// The words of each row, and the class of its bars.
    pub rows: Vec<(&'a str, &'a str)>,
    /// A title, and the value of each row; an infinite one is "never".
    pub panels: Vec<(&'a str, Vec<Option<f64>>)>,
}

/// A whole drawing.
#[derive(Debug)]
pub struct Bars<'a> {
    /// Its title, for readers who cannot see it.
    pub title: &'a str,
    /// Top to bottom. Panels with the same title share a scale.
    pub lines: Vec<Panels<'a>>,
}

impl Bars<'_> {
    /// The drawing.
    pub fn draw(&self) -> Drawing {
        let words = self.lines.iter().flat_map(|line| {
            let rows = line.rows.iter().map(|(words, _)| width(words));
            rows.chain([title_width(&line.title)])
        });
        let left = words.fold(0.0, f64::max).min(WIDTH / 2.0) + GAP;
        let columns = self.lines.iter().map(|line| line.panels.len()).max().unwrap_or(0);
        let panel = (WIDTH - left) / count(columns.max(1));
        let (mut height, mut lines) = (0.0, Vec::new());
        for line in &self.lines {
            lines.push(self.line(line, height, left, panel));
            height += TITLE + ROW * count(line.rows.len()) + GAP;
        }
        let body = html! { @for line in lines { (line) } };
        Drawing { title: self.title.to_owned(), height: height.max(ROW), body }
    }

    fn line(&self, line: &Panels<'_>, top: f64, left: f64, panel: f64) -> Markup {
        let row_at = |row: usize| top + TITLE + ROW * count(row);
        html! {
            text.title x="2" y=(top + ROW) { (line.title) }
            @for (row, (words, _)) in line.rows.iter().enumerate() {
                text x=(px(left - GAP)) y=(row_at(row) + FOOT) text-anchor="end" { (words) }
            }
            @for (column, (title, values)) in line.panels.iter().enumerate() {
                @let x = px(left + panel * count(column));
                text.title x=(x) y=(top + ROW) { (title) }
                @for (row, (value, (_, class))) in values.iter().zip(&line.rows).enumerate() {
                    (self.bar(title, *value, class, (x, row_at(row)), panel - NUMBER))
                }
            }
        }
    }

    fn bar(
        &self,
        panel: &str,
        value: Option<f64>,
        class: &str,
        (x, y): (f64, f64),
        longest: f64,
    ) -> Markup {
        // A value that never came is as long as the longest.
        let (share, class, words) = match value {
            None => (0.0, class, "none".to_owned()),
            Some(f64::INFINITY) => (1.0, "bad", "never".to_owned()),
            Some(value) => (value / self.most(panel), class, short(value)),
        };
        let length = px(share * longest);
        html! {
            rect class={ "bar " (class) } x=(x) y=(y + 2.0) width=(length) height=(ROW - 5.0) {}
            text.soft x=(x + length + 4.0) y=(y + FOOT) { (words) }
        }
    }

    /// The greatest value of the panels with this title.
    fn most(&self, title: &str) -> f64 {
        let panels = self.lines.iter().flat_map(|line| &line.panels).filter(|it| it.0 == title);
        let values = panels.flat_map(|(_, values)| values).flatten().copied();
        values.filter(|it| it.is_finite()).fold(f64::MIN_POSITIVE, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panels_of_one_title_share_a_scale_and_what_is_missing_is_said() {
        let line = |values| Panels {
            title: "both".to_owned(),
            rows: vec![("a<1", "s0"), ("b", "s2"), ("c", "s2")],
            panels: vec![("ms", values)],
        };
        let lines = vec![
            line(vec![Some(2.0), None, Some(f64::INFINITY)]),
            line(vec![Some(1.0), Some(0.0), None]),
        ];
        let svg = Bars { title: "x", lines }.draw().to_string();
        assert!(svg.contains("a&lt;1") && svg.ends_with("</svg>\n"), "{svg}");
        let widths: Vec<f64> = svg
            .split("class=\"bar ")
            .skip(1)
            .filter_map(|bar| bar.split("width=\"").nth(1)?.split('"').next()?.parse().ok())
            .collect();
        assert_eq!([widths[1], widths[2]], [0.0, widths[0]], "{svg}");
        assert!((widths[3] * 2.0 - widths[0]).abs() < 0.2, "{svg}");
        assert_eq!((svg.matches(">none<").count(), svg.matches(">never<").count()), (2, 1));
    }
}
