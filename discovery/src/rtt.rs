//! Smoothing of round-trip times and counting of loss, without a clock.
//!
//! A median of three samples removes single outliers. The smoothed value rises at once to a higher
//! median and falls towards a lower one with a decay of ten seconds (the peak-sensitive moving
//! average of Finagle's balancer): bad news counts at once, good news must last. Until there are
//! [`YOUNG`] samples the median is used directly; otherwise an unlucky first one would linger.
//!
//! A burst of load on this machine raises the samples of the paths that it measures most often, and
//! their smoothed value for longer than the burst lasted. The usual value ignores bursts: it is the
//! median of [`USUAL`] samples.

use std::time::{Duration, Instant};

/// Time constant of the fall towards lower samples.
const DECAY: Duration = Duration::from_secs(10);

/// Minimum number of samples for smoothing.
const YOUNG: usize = 3;

/// Samples whose median is the usual value: the last three and a half seconds on a path in use.
const USUAL: usize = 7;

/// A smoothed round-trip time.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rtt {
    recent: [Duration; USUAL],
    samples: usize,
    smoothed: Option<(Duration, Instant)>,
    deviation: Duration,
}

impl Rtt {
    pub(crate) fn add(&mut self, sample: Duration, now: Instant) {
        self.deviation = match self.smoothed {
            Some((before, _)) => (self.deviation * 3 + sample.abs_diff(before)) / 4,
            None => sample / 2,
        };
        self.recent[self.samples % USUAL] = sample;
        self.samples += 1;
        let median = self.median_of_last(YOUNG);
        let value = match self.smoothed {
            Some((before, at)) if median < before && self.samples > YOUNG => {
                // A first-order step: exact enough, and the same on every machine.
                let passed = now.saturating_duration_since(at).as_secs_f64();
                let weight = passed / (passed + DECAY.as_secs_f64());
                before - (before - median).mul_f64(weight)
            }
            _ => median,
        };
        self.smoothed = Some((value, now));
    }

    /// The smoothed value, none before the first sample.
    pub(crate) fn get(&self) -> Option<Duration> {
        self.smoothed.map(|(value, _)| value)
    }

    /// The value without the bursts of the last seconds, none before the first sample; never more
    /// than the smoothed one.
    pub(crate) fn usual(&self) -> Option<Duration> {
        self.get().map(|smoothed| smoothed.min(self.median_of_last(USUAL)))
    }

    /// Deviation of samples from the smoothed value: the mean deviation of RFC 6298 with its weight
    /// of a quarter. Zero before the first sample.
    pub(crate) fn deviation(&self) -> Duration {
        self.deviation
    }

    /// Whether there are too few samples to trust the value.
    pub(crate) fn is_young(&self) -> bool {
        self.samples < YOUNG
    }

    /// Forgets everything, since the path has changed.
    pub(crate) fn reset(&mut self) {
        *self = Self::default();
    }

    /// The smaller of two samples: the first packet on a path often waits for a handshake.
    fn median_of_last(&self, count: usize) -> Duration {
        let count = count.min(self.samples);
        let mut sorted = [Duration::ZERO; USUAL];
        for (back, place) in sorted[..count].iter_mut().enumerate() {
            *place = self.recent[(self.samples - 1 - back) % USUAL];
        }
        sorted[..count].sort_unstable();
        sorted[count.saturating_sub(1) / 2]
    }
}

/// Probes whose outcome is remembered: enough to distinguish a lossy path from an unlucky packet,
/// few enough to forget the past of a recovered path within seconds.
pub(crate) const LOSS_WINDOW: u32 = 16;

/// The unanswered ones of the last [`LOSS_WINDOW`] probes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Loss {
    lost: u32,
}

impl Loss {
    /// Records the outcome of a probe.
    pub(crate) fn add(&mut self, answered: bool) {
        self.lost = ((self.lost << 1) | u32::from(!answered)) & ((1 << LOSS_WINDOW) - 1);
    }

    /// How many of the last probes were lost, out of at most a window.
    pub(crate) fn lost_of_last(&self, probes: u32) -> u32 {
        (self.lost & ((1 << probes.min(LOSS_WINDOW)) - 1)).count_ones()
    }

    /// Lost probes as a share of the window, 0 to 100; a path with fewer probes gets the benefit
    /// of the doubt.
    pub(crate) fn percent(&self) -> u8 {
        u8::try_from(self.lost.count_ones() * 100 / LOSS_WINDOW).unwrap_or(100)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{base, ms};

    #[test]
    fn an_outlier_is_ignored_and_a_lasting_rise_counts_at_once() {
        let mut rtt = Rtt::default();
        let start = base();
        for at in 0..3 {
            rtt.add(ms(10), start + ms(at * 500));
        }
        rtt.add(ms(200), start + ms(1500));
        assert_eq!(rtt.get(), Some(ms(10)));
        rtt.add(ms(200), start + ms(2000));
        assert_eq!(rtt.get(), Some(ms(200)));
    }

    #[test]
    fn a_burst_is_not_usual_and_a_lasting_rise_is() {
        let mut rtt = Rtt::default();
        let mut samples = (0..).map(|step| base() + ms(500 * step));
        let mut add = |rtt: &mut Rtt, sample: u64, count: usize| {
            samples.by_ref().take(count).for_each(|at| rtt.add(ms(sample), at));
        };
        assert_eq!(rtt.usual(), None);
        add(&mut rtt, 2, 7);
        add(&mut rtt, 100, 3);
        assert_eq!((rtt.get(), rtt.usual()), (Some(ms(100)), Some(ms(2))));
        add(&mut rtt, 2, 10);
        assert!(rtt.get().expect("has samples") > ms(50), "five seconds later");
        assert_eq!(rtt.usual(), Some(ms(2)));
        add(&mut rtt, 100, 4);
        assert_eq!(rtt.usual(), Some(ms(100)));
    }

    #[test]
    fn a_fall_takes_about_the_decay_time() {
        let mut rtt = Rtt::default();
        let start = base();
        for _ in 0..YOUNG {
            rtt.add(ms(100), start);
        }
        for step in 1..=20 {
            rtt.add(ms(10), start + ms(500 * step));
        }
        let after_ten_seconds = rtt.get().expect("has samples");
        assert!((ms(30)..ms(60)).contains(&after_ten_seconds), "{after_ten_seconds:?}");
    }

    #[test]
    fn an_unlucky_first_sample_does_not_linger() {
        let mut rtt = Rtt::default();
        let start = base();
        for (step, sample) in [(0, 1000), (1, 10), (2, 12)] {
            rtt.add(ms(sample), start + ms(500 * step));
        }
        assert_eq!(rtt.get(), Some(ms(12)));
    }

    #[test]
    fn loss_counts_the_last_sixteen() {
        let mut loss = Loss::default();
        assert_eq!(loss.percent(), 0);
        loss.add(false);
        assert_eq!(loss.percent(), 6, "the first of a path is not all of it");
        for _ in 0..LOSS_WINDOW {
            loss.add(false);
        }
        assert_eq!(loss.percent(), 100);
        for _ in 0..LOSS_WINDOW {
            loss.add(true);
        }
        assert_eq!(loss.percent(), 0);
    }
}
