//! Counts what peers acknowledge.
//!
//! quinn tells how many acknowledgement frames came, but a peer whose packets come through while
//! it receives none repeats old ones with whatever it sends. The congestion controller is the one
//! who is told of packets that are acknowledged for the first time, so this is one: CUBIC (RFC
//! 9438), quinn's own, with a counter in front.

use std::any::Any;
use std::sync::Arc;
use std::time::Instant;

use quinn::Connection;
use quinn_proto::RttEstimator;
use quinn_proto::congestion::{Controller, ControllerFactory, ControllerMetrics, CubicConfig};

/// Makes controllers that count.
#[derive(Debug, Default)]
pub(super) struct CountedCubic(Arc<CubicConfig>);

impl ControllerFactory for CountedCubic {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        let inner = self.0.clone().build(now, current_mtu);
        Box::new(Counted { inner, acknowledged: 0 })
    }
}

/// Bytes of packets that the peer of a connection has acknowledged. Packets that only acknowledge
/// are not among them.
pub(super) fn acknowledged(connection: &Connection) -> u64 {
    let state = connection.congestion_state().into_any().downcast::<Counted>();
    state.map_or(0, |counted| counted.acknowledged)
}

struct Counted {
    inner: Box<dyn Controller>,
    acknowledged: u64,
}

impl Controller for Counted {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
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
        self.inner.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        app_limited: bool,
        largest_packet_num_acked: Option<u64>,
    ) {
        self.inner.on_end_acks(now, in_flight, app_limited, largest_packet_num_acked);
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent_congestion: bool,
        lost_bytes: u64,
    ) {
        self.inner.on_congestion_event(now, sent, is_persistent_congestion, lost_bytes);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.inner.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        self.inner.window()
    }

    fn metrics(&self) -> ControllerMetrics {
        self.inner.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Self { inner: self.inner.clone_box(), acknowledged: self.acknowledged })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
