//! Detects suspends and network changes of this machine.
//!
//! After either, tunnels look healthy here but are not: the peer has ended its sessions, or sends
//! to an old address. Every tick reads a clock that counts suspended time, the wall clock, and the
//! kernel's source addresses. A stopped process looks like a suspended machine and is treated the
//! same. [`SuspendDetector`] evaluates the readings and does no I/O.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Interval between readings, which cost a few system calls. A network change may disturb clients
/// for about a second; this is half of that.
pub(crate) const TICK: Duration = Duration::from_millis(500);
/// A tick this late means that the process did not run; load alone causes smaller delays.
const LATE: Duration = Duration::from_millis(1500);
/// If the wall clock gains this much on the other clock, it was set: by hand, at the first contact
/// with a time server, or because a virtual machine was paused.
const WALL_JUMP: Duration = Duration::from_secs(10);
/// Destinations whose source address is checked: the members and origins in use.
pub(crate) const MAX_DESTINATIONS: usize = 8;

/// The readings of one tick.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reading {
    /// Time since boot, including suspended time.
    pub awake: Duration,
    /// Wall time since 1970.
    pub wall: Duration,
    /// The kernel's source address for each destination; `None` without a route.
    pub sources: BTreeMap<SocketAddr, Option<IpAddr>>,
}

/// A reason to doubt tunnels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wakeup {
    /// They are probably useless.
    Renew {
        /// How long the process did not run; zero if only the network changed.
        slept: Duration,
        /// Whether packets now leave from another address.
        moved: bool,
    },
    /// The wall clock alone jumped: probes tell whether tunnels still work.
    Probe,
}

/// Compares each reading with earlier ones.
#[derive(Debug, Default)]
pub struct SuspendDetector {
    last: Option<Reading>,
}

impl SuspendDetector {
    /// Handles a reading. Returns the reason if tunnels are in doubt.
    pub fn handle_reading(&mut self, reading: Reading) -> Option<Wakeup> {
        let last = self.last.replace(reading)?;
        let now = self.last.as_mut().expect("it was just put there");
        let passed = now.awake.saturating_sub(last.awake);
        let by_wall = now.wall.saturating_sub(last.wall);
        let slept = if passed > TICK + LATE { passed } else { Duration::ZERO };
        let known = |to: &SocketAddr| last.sources.get(to).copied();
        let moved = now.sources.iter().any(|(to, from)| match (known(to), from) {
            // Without a route, no packets leave.
            (_, None) | (None, _) => false,
            (Some(before), from) => before != *from,
        });
        // A destination without a route keeps its last source address until it has a new one.
        for (to, from) in last.sources {
            now.sources.entry(to).or_insert(from);
        }
        while now.sources.len() > 2 * MAX_DESTINATIONS {
            now.sources.pop_first();
        }
        if moved || !slept.is_zero() {
            return Some(Wakeup::Renew { slept, moved });
        }
        (by_wall > passed + WALL_JUMP).then_some(Wakeup::Probe)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    fn reading(awake_ms: u64, wall_ms: u64, from: Option<&str>) -> Reading {
        let from = from.map(|text| text.parse().expect("an address"));
        Reading {
            awake: Duration::from_millis(awake_ms),
            wall: Duration::from_millis(1_000_000 + wall_ms),
            sources: BTreeMap::from([(address("203.0.113.1:51820"), from)]),
        }
    }

    /// The result of each reading of a series.
    fn judge<const N: usize>(series: [(u64, u64, Option<&str>); N]) -> [Option<Wakeup>; N] {
        let mut detector = SuspendDetector::default();
        series.map(|(awake, wall, from)| detector.handle_reading(reading(awake, wall, from)))
    }

    const HOME: Option<&str> = Some("192.0.2.7");
    const AWAY: Option<&str> = Some("198.51.100.9");

    #[test]
    fn a_late_tick_and_a_clock_set_back_are_no_sleep() {
        let quiet = judge([(0, 0, HOME), (500, 501, HOME), (1900, 1900, HOME), (2400, 900, HOME)]);
        assert_eq!(quiet, [None; 4]);
    }

    #[test]
    fn sleep_is_reported_with_its_length() {
        let [.., woke] = judge([(0, 0, HOME), (600_500, 600_500, HOME)]);
        let slept = Duration::from_millis(600_500);
        assert_eq!(woke, Some(Wakeup::Renew { slept, moved: false }));
    }

    #[test]
    fn a_jump_of_the_wall_clock_alone_renews_nothing() {
        let steps = [(0, 0, HOME), (500, 3_600_000, HOME), (1000, 3_600_500, HOME)];
        assert_eq!(judge(steps), [None, Some(Wakeup::Probe), None]);
    }

    #[test]
    fn a_changed_address_is_a_move_even_after_a_time_without_one() {
        let moved = Some(Wakeup::Renew { slept: Duration::ZERO, moved: true });
        let steps = [(0, 0, HOME), (500, 500, AWAY), (1000, 1000, AWAY)];
        assert_eq!(judge(steps), [None, moved, None]);
        let steps = [(0, 0, HOME), (500, 500, None), (1000, 1000, None), (1500, 1500, HOME)];
        assert_eq!(judge(steps), [None, None, None, moved], "a return after a move");
    }

    #[test]
    fn the_number_of_destinations_is_bounded() {
        let mut detector = SuspendDetector::default();
        for number in 0..100_u16 {
            let sources = BTreeMap::from([(SocketAddr::from(([10, 0, 0, 1], number)), None)]);
            let reading = Reading { sources, ..Reading::default() };
            assert_eq!(detector.handle_reading(reading), None);
        }
        let kept = detector.last.map_or(0, |last| last.sources.len());
        assert!(kept <= 2 * MAX_DESTINATIONS, "{kept}");
    }
}
