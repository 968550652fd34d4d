//! Tunnels between nodes: what sends, what arrives, handshakes, renewal, silence.

use std::time::Duration;

use meshport_discovery::{family, kind};
use rand::Rng;

use super::journey::{Journey, parcel, payload, stages};
use super::sessions::Timer;
use super::{Body, Event, Packet, World, node, number};
use crate::brain::Brain;
use crate::flight::{Flight, Payload};
use crate::network::Stretch;
use crate::scenario::Lie;
use crate::trace::Sent;
use crate::tunnel::{
    EARLY_ATTEMPTS, EARLY_RETRY, EMPTY, INITIATION, KEEPALIVE, LATE_RETRY, MAX_ATTEMPTS, Moment,
    OVERHEAD, REJECT_AFTER, REKEY_JITTER, RESPONSE, RETRY_JITTER, SEEN, Tunnel,
};

impl World {
    /// A datagram of discovery.
    pub(super) fn gossip(&mut self, from: usize, to: usize, payload: Vec<u8>) {
        let Some((to, payload)) = self.distort(from, to, payload) else { return };
        self.send(from, to, Payload::Gossip(payload));
    }

    /// Sends a payload through the tunnel to a peer, which is made if there is none.
    pub(super) fn send(&mut self, from: usize, to: usize, payload: Payload) {
        if self.shuts_out(from, to) {
            return;
        }
        let now = self.now;
        let node = &mut self.nodes[from];
        let tunnel = node.tunnels.to(number(to));
        if tunnel.is_up() {
            let (wants, to_boot) = (tunnel.wants_handshake(now), tunnel.with_boot);
            tunnel.speak(now);
            let from_boot = node.boot;
            let begins = wants && tunnel.attempts == 0;
            let body = Body::Data(payload);
            self.data(Packet { from, from_boot, to, to_boot, confirms: Duration::ZERO, body });
            if begins {
                self.initiate(from, to);
            }
            return;
        }
        if node.book.get(to).is_none() {
            return;
        }
        let begins = tunnel.attempts == 0;
        node.tunnels.wait(number(to), payload);
        if begins {
            self.initiate(from, to);
        }
    }

    /// A data packet: counts it, and a flight's every datagram.
    fn data(&mut self, packet: Packet) {
        let tunnel = self.tunnel(packet.from, packet.to);
        let address = tunnel.address;
        let packet = if tunnel.initiator {
            Packet { confirms: tunnel.since.time(), ..packet }
        } else {
            packet
        };
        let Body::Data(payload) = &packet.body else { return };
        match payload {
            Payload::Empty => self.wire(packet, address, EMPTY, "keepalive"),
            Payload::Seen(_) => self.wire(packet, address, SEEN, "seen"),
            Payload::Gossip(bytes) => {
                let size = bytes.len() + OVERHEAD;
                let traffic = &mut self.measures.traffic;
                traffic.gossip_packets += 1;
                traffic.gossip_payload_bytes += bytes.len() as u64;
                traffic.gossip_bytes += size as u64;
                let family = family(bytes) as usize;
                let second = self.measures.second(self.now);
                second.gossip_packets += 1;
                second.families[family] += size as u64;
                let kind = kind(bytes);
                self.wire(packet, address, size, kind);
            }
            Payload::Flight(flight) => self.flight(packet.clone(), **flight, address),
        }
    }

    /// A flight arrives when its last datagram does; what is lost of it is sent again.
    fn flight(&mut self, packet: Packet, flight: Flight, address: u16) {
        let (mut arrival, mut lost, mut under_way) = (Duration::ZERO, 0, Vec::new());
        for size in flight.segments() {
            let size = size + OVERHEAD;
            self.measures.traffic.session_bytes += size as u64;
            let fate = self.network.carry(self.now, parcel(&packet, address, size));
            match fate {
                Ok(Stretch::Arrives(at, _)) => arrival = arrival.max(at),
                Ok(Stretch::Reaches(..)) => {
                    under_way.extend(stages(fate, size).into_iter().filter(|it| !it.is_copy));
                    continue;
                }
                Err(_) => lost += payload(size),
            }
            self.note(&packet, size, "session", fate.err());
            self.note_fate(&packet, size, fate.is_err());
        }
        if !under_way.is_empty() {
            let journey = Journey::new(packet, (self.now, address, "session"), under_way);
            return self.set_out(Box::new(journey.after(arrival, lost)));
        }
        let (now, has_arrived) = (self.now, !arrival.is_zero());
        match lost {
            0 => self.queue.push(arrival, Event::Packet(packet)),
            _ => self.repeat_later(&packet, flight, (now, lost, has_arrived)),
        }
    }

    /// What becomes of one datagram of a session, of so many bytes on the wire: the sender of
    /// long ones notices when they are not acknowledged, as QUIC's congestion control does.
    pub(super) fn note_fate(&mut self, packet: &Packet, size: usize, is_lost: bool) {
        let (node, peer, boot) = (packet.from, number(packet.to), packet.from_boot);
        let (rtt, now) = (self.network.rtt(node, packet.to), self.epoch + self.now);
        let bytes = size.saturating_sub(OVERHEAD);
        if self.nodes[node].tunnels.note_fate(peer, bytes, is_lost, rtt, now) {
            let (session, number, timer) = (peer, 0, Timer::Unacknowledged);
            self.queue.push(self.now, Event::Session { node, boot, session, number, timer });
        }
    }

    fn initiate(&mut self, from: usize, to: usize) {
        let node = &mut self.nodes[from];
        let boot = node.boot;
        let known = node.book.get(to);
        let tunnel = node.tunnels.to(number(to));
        tunnel.attempts += 1;
        let attempts = tunnel.attempts;
        // What membership says of its address is newer than what the tunnel remembers.
        let address = known.unwrap_or(tunnel.address);
        tunnel.address = address;
        let (confirms, body) = (Duration::ZERO, Body::Initiation);
        let packet = Packet { from, from_boot: boot, to, to_boot: 0, confirms, body };
        self.wire(packet, address, INITIATION, "initiation");
        let pause = if attempts <= EARLY_ATTEMPTS { EARLY_RETRY } else { LATE_RETRY };
        let pause = pause + self.rng.random_range(Duration::ZERO..RETRY_JITTER);
        let event = Event::Retry { node: from, boot, peer: to, attempts };
        self.queue.push(self.now + pause, event);
    }

    pub(super) fn retry(&mut self, (node, boot): (usize, u32), peer: usize, attempts: u8) {
        if !self.nodes[node].is_running(boot) {
            return;
        }
        let Some(tunnel) = self.nodes[node].tunnels.get_mut(number(peer)) else { return };
        if tunnel.attempts != attempts {
            return;
        }
        if attempts < MAX_ATTEMPTS {
            return self.initiate(node, peer);
        }
        tunnel.attempts = 0;
        tunnel.unanswered = None;
        self.nodes[node].tunnels.take_waiting(number(peer));
    }

    /// A packet reaches a node.
    pub(super) fn arrive(&mut self, packet: Packet) {
        let Packet { from, from_boot, to, to_boot, confirms, body } = packet;
        if self.shuts_out(to, from) {
            return;
        }
        if self.nodes[to].brain.is_none() || (to_boot != 0 && self.nodes[to].boot != to_boot) {
            return;
        }
        self.count_received(to, &body);
        match body {
            Body::Initiation => self.respond(from, from_boot, to),
            Body::Response => self.complete(to, from, from_boot),
            Body::Data(payload) => self.receive((from, from_boot), to, confirms, payload),
        }
    }

    fn respond(&mut self, from: usize, from_boot: u32, to: usize) {
        // The address that an initiation comes from is the one to answer to.
        let address = self.network.address(from);
        self.nodes[to].tunnels.to(number(from)).address = address;
        let packet = Packet {
            from: to,
            from_boot: self.nodes[to].boot,
            to: from,
            to_boot: from_boot,
            confirms: Duration::ZERO,
            body: Body::Response,
        };
        self.measures.traffic.handshakes += 1;
        self.wire(packet, address, RESPONSE, "response");
    }

    /// The initiator's side of a handshake is done: what waited goes out, an empty datagram first,
    /// which completes the other side.
    fn complete(&mut self, at: usize, peer: usize, peer_boot: u32) {
        if self.tunnel(at, peer).attempts == 0 {
            return;
        }
        self.establish(at, peer, peer_boot, true);
    }

    fn receive(
        &mut self,
        (from, from_boot): (usize, u32),
        to: usize,
        confirms: Duration,
        payload: Payload,
    ) {
        let address = self.network.address(from);
        let tunnel = self.tunnel(to, from);
        tunnel.hear();
        // Sessions follow a peer that moves, and tell it where it is now. The mesh also says so at
        // the start of a session, which is left out where it is no news.
        let has_moved = tunnel.is_up() && tunnel.address != address;
        tunnel.address = address;
        if tunnel.with_boot != from_boot || confirms > tunnel.confirmed.time() {
            self.establish(to, from, from_boot, false);
            self.tunnel(to, from).confirmed = Moment::of(confirms);
        }
        if self.nodes[to].brain.is_none() {
            return;
        }
        if has_moved {
            self.send(to, from, Payload::Seen(address));
        }
        if let Payload::Seen(at) = payload {
            let (by, at) = (self.nodes[from].credential.node, node::endpoint(at, to));
            return self.with_brain(to, |brain, now, _| brain.sight(by, at, now));
        }
        if matches!(payload, Payload::Empty) {
            return;
        }
        let (now, boot) = (self.now, self.nodes[to].boot);
        self.tunnel(to, from).owes.get_or_insert(Moment::of(now));
        match payload {
            Payload::Gossip(bytes) => {
                let credential = self.nodes[from].credential.clone();
                let is_probe = matches!(kind(&bytes), "probe" | "wide-probe");
                if self.nodes[to].lie != Some(Lie::Silent) || is_probe {
                    self.with_brain(to, |brain, now, wall| {
                        // The mesh has admitted it, also if the brain has forgotten it since.
                        if brain.wants_credential(&credential.node, now) {
                            brain.credential(&credential, now, wall);
                        }
                        brain.datagram(credential.node, &bytes, now, wall);
                    });
                }
            }
            Payload::Flight(flight) => self.take_flight(from, to, *flight),
            Payload::Empty | Payload::Seen(_) => {}
        }
        // One timer at a time, and none when the answer has gone out already.
        let tunnel = self.tunnel(to, from);
        if let Some(since) = tunnel.owes.filter(|_| !tunnel.armed) {
            tunnel.armed = true;
            let event = Event::Keepalive { node: to, boot, peer: from };
            self.queue.push(since.time() + KEEPALIVE, event);
        }
    }

    fn establish(&mut self, at: usize, peer: usize, peer_boot: u32, initiator: bool) {
        let now = self.now;
        let rekey_jitter = self.rng.random_range(Duration::ZERO..REKEY_JITTER);
        let node = &mut self.nodes[at];
        let boot = node.boot;
        let waiting = node.tunnels.take_waiting(number(peer));
        let tunnel = node.tunnels.to(number(peer));
        let is_new = tunnel.with_boot != peer_boot;
        tunnel.establish(peer_boot, initiator, rekey_jitter, now);
        let address = tunnel.address;
        if node.book.get(peer).is_none() {
            node.book.insert(peer, address);
        }
        let event = Event::Expire { node: at, boot, peer, since: now };
        self.queue.push(now + REJECT_AFTER, event);
        // Keeps the other side from taking the new session for unused.
        let proof = initiator.then_some(Payload::Empty);
        for payload in proof.into_iter().chain(waiting) {
            self.send(at, peer, payload);
        }
        if is_new {
            let credential = self.nodes[peer].credential.clone();
            self.with_brain(at, |brain, now, wall| {
                brain.credential(&credential, now, wall);
                brain.session(credential.node, true, now);
            });
        }
    }

    pub(super) fn expire(&mut self, (node, boot): (usize, u32), peer: usize, since: Duration) {
        if !self.nodes[node].is_running(boot) {
            return;
        }
        let Some(tunnel) = self.nodes[node].tunnels.get(number(peer)) else { return };
        if tunnel.since.time() != since || !tunnel.is_up() {
            return;
        }
        let is_idle = tunnel.attempts == 0;
        let tunnels = &mut self.nodes[node].tunnels;
        if is_idle && !tunnels.has_waiting(number(peer)) {
            tunnels.remove(number(peer));
        } else {
            tunnels.to(number(peer)).end();
        }
        let peer = self.nodes[peer].credential.node;
        self.with_brain(node, |brain: &mut Brain, now, _| brain.session(peer, false, now));
    }

    pub(super) fn keep_alive(&mut self, (node, boot): (usize, u32), peer: usize) {
        if !self.nodes[node].is_running(boot) {
            return;
        }
        let now = self.now;
        let Some(tunnel) = self.nodes[node].tunnels.get_mut(number(peer)) else { return };
        tunnel.armed = false;
        let Some(since) = tunnel.owes.filter(|_| tunnel.is_up()) else { return };
        let due = since.time() + KEEPALIVE;
        if due > now {
            // It has spoken in between and received again.
            tunnel.armed = true;
            return self.queue.push(due, Event::Keepalive { node, boot, peer });
        }
        self.send(node, peer, Payload::Empty);
        // It asks for no answer.
        self.tunnel(node, peer).unanswered = None;
    }

    /// The round trip that a node has measured to a peer, as QUIC would have it.
    pub(super) fn is_connected(&mut self, node: usize, peer: usize) -> bool {
        let tunnel = self.nodes[node].tunnels.get(number(peer));
        tunnel.is_some_and(|tunnel| tunnel.is_up() && tunnel.connected)
    }

    pub(super) fn tunnel(&mut self, node: usize, peer: usize) -> &mut Tunnel {
        self.nodes[node].tunnels.to(number(peer))
    }

    /// Puts a packet on the wire.
    fn wire(&mut self, packet: Packet, address: u16, size: usize, kind: &'static str) {
        let fate = self.network.carry(self.now, parcel(&packet, address, size));
        self.count_sent(packet.from, size);
        let traffic = &mut self.measures.traffic;
        let is_tunnel = !matches!(packet.body, Body::Data(Payload::Gossip(_)));
        if is_tunnel {
            traffic.tunnel_packets += 1;
            traffic.tunnel_bytes += size as u64;
        }
        let second = self.measures.second(self.now);
        if is_tunnel {
            second.tunnel_bytes += size as u64;
        } else {
            second.gossip_bytes += size as u64;
        }
        if let Ok(Stretch::Reaches(..)) = fate {
            let under_way = stages(fate, size);
            let journey = Journey::new(packet, (self.now, address, kind), under_way);
            return self.set_out(Box::new(journey));
        }
        self.note(&packet, size, kind, fate.err());
        if let Ok(Stretch::Arrives(at, again)) = fate {
            if let Some(again) = again {
                self.queue.push(again, Event::Packet(packet.clone()));
            }
            self.queue.push(at, Event::Packet(packet));
        }
    }

    fn note(
        &mut self,
        packet: &Packet,
        size: usize,
        kind: &'static str,
        lost: Option<&'static str>,
    ) {
        let (from, to) = (packet.from, packet.to);
        self.trace.datagram(Sent { at: self.now, from, to, size, kind, lost });
    }
}
