//! A plot per fault: connect times over time, one line per balancer, and every failure. Written as
//! SVG by hand: it is a few hundred points and some text.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use crate::record::Record;

/// The picture, in its own units.
const WIDTH: f64 = 1200.0;
const HEIGHT: f64 = 620.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 210.0;
const TOP: f64 = 64.0;
/// Height of the lane in which the failures of one balancer are marked.
const LANE: f64 = 13.0;
/// Below the drawing: the time axis.
const BOTTOM: f64 = 52.0;
/// The range of connect times that is drawn, in milliseconds; what is outside is at the edge.
const RANGE_MS: (f64, f64) = (1.0, 5_000.0);
/// Each point of a line is the slowest connection of this time.
const BIN: Duration = Duration::from_secs(1);
/// So long without an answer, in seconds, is a gap in the line: more than between the ends of two
/// neighbouring bins.
const GAP_S: f64 = 2.1;
/// One colour per balancer: distinct for the colour-blind too (after Okabe and Ito, 2008).
const COLOURS: [&str; 8] =
    ["#d55e00", "#e69f00", "#0072b2", "#009e73", "#cc79a7", "#56b4e9", "#666666", "#c8c8c8"];

/// One balancer's line.
pub(crate) struct Line<'a> {
    pub(crate) name: &'a str,
    pub(crate) record: &'a Record,
}

/// What the picture shows besides the lines; times in seconds.
pub(crate) struct Frame<'a> {
    pub(crate) title: &'a str,
    pub(crate) fault_s: f64,
    pub(crate) healed_s: Option<f64>,
    pub(crate) end_s: f64,
}

struct Scale {
    from_s: f64,
    to_s: f64,
    floor: f64,
}

impl Scale {
    fn x(&self, at_s: f64) -> f64 {
        let share = (at_s - self.from_s) / (self.to_s - self.from_s);
        LEFT + share.clamp(0.0, 1.0) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, took_ms: f64) -> f64 {
        let (low, high) = RANGE_MS;
        let share = (took_ms.clamp(low, high) / low).log10() / (high / low).log10();
        self.floor - share * (self.floor - TOP)
    }
}

/// The picture as SVG.
pub(crate) fn draw(frame: &Frame<'_>, lines: &[Line<'_>]) -> String {
    let lanes = LANE * f64::from(u32::try_from(lines.len()).unwrap_or(0)) + 18.0;
    let scale = Scale {
        // A few seconds before the fault show what is normal.
        from_s: frame.fault_s - 5.0,
        to_s: frame.end_s,
        floor: HEIGHT - BOTTOM - lanes,
    };
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
    );
    text(&mut svg, (LEFT, 28.0), "font-size=\"17\"", frame.title);
    let caption = "new TLS connections through each balancer: time to the first byte of the \
                   answer, the slowest of each second";
    text(&mut svg, (LEFT, 48.0), "fill=\"#555\"", caption);
    axes(&mut svg, frame, &scale);
    // The first are drawn last, on top.
    for (number, line) in lines.iter().enumerate().rev() {
        let colour = COLOURS[number % COLOURS.len()];
        let row = f64::from(u32::try_from(number).unwrap_or(0));
        curve(&mut svg, line, &scale, frame, colour);
        failures(&mut svg, line, &scale, scale.floor + 16.0 + LANE * row, colour);
        legend(&mut svg, line.name, TOP + 12.0 + 22.0 * row, colour);
    }
    svg.push_str("</svg>\n");
    svg
}

fn axes(svg: &mut String, frame: &Frame<'_>, scale: &Scale) {
    let right = WIDTH - RIGHT;
    let bottom = HEIGHT - BOTTOM;
    for (value, name) in
        [(1.0, "1 ms"), (10.0, "10 ms"), (100.0, "100 ms"), (1e3, "1 s"), (5e3, "5 s")]
    {
        let y = scale.y(value);
        stroke(svg, (LEFT, y), (right, y), "#ddd");
        text(svg, (LEFT - 8.0, y + 4.0), "text-anchor=\"end\"", name);
    }
    text(svg, (LEFT - 8.0, scale.floor + 19.0), "text-anchor=\"end\"", "failed");
    stroke(svg, (LEFT, TOP), (LEFT, bottom), "#999");
    stroke(svg, (LEFT, bottom), (right, bottom), "#999");
    let mut at = 0.0;
    while frame.fault_s + at <= frame.end_s {
        let x = scale.x(frame.fault_s + at);
        stroke(svg, (x, bottom), (x, bottom + 5.0), "#999");
        text(svg, (x, bottom + 20.0), "text-anchor=\"middle\"", &format!("{at:.0} s"));
        at += if frame.end_s - frame.fault_s > 40.0 { 10.0 } else { 5.0 };
    }
    text(svg, (right, bottom + 40.0), "text-anchor=\"end\" fill=\"#555\"", "time since the fault");
    let marks = [(Some(frame.fault_s), "fault"), (frame.healed_s, "healed")];
    for (at, name) in marks {
        let Some(at) = at else { continue };
        let x = scale.x(at);
        stroke(svg, (x, TOP - 4.0), (x, bottom), "#333");
        text(svg, (x + 4.0, TOP + 6.0), "fill=\"#333\"", name);
    }
}

fn curve(svg: &mut String, line: &Line<'_>, scale: &Scale, frame: &Frame<'_>, colour: &str) {
    let width = if line.name.starts_with("meshport") { 2.2 } else { 1.3 };
    let points = slowest(line.record, scale.from_s, frame.end_s);
    // A line ends where nothing was answered.
    for part in points.chunk_by(|a, b| b.0 - a.0 <= GAP_S) {
        let _ = write!(
            svg,
            "<polyline fill=\"none\" stroke-width=\"{width}\" stroke-opacity=\"0.85\" \
             stroke-linecap=\"round\" stroke-linejoin=\"round\" stroke=\"{colour}\" points=\""
        );
        for (at, took) in part {
            let _ = write!(svg, "{:.1},{:.1} ", scale.x(*at), scale.y(*took));
        }
        svg.push_str("\"/>\n");
    }
}

/// The slowest answered connection of each [`BIN`]: when it began, and its milliseconds. (Every
/// one of them, of a balancer that takes turns, would be a band and no line.)
fn slowest(record: &Record, from_s: f64, to_s: f64) -> Vec<(f64, f64)> {
    let mut bins: BTreeMap<u64, (f64, f64)> = BTreeMap::new();
    for attempt in record.attempts.iter().filter(|attempt| attempt.outcome.is_ok()) {
        let at = attempt.begun.as_secs_f64();
        let took = attempt.took.as_secs_f64() * 1e3;
        if (from_s..=to_s).contains(&at) {
            let bin = attempt.begun.as_micros() / BIN.as_micros();
            let slowest = bins.entry(u64::try_from(bin).unwrap_or(u64::MAX)).or_insert((at, took));
            if took > slowest.1 {
                *slowest = (at, took);
            }
        }
    }
    bins.into_values().collect()
}

/// A failed connection is a cross where it began, in the balancer's own lane.
fn failures(svg: &mut String, line: &Line<'_>, scale: &Scale, y: f64, colour: &str) {
    let failed = line.record.attempts.iter().filter(|attempt| attempt.outcome.is_err());
    let shown = scale.from_s..=scale.to_s;
    for attempt in failed.filter(|attempt| shown.contains(&attempt.begun.as_secs_f64())) {
        let x = scale.x(attempt.begun.as_secs_f64());
        let _ = writeln!(
            svg,
            "<path d=\"M{:.1} {:.1} l6 6 m0 -6 l-6 6\" stroke=\"{colour}\" \
             stroke-width=\"1.6\"/>",
            x - 3.0,
            y - 3.0
        );
    }
}

fn legend(svg: &mut String, name: &str, y: f64, colour: &str) {
    let x = WIDTH - RIGHT + 16.0;
    let _ = writeln!(
        svg,
        "<line x1=\"{x}\" y1=\"{y}\" x2=\"{}\" y2=\"{y}\" stroke=\"{colour}\" stroke-width=\"3\"/>",
        x + 22.0
    );
    text(svg, (x + 30.0, y + 4.0), "", name);
}

fn stroke(svg: &mut String, from: (f64, f64), to: (f64, f64), colour: &str) {
    let _ = writeln!(
        svg,
        "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\"/>",
        from.0, from.1, to.0, to.1
    );
}

fn text(svg: &mut String, at: (f64, f64), style: &str, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(svg, "<text x=\"{:.1}\" y=\"{:.1}\" {style}>{words}</text>", at.0, at.1);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Attempt, Failure};

    #[test]
    fn slower_is_higher_and_failures_are_marked() {
        let attempt = |at, took, outcome| Attempt {
            begun: Duration::from_secs(at),
            took: Duration::from_millis(took),
            outcome,
        };
        let mut record = Record::default();
        record.attempt(attempt(10, 4, Ok("near".to_owned())));
        record.attempt(attempt(10, 40, Ok("mid".to_owned())));
        record.attempt(attempt(14, 4, Ok("near".to_owned())));
        record.attempt(attempt(1, 5_000, Err(Failure::Refused)));
        record.attempt(attempt(11, 5_000, Err(Failure::TimedOut)));
        let frame = Frame { title: "a < b", fault_s: 10.0, healed_s: None, end_s: 20.0 };
        let svg = draw(&frame, &[Line { name: "x", record: &record }]);
        assert!(svg.contains("a &lt; b") && svg.contains("l6 6 m0 -6"));
        assert_eq!(svg.matches("<polyline").count(), 2, "there is a gap");
        assert_eq!(svg.matches("l6 6 m0 -6").count(), 1, "what is before the picture is not in it");
        assert_eq!(slowest(&record, 5.0, 20.0), [(10.0, 40.0), (14.0, 4.0)]);
        let scale = Scale { from_s: 5.0, to_s: 20.0, floor: 500.0 };
        assert!(scale.y(1_000.0) < scale.y(10.0) && scale.y(1e9) >= TOP);
        assert!(scale.x(6.0) < scale.x(19.0) && scale.x(99.0) <= WIDTH - RIGHT);
    }
}
