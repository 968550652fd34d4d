//! Drawings for reports: lines over an axis ([`Chart`]) and bars in panels ([`Bars`]), as SVG.
//!
//! Words are escaped, themes follow `prefers-color-scheme`, and nothing outside is needed. Classes
//! of colours are `good`, `bad`, `slow` and `s0` to `s7`, which the colour-blind can tell apart
//! (after Okabe and Ito, 2008); `strong` makes a line thicker.

use std::fmt;

use maud::{Markup, Render, html};

mod bars;
mod chart;

pub use bars::{Bars, Panels};
pub use chart::{Axis, Chart, Series};

/// The style sheet of all drawings; a page that has drawings in it needs it once.
pub const STYLE: &str = include_str!("charts.css");

/// The width of every drawing, in its own units.
const WIDTH: f64 = 900.0;
/// The width of a letter, generously: fonts differ.
const LETTER: f64 = 6.6;

/// A finished drawing. `render` gives a part of a page with [`STYLE`]; `Display` gives a complete
/// file.
#[derive(Debug)]
pub struct Drawing {
    title: String,
    height: f64,
    body: Markup,
}

impl Render for Drawing {
    fn render(&self) -> Markup {
        html! {
            svg viewBox={ "0 0 " (WIDTH) " " (px(self.height)) } role="img"
                aria-label=(self.title) { (self.body) }
        }
    }
}

impl fmt::Display for Drawing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let height = px(self.height);
        let file = html! {
            svg xmlns="http://www.w3.org/2000/svg" viewBox={ "0 0 " (WIDTH) " " (height) }
                width=(WIDTH) height=(height) role="img" aria-label=(self.title) {
                style { (STYLE) }
                (self.body)
            }
        };
        writeln!(f, "{}", file.into_string())
    }
}

/// A number in few letters.
pub fn short(value: f64) -> String {
    match value.abs() {
        big if big >= 1e6 => format!("{}M", trim(value / 1e6)),
        big if big >= 1e4 => format!("{}k", trim(value / 1e3)),
        _ => trim(value),
    }
}

fn trim(value: f64) -> String {
    let digits = if value.abs() >= 100.0 { 0 } else { 2 };
    let text = format!("{value:.digits$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// A place in a drawing, to a tenth.
fn px(at: f64) -> f64 {
    (at * 10.0).round() / 10.0
}

fn width(words: &str) -> f64 {
    count(words.chars().count()) * LETTER
}

/// Like [`width`], for large bold text.
fn title_width(words: &str) -> f64 {
    width(words) * 1.4
}

#[expect(clippy::cast_precision_loss, reason = "parts of one drawing")]
fn count(of: usize) -> f64 {
    of as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!([short(0.25), short(1200.0), short(25_000.0)], ["0.25", "1200", "25k"]);
    }
}
