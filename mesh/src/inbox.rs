//! Datagrams in transit from the shard where they arrived to the one they belong to.
//!
//! Each shard has one inbox. The kernel sends nearly everything to the right socket (see
//! [`steer`](super::steer)), so only handshake initiations pass through here, or everything if the
//! kernel accepts no filter. Bounded by [`MAX_BYTES`] like a socket; the sender counts overflow.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use super::lock;
use meshport_proto::core::{Batch, HandOver};

/// Bytes that may be queued for one shard, as at its socket.
const MAX_BYTES: usize = 4 << 20;
/// The cost of a batch in addition to its bytes, so that small ones are bounded as well.
const BATCH_COST: usize = 256;

#[derive(Debug, Default)]
struct Waiting {
    batches: VecDeque<Batch>,
    bytes: usize,
    waker: Option<Waker>,
}

/// The batches that wait for one shard.
#[derive(Debug, Default)]
struct Inbox(Mutex<Waiting>);

fn cost(batch: &Batch) -> usize {
    batch.bytes.len() + BATCH_COST
}

impl Inbox {
    /// False if there is no room; then the batch is dropped.
    fn push(&self, batch: Batch) -> bool {
        let waker = {
            let mut waiting = lock(&self.0);
            if waiting.bytes + cost(&batch) > MAX_BYTES {
                return false;
            }
            waiting.bytes += cost(&batch);
            waiting.batches.push_back(batch);
            waiting.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }
}

/// The inboxes of all shards of a node, from the view of one of them.
#[derive(Debug, Clone)]
pub(super) struct Inboxes {
    all: Arc<[Inbox]>,
    own: usize,
}

impl Inboxes {
    /// One view for each of `shards`.
    pub(super) fn new(shards: usize) -> impl Iterator<Item = Self> {
        let all: Arc<[Inbox]> = (0..shards).map(|_| Inbox::default()).collect();
        (0..shards).map(move |own| Self { all: all.clone(), own })
    }

    /// Whether there is no other shard.
    pub(super) fn is_alone(&self) -> bool {
        self.all.len() == 1
    }

    /// Sends to another shard; false if its inbox is full.
    pub(super) fn send(&self, hand_over: HandOver) -> bool {
        self.all.get(hand_over.shard).is_some_and(|inbox| inbox.push(hand_over.batch))
    }

    /// The next batch for this shard. Only one task at a time is woken.
    pub(super) fn poll(&self, cx: &mut Context<'_>) -> Poll<Batch> {
        let mut waiting = lock(&self.all[self.own].0);
        if let Some(batch) = waiting.batches.pop_front() {
            waiting.bytes -= cost(&batch);
            return Poll::Ready(batch);
        }
        if !waiting.waker.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
            waiting.waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use meshport_proto::event::Route;

    fn batch(length: usize) -> Batch {
        let route = Route::from(SocketAddr::from(([192, 0, 2, 1], 1)));
        Batch { route, bytes: vec![7; length], stride: 1400, claimed: None }
    }

    #[test]
    fn what_finds_no_room_is_refused_until_some_was_taken() {
        let [one, other] = &Inboxes::new(2).collect::<Vec<_>>()[..] else { panic!("two") };
        let send = |length| one.send(HandOver { shard: 1, batch: batch(length) });
        let mut sent = 0;
        while send(64_000) {
            sent += 1;
        }
        assert_eq!(sent, MAX_BYTES / (64_000 + BATCH_COST));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(one.poll(&mut cx).is_pending(), "it was for the other one");
        assert_eq!(other.poll(&mut cx), Poll::Ready(batch(64_000)));
        assert!(send(64_000));
        assert!(!send(64_000));
        // Empty datagrams take room as well.
        assert!((0..MAX_BYTES).any(|_| !send(0)));
        assert!(!one.send(HandOver { shard: 2, batch: batch(1) }), "there is no third shard");
    }
}
