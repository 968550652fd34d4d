//! Encryption of outgoing packets: single ones and batches of QUIC datagrams.

use std::net::Ipv6Addr;

use meshport_config::NodeId;

use super::Core;
use crate::MeshCount;
use crate::event::{Now, Route};
use crate::inner::{self, Flow, UDP_HEADER, UDP_OVERHEAD};
use crate::peer::QUEUE_LIMIT;
use crate::peers::Slot;
use crate::split;
use crate::tunnel::{DATA_OVERHEAD, Ends, MIN_OUTPUT};
use crate::{MAX_DATAGRAM, MeshError, ports};

/// Bytes added to a QUIC datagram by sealing.
pub const SEAL_OVERHEAD: usize = UDP_OVERHEAD + DATA_OVERHEAD;
/// Single packets are padded to a multiple of this, as in WireGuard, so that their lengths reveal
/// less. QUIC's are not: most are as long as the path allows.
const PADDING: usize = 16;
/// Longest QUIC datagram to seal; MTU discovery stays far below.
const MAX_STREAM_DATAGRAM: usize = 60_000;

/// Concatenated QUIC datagrams.
#[derive(Debug, Clone, Copy)]
pub struct Datagrams<'a> {
    /// All datagrams.
    pub bytes: &'a [u8],
    /// The length of each but the last, which may be shorter.
    pub segment: usize,
}

/// A batch to seal, and the session for it.
struct Unsealed<'a> {
    slot: Slot,
    flow: Flow,
    route: Route,
    datagrams: Datagrams<'a>,
}

/// A sealed batch in the output buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamBatch {
    /// The destination.
    pub route: Route,
    /// Length of all datagrams together in bytes.
    pub length: usize,
    /// A datagram starts every `stride` bytes; the last may be shorter.
    pub stride: usize,
}

impl Core {
    /// Seals QUIC datagrams for the peer at `to` into `out`, after its first `at` bytes; `out` is
    /// grown as needed and reused.
    ///
    /// `None`: nothing to send. The packets wait for the peer's handshake, or were dropped and
    /// counted.
    pub fn seal_streams(
        &mut self,
        now: Now,
        to: &Ipv6Addr,
        Datagrams { bytes: contents, segment }: Datagrams<'_>,
        out: &mut Vec<u8>,
        at: usize,
    ) -> Option<StreamBatch> {
        let Some(slot) = self.peers.of_address(to) else {
            self.out.counters[MeshCount::DroppedNoRoute] += 1;
            return None;
        };
        if contents.is_empty() || segment == 0 || segment > MAX_STREAM_DATAGRAM {
            return None;
        }
        self.refresh(slot, now);
        let flow = self.flow(slot, ports::STREAMS, ports::STREAMS)?;
        let peer = self.peers.get_mut(slot)?;
        let Some(route) = peer.endpoint.filter(|_| peer.schedule.has_session()) else {
            self.queue_streams(slot, now, &flow, contents.chunks(segment));
            return None;
        };
        if peer.traffic.split.concerns_streams(segment, now.instant) {
            let datagrams = Datagrams { bytes: contents, segment };
            return self.seal_split(now, &Unsealed { slot, flow, route, datagrams }, out, at);
        }
        let count = contents.len().div_ceil(segment);
        let room = at + contents.len() + count * SEAL_OVERHEAD + MIN_OUTPUT;
        if out.len() < room {
            out.resize(room, 0);
        }
        let mut length = 0;
        for datagram in contents.chunks(segment) {
            let packet = inner::write_udp(&flow, datagram, &mut self.scratch);
            let sealed = peer.tunnel.seal(&self.scratch[..packet], &mut out[at + length..])?;
            peer.sent(now.instant, packet);
            length += sealed;
        }
        self.arm(slot);
        Some(StreamBatch { route, length, stride: segment + SEAL_OVERHEAD })
    }

    /// Like [`Core::seal_streams`], in fragments of one length. The last fragment of a datagram is
    /// padded to that behind its own length, except the last of the batch.
    fn seal_split(
        &mut self,
        now: Now,
        batch: &Unsealed<'_>,
        out: &mut Vec<u8>,
        at: usize,
    ) -> Option<StreamBatch> {
        let Unsealed { slot, flow, route, datagrams: Datagrams { bytes: contents, segment } } =
            batch;
        let peer = self.peers.get_mut(*slot)?;
        let piece = split::piece(UDP_HEADER + segment);
        let whole = split::unsplit(piece);
        let count = contents.len().div_ceil(*segment);
        let fragments = count * (UDP_HEADER + segment).div_ceil(piece);
        let stride = whole + DATA_OVERHEAD;
        let room = at + fragments * stride + MIN_OUTPUT;
        if out.len() < room {
            out.resize(room, 0);
        }
        let mut length = 0;
        let (packet, fragment) = self.scratch.split_at_mut(super::SCRATCH);
        for (number, datagram) in contents.chunks(*segment).enumerate() {
            let written = inner::write_udp(flow, datagram, packet);
            if written <= whole {
                length += peer.tunnel.seal(&packet[..written], &mut out[at + length..])?;
                peer.sent(now.instant, written);
                continue;
            }
            self.out.counters[MeshCount::PacketsSplit] += 1;
            let id = peer.traffic.split.next_id();
            for part in split::fragments(&packet[..written], piece, id) {
                let mut written = inner::write_fragment(&part, fragment);
                if !part.has_more && number + 1 < count {
                    fragment[written..whole].fill(0);
                    written = whole;
                }
                length += peer.tunnel.seal(&fragment[..written], &mut out[at + length..])?;
                peer.sent(now.instant, written);
            }
        }
        self.arm(*slot);
        Some(StreamBatch { route: *route, length, stride })
    }

    fn queue_streams<'a>(
        &mut self,
        slot: Slot,
        now: Now,
        flow: &Flow,
        datagrams: impl Iterator<Item = &'a [u8]>,
    ) {
        for datagram in datagrams {
            let packet = udp_packet(flow, datagram);
            if !self.enqueue(slot, packet) {
                break;
            }
        }
        if self.want_session(slot, now).is_err() {
            self.drop_queue(slot);
        }
    }

    /// Sends a datagram to an inner port of a peer, or queues it while the handshake runs.
    ///
    /// # Errors
    /// Unknown peer, no endpoint, too large, or a full queue.
    pub fn send_datagram(
        &mut self,
        now: Now,
        to: NodeId,
        port: u16,
        payload: &[u8],
    ) -> Result<(), MeshError> {
        if payload.len() > MAX_DATAGRAM {
            return Err(MeshError::TooLarge { length: payload.len(), limit: MAX_DATAGRAM });
        }
        let slot = self.slot(&to)?;
        let flow = self.flow(slot, port, port).ok_or(MeshError::UnknownPeer(to))?;
        let packet = udp_packet(&flow, payload);
        self.refresh(slot, now);
        self.send_or_queue(slot, now, packet)
    }

    /// Sends an echo request with `token`, or queues it while the handshake runs.
    ///
    /// # Errors
    /// See [`Core::send_datagram`].
    pub fn send_echo(&mut self, now: Now, to: NodeId, token: u32) -> Result<(), MeshError> {
        let slot = self.slot(&to)?;
        self.refresh(slot, now);
        let ends = self.peers.get(slot).map(|peer| peer.tunnel.ends());
        let Ends { own, peer } = ends.ok_or(MeshError::UnknownPeer(to))?;
        self.send_or_queue(slot, now, inner::echo_request(&own, &peer, token))
    }

    fn send_or_queue(&mut self, slot: Slot, now: Now, packet: Vec<u8>) -> Result<(), MeshError> {
        let Some(peer) = self.peers.get(slot) else { return Ok(()) };
        let node = peer.node;
        if peer.schedule.has_session() {
            self.send_packet(slot, now, &packet);
            self.arm(slot);
            return Ok(());
        }
        if peer.candidates().is_empty() {
            self.out.counters[MeshCount::DroppedNoRoute] += 1;
            return Err(MeshError::NoEndpoint(node));
        }
        let queued = self.enqueue(slot, packet);
        self.want_session(slot, now)?;
        if queued { Ok(()) } else { Err(MeshError::QueueFull(node)) }
    }

    /// Seals one inner packet to a peer with a session, in fragments where needed; without a
    /// session it is dropped and counted.
    pub(super) fn send_packet(&mut self, slot: Slot, now: Now, packet: &[u8]) {
        let Some(peer) = self.peers.get_mut(slot) else { return };
        if !peer.traffic.split.concerns(packet, &self.caution, now.instant) {
            return self.send_sealed(slot, now, packet);
        }
        self.out.counters[MeshCount::PacketsSplit] += 1;
        let id = peer.traffic.split.next_id();
        let mut fragment = [0; split::UNSPLIT];
        for part in split::fragments(packet, split::PIECE, id) {
            let written = inner::write_fragment(&part, &mut fragment);
            let padded = written.next_multiple_of(PADDING).min(fragment.len());
            fragment[written..padded].fill(0);
            self.send_sealed(slot, now, &fragment[..padded]);
        }
    }

    /// The same, whole.
    pub(super) fn send_sealed(&mut self, slot: Slot, now: Now, packet: &[u8]) {
        let Some(peer) = self.peers.get_mut(slot) else { return };
        let mut sealed = vec![0; (packet.len() + DATA_OVERHEAD).max(MIN_OUTPUT)];
        let length = peer.tunnel.seal(packet, &mut sealed);
        let (Some(route), Some(length)) = (peer.endpoint, length) else {
            self.out.counters[MeshCount::DroppedNoRoute] += 1;
            return;
        };
        sealed.truncate(length);
        peer.sent(now.instant, packet.len());
        self.out.transmit(route, sealed);
    }

    /// Sends the packets that waited for the session.
    pub(super) fn flush_queue(&mut self, slot: Slot, now: Now) {
        let Some(peer) = self.peers.get_mut(slot) else { return };
        for packet in std::mem::take(&mut peer.traffic.queue) {
            self.send_packet(slot, now, &packet);
        }
    }

    /// Drops and counts the packets that wait for a session.
    pub(super) fn drop_queue(&mut self, slot: Slot) {
        if let Some(peer) = self.peers.get_mut(slot) {
            self.out.counters[MeshCount::DroppedQueueAbandoned] += peer.traffic.queue.len() as u64;
            peer.traffic.queue.clear();
        }
    }

    /// False if the queue is full; then the packet is dropped and counted.
    fn enqueue(&mut self, slot: Slot, packet: Vec<u8>) -> bool {
        let Some(peer) = self.peers.get_mut(slot) else { return false };
        if peer.traffic.queue.len() >= QUEUE_LIMIT {
            self.out.counters[MeshCount::DroppedQueueFull] += 1;
            return false;
        }
        peer.traffic.queue.push_back(packet);
        true
    }

    /// The flow from this node to a peer, for its next packet.
    pub(super) fn flow(&self, slot: Slot, source_port: u16, destination_port: u16) -> Option<Flow> {
        let Ends { own: source, peer: destination } = self.peers.get(slot)?.tunnel.ends();
        Some(Flow { source, destination, source_port, destination_port })
    }
}

/// A complete inner UDP packet, padded with zeros that its own length does not include. The longest
/// one is not padded, since paths are tested for exactly its length.
pub(super) fn udp_packet(flow: &Flow, payload: &[u8]) -> Vec<u8> {
    let length = UDP_OVERHEAD + payload.len();
    let padded = length.next_multiple_of(PADDING).min(UDP_OVERHEAD + MAX_DATAGRAM);
    let mut packet = vec![0; padded.max(length)];
    inner::write_udp(flow, payload, &mut packet);
    packet
}
