//! A session's flights in transit: to an instance and back, directly or through a relay.
//!
//! A relay decides with the daemon's own `relay::receive`, and forwarded streams leave it with no
//! hop left and no target, as in the daemon. Its own QUIC connection to the origin costs a round
//! trip the first time and is not lost.

use std::time::Duration;

use meshport_config::Role;
use meshport_core::relay::{Receive, receive};
use meshport_core::wire::Hops;
use rand::Rng;

use super::clients::Attempt;
use super::{Event, Packet, World, number};
use crate::brain::{Line, Side};
use crate::flight::{Flight, Payload, SessionRef, Step, loss_time, probe_timeout};
use crate::instance::{ANSWER_TIME, Instance};
use crate::level::Judge;
use crate::scenario::Lie;

/// Bytes of a QUIC hello (padded by the protocol), of a stream header with a TLS hello, and of the
/// server's reply to that.
const HELLO_BYTES: u32 = 1200;
const OPEN_BYTES: u32 = 700;
const OPENED_BYTES: u32 = 3000;
const WORD_BYTES: u32 = 40;
/// How often a flight that no client waits for is retransmitted: a minute's worth.
const MAX_REPEATS: u8 = 8;

impl World {
    /// The first flight of an attempt to this node, and its bytes.
    pub(super) fn opening(&mut self, node: usize, hop: usize) -> (Step, u32) {
        if self.is_connected(node, hop) {
            (Step::Open, OPEN_BYTES)
        } else {
            (Step::Hello, HELLO_BYTES)
        }
    }

    /// A flight reaches the other side, which acknowledges it unless it has an answer at once.
    pub(super) fn take_flight(&mut self, from: usize, to: usize, flight: Flight) {
        self.handle_flight(from, to, flight);
        if self.tunnel(to, from).schedule.owes_answer() {
            self.send(to, from, Payload::Ack);
        }
    }

    fn handle_flight(&mut self, from: usize, to: usize, flight: Flight) {
        let flight = Flight { missing: 0, ..flight };
        let reply = |what, bytes| Flight { what, bytes, repeats: 0, ..flight };
        match flight.what {
            Step::Hello => {
                self.tunnel(to, from).connected = true;
                self.send(to, from, Payload::Flight(Box::new(reply(Step::HelloBack, HELLO_BYTES))));
            }
            Step::HelloBack => {
                self.tunnel(to, from).connected = true;
                let known = self.nodes[to].clients.get(flight.session);
                if known.is_some_and(|it| it.waits_for(flight.step)) {
                    self.send(to, from, Payload::Flight(Box::new(reply(Step::Open, OPEN_BYTES))));
                }
            }
            Step::Open | Step::Request => self.receive_stream(from, to, flight),
            Step::Refused | Step::Accepted | Step::Opened | Step::Answer => {
                match flight.trail.back() {
                    Some((_, rest)) if rest.nodes().is_empty() => self.answered(to, flight),
                    Some((_, rest)) => self.send_back(to, Flight { trail: rest, ..flight }),
                    None => {}
                }
            }
        }
    }

    /// Handles a stream, or a request on one, at a node.
    fn receive_stream(&mut self, from: usize, to: usize, flight: Flight) {
        if self.nodes[to].lie == Some(Lie::Relay) && flight.target.is_some() {
            return self.carry_on_wrongly(to, flight);
        }
        let (me, peer) = (self.nodes[to].credential.node, self.nodes[from].credential.node);
        let target = flight.target.map(|target| self.nodes[target as usize].credential.node);
        let may_relay = self.nodes[to].credential.roles.contains(&Role::Relay);
        match receive(me, peer, target, flight.hops, may_relay) {
            Receive::Serve => self.serve(to, flight),
            Receive::Refuse => self.send_back(to, word(flight, Step::Refused)),
            Receive::Carry(target) => {
                let Some(target) = self.scene.account.number(&target) else { return };
                *self.scene.measures.carried.entry(to).or_default() += 1;
                self.check_relaying(to, target, &flight);
                let onward = Flight { target: None, hops: Hops::None, ..flight };
                self.carry_on(to, target, onward);
            }
        }
    }

    fn carry_on(&mut self, at: usize, next: usize, flight: Flight) {
        let Some(trail) = flight.trail.through(number(at)) else { return };
        let flight = Flight { trail, repeats: 0, ..flight };
        if self.is_connected(at, next) {
            return self.send(at, next, Payload::Flight(Box::new(flight)));
        }
        self.tunnel(at, next).connected = true;
        let wait = self.scene.network.rtt(at, next);
        self.flight_later(at, next, flight, wait);
    }

    /// A session is open. A relay watches its path to the origin and resets the session when that
    /// path dies; an origin may reset what it serves. Both as in the daemon.
    pub(super) fn carry(&mut self, target: &Attempt, session: SessionRef) {
        for (node, side, line) in self.carriers(target, session.node) {
            self.nodes[node].clients.carry(side, line, session);
            self.tell_busy(node);
        }
    }

    /// A session has ended.
    pub(super) fn carry_no_more(&mut self, target: &Attempt, session: SessionRef) {
        for (node, ..) in self.carriers(target, session.node) {
            self.nodes[node].clients.carry_no_more(session);
            self.tell_busy(node);
        }
    }

    /// The relay and the origin of a session of a node, with the line under which each counts it.
    fn carriers(
        &self,
        target: &Attempt,
        client: usize,
    ) -> impl Iterator<Item = (usize, Side, Line)> + use<> {
        let to = |node: usize| Line::Direct(self.nodes[node].credential.node);
        let way = target.way.filter(|way| way.origin != client);
        let relay = way.filter(|way| way.is_relayed());
        let relay = relay.map(|way| (way.hop, Side::Relayed, to(way.origin)));
        let origin = way.map(|way| {
            let peer = if way.is_relayed() { way.hop } else { client };
            (way.origin, Side::Served, to(peer))
        });
        relay.into_iter().chain(origin)
    }

    /// A liar passes a stream to a wrong node, with its target and no hop left.
    fn carry_on_wrongly(&mut self, at: usize, flight: Flight) {
        let anybody = self.rng.random_range(0..self.nodes.len());
        if anybody != at {
            self.scene.measures.lies += 1;
            self.carry_on(at, anybody, Flight { hops: Hops::None, ..flight });
        }
    }

    fn serve(&mut self, at: usize, flight: Flight) {
        let is_opening = flight.what == Step::Open;
        self.check_served(flight.session.node, at);
        match self.scene.account.instances[at].unwrap_or(Instance::Down) {
            Instance::Stalled if !is_opening => {}
            Instance::Ready | Instance::Unready | Instance::Stalled => {
                let answer =
                    self.story.scenario.load.as_ref().map_or(0, |load| load.response_bytes);
                let answer = u32::try_from(answer).expect("at most MAX_BYTES");
                let (what, bytes) = match is_opening {
                    true => (Step::Opened, OPENED_BYTES),
                    false => (Step::Answer, answer),
                };
                let flight = Flight { what, bytes, repeats: 0, ..flight };
                if let Some((next, _)) = flight.trail.back() {
                    // The instance takes some time.
                    self.flight_later(at, next as usize, flight, ANSWER_TIME);
                }
            }
            Instance::Hung if is_opening => self.send_back(at, word(flight, Step::Accepted)),
            Instance::Hung => {}
            Instance::Down => self.send_back(at, word(flight, Step::Refused)),
        }
    }

    fn send_back(&mut self, at: usize, flight: Flight) {
        if let Some((next, _)) = flight.trail.back() {
            self.send(
                at,
                next as usize,
                Payload::Flight(Box::new(Flight { repeats: 0, ..flight })),
            );
        }
    }

    fn flight_later(&mut self, node: usize, peer: usize, flight: Flight, wait: Duration) {
        let (boot, flight) = (self.nodes[node].boot, Box::new(flight));
        self.queue.push(self.scene.now + wait, Event::Repeat { node, boot, peer, flight });
    }

    /// The sender retransmits the missing part of a flight that it sent at that time.
    pub(super) fn repeat_later(
        &mut self,
        packet: &Packet,
        flight: Flight,
        sent: Duration,
        has_arrived: bool,
    ) {
        let rtt = self.scene.network.rtt(packet.from, packet.to);
        let (wait, repeats) = match has_arrived {
            true => (loss_time(rtt), 0),
            false => (probe_timeout(Some(rtt), flight.repeats), flight.repeats.saturating_add(1)),
        };
        let pause = (sent + wait).saturating_sub(self.scene.now);
        if self.nodes[packet.from].is_running(packet.from_boot) {
            self.flight_later(packet.from, packet.to, Flight { repeats, ..flight }, pause);
        }
    }

    pub(super) fn repeat(&mut self, node: usize, peer: usize, flight: Box<Flight>) {
        if flight.what.is_request() && flight.session.node == node {
            let known = self.nodes[node].clients.get(flight.session);
            if known.is_none_or(|session| !session.waits_for(flight.step)) {
                return;
            }
        } else if flight.repeats > MAX_REPEATS {
            return;
        }
        self.send(node, peer, Payload::Flight(flight));
    }
}

fn word(flight: Flight, what: Step) -> Flight {
    Flight { what, bytes: WORD_BYTES, ..flight }
}
