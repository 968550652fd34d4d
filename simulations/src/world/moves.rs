//! Rules about sessions' paths: at most one relay, and a return no faster than configured.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use meshport_config::ServiceSettings;

use super::World;
use crate::brain::Line;
use crate::flight::Flight;
use crate::level::Judge;
use crate::rules;
use crate::scenario::service;

/// The period for which the share of sessions that may return is defined.
const PERIOD: Duration = Duration::from_secs(10);

/// Permission to return that was granted on a line.
#[derive(Debug, Clone, Copy)]
struct Leave {
    at: Duration,
    count: u64,
    /// The number of sessions at that time.
    open: u64,
    /// The settings at that time; an operator may have changed them since.
    percent: u64,
}

/// The permissions that nodes granted their sessions in the last ten seconds.
#[derive(Debug, Default)]
pub(super) struct Pace {
    lines: BTreeMap<(usize, Line), VecDeque<Leave>>,
}

/// The permissions granted on a line in ten seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Given {
    count: u64,
    /// The maximum number of open sessions.
    most: u64,
    /// The greatest share that the settings allowed.
    percent: u64,
}

impl Pace {
    /// Records a permission on a line; returns those granted there in ten seconds.
    fn note(&mut self, node: usize, line: Line, leave: Leave) -> Given {
        let all = self.lines.entry((node, line)).or_default();
        all.push_back(leave);
        while all.front().is_some_and(|first| leave.at - first.at >= PERIOD) {
            all.pop_front();
        }
        Given {
            count: all.iter().map(|it| it.count).sum(),
            most: all.iter().map(|it| it.open).max().unwrap_or(0),
            percent: all.iter().map(|it| it.percent).max().unwrap_or(0),
        }
    }
}

impl World {
    pub(super) fn service_settings(&self, node: usize) -> &ServiceSettings {
        &self.settings(node).services[&service()]
    }

    /// Some sessions of a line may return; checks that it is not too many at once.
    pub(super) fn check_moves(&mut self, node: usize, line: Line, count: u64) {
        let percent = u64::from(self.service_settings(node).drift_percent);
        let open = self.nodes[node].clients.count(line);
        let leave = Leave { at: self.scene.now, count, open, percent };
        let Given { count: given, most, percent } = self.pace.note(node, line, leave);
        // The share refers to the maximum since the move began, which is not known here.
        let peak = most.max(self.nodes[node].clients.peak(&line));
        let bound = (peak * percent).div_ceil(100) + 1;
        if given > bound {
            let seconds = PERIOD.as_secs();
            let what = format!(
                "{given} sessions get leave to go within {seconds} s, {bound} would be {percent} % \
                 of {peak}"
            );
            self.violates(rules::SLOWLY_HOME, node, what);
        }
    }

    /// An honest node is about to forward a stream.
    pub(super) fn check_relaying(&mut self, at: usize, target: usize, flight: &Flight) {
        let so_far = flight.trail.nodes();
        let is_second = so_far.len() > 1;
        let is_back = so_far.iter().any(|node| *node as usize == target);
        if is_second || is_back {
            let names: Vec<&str> =
                so_far.iter().map(|node| self.scene.account.name(*node as usize)).collect();
            let (way, to) = (names.join(", "), self.scene.account.name(target));
            let what = format!("it carries a stream on to {to} that came by way of {way}");
            self.violates(rules::ONE_RELAY, at, what);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leave_is_judged_by_the_settings_it_was_given_under() {
        let mut pace = Pace::default();
        let mut note = |at: u64, count: u64, percent: u64| {
            let leave = Leave { at: Duration::from_secs(at), count, open: 100, percent };
            let line = Line::Direct(meshport_config::NodeId::from_bytes([1; 32]));
            pace.note(7, line, leave)
        };
        assert_eq!(note(0, 30, 50), Given { count: 30, most: 100, percent: 50 });
        assert_eq!(note(9, 1, 1), Given { count: 31, most: 100, percent: 50 });
        assert_eq!(note(10, 1, 1), Given { count: 2, most: 100, percent: 1 });
    }
}
