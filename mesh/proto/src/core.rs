//! The mesh as a state machine without I/O: datagrams and time go in, datagrams and events come
//! out.
//!
//! Owns all peers: maps every outer datagram to its peer (`receive`), encrypts packets (`send`),
//! admits peers (`admit`) and runs timers (`timers`). Time is an argument of every call.
//!
//! Invariants: a decrypted packet is processed only if its inner source is the address of the peer
//! whose session opened it; from a peer that is not admitted only control messages are processed; a
//! peer's endpoint changes only with packets that its session authenticated.
//!
//! Bounds: peers by [`MeshConfig`], waiting packets by `peer::QUEUE_LIMIT`,
//! outgoing control datagrams by `TRANSMIT_LIMIT`, events by [`MeshConfig::max_events`]. What
//! exceeds a bound is dropped and counted.

mod admit;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod hand_over;
mod here;
mod local;
mod receive;
mod revoke;
mod rotate;
mod send;
mod succeed;
mod timers;

use std::collections::{BTreeSet, VecDeque};
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use meshport_config::{Credential, InnerAddr, MeshSecrets, NodeId, NodeKey};
use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};

use crate::calls::Calls;
use crate::event::{MeshEvent, Now, PeerStatus, Route};
use crate::peer::{ENDPOINT_LIMIT, Peer};
use crate::peers::{Peers, Slot};
use crate::reassembly::Reassembly;
use crate::settings::{Identity, MeshConfig};
use crate::shard::ShardIndex;
use crate::split::{self, Caution, Split};
use crate::tunnel::{SessionId, Tunnel};
use crate::{MeshCount, MeshCounters, MeshError};

pub use hand_over::{Batch, HandOver};
use local::Local;
pub use receive::{Claim, JoinedPacket, StreamPacket};
use revoke::Blocked;

pub use send::{Datagrams, SEAL_OVERHEAD, StreamBatch};

/// Outgoing datagrams that may wait to be polled: one turn produces few, and a flood must not
/// produce many.
const TRANSMIT_LIMIT: usize = 1024;
/// Events other than datagrams kept beyond [`MeshConfig::max_events`]: changes of peers matter
/// more, and there are few per peer.
const STATE_EVENT_RESERVE: usize = 4096;
/// A peer that was heard this recently is not silent: a path that carries sessions is probed
/// several times in that time.
const HEARD: Duration = Duration::from_secs(2);

/// Bytes for the longest inner packet.
const SCRATCH: usize = 1 << 16;

/// A datagram to put on the wire.
#[derive(Debug)]
pub struct Transmit {
    /// The destination.
    pub route: Route,
    /// The whole datagram.
    pub bytes: Vec<u8>,
}

/// The peer and session that a packet came in.
#[derive(Debug, Clone, Copy)]
struct Source {
    slot: Slot,
    session: SessionId,
}

/// An event for the layer that drives the state machine.
#[derive(Debug)]
pub enum Notice {
    /// A session exists: callers that wait for one may continue.
    Ready,
    /// Streams and connections of this peer are dead: it was removed or has been restarted.
    Cut(NodeId, &'static str),
    /// Another process of this peer took over, and connections of the previous one continue.
    Succeeded(NodeId),
    /// The streams and connections of the first belong to the second from now on.
    Renamed(NodeId, NodeId),
    /// An echo request with this token was answered.
    Pong(NodeId, u32),
}

/// Everything that leaves the state machine.
#[derive(Debug)]
struct Output {
    transmits: VecDeque<Transmit>,
    events: VecDeque<MeshEvent>,
    notices: VecDeque<Notice>,
    /// Emptied after every turn, whose input is bounded.
    hand_overs: VecDeque<HandOver>,
    /// Taken after every datagram.
    joined: Option<JoinedPacket>,
    max_events: usize,
    counters: MeshCounters,
}

impl Output {
    fn transmit(&mut self, route: Route, bytes: Vec<u8>) {
        if self.transmits.len() >= TRANSMIT_LIMIT {
            self.counters[MeshCount::DroppedTransmitFull] += 1;
        } else {
            self.transmits.push_back(Transmit { route, bytes });
        }
    }

    fn tell(&mut self, event: MeshEvent) {
        let limit = match event {
            MeshEvent::Datagram { .. } | MeshEvent::Unacknowledged(_) => self.max_events,
            _ => self.max_events + STATE_EVENT_RESERVE,
        };
        if self.events.len() >= limit {
            self.counters[MeshCount::DroppedEvents] += 1;
        } else {
            self.events.push_back(event);
        }
    }

    fn notice(&mut self, notice: Notice) {
        if self.notices.len() >= STATE_EVENT_RESERVE {
            self.counters[MeshCount::DroppedEvents] += 1;
        } else {
            self.notices.push_back(notice);
        }
    }
}

/// The state machine.
pub struct Core {
    local: Local,
    config: MeshConfig,
    shard: ShardIndex,
    peers: Peers,
    /// Time at which each peer is due; at most one entry per peer.
    timers: BTreeSet<(Instant, Slot)>,
    last_stray: Option<Instant>,
    /// The secrets that pre-shared keys are derived from.
    secrets: MeshSecrets,
    /// The number of a newer secret that the caller was asked to store, and when.
    offered: Option<(u64, Instant)>,
    blocked: Blocked,
    calls: Calls,
    reassembly: Reassembly,
    caution: Arc<Caution>,
    out: Output,
    rng: StdRng,
    /// Buffer for an inner packet on its way into a tunnel, and for a fragment of it.
    scratch: Vec<u8>,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core")
            .field("node", &self.local.node)
            .field("peers", &self.peers.len())
            .finish_non_exhaustive()
    }
}

impl Core {
    /// `seed` must be new in every process.
    ///
    /// # Errors
    /// If a limit is out of its bounds or the identity is not valid at `now`.
    pub fn new(
        identity: Identity,
        config: MeshConfig,
        seed: [u8; 32],
        now: Now,
    ) -> Result<Self, MeshError> {
        config.check()?;
        let mut rng = StdRng::from_seed(seed);
        let secrets = MeshSecrets::from(identity.secret.clone());
        Ok(Self {
            local: Local::new(identity, rng.next_u64(), config.handshakes_per_second, now)?,
            shard: ShardIndex::ONLY,
            peers: Peers::new(rng.next_u32(), ShardIndex::ONLY),
            timers: BTreeSet::new(),
            last_stray: None,
            secrets,
            offered: None,
            blocked: Blocked::default(),
            calls: Calls::default(),
            reassembly: Reassembly::default(),
            caution: Arc::default(),
            out: Output {
                transmits: VecDeque::new(),
                events: VecDeque::new(),
                notices: VecDeque::new(),
                hand_overs: VecDeque::new(),
                joined: None,
                max_events: config.max_events,
                counters: MeshCounters::default(),
            },
            rng,
            scratch: vec![0; SCRATCH + split::UNSPLIT],
            config,
        })
    }

    /// This node's key.
    pub fn key(&self) -> &NodeKey {
        &self.local.identity().key
    }

    /// The number of peers of all kinds.
    pub fn peer_count(&self) -> usize {
        self.peers.len()
    }

    /// This node.
    pub fn node(&self) -> NodeId {
        self.local.node
    }

    /// This node's inner address.
    pub fn address(&self) -> Ipv6Addr {
        self.inner(&self.local.node).ip()
    }

    fn inner(&self, node: &NodeId) -> InnerAddr {
        self.local.inner(node)
    }

    /// The next datagram to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.out.transmits.pop_front()
    }

    /// The next event for the user.
    pub fn poll_event(&mut self) -> Option<MeshEvent> {
        self.out.events.pop_front()
    }

    /// Whether an event waits.
    pub fn has_events(&self) -> bool {
        !self.out.events.is_empty()
    }

    /// The next notice for the driver.
    pub fn poll_notice(&mut self) -> Option<Notice> {
        self.out.notices.pop_front()
    }

    /// Whether a notice waits.
    pub fn has_notices(&self) -> bool {
        !self.out.notices.is_empty()
    }

    /// Like [`Core::expect_answer`], by node.
    pub fn expect_answer_of(&mut self, node: &NodeId) {
        if let Some(slot) = self.peers.of_node(node)
            && let Some(peer) = self.peers.get_mut(slot)
        {
            peer.schedule.expect_answer();
        }
    }

    /// Notes that the application wrote to a stream of the peer at `address`, so that its next
    /// packets are answered within a round trip.
    pub fn expect_answer(&mut self, address: &Ipv6Addr) {
        if let Some(slot) = self.peers.of_address(address)
            && let Some(peer) = self.peers.get_mut(slot)
        {
            peer.schedule.expect_answer();
        }
    }

    /// Notes that the peer at `address` does not acknowledge long packets. Ignored for a silent
    /// peer, which other timers detect.
    pub fn note_unacknowledged(&mut self, now: Now, address: &Ipv6Addr) {
        let peer = self.peers.of_address(address).and_then(|slot| self.peers.get(slot));
        let heard = |at: Instant| now.instant.saturating_duration_since(at) < HEARD;
        if let Some(peer) = peer.filter(|peer| peer.schedule.last_received().is_some_and(heard)) {
            self.out.tell(MeshEvent::Unacknowledged(peer.node));
        }
    }

    /// Notes whether the path to a peer is too narrow for QUIC's smallest datagram. Longer packets
    /// are split then, if the peer's release joins them; and single ones to all such peers.
    pub fn set_narrow(&mut self, node: &NodeId, is_narrow: bool) {
        let slot = self.peers.of_node(node);
        let peer = slot.and_then(|slot| self.peers.get_mut(slot));
        self.caution.set(node, is_narrow && peer.is_some());
        if let Some(peer) = peer {
            peer.traffic.split.narrow = is_narrow;
        }
    }

    /// Whether long packets to a peer are split now.
    pub fn is_split(&self, node: &NodeId, now: Instant) -> bool {
        let peer = self.peers.of_node(node).and_then(|slot| self.peers.get(slot));
        peer.is_some_and(|peer| peer.traffic.split.is_on(now))
    }

    /// Time at which [`Core::handle_timeout`] must be called, if no packet arrives before.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Counters of everything done and dropped since the start.
    pub fn counters(&self) -> &MeshCounters {
        &self.out.counters
    }

    /// Names a peer: its possible addresses, and its credential if known. Repeating it changes
    /// nothing; an endpoint proven by the peer's own packets stays.
    pub fn set_peer(
        &mut self,
        now: Now,
        node: NodeId,
        endpoints: &[SocketAddr],
        credential: Option<&Arc<Credential>>,
    ) {
        if self.is_me(&node) {
            return;
        }
        if let Some(credential) = credential.filter(|it| it.node == node) {
            self.follow_if_good(credential, now);
        }
        if self.is_blocked(&node) {
            self.out.counters[MeshCount::PeersRefused] += 1;
            return;
        }
        let Some(slot) = self.peers.of_node(&node).or_else(|| self.add_configured(node)) else {
            self.out.counters[MeshCount::PeersRefused] += 1;
            return;
        };
        self.peers.settle(slot);
        let keepalive = self.config.keepalive;
        if let Some(peer) = self.peers.get_mut(slot) {
            peer.configured = true;
            peer.admission.provisional_until = None;
            peer.set_hints(endpoints.iter().map(canonical).take(ENDPOINT_LIMIT).collect());
            peer.schedule.set_persistent(keepalive, now.instant);
        }
        if let Some(credential) = credential {
            self.learn_credential(slot, credential, now);
        }
        self.arm(slot);
    }

    fn add_configured(&mut self, node: NodeId) -> Option<Slot> {
        if !self.local.gate.agrees_with(&node) {
            return None;
        }
        if self.peers.len() >= self.config.max_peers {
            let oldest = self.peers.oldest_provisional()?;
            self.out.counters[MeshCount::ProvisionalEvicted] += 1;
            self.remove(oldest, "pushed out");
        }
        Some(self.add(node, None))
    }

    fn add(&mut self, node: NodeId, provisional_until: Option<Instant>) -> Slot {
        let inner = self.inner(&node);
        let terms = self.terms(self.secrets.current(), self.local.node, node);
        let (gate, instance, mtu) = (&self.local.gate, self.local.instance, self.config.mtu);
        self.peers.insert(|index| {
            let tunnel = Tunnel::new(gate, &terms, index);
            let mut peer = Peer::new(node, inner, tunnel);
            peer.admission.provisional_until = provisional_until;
            peer.traffic.split = Split::new(instance, mtu);
            peer
        })
    }

    /// Forgets a peer: its session, its queue, its streams.
    pub fn remove_peer(&mut self, node: &NodeId) {
        if let Some(slot) = self.peers.of_node(node) {
            self.remove(slot, "peer removed");
        }
    }

    /// Releases a peer that the caller no longer needs. If it has a session, it stays until that
    /// ends, like a peer that was never named.
    pub fn release_peer(&mut self, node: &NodeId) {
        let Some(slot) = self.peers.of_node(node) else { return };
        match self.peers.get_mut(slot) {
            Some(peer) if peer.schedule.has_session() => {
                peer.configured = false;
                peer.schedule.stop_persistent();
            }
            _ => self.remove(slot, "peer released"),
        }
    }

    fn remove(&mut self, slot: Slot, reason: &'static str) {
        let Some(peer) = self.peers.remove(slot) else { return };
        self.reassembly.forget(slot);
        self.caution.set(&peer.node, false);
        if let Some(at) = peer.armed {
            self.timers.remove(&(at, slot));
        }
        self.out.counters[MeshCount::DroppedQueueAbandoned] += peer.traffic.queue.len() as u64;
        if peer.admission.reported_up {
            self.out.tell(MeshEvent::SessionDown(peer.node));
        }
        // A peer that never got a packet through has no streams.
        if peer.schedule.last_received().is_some() {
            self.out.notice(Notice::Cut(peer.node, reason));
        }
    }

    /// Starts a handshake with a peer that has no session.
    ///
    /// # Errors
    /// If the peer is unknown or has no known address.
    pub fn connect(&mut self, now: Now, node: &NodeId) -> Result<(), MeshError> {
        let slot = self.slot(node)?;
        self.refresh(slot, now);
        self.want_session(slot, now)
    }

    /// Whether data can be sent to `node` now.
    pub fn has_session(&self, node: &NodeId) -> bool {
        self.peer(node).is_some_and(|peer| peer.schedule.has_session())
    }

    /// Whether a connection to `node` may be opened now. A process that continues connections of an
    /// earlier one waits until the peer knows that, so that the peer does not cut them.
    pub fn may_connect(&self, node: &NodeId) -> bool {
        self.peer(node).is_some_and(|peer| {
            let is_known = !self.local.continues || peer.admission.showing.is_acknowledged();
            peer.schedule.has_session() && is_known
        })
    }

    /// Sets whether this process continues the connections of earlier ones, as peers are told.
    pub fn set_continues(&mut self, continues: bool) {
        self.local.continues = continues;
    }

    /// Round-trip time of the last handshake with `node`.
    pub fn handshake_rtt(&self, node: &NodeId) -> Option<Duration> {
        self.peer(node)?.handshake_rtt
    }

    /// The address of `node`: the proven endpoint, else the first hint.
    pub fn endpoint(&self, node: &NodeId) -> Option<SocketAddr> {
        self.peer(node)?.candidates().first().map(|route| route.remote)
    }

    /// The node with this inner address.
    pub fn node_at(&self, address: &Ipv6Addr) -> Option<NodeId> {
        self.peers.get(self.peers.of_address(address)?).map(|peer| peer.node)
    }

    /// The address under which the streams of a known node are kept.
    pub fn address_of(&self, node: &NodeId) -> Result<Ipv6Addr, MeshError> {
        self.peer(node).map(|peer| peer.address).ok_or(MeshError::UnknownPeer(*node))
    }

    /// The peers whose streams are kept under the address of an earlier key: that address, and that
    /// of the current key.
    pub fn moved(&self) -> Vec<(Ipv6Addr, Ipv6Addr)> {
        let all = self.peers.iter().map(|(_, peer)| (peer.address, peer.inner.ip()));
        all.filter(|(first, present)| first != present).collect()
    }

    /// The verified credential of an admitted peer.
    pub fn credential(&self, node: &NodeId) -> Option<Arc<Credential>> {
        self.peer(node).filter(|peer| peer.admission.admitted)?.admission.credential.clone()
    }

    /// The verified credential of a peer, admitted or not, as last presented or passed in here.
    pub fn known_credential(&self, node: &NodeId) -> Option<Arc<Credential>> {
        self.peer(node)?.admission.credential.clone()
    }

    /// All peers, ordered by node; the fields about streams are empty.
    pub fn status(&self, now: Instant) -> Vec<PeerStatus> {
        let since = |at: Option<Instant>| at.map(|at| now.saturating_duration_since(at));
        let status = |peer: &Peer| PeerStatus {
            node: peer.node,
            name: peer.admission.credential.as_ref().map(|credential| credential.name.clone()),
            address: peer.inner.ip(),
            endpoint: peer.endpoint.map(|route| route.remote),
            admitted: peer.admission.admitted,
            session: peer.schedule.has_session(),
            last_handshake: since(peer.schedule.session_since()),
            last_received: since(peer.schedule.last_received()),
            rx_bytes: peer.traffic.rx_bytes,
            tx_bytes: peer.traffic.tx_bytes,
            queued: peer.traffic.queue.len(),
            quic_rtt: None,
            streams: 0,
            secret_number: peer.secret.number,
        };
        self.peers.iter().map(|(_, peer)| status(peer)).collect()
    }

    fn peer(&self, node: &NodeId) -> Option<&Peer> {
        self.peers.get(self.peers.of_node(node)?)
    }

    fn slot(&self, node: &NodeId) -> Result<Slot, MeshError> {
        if self.is_me(node) {
            return Err(MeshError::OwnNode(*node));
        }
        self.peers.of_node(node).ok_or(MeshError::UnknownPeer(*node))
    }

    /// A number from 0 to 1.
    fn jitter(&mut self) -> f64 {
        self.rng.random()
    }
}

/// Converts IPv4-mapped addresses, so that each address has a single form.
pub fn canonical(address: &SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests;
