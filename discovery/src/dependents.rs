//! The peers that depend on this node: their sessions lead here, so they probe their path here all
//! the time.
//!
//! When this node's address changes, such a peer sends to the old one and finds the path silent. It
//! learns the new address from the first packet from here, but this node has no reason to send one,
//! since it receives nothing to answer. So when a peer stops probing at the rate of a path with
//! sessions, this node probes it, before it declares the path dead. Its sessions stay. If it has
//! stopped because its last session ended, this costs one probe; if it is gone, [`MAX_ASKED`].
//!
//! Bounded by [`MAX_DEPENDENTS`]. A peer is kept for less than two seconds after its last probe.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use meshport_config::NodeId;

use crate::directory::MAX_MEMBERS;
use crate::schedule::Schedule;

/// Peers observed at once: only members, whose number has the same bound.
const MAX_DEPENDENTS: usize = MAX_MEMBERS;
/// Consecutive probes that indicate a path with sessions: one without is probed as often while it
/// has few measurements.
const IN_A_ROW: u32 = 5;
/// How late a probe may be beyond its interval and its jitter: as late as the repetition of a lost
/// one on most paths. The peer needs 0.6 s from its first unanswered probe to a dead path.
const LATENESS: Duration = Duration::from_millis(250);
/// Probes to a peer that has fallen silent.
const MAX_ASKED: u32 = 3;
/// Time between these.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// A peer that probes this node.
#[derive(Debug)]
struct Dependent {
    due: Instant,
    /// Probes without a longer pause in between.
    in_a_row: u32,
    /// How often it was asked since.
    asked: u32,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Dependents {
    all: BTreeMap<NodeId, Dependent>,
    schedule: Schedule,
    /// The longest pause between two probes of a path with sessions.
    pause: Duration,
    asks: VecDeque<NodeId>,
}

impl Dependents {
    /// Peers probe their paths with sessions at this `interval`.
    pub(crate) fn new(interval: Duration) -> Self {
        Self {
            all: BTreeMap::new(),
            schedule: Schedule::default(),
            pause: interval + interval / 10 + LATENESS,
            asks: VecDeque::new(),
        }
    }

    /// A peer probes this node.
    pub(crate) fn handle_probe(&mut self, node: NodeId, now: Instant) {
        if self.all.len() >= MAX_DEPENDENTS && !self.all.contains_key(&node) {
            return;
        }
        let due = now + self.pause;
        let known = self.all.entry(node).or_insert(Dependent { due, in_a_row: 0, asked: 0 });
        self.schedule.remove(known.due, node);
        self.schedule.insert(due, node);
        *known = Dependent { due, in_a_row: known.in_a_row.saturating_add(1), asked: 0 };
    }

    /// A peer that was asked has answered.
    pub(crate) fn handle_echo(&mut self, node: NodeId) {
        if self.all.get(&node).is_some_and(|it| it.asked > 0) {
            self.forget(node);
        }
    }

    /// Probes silent peers.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        while let Some(node) = self.schedule.take_due(now) {
            let Some(silent) = self.all.get_mut(&node) else { continue };
            if silent.in_a_row < IN_A_ROW || silent.asked >= MAX_ASKED {
                self.all.remove(&node);
                continue;
            }
            silent.asked += 1;
            silent.due = now + ASK_AGAIN;
            self.schedule.insert(silent.due, node);
            self.asks.push_back(node);
        }
    }

    /// The process did not run for this long: silence in that time is ignored.
    pub(crate) fn stalled(&mut self, by: Duration) {
        self.schedule.clear();
        for (node, known) in &mut self.all {
            known.due += by;
            self.schedule.insert(known.due, *node);
        }
    }

    /// A peer to probe.
    pub(crate) fn poll_send(&mut self) -> Option<NodeId> {
        self.asks.pop_front()
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.schedule.next()
    }

    fn forget(&mut self, node: NodeId) {
        if let Some(known) = self.all.remove(&node) {
            self.schedule.remove(known.due, node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{base, ms, node};

    const INTERVAL: Duration = Duration::from_millis(500);

    struct Bench {
        dependents: Dependents,
        start: Instant,
        now: Instant,
    }

    impl Bench {
        fn new() -> Self {
            let start = base();
            Self { dependents: Dependents::new(INTERVAL), start, now: start }
        }

        /// A peer probes this often at this interval.
        fn probes(&mut self, peer: u8, count: u32, interval: Duration) {
            for at in 0..count {
                let asked = if at > 0 { self.run(interval) } else { Vec::new() };
                assert_eq!(asked, [], "it probes");
                self.dependents.handle_probe(node(peer), self.now);
            }
        }

        /// When which peers are asked in this time, in milliseconds from its start.
        fn run(&mut self, time: Duration) -> Vec<(u128, NodeId)> {
            let (start, end) = (self.now, self.now + time);
            let mut asked = Vec::new();
            while let Some(due) = self.dependents.poll_timeout().filter(|due| *due <= end) {
                self.now = due;
                self.dependents.handle_timeout(due);
                let all = std::iter::from_fn(|| self.dependents.poll_send());
                asked.extend(all.map(|peer| ((due - start).as_millis(), peer)));
            }
            self.now = end;
            asked
        }
    }

    #[test]
    fn a_peer_that_probed_all_the_time_is_asked_a_few_times() {
        let mut bench = Bench::new();
        bench.probes(1, 20, INTERVAL);
        let asked = bench.run(ms(60_000));
        assert_eq!(asked, [800, 900, 1000].map(|at| (at, node(1))));
        assert!(bench.dependents.all.is_empty() && bench.dependents.poll_timeout().is_none());
    }

    #[test]
    fn an_answer_or_another_probe_ends_that() {
        let mut bench = Bench::new();
        bench.probes(1, 20, INTERVAL);
        assert_eq!(bench.run(ms(810)).len(), 1);
        bench.dependents.handle_echo(node(1));
        assert_eq!(bench.run(ms(60_000)), []);
        bench.probes(1, 20, INTERVAL);
        bench.dependents.handle_echo(node(1));
        assert_eq!(bench.run(ms(810)).len(), 1, "an answer to something else");
        bench.dependents.handle_probe(node(1), bench.now);
        assert_eq!(bench.run(ms(790)), []);
        assert_eq!(bench.run(ms(20)).len(), 1, "silent again");
    }

    #[test]
    fn a_path_without_sessions_and_a_lost_probe_mean_nothing() {
        let mut bench = Bench::new();
        // A new path is measured, then rarely probed.
        bench.probes(1, IN_A_ROW - 1, INTERVAL);
        bench.probes(2, 20, ms(5000));
        assert_eq!(bench.run(ms(5000)), []);
        // A peer repeats a lost probe after 0.2 s.
        bench.probes(3, 20, ms(750));
        bench.dependents.stalled(ms(7000));
        assert_eq!(bench.run(ms(7790)), [], "this process did not run");
        assert_eq!(bench.run(ms(20)), [(10, node(3))]);
    }

    #[test]
    fn there_are_no_more_than_its_bound() {
        let mut bench = Bench::new();
        for number in 0..=MAX_DEPENDENTS {
            let mut id = [0; 32];
            id[..8].copy_from_slice(&number.to_le_bytes());
            bench.dependents.handle_probe(NodeId::from_bytes(id), bench.start);
        }
        assert_eq!(bench.dependents.all.len(), MAX_DEPENDENTS);
    }
}
