//! Lines and bars over an axis, with marks where something happened.

use maud::{Markup, html};

use crate::{Drawing, LETTER, WIDTH, count, px, short, title_width, width};

/// Room left and right of what is drawn, and for the title and what y is.
const LEFT: f64 = 56.0;
const RIGHT: f64 = 14.0;
const TITLE: f64 = 36.0;
/// A row of words: what marks say, a lane of crosses, the numbers of the axis, the legend.
const ROW: f64 = 14.0;
/// Rows for what marks say; words that find no room in them are shown where a mouse points.
const MAX_MARK_ROWS: usize = 6;
/// Points of one line; longer ones are thinned to the greatest of several.
const MAX_POINTS: usize = 1200;

/// An axis.
#[derive(Debug, Default)]
pub struct Axis<'a> {
    /// The meaning of its numbers.
    pub words: &'a str,
    /// Logarithmic, in powers of ten.
    pub log: bool,
}

/// A line, or a row of bars.
#[derive(Debug, Default)]
pub struct Series<'a> {
    /// Name in the legend.
    pub name: &'a str,
    /// Its class in the style sheet.
    pub class: String,
    /// Ordered by x.
    pub points: Vec<(f64, f64)>,
    /// Draws each point as a bar.
    pub bars: bool,
    /// Positions of crosses, in the lane of this series.
    pub crosses: Vec<f64>,
}

/// A whole drawing.
#[derive(Debug, Default)]
pub struct Chart<'a> {
    /// Its title.
    pub title: &'a str,
    /// The horizontal axis.
    pub x: Axis<'a>,
    /// Upwards; from zero unless in powers of ten.
    pub y: Axis<'a>,
    /// The height of the drawing without words around it.
    pub height: f64,
    /// The first is on top.
    pub series: Vec<Series<'a>>,
    /// Positions and labels of events, ordered by x.
    pub marks: Vec<(f64, String)>,
    /// The meaning of the crosses. None: there are no lanes for them.
    pub crosses: Option<&'a str>,
    /// A line ends where its next point is farther away. None: it never does.
    pub max_gap: Option<f64>,
}

impl Chart<'_> {
    /// The drawing.
    pub fn draw(&self) -> Drawing {
        let all = || self.series.iter().flat_map(|series| &series.points);
        let x = Scale::new(self.x.log, all().map(|it| it.0), (LEFT, WIDTH - RIGHT), 12.0);
        let (marks, rows) = self.place_marks(&x);
        let top = TITLE + ROW * count(rows);
        let floor = top + self.height;
        let bottom = floor + self.crosses.map_or(0.0, |_| ROW * count(self.series.len()));
        let zero = (!self.y.log).then_some(0.0);
        let y = all().map(|it| it.1).chain(zero);
        let y = Scale::new(self.y.log, y, (floor, top), 4.0).rounded();
        let (legend, height) = self.legend(bottom + 2.5 * ROW);
        let squeezed = (title_width(self.title) > WIDTH).then_some(WIDTH - 4.0);
        let body = html! {
            text.title x="2" y="14" textLength=[squeezed]
                lengthAdjust="spacingAndGlyphs" { (self.title) }
            text.soft x="2" y="28" { (self.y.words) }
            @for value in y.ticks() {
                line.grid x1=(x.from) x2=(x.to) y1=(y.at(value)) y2=(y.at(value)) {}
                text.soft x=(x.from - 6.0) y=(y.at(value) + 4.0) text-anchor="end" {
                    (short(value))
                }
            }
            line.axis x1=(x.from) x2=(x.to) y1=(bottom) y2=(bottom) {}
            @for value in x.ticks() {
                text.soft x=(x.at(value)) y=(bottom + ROW) text-anchor="middle" { (short(value)) }
            }
            text.soft x=(x.to) y=(bottom + 2.5 * ROW) text-anchor="end" { (self.x.words) }
            (legend)
            @for Mark { at, words, start, row } in marks {
                @let top = TITLE + ROW * count(row.unwrap_or(rows));
                line.mark x1=(at) x2=(at) y1=(top) y2=(bottom) { title { (words) } }
                @if row.is_some() { text x=(start) y=(top + 10.0) { (words) } }
            }
            (self.lanes(&x, floor))
            @for series in self.series.iter().rev() { (self.series(series, &x, &y)) }
        };
        Drawing { title: self.title.to_owned(), height, body }
    }

    /// The marks, and how many rows their words take.
    fn place_marks(&self, x: &Scale) -> (Vec<Mark<'_>>, usize) {
        let mut ends = [0.0; MAX_MARK_ROWS];
        let mut marks = Vec::new();
        for (at, words) in &self.marks {
            let at = x.at(*at);
            // A label that would leave the drawing goes to the left of its mark.
            let start = px((at + 2.0).min(WIDTH - width(words)).max(0.0));
            let row = ends.iter().position(|end| *end < start);
            if let Some(row) = row {
                ends[row] = start + width(words);
            }
            marks.push(Mark { at, words, start, row });
        }
        let rows = marks.iter().filter_map(|mark| mark.row).max().map_or(0, |row| row + 1);
        (marks, rows)
    }

    fn lanes(&self, x: &Scale, floor: f64) -> Markup {
        html! {
            @if let Some(words) = self.crosses {
                text.soft x=(LEFT - 6.0) y=(floor + ROW * 2.0) text-anchor="end" { (words) }
            }
            @for (lane, series) in self.series.iter().enumerate() {
                @for at in &series.crosses {
                    path class={ "line " (series.class) }
                        d={ "M" (x.at(*at) - 3.0) " " (floor + ROW * count(lane) + 4.0)
                            "l6 6m0-6l-6 6" } {}
                }
            }
        }
    }

    fn series(&self, series: &Series<'_>, x: &Scale, y: &Scale) -> Markup {
        let every = series.points.len().div_ceil(MAX_POINTS).max(1);
        let greatest = |chunk: &[(f64, f64)]| {
            let greatest = chunk.iter().map(|point| point.1).fold(0.0, f64::max);
            format!("{},{} ", x.at(chunk[0].0), y.at(greatest))
        };
        let is_near = |a: &(f64, _), b: &(f64, _)| self.max_gap.is_none_or(|it| b.0 - a.0 <= it);
        html! {
            @if series.bars {
                @for (at, value) in series.points.iter().filter(|point| point.1 > 0.0) {
                    // A small one is still seen.
                    @let top = y.at(*value).min(y.from - 1.5);
                    rect class={ "bar " (series.class) } x=(px(x.at(*at) - 1.1)) width="2.2"
                        y=(top) height=(px(y.from - top)) {}
                }
            } @else {
                @for part in series.points.chunk_by(is_near) {
                    @let points: String = part.chunks(every).map(greatest).collect();
                    polyline class={ "line " (series.class) } points=(points) {}
                }
            }
        }
    }

    /// The names in columns next to the label of x, and the height with them.
    fn legend(&self, top: f64) -> (Markup, f64) {
        let names = self.series.iter().map(|series| width(series.name));
        let column = names.fold(0.0, f64::max) + 5.0 * LETTER;
        let room = WIDTH - RIGHT - width(self.x.words) - LEFT;
        let columns = (1..=self.series.len()).rev().find(|it| count(*it) * column <= room);
        let columns = columns.unwrap_or(1);
        let legend = html! {
            @for (place, series) in self.series.iter().enumerate() {
                @let x = px(LEFT + column * count(place % columns));
                @let y = top + ROW * count(place / columns);
                rect class={ "bar " (series.class) } x=(x) y=(y - 9.0) width="10" height="10" {}
                text.soft x=(x + 14.0) y=(y) { (series.name) }
            }
        };
        (legend, top + ROW * count(self.series.len().div_ceil(columns)))
    }
}

/// Position and label of a mark.
struct Mark<'a> {
    at: f64,
    words: &'a str,
    start: f64,
    /// None if there is no room.
    row: Option<usize>,
}

/// Maps values to positions in the drawing.
struct Scale {
    log: bool,
    low: f64,
    high: f64,
    /// The distance between two numbers on the axis; 1 in powers of ten.
    step: f64,
    from: f64,
    to: f64,
}

impl Scale {
    /// Scales from the least to the greatest value, with up to `most` labels.
    fn new(log: bool, values: impl Iterator<Item = f64>, ends: (f64, f64), most: f64) -> Self {
        let (from, to) = ends;
        let mut scale = Self { log, low: 0.0, high: 1.0, step: 1.0, from, to };
        let values: Vec<f64> = values.map(|value| scale.linear(value)).collect();
        if let Some(low) = values.iter().copied().reduce(f64::min) {
            let high = values.into_iter().fold(low, f64::max);
            scale.step = if log { 1.0 } else { nice((high - low) / most) };
            (scale.low, scale.high) = (low, if high > low { high } else { low + scale.step });
        }
        scale
    }

    /// Extends it to the next numbers on the axis.
    fn rounded(mut self) -> Self {
        self.low = (self.low / self.step).floor() * self.step;
        self.high = (self.high / self.step).ceil() * self.step;
        self
    }

    fn linear(&self, value: f64) -> f64 {
        if self.log { value.max(1e-3).log10() } else { value }
    }

    fn at(&self, value: f64) -> f64 {
        let share = (self.linear(value) - self.low) / (self.high - self.low);
        px(self.from + share.clamp(0.0, 1.0) * (self.to - self.from))
    }

    /// The round numbers on the axis.
    fn ticks(&self) -> Vec<f64> {
        let (low, high) = (self.low - self.step * 1e-6, self.high + self.step * 1e-6);
        let powers = (-3..=9).flat_map(|power| [1.0, 2.0, 5.0].map(|it| it * 10_f64.powi(power)));
        let first = (self.low / self.step).ceil();
        let steps = (0..=20).map(|place| self.step * (first + f64::from(place)));
        let all: Vec<f64> = if self.log { powers.collect() } else { steps.collect() };
        all.into_iter().filter(|it| (low..=high).contains(&self.linear(*it))).collect()
    }
}

/// A round number not below the value.
fn nice(value: f64) -> f64 {
    if value <= 0.0 {
        return 1.0;
    }
    let power = 10_f64.powf(value.log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0].map(|step| step * power);
    steps.into_iter().find(|step| *step >= value).unwrap_or(10.0 * power)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_beside_an_axis_are_round() {
        let scale = |log, low, high| Scale::new(log, [low, high].into_iter(), (0.0, 100.0), 4.0);
        assert_eq!(scale(false, 3.0, 21.0).ticks(), [5.0, 10.0, 15.0, 20.0]);
        assert_eq!(scale(false, 3.0, 21.0).rounded().ticks(), [0.0, 5.0, 10.0, 15.0, 20.0, 25.0]);
        assert_eq!(scale(false, 7.0, 7.0).ticks(), [7.0, 8.0]);
        assert_eq!(scale(true, 2.0, 60.0).ticks(), [2.0, 5.0, 10.0, 20.0, 50.0]);
        assert_eq!([1.0, 10.0, 1e9].map(|it| scale(true, 1.0, 100.0).at(it)), [0.0, 50.0, 100.0]);
    }

    #[test]
    fn lines_end_at_gaps_and_crosses_have_lanes() {
        let points = vec![(1.0, 4.0), (2.0, 40.0), (9.0, 4.0)];
        let series = Series { name: "a < b", points, crosses: vec![3.0], ..Series::default() };
        let chart = Chart {
            series: vec![series],
            marks: vec![(2.0, "fault".to_owned())],
            crosses: Some("failed"),
            max_gap: Some(2.0),
            ..Chart::default()
        };
        let svg = chart.draw().to_string();
        assert!(svg.contains("a &lt; b") && svg.contains(">fault<"), "{svg}");
        assert_eq!((svg.matches("<polyline").count(), svg.matches("<path").count()), (2, 1));
    }
}
