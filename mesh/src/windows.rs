//! Limits of unread data from peers and of this node's data in flight.
//!
//! *A stream's window* follows the path: what a gigabit per second sends in a round trip, so that
//! one stream can fill it, between [`STREAM_WINDOW`] and [`MAX_STREAM_WINDOW`]. A stopped reader
//! costs that much.
//!
//! *A connection's window* is [`FIRST_WINDOW`] and a stream's window for each open stream that has
//! carried bulk ([`BULK_BYTES`]). So stopped readers do not keep the connection's other streams
//! waiting. The window must not be smaller than the sum over the busy streams: quinn serves streams
//! that wait for it last in, first out.
//!
//! *Bounded in total*: windows beyond the first come from one [`Pool`] for the whole node
//! ([`MAX_UNREAD`]), and data in flight beyond the first [`QUEUE_BYTES`] of each connection from
//! another ([`MAX_IN_FLIGHT`]). When a pool is empty, streams share what they have. An idle
//! connection takes nothing from either.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quinn::{Connection, VarInt};

use super::lock;

/// Bytes that a peer may have in flight on one stream of a short path: the cost of a stopped
/// reader.
const STREAM_WINDOW: u32 = 1 << 20;
/// Maximum of that: a gigabit per second over 100 ms, and a third more for data delayed by a loss.
const MAX_STREAM_WINDOW: u32 = 16 << 20;
/// The target rate of a stream, in bytes per microsecond: a gigabit per second.
const STREAM_RATE: u64 = 125;
/// Bytes for all streams of a connection that carry no bulk data, and for those that do until they
/// are known as such. A stream that is not read never becomes bulk, and eight of them on a path of
/// 50 ms must not block the others.
pub(super) const FIRST_WINDOW: u32 = 64 << 20;
/// A stream counts as bulk once this many bytes of it were read.
const BULK_BYTES: u32 = 16 << 10;
/// Unread bytes that all peers together may send a node in addition to the first windows of their
/// connections: 256 stopped readers on near paths, or 16 on paths of 100 ms.
const MAX_UNREAD: u64 = 256 << 20;
/// Bytes that a node may have in flight in addition to the first [`QUEUE_BYTES`] of each
/// connection: ten gigabits per second over 200 ms.
const MAX_IN_FLIGHT: u64 = 256 << 20;
/// Bytes that may be queued at the receiver beyond what fills the path: a core opens them in a few
/// milliseconds.
pub(super) const QUEUE_BYTES: u64 = 1 << 20;

/// Bytes that a peer may have in flight on one stream of a path with this round-trip time.
pub(super) fn stream_window(rtt: Duration) -> u32 {
    let micros = u64::try_from(rtt.as_micros()).unwrap_or(u64::MAX);
    // A quarter more: the window is announced again only after an eighth of it was read.
    let bytes = micros.saturating_mul(STREAM_RATE + STREAM_RATE / 4);
    u32::try_from(bytes).unwrap_or(u32::MAX).clamp(STREAM_WINDOW, MAX_STREAM_WINDOW)
}

/// Bytes that all connections of a node share.
#[derive(Debug)]
struct Pool {
    most: u64,
    taken: AtomicU64,
}

impl Pool {
    const fn new(most: u64) -> Self {
        Self { most, taken: AtomicU64::new(0) }
    }

    /// Takes all of `bytes` or nothing.
    fn take(&self, bytes: u64) -> bool {
        let more = |taken: u64| taken.checked_add(bytes).filter(|sum| *sum <= self.most);
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    fn give(&self, bytes: u64) {
        self.taken.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// The pools of a node. Clones are the same.
#[derive(Debug, Clone)]
pub(super) struct Pools {
    unread: Arc<Pool>,
    in_flight: Arc<Pool>,
}

impl Default for Pools {
    fn default() -> Self {
        let pool = |most| Arc::new(Pool::new(most));
        Self { unread: pool(MAX_UNREAD), in_flight: pool(MAX_IN_FLIGHT) }
    }
}

/// Bytes that a connection has in flight, counted in the node's pool.
#[derive(Debug)]
pub(super) struct InFlight {
    pool: Arc<Pool>,
    bytes: u64,
}

impl InFlight {
    pub(super) fn new(pools: &Pools) -> Self {
        Self { pool: pools.in_flight.clone(), bytes: 0 }
    }

    /// Sets how much is in flight now.
    pub(super) fn set(&mut self, bytes: u64) {
        let (before, after) = (beyond_first(self.bytes), beyond_first(bytes));
        if before != after {
            self.pool.taken.fetch_add(after, Ordering::Relaxed);
            self.pool.give(before);
        }
        self.bytes = bytes;
    }

    pub(super) fn add(&mut self, bytes: u64) {
        self.set(self.bytes + bytes);
    }

    /// The maximum that this connection may have in flight.
    pub(super) fn most(&self) -> u64 {
        let own = beyond_first(self.bytes);
        let others = self.pool.taken.load(Ordering::Relaxed).saturating_sub(own);
        QUEUE_BYTES + self.pool.most.saturating_sub(others)
    }
}

fn beyond_first(bytes: u64) -> u64 {
    bytes.saturating_sub(QUEUE_BYTES)
}

impl Clone for InFlight {
    /// A copy of the state counts nothing.
    fn clone(&self) -> Self {
        Self { pool: self.pool.clone(), bytes: 0 }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// Bytes that a connection has in addition to [`FIRST_WINDOW`], from the node's pool.
#[derive(Debug)]
pub(super) struct Grants {
    pool: Arc<Pool>,
    /// The window of a stream.
    stream: u64,
    /// For streams that carry bulk data now.
    used: u64,
    /// For streams that have ended: the peer may still use it. Reading reclaims it, since QUIC
    /// cannot revoke a grant.
    ended: u64,
}

impl Grants {
    pub(super) fn new(pools: &Pools, rtt: Duration) -> Self {
        let (pool, stream) = (pools.unread.clone(), u64::from(stream_window(rtt)));
        Self { pool, stream, used: 0, ended: 0 }
    }

    /// A stream carries bulk. Returns whether the pool had a share left for it.
    fn take(&mut self) -> bool {
        let is_granted = self.pool.take(self.stream);
        self.used += if is_granted { self.stream } else { 0 };
        is_granted
    }

    /// A stream with a share has ended.
    fn end(&mut self) {
        self.used -= self.stream;
        self.ended += self.stream;
    }

    /// This many bytes were read.
    fn read(&mut self, bytes: u64) {
        let back = self.ended.min(bytes);
        if back > 0 {
            self.ended -= back;
            self.pool.give(back);
        }
    }
}

impl Drop for Grants {
    fn drop(&mut self) {
        self.pool.give(self.used + self.ended);
    }
}

/// The window of one connection.
#[derive(Debug)]
pub(super) struct Window {
    connection: Connection,
    grants: Mutex<Grants>,
}

impl Window {
    pub(super) fn new(connection: Connection, grants: Grants) -> Self {
        Self { connection, grants: Mutex::new(grants) }
    }

    fn tell(&self, grants: &Grants) {
        let window = u64::from(FIRST_WINDOW) + grants.used;
        self.connection.set_receive_window(VarInt::from_u64(window).unwrap_or(VarInt::MAX));
    }
}

/// The bytes that were read from one stream.
#[derive(Debug)]
pub(super) struct Reading {
    window: Arc<Window>,
    /// Bytes until it counts as bulk.
    bytes: u32,
    has_share: bool,
}

impl Reading {
    pub(super) fn new(window: Arc<Window>) -> Self {
        Self { window, bytes: 0, has_share: false }
    }

    /// This many more bytes were read.
    pub(super) fn count(&mut self, bytes: u64) {
        let mut grants = lock(&self.window.grants);
        grants.read(bytes);
        if self.bytes < BULK_BYTES {
            self.bytes = self.bytes.saturating_add(u32::try_from(bytes).unwrap_or(u32::MAX));
            self.has_share = self.bytes >= BULK_BYTES && grants.take();
            if self.has_share {
                self.window.tell(&grants);
            }
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        if self.has_share {
            let mut grants = lock(&self.window.grants);
            grants.end();
            self.window.tell(&grants);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_fills_a_gigabit_up_to_a_tenth_of_a_second() {
        let window = |ms| u64::from(stream_window(Duration::from_millis(ms)));
        assert_eq!([window(0), window(1), window(6)], [1 << 20; 3]);
        for ms in [10, 40, 100] {
            assert!(window(ms) >= ms * 125_000, "{ms} ms: {}", window(ms));
        }
        assert_eq!(stream_window(Duration::MAX), MAX_STREAM_WINDOW);
    }

    #[test]
    fn what_connections_have_in_flight_is_bounded_in_all() {
        let pools = Pools::default();
        let mut all: Vec<InFlight> = (0..40).map(|_| InFlight::new(&pools)).collect();
        for one in &mut all {
            one.set(one.most().min(50 << 20));
        }
        let sum: u64 = all.iter().map(|one| one.bytes).sum();
        assert_eq!(sum, MAX_IN_FLIGHT + 40 * QUEUE_BYTES);
        // The last one has only the share outside the limit, and a clone counts nothing.
        assert_eq!(all[39].most(), QUEUE_BYTES);
        drop(all[0].clone());
        all.truncate(1);
        assert_eq!(all[0].most(), QUEUE_BYTES + MAX_IN_FLIGHT);
    }

    #[test]
    fn what_peers_may_send_is_bounded_in_all_and_comes_back() {
        let pool = Pools::default();
        let taken = || pool.unread.taken.load(Ordering::Relaxed);
        let mut grants = Grants::new(&pool, Duration::from_millis(100));
        let window = grants.stream;
        assert!(window >= 12_500_000 * 6 / 5);
        let mut shares = 0;
        while grants.take() {
            shares += 1;
        }
        assert_eq!((shares, taken()), (17, 17 * window));
        // A stream has ended; its share is available to all once that much was read.
        grants.end();
        grants.read(1000);
        assert_eq!(taken(), 17 * window - 1000);
        assert!(!grants.take());
        grants.read(window);
        assert!(grants.take());
        drop(grants);
        assert_eq!(taken(), 0);
    }
}
