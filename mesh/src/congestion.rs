//! The congestion controller: CUBIC (RFC 9438), quinn's own, that counts what peers acknowledge
//! and keeps queues short.
//!
//! *Counts*: quinn reports the number of acknowledgement frames, but a peer that receives nothing
//! while its own packets arrive repeats old ones with every packet. Only the controller learns
//! which packets are acknowledged for the first time.
//!
//! It also knows what has left the streams, so it updates the connection's [`Backlog`].
//!
//! It also reports long packets that are not acknowledged ([`Unacknowledged`]).
//!
//! *Short*: a window grows until something is lost. Between two fast nodes nothing is lost: the
//! excess waits in the busy receiver's socket, and every small request waits behind it. So the
//! bytes in flight are limited to what fills the path and a queue of [`QUEUE_BYTES`]; bulk data
//! waits in its own stream instead, where the streams of a connection take turns.

use std::any::Any;
use std::net::Ipv6Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use meshport_proto::Unacknowledged;
use quinn::Connection;
use quinn_proto::RttEstimator;
use quinn_proto::congestion::{Controller, ControllerFactory, ControllerMetrics};

use super::backlog::Backlog;
use super::cubic::{Cubic, RoundTrip, Sent};
use super::link::Link;
use super::windows::{InFlight, Pools, QUEUE_BYTES};

/// The fastest path that is filled, in bytes per second: more than a core seals.
const PATH_RATE: u64 = 500_000_000;

/// The peer at the other end of a connection, and the receiver of reports about it.
#[derive(Debug, Clone)]
pub(super) struct Remote {
    pub(super) link: Arc<Link>,
    pub(super) address: Ipv6Addr,
}

/// Creates the controllers of one connection.
#[derive(Debug)]
pub(super) struct BoundedCubic {
    pools: Pools,
    backlog: Arc<Backlog>,
    remote: Option<Remote>,
}

impl BoundedCubic {
    /// `remote` is known unless the connection serves no peer.
    pub(super) fn new(pools: Pools, remote: Option<Remote>) -> Self {
        Self { pools, backlog: Arc::default(), remote }
    }
}

impl ControllerFactory for BoundedCubic {
    fn build(self: Arc<Self>, _now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(Bounded {
            cubic: Cubic::new(current_mtu),
            in_flight: InFlight::new(&self.pools),
            acknowledged: 0,
            long: Unacknowledged::default(),
            rtt: Duration::ZERO,
            remote: self.remote.clone(),
            bound: bound(Duration::ZERO),
            backlog: self.backlog.clone(),
        })
    }
}

/// Bytes of packets that the peer of a connection has acknowledged, not counting packets that only
/// acknowledge.
pub(super) fn acknowledged(connection: &Connection) -> u64 {
    controller(connection).map_or(0, |controller| controller.acknowledged)
}

/// Bytes that a connection still has to send.
pub(super) fn backlog(connection: &Connection) -> Arc<Backlog> {
    controller(connection).map(|controller| controller.backlog.clone()).unwrap_or_default()
}

/// The current state of the controller.
fn controller(connection: &Connection) -> Option<Box<Bounded>> {
    connection.congestion_state().into_any().downcast().ok()
}

#[derive(Clone)]
struct Bounded {
    cubic: Cubic,
    in_flight: InFlight,
    acknowledged: u64,
    long: Unacknowledged,
    /// The round-trip time, zero before it is measured.
    rtt: Duration,
    remote: Option<Remote>,
    /// Maximum bytes in flight on this path.
    bound: u64,
    backlog: Arc<Backlog>,
}

/// Maximum bytes in flight on a path with a shortest round trip of `rtt`.
fn bound(rtt: Duration) -> u64 {
    let micros = u64::try_from(rtt.as_micros()).unwrap_or(u64::MAX);
    QUEUE_BYTES.saturating_add(micros.saturating_mul(PATH_RATE / 1_000_000))
}

impl Controller for Bounded {
    fn on_sent(&mut self, now: Instant, bytes: u64, _last_packet_number: u64) {
        self.backlog.sent(bytes);
        self.in_flight.add(bytes);
        if self.long.sent(bytes, self.rtt, now)
            && let Some(Remote { link, address }) = &self.remote
        {
            link.turn(|core, now| core.note_unacknowledged(now, address));
        }
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
        self.long.acknowledged(bytes);
        self.rtt = rtt.get();
        self.bound = bound(rtt.min());
        // An unused window must not grow, or a loss would have no effect.
        let is_used = !app_limited && self.cubic.window() <= self.window();
        let round_trip = RoundTrip { now: rtt.get(), least: rtt.min() };
        self.cubic.arrived(Sent { at: sent, now }, bytes, is_used, round_trip);
    }

    fn on_end_acks(
        &mut self,
        _now: Instant,
        in_flight: u64,
        app_limited: bool,
        _largest_packet_num_acked: Option<u64>,
    ) {
        self.in_flight.set(in_flight);
        // There is too little to send, or nothing is in flight although the window allows it.
        if app_limited || in_flight == 0 {
            self.backlog.drained();
        }
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent_congestion: bool,
        lost_bytes: u64,
    ) {
        self.backlog.lost(lost_bytes);
        let sent = Sent { at: sent, now };
        if is_persistent_congestion {
            self.cubic.collapse(sent);
        } else {
            self.cubic.lost(sent, lost_bytes);
        }
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.cubic.set_mtu(new_mtu);
    }

    fn window(&self) -> u64 {
        self.cubic.window().min(self.bound).min(self.in_flight.most())
    }

    fn metrics(&self) -> ControllerMetrics {
        let mut metrics = ControllerMetrics::default();
        metrics.congestion_window = self.window();
        metrics.ssthresh = self.cubic.threshold();
        metrics
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        self.cubic.first()
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
        let factory = Arc::new(BoundedCubic::new(Pools::default(), None));
        let mut controller = factory.build(now, 1200);
        let first = controller.window();
        assert_eq!(first, controller.initial_window());
        // No acknowledgement in between: nothing gets through.
        controller.on_congestion_event(now, now, true, 1200);
        let second = controller.window();
        assert!(second < first);
        assert_eq!(controller.clone_box().window(), second);
        let mut bounded = *controller.into_any().downcast::<Bounded>().expect("its own");
        bounded.bound = second - 1;
        assert_eq!(bounded.window(), second - 1);
    }
}
