//! Sessions of clients, by their own count.

use std::collections::BTreeMap;

/// See the module's description.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    /// The node of the client and the node of the instance of each, by number.
    pub(super) open: BTreeMap<u64, (usize, usize)>,
    numbers: u64,
    tallies: Vec<Tally>,
}

/// Sessions of one node's clients since the beginning.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    opened: u64,
    closed: u64,
    /// How many of them an earlier process of the node has had.
    before: u64,
}

impl Sessions {
    pub(super) fn new(nodes: usize) -> Self {
        Self { tallies: vec![Tally::default(); nodes], ..Self::default() }
    }

    /// A process of a node begins: its own count does as well.
    pub(super) fn starts(&mut self, node: usize) {
        let tally = &mut self.tallies[node];
        tally.before = tally.opened;
    }

    /// A client of a node is served by the instance of another; the session's number.
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

    /// How many the clients of a node have opened, how many were closed, and are open.
    pub(super) fn count(&self, node: usize) -> [u64; 3] {
        let Tally { opened, closed, .. } = self.tallies[node];
        [opened, closed, self.open.values().filter(|(at, _)| *at == node).count() as u64]
    }

    /// How many have been opened through a node's present process.
    pub(super) fn opened_by_process(&self, node: usize) -> u64 {
        let Tally { opened, before, .. } = self.tallies[node];
        opened - before
    }
}
