//! The event queue: what happens next, in virtual time.
//!
//! Events of the same instant happen in the order in which they were scheduled, so nothing depends
//! on the layout of a heap. Only the events of the present slice of time are in a heap; later ones
//! lie unsorted in the slice they belong to, since a million timers of idle tunnels would make
//! every step slow. Bounded by what the world schedules: datagrams on their way, timers of nodes,
//! tunnels and sessions.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

/// A slice of time is two to the power of this many nanoseconds, 67 ms.
const SLICE: u32 = 26;

/// Time in nanoseconds, order of scheduling, place of the event.
type Entry = (u64, u64, u32);

/// Events in the order of their time.
#[derive(Debug)]
pub(crate) struct Queue<E> {
    /// Those of the present slice.
    heap: BinaryHeap<Reverse<Entry>>,
    slice: u64,
    later: BTreeMap<u64, Vec<Entry>>,
    events: Vec<Option<E>>,
    free: Vec<u32>,
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
            events: Vec::new(),
            free: Vec::new(),
            scheduled: 0,
            waiting: 0,
            longest: 0,
        }
    }

    pub(crate) fn push(&mut self, at: Duration, event: E) {
        self.scheduled += 1;
        let place = if let Some(place) = self.free.pop() {
            self.events[place as usize] = Some(event);
            place
        } else {
            self.events.push(Some(event));
            u32::try_from(self.events.len() - 1).expect("fewer than 2^32 events wait")
        };
        let nanos = u64::try_from(at.as_nanos()).expect("a run is shorter than 500 years");
        let entry = (nanos, self.scheduled, place);
        let slice = nanos >> SLICE;
        if slice <= self.slice {
            self.heap.push(Reverse(entry));
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
            self.heap = entries.into_iter().map(Reverse).collect();
        }
        if u128::from(self.heap.peek()?.0.0) > until.as_nanos() {
            return None;
        }
        let Reverse((nanos, _, place)) = self.heap.pop()?;
        self.waiting -= 1;
        self.free.push(place);
        let event = self.events[place as usize].take().expect("in the heap, so not taken yet");
        Some((Duration::from_nanos(nanos), event))
    }

    /// The most events that ever waited.
    pub(crate) fn longest(&self) -> usize {
        self.longest
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
}
