//! Maps wall time to virtual time: at a set speed or paused, and no faster than this machine
//! allows.

use std::time::Duration;

/// Limits of the speed: slower is useless, faster cannot be followed.
pub(super) const MIN_SPEED: f64 = 0.1;
pub(super) const MAX_SPEED: f64 = 100.0;
/// Largest lag of the world behind the wall clock before the lost time is given up.
const MAX_LAG: Duration = Duration::from_millis(300);
/// The speed is measured over this much wall time.
const MEASURED_OVER: Duration = Duration::from_secs(2);

/// Both times at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Moment {
    wall: Duration,
    world: Duration,
}

/// See the module's description.
#[derive(Debug)]
pub(super) struct Pace {
    speed: f64,
    is_paused: bool,
    /// Since when it has had this speed.
    from: Moment,
    measured: Moment,
    actual: f64,
}

impl Pace {
    /// Starts at the first moment of both clocks.
    pub(super) fn new(speed: f64, is_paused: bool) -> Self {
        let zero = Moment::default();
        Self { speed, is_paused, from: zero, measured: zero, actual: 0.0 }
    }

    pub(super) fn speed(&self) -> f64 {
        self.speed
    }

    pub(super) fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// The speed of the last seconds: 0 while it is paused.
    pub(super) fn actual(&self) -> f64 {
        if self.is_paused { 0.0 } else { self.actual }
    }

    /// Sets the speed from now on.
    pub(super) fn set(&mut self, speed: f64, is_paused: bool, wall: Duration, world: Duration) {
        let now = Moment { wall, world };
        *self = Self { speed, is_paused, from: now, measured: now, actual: speed };
    }

    /// The time that the world should have reached.
    pub(super) fn target(&self, wall: Duration) -> Duration {
        if self.is_paused {
            return self.from.world;
        }
        self.from.world + wall.saturating_sub(self.from.wall).mul_f64(self.speed)
    }

    /// Records the time that the world has reached; a lag beyond the limit is given up.
    pub(super) fn reached(&mut self, wall: Duration, world: Duration) {
        if self.target(wall).saturating_sub(world) > MAX_LAG.mul_f64(self.speed) {
            self.from = Moment { wall, world };
        }
        let passed = wall.saturating_sub(self.measured.wall);
        if passed >= MEASURED_OVER {
            let lived = world.saturating_sub(self.measured.world);
            self.actual = lived.as_secs_f64() / passed.as_secs_f64();
            self.measured = Moment { wall, world };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn time_passes_at_its_speed_and_stands_still_while_paused() {
        let mut pace = Pace::new(10.0, false);
        assert_eq!(pace.target(SECOND), SECOND * 10);
        pace.set(10.0, true, SECOND, SECOND * 10);
        assert_eq!(pace.target(SECOND * 99), SECOND * 10);
        pace.set(0.5, false, SECOND * 99, SECOND * 10);
        assert_eq!(pace.target(SECOND * 101), SECOND * 11);
    }

    #[test]
    fn a_slow_machine_does_not_try_to_catch_up() {
        let mut pace = Pace::new(10.0, false);
        pace.reached(SECOND * 4, SECOND * 8);
        assert_eq!(pace.target(SECOND * 4), SECOND * 8);
        assert_eq!(pace.target(SECOND * 5), SECOND * 18);
        assert!((pace.actual() - 2.0).abs() < 1e-9, "{}", pace.actual());
        // A moment is caught up.
        pace.reached(SECOND * 5, SECOND * 16);
        assert_eq!(pace.target(SECOND * 5), SECOND * 18);
    }
}
