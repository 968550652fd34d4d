//! Distributions in constant memory.

use serde::Serialize;

/// An hour in microseconds; greater values count as this.
const MAX: u64 = 3_600_000_000;
/// Significant digits: a value is exact to a thousandth, and a histogram takes 180 KiB.
const DIGITS: u8 = 3;

/// Counts of values.
#[derive(Debug, Clone)]
pub struct Histogram(hdrhistogram::Histogram<u64>);

/// A distribution in a few numbers, in the unit of the values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Quantiles {
    /// Number of values.
    pub count: u64,
    /// Their mean.
    pub mean: f64,
    /// Half of them are not above this.
    pub p50: f64,
    /// 90 % are not above this.
    pub p90: f64,
    /// 99 % are not above this.
    pub p99: f64,
    /// 99.9 % are not above this.
    pub p999: f64,
    /// The greatest.
    pub max: f64,
}

impl Default for Histogram {
    fn default() -> Self {
        let counts = hdrhistogram::Histogram::new_with_bounds(1, MAX, DIGITS);
        Self(counts.expect("an hour in three digits is within its limits"))
    }
}

impl Histogram {
    /// Counts a value.
    pub fn add(&mut self, value: u64) {
        self.0.saturating_record(value);
    }

    /// Number of values.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Quantiles, each divided by `unit`; none without values.
    pub fn quantiles(&self, unit: f64) -> Option<Quantiles> {
        #[expect(clippy::cast_precision_loss, reason = "microseconds of a run")]
        let at = |share| self.0.value_at_quantile(share) as f64 / unit;
        (!self.0.is_empty()).then(|| Quantiles {
            count: self.0.len(),
            mean: self.0.mean() / unit,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: at(1.0),
        })
    }

    /// Values in increasing steps with the share that is not above each, for a plot.
    pub fn shares(&self) -> impl Iterator<Item = (u64, f64)> {
        self.0.iter_recorded().map(|step| (step.value_iterated_to(), step.quantile()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_close_to_the_values() {
        let mut histogram = Histogram::default();
        (1..=10_000).for_each(|value| histogram.add(value));
        let found = histogram.quantiles(1.0).expect("has values");
        for (found, exact) in [(found.p50, 5000.0), (found.p99, 9900.0), (found.max, 10_000.0)] {
            assert!((found - exact).abs() / exact < 0.001, "{found} instead of {exact}");
        }
        histogram.add(u64::MAX);
        assert!(histogram.quantiles(1e6).is_some_and(|it| (it.max - 3600.0).abs() < 3.6));
        assert_eq!(histogram.shares().last().map(|(_, share)| share), Some(1.0));
        assert_eq!(Histogram::default().quantiles(1.0), None);
    }
}
