//! Distributions in constant memory.

use serde::Serialize;

/// Parts of each power of two: values are kept to within 1.6 %.
const PARTS: usize = 64;
/// Powers of two above `PARTS`: microseconds up to half a year.
const POWERS: usize = 40;

/// Counts of values, in buckets that grow with the value.
#[derive(Debug, Clone)]
pub struct Histogram {
    counts: Vec<u64>,
    count: u64,
    sum: f64,
    max: u64,
}

/// A distribution in a few numbers, in the unit of what was counted.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Quantiles {
    /// How many values.
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
        Self { counts: vec![0; PARTS * (POWERS + 1)], count: 0, sum: 0.0, max: 0 }
    }
}

impl Histogram {
    /// Counts a value.
    pub fn add(&mut self, value: u64) {
        let slot = slot(value).min(self.counts.len() - 1);
        self.counts[slot] += 1;
        self.count += 1;
        self.max = self.max.max(value);
        #[expect(clippy::cast_precision_loss, reason = "a mean needs no more")]
        let value = value as f64;
        self.sum += value;
    }

    /// How many values there are.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The value that this share of all values does not exceed; none without values.
    pub fn quantile(&self, share: f64) -> Option<u64> {
        if self.count == 0 {
            return None;
        }
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53 values")]
        let wanted = share * self.count as f64;
        let mut seen = 0;
        for (slot, count) in self.counts.iter().enumerate() {
            seen += count;
            #[expect(clippy::cast_precision_loss, reason = "far below 2^53 values")]
            let enough = *count > 0 && seen as f64 >= wanted;
            if enough {
                return Some(top(slot).min(self.max));
            }
        }
        Some(self.max)
    }

    /// In a few numbers, each divided by `unit`; none without values.
    pub fn quantiles(&self, unit: f64) -> Option<Quantiles> {
        #[expect(clippy::cast_precision_loss, reason = "microseconds of a run")]
        let at = |share| Some(self.quantile(share)? as f64 / unit);
        #[expect(clippy::cast_precision_loss, reason = "microseconds of a run")]
        let (count, max) = (self.count as f64, self.max as f64);
        Some(Quantiles {
            count: self.count,
            mean: self.sum / count / unit,
            p50: at(0.5)?,
            p90: at(0.9)?,
            p99: at(0.99)?,
            p999: at(0.999)?,
            max: max / unit,
        })
    }

    /// Values in growing steps with the share that is not above each, for a plot.
    pub fn shares(&self) -> Vec<(u64, f64)> {
        let mut seen = 0;
        let mut shares = Vec::new();
        for (slot, count) in self.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            seen += count;
            #[expect(clippy::cast_precision_loss, reason = "far below 2^53 values")]
            let share = seen as f64 / self.count as f64;
            shares.push((top(slot).min(self.max), share));
        }
        shares
    }
}

fn slot(value: u64) -> usize {
    let value = usize::try_from(value).unwrap_or(usize::MAX);
    if value < PARTS {
        return value;
    }
    let power = (value / PARTS).ilog2() as usize;
    PARTS * power + (value >> power)
}

/// The greatest value of a bucket.
fn top(slot: usize) -> u64 {
    if slot < 2 * PARTS {
        return slot as u64;
    }
    let power = slot / PARTS - 1;
    let part = (slot - PARTS * power) as u64;
    ((part + 1) << power) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_close_to_the_values() {
        let mut histogram = Histogram::default();
        (1..=10_000).for_each(|value| histogram.add(value));
        for (share, exact) in [(0.5, 5000.0), (0.99, 9900.0), (1.0, 10_000.0)] {
            #[expect(clippy::cast_precision_loss, reason = "small")]
            let found = histogram.quantile(share).expect("has values") as f64;
            assert!((found - exact).abs() / exact < 0.017, "{share}: {found}");
        }
        assert_eq!(Histogram::default().quantile(0.5), None);
    }

    #[test]
    fn each_value_is_in_its_bucket() {
        for value in [0, 1, 63, 64, 127, 128, 129, 1_000_000, 1 << 40] {
            let found = top(slot(value));
            assert!(found >= value && found - value <= value / 32, "{value} {found}");
        }
    }
}
