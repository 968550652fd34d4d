//! Detects that this machine has slept or changed its network.
//!
//! Both leave tunnels that look healthy from here and are not: the other side has ended its
//! sessions, or sends to an old address. Every tick takes a reading: a clock that runs while the
//! machine sleeps, the wall clock, and the addresses from which the kernel would send. A stopped
//! process and a sleeping machine look alike and are treated alike. [`SuspendDetector`] judges the
//! readings; it reads nothing itself.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// From one reading to the next: half of what a client may notice after a change of the network
/// is a second, and a reading costs a few system calls.
pub(crate) const TICK: Duration = Duration::from_millis(500);
/// A tick that is this late is no busy machine: it did not run.
const LATE: Duration = Duration::from_millis(1500);
/// The wall clock has moved this much more than the other one: a virtual machine was halted and
/// told the time afterwards. Corrections of a running clock are far smaller.
const WALL_JUMP: Duration = Duration::from_secs(10);
/// Destinations whose source address is looked at: the members and origins in use.
pub(crate) const MAX_DESTINATIONS: usize = 8;

/// The readings of one tick.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reading {
    /// Time since some fixed moment, sleep included.
    pub awake: Duration,
    /// Wall time since 1970.
    pub wall: Duration,
    /// From where the kernel would send to each destination; none where there is no way.
    pub sources: BTreeMap<SocketAddr, Option<IpAddr>>,
}

/// The meaning of a reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wakeup {
    /// How long nothing ran here; zero when the machine has only moved.
    pub slept: Duration,
    /// Whether packets leave from another address now.
    pub moved: bool,
}

/// Compares each reading with those before.
#[derive(Debug, Default)]
pub struct SuspendDetector {
    last: Option<Reading>,
}

impl SuspendDetector {
    /// Takes a reading; says whether tunnels have to be made anew.
    pub fn handle_reading(&mut self, reading: Reading) -> Option<Wakeup> {
        let last = self.last.replace(reading)?;
        let now = self.last.as_mut().expect("it was just put there");
        let passed = now.awake.saturating_sub(last.awake);
        let by_wall = now.wall.saturating_sub(last.wall);
        let slept = match passed {
            passed if passed > TICK + LATE => passed,
            passed if by_wall > passed + WALL_JUMP => by_wall,
            _ => Duration::ZERO,
        };
        let known = |to: &SocketAddr| last.sources.get(to).copied();
        let moved = now.sources.iter().any(|(to, from)| match (known(to), from) {
            // Without any way there is nowhere to go yet.
            (_, None) | (None, _) => false,
            (Some(before), from) => before != *from,
        });
        // A way that was lost is remembered as lost until there is one again, whichever.
        for (to, from) in last.sources {
            now.sources.entry(to).or_insert(from);
        }
        while now.sources.len() > 2 * MAX_DESTINATIONS {
            now.sources.pop_first();
        }
        (moved || !slept.is_zero()).then_some(Wakeup { slept, moved })
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

    /// What each reading of a series means.
    fn judge<const N: usize>(series: [(u64, u64, Option<&str>); N]) -> [Option<Wakeup>; N] {
        let mut detector = SuspendDetector::default();
        series.map(|(awake, wall, from)| detector.handle_reading(reading(awake, wall, from)))
    }

    const HOME: Option<&str> = Some("192.0.2.7");
    const AWAY: Option<&str> = Some("198.51.100.9");

    #[test]
    fn a_quiet_night_means_nothing() {
        let quiet = judge([(0, 0, HOME), (500, 501, HOME), (1900, 1900, HOME), (2400, 900, HOME)]);
        assert_eq!(quiet, [None; 4], "a late tick and a clock that is set back are no sleep");
    }

    #[test]
    fn sleep_is_told_with_its_length() {
        let [.., woke] = judge([(0, 0, HOME), (600_500, 600_500, HOME)]);
        assert_eq!(woke, Some(Wakeup { slept: Duration::from_millis(600_500), moved: false }));
        let [.., halted] = judge([(0, 0, HOME), (500, 3_600_000, HOME)]);
        assert_eq!(halted, Some(Wakeup { slept: Duration::from_secs(3600), moved: false }));
    }

    #[test]
    fn another_address_is_a_move_also_after_a_time_without_any() {
        let moved = Some(Wakeup { slept: Duration::ZERO, moved: true });
        let steps = [(0, 0, HOME), (500, 500, AWAY), (1000, 1000, AWAY)];
        assert_eq!(judge(steps), [None, moved, None]);
        let steps = [(0, 0, HOME), (500, 500, None), (1000, 1000, None), (1500, 1500, HOME)];
        assert_eq!(judge(steps), [None, None, None, moved], "it may be another network");
    }

    #[test]
    fn destinations_come_and_go() {
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
