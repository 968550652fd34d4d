//! Tunnels between nodes: sending, arrival, handshakes, renewal, silence.

use std::time::Duration;

use meshport_config::NodeId;
use meshport_discovery::{family, kind};
use meshport_proto::DEMAND_HOLD;
use meshport_proto::schedule::{Content, Need, REJECT_AFTER};
use rand::Rng;

use super::journey::{Journey, parcel, stages};
use super::{Body, Event, Packet, World, node, number};
use crate::brain::Brain;
use crate::flight::Payload;
use crate::network::Stretch;
use crate::scenario::Lie;
use crate::trace::Sent;
use crate::tunnel::{ACK, EMPTY, INITIATION, OVERHEAD, RESPONSE, SEEN, Tunnel, content, is_long};

impl World {
    /// A datagram of discovery.
    pub(super) fn gossip(&mut self, from: usize, to: usize, payload: Vec<u8>) {
        let Some((to, payload)) = self.distort(from, to, payload) else { return };
        self.send(from, to, Payload::Gossip(payload));
    }

    /// Sends a payload through the tunnel to a peer; creates the tunnel if needed.
    pub(super) fn send(&mut self, from: usize, to: usize, payload: Payload) {
        if self.shuts_out(from, to) {
            return;
        }
        if self.tunnel(from, to).is_up() {
            self.renew(from, to);
            self.data(from, to, payload);
        } else if self.initiates(from, to) {
            self.nodes[from].tunnels.wait(number(to), payload);
        }
        self.arm(from, to);
    }

    /// Sends a data packet in the existing session; counts it, or each datagram of a flight.
    fn data(&mut self, from: usize, to: usize, payload: Payload) {
        let (now, from_boot) = (self.instant(), self.nodes[from].boot);
        let tunnel = self.tunnel(from, to);
        if let Payload::Flight(_) = payload {
            tunnel.schedule.expect_answer();
        }
        tunnel.schedule.sent(now, content(&payload));
        let (to_boot, confirms, address) = (tunnel.with_boot, tunnel.made, tunnel.address);
        let body = Body::Data(payload);
        let packet = Packet { from, from_boot, to, to_boot, confirms, body };
        let Body::Data(payload) = &packet.body else { return };
        match payload {
            Payload::Empty => self.wire(packet, address, EMPTY, "keepalive"),
            Payload::Seen(_) => self.wire(packet, address, SEEN, "seen"),
            Payload::Ack => self.wire(packet, address, ACK, "ack"),
            Payload::Gossip(bytes) => {
                let size = bytes.len() + OVERHEAD;
                let traffic = &mut self.scene.measures.traffic;
                traffic.gossip_packets += 1;
                traffic.gossip_payload_bytes += bytes.len() as u64;
                traffic.gossip_bytes += size as u64;
                let family = family(bytes) as usize;
                let second = self.scene.measures.second(self.scene.now);
                second.gossip_packets += 1;
                second.families[family] += size as u64;
                let (kind, length) = (kind(bytes), bytes.len());
                if is_long(payload) && self.is_split(from, to) {
                    let journey = self.journey(packet, address, kind);
                    self.send_parts(journey, std::iter::once(length), true);
                } else {
                    self.wire(packet, address, size, kind);
                }
            }
            // A flight arrives with its last datagram; lost ones are retransmitted.
            Payload::Flight(flight) => {
                let (parts, is_split) = (flight.segments(), self.is_split(from, to));
                let journey = self.journey(packet, address, "session");
                self.send_parts(journey, parts, is_split);
            }
        }
    }

    fn journey(&self, packet: Packet, address: u16, kind: &'static str) -> Journey {
        let (sent, arrival) = (self.scene.now, Duration::ZERO);
        let (stages, parts) = (Vec::new(), Vec::new());
        Journey { packet, address, sent, kind, stages, parts, arrival }
    }

    /// Whether a node splits long packets for a peer: it has found the path narrow, or the peer
    /// demands it.
    fn is_split(&self, from: usize, to: usize) -> bool {
        let tunnel = self.nodes[from].tunnels.get(number(to));
        tunnel.is_some_and(|tunnel| tunnel.split || tunnel.demanded_until > self.scene.now)
    }

    /// Notes that a packet in fragments demands fragments, if its sender has found the path narrow.
    fn note_demand(&mut self, from: usize, to: usize, payload: &Payload) {
        let sender = self.nodes[from].tunnels.get(number(to));
        if is_long(payload) && sender.is_some_and(|tunnel| tunnel.split) {
            self.tunnel(to, from).demanded_until = self.scene.now + DEMAND_HOLD;
        }
    }

    /// Records the fate of a session's datagram of this size on the wire: the sender of long ones
    /// notices missing acknowledgements, as QUIC's congestion control does.
    pub(super) fn note_fate(&mut self, packet: &Packet, size: usize, is_lost: bool) {
        let (node, peer, boot) = (packet.from, packet.to, packet.from_boot);
        let (rtt, now) = (self.scene.network.rtt(node, peer), self.instant());
        let bytes = size.saturating_sub(OVERHEAD);
        if self.nodes[node].tunnels.note_fate(number(peer), bytes, is_lost, rtt, now) {
            self.queue.push(self.scene.now, Event::Unacknowledged { node, boot, peer });
        }
    }

    /// Begins a handshake, or repeats the initiation; false if no address is known.
    fn initiate(&mut self, from: usize, to: usize) -> bool {
        let (now, jitter) = (self.instant(), self.rng.random());
        let node = &mut self.nodes[from];
        let (from_boot, said) = (node.boot, node.book.get(to));
        let tunnel = node.tunnels.to(number(to));
        let mut routes = tunnel.routes(said).peekable();
        if routes.peek().is_none() {
            return false;
        }
        tunnel.schedule.initiated(now, jitter);
        for address in routes {
            let (confirms, body) = (Duration::ZERO, Body::Initiation);
            let packet = Packet { from, from_boot, to, to_boot: 0, confirms, body };
            self.wire(packet, address, INITIATION, "initiation");
        }
        true
    }

    /// Whether a handshake is in progress; starts one if not.
    fn initiates(&mut self, from: usize, to: usize) -> bool {
        self.tunnel(from, to).schedule.is_trying() || self.initiate(from, to)
    }

    /// An aging session is renewed when a packet passes, and only then, so that an idle one ends.
    fn renew(&mut self, from: usize, to: usize) {
        let now = self.instant();
        if self.tunnel(from, to).schedule.wants_rekey(now) {
            self.initiate(from, to);
        }
    }

    /// Sets a timer for a tunnel, unless one is set that fires earlier.
    pub(super) fn arm(&mut self, node: usize, peer: usize) {
        let (now, epoch) = (self.scene.now, self.epoch);
        let Some(tunnel) = self.nodes[node].tunnels.get_mut(number(peer)) else { return };
        let Some(due) = tunnel.schedule.due() else { return };
        let due = due.saturating_duration_since(epoch).max(now);
        if tunnel.armed.is_some_and(|armed| armed <= due) {
            return;
        }
        tunnel.armed = Some(due);
        let boot = self.nodes[node].boot;
        self.queue.push(due, Event::Tunnel { node, boot, peer });
    }

    /// A timer of a tunnel fires. It may have been rescheduled since it was set.
    pub(super) fn tunnel_due(&mut self, node: usize, peer: usize) {
        let now = self.instant();
        let Some(tunnel) = self.nodes[node].tunnels.get_mut(number(peer)) else { return };
        if tunnel.armed.is_none_or(|armed| armed > self.scene.now) {
            return;
        }
        tunnel.armed = None;
        while let Some(need) = self.tunnel(node, peer).schedule.need(now) {
            match need {
                Need::GiveUp => self.abandon_handshake(node, peer),
                Need::Initiate { .. } => {
                    if !self.initiate(node, peer) {
                        self.abandon_handshake(node, peer);
                    }
                }
                Need::Expire => return self.expire(node, peer),
                Need::Keepalive => {
                    self.tunnel(node, peer).schedule.keepalive_done(now);
                    if self.tunnel(node, peer).is_up() {
                        self.data(node, peer, Payload::Empty);
                        self.renew(node, peer);
                    } else {
                        // Without an address there is nothing to keep alive.
                        self.initiates(node, peer);
                    }
                }
            }
        }
        self.arm(node, peer);
    }

    fn abandon_handshake(&mut self, node: usize, peer: usize) {
        self.tunnel(node, peer).schedule.give_up();
        self.nodes[node].tunnels.take_waiting(number(peer));
    }

    fn expire(&mut self, node: usize, peer: usize) {
        let tunnel = self.tunnel(node, peer);
        tunnel.end();
        match tunnel.schedule.due() {
            Some(_handshake_or_keepalive) => self.arm(node, peer),
            None => self.nodes[node].tunnels.remove(number(peer)),
        }
        let peer = self.nodes[peer].credential.node;
        self.with_brain(node, |brain: &mut Brain, now, _| brain.session(peer, false, now));
    }

    /// Membership reports a peer's address. If it is new, the peer's silence is attributed to a
    /// move.
    fn said_to_be_at(&mut self, node: usize, peer: usize, address: u16) {
        let known = &mut self.nodes[node];
        let is_news = known.book.get(peer) != Some(address);
        known.book.insert(peer, address);
        if let Some(tunnel) = known.tunnels.get_mut(number(peer))
            && is_news
            && ![0, address].contains(&tunnel.address)
        {
            tunnel.schedule.moved();
            self.arm(node, peer);
        }
    }

    /// Membership needs a peer, which it says is at this address: `mesh.keepalive` begins.
    pub(super) fn needs(&mut self, node: usize, peer: usize, address: Option<u16>) {
        if let Some(address) = address {
            self.said_to_be_at(node, peer, address);
        }
        let (every, now) = (self.settings(node).mesh.keepalive, self.instant());
        if every.is_some() {
            self.tunnel(node, peer).schedule.set_persistent(every, now);
            self.arm(node, peer);
        }
    }

    /// Membership no longer needs a peer.
    pub(super) fn releases(&mut self, node: usize, peer: &NodeId) {
        let tunnels = &mut self.nodes[node].tunnels;
        let peer = self.scene.account.number(peer);
        if let Some(tunnel) = peer.and_then(|peer| tunnels.get_mut(number(peer))) {
            tunnel.schedule.stop_persistent();
        }
    }

    pub(super) fn arrive(&mut self, packet: Packet) {
        let (from, to) = (packet.from, packet.to);
        if self.shuts_out(to, from) || self.nodes[to].brain.is_none() {
            return;
        }
        if packet.to_boot != 0 && self.nodes[to].boot != packet.to_boot {
            return self.stray(to, from);
        }
        self.count_received(to, &packet.body);
        match packet.body {
            Body::Initiation => self.respond(from, packet.from_boot, to),
            Body::Response => self.complete(to, from, packet.from_boot),
            Body::Data(_) => self.receive(packet),
        }
        self.arm(to, from);
    }

    /// Data arrived for a session that does not exist: a known peer still uses a session with an
    /// earlier process. A handshake now is faster than the peer's own timers.
    fn stray(&mut self, at: usize, from: usize) {
        if self.nodes[at].book.get(from).is_some() && !self.tunnel(at, from).is_up() {
            self.initiates(at, from);
            self.arm(at, from);
        }
    }

    fn respond(&mut self, from: usize, from_boot: u32, to: usize) {
        let (address, now, boot) =
            (self.scene.network.address(from), self.scene.now, self.nodes[to].boot);
        let tunnel = self.tunnel(to, from);
        tunnel.answered = Some(now);
        // Only data proves that the peer is reachable there.
        if tunnel.address == 0 {
            tunnel.address = address;
        }
        self.scene.measures.traffic.handshakes += 1;
        let (confirms, body) = (Duration::ZERO, Body::Response);
        let packet =
            Packet { from: to, from_boot: boot, to: from, to_boot: from_boot, confirms, body };
        self.wire(packet, address, RESPONSE, "response");
    }

    /// The initiator's side of a handshake is complete: sends an empty datagram, which completes
    /// the other side, then the queued packets.
    fn complete(&mut self, at: usize, peer: usize, peer_boot: u32) {
        let (now, jitter) = (self.scene.now, self.rng.random());
        let (instant, address) = (self.epoch + now, self.scene.network.address(peer));
        let tunnel = self.tunnel(at, peer);
        if !tunnel.schedule.is_trying() {
            return;
        }
        tunnel.schedule.agreed(instant, jitter);
        tunnel.schedule.received(instant, Content::Empty);
        (tunnel.made, tunnel.address) = (now, address);
        self.session_up(at, peer, peer_boot);
    }

    /// A packet of a session arrives. The first one from the initiator shows that both sides have
    /// the session.
    fn receive(&mut self, packet: Packet) {
        let Packet { from, from_boot, to, confirms, body, .. } = packet;
        let Body::Data(payload) = body else { return };
        let (now, epoch, address) = (self.scene.now, self.epoch, self.scene.network.address(from));
        self.renew(to, from);
        let tunnel = self.tunnel(to, from);
        let is_new = confirms > tunnel.confirmed && now.saturating_sub(confirms) < REJECT_AFTER;
        if !is_new && (!tunnel.is_up() || tunnel.with_boot != from_boot) {
            return self.stray(to, from);
        }
        // Sessions follow a peer that moves, and report its new address to it. The mesh also does
        // so at the start of a session; this is omitted here if the address is unchanged.
        let has_moved = tunnel.is_up() && tunnel.address != address;
        tunnel.address = address;
        if is_new {
            let since = epoch + tunnel.answered.unwrap_or(now);
            (tunnel.confirmed, tunnel.made) = (confirms, Duration::ZERO);
            let jitter = self.rng.random();
            self.tunnel(to, from).schedule.confirmed(since, jitter);
        }
        self.tunnel(to, from).schedule.received(epoch + now, content(&payload));
        self.note_demand(from, to, &payload);
        if is_new {
            self.session_up(to, from, from_boot);
        }
        if self.nodes[to].brain.is_none() {
            return;
        }
        if has_moved {
            self.send(to, from, Payload::Seen(address));
        }
        match payload {
            Payload::Seen(at) => {
                let (by, at) = (self.nodes[from].credential.node, node::endpoint(at, to));
                self.with_brain(to, |brain, now, _| brain.sight(by, at, now));
            }
            Payload::Gossip(bytes) => self.take_gossip(from, to, &bytes),
            Payload::Flight(flight) => self.take_flight(from, to, *flight),
            Payload::Empty | Payload::Ack => {}
        }
    }

    fn take_gossip(&mut self, from: usize, to: usize, bytes: &[u8]) {
        let is_probe = matches!(kind(bytes), "probe" | "wide-probe");
        if self.nodes[to].lie == Some(Lie::Silent) && !is_probe {
            return;
        }
        let credential = self.nodes[from].credential.clone();
        self.with_brain(to, |brain, now, wall| {
            // The mesh has admitted it, even if the brain has forgotten it since.
            if brain.wants_credential(&credential.node, now) {
                brain.credential(&credential, now, wall);
            }
            brain.datagram(credential.node, bytes, now, wall);
        });
    }

    /// A session was established or replaced.
    fn session_up(&mut self, at: usize, peer: usize, peer_boot: u32) {
        let waiting = self.nodes[at].tunnels.take_waiting(number(peer));
        let tunnel = self.tunnel(at, peer);
        let is_new = tunnel.with_boot != peer_boot;
        tunnel.with_boot = peer_boot;
        tunnel.connected &= !is_new;
        let (address, has_made) = (tunnel.address, !tunnel.made.is_zero());
        if self.nodes[at].book.get(peer).is_none() {
            self.nodes[at].book.insert(peer, address);
        }
        // Prevents the other side from considering the new session unused.
        let proof = has_made.then_some(Payload::Empty);
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

    /// The round trip that a node has measured to a peer, as QUIC would measure it.
    pub(super) fn is_connected(&mut self, node: usize, peer: usize) -> bool {
        let tunnel = self.nodes[node].tunnels.get(number(peer));
        tunnel.is_some_and(|tunnel| tunnel.is_up() && tunnel.connected)
    }

    pub(super) fn tunnel(&mut self, node: usize, peer: usize) -> &mut Tunnel {
        self.nodes[node].tunnels.to(number(peer))
    }

    fn wire(&mut self, packet: Packet, address: u16, size: usize, kind: &'static str) {
        let fate = self.scene.network.carry(self.scene.now, parcel(&packet, address, size));
        self.count_sent(packet.from, size);
        let second = self.scene.measures.second(self.scene.now);
        let bytes = size as u64;
        match packet.body {
            Body::Data(Payload::Gossip(_)) => second.gossip_bytes += bytes,
            Body::Data(Payload::Ack) => self.scene.measures.traffic.session_bytes += bytes,
            _ => {
                second.tunnel_bytes += bytes;
                self.scene.measures.traffic.tunnel_packets += 1;
                self.scene.measures.traffic.tunnel_bytes += bytes;
            }
        }
        if let Ok(Stretch::Reaches(..)) = fate {
            let journey = self.journey(packet, address, kind);
            return self.set_out(Box::new(Journey { stages: stages(fate, size), ..journey }));
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
        self.scene.trace.datagram(Sent { at: self.scene.now, from, to, size, kind, lost });
    }
}
