//! Figures and counters of connections, for status reports.

use std::sync::atomic::Ordering;

use meshport_config::NodeId;

use super::{Delivery, Outgoing, Streams, congestion, lock};
use meshport_proto::PeerStatus;

impl Streams {
    /// Adds the figures of the peer's connections.
    pub(crate) fn complete(&self, status: &mut PeerStatus) {
        let outgoing = match lock(&self.outgoing).get(&status.node) {
            Some(Outgoing::Ready(live)) if live.is_open() => Some(live.clone()),
            _ => None,
        };
        let incoming = lock(&self.incoming).get(&status.node).cloned();
        for live in outgoing.iter().chain(&incoming) {
            status.streams += live.streams.load(Ordering::Relaxed);
        }
        status.streams += self.retired.streams(&status.node);
        status.quic_rtt = outgoing.or(incoming).map(|live| live.connection.rtt());
    }

    /// Length in bytes of the largest QUIC datagram known to reach a peer; `None` without a
    /// connection.
    pub(crate) fn datagram_to(&self, node: &NodeId) -> Option<u16> {
        let outgoing = match lock(&self.outgoing).get(node) {
            Some(Outgoing::Ready(live)) if live.is_open() => Some(live.clone()),
            _ => None,
        };
        let incoming = || lock(&self.incoming).get(node).cloned();
        let live = outgoing.or_else(incoming)?;
        Some(live.connection.stats().path.current_mtu)
    }

    /// The progress of delivery on the outgoing connection.
    pub(crate) fn delivery(&self, node: &NodeId) -> Option<Delivery> {
        match lock(&self.outgoing).get(node) {
            Some(Outgoing::Ready(live)) => {
                let acknowledged = congestion::acknowledged(&live.connection);
                Some(Delivery { connection: live.connection.stable_id(), acknowledged })
            }
            _ => None,
        }
    }
}
