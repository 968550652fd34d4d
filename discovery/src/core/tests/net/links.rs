//! The links between sites: latency, loss and cuts, all drawn from one seed.

use std::collections::BTreeSet;
use std::time::Duration;

use super::ms;
use crate::dice::Dice;

pub(in crate::core::tests) struct Links {
    /// Share of datagrams lost on any link, in percent.
    pub(in crate::core::tests) loss_percent: usize,
    /// The direction in which datagrams as long as QUIC needs are lost.
    pub(in crate::core::tests) narrow: Option<(usize, usize)>,
    /// One-way latency in milliseconds between sites.
    pub(in crate::core::tests) latency: fn(usize, usize) -> u64,
    cut: BTreeSet<(usize, usize)>,
    /// Nodes that send to a former address of another one.
    misled: BTreeSet<(usize, usize)>,
    dice: Dice,
}

impl Links {
    pub(super) fn new(seed: u8) -> Self {
        Self {
            loss_percent: 0,
            narrow: None,
            latency: |a, b| if a == b { 0 } else { 10 + 7 * (a + b) as u64 },
            cut: BTreeSet::new(),
            misled: BTreeSet::new(),
            dice: Dice::new([seed; 32], b'n'),
        }
    }

    /// Cuts the links between two nodes, both ways.
    pub(super) fn cut(&mut self, a: usize, b: usize) {
        self.cut.extend([(a, b), (b, a)]);
    }

    pub(super) fn heal(&mut self) {
        self.cut.clear();
    }

    /// Changes the address of a node, which others learn when it sends something to them.
    pub(in crate::core::tests) fn rebind(&mut self, node: usize, others: &[usize]) {
        self.misled.extend(others.iter().map(|other| (*other, node)));
    }

    /// Whether the next datagram from one node to another is lost.
    pub(super) fn lose(&mut self, from: usize, to: usize) -> bool {
        let is_lost = self.dice.below(100) < self.loss_percent || self.cut.contains(&(from, to));
        if !is_lost {
            self.misled.remove(&(to, from));
        }
        is_lost || self.misled.contains(&(from, to))
    }

    /// How long the next datagram from one site to another takes.
    pub(super) fn delay(&mut self, from: usize, to: usize) -> Duration {
        let base = ms((self.latency)(from, to));
        base + Duration::from_micros(200) + self.dice.up_to(base / 20 + Duration::from_micros(50))
    }
}
