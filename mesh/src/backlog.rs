//! Sends a connection's bulk data one piece after another.
//!
//! QUIC gives each stream with data one packet in turn. With 64 busy streams every arriving packet
//! belongs to another one, and the receiver writes to another socket each time: twice the CPU time
//! of one stream. So pieces of at least [`BULK_BYTES`] wait here until less than [`BACKLOG_BYTES`]
//! are unsent, and are sent in that order. Small data does not wait and goes ahead.
//!
//! Turns are given by bytes, so a stream with short pieces gets as much of the connection as one
//! with long ones: start-time fair queueing (Goyal, Vin and Cheng 1996), with the same weight for
//! all.
//!
//! Unsent data can only be estimated: the bytes written less those that the congestion controller
//! sees leave. The estimate is slightly high and is corrected whenever everything has been sent.

use std::collections::BTreeMap;
use std::sync::Mutex;

use quinn::{Connection, ConnectionError};
use tokio::sync::oneshot;

use super::lock;

/// With this many unsent bytes on a connection, bulk waits: enough for a few batches, and a short
/// wait on a slow path.
const BACKLOG_BYTES: u64 = 128 << 10;
/// Smaller pieces, in bytes, are sent at once: they are not bulk, or are the end of it.
const BULK_BYTES: usize = 16 << 10;
/// Bytes of earlier data that a smaller piece may overtake: as many as are admitted. More small
/// pieces than that cannot starve bulk data.
const HEAD_START: u64 = BACKLOG_BYTES + (64 << 10);
/// Pieces within this many bytes of each other have the same rank; the ranks last for 64 TiB. Later
/// pieces have the lowest, and take turns.
const RANK_BYTES: u64 = 16 << 10;
/// The share of sent bytes that is not stream data: headers, acknowledgements. One in this many, an
/// overestimate: an underestimate would let the backlog grow forever.
const OVERHEAD: u64 = 16;

/// Order in which pieces are sent: before those of a lower rank. It is QUIC's stream priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank(pub(super) i32);

/// The bytes that a stream has sent, in virtual time: where its last piece ends.
#[derive(Debug, Default)]
pub(super) struct Share(u64);

/// See the module's description.
#[derive(Debug, Default)]
pub(super) struct Backlog(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Bytes that were written and, by the estimate, not sent.
    unsent: u64,
    /// Bytes admitted since the start. It is never reset: a piece whose stream's window is full
    /// keeps its rank, which would then be lower than those of all later ones.
    passed: u64,
    /// Virtual time: the beginning of the last admitted piece.
    virtual_time: u64,
    /// Number of pieces so far.
    arrived: u64,
    /// Waiting pieces with their lengths, by beginning and order of arrival: at most one for each
    /// stream.
    waiting: BTreeMap<(u64, u64), (u64, oneshot::Sender<Rank>)>,
}

impl State {
    /// Start of a stream's next piece: after its last one, and not in the past, so that silence
    /// earns no credit.
    fn begin(&self, share: &mut Share, length: u64) -> u64 {
        let begins = self.virtual_time.max(share.0);
        share.0 = begins + length;
        begins
    }

    fn pass(&mut self, begins: u64, length: u64) -> Rank {
        self.virtual_time = self.virtual_time.max(begins);
        let head_start = if length < BULK_BYTES as u64 { HEAD_START } else { 0 };
        let place = HEAD_START + self.passed - head_start;
        self.unsent += length;
        self.passed += length;
        let rank = i64::from(i32::MAX) - (place / RANK_BYTES).cast_signed();
        Rank(i32::try_from(rank).unwrap_or(i32::MIN))
    }

    fn admit(&mut self) {
        while self.unsent < BACKLOG_BYTES
            && let Some(((begins, _), (length, waiting))) = self.waiting.pop_first()
        {
            // A caller that stopped waiting has no piece.
            if !waiting.is_closed() {
                let rank = self.pass(begins, length);
                // The caller may have given up since; then a few bytes are counted but never sent.
                let _ = waiting.send(rank);
            }
        }
    }
}

impl Backlog {
    /// Waits until a piece of `length` bytes may be written to the stream with this share of
    /// `connection`, and counts it.
    pub(super) async fn enter(
        &self,
        share: &mut Share,
        length: usize,
        connection: &Connection,
    ) -> Result<Rank, ConnectionError> {
        let turn = match self.queue(share, length) {
            Ok(rank) => return Ok(rank),
            Err(turn) => turn,
        };
        tokio::select! {
            // A waiting piece is not dropped before this is.
            Ok(rank) = turn => Ok(rank),
            error = connection.closed() => Err(error),
        }
    }

    /// Counts a piece that may be written now; otherwise it waits.
    fn queue(&self, share: &mut Share, length: usize) -> Result<Rank, oneshot::Receiver<Rank>> {
        let mut state = lock(&self.0);
        let begins = state.begin(share, length as u64);
        if length < BULK_BYTES || (state.unsent < BACKLOG_BYTES && state.waiting.is_empty()) {
            return Ok(state.pass(begins, length as u64));
        }
        let (turn, waiting) = oneshot::channel();
        state.arrived += 1;
        let place = (begins, state.arrived);
        state.waiting.insert(place, (length as u64, turn));
        Err(waiting)
    }

    /// A counted piece is not sent: its stream's window is full.
    pub(super) fn leave(&self, length: usize) {
        let mut state = lock(&self.0);
        state.unsent = state.unsent.saturating_sub(length as u64);
        state.admit();
    }

    /// Packets of this many bytes were sent.
    pub(super) fn sent(&self, bytes: u64) {
        let mut state = lock(&self.0);
        state.unsent = state.unsent.saturating_sub(bytes - bytes / OVERHEAD);
        state.admit();
    }

    /// Packets of this many bytes were lost: their data is retransmitted.
    pub(super) fn lost(&self, bytes: u64) {
        lock(&self.0).unsent += bytes;
    }

    /// All written data has been sent.
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

    type Turn = Result<Rank, oneshot::Receiver<Rank>>;

    /// The first piece of a stream.
    fn new(backlog: &Backlog, length: usize) -> Turn {
        backlog.queue(&mut Share::default(), length)
    }

    fn rank(turn: &mut Turn) -> Option<Rank> {
        match turn {
            Ok(rank) => Some(*rank),
            Err(turn) => turn.try_recv().ok(),
        }
    }

    fn are_admitted(turns: &mut [Turn]) -> Vec<bool> {
        turns.iter_mut().map(|turn| rank(turn).is_some()).collect()
    }

    /// A backlog with as many pieces as it admits, and this many waiting.
    fn full(waiting: usize) -> (Backlog, Vec<Turn>) {
        let backlog = Backlog::default();
        let mut taken = 0;
        while lock(&backlog.0).unsent < BACKLOG_BYTES {
            new(&backlog, PIECE).unwrap();
            taken += 1;
        }
        assert_eq!(taken, 2);
        let turns = (0..waiting).map(|_| new(&backlog, PIECE)).collect();
        (backlog, turns)
    }

    #[test]
    fn bulk_waits_in_order_and_little_does_not() {
        let (backlog, mut turns) = full(3);
        assert_eq!(are_admitted(&mut turns), [false; 3]);
        new(&backlog, BULK_BYTES - 1).unwrap();
        // That piece is sent first, then there is room for one more, the first.
        backlog.sent(40 << 10);
        assert_eq!(are_admitted(&mut turns), [true, false, false]);
        // Waiting pieces are not overtaken.
        backlog.leave(PIECE);
        let mut late = new(&backlog, PIECE);
        backlog.leave(PIECE);
        assert_eq!(are_admitted(&mut turns[1..]), [true, true]);
        assert_eq!(rank(&mut late), None);
    }

    #[test]
    fn small_pieces_go_ahead_but_not_forever() {
        let backlog = Backlog::default();
        let bulk = [new(&backlog, PIECE).unwrap(), new(&backlog, PIECE).unwrap()];
        assert!(bulk[0] > bulk[1]);
        let little = new(&backlog, 100).unwrap();
        assert!(little > bulk[0]);
        let more: Vec<Rank> = (0..40).map(|_| new(&backlog, 8 << 10).unwrap()).collect();
        assert!(more.is_sorted_by(|a, b| a >= b));
        let ahead = more.iter().filter(|rank| **rank > bulk[0]).count() as u64;
        assert_eq!(ahead * (8 << 10), HEAD_START - 2 * PIECE as u64);
        // A caller that has waited long is not overtaken by later ones.
        backlog.drained();
        assert!(new(&backlog, PIECE).unwrap() < more[39]);
        lock(&backlog.0).passed = 64 << 40;
        backlog.drained();
        let last = [new(&backlog, PIECE).unwrap(), new(&backlog, PIECE).unwrap()];
        assert_eq!(last, [Rank(i32::MIN); 2]);
    }

    #[test]
    fn a_caller_that_gives_up_has_no_turn() {
        let (backlog, mut turns) = full(3);
        drop(turns.remove(0));
        backlog.leave(PIECE);
        assert_eq!(are_admitted(&mut turns), [true, false]);
    }

    #[test]
    fn the_estimate_is_high_and_put_right() {
        let (backlog, mut turns) = full(1);
        // The written bytes plus headers leave some of the data unsent.
        backlog.sent(2 * PIECE as u64);
        assert_eq!(are_admitted(&mut turns), [true]);
        assert!(lock(&backlog.0).unsent > PIECE as u64);
        backlog.lost(1200);
        backlog.drained();
        assert_eq!(lock(&backlog.0).unsent, 0);
        let (backlog, mut turns) = full(1);
        backlog.drained();
        assert_eq!(are_admitted(&mut turns), [true]);
        assert_eq!(lock(&backlog.0).unsent, PIECE as u64);
    }

    /// Streams that always have more data, each in pieces of a different length.
    #[test]
    fn short_pieces_have_as_many_bytes_as_long_ones() {
        let backlog = Backlog::default();
        let lengths = [16 << 10, 40 << 10, 64 << 10, 64 << 10];
        let mut shares = lengths.map(|_| Share::default());
        let mut turns = [const { None }; 4];
        let mut had = [0; 4];
        for _ in 0..16_000 {
            for (at, length) in lengths.into_iter().enumerate() {
                let turn = turns[at].get_or_insert_with(|| backlog.queue(&mut shares[at], length));
                if rank(turn).is_some() {
                    turns[at] = None;
                    had[at] += length;
                }
            }
            backlog.sent(8 << 10);
        }
        let (least, most) = (had.iter().min().unwrap(), had.iter().max().unwrap());
        assert!(*least > 1 << 20 && most - least <= 128 << 10, "{had:?}");
        // A sender that was silent for long does not delay the others now.
        let mut late = Share::default();
        backlog.queue(&mut late, PIECE).expect_err("it waits");
        assert!(late.0 >= lock(&backlog.0).virtual_time + PIECE as u64);
    }
}
