//! From faults, logs and clients to the same result that a simulation gives.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use meshport::wan::ShaperCounters;

use super::log::Change;
use super::node::Node;
use crate::measure::{Cut, FOLLOWED_FOR, Fault, Measures};
use crate::report::{Outcome, Run, Violation};
use crate::scenario::timeline::Planned;
use crate::scenario::{Happening, Scenario};
use crate::trace::TraceHash;

/// Things that were taken away, and who the nodes are.
#[derive(Debug)]
pub(super) struct Watched {
    names: Vec<String>,
    sites: Vec<usize>,
    /// What was taken away, in order.
    taken: Vec<Fault>,
    plan: Vec<(Duration, String)>,
}

/// What the run adds at its end.
pub(super) struct Facts {
    pub(super) seed: u64,
    pub(super) end: Duration,
    pub(super) running: Vec<usize>,
    pub(super) counters: ShaperCounters,
    pub(super) violations: Vec<Violation>,
}

impl Watched {
    pub(super) fn new(nodes: &[Node]) -> Self {
        Self {
            names: nodes.iter().map(|node| node.name.clone()).collect(),
            sites: nodes.iter().map(|node| node.site).collect(),
            taken: Vec::new(),
            plan: Vec::new(),
        }
    }

    /// The first of these is about to happen.
    pub(super) fn before(&mut self, plan: &[Planned], now: Duration) {
        let Some(planned) = plan.first() else { return };
        self.plan.push((now, planned.words.clone()));
        let Some(kind) = planned.fault else { return };
        let node = match &planned.happening {
            Happening::Instance(node, _) | Happening::Crash(node) => Some(*node),
            _ => None,
        };
        let fault = Fault {
            kind,
            what: planned.words.clone(),
            at: now,
            node,
            cut: Cut::of(plan),
            unaware: BTreeSet::new(),
            detected: BTreeMap::new(),
            staying: BTreeSet::new(),
            moved: BTreeMap::new(),
            over: None,
        };
        self.taken.push(fault);
    }

    /// Reads from the nodes' logs how they followed the faults.
    pub(super) fn finish(
        mut self,
        scenario: &Scenario,
        logs: &[Vec<Change>],
        mut measures: Measures,
        facts: Facts,
    ) -> Run {
        let Facts { seed, end, running, counters, violations } = facts;
        let place = |name: &String| self.names.iter().position(|it| it == name);
        let histories: Vec<Vec<(Duration, Option<usize>)>> = logs
            .iter()
            .map(|log| log.iter().map(|(at, to)| (*at, to.as_ref().and_then(place))).collect())
            .collect();
        for fault in &mut self.taken {
            follow(fault, &histories, &self.sites);
        }
        measures.route_changes = histories.iter().map(|it| it.len() as u64).sum();
        measures.faults = self.taken;
        let last = |at: &usize| histories[*at].last().and_then(|(_, to)| *to);
        let routes: Vec<(usize, Option<usize>)> =
            running.iter().map(|at| (*at, last(at))).collect();
        let node_seconds = end.as_secs_f64() * u32::try_from(running.len()).map_or(0.0, f64::from);
        Run {
            outcome: Outcome {
                description: scenario.description.clone(),
                seed,
                virtual_time: end,
                warmup: scenario.warmup(),
                datagrams: counters.received,
                trace_hash: TraceHash::NONE,
                sites: scenario.sites.iter().map(|site| site.name.to_string()).collect(),
                nodes: self.names.into_iter().zip(self.sites).collect(),
                running: running.len(),
                nearest: 0,
                routes,
                plan: self.plan,
                node_seconds,
                longest_queue: 0,
            },
            measures,
            violations,
        }
    }
}

/// Who went to what was taken away, and when they went elsewhere.
fn follow(fault: &mut Fault, histories: &[Vec<(Duration, Option<usize>)>], sites: &[usize]) {
    let (node, cut) = (fault.node, fault.cut.clone());
    let goes_there = |at: usize, to: Option<usize>| match (node, to) {
        (Some(node), to) => to == Some(node),
        (None, Some(to)) => cut.parts((at, sites[at]), (to, sites[to])),
        (None, None) => false,
    };
    for (at, history) in histories.iter().enumerate().filter(|(at, _)| Some(*at) != fault.node) {
        let before = history.iter().rev().find(|(when, _)| *when <= fault.at);
        if !before.is_some_and(|(_, to)| goes_there(at, *to)) {
            continue;
        }
        let away = history.iter().find(|(when, to)| *when > fault.at && !goes_there(at, *to));
        match away.map(|(when, _)| *when - fault.at).filter(|after| *after < FOLLOWED_FOR) {
            Some(after) => drop(fault.moved.insert(at, after)),
            None => drop(fault.staying.insert(at)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_went_there_and_who_left_is_read_from_histories() {
        let at = Duration::from_secs;
        let histories = vec![
            vec![(at(1), Some(1))],
            vec![(at(1), Some(1))],
            vec![(at(1), Some(0)), (at(2), Some(1)), (at(12), Some(0))],
            vec![(at(1), Some(1)), (at(9), Some(0)), (at(13), Some(1))],
        ];
        let planned =
            |happening, fault| Planned { at: at(10), words: "a fault".into(), happening, fault };
        let mut watched = Watched {
            names: (0..4).map(|it| it.to_string()).collect(),
            sites: vec![0, 1, 0, 0],
            taken: Vec::new(),
            plan: Vec::new(),
        };
        watched.before(&[planned(Happening::Crash(1), Some("crash"))], at(10));
        // The users are behind the second direction of an isolation.
        let elsewhere = planned(Happening::Way(1, 2, false), Some("isolate"));
        watched.before(&[elsewhere, planned(Happening::Way(1, 0, false), None)], at(10));
        for fault in &mut watched.taken {
            follow(fault, &histories, &watched.sites);
            let moved: Vec<_> = fault.moved.iter().map(|(node, after)| (*node, *after)).collect();
            assert_eq!(moved, [(2, at(2))]);
            assert_eq!(fault.staying.iter().copied().collect::<Vec<_>>(), [0]);
        }
    }
}
