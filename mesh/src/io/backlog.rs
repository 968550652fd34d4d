//! Bulk data of a connection goes one piece after another.
//!
//! QUIC gives each stream that has data a packet in turn. With 64 that all have much, every packet
//! that arrives belongs to another stream, and the receiver pays a write to another socket for
//! each: twice the processor time of one stream. So pieces of at least [`BULK_BYTES`] wait here,
//! first come first served, until less than [`BACKLOG_BYTES`] are unsent: the packets of a moment
//! then belong to a few streams, which still take turns, and who has little to say does not wait.
//!
//! What is unsent can only be estimated: by what was written, less what the congestion controller
//! hears of. The estimate is a little high and is put right whenever everything has been sent.

use std::collections::VecDeque;
use std::sync::Mutex;

use quinn::{Connection, ConnectionError};
use tokio::sync::oneshot;

use super::lock;

/// Unsent bytes of a connection from which on bulk waits: enough for some batches, and no longer on
/// a slow path than it must be.
const BACKLOG_BYTES: u64 = 128 << 10;
/// Pieces below this go on at once, in bytes: no bulk, or its end.
const BULK_BYTES: usize = 16 << 10;
/// The part of what is sent that is no data of streams: headers, acknowledgements. One in this
/// many, more than there really is: too little would let the backlog grow for ever.
const OVERHEAD: u64 = 16;

/// See the module's description.
#[derive(Debug, Default)]
pub(super) struct Backlog(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Bytes that were written and, as far as one knows, not sent.
    unsent: u64,
    /// Pieces that wait, with their lengths: at most one for each stream.
    waiting: VecDeque<(u64, oneshot::Sender<()>)>,
}

impl State {
    fn admit(&mut self) {
        while self.unsent < BACKLOG_BYTES
            && let Some((length, waiting)) = self.waiting.pop_front()
        {
            // Whoever does not wait any more has no piece.
            if waiting.send(()).is_ok() {
                self.unsent += length;
            }
        }
    }
}

impl Backlog {
    /// Waits until a piece of `length` bytes may be written to a stream of `connection`, and counts
    /// it.
    ///
    /// # Errors
    /// The connection's when it ends.
    pub(super) async fn enter(
        &self,
        length: usize,
        connection: &Connection,
    ) -> Result<(), ConnectionError> {
        let Some(turn) = self.queue(length) else { return Ok(()) };
        tokio::select! {
            // It is never dropped without a word: the state belongs to who waits.
            _ = turn => Ok(()),
            error = connection.closed() => Err(error),
        }
    }

    /// Counts a piece that may be written now; otherwise says when.
    fn queue(&self, length: usize) -> Option<oneshot::Receiver<()>> {
        let (bytes, mut state) = (length as u64, lock(&self.0));
        if length < BULK_BYTES || (state.unsent < BACKLOG_BYTES && state.waiting.is_empty()) {
            state.unsent += bytes;
            return None;
        }
        let (turn, waiting) = oneshot::channel();
        state.waiting.push_back((bytes, turn));
        Some(waiting)
    }

    /// A piece that was counted does not go on: its stream's window is full.
    pub(super) fn leave(&self, length: usize) {
        let mut state = lock(&self.0);
        state.unsent = state.unsent.saturating_sub(length as u64);
        state.admit();
    }

    /// Packets of so many bytes were sent.
    pub(super) fn sent(&self, bytes: u64) {
        let mut state = lock(&self.0);
        state.unsent = state.unsent.saturating_sub(bytes - bytes / OVERHEAD);
        state.admit();
    }

    /// Packets of so many bytes got lost: what was in them is sent again.
    pub(super) fn lost(&self, bytes: u64) {
        lock(&self.0).unsent += bytes;
    }

    /// All that was written has been sent.
    pub(super) fn drained(&self) {
        let mut state = lock(&self.0);
        state.unsent = 0;
        state.admit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECE: usize = 64 << 10;

    fn is_admitted(turn: &mut Option<oneshot::Receiver<()>>) -> bool {
        turn.as_mut().is_none_or(|turn| turn.try_recv().is_ok())
    }

    /// A backlog with as many pieces as it takes, and so many that wait.
    fn full(waiting: usize) -> (Backlog, Vec<Option<oneshot::Receiver<()>>>) {
        let backlog = Backlog::default();
        let mut taken = 0;
        while lock(&backlog.0).unsent < BACKLOG_BYTES {
            assert!(backlog.queue(PIECE).is_none());
            taken += 1;
        }
        assert_eq!(taken, 2);
        let turns = (0..waiting).map(|_| backlog.queue(PIECE)).collect();
        (backlog, turns)
    }

    #[test]
    fn bulk_waits_in_order_and_little_does_not() {
        let (backlog, mut turns) = full(3);
        assert!(turns.iter_mut().all(|turn| !is_admitted(turn)));
        assert!(backlog.queue(BULK_BYTES - 1).is_none());
        // That one goes first, then there is room for one more, the first.
        backlog.sent(40 << 10);
        assert_eq!(turns.iter_mut().map(is_admitted).collect::<Vec<_>>(), [true, false, false]);
        // Nobody overtakes who waits.
        backlog.leave(PIECE);
        let mut late = backlog.queue(PIECE);
        backlog.leave(PIECE);
        assert_eq!(turns[1..].iter_mut().map(is_admitted).collect::<Vec<_>>(), [true, true]);
        assert!(!is_admitted(&mut late));
    }

    #[test]
    fn who_gives_up_has_no_turn() {
        let (backlog, mut turns) = full(3);
        turns.remove(0);
        backlog.leave(PIECE);
        assert_eq!(turns.iter_mut().map(is_admitted).collect::<Vec<_>>(), [true, false]);
    }

    #[test]
    fn the_estimate_is_high_and_put_right() {
        let (backlog, mut turns) = full(1);
        // As many bytes as were written, headers included, leave some of them unsent.
        backlog.sent(2 * PIECE as u64);
        assert!(is_admitted(&mut turns[0]));
        assert!(lock(&backlog.0).unsent > PIECE as u64);
        backlog.lost(1200);
        backlog.drained();
        assert_eq!(lock(&backlog.0).unsent, 0);
        let (backlog, mut turns) = full(1);
        backlog.drained();
        assert!(is_admitted(&mut turns[0]));
        assert_eq!(lock(&backlog.0).unsent, PIECE as u64);
    }
}
