//! The numbers of a daemon's metrics page, by name.

use std::collections::BTreeMap;

use meshport_config::counters::{Counter, CounterRow};

/// The samples of one metrics page: `name{labels}` and its value.
#[derive(Clone, Debug, Default)]
pub struct Metrics(BTreeMap<String, f64>);

impl Metrics {
    /// Parses the Prometheus text format; skips lines that are not samples.
    pub fn parse(page: &str) -> Self {
        let sample = |line: &str| {
            let (key, value) = line.rsplit_once(' ')?;
            Some((key.to_owned(), value.parse().ok()?))
        };
        Self(page.lines().filter(|line| !line.starts_with('#')).filter_map(sample).collect())
    }

    /// The sum over all samples of `name` whose labels contain `label` (empty: all of them).
    pub fn sum(&self, name: &str, label: &str) -> f64 {
        let own = |key: &str| {
            let (found, labels) = key.split_once('{').unwrap_or((key, ""));
            found == name && labels.contains(label)
        };
        // Starts at +0, where the sum of an empty iterator is -0.
        self.0.iter().filter(|(key, _)| own(key)).fold(0.0, |sum, (_, value)| sum + value)
    }

    /// How many sessions the daemon cut, and how many it moved.
    pub fn ended(&self) -> [f64; 2] {
        ["cut", "moved"].map(|how| self.sum(&format!("meshport_sessions_{how}_total"), ""))
    }

    /// The value of this counter.
    pub fn count(&self, counter: impl Counter) -> f64 {
        let CounterRow { metric, label, value, .. } = counter.row();
        self.sum(metric, &format!("{label}=\"{value}\""))
    }

    /// Every sample that is larger here than `before`, for the message of a failing test.
    pub fn grown_since(&self, before: &Self) -> Vec<String> {
        let old = |key: &str| before.0.get(key).copied().unwrap_or(0.0);
        let grown = self.0.iter().filter(|(key, value)| **value > old(key));
        grown.map(|(key, value)| format!("{key} {} -> {value}", old(key))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_summed_by_name_and_label() {
        let page =
            "# HELP a_total x\na_total{why=\"x\"} 2\na_total{why=\"y\"} 3\nb 1.5\n\nnonsense\n";
        let metrics = Metrics::parse(page);
        assert_eq!(metrics.sum("a_total", ""), 5.0);
        assert_eq!(metrics.sum("a_total", "why=\"y\""), 3.0);
        assert_eq!(metrics.sum("b", ""), 1.5);
        assert_eq!(metrics.sum("missing", ""), 0.0);
        assert_eq!(metrics.grown_since(&Metrics::parse("b 1.5\na_total{why=\"x\"} 2")).len(), 1);
    }
}
