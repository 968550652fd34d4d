//! The section of `docs/reference.md` that lists all metrics.

use std::fmt::Write;

use meshport_config::counters::{Counter, CounterRow};
use meshport_discovery::Count;
use meshport_mesh::MeshCount;

use super::ALL;
use crate::sessions::totals::SessionCount;

/// A table of all metrics, and one for each metric whose samples are rows of counters.
pub fn reference() -> String {
    let mut text = String::from("| metric | kind | labels | stability | meaning |\n");
    text.push_str("| --- | --- | --- | --- | --- |\n");
    for metric in ALL {
        let (name, kind, labels) = (metric.name, metric.kind.word(), metric.labels.join(", "));
        let (stability, help) = (metric.stability.word(), metric.help);
        writeln!(text, "| `{name}` | {kind} | {labels} | {stability} | {help} |")
            .expect("writing to a String does not fail");
    }
    let mut above = "";
    for row in rows().filter(|row| !row.label.is_empty()) {
        let CounterRow { metric, label, value, help } = row;
        if metric != above {
            above = metric;
            write!(text, "\n### `{metric}`\n\n| {label} | meaning |\n| --- | --- |\n")
                .expect("writing to a String does not fail");
        }
        writeln!(text, "| `{value}` | {help} |").expect("writing to a String does not fail");
    }
    text
}

fn rows() -> impl Iterator<Item = CounterRow> {
    let of_mesh = MeshCount::ALL.iter().map(|it| it.row());
    let of_discovery = Count::ALL.iter().map(|it| it.row());
    SessionCount::ALL.iter().map(|it| it.row()).chain(of_mesh).chain(of_discovery)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};

    use super::super::{Kind, by_name};
    use super::*;

    fn page(name: &str) -> (PathBuf, String) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
        let text = std::fs::read_to_string(&path).expect("the page");
        (path, text)
    }

    /// With `MESHPORT_WRITE_REFERENCE=1` it writes the section instead.
    #[test]
    fn the_reference_has_every_metric() {
        let (path, text) = page("reference.md");
        let (begin, end) = ("<!-- metrics: generated -->\n\n", "\n<!-- metrics: end -->");
        let (before, rest) = text.split_once(begin).expect("the section begins");
        let (section, after) = rest.split_once(end).expect("the section ends");
        if std::env::var_os("MESHPORT_WRITE_REFERENCE").is_some() {
            let text = [before, begin, &reference(), end, after].concat();
            std::fs::write(path, text).expect("written");
        } else {
            let is_same = section == reference();
            assert!(is_same, "outdated: run this test with MESHPORT_WRITE_REFERENCE=1");
        }
    }

    /// The rules of `promtool check metrics`, for metrics that no test happens to output.
    #[test]
    fn names_follow_the_rules() {
        let mut names = BTreeSet::new();
        for metric in ALL {
            let name = metric.name;
            assert!(names.insert(name), "{name} twice");
            assert!(name.starts_with("meshport_") || name.starts_with("process_"), "{name}");
            let is_word = |text: &str| text.bytes().all(|it| it.is_ascii_lowercase() || it == b'_');
            assert!(is_word(name) && metric.labels.iter().all(|it| is_word(it)), "{name}");
            assert_eq!(name.ends_with("_total"), metric.kind == Kind::Counter, "{name}");
            let stem = name.strip_suffix("_total").unwrap_or(name);
            assert!(stem.ends_with(metric.unit), "{name}: {}", metric.unit);
            let unit = ["seconds", "bytes", "ratio"].into_iter().find(|it| stem.ends_with(it));
            assert_eq!(unit.unwrap_or_default(), metric.unit, "{name}");
            for reserved in ["_count", "_sum", "_bucket", "_gauge", "_counter", "_created"] {
                assert!(!stem.ends_with(reserved), "{name}");
            }
            assert!(metric.help.ends_with('.') && !metric.help.contains('|'), "{name}");
            assert!(!metric.labels.iter().any(|it| ["le", "quantile", "job"].contains(it)));
        }
    }

    #[test]
    fn every_counter_is_shown_by_a_metric_with_its_label() {
        let mut shown = BTreeSet::new();
        for CounterRow { metric: name, label, value, help } in rows() {
            let metric = by_name(name).unwrap_or_else(|| panic!("{name} is no metric"));
            assert_eq!(metric.kind, Kind::Counter, "{name}");
            assert!(shown.insert((name, value)), "{name}: {value} twice");
            let last = metric.labels.last().copied().unwrap_or_default();
            assert_eq!(last, if label.is_empty() { "service" } else { label }, "{name}");
            assert!(help.ends_with('.') && !help.contains('|'), "{name}: {help}");
        }
    }

    #[test]
    fn the_pages_name_metrics_and_labels_that_exist() {
        let mut named = 0;
        for name in ["security.md", "operate.md", "troubleshoot.md", "install.md"] {
            let (_, text) = page(name);
            for (at, _) in text.match_indices("meshport_") {
                let rest = &text[at..];
                let is_name = |c: char| c.is_ascii_lowercase() || c == '_';
                let metric = &rest[..rest.find(|c| !is_name(c)).unwrap_or(rest.len())];
                // The name of a package begins with a version.
                if metric == "meshport_" {
                    continue;
                }
                let known = by_name(metric).unwrap_or_else(|| panic!("{name}: {metric}"));
                named += 1;
                let Some(labels) = rest[metric.len()..].strip_prefix('{') else { continue };
                let (label, values) = labels.split_once('=').expect("a label");
                assert!(known.labels.contains(&label), "{name}: {metric}: {label}");
                let values = values.trim_start_matches('~').split('"').nth(1).expect("a text");
                let exists = |value| {
                    value == "..." || rows().any(|it| it.metric == metric && it.value == value)
                };
                if rows().any(|row| row.metric == metric && row.label == label) {
                    for value in values.split('|').map(|it| it.trim_end_matches('\\')) {
                        assert!(exists(value), "{name}: {metric}: {value}");
                    }
                }
            }
        }
        assert!(named >= 20, "{named}");
    }
}
