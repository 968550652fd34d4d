//! The event queue: what happens next, in virtual time.
//!
//! Events of the same instant happen in the order in which they were scheduled, so nothing depends
//! on the layout of a heap. Only the events of the present slice of time are in a heap; later ones
//! lie unsorted in the slice they belong to, since a million timers of idle tunnels would make
//! every step slow, and a slice that is over gives its room back. Bounded by what the world
//! schedules: datagrams on their way, timers of nodes, tunnels and sessions.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

/// A slice of time is two to the power of this many nanoseconds, 17 ms: some hundred events of a
/// thousand nodes, which the nearest cache holds.
const SLICE: u32 = 24;

/// An event and its place in the order: time in nanoseconds, then when it was scheduled. The
/// earliest is the greatest, as a heap wants it.
#[derive(Debug)]
struct Entry<E> {
    nanos: u64,
    scheduled: u64,
    event: E,
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.nanos, other.scheduled).cmp(&(self.nanos, self.scheduled))
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

/// Events in the order of their time.
#[derive(Debug)]
pub(crate) struct Queue<E> {
    /// Those of the present slice.
    heap: BinaryHeap<Entry<E>>,
    slice: u64,
    later: BTreeMap<u64, Vec<Entry<E>>>,
    scheduled: u64,
    waiting: usize,
    longest: usize,
}

impl<E> Queue<E> {
    pub(crate) fn new() -> Self {
        Self {
            heap: BinaryHeap::new(),
            slice: 0,
            later: BTreeMap::new(),
            scheduled: 0,
            waiting: 0,
            longest: 0,
        }
    }

    pub(crate) fn push(&mut self, at: Duration, event: E) {
        self.scheduled += 1;
        let nanos = u64::try_from(at.as_nanos()).expect("a run is shorter than 500 years");
        let entry = Entry { nanos, scheduled: self.scheduled, event };
        let slice = nanos >> SLICE;
        if slice <= self.slice {
            self.heap.push(entry);
        } else {
            self.later.entry(slice).or_default().push(entry);
        }
        self.waiting += 1;
        self.longest = self.longest.max(self.waiting);
    }

    /// The next event not later than `until`.
    pub(crate) fn pop(&mut self, until: Duration) -> Option<(Duration, E)> {
        if self.heap.is_empty() {
            let (slice, entries) = self.later.pop_first()?;
            self.slice = slice;
            self.heap = entries.into();
        }
        if u128::from(self.heap.peek()?.nanos) > until.as_nanos() {
            return None;
        }
        let entry = self.heap.pop()?;
        self.waiting -= 1;
        Some((Duration::from_nanos(entry.nanos), entry.event))
    }

    /// The most events that ever waited.
    pub(crate) fn longest(&self) -> usize {
        self.longest
    }

    /// Events there is room for.
    #[cfg(test)]
    fn room(&self) -> usize {
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
        let full = queue.room();
        while queue.pop(Duration::from_secs(8)).is_some() {}
        assert!(queue.room() <= full / 8, "{} of {full}", queue.room());
    }
}
