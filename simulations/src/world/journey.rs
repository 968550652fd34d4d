//! Datagrams that pass links with queues, one stretch at a time.

use std::time::Duration;

use super::{Body, Event, Packet, World};
use crate::flight::{Flight, Payload};
use crate::network::{Fate, Leg, Parcel, Stretch};
use crate::trace::Sent;
use crate::tunnel::OVERHEAD;

/// A packet with datagrams in transit: some are heading for a link where they may be queued. A
/// flight has one datagram per segment, everything else has one.
#[derive(Debug, Clone)]
pub(super) struct Journey {
    pub(super) packet: Packet,
    pub(super) address: u16,
    pub(super) sent: Duration,
    pub(super) kind: &'static str,
    pub(super) stages: Vec<Stage>,
    /// Time at which the last datagram of a flight arrives, among those that passed every link.
    pub(super) arrival: Duration,
    /// Bytes of the flight in lost datagrams.
    pub(super) lost: u32,
}

/// A datagram, and the time at which it reaches its next link.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stage {
    pub(super) at: Duration,
    pub(super) leg: Leg,
    pub(super) size: usize,
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
    let first = Stage { at, leg, size, is_copy: false };
    let copy = again.map(|at| Stage { at, is_copy: true, ..first });
    [Some(first), copy].into_iter().flatten().collect()
}

/// QUIC bytes in a datagram of this size.
pub(super) fn payload(size: usize) -> u32 {
    u32::try_from(size.saturating_sub(OVERHEAD)).unwrap_or(u32::MAX)
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
        let Journey { packet, arrival, lost, sent, .. } = *journey;
        if let Body::Data(Payload::Flight(flight)) = &packet.body {
            match lost {
                0 => self.queue.push(arrival, Event::Packet(packet)),
                missing => {
                    let flight = Flight { missing, ..**flight };
                    self.repeat_later(&packet, flight, sent, !arrival.is_zero());
                }
            }
        }
    }

    fn passed(&mut self, journey: &mut Journey, stage: Stage, fate: Fate) {
        let is_flight = journey.is_flight();
        match fate {
            Ok(Stretch::Reaches(..)) => {
                let next = stages(fate, stage.size).into_iter();
                // A flight has arrived when its datagrams have; copies do not matter.
                let next = next.filter(|next| !(is_flight && next.is_copy));
                let is_copy =
                    |next: Stage| Stage { is_copy: next.is_copy || stage.is_copy, ..next };
                return journey.stages.extend(next.map(is_copy));
            }
            Ok(Stretch::Arrives(at, _)) if is_flight => journey.arrival = journey.arrival.max(at),
            Ok(Stretch::Arrives(at, again)) => {
                for at in [again, Some(at)].into_iter().flatten() {
                    self.queue.push(at, Event::Packet(journey.packet.clone()));
                }
            }
            Err(_) if !stage.is_copy => journey.lost += payload(stage.size),
            Err(_) => {}
        }
        if !stage.is_copy {
            if is_flight {
                self.note_fate(&journey.packet, stage.size, fate.is_err());
            }
            let (at, kind, size) = (journey.sent, journey.kind, stage.size);
            let (from, to, lost) = (journey.packet.from, journey.packet.to, fate.err());
            self.scene.trace.datagram(Sent { at, from, to, size, kind, lost });
        }
    }
}
