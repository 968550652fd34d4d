//! Events in virtual time; those of the same time keep the order in which they were added.

use std::collections::BTreeMap;
use std::time::Duration;

pub(super) enum What {
    Deliver { from: usize, to: usize, bytes: Vec<u8> },
    Timer { node: usize },
    Handshake { from: usize, to: usize, tries: u32 },
}

#[derive(Default)]
pub(super) struct Events {
    queue: BTreeMap<(Duration, u64), What>,
    sequence: u64,
    /// Steps without time passing; many of them mean that a timer stays due forever.
    spins: u32,
    pub(super) now: Duration,
}

impl Events {
    pub(super) fn push(&mut self, at: Duration, what: What) {
        self.sequence += 1;
        self.queue.insert((at, self.sequence), what);
    }

    /// Advances to the next event, or to `end` if none comes before.
    pub(super) fn next(&mut self, end: Duration) -> Option<What> {
        let Some(entry) = self.queue.first_entry().filter(|entry| entry.key().0 <= end) else {
            self.now = end;
            return None;
        };
        let ((at, _), what) = entry.remove_entry();
        self.spins = if at > self.now { 0 } else { self.spins + 1 };
        assert!(self.spins < 100_000, "the network spins at {:?}", self.now);
        self.now = self.now.max(at);
        Some(what)
    }
}
