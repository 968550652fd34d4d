//! Small drawings: axes, lines, bars, and where what happened is marked.

use std::fmt::Write;

/// Width and height of a drawing, in its own units.
const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 220.0;
/// Room around the drawing for words.
const LEFT: f64 = 62.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 30.0;
/// Points of one line; longer ones are thinned.
const MAX_POINTS: usize = 1200;
/// Marks that get words; more would hide each other.
const MAX_WORDS: usize = 18;

/// One line or one row of bars.
pub(super) struct Series<'a> {
    pub(super) name: &'a str,
    /// A name of the style sheet.
    pub(super) class: &'a str,
    pub(super) points: Vec<(f64, f64)>,
    pub(super) bars: bool,
}

/// A whole drawing.
pub(super) struct Chart<'a> {
    pub(super) title: &'a str,
    pub(super) x: &'a str,
    pub(super) y: &'a str,
    pub(super) series: Vec<Series<'a>>,
    /// Where something happened, and what.
    pub(super) marks: Vec<(f64, String)>,
    /// Powers of ten along x.
    pub(super) log_x: bool,
}

impl Chart<'_> {
    pub(super) fn draw(&self) -> String {
        let all = || self.series.iter().flat_map(|series| series.points.iter());
        let scale = |x: f64| if self.log_x { x.max(1e-3).log10() } else { x };
        let low = all().map(|point| scale(point.0)).fold(f64::INFINITY, f64::min);
        let high = all().map(|point| scale(point.0)).fold(f64::NEG_INFINITY, f64::max);
        if !low.is_finite() {
            return format!("<p class=\"none\">{}: nothing to show.</p>", self.title);
        }
        let high = if high > low { high } else { low + 1.0 };
        let top = all().map(|point| point.1).fold(0.0, f64::max);
        let top = nice(top);
        let x = |value: f64| LEFT + (scale(value) - low) / (high - low) * (WIDTH - LEFT - RIGHT);
        let y = |value: f64| HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM);
        let mut svg = format!(
            "<figure><figcaption>{}</figcaption><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             role=\"img\" aria-label=\"{}\">",
            self.title, self.title
        );
        self.axes(&mut svg, (low, high), top, &x, &y);
        let inside = |(at, _): &&(f64, String)| (low..=high).contains(&scale(*at));
        for (place, (at, words)) in self.marks.iter().filter(inside).enumerate() {
            let at = x(*at);
            let _ = write!(
                svg,
                "<line class=\"mark\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{:.1}\">\
                 <title>{}</title></line>",
                HEIGHT - BOTTOM,
                escape(words)
            );
            if place < MAX_WORDS {
                let row = TOP - 16.0 + 9.0 * f64::from(u8::try_from(place % 2).unwrap_or(0));
                let _ = write!(
                    svg,
                    "<text class=\"word\" x=\"{:.1}\" y=\"{row:.1}\">{}</text>",
                    at + 2.0,
                    escape(words)
                );
            }
        }
        for series in &self.series {
            draw_series(&mut svg, series, &x, &y);
        }
        svg.push_str("</svg>");
        self.legend(&mut svg);
        svg.push_str("</figure>");
        svg
    }

    fn axes(
        &self,
        svg: &mut String,
        (low, high): (f64, f64),
        top: f64,
        x: &impl Fn(f64) -> f64,
        y: &impl Fn(f64) -> f64,
    ) {
        for step in 0..=4 {
            let value = top * f64::from(step) / 4.0;
            let at = y(value);
            let _ = write!(
                svg,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
                 <text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                at + 4.0,
                short(value)
            );
        }
        for value in self.ticks(low, high) {
            let at = x(value);
            let _ = write!(
                svg,
                "<text class=\"tick\" x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                HEIGHT - BOTTOM + 15.0,
                short(value)
            );
        }
        let _ = write!(
            svg,
            "<text class=\"axis\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
             <text class=\"axis\" x=\"4\" y=\"{:.1}\">{}</text>",
            WIDTH - RIGHT,
            HEIGHT - 3.0,
            self.x,
            TOP - 14.0,
            self.y
        );
    }

    fn ticks(&self, low: f64, high: f64) -> Vec<f64> {
        if self.log_x {
            #[expect(clippy::cast_possible_truncation, reason = "a few powers of ten")]
            let (low, high) = (low.ceil() as i32, high.floor() as i32);
            return (low..=high).map(|power| 10_f64.powi(power)).collect();
        }
        // Round numbers, six to twelve of them.
        let rough = (high - low) / 12.0;
        let step = nice(rough).max(f64::MIN_POSITIVE);
        let first = (low / step).ceil();
        (0..=12)
            .map(|more| (first + f64::from(more)) * step)
            .take_while(|value| *value <= high + step * 1e-6)
            .collect()
    }

    fn legend(&self, svg: &mut String) {
        svg.push_str("<p class=\"legend\">");
        for series in &self.series {
            let (class, name) = (series.class, series.name);
            let _ = write!(svg, "<span class=\"key {class}\"></span>{name} ");
        }
        svg.push_str("</p>");
    }
}

fn draw_series(
    svg: &mut String,
    series: &Series<'_>,
    x: &impl Fn(f64) -> f64,
    y: &impl Fn(f64) -> f64,
) {
    let class = series.class;
    if series.bars {
        for (at, value) in series.points.iter().filter(|point| point.1 > 0.0) {
            let (at, from, to) = (x(*at), y(0.0), y(*value).min(y(0.0) - 1.5));
            let _ = write!(
                svg,
                "<line class=\"bar {class}\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{from:.1}\" \
                 y2=\"{to:.1}\"/>"
            );
        }
        return;
    }
    let every = series.points.len().div_ceil(MAX_POINTS).max(1);
    let points: Vec<String> = series
        .points
        .chunks(every)
        .map(|chunk| {
            let highest = chunk.iter().map(|point| point.1).fold(0.0, f64::max);
            format!("{:.1},{:.1}", x(chunk[0].0), y(highest))
        })
        .collect();
    let _ = write!(svg, "<polyline class=\"line {class}\" points=\"{}\"/>", points.join(" "));
}

/// A round number not below the value.
fn nice(value: f64) -> f64 {
    if value <= 0.0 {
        return 1.0;
    }
    let power = 10_f64.powf(value.log10().floor());
    let steps = [1.0, 2.0, 4.0, 5.0, 8.0, 10.0];
    steps.iter().map(|step| step * power).find(|step| *step >= value).unwrap_or(10.0 * power)
}

/// A number in few letters.
pub(super) fn short(value: f64) -> String {
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

pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_tops_are_round() {
        assert_eq!([short(0.25), short(1200.0), short(25_000.0)], ["0.25", "1200", "25k"]);
        assert_eq!([nice(0.0), nice(3.1), nice(950.0)], [1.0, 4.0, 1000.0]);
        assert_eq!(escape("<a & b>"), "&lt;a &amp; b&gt;");
    }
}
