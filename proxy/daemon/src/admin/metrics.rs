//! The metrics: one table, and everything generated from it.
//!
//! `ALL` has a row for each metric. The metrics page and `docs/reference.md` are generated from it,
//! and the dashboard and alerts of `meshport generate monitoring` use only its metrics. Label
//! values are bounded by the mesh's services and origins and by lists in code, never by its
//! members.

use meshport_config::words;

mod page;
mod reference;
mod table;

pub(crate) use page::{Format, render};
pub use reference::reference;
pub(crate) use table::*;

pub use crate::sessions::durations::Distribution;

words! {
    /// The kind of a metric.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Kind {
        /// A value that goes up and down.
        Gauge => "gauge",
        /// A value that only increases while the daemon runs.
        Counter => "counter",
        /// How many values were in each range.
        Histogram => "histogram",
    }
}

words! {
    /// How far a metric may change in later versions, in Kubernetes' terms.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Stability {
        /// Name, kind and labels stay, and a value keeps its meaning.
        Stable => "stable",
        /// Anything may change, with a line in the changelog.
        Alpha => "alpha",
    }
}

/// A metric.
#[derive(Debug, PartialEq, Eq)]
pub struct Metric {
    /// Its name as in queries: with the unit, and `_total` for a counter.
    pub name: &'static str,
    /// Its kind.
    pub kind: Kind,
    /// Its unit in plural, empty without one.
    pub unit: &'static str,
    /// How far it may change.
    pub stability: Stability,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// The help text, one sentence.
    pub help: &'static str,
}

/// The row with this name.
pub fn by_name(name: &str) -> Option<&'static Metric> {
    ALL.iter().copied().find(|metric| metric.name == name)
}

/// A value of a metric.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// The metric.
    pub metric: &'static Metric,
    /// The values of its labels, in the order of their names.
    pub labels: Vec<String>,
    /// Its value.
    pub value: Value,
}

impl Sample {
    /// The value of this label.
    pub fn label(&self, name: &str) -> Option<&str> {
        let at = self.metric.labels.iter().position(|label| *label == name)?;
        self.labels.get(at).map(String::as_str)
    }

    /// Its value, if it is a single one.
    pub fn number(&self) -> Option<f64> {
        match self.value {
            Value::Number(number) => Some(number),
            Value::Distribution(_) => None,
        }
    }
}

/// The value of a sample.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// The value of a gauge or a counter.
    Number(f64),
    /// The value of a histogram.
    Distribution(Distribution),
}
