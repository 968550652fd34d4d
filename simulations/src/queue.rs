//! The event queue: what happens next, in virtual time.
//!
//! Events of the same instant happen in the order in which they were scheduled, so nothing depends
//! on the layout of a heap. Only the turns of the current time slice are in a heap. Later ones are
//! unsorted within their slice, since a million timers of idle tunnels would slow down every step.
//! The events themselves are stored separately and do not move: a turn is a quarter of the size,
//! and each is moved a dozen times. Bounded by what the world schedules: datagrams in transit, and
//! timers of nodes, tunnels and sessions.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

/// Length of a time slice as a power of two of nanoseconds, 17 ms: several hundred events of a
/// thousand nodes, which fit the L1 cache.
const SLICE: u32 = 24;

/// An event's position in the order (time in nanoseconds, then the time of scheduling) and its
/// index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    nanos: u64,
    scheduled: u64,
    index: usize,
}

/// Events ordered by time.
#[derive(Debug)]
pub(crate) struct Queue<E> {
    /// Turns of the current slice, earliest first.
    heap: BinaryHeap<Reverse<Turn>>,
    slice: u64,
    later: BTreeMap<u64, Vec<Reverse<Turn>>>,
    scheduled: u64,
    events: Vec<Option<E>>,
    /// Free indexes. The last one was freed most recently and is in the cache.
    free: Vec<usize>,
}

impl<E> Queue<E> {
    pub(crate) fn new() -> Self {
        Self {
            heap: BinaryHeap::new(),
            slice: 0,
            later: BTreeMap::new(),
            scheduled: 0,
            events: Vec::new(),
            free: Vec::new(),
        }
    }

    pub(crate) fn push(&mut self, at: Duration, event: E) {
        self.scheduled += 1;
        let nanos = u64::try_from(at.as_nanos()).expect("a run is shorter than 500 years");
        let index = self.free.pop().unwrap_or(self.events.len());
        if index == self.events.len() {
            self.events.push(None);
        }
        self.events[index] = Some(event);
        let turn = Reverse(Turn { nanos, scheduled: self.scheduled, index });
        let slice = nanos >> SLICE;
        if slice <= self.slice {
            self.heap.push(turn);
        } else {
            self.later.entry(slice).or_default().push(turn);
        }
    }

    /// The next event no later than `until`.
    pub(crate) fn pop(&mut self, until: Duration) -> Option<(Duration, E)> {
        if self.heap.is_empty() {
            let (slice, turns) = self.later.pop_first()?;
            self.slice = slice;
            self.heap = turns.into();
        }
        if u128::from(self.heap.peek()?.0.nanos) > until.as_nanos() {
            return None;
        }
        let Reverse(turn) = self.heap.pop()?;
        self.free.push(turn.index);
        let event = self.events[turn.index].take()?;
        Some((Duration::from_nanos(turn.nanos), event))
    }

    /// The most events that were ever queued.
    pub(crate) fn longest(&self) -> usize {
        self.events.len()
    }

    /// Allocated turns.
    #[cfg(test)]
    fn capacity(&self) -> usize {
        self.heap.capacity() + self.later.values().map(Vec::capacity).sum::<usize>()
    }
}

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
        assert_eq!(queue.longest(), 5);
        queue.push(Duration::from_secs(7), "again");
        assert_eq!(queue.pop(Duration::from_secs(8)), Some((Duration::from_secs(7), "again")));
    }

    #[test]
    fn a_slice_that_is_over_gives_its_room_back() {
        let mut queue = Queue::new();
        for second in 0..10 {
            (0..1000).for_each(|_| queue.push(Duration::from_secs(second), ()));
        }
        let full = queue.capacity();
        while queue.pop(Duration::from_secs(8)).is_some() {}
        assert!(queue.capacity() <= full / 8, "{} of {full}", queue.capacity());
    }
}
