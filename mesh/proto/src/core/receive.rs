//! Maps outer datagrams to peers, and inner packets to their handlers.

use std::net::Ipv6Addr;
use std::time::Duration;

use bytes::Bytes;
use meshport_config::NodeId;

use super::{Core, Notice, Source};
use crate::MeshCount;
use crate::calls::CallToken;
use crate::event::{MeshEvent, Now, Route};
use crate::inner::{self, Fragment, Packet, Udp};
use crate::peer::Peer;
use crate::peers::Slot;
use crate::ports;
use crate::reassembly::Joined;
use crate::tunnel::{Checked, Failure, Message, Opened, SessionId, Under, classify};

/// Shortest gap between two answered initiations of one peer (50 per second, as in wireguard-go).
const INITIATION_GAP: Duration = Duration::from_millis(20);
/// A peer heard this recently does not need a handshake from this side. A restarted peer at first
/// repeats its own every second; a live one may be silent longer, and a failed handshake costs
/// little.
const SESSION_IS_ALIVE: Duration = Duration::from_secs(4);
/// Shortest gap between two searches for the owner of data without a session.
const STRAY_GAP: Duration = Duration::from_millis(100);

/// A QUIC datagram of an admitted peer. It is in the output buffer of [`Core::handle_datagram`],
/// after [`inner::UDP_OVERHEAD`] bytes of headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamPacket {
    /// The address under which the peer's streams are kept.
    pub from: Ipv6Addr,
    /// Its length in bytes.
    pub length: usize,
}

/// A QUIC datagram of an admitted peer that came in fragments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinedPacket {
    /// The address under which the peer's streams are kept.
    pub from: Ipv6Addr,
    length: usize,
    /// The packet with its headers.
    packet: Vec<u8>,
}

impl JoinedPacket {
    /// The QUIC datagram.
    pub fn payload(&self) -> &[u8] {
        &self.packet[inner::UDP_OVERHEAD..][..self.length]
    }
}

/// The claim of an initiation that has passed the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// This node's current or previous identity, for whose key it was made.
    pub(crate) own: NodeId,
    /// Its node, if it is authentic.
    pub(crate) node: NodeId,
}

/// An initiation for a key of this node.
struct Initiation<'a> {
    own: NodeId,
    from: Route,
    datagram: &'a [u8],
}

impl Core {
    /// Handles one outer datagram. `out` is scratch space, at least as long as the datagram and at
    /// least 148 bytes. Returns the QUIC datagram in it, if any; everything else becomes events and
    /// transmits. If the datagram completes one that came in fragments, [`Core::poll_joined`]
    /// returns that.
    pub fn handle_datagram(
        &mut self,
        now: Now,
        from: Route,
        datagram: &[u8],
        out: &mut [u8],
    ) -> Option<StreamPacket> {
        let message = classify(datagram);
        if let Some(owner) = message.and_then(|message| self.other_owner(message)) {
            self.hand_over(owner, from, datagram, None);
            return None;
        }
        self.out.counters[MeshCount::DatagramsReceived] += 1;
        self.out.counters[MeshCount::BytesReceived] += datagram.len() as u64;
        match message {
            Some(Message::Data(receiver)) => self.handle_data(now, from, receiver, datagram, out),
            Some(Message::Initiation) => {
                self.handle_initiation(now, from, datagram, out);
                None
            }
            Some(Message::Response(receiver)) => {
                self.handle_response(now, from, receiver, datagram, out);
                None
            }
            Some(Message::Cookie(receiver)) => {
                self.handle_cookie(now, receiver, datagram, out);
                None
            }
            None => {
                match self.calls.take(datagram) {
                    Some(token) => self.out.tell(MeshEvent::Called { token, from: from.remote }),
                    None => self.out.counters[MeshCount::DroppedMalformed] += 1,
                }
                None
            }
        }
    }

    /// The QUIC datagram that the last outer datagram completed. Call it after every one.
    pub fn poll_joined(&mut self) -> Option<JoinedPacket> {
        self.out.joined.take()
    }

    /// Expects call-backs with these tokens, and no others, from now on.
    pub fn expect_calls(&mut self, tokens: &[CallToken]) {
        self.calls.expect(tokens);
    }

    fn handle_data(
        &mut self,
        now: Now,
        from: Route,
        receiver: u32,
        datagram: &[u8],
        out: &mut [u8],
    ) -> Option<StreamPacket> {
        let Some((slot, mark)) = self.peers.of_receiver(receiver) else {
            self.out.counters[MeshCount::DroppedUnknownSession] += 1;
            self.stray(now, from);
            return None;
        };
        self.refresh(slot, now);
        let opened = self.peers.get_mut(slot)?.tunnel.open(mark, datagram, out);
        let length = match opened {
            Opened::Packet(length) => length,
            Opened::Nothing | Opened::NotIp | Opened::Reply(_) => 0,
            Opened::Failed(failure) => {
                self.count_failed_data(failure);
                if failure != Failure::Replayed {
                    self.stray(now, from);
                }
                return None;
            }
        };
        let session = SessionId { mark, low: (receiver & 0xff) as u8 };
        self.authenticated(slot, now, from, session, length);
        let found = match opened {
            Opened::Packet(length) => {
                self.handle_inner(Source { slot, session }, now, &out[..length])
            }
            Opened::NotIp => {
                self.out.counters[MeshCount::DroppedInnerMalformed] += 1;
                None
            }
            _ => None,
        };
        self.arm(slot);
        found
    }

    fn count_failed_data(&mut self, failure: Failure) {
        let counters = &mut self.out.counters;
        match failure {
            Failure::Replayed => counters[MeshCount::DroppedReplayed] += 1,
            Failure::NoSession => counters[MeshCount::DroppedUnknownSession] += 1,
            Failure::Invalid => counters[MeshCount::DroppedUnauthentic] += 1,
        }
    }

    /// Handles an authenticated packet of the peer's session from `from`, which is now its address.
    fn authenticated(
        &mut self,
        slot: Slot,
        now: Now,
        from: Route,
        session: SessionId,
        bytes: usize,
    ) {
        let jitter =
            if self.peers.get(slot).is_some_and(Peer::has_pending) { self.jitter() } else { 0.0 };
        let Some(peer) = self.peers.get_mut(slot) else { return };
        let mut moved = false;
        if peer.endpoint != Some(from) {
            moved = peer.endpoint.is_some_and(|route| route.remote != from.remote);
            self.out.counters[MeshCount::Roams] += u64::from(moved);
            peer.endpoint = Some(from);
        }
        let confirmed = peer.confirm(session, now.instant, jitter);
        peer.received(now.instant, bytes);
        if confirmed {
            peer.agreed_in(session, now.instant);
            self.session_up(slot, now);
        } else if moved {
            self.say_here(slot, now);
        }
    }

    fn handle_initiation(&mut self, now: Now, from: Route, datagram: &[u8], out: &mut [u8]) {
        let (own, checked) = self.local.check_initiation(now, from, datagram, out);
        let claim = match checked {
            Checked::Initiator(node) if !self.is_me(&node) => Claim { own, node },
            Checked::Cookie(length) => {
                self.out.counters[MeshCount::CookiesSent] += 1;
                self.out.transmit(from, out[..length].to_vec());
                return;
            }
            Checked::TooMany => {
                self.out.counters[MeshCount::DroppedOverShare] += 1;
                return;
            }
            Checked::BadMac => {
                self.out.counters[MeshCount::DroppedBadMac] += 1;
                return;
            }
            Checked::Initiator(_) | Checked::Invalid => {
                self.out.counters[MeshCount::DroppedBadInitiation] += 1;
                return;
            }
        };
        match self.shard.other_owner(&claim.node) {
            Some(owner) => self.hand_over(owner, from, datagram, Some(claim)),
            None => self.handle_claimed(now, from, datagram, out, claim),
        }
    }

    /// Handles an initiation that has passed the gate and claims to come from a node of this shard.
    pub fn handle_claimed(
        &mut self,
        now: Now,
        from: Route,
        datagram: &[u8],
        out: &mut [u8],
        Claim { own, node }: Claim,
    ) {
        if self.is_blocked(&node) {
            // One computation has revealed its key; skip the rest of the handshake.
            self.note_knock(node, now);
            return;
        }
        let known = self.peers.of_node(&node);
        let peer = known.and_then(|slot| self.peers.get(slot));
        let is_stranger = !peer.is_some_and(|peer| peer.configured || peer.admission.admitted);
        if is_stranger && !self.local.gate.takes_stranger(now.instant) {
            self.out.counters[MeshCount::DroppedOverShare] += 1;
            return;
        }
        let slot = match known {
            Some(slot) => slot,
            None if !self.local.gate.agrees_with(&node) => {
                self.out.counters[MeshCount::DroppedBadInitiation] += 1;
                return;
            }
            None if self.has_room() => {
                self.add(node, Some(now.instant + self.config.provisional_life))
            }
            None => {
                self.out.counters[MeshCount::DroppedNoRoom] += 1;
                return;
            }
        };
        let accepted = self.answer_initiation(slot, now, Initiation { own, from, datagram }, out);
        if known.is_none() {
            if accepted {
                self.evict_provisional();
            } else {
                // The node is not proven to exist: keep nothing about it.
                self.remove(slot, "not authentic");
            }
        }
        self.arm(slot);
    }

    /// True if the peer's tunnel accepted the initiation.
    fn answer_initiation(
        &mut self,
        slot: Slot,
        now: Now,
        Initiation { own, from, datagram }: Initiation<'_>,
        out: &mut [u8],
    ) -> bool {
        self.refresh(slot, now);
        let Some(peer) = self.peers.get_mut(slot) else { return false };
        let gap = peer.answered.last.map(|at| now.instant.saturating_duration_since(at));
        if gap.is_some_and(|gap| gap < INITIATION_GAP) {
            self.out.counters[MeshCount::DroppedFrequentInitiation] += 1;
            return false;
        }
        let ids = self.secret_ids(now);
        self.equip(slot, &ids, own, now);
        let mut accepted = false;
        for secret in ids {
            let Some(peer) = self.peers.get_mut(slot) else { break };
            let under = Under { secret, own, peer: peer.node };
            match peer.tunnel.answer(&under, datagram, out) {
                (mark, Opened::Reply(length)) => {
                    // Bytes 4 to 8 of a response are the receiver index of the new session.
                    peer.answered(SessionId { mark, low: out[4] }, now.instant);
                    // Only data proves that the peer is reachable there: to a new process, a
                    // recorded initiation looks fresh.
                    peer.endpoint.get_or_insert(from);
                    self.out.transmit(from, out[..length].to_vec());
                    accepted = true;
                }
                // Another half may be too new to tell.
                (_, Opened::Failed(Failure::Replayed)) => {
                    self.out.counters[MeshCount::DroppedReplayedInitiation] += 1;
                    self.answer_an_old_clock(slot, now);
                    break;
                }
                _ => {
                    self.out.counters[MeshCount::DroppedBadInitiation] += 1;
                    break;
                }
            }
        }
        self.out.counters[MeshCount::InitiationsAccepted] += u64::from(accepted);
        accepted
    }

    /// An initiation that is not newer than the last one is either a replay, or its sender's clock
    /// is behind that of an earlier process, and all its initiations are refused until the clock
    /// has caught up. So unless the session is alive, this side starts a handshake with the peer's
    /// known address: the one that the caller named or, for a peer without one such as a leaf, the
    /// source of the packets that admitted it. Never the source of the initiation: an attacker with
    /// a recorded one could divert the peer's traffic.
    fn answer_an_old_clock(&mut self, slot: Slot, now: Now) {
        let Some(peer) = self.peers.get(slot) else { return };
        let heard =
            peer.schedule.last_received().is_some_and(|at| at + SESSION_IS_ALIVE > now.instant);
        if heard || peer.schedule.is_trying() || !(peer.configured || peer.admission.admitted) {
            return;
        }
        self.out.counters[MeshCount::HandshakesForOldClocks] += 1;
        self.initiate(slot, now);
    }

    /// Whether another unknown node can be added, possibly in place of one.
    fn has_room(&self) -> bool {
        self.peers.len() < self.config.max_peers || self.peers.provisional() > 0
    }

    /// Restores the limit after an unknown node was added by removing the oldest one.
    fn evict_provisional(&mut self) {
        while self.peers.len() > self.config.max_peers
            || self.peers.provisional() > self.config.max_provisional
        {
            let Some(oldest) = self.peers.oldest_provisional() else { return };
            self.out.counters[MeshCount::ProvisionalEvicted] += 1;
            self.remove(oldest, "pushed out");
        }
    }

    fn handle_response(
        &mut self,
        now: Now,
        from: Route,
        receiver: u32,
        datagram: &[u8],
        out: &mut [u8],
    ) {
        let Some((slot, mark)) = self.peers.of_receiver(receiver) else {
            self.out.counters[MeshCount::DroppedBadResponse] += 1;
            return;
        };
        self.refresh(slot, now);
        let jitter = self.jitter();
        let Some(peer) = self.peers.get_mut(slot) else { return };
        let length = match peer.tunnel.open(mark, datagram, out) {
            Opened::Reply(length) => length,
            refused => {
                self.out.counters[MeshCount::DroppedBadResponse] += 1;
                if refused == Opened::Failed(Failure::Invalid) {
                    self.answer_does_not_fit(slot, now);
                }
                return;
            }
        };
        peer.endpoint = Some(from);
        peer.agreed_as_initiator(now.instant, jitter);
        let low = (receiver & 0xff) as u8;
        peer.agreed_in(SessionId { mark, low }, now.instant);
        peer.received(now.instant, 0);
        self.out.counters[MeshCount::HandshakesCompleted] += 1;
        self.out.transmit(from, out[..length].to_vec());
        self.session_up(slot, now);
        self.arm(slot);
    }

    fn handle_cookie(&mut self, now: Now, receiver: u32, datagram: &[u8], out: &mut [u8]) {
        let found = self.peers.of_receiver(receiver);
        let found = found.and_then(|(slot, mark)| Some((slot, mark, self.peers.get_mut(slot)?)));
        let Some((slot, mark, peer)) = found else {
            self.out.counters[MeshCount::DroppedBadResponse] += 1;
            return;
        };
        if peer.tunnel.open(mark, datagram, out) != Opened::Nothing {
            self.out.counters[MeshCount::DroppedBadResponse] += 1;
            return;
        }
        self.out.counters[MeshCount::CookiesReceived] += 1;
        peer.cookie_received(now.instant);
        self.arm(slot);
    }

    /// Handles data for a session that does not exist. If it comes from the address of a named
    /// peer, that peer still uses a session of an earlier process of this node: a handshake now
    /// saves it from waiting for its own timers.
    fn stray(&mut self, now: Now, from: Route) {
        if self.last_stray.is_some_and(|at| now.instant - at < STRAY_GAP) {
            return;
        }
        self.last_stray = Some(now.instant);
        let lives_there = |slot: &Slot| {
            self.peers.get(*slot).is_some_and(|peer| {
                peer.configured
                    && !peer.schedule.has_session()
                    && peer.candidates().iter().any(|route| route.remote == from.remote)
            })
        };
        let found = self.peers.iter().map(|(slot, _)| slot).find(lives_there);
        if let Some(slot) = found {
            // An address is known here; a handshake in progress is fine.
            let _ = self.want_session(slot, now);
        }
    }

    /// An authenticated inner packet.
    fn handle_inner(&mut self, source: Source, now: Now, packet: &[u8]) -> Option<StreamPacket> {
        let Source { slot, session } = source;
        let parsed = match inner::parse(packet) {
            Ok(parsed) => parsed,
            Err(inner::InnerError::Checksum) => {
                self.out.counters[MeshCount::DroppedInnerChecksum] += 1;
                return None;
            }
            Err(_) => {
                self.out.counters[MeshCount::DroppedInnerMalformed] += 1;
                return None;
            }
        };
        let addresses = parsed.addresses();
        let peer = self.peers.get(slot)?;
        let ends = peer.tunnel.ends_of(session.mark)?;
        if addresses.source != ends.peer {
            self.out.counters[MeshCount::DroppedInnerSource] += 1;
            return None;
        }
        if addresses.destination != ends.own {
            self.out.counters[MeshCount::DroppedInnerDestination] += 1;
            return None;
        }
        let control =
            matches!(&parsed, Packet::Udp(udp) if udp.flow.destination_port == ports::CONTROL);
        if !peer.admission.admitted && !control {
            self.out.counters[MeshCount::DroppedNotAdmitted] += 1;
            self.admit_again(slot, now);
            return None;
        }
        let node = peer.node;
        match parsed {
            Packet::Udp(udp) => self.handle_udp(source, now, &udp),
            Packet::EchoRequest(echo) => {
                self.out.counters[MeshCount::EchoesAnswered] += 1;
                self.send_packet(slot, now, &echo.reply());
                None
            }
            Packet::EchoReply(echo) => {
                self.out.notice(Notice::Pong(node, echo.token()));
                None
            }
            Packet::Fragment(fragment) => {
                self.handle_fragment(source, now, &fragment);
                None
            }
        }
    }

    fn handle_fragment(&mut self, source: Source, now: Now, fragment: &Fragment<'_>) {
        let Source { slot, .. } = source;
        let peer = self.peers.get_mut(slot);
        if peer.is_some_and(|peer| peer.traffic.split.note(fragment.id, now.instant)) {
            self.caution.demanded(now.instant);
        }
        let (joined, dropped) = self.reassembly.take(slot, fragment, now.instant);
        self.out.counters[MeshCount::DroppedFragments] += dropped;
        let packet = match joined {
            Joined::Whole(packet) => packet,
            Joined::Partial => return,
            Joined::Refused => {
                self.out.counters[MeshCount::DroppedFragments] += 1;
                return;
            }
        };
        // Fragments of different packets may have the same id, if the peer's process is new.
        if matches!(inner::parse(&packet), Ok(Packet::Udp(udp)) if !udp.checksum_ok()) {
            self.out.counters[MeshCount::DroppedInnerChecksum] += 1;
            return;
        }
        self.out.counters[MeshCount::PacketsJoined] += 1;
        // A fragment contains no fragment, so this ends.
        if let Some(StreamPacket { from, length }) = self.handle_inner(source, now, &packet) {
            self.out.joined = Some(JoinedPacket { from, length, packet });
        }
    }

    fn handle_udp(&mut self, source: Source, now: Now, udp: &Udp<'_>) -> Option<StreamPacket> {
        let port = udp.flow.destination_port;
        if port == ports::STREAMS {
            // The UDP checksum of a packet that came whole is not verified: the tunnel
            // authenticates every byte, and this is the hot path.
            let length = udp.payload.len();
            return Some(StreamPacket { from: self.peers.get(source.slot)?.address, length });
        }
        if !udp.checksum_ok() {
            self.out.counters[MeshCount::DroppedInnerChecksum] += 1;
            return None;
        }
        if port == ports::CONTROL {
            self.handle_control(source, now, udp);
        } else if let Some(peer) = self.peers.get(source.slot) {
            let payload = Bytes::copy_from_slice(udp.payload);
            let from = peer.node;
            self.out.tell(MeshEvent::Datagram { from, port, payload, at: now.instant });
        }
        None
    }
}
