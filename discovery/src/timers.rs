//! A bounded queue of timed actions.
//!
//! Equal times keep the order in which they were added, so that a run is repeatable. The queue can
//! be shifted as a whole: after a stall of the process every deadline for a peer moves by the time
//! in which nothing was received.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Entries ordered by due time, then by insertion.
#[derive(Debug)]
pub(crate) struct Timers<T> {
    queue: BTreeMap<(Instant, u64), T>,
    /// When the first entry is due: needed after each datagram, so it is stored separately.
    first: Option<Instant>,
    sequence: u64,
    limit: usize,
}

impl<T> Timers<T> {
    /// An empty queue of at most `limit` entries.
    pub(crate) fn new(limit: usize) -> Self {
        Self { queue: BTreeMap::new(), first: None, sequence: 0, limit }
    }

    /// Adds an entry; false when the queue is full and the entry was dropped.
    #[must_use]
    pub(crate) fn add(&mut self, due: Instant, what: T) -> bool {
        if self.queue.len() >= self.limit {
            return false;
        }
        self.sequence += 1;
        self.queue.insert((due, self.sequence), what);
        self.first = Some(self.first.map_or(due, |first| first.min(due)));
        true
    }

    /// When the first entry is due.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.first
    }

    /// Takes the first entry if it is due.
    pub(crate) fn take_due(&mut self, now: Instant) -> Option<T> {
        if self.first.is_none_or(|first| first > now) {
            return None;
        }
        let (_, what) = self.queue.pop_first()?;
        self.look();
        Some(what)
    }

    /// Takes the first entry of a kind, whenever it is due.
    pub(crate) fn take(&mut self, is_it: impl Fn(&T) -> bool) -> Option<T> {
        let key = *self.queue.iter().find(|(_, what)| is_it(what))?.0;
        let what = self.queue.remove(&key);
        self.look();
        what
    }

    /// Moves every entry later by `by`.
    pub(crate) fn shift(&mut self, by: Duration) {
        let moved = std::mem::take(&mut self.queue);
        self.queue = moved.into_iter().map(|((due, at), what)| ((due + by, at), what)).collect();
        self.look();
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.queue.clear();
        self.look();
    }

    fn look(&mut self) {
        self.first = self.queue.first_key_value().map(|((due, _), _)| *due);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::base;

    #[test]
    fn entries_come_in_order_of_time_then_insertion() {
        let start = base();
        let mut timers = Timers::new(8);
        for (after, name) in [(2, "c"), (1, "a"), (1, "b")] {
            assert!(timers.add(start + Duration::from_secs(after), name));
        }
        assert_eq!(timers.next(), Some(start + Duration::from_secs(1)));
        assert_eq!(timers.take_due(start), None);
        let late = start + Duration::from_secs(5);
        let order: Vec<_> = std::iter::from_fn(|| timers.take_due(late)).collect();
        assert_eq!(order, ["a", "b", "c"]);
    }

    #[test]
    fn a_full_queue_refuses_and_a_shift_keeps_the_order() {
        let start = base();
        let mut timers = Timers::new(2);
        assert!(timers.add(start, 1));
        assert!(timers.add(start, 2));
        assert!(!timers.add(start, 3));
        timers.shift(Duration::from_secs(3));
        assert_eq!(timers.take_due(start), None);
        assert_eq!(timers.take(|number| *number == 2), Some(2));
        assert_eq!(timers.take(|number| *number == 2), None);
        assert_eq!(timers.take_due(start + Duration::from_secs(3)), Some(1));
        timers.clear();
        assert_eq!(timers.next(), None);
    }
}
