//! The discovery of one node: the type the daemon and the simulator drive.
//!
//! It consists of parts that own their state, each in its own file. [`Discovery`] itself does what
//! involves several of them: its methods are here and in `admission`, `exchange`, `items`, `leaf`,
//! `membership`, `revoke` and `rounds`.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use meshport_config::{Credential, NodeId, ServiceName, UnixSeconds};

use crate::attach::Attach;
use crate::config::{DiscoveryConfig, Setup};
use crate::counters::{Count, Counters};
use crate::dice::Dice;
use crate::directory::{Directory, Entry, Liveness};
use crate::local::{LocalRecord, Urgency};
use crate::paths::{PathUse, Paths};
use crate::state::{Life, OriginState};
use crate::swim::Swim;
use crate::wire::{MAX_ASKED_SERVICES, Message};

mod admission;
mod clock;
mod doubts;
mod ended;
mod exchange;
mod gossip;
mod items;
mod leaf;
mod leaves;
mod membership;
mod monitor;
mod outbox;
mod peers;
mod revoke;
mod rounds;
mod trust;

use clock::Clock;
use doubts::Doubts;
use ended::Ended;
use gossip::Gossip;
use leaves::Leaves;
use monitor::Monitor;
use outbox::Outbox;
use peers::Peers;
use trust::Trust;

pub use crate::local::LocalNode;
pub use leaves::MAX_LEAVES;
pub use outbox::{Event, MAX_EVENTS, MAX_TRANSMITS, Transmit};

/// Membership, directory, dissemination and path measurement of one node, without I/O or clock.
///
/// Inputs are the `handle_*` and `set_*` methods. After any of them, and after [`Self::leave`] and
/// [`Self::restore`], drain [`Self::poll_transmit`] and [`Self::poll_event`] until they return
/// nothing, then read [`Self::poll_timeout`] again and call [`Self::handle_timeout`] at that time
/// or as soon after it as possible. `now` must not go backwards. The same seed and the same inputs
/// give the same outputs.
///
/// Datagrams must come from the mesh, which proves the sender's node id; nodes without a known
/// credential are ignored, so pass every admitted credential to [`Self::handle_credential`] first.
#[derive(Debug)]
pub struct Discovery {
    config: DiscoveryConfig,
    dice: Dice,
    peers: Peers,
    local: LocalRecord,
    trust: Trust,
    monitor: Monitor,
    gossip: Gossip,
    swim: Swim,
    doubts: Doubts,
    /// Present on a leaf only.
    attach: Option<Attach>,
    leaves: Leaves,
    ended: Ended,
    outbox: Outbox,
    clock: Clock,
}

impl Discovery {
    /// A node that knows no others yet. `generation` must be greater than in any earlier run of
    /// this node. `seed` drives all random choices.
    pub fn new(
        setup: impl Into<Setup>,
        me: LocalNode,
        generation: u64,
        seed: [u8; 32],
        now: Instant,
    ) -> Self {
        let Setup { config, leaf_of, memo } = setup.into();
        let config = config.sanitized();
        let node = me.credential.node;
        let dice = Dice::new(seed, b'd');
        let life = Life { generation, renewal: 0 };
        let mut discovery = Self {
            peers: Peers::new(node, me.credential.site.clone()),
            trust: Trust::new(me.credential.mesh, memo),
            monitor: Monitor::new(&config, seed),
            local: LocalRecord::new(me, generation, config.publish_interval, now),
            swim: Swim::new(&config, node, life, seed),
            gossip: Gossip::new(&config, now),
            doubts: Doubts::default(),
            attach: leaf_of.map(|mut services| {
                services.truncate(MAX_ASKED_SERVICES);
                Attach::new(services, now)
            }),
            leaves: Leaves::default(),
            ended: Ended::default(),
            outbox: Outbox::default(),
            clock: Clock::new(now),
            dice,
            config,
        };
        discovery.peers.enter(&discovery.local.record(), life, now);
        if discovery.attach.is_none() {
            discovery.local.want(Urgency::Rumour, Duration::ZERO, now);
        }
        discovery
    }

    /// A datagram came from an admitted peer.
    pub fn handle_datagram(&mut self, from: NodeId, bytes: &[u8], now: Instant, wall: UnixSeconds) {
        self.set_wall(wall, now);
        self.outbox.counters[Count::ReceivedPackets] += 1;
        self.outbox.counters[Count::ReceivedBytes] += bytes.len() as u64;
        let known = self.peers.is_known(&from) || self.is_leaf(&from);
        if from == self.peers.me || !known {
            self.outbox.counters[Count::DroppedUnknownSender] += 1;
            return;
        }
        self.peers.contacts.heard(from, now);
        match Message::decode(bytes) {
            Ok(message) => self.take_message(from, message, now),
            Err(bad) => self.take_bad(from, bad, now),
        }
        self.settle(now);
    }

    /// A WireGuard session with a peer exists, or has ended.
    pub fn handle_session(&mut self, node: NodeId, up: bool, now: Instant) {
        if node == self.peers.me {
            return;
        }
        self.peers.handle_session(node, up, now);
        self.monitor.handle_session(node, up, now);
        if up && !self.peers.is_member(&node) && self.attach.is_none() && !self.local.has_left() {
            self.gossip.seeds.wake(&node, now);
            // Its credential most likely arrived just before and was answered in the same way.
            if self.peers.is_known(&node) && !self.gossip.seeds.contains(&node) {
                self.nudge(node, now);
            }
        }
        self.settle(now);
    }

    /// Whether a peer that sends datagrams is unknown here and its credential is needed: the mesh
    /// admitted it before it was forgotten, or while its credential had expired by a clock that has
    /// been corrected since. True for each peer once in a few seconds only.
    pub fn wants_credential(&mut self, peer: &NodeId, now: Instant) -> bool {
        *peer != self.peers.me
            && !self.peers.is_known(peer)
            && !self.is_leaf(peer)
            && self.peers.contacts.allow_introduction(*peer, now)
    }

    /// The mesh has admitted a peer with this credential.
    pub fn handle_credential(&mut self, credential: &Credential, now: Instant, wall: UnixSeconds) {
        self.set_wall(wall, now);
        self.take_admitted(credential, now);
        self.settle(now);
    }

    /// Does everything due at `now`.
    pub fn handle_timeout(&mut self, now: Instant, wall: UnixSeconds) {
        self.set_wall(wall, now);
        if let Some(stall) = self.clock.stall(self.poll_timeout(), now) {
            self.outbox.counters[Count::Stalls] += 1;
            self.swim.stalled(stall);
            self.monitor.stalled(stall);
        }
        if self.attach.is_none() {
            self.swim.handle_timeout(&self.peers, now);
        }
        if !self.local.has_left() {
            self.run_rounds(now);
        }
        self.settle(now);
    }

    /// The nodes to announce to as long as this node runs, at most [`crate::MAX_SEEDS`]; replaces
    /// earlier ones. The mesh has their addresses.
    pub fn set_seeds(&mut self, nodes: Vec<NodeId>, now: Instant) {
        let others: Vec<_> = nodes.into_iter().filter(|node| *node != self.peers.me).collect();
        self.outbox.counters[Count::DroppedOwn] += self.gossip.seeds.set(&others, now) as u64;
        self.look_for_members(now);
        self.settle(now);
    }

    /// Sets the addresses at which this node can be reached, at most [`crate::MAX_ENDPOINTS`].
    pub fn set_endpoints(&mut self, endpoints: Vec<SocketAddr>, now: Instant) {
        self.outbox.counters[Count::DroppedOwn] +=
            u64::from(!self.local.set_endpoints(endpoints, now));
        self.settle(now);
    }

    /// Whether others see this node at addresses that are not its own.
    pub fn set_behind_nat(&mut self, behind_nat: bool, now: Instant) {
        self.local.set_behind_nat(behind_nat, now);
        self.settle(now);
    }

    /// Whether others see this node at addresses that are not its own, as it was last set.
    pub fn is_behind_nat(&self) -> bool {
        self.local.is_behind_nat()
    }

    /// Sets the release of this node, bounded like [`crate::NodeState::release`]. Call it before
    /// the first record is published.
    pub fn set_release(&mut self, release: &str) {
        self.local.set_release(release);
    }

    /// Whether no direct path to a node can be expected: both it and this node are behind NAT.
    pub fn both_behind_nat(&self, node: &NodeId) -> bool {
        let entry = self.peers.get(node);
        let other = entry.and_then(Entry::node_state).is_some_and(|state| state.behind_nat);
        other && self.is_behind_nat()
    }

    /// The state of this node's instance of a service. Urgent if it changed. Ignored, with an
    /// event, if this node's credential does not allow the service: others would ignore it too.
    pub fn set_service(&mut self, service: ServiceName, state: OriginState, now: Instant) {
        if !self.local.credential().roles.may_offer(&service) {
            self.outbox.counters[Count::DroppedOwn] += 1;
            let reason = format!("this node's credential lacks the role origin:{service}");
            self.outbox.report(Event::Ignored { node: self.peers.me, reason });
        } else if !self.local.set_service(service, Some(state), now) {
            self.outbox.counters[Count::DroppedOwn] += 1;
        }
        self.settle(now);
    }

    /// This node stops offering a service.
    pub fn remove_service(&mut self, service: &ServiceName, now: Instant) {
        self.local.set_service(service.clone(), None, now);
        self.settle(now);
    }

    /// Requests measurements of a path, and how often; none withdraws the request. Paths to all
    /// origins of all services are always measured at least at the idle rate.
    pub fn set_path_interest(&mut self, node: NodeId, usage: Option<PathUse>, now: Instant) {
        let usage = usage.filter(|_| node != self.peers.me);
        let taken = self.monitor.set_interest(node, usage);
        self.outbox.counters[Count::DroppedPaths] += u64::from(!taken);
        self.adjust_path(node, now);
        self.settle(now);
    }

    /// Active paths with overdue probes, for which [`Discovery::handle_delivery`] is useful.
    pub fn overdue_paths(&self) -> impl Iterator<Item = NodeId> {
        self.monitor.paths.overdue()
    }

    /// A peer has acknowledged data since its probes fell silent: silence counts only from now on.
    pub fn handle_delivery(&mut self, node: NodeId) {
        self.monitor.paths.handle_delivery(node);
    }

    /// Sessions find the path to a peer slow: it is probed with packets as long as theirs.
    pub fn doubt(&mut self, node: NodeId, now: Instant) {
        self.monitor.paths.doubt(node, now);
    }

    /// Long packets that sessions send to a peer are not acknowledged: the path's MTU may have
    /// dropped, which only their sender notices. Probes the path, and notifies the peer, whose
    /// clients may be waiting for what was lost.
    pub fn handle_unacknowledged(&mut self, node: NodeId, now: Instant) {
        if self.peers.get(&node).is_some() && self.monitor.suspect(node, now) {
            self.adjust_path(node, now);
        }
        self.monitor.paths.doubt(node, now);
        // A leaf serves no other node, so no client is waiting at the peer.
        if self.attach.is_none() {
            self.send(node, &Message::Unacknowledged);
        }
        self.settle(now);
    }

    /// Leaves: urgent news to all connected peers, then the end of membership. Keep driving for a
    /// second or so, so that lost farewells are repeated; nothing else happens after that.
    pub fn leave(&mut self, now: Instant) {
        if self.local.has_left() {
            return;
        }
        self.local.leave(now);
        self.settle(now);
        self.swim.leave(&self.peers, now);
        self.settle(now);
    }

    /// Whether this node has announced that it leaves.
    pub fn has_left(&self) -> bool {
        self.local.has_left()
    }

    /// The next datagram to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.outbox.poll_transmit()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.outbox.poll_event()
    }

    /// The directory of all nodes.
    pub fn directory(&self) -> &Directory {
        &self.peers.directory
    }

    /// The measured paths.
    pub fn paths(&self) -> &Paths {
        &self.monitor.paths
    }

    /// Counters of everything done and dropped since the start.
    pub fn counters(&self) -> &Counters {
        &self.outbox.counters
    }

    /// This node's generation. It was raised above the one given at the start if the mesh
    /// remembered a later one; the next start must use a greater one than this.
    pub fn generation(&self) -> u64 {
        self.local.generation()
    }

    fn take_message(&mut self, from: NodeId, message: Message<'_>, now: Instant) {
        if self.is_leaf(&from) {
            return self.take_from_leaf(from, message, now);
        }
        match message {
            Message::Probe(nonce) => {
                self.monitor.handle_probe(from, now);
                self.send(from, &Message::Echo(nonce));
            }
            Message::Echo(nonce) => self.monitor.handle_echo(from, nonce, now),
            Message::WideProbe(wide) => self.send(from, &Message::WideEcho(wide)),
            Message::WideEcho(wide) => self.monitor.paths.handle_wide_echo(from, wide.nonce, now),
            Message::SplitProbe(wide) => self.send(from, &Message::SplitEcho(wide)),
            Message::SplitEcho(wide) => self.monitor.paths.handle_split_echo(from, wide.nonce, now),
            Message::Unacknowledged => self.monitor.paths.doubt(from, now),
            _ if self.attach.is_some() => return self.take_as_leaf(from, message, now),
            Message::NewsSeen(revision) => self.take_seen(from, revision),
            _ if self.local.has_left() => {}
            Message::Swim(bytes) => self.take_swim(from, bytes, now),
            Message::Root(root) => self.take_root(from, root, now),
            Message::Same => self.gossip.sync.answered(),
            Message::Summary(digests) => self.take_summary(from, digests, now),
            Message::Haves(haves) => self.take_haves(from, &haves, now),
            Message::Want(wanted) => self.take_want(from, &wanted, now),
            Message::Items(items) => self.take_items(from, &items, items::Channel::Sync, now),
            Message::Rumours(items) => self.take_items(from, &items, items::Channel::Rumour, now),
            Message::News(item) => self.take_news(from, item, now),
            Message::Revoked(list) => self.take_revoked(from, &list, now),
            Message::Revocations(digest) => self.take_revocations(from, digest, now),
            // Only leaves ask, and this node is not one.
            Message::Ask(_) => self.outbox.counters[Count::DroppedLeaf] += 1,
        }
        let liveness = self.peers.get(&from).map(|entry| entry.liveness);
        let out_of_step = matches!(liveness, Some(Liveness::Down | Liveness::Unknown));
        if out_of_step && !self.local.has_left() {
            self.nudge(from, now);
        }
    }

    /// Encodes and queues a datagram.
    fn send(&mut self, to: NodeId, message: &Message<'_>) {
        if let Some(payload) = message.encode() {
            self.send_bytes(to, payload);
        } else {
            debug_assert!(false, "a datagram larger than its bound was made");
        }
    }

    fn send_bytes(&mut self, to: NodeId, payload: Vec<u8>) {
        // A lie about membership must not make this node talk to strangers.
        let known =
            self.peers.is_known(&to) || self.gossip.seeds.contains(&to) || self.is_leaf(&to);
        if known && to != self.peers.me {
            self.outbox.send(to, payload);
        } else {
            self.outbox.counters[Count::DroppedUnknownReceiver] += 1;
        }
    }
}

#[cfg(test)]
mod tests;
