//! A plot per fault: connect times over time, one line per balancer, and every failure.

use std::collections::BTreeMap;
use std::time::Duration;

use meshport_charts::{Axis, Chart, Series};

use crate::record::Record;

/// Seconds shown before the fault, as a baseline.
const BEFORE_S: f64 = 5.0;
/// The range of connect times that is drawn, in milliseconds; values outside are at the edge.
const RANGE_MS: (f64, f64) = (1.0, 5_000.0);
/// Each point of a line is the slowest connection of this time.
const BIN: Duration = Duration::from_secs(1);
/// So long without an answer, in seconds, is a gap in the line: more than between the ends of two
/// neighbouring bins.
const GAP_S: f64 = 2.1;
/// Height of the drawing without its labels.
const HEIGHT: f64 = 330.0;

/// Time of the mark, in seconds.
pub(crate) struct Frame<'a> {
    pub(crate) title: &'a str,
    pub(crate) fault_s: f64,
    pub(crate) healed_s: Option<f64>,
    pub(crate) end_s: f64,
}

/// The drawing as SVG.
pub(crate) fn draw(frame: &Frame<'_>, records: &[(String, Record)]) -> String {
    let series = records.iter().enumerate().map(|(place, (name, record))| Series {
        name,
        class: format!("s{place}{}", if name.starts_with("meshport") { " strong" } else { "" }),
        points: slowest(record, frame),
        crosses: failures(record, frame),
        bars: false,
    });
    let healed = frame.healed_s.map(|at| (at - frame.fault_s, "healed".to_owned()));
    let chart = Chart {
        title: frame.title,
        x: Axis { words: "seconds since the fault", log: false },
        y: Axis {
            words: "ms to the first byte of the answer, the slowest new connection of each second",
            log: true,
        },
        height: HEIGHT,
        series: series.collect(),
        marks: [(0.0, "fault".to_owned())].into_iter().chain(healed).collect(),
        crosses: Some("failed"),
        max_gap: Some(GAP_S),
    };
    chart.draw().to_string()
}

/// Start time in seconds since the fault; none if it is outside of the drawing.
fn place(begun: Duration, frame: &Frame<'_>) -> Option<f64> {
    let at = begun.as_secs_f64() - frame.fault_s;
    (-BEFORE_S..=frame.end_s - frame.fault_s).contains(&at).then_some(at)
}

/// The slowest answered connection of each [`BIN`]: when it began, and its milliseconds. (Every
/// one of them, of a balancer that takes turns, would be a band and no line.)
fn slowest(record: &Record, frame: &Frame<'_>) -> Vec<(f64, f64)> {
    let mut bins: BTreeMap<u128, (f64, f64)> = BTreeMap::new();
    for attempt in record.attempts.iter().filter(|attempt| attempt.outcome.is_ok()) {
        let Some(at) = place(attempt.begun, frame) else { continue };
        let took = (attempt.took.as_secs_f64() * 1e3).clamp(RANGE_MS.0, RANGE_MS.1);
        let bin = attempt.begun.as_micros() / BIN.as_micros();
        let slowest = bins.entry(bin).or_insert((at, took));
        if took > slowest.1 {
            *slowest = (at, took);
        }
    }
    bins.into_values().collect()
}

fn failures(record: &Record, frame: &Frame<'_>) -> Vec<f64> {
    let failed = record.attempts.iter().filter(|attempt| attempt.outcome.is_err());
    failed.filter_map(|attempt| place(attempt.begun, frame)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Attempt, Failure};

    #[test]
    fn a_point_is_the_slowest_of_its_second_and_failures_are_marked() {
        let attempt = |at, took, outcome| Attempt {
            begun: Duration::from_secs(at),
            took: Duration::from_millis(took),
            outcome,
        };
        let mut record = Record::default();
        record.attempt(attempt(10, 4, Ok("near".to_owned())));
        record.attempt(attempt(10, 40, Ok("mid".to_owned())));
        record.attempt(attempt(14, 9_000, Ok("near".to_owned())));
        record.attempt(attempt(1, 5_000, Err(Failure::Refused)));
        record.attempt(attempt(11, 5_000, Err(Failure::TimedOut)));
        let frame = Frame { title: "a < b", fault_s: 10.0, healed_s: None, end_s: 20.0 };
        assert_eq!(slowest(&record, &frame), [(0.0, 40.0), (4.0, 5_000.0)]);
        assert_eq!(failures(&record, &frame), [1.0], "what is before the drawing is not in it");
        let svg = draw(&frame, &[("meshport".to_owned(), record)]);
        assert_eq!(svg.matches("<polyline").count(), 2, "there is a gap");
    }
}
