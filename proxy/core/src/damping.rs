//! Hysteresis: how much better an origin or a path must be, and for how long, before it is used.

use std::time::Duration;

/// A preferred origin is replaced by a cheaper one only for a gain of more than this...
const GAIN: Duration = Duration::from_millis(5);
/// ...or for more than this share of its own cost, in percent...
const GAIN_PERCENT: u32 = 20;
/// ...that has lasted this long.
pub(crate) const GAIN_LASTING: Duration = Duration::from_secs(10);
/// A recovered origin is used again after this time, in which it is probed again, so that one good
/// answer is not enough.
const RETURN_LASTING: Duration = Duration::from_secs(1);
/// A stalled origin is left only for one that has been ready for this time. When a stall of all
/// origins ends, each is probed once its node hears that another is ready again: by then all have
/// reported that they are ready, or that they fail at once and hang no longer.
pub(crate) const READY_AGAIN: Duration = Duration::from_millis(500);

/// The thresholds of the hysteresis. The daemon uses the default; simulations may vary it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Damping {
    /// The preferred origin is replaced by one as healthy that is cheaper by more than this...
    pub gain: Duration,
    /// ...or by more than this share of its own cost, in percent...
    pub gain_percent: u32,
    /// ...for this long.
    pub gain_lasting: Duration,
    /// How long an abandoned origin must be as good again, the first time; never longer than
    /// `gain_lasting`.
    pub return_lasting: Duration,
}

impl Default for Damping {
    fn default() -> Self {
        Self {
            gain: GAIN,
            gain_percent: GAIN_PERCENT,
            gain_lasting: GAIN_LASTING,
            return_lasting: RETURN_LASTING,
        }
    }
}

impl Damping {
    /// Whether a path that costs `best` is worth leaving one that costs `current`, if the gain
    /// lasts.
    pub(crate) fn is_clear(&self, current: Duration, best: Duration) -> bool {
        let gain = current.saturating_sub(best);
        gain > self.gain || gain * 100 > current * self.gain_percent
    }
}
