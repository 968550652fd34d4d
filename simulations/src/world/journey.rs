//! Datagrams that pass links with queues, one stretch at a time.

use std::time::Duration;

use super::{Body, Event, Packet, World};
use crate::flight::{FRAGMENT, Flight, Payload, pieces};
use crate::network::{Fate, Leg, Parcel, Stretch};
use crate::trace::Sent;
use crate::tunnel::OVERHEAD;

/// A packet with datagrams in transit: some are heading for a link where they may be queued. A
/// flight has several parts, and what is split has several datagrams; everything else has one.
#[derive(Debug, Clone)]
pub(super) struct Journey {
    pub(super) packet: Packet,
    pub(super) address: u16,
    pub(super) sent: Duration,
    pub(super) kind: &'static str,
    pub(super) stages: Vec<Stage>,
    /// Empty if it is a single datagram, which the network may also duplicate.
    pub(super) parts: Vec<Part>,
    /// Time at which the last part arrives, among those that are not lost.
    pub(super) arrival: Duration,
}

/// A part of a packet that is sent in one datagram, or in fragments.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    /// Its payload.
    pub(super) bytes: usize,
    /// Its datagrams in transit.
    pub(super) open: usize,
    /// Time at which the last of them arrives.
    pub(super) arrival: Duration,
    pub(super) is_lost: bool,
}

/// A datagram, and the time at which it reaches its next link.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stage {
    pub(super) at: Duration,
    pub(super) leg: Leg,
    pub(super) size: usize,
    /// The number of the part that it belongs to.
    pub(super) part: usize,
    /// Whether it is a duplicate made by the network.
    pub(super) is_copy: bool,
}

impl Journey {
    fn is_flight(&self) -> bool {
        matches!(self.packet.body, Body::Data(Payload::Flight(_)))
    }
}

/// The next links of a datagram and its copy.
pub(super) fn stages(fate: Fate, size: usize) -> Vec<Stage> {
    let Ok(Stretch::Reaches(at, again, leg)) = fate else { return Vec::new() };
    let first = Stage { at, leg, size, part: 0, is_copy: false };
    let copy = again.map(|at| Stage { at, is_copy: true, ..first });
    [Some(first), copy].into_iter().flatten().collect()
}

/// A packet on the wire, as the network sees it.
pub(super) fn parcel(packet: &Packet, address: u16, size: usize) -> Parcel {
    Parcel { from: packet.from, to: packet.to, address, size }
}

impl World {
    /// Schedules the arrival of the next datagram.
    pub(super) fn set_out(&mut self, journey: Box<Journey>) {
        if let Some(next) = journey.stages.iter().map(|stage| stage.at).min() {
            self.queue.push(next, Event::Onward(journey));
        }
    }

    /// Some datagrams have reached a link where they may be queued.
    pub(super) fn onward(&mut self, mut journey: Box<Journey>) {
        let now = self.scene.now;
        let (due, later) = journey.stages.iter().partition(|stage| stage.at <= now);
        let due: Vec<Stage> = due;
        journey.stages = later;
        for stage in due {
            let parcel = parcel(&journey.packet, journey.address, stage.size);
            let fate = self.scene.network.carry_on(now, stage.leg, parcel);
            self.passed(&mut journey, stage, fate);
        }
        if !journey.stages.is_empty() {
            return self.set_out(journey);
        }
        self.arrived(*journey);
    }

    /// Sends a packet in parts with payloads of these sizes, each in fragments where `is_split`.
    pub(super) fn send_parts(
        &mut self,
        mut journey: Journey,
        parts: impl Iterator<Item = usize>,
        is_split: bool,
    ) {
        for (part, bytes) in parts.enumerate() {
            let most = if is_split { FRAGMENT } else { bytes };
            let open = bytes.div_ceil(most);
            journey.parts.push(Part { bytes, open, arrival: Duration::ZERO, is_lost: false });
            for piece in pieces(bytes, most) {
                let size = piece + OVERHEAD;
                self.count_part(&journey, size);
                let parcel = parcel(&journey.packet, journey.address, size);
                let fate = self.scene.network.carry(journey.sent, parcel);
                let (at, leg) = (journey.sent, Leg::Between);
                let stage = Stage { at, leg, size, part, is_copy: false };
                self.passed(&mut journey, stage, fate);
            }
        }
        if journey.stages.is_empty() {
            self.arrived(journey);
        } else {
            self.set_out(Box::new(journey));
        }
    }

    fn count_part(&mut self, journey: &Journey, size: usize) {
        if journey.is_flight() {
            self.scene.measures.traffic.session_bytes += size as u64;
        } else {
            self.count_sent(journey.packet.from, size);
            self.scene.measures.second(journey.sent).gossip_bytes += size as u64;
        }
    }

    /// All datagrams of a packet have arrived or are lost. One of several parts arrives with the
    /// last of them.
    fn arrived(&mut self, journey: Journey) {
        let Journey { packet, parts, arrival, sent, .. } = journey;
        let lost: usize = parts.iter().filter(|part| part.is_lost).map(|part| part.bytes).sum();
        if lost == 0 && !parts.is_empty() {
            self.queue.push(arrival, Event::Packet(packet));
        } else if let Body::Data(Payload::Flight(flight)) = &packet.body {
            let missing = u32::try_from(lost).unwrap_or(u32::MAX);
            let flight = Flight { missing, ..**flight };
            self.repeat_later(&packet, flight, sent, !arrival.is_zero());
        }
    }

    /// A datagram of a part arrives at this time, or is lost. A part is lost with any of them.
    fn settle(&mut self, journey: &mut Journey, stage: Stage, arrival: Option<Duration>) {
        let Some(part) = journey.parts.get_mut(stage.part) else { return };
        part.open -= 1;
        part.is_lost |= arrival.is_none();
        part.arrival = part.arrival.max(arrival.unwrap_or_default());
        let Part { bytes, open, arrival, is_lost } = *part;
        if open > 0 {
            return;
        }
        if !is_lost {
            journey.arrival = journey.arrival.max(arrival);
        }
        if journey.is_flight() {
            self.note_fate(&journey.packet, bytes + OVERHEAD, is_lost);
        }
    }

    fn passed(&mut self, journey: &mut Journey, stage: Stage, fate: Fate) {
        let has_parts = !journey.parts.is_empty();
        match fate {
            Ok(Stretch::Reaches(..)) => {
                let next = stages(fate, stage.size).into_iter();
                // A part has arrived when its datagrams have; copies do not matter.
                let next = next.filter(|next| !(has_parts && next.is_copy));
                let same = |next: Stage| Stage {
                    is_copy: next.is_copy || stage.is_copy,
                    part: stage.part,
                    ..next
                };
                return journey.stages.extend(next.map(same));
            }
            Ok(Stretch::Arrives(at, _)) if has_parts => self.settle(journey, stage, Some(at)),
            Ok(Stretch::Arrives(at, again)) => {
                for at in [again, Some(at)].into_iter().flatten() {
                    self.queue.push(at, Event::Packet(journey.packet.clone()));
                }
            }
            Err(_) => self.settle(journey, stage, None),
        }
        if !stage.is_copy {
            let (at, kind, size) = (journey.sent, journey.kind, stage.size);
            let (from, to, lost) = (journey.packet.from, journey.packet.to, fate.err());
            self.scene.trace.datagram(Sent { at, from, to, size, kind, lost });
        }
    }
}
