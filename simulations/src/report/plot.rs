//! A sweep as one drawing that stands by itself, for a page of documentation: a panel for each
//! measure, a bar for each combination of values.

use std::fmt::Write;

use super::NEVER;
use super::svg::{escape, short};

/// Panels beside each other.
const COLUMNS: usize = 3;
/// Width of the words left of a row of panels, of a panel, and of its bars.
const WORDS: f64 = 190.0;
const PANEL: f64 = 230.0;
const BARS: f64 = 165.0;
/// Height of a bar with the room around it, and of a panel's title.
const ROW: f64 = 17.0;
const TITLE: f64 = 26.0;
const STYLE: &str = "text{font:12px system-ui,sans-serif;fill:#222}.t{font-weight:600}\
                     .n{fill:#555}rect.b{fill:#3b6ea5}\
                     rect.v{fill:#b5483a}";

/// The drawing; measures that are the same in all rows are left out.
pub fn sweep(measures: &[&str], rows: &[(String, Vec<Option<f64>>)]) -> String {
    let differs = |measure: &usize| {
        let values =
            || rows.iter().filter_map(|(_, values)| values.get(*measure).copied().flatten());
        let never = values().filter(|value| *value == NEVER).count();
        let top = values().filter(|value| value.is_finite()).fold(0.0, f64::max);
        (never > 0 && never < rows.len()) || values().any(|value| top - value > top * 0.02)
    };
    let shown: Vec<usize> = (0..measures.len()).filter(differs).collect();
    let line = TITLE + ROW * count(rows.len()) + 12.0;
    let height = line * count(shown.len().div_ceil(COLUMNS)).max(1.0);
    let width = WORDS + PANEL * count(COLUMNS);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\" role=\"img\"><style>{STYLE}</style>\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>\n"
    );
    for (place, measure) in shown.into_iter().enumerate() {
        let (left, top) = (WORDS + PANEL * count(place % COLUMNS), line * count(place / COLUMNS));
        if place.is_multiple_of(COLUMNS) {
            for (row, (words, _)) in rows.iter().enumerate() {
                let (x, y) = (WORDS - 10.0, top + TITLE + ROW * count(row) + 12.0);
                let words = escape(words);
                let _ =
                    writeln!(svg, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"end\">{words}</text>");
            }
        }
        let values = rows.iter().map(|(_, values)| values.get(measure).copied().flatten());
        panel(&mut svg, (left, top), measures[measure], &values.collect::<Vec<_>>());
    }
    svg.push_str("</svg>\n");
    svg
}

fn panel(svg: &mut String, (left, top): (f64, f64), title: &str, values: &[Option<f64>]) {
    let known = values.iter().flatten().copied().filter(|value| value.is_finite());
    let most = known.fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    let title = escape(title);
    let _ = writeln!(svg, "<text class=\"t\" x=\"{left}\" y=\"{}\">{title}</text>", top + 16.0);
    for (row, value) in values.iter().enumerate() {
        let y = top + TITLE + ROW * count(row);
        let Some(value) = value else {
            let _ = writeln!(svg, "<text class=\"n\" x=\"{left}\" y=\"{}\">none</text>", y + 12.0);
            continue;
        };
        // What never came is as long as the longest, and red.
        let (class, share, words) = match *value {
            NEVER => ("v", 1.0, "never".to_owned()),
            value => ("b", value / most, short(value)),
        };
        let length = share * BARS;
        let _ = writeln!(
            svg,
            "<rect class=\"{class}\" x=\"{left}\" y=\"{:.1}\" width=\"{length:.1}\" height=\"{}\"/>\
             <text class=\"n\" x=\"{:.1}\" y=\"{}\">{}</text>",
            y + 2.0,
            ROW - 5.0,
            left + length + 4.0,
            y + 12.0,
            words
        );
    }
}

#[expect(clippy::cast_precision_loss, reason = "rows and panels of one drawing")]
fn count(of: usize) -> f64 {
    of as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_is_drawn_and_what_is_missing_is_said() {
        let rows = [
            ("a<1".to_owned(), vec![Some(3.0), Some(1.0), Some(NEVER)]),
            ("a=2".to_owned(), vec![Some(3.0), Some(4.0), Some(2.0)]),
            ("a=3".to_owned(), vec![Some(3.0), Some(4.0), None]),
        ];
        let drawing = sweep(&["same", "differs", "partly"], &rows);
        assert!(drawing.contains(">none<"), "{drawing}");
        assert!(drawing.contains(">differs<") && !drawing.contains(">same<"), "{drawing}");
        assert!(drawing.contains(">never<") && drawing.contains(">partly<"), "{drawing}");
        assert!(drawing.contains("a&lt;1") && drawing.ends_with("</svg>\n"));
    }
}
