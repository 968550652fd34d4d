//! The metrics page: Prometheus text exposition format 0.0.4.
//!
//! Written here rather than with a library because the numbers arrive as plain [`Sample`]s: there
//! is no registry, only text. Samples of one name stand together with one `HELP` and one `TYPE`
//! line, in the order in which their names first appear.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::api::Sample;

/// The media type to answer with.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

const PREFIX: &str = "meshport_";

/// The page for these samples.
pub(super) fn exposition(samples: &[Sample]) -> String {
    let mut order: Vec<&str> = Vec::new();
    let mut families: BTreeMap<&str, Vec<&Sample>> = BTreeMap::new();
    for sample in samples {
        let family = families.entry(sample.name).or_insert_with(|| {
            order.push(sample.name);
            Vec::new()
        });
        family.push(sample);
    }
    let mut page = String::new();
    for name in order {
        write_family(&mut page, &families[name]);
    }
    page
}

fn write_family(page: &mut String, family: &[&Sample]) {
    let Some(first) = family.first() else { return };
    debug_assert!(is_name(first.name), "{} is not a metric name", first.name);
    let (suffix, kind) = if first.counter { ("_total", "counter") } else { ("", "gauge") };
    let name = format!("{PREFIX}{}{suffix}", first.name);
    page.push_str("# HELP ");
    page.push_str(&name);
    page.push(' ');
    escape(page, first.help, false);
    page.push_str("\n# TYPE ");
    page.push_str(&name);
    page.push(' ');
    page.push_str(kind);
    page.push('\n');
    for sample in family {
        page.push_str(&name);
        write_labels(page, &sample.labels);
        page.push(' ');
        write_value(page, sample.value);
        page.push('\n');
    }
}

fn write_labels(page: &mut String, labels: &[(&'static str, String)]) {
    for (index, (name, value)) in labels.iter().enumerate() {
        debug_assert!(is_name(name), "{name} is not a label name");
        page.push(if index == 0 { '{' } else { ',' });
        page.push_str(name);
        page.push_str("=\"");
        escape(page, value, true);
        page.push('"');
    }
    if !labels.is_empty() {
        page.push('}');
    }
}

/// Backslash and line feed are escaped everywhere, the quote in label values only.
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
    let written = if value.is_nan() {
        page.write_str("NaN")
    } else if value.is_infinite() {
        page.write_str(if value > 0.0 { "+Inf" } else { "-Inf" })
    } else {
        write!(page, "{value}")
    };
    written.expect("writing to a String does not fail");
}

fn is_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(name: &'static str, counter: bool, value: f64) -> Sample {
        Sample { name, help: "Some help.", counter, labels: Vec::new(), value }
    }

    fn labelled(name: &'static str, label: &str, value: f64) -> Sample {
        Sample { labels: vec![("origin", label.into())], ..sample(name, false, value) }
    }

    #[test]
    fn counters_and_gauges() {
        let page = exposition(&[sample("rx_bytes", true, 12.0), sample("members", false, 3.0)]);
        assert_eq!(
            page,
            "# HELP meshport_rx_bytes_total Some help.\n\
             # TYPE meshport_rx_bytes_total counter\n\
             meshport_rx_bytes_total 12\n\
             # HELP meshport_members Some help.\n\
             # TYPE meshport_members gauge\n\
             meshport_members 3\n"
        );
    }

    #[test]
    fn a_family_stands_together_with_one_header() {
        let page = exposition(&[
            labelled("rtt_seconds", "a", 0.002),
            sample("members", false, 1.0),
            labelled("rtt_seconds", "b", 0.035),
        ]);
        assert_eq!(page.matches("# TYPE meshport_rtt_seconds gauge").count(), 1);
        let together = "meshport_rtt_seconds{origin=\"a\"} 0.002\n\
                        meshport_rtt_seconds{origin=\"b\"} 0.035\n# HELP meshport_members";
        assert!(page.contains(together), "{page}");
    }

    #[test]
    fn text_is_escaped() {
        let mut nasty = labelled("m", "a\"b\\c\nd", 1.0);
        nasty.help = "back\\slash and\nline \"quoted\"";
        nasty.labels.push(("site", "fra".into()));
        assert_eq!(
            exposition(&[nasty]),
            "# HELP meshport_m back\\\\slash and\\nline \"quoted\"\n\
             # TYPE meshport_m gauge\n\
             meshport_m{origin=\"a\\\"b\\\\c\\nd\",site=\"fra\"} 1\n"
        );
    }

    #[test]
    fn every_value_has_a_form() {
        let value =
            |value| exposition(&[sample("m", false, value)]).lines().last().map(String::from);
        assert_eq!(value(f64::NAN).as_deref(), Some("meshport_m NaN"));
        assert_eq!(value(f64::INFINITY).as_deref(), Some("meshport_m +Inf"));
        assert_eq!(value(f64::NEG_INFINITY).as_deref(), Some("meshport_m -Inf"));
        assert_eq!(value(1e15).as_deref(), Some("meshport_m 1000000000000000"));
        assert_eq!(value(0.1).as_deref(), Some("meshport_m 0.1"));
    }

    #[test]
    fn no_samples_no_page() {
        assert_eq!(exposition(&[]), "");
    }

    #[test]
    fn names_are_told_from_others() {
        assert!(is_name("rx_bytes") && is_name("_x1"));
        assert!(!is_name("1x") && !is_name("rx-bytes") && !is_name(""));
    }
}
