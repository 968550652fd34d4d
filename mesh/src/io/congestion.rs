//! The congestion controller: CUBIC (RFC 9438), quinn's own, that counts what peers acknowledge
//! and keeps queues short.
//!
//! *Counts*: quinn tells how many acknowledgement frames came, but a peer whose packets come
//! through while it receives none repeats old ones with whatever it sends. The controller is the
//! one who is told of packets that are acknowledged for the first time.
//!
//! It is also the one who knows what has left the streams: it keeps the connection's [`Backlog`].
//!
//! *Short*: CUBIC grows until something is lost. Between two fast nodes nothing is: what is in
//! flight beyond the path lies in the socket of the receiver, which is busy, and every small
//! request waits behind it. So no more is in flight than fills the path and a queue of
//! [`QUEUE_BYTES`]; bulk data waits in its own stream instead, where the streams of a connection
//! take turns.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn::Connection;
use quinn_proto::RttEstimator;
use quinn_proto::congestion::{Controller, ControllerFactory, ControllerMetrics, CubicConfig};

use super::backlog::Backlog;

/// Bytes that may wait in front of the receiver besides what fills the path: a core opens them in
/// a few milliseconds, and a single stream has no more in flight either.
const QUEUE_BYTES: u64 = 1 << 20;
/// The fastest path that is filled, in bytes per second: more than a core seals.
const PATH_RATE: u64 = 500_000_000;

/// Makes such controllers, all for one connection.
#[derive(Debug, Default)]
pub(super) struct BoundedCubic {
    cubic: Arc<CubicConfig>,
    backlog: Arc<Backlog>,
}

impl ControllerFactory for BoundedCubic {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        let inner = self.cubic.clone().build(now, current_mtu);
        let (backlog, bound) = (self.backlog.clone(), bound(Duration::ZERO));
        Box::new(Bounded { inner, acknowledged: 0, bound, backlog })
    }
}

/// Bytes of packets that the peer of a connection has acknowledged. Packets that only acknowledge
/// are not among them.
pub(super) fn acknowledged(connection: &Connection) -> u64 {
    controller(connection).map_or(0, |controller| controller.acknowledged)
}

/// What a connection has still to send.
pub(super) fn backlog(connection: &Connection) -> Arc<Backlog> {
    controller(connection).map(|controller| controller.backlog.clone()).unwrap_or_default()
}

/// As it is now.
fn controller(connection: &Connection) -> Option<Box<Bounded>> {
    connection.congestion_state().into_any().downcast().ok()
}

struct Bounded {
    inner: Box<dyn Controller>,
    acknowledged: u64,
    /// Most bytes in flight.
    bound: u64,
    backlog: Arc<Backlog>,
}

/// Most bytes in flight on a path whose shortest round trip took `rtt`.
fn bound(rtt: Duration) -> u64 {
    let micros = u64::try_from(rtt.as_micros()).unwrap_or(u64::MAX);
    QUEUE_BYTES.saturating_add(micros.saturating_mul(PATH_RATE / 1_000_000))
}

impl Controller for Bounded {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.backlog.sent(bytes);
        self.inner.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        app_limited: bool,
        rtt: &RttEstimator,
    ) {
        self.acknowledged += bytes;
        self.bound = bound(rtt.min());
        // A window that is not used must not grow, or a loss would change nothing.
        let is_unused = app_limited || self.inner.window() > self.bound;
        self.inner.on_ack(now, sent, bytes, is_unused, rtt);
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        app_limited: bool,
        largest_packet_num_acked: Option<u64>,
    ) {
        // Limited by what there is to send, or nothing is under way although it might be.
        if app_limited || in_flight == 0 {
            self.backlog.drained();
        }
        self.inner.on_end_acks(now, in_flight, app_limited, largest_packet_num_acked);
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent_congestion: bool,
        lost_bytes: u64,
    ) {
        self.backlog.lost(lost_bytes);
        self.inner.on_congestion_event(now, sent, is_persistent_congestion, lost_bytes);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.inner.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        self.inner.window().min(self.bound)
    }

    fn metrics(&self) -> ControllerMetrics {
        let mut metrics = self.inner.metrics();
        metrics.congestion_window = self.window();
        metrics
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        let (inner, backlog) = (self.inner.clone_box(), self.backlog.clone());
        Box::new(Self { inner, backlog, ..*self })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_path_is_filled_and_a_short_one_not_flooded() {
        assert_eq!(bound(Duration::ZERO), 1 << 20);
        // 500 MB/s over 100 ms.
        assert_eq!(bound(Duration::from_millis(100)), (1 << 20) + 50_000_000);
        assert_eq!(bound(Duration::MAX), u64::MAX);
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "an origin for made-up time")]
    fn the_window_is_cubics_up_to_the_bound() {
        let now = Instant::now();
        let mut controller = Arc::new(BoundedCubic::default()).build(now, 1200);
        let first = controller.window();
        assert_eq!(first, controller.initial_window());
        controller.on_congestion_event(now, now, false, 1200);
        let second = controller.window();
        assert!(second < first);
        assert_eq!(controller.clone_box().window(), second);
        let backlog = Arc::default();
        let bounded = Bounded { inner: controller, acknowledged: 0, bound: second - 1, backlog };
        assert_eq!(bounded.window(), second - 1);
    }
}
