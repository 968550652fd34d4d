//! Queues that release their capacity after they were long: after a restored directory, or a
//! thousand joins.

use std::collections::VecDeque;

/// Entries for which an empty queue keeps capacity: more than a busy moment needs.
const KEPT: usize = 64;

/// Takes the first entry. If the queue is then empty and was long, it releases its capacity.
pub(crate) fn pop<T>(queue: &mut VecDeque<T>) -> Option<T> {
    let first = queue.pop_front();
    if queue.is_empty() && queue.capacity() > KEPT {
        *queue = VecDeque::new();
    }
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drained_queue_gives_its_capacity_back() {
        let mut queue: VecDeque<usize> = (0..10_000).collect();
        let mut taken = 0;
        while let Some(number) = pop(&mut queue) {
            assert_eq!(number, taken);
            taken += 1;
        }
        assert_eq!(taken, 10_000);
        assert!(queue.capacity() <= KEPT);
        queue.reserve_exact(KEPT / 2);
        let usual = queue.capacity();
        queue.push_back(1);
        assert_eq!((pop(&mut queue), queue.capacity()), (Some(1), usual));
    }
}
