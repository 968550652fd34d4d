//! The costs of nodes, separately for those that offer an origin and those that do not.
//!
//! Datagrams are always counted. Processor time and memory are measured only on request, and for a
//! few nodes of each role: these verify signatures themselves instead of using the process's cache,
//! and share no memory with others, as a daemon does. Measuring changes no decision of a node.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::{Body, World};
use crate::flight::Payload;
use crate::heap;
use crate::tunnel::{EMPTY, INITIATION, OVERHEAD, RESPONSE, SEEN};

/// Nodes of each role that are measured: each holds a separate directory.
const MAX_WEIGHED: usize = 4;
/// Number of clock readings that determine its own overhead: enough for a median.
const CLOCK_READINGS: usize = 1001;

/// The nodes that are measured, and their costs.
#[derive(Debug, Default)]
pub(super) struct Costs {
    /// By node number; empty if nothing is measured.
    weighed: Vec<bool>,
    /// Nodes that offer an origin, and others.
    busy: [Busy; 2],
    origins: Vec<usize>,
    /// Whether the start-up has ended; a flag, because every datagram checks it.
    is_on: bool,
}

/// Processor time of decisions, the clock's own included, and how often it was taken.
#[derive(Debug, Clone, Copy, Default)]
struct Busy {
    raw: Duration,
    times: u32,
}

impl Costs {
    /// Measures the first origins, and others from all over the mesh.
    pub(super) fn new(asked: bool, origins: &[usize], nodes: usize) -> Self {
        if !asked {
            return Self::default();
        }
        let mut weighed = vec![false; nodes];
        let others: Vec<usize> = (0..nodes).filter(|at| !origins.contains(at)).collect();
        let step = (others.len() / MAX_WEIGHED).max(1);
        let others = others.iter().step_by(step).take(MAX_WEIGHED);
        for at in origins.iter().take(MAX_WEIGHED).chain(others) {
            weighed[*at] = true;
        }
        Self { weighed, origins: origins.to_vec(), ..Self::default() }
    }

    pub(super) fn is_weighed(&self, node: usize) -> bool {
        self.weighed.get(node).copied().unwrap_or(false)
    }

    /// Runs an operation of a node, and measures its time if this node is measured.
    pub(super) fn timed<T>(&mut self, node: usize, act: impl FnOnce() -> T) -> T {
        if !self.is_on || !self.is_weighed(node) {
            return act();
        }
        let before = processor();
        let done = act();
        let busy = &mut self.busy[usize::from(!self.origins.contains(&node))];
        busy.raw += processor() - before;
        busy.times += 1;
        done
    }
}

impl World {
    /// Counts the running nodes, once a second, from the first check after the start-up on.
    pub(super) fn count_roles(&mut self) {
        if !self.costs.is_on {
            self.costs.is_on = self.scene.now >= self.story.scenario.warmup();
            return;
        }
        for (at, node) in self.nodes.iter().enumerate() {
            if node.brain.is_some() {
                let role = self.scene.measures.roles.of(self.scene.account.instances[at].is_some());
                role.node_s += 1;
                role.timed_s += u64::from(self.costs.is_weighed(at));
            }
        }
    }

    /// A datagram of discovery or of a tunnel leaves a node.
    pub(super) fn count_sent(&mut self, from: usize, size: usize) {
        if self.costs.is_on {
            let is_origin = self.scene.account.instances[from].is_some();
            self.scene.measures.roles.of(is_origin).sent.add(size);
        }
    }

    /// Counts a packet that reaches a running node.
    pub(super) fn count_received(&mut self, to: usize, body: &Body) {
        let size = match body {
            Body::Initiation => INITIATION,
            Body::Response => RESPONSE,
            Body::Data(Payload::Empty) => EMPTY,
            Body::Data(Payload::Seen(_)) => SEEN,
            Body::Data(Payload::Gossip(bytes)) => bytes.len() + OVERHEAD,
            Body::Data(Payload::Flight(_) | Payload::Ack) => return,
        };
        if self.costs.is_on {
            let is_origin = self.scene.account.instances[to].is_some();
            self.scene.measures.roles.of(is_origin).received.add(size);
        }
    }

    /// Measures the memory of the measured nodes by dropping their state. They do not run
    /// afterwards.
    pub(super) fn weigh(&mut self) {
        for at in 0..self.nodes.len() {
            if !self.costs.is_weighed(at) {
                continue;
            }
            let node = &mut self.nodes[at];
            let Some(brain) = node.brain.take() else { continue };
            let before = heap::in_use();
            drop(brain);
            let role = self.scene.measures.roles.of(self.scene.account.instances[at].is_some());
            if let Some((before, after)) = before.zip(heap::in_use()) {
                role.weighed += 1;
                role.state_bytes += before.saturating_sub(after);
            }
        }
        let own = clock_itself();
        let [origin, other] = self.costs.busy.map(|it| it.raw.saturating_sub(own * it.times));
        self.scene.measures.roles.origin.busy = origin;
        self.scene.measures.roles.other.busy = other;
    }
}

/// Processor time of this thread, without that of other processes.
fn processor() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let whole = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(whole, u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Overhead of the clock: the median of measurements of nothing.
fn clock_itself() -> Duration {
    let mut nothing: Vec<Duration> = (0..CLOCK_READINGS)
        .map(|_| {
            let before = processor();
            processor() - before
        })
        .collect();
    nothing.sort_unstable();
    nothing[CLOCK_READINGS / 2]
}
