//! Sessions of clients, by their own count.

use std::collections::BTreeMap;

/// See the module's description.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    /// The client's node and the instance's node of each open session, by number.
    pub(super) open: BTreeMap<u64, (usize, usize)>,
    numbers: u64,
    tallies: Vec<Tally>,
}

/// Sessions of one node's clients since the start.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    opened: u64,
    closed: u64,
    /// How many were opened through earlier processes of the node.
    before: u64,
}

impl Sessions {
    pub(super) fn new(nodes: usize) -> Self {
        Self { tallies: vec![Tally::default(); nodes], ..Self::default() }
    }

    /// Records the start of a node's process, whose own count starts at zero.
    pub(super) fn starts(&mut self, node: usize) {
        let tally = &mut self.tallies[node];
        tally.before = tally.opened;
    }

    /// Records a client of a node being served by another's instance; returns the session's number.
    pub(super) fn open(&mut self, node: usize, origin: usize) -> u64 {
        self.numbers += 1;
        self.open.insert(self.numbers, (node, origin));
        self.tallies[node].opened += 1;
        self.numbers
    }

    pub(super) fn close(&mut self, number: u64) {
        if let Some((node, _)) = self.open.remove(&number) {
            self.tallies[node].closed += 1;
        }
    }

    /// Whether a client of a node has a session with an origin.
    pub(super) fn has(&self, node: usize, origin: usize) -> bool {
        self.open.values().any(|ends| *ends == (node, origin))
    }

    /// How many sessions the clients of a node have opened, closed and have open.
    pub(super) fn count(&self, node: usize) -> [u64; 3] {
        let Tally { opened, closed, .. } = self.tallies[node];
        [opened, closed, self.open.values().filter(|(at, _)| *at == node).count() as u64]
    }

    /// How many were opened through a node's current process.
    pub(super) fn opened_by_process(&self, node: usize) -> u64 {
        let Tally { opened, before, .. } = self.tallies[node];
        opened - before
    }
}
