//! Reports floods of handshakes (more than are answered without a proof of address): a log line at
//! the start and at the end, and a warning in `status` in between.

use std::time::{Duration, Instant};

use meshport_core::findings::{FLOOD, Finding};
use meshport_mesh::{MeshCount, MeshCounters};
use tracing::{info, warn};

/// Interval between reads of the mesh's counters.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// A flood is over after this time without a refused handshake. This also limits the log to two
/// lines in this time, however often a flood pauses.
const OVER_AFTER: Duration = Duration::from_secs(60);

/// Handshakes not answered at once because of load: the sender got a cookie, or had proven its
/// address and exceeded its share.
pub(crate) fn held_off(counters: &MeshCounters) -> u64 {
    counters[MeshCount::CookiesSent] + counters[MeshCount::DroppedOverShare]
}

/// See the module's description.
#[derive(Debug)]
pub(crate) struct Floods {
    looked: Instant,
    /// Handshakes held off until the last check.
    held_off: u64,
    present: Option<Flood>,
}

#[derive(Debug)]
struct Flood {
    began: Instant,
    /// When the flood was last seen.
    last: Instant,
    /// Handshakes held off before the flood.
    before: u64,
}

impl Floods {
    /// None so far.
    pub(crate) fn new(now: Instant) -> Self {
        Self { looked: now, held_off: 0, present: None }
    }

    /// Handles the number of handshakes [`held_off`] since the start, if a check is due.
    pub(crate) fn look(&mut self, now: Instant, held_off: impl FnOnce() -> u64) {
        if now.saturating_duration_since(self.looked) < LOOK_INTERVAL {
            return;
        }
        self.looked = now;
        let before = std::mem::replace(&mut self.held_off, held_off());
        let more = self.held_off > before;
        match &mut self.present {
            Some(flood) if more => flood.last = now,
            Some(flood) if now.saturating_duration_since(flood.last) >= OVER_AFTER => {
                let lasted_s = flood.last.saturating_duration_since(flood.began).as_secs();
                let held_off = self.held_off - flood.before;
                info!(held_off, lasted_s, "the flood of handshakes has ended");
                self.present = None;
            }
            Some(_) => {}
            None if more => {
                warn!(held_off = self.held_off - before, "{FLOOD}");
                self.present = Some(Flood { began: now, last: now, before });
            }
            None => {}
        }
    }

    /// For the status, while it lasts.
    pub(crate) fn finding(&self, now: Instant) -> Option<Finding> {
        let flood = self.present.as_ref()?;
        let held_off = self.held_off - flood.before;
        let began = now.saturating_duration_since(flood.began).as_secs();
        let last = now.saturating_duration_since(flood.last).as_secs();
        Some(FLOOD.found(format!(
            "{}: {held_off} refused in {began} s, the last {last} s ago",
            FLOOD.title
        )))
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "an origin for virtual time")]

    use super::*;
    use crate::testing::logged;

    #[test]
    fn a_flood_is_logged_at_its_start_and_end_however_often_it_pauses() {
        let start = Instant::now();
        let at = |second: u64| start + Duration::from_secs(second);
        let mut floods = Floods::new(start);
        let said = logged(|| {
            floods.look(start, || unreachable!("it is too soon to look"));
            floods.look(at(1), || 0);
            assert_eq!(floods.finding(at(1)), None);
            floods.look(at(2), || 500);
            floods.look(at(2), || unreachable!("it is too soon to look"));
        });
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.contains("WARN") && said.contains("held_off=500"), "{said}");

        // It comes and goes for ten minutes.
        let said = logged(|| {
            for second in 3..600 {
                floods.look(at(second), || 500 + second / 20);
            }
        });
        assert_eq!(said, "");
        let warning = floods.finding(at(600)).expect("it lasts").detail;
        assert!(warning.contains("answers: 529 refused in 598 s, the last 20 s ago"), "{warning}");

        let said = logged(|| (600..700).for_each(|second| floods.look(at(second), || 529)));
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.contains("INFO") && said.contains("lasted_s=578"), "{said}");
        assert_eq!(floods.finding(at(700)), None);
        let said = logged(|| floods.look(at(800), || 530));
        assert!(said.contains("WARN") && said.trim_end().ends_with("held_off=1"), "{said}");
    }

    /// They get no further cookie: their excess handshakes are dropped.
    #[test]
    fn a_flood_from_proven_addresses_lasts_until_it_is_over() {
        let start = Instant::now();
        let at = |second: u64| start + Duration::from_secs(second);
        let mut floods = Floods::new(start);
        let counters = |second: u64| {
            let mut counters = MeshCounters::default();
            counters[MeshCount::CookiesSent] = 200;
            counters[MeshCount::DroppedOverShare] = 9_000 * second;
            counters
        };
        let said = logged(|| {
            for second in 1..=300 {
                floods.look(at(second), || held_off(&counters(second)));
            }
        });
        assert_eq!(said.lines().count(), 1, "{said}");
        let warning = floods.finding(at(300)).expect("it lasts").detail;
        assert!(warning.ends_with("in 299 s, the last 0 s ago"), "{warning}");
    }
}
