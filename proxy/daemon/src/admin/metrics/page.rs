//! The metrics page: the Prometheus text format 0.0.4, or OpenMetrics 1.0 where the scraper asks
//! for it.
//!
//! Not written with a library, because the numbers arrive as plain [`Sample`]s: there is no
//! registry, only text. Samples of a metric are grouped below its head, in the order in which
//! metrics first appear. Of two samples with the same labels the first wins.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::{Distribution, Kind, Metric, Sample, Value};

/// The exposition format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Text,
    OpenMetrics,
}

/// The media type of OpenMetrics, without its parameters.
const OPEN_METRICS: &str = "application/openmetrics-text";

impl Format {
    /// The format for these `Accept` headers: OpenMetrics if named and preferred at least as much
    /// as text.
    pub(crate) fn wanted<'a>(accept: impl Iterator<Item = &'a str>) -> Self {
        let (mut open, mut text) = (0.0, 0.0);
        for range in accept.flat_map(|value| value.split(',')) {
            let mut parts = range.split(';').map(str::trim);
            let kind = parts.next().unwrap_or_default();
            let (mut weight, mut is_known) = (1.0, true);
            for (key, value) in parts.filter_map(|part| part.split_once('=')) {
                match key.trim() {
                    "q" => weight = value.trim().parse().unwrap_or(0.0),
                    "version" => is_known = value.trim() == "1.0.0",
                    _ => {}
                }
            }
            if kind.eq_ignore_ascii_case(OPEN_METRICS) && is_known {
                open = f64::max(open, weight);
            } else if kind.eq_ignore_ascii_case("text/plain") {
                text = f64::max(text, weight);
            }
        }
        if open > 0.0 && open >= text { Self::OpenMetrics } else { Self::Text }
    }

    /// The media type to answer with.
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// The page for these samples.
pub(crate) fn render(samples: &[Sample], format: Format) -> String {
    let mut order: Vec<&Metric> = Vec::new();
    let mut families: BTreeMap<&str, Vec<&Sample>> = BTreeMap::new();
    for sample in samples {
        let family = families.entry(sample.metric.name).or_insert_with(|| {
            order.push(sample.metric);
            Vec::new()
        });
        family.push(sample);
    }
    let mut page = String::new();
    for metric in order {
        write_head(&mut page, metric, format);
        let mut seen = BTreeSet::new();
        for sample in families[metric.name].iter().filter(|it| seen.insert(&it.labels)) {
            write_sample(&mut page, sample);
        }
    }
    if format == Format::OpenMetrics {
        page.push_str("# EOF\n");
    }
    page
}

/// The head of a metric. The help begins with its stability, as that of Kubernetes' metrics does.
fn write_head(page: &mut String, metric: &Metric, format: Format) {
    // OpenMetrics names a counter without the suffix of its samples.
    let name = match format {
        Format::OpenMetrics => metric.name.strip_suffix("_total").unwrap_or(metric.name),
        Format::Text => metric.name,
    };
    let stability = metric.stability.word().to_ascii_uppercase();
    put(page, format_args!("# HELP {name} [{stability}] "));
    escape(page, metric.help, format == Format::OpenMetrics);
    put(page, format_args!("\n# TYPE {name} {}\n", metric.kind.word()));
    if format == Format::OpenMetrics && !metric.unit.is_empty() {
        put(page, format_args!("# UNIT {name} {}\n", metric.unit));
    }
}

fn write_sample(page: &mut String, sample: &Sample) {
    let Metric { name, labels, .. } = sample.metric;
    debug_assert_eq!(labels.len(), sample.labels.len(), "{name}");
    let values = sample.labels.iter().map(String::as_str);
    let labels: Vec<(&str, &str)> = labels.iter().copied().zip(values).collect();
    match &sample.value {
        Value::Number(value) => write_line(page, name, "", &labels, *value),
        Value::Distribution(distribution) => {
            debug_assert_eq!(sample.metric.kind, Kind::Histogram, "{name}");
            write_distribution(page, name, &labels, distribution);
        }
    }
}

fn write_distribution(
    page: &mut String,
    name: &str,
    labels: &[(&str, &str)],
    Distribution { bounds, counts, sum }: &Distribution,
) {
    let bounds = bounds.iter().map(|bound| canonical(bound.as_secs_f64()));
    let mut below = 0;
    for (bound, count) in bounds.chain(["+Inf".to_owned()]).zip(counts) {
        below += count;
        let labels = [labels, &[("le", &bound)]].concat();
        write_line(page, name, "_bucket", &labels, in_f64(below));
    }
    write_line(page, name, "_sum", labels, sum.as_secs_f64());
    write_line(page, name, "_count", labels, in_f64(below));
}

/// A bound is part of a series' identity, so it has the same text in both formats; OpenMetrics
/// requires a fraction.
fn canonical(bound: f64) -> String {
    if bound.fract() == 0.0 { format!("{bound:.1}") } else { bound.to_string() }
}

#[expect(clippy::cast_precision_loss, reason = "2^53 events are out of reach")]
fn in_f64(count: u64) -> f64 {
    count as f64
}

fn write_line(page: &mut String, name: &str, end: &str, labels: &[(&str, &str)], value: f64) {
    put(page, format_args!("{name}{end}"));
    for (at, (label, text)) in labels.iter().enumerate() {
        page.push(if at == 0 { '{' } else { ',' });
        put(page, format_args!("{label}=\""));
        escape(page, text, true);
        page.push('"');
    }
    if !labels.is_empty() {
        page.push('}');
    }
    page.push(' ');
    write_value(page, value);
    page.push('\n');
}

fn put(page: &mut String, text: std::fmt::Arguments<'_>) {
    page.write_fmt(text).expect("writing to a String does not fail");
}

/// Backslash and line feed are escaped everywhere; the quote in label values, and in the help of
/// OpenMetrics.
fn escape(page: &mut String, text: &str, quoted: bool) {
    for character in text.chars() {
        match character {
            '\\' => page.push_str("\\\\"),
            '\n' => page.push_str("\\n"),
            '"' if quoted => page.push_str("\\\""),
            other => page.push(other),
        }
    }
}

fn write_value(page: &mut String, value: f64) {
    if value.is_nan() {
        page.push_str("NaN");
    } else if value.is_infinite() {
        page.push_str(if value > 0.0 { "+Inf" } else { "-Inf" });
    } else {
        put(page, format_args!("{value}"));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::Stability;
    use super::*;

    static RX: Metric = Metric {
        name: "meshport_rx_bytes_total",
        kind: Kind::Counter,
        unit: "bytes",
        stability: Stability::Stable,
        labels: &[],
        help: "Some \"help\".",
    };
    static MEMBERS: Metric = Metric {
        name: "meshport_members",
        kind: Kind::Gauge,
        unit: "",
        stability: Stability::Alpha,
        labels: &[],
        help: "back\\slash and\nline",
    };
    static RTT: Metric = Metric {
        name: "meshport_rtt_seconds",
        unit: "seconds",
        labels: &["origin", "site"],
        help: "Some help.",
        ..MEMBERS
    };
    static TIMES: Metric = Metric {
        name: "meshport_times_seconds",
        kind: Kind::Histogram,
        labels: &["service"],
        ..RTT
    };

    fn number(metric: &'static Metric, labels: &[&str], value: f64) -> Sample {
        let labels = labels.iter().map(|it| (*it).to_owned()).collect();
        Sample { metric, labels, value: Value::Number(value) }
    }

    #[test]
    fn text_has_help_type_and_value() {
        let page = [number(&RX, &[], 12.0), number(&MEMBERS, &[], 3.0)];
        assert_eq!(
            render(&page, Format::Text),
            "# HELP meshport_rx_bytes_total [STABLE] Some \"help\".\n\
             # TYPE meshport_rx_bytes_total counter\n\
             meshport_rx_bytes_total 12\n\
             # HELP meshport_members [ALPHA] back\\\\slash and\\nline\n\
             # TYPE meshport_members gauge\n\
             meshport_members 3\n"
        );
    }

    #[test]
    fn open_metrics_has_units_and_an_end() {
        assert_eq!(
            render(&[number(&RX, &[], 12.0)], Format::OpenMetrics),
            "# HELP meshport_rx_bytes [STABLE] Some \\\"help\\\".\n\
             # TYPE meshport_rx_bytes counter\n\
             # UNIT meshport_rx_bytes bytes\n\
             meshport_rx_bytes_total 12\n\
             # EOF\n"
        );
        assert_eq!(render(&[], Format::OpenMetrics), "# EOF\n");
        assert_eq!(render(&[], Format::Text), "");
    }

    #[test]
    fn a_metric_stands_together_and_no_sample_twice() {
        let page = [
            number(&RTT, &["a", "x\"y\\z\nw"], 0.002),
            number(&MEMBERS, &[], 1.0),
            number(&RTT, &["b", "fra"], 0.035),
            number(&RTT, &["b", "fra"], 0.5),
        ];
        let page = render(&page, Format::Text);
        let together = "# TYPE meshport_rtt_seconds gauge\n\
                        meshport_rtt_seconds{origin=\"a\",site=\"x\\\"y\\\\z\\nw\"} 0.002\n\
                        meshport_rtt_seconds{origin=\"b\",site=\"fra\"} 0.035\n\
                        # HELP meshport_members";
        assert!(page.contains(together), "{page}");
        assert_eq!(page.matches("meshport_rtt_seconds{").count(), 2);
    }

    #[test]
    fn ranges_of_a_histogram_add_up() {
        let bounds = const { &[Duration::from_micros(2500), Duration::from_secs(5)] };
        let sum = Duration::from_millis(7500);
        let times = Distribution { bounds, counts: vec![4, 0, 2], sum };
        let value = Value::Distribution(times);
        let sample = Sample { metric: &TIMES, labels: vec!["any".into()], value };
        let page = render(&[sample], Format::Text);
        assert!(page.contains("# TYPE meshport_times_seconds histogram\n"));
        let lines = "meshport_times_seconds_bucket{service=\"any\",le=\"0.0025\"} 4\n\
                     meshport_times_seconds_bucket{service=\"any\",le=\"5.0\"} 4\n\
                     meshport_times_seconds_bucket{service=\"any\",le=\"+Inf\"} 6\n\
                     meshport_times_seconds_sum{service=\"any\"} 7.5\n\
                     meshport_times_seconds_count{service=\"any\"} 6\n";
        assert!(page.ends_with(lines), "{page}");
    }

    #[test]
    fn every_value_has_a_form() {
        let written = |value| {
            let page = render(&[number(&MEMBERS, &[], value)], Format::Text);
            page.lines().last().and_then(|line| Some(line.split_once(' ')?.1.to_owned()))
        };
        for (value, text) in [
            (f64::NAN, "NaN"),
            (f64::INFINITY, "+Inf"),
            (f64::NEG_INFINITY, "-Inf"),
            (1e15, "1000000000000000"),
            (0.1, "0.1"),
        ] {
            assert_eq!(written(value).as_deref(), Some(text));
        }
    }

    /// The first two are those of Prometheus 2.42 and 3.
    #[test]
    fn the_format_is_the_one_asked_for() {
        for (accept, format) in [
            (
                "application/openmetrics-text;version=1.0.0,application/openmetrics-text;\
                 version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
                Format::OpenMetrics,
            ),
            (
                "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
                 application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;\
                 escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
                Format::OpenMetrics,
            ),
            ("application/openmetrics-text", Format::OpenMetrics),
            ("application/openmetrics-text; version=0.0.1", Format::Text),
            ("application/openmetrics-text; version=1.0.0; q=0", Format::Text),
            ("text/plain, application/openmetrics-text;q=0.9", Format::Text),
            ("text/html,*/*;q=0.8", Format::Text),
            ("*/*", Format::Text),
            (";;q=,,=", Format::Text),
        ] {
            assert_eq!(Format::wanted([accept].into_iter()), format, "{accept}");
        }
        assert_eq!(Format::wanted(std::iter::empty()), Format::Text);
    }
}
