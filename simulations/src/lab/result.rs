//! From faults, logs and clients to the same result that a simulation gives.

use std::time::Duration;

use meshport_demo::wan::ShaperCounters;

use super::log::Change;
use super::node::Node;
use crate::measure::{FOLLOWED_FOR, Fault, Measures, Users, begin};
use crate::report::keys::Level;
use crate::report::{Outcome, Run, Violation};
use crate::scenario::Scenario;
use crate::scenario::timeline::Planned;
use crate::trace::TraceHash;

/// Nodes that are hit within this time of each other are hit together.
const SAME_TIME: Duration = Duration::from_millis(500);

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
        begin(&mut self.taken, plan, self.names.len(), now);
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
                level: Level::Lab,
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
    let (cut, whole) = (fault.cut.clone(), fault.victims.clone());
    let mut turns: Vec<(Option<usize>, Duration)> =
        whole.iter().map(|(victim, since)| (Some(*victim), *since)).collect();
    if turns.is_empty() {
        turns.push((None, fault.at));
    }
    let users = fault.users();
    for (at, history) in histories.iter().enumerate() {
        for (victim, since) in &turns {
            // Those who are hit at about the same time are no refuge from each other.
            let is_hit =
                |to: &usize| whole.get(to).is_some_and(|other| other.abs_diff(*since) < SAME_TIME);
            let goes_there = |to: Option<usize>| match users {
                Users::Ways => to.is_some_and(|to| cut.parts((at, sites[at]), (to, sites[to]))),
                Users::Theirs => to.is_some_and(|to| is_hit(&to)),
                Users::Own | Users::Joining => false,
            };
            let before = history.iter().rev().find(|(when, _)| when <= since);
            let to = before.and_then(|(_, to)| *to);
            let is_its_own = *victim == Some(at);
            if is_its_own || !goes_there(to) || victim.is_some_and(|victim| to != Some(victim)) {
                continue;
            }
            let away = history.iter().find(|(when, to)| when > since && !goes_there(*to));
            let pair = (at, victim.unwrap_or(at));
            match away.map(|(when, _)| *when - *since).filter(|after| *after < FOLLOWED_FOR) {
                Some(after) => drop(fault.moved.insert(pair, after)),
                None => drop(fault.staying.insert(pair)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Happening;

    #[test]
    fn who_went_there_and_who_left_is_read_from_histories() {
        let at = Duration::from_secs;
        let histories = vec![
            vec![(at(1), Some(1))],
            vec![(at(1), Some(1))],
            vec![(at(1), Some(0)), (at(2), Some(1)), (at(12), Some(0))],
            vec![(at(1), Some(1)), (at(9), Some(0)), (at(13), Some(1))],
        ];
        let planned = |event, happening, fault| {
            let words = "a fault".into();
            Planned { at: at(10), words, happening, event, fault }
        };
        let mut watched = Watched {
            names: (0..4).map(|it| it.to_string()).collect(),
            sites: vec![0, 1, 0, 0],
            taken: Vec::new(),
            plan: Vec::new(),
        };
        watched.before(&[planned(0, Happening::Crash(1), Some("crash"))], at(10));
        // The users are behind the second direction of an isolation.
        let elsewhere = planned(1, Happening::Way(1, 2, false), Some("isolate"));
        watched.before(&[elsewhere, planned(1, Happening::Way(1, 0, false), None)], at(10));
        for fault in &mut watched.taken {
            follow(fault, &histories, &watched.sites);
            let moved: Vec<_> =
                fault.moved.iter().map(|((node, _), after)| (*node, *after)).collect();
            assert_eq!(moved, [(2, at(2))]);
            let staying: Vec<usize> = fault.staying.iter().map(|(node, _)| *node).collect();
            assert_eq!(staying, [0]);
        }
    }
}
