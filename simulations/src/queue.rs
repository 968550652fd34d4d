//! The event queue: what happens next, in virtual time.
//!
//! Events of the same instant happen in the order in which they were scheduled, so nothing depends
//! on the layout of a heap. Bounded by what the world schedules: datagrams on their way and one
//! timer a node.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::time::Duration;

/// Events in the order of their time.
#[derive(Debug)]
pub(crate) struct Queue<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    scheduled: u64,
}

#[derive(Debug)]
struct Entry<E> {
    at: Duration,
    number: u64,
    event: E,
}

impl<E> Queue<E> {
    pub(crate) fn new() -> Self {
        Self { heap: BinaryHeap::new(), scheduled: 0 }
    }

    pub(crate) fn push(&mut self, at: Duration, event: E) {
        self.scheduled += 1;
        self.heap.push(Reverse(Entry { at, number: self.scheduled, event }));
    }

    /// The next event not later than `until`.
    pub(crate) fn pop(&mut self, until: Duration) -> Option<(Duration, E)> {
        if self.heap.peek()?.0.at > until {
            return None;
        }
        self.heap.pop().map(|Reverse(entry)| (entry.at, entry.event))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Entry<E> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_then_by_order_of_scheduling() {
        let mut queue = Queue::new();
        for (at, name) in [(5, "c"), (1, "a"), (5, "d"), (1, "b"), (9, "late")] {
            queue.push(Duration::from_secs(at), name);
        }
        let mut order = Vec::new();
        while let Some((_, name)) = queue.pop(Duration::from_secs(6)) {
            order.push(name);
        }
        assert_eq!(order, ["a", "b", "c", "d"]);
    }
}
