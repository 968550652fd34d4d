//! A node: membership, the health of its local instances, and a route per service.
//!
//! To drive it: after any `handle_*` or command drain [`NodeCore::poll_transmit`] and
//! [`NodeCore::poll_event`], start the probes of [`NodeCore::poll_probe`], then sleep until
//! [`NodeCore::poll_timeout`] or the next input. Routes are recomputed in the call that delivers a
//! change, so events are never outdated.
//!
//! Bounds: services are those of the configuration (at most [`MAX_SERVICES`]); origins per service
//! at most [`MAX_ORIGINS`], nearest NodeId first beyond that; everything else is bounded by
//! [`Discovery`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use meshport_config::{
    Added, Credential, NodeId, NodeName, Revocation, Revocations, Role, ServiceName, SiteName,
    UnixSeconds,
};
use meshport_discovery::{
    Discovery, Event as Found, LocalNode, OriginState, PathUse, Rejected, Setup, Transmit,
};

use super::changes::{Change, Trigger};
use super::drift::DriftConfig;
use super::evidence::{Attempted, Verdict};
use super::health::{Health, HealthConfig};
use super::offered::Offered;
use super::reach::{OwnEndpoints, Reach};
use super::route::{self, Candidate, Damping, Line, PathView, Policy, Route, Weights};
use super::view::BrokenLines;

mod event;
mod local_instances;
mod offers;
mod service;
mod views;
mod watch;
mod wayback;

pub use self::event::Event;
use self::service::Service;
use self::watch::RelayWatch;
pub use self::wayback::{Destination, Known};

/// Services one daemon can use or offer.
pub const MAX_SERVICES: usize = 64;
/// Maximum origins of a service considered for a route. Control planes have three to seven; a
/// hundred times that still costs microseconds.
pub const MAX_ORIGINS: usize = 512;
/// Addresses outside the mesh per service.
pub const MAX_FALLBACK_ADDRESSES: usize = 16;

/// A node's use of one service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceConfig {
    /// How its sessions are spread.
    pub policy: Policy,
    /// The weights of origins.
    pub weights: Weights,
    /// How long it stays with its first origin.
    pub damping: Damping,
    /// How fast sessions move to better origins.
    pub drift: DriftConfig,
    /// How the local instance is probed, if this node hosts one.
    pub health: Option<HealthConfig>,
}

/// The parts of a node.
#[derive(Debug, Clone)]
pub struct CoreConfig {
    /// Settings of membership, records and path probes.
    pub discovery: Setup,
    /// The services it uses or offers.
    pub services: BTreeMap<ServiceName, ServiceConfig>,
}

/// Events for which an empty queue keeps its capacity.
const KEPT_EVENTS: usize = 64;

/// A node. See the module's doc for how to drive it.
#[derive(Debug)]
pub struct NodeCore {
    me: NodeId,
    name: NodeName,
    site: SiteName,
    discovery: Discovery,
    services: BTreeMap<ServiceName, Service>,
    /// Lines with sessions of this node, whose paths are probed closely.
    busy: BTreeSet<Line>,
    /// Nodes whose paths are probed.
    watched: BTreeMap<NodeId, PathUse>,
    relay_watch: RelayWatch,
    /// The services that a program on this machine offers.
    offered: Offered,
    /// Addresses of this node, as it knows them and as its peers see them.
    reach: Reach,
    /// Nodes whose measured paths are dead; no more than there are paths.
    silent: BTreeSet<NodeId>,
    /// Direct lines whose measured paths lose most packets.
    broken: BrokenLines,
    events: VecDeque<Event>,
    /// Whether an input of the routes has changed since they were chosen.
    stale: bool,
}

impl NodeCore {
    /// A node that knows no other nodes yet. `generation` must exceed that of every earlier start
    /// of this node; `seed` feeds all randomness.
    pub fn new(
        config: CoreConfig,
        me: LocalNode,
        generation: u64,
        seed: [u8; 32],
        now: Instant,
    ) -> Self {
        let (id, name, site) =
            (me.credential.node, me.credential.name.clone(), me.credential.site.clone());
        let mut discovery = Discovery::new(config.discovery, me, generation, seed, now);
        discovery.set_release(env!("CARGO_PKG_VERSION"));
        let mut core = Self {
            me: id,
            name,
            site,
            discovery,
            services: BTreeMap::new(),
            busy: BTreeSet::new(),
            watched: BTreeMap::new(),
            relay_watch: RelayWatch::new(now),
            offered: Offered::default(),
            reach: Reach::default(),
            silent: BTreeSet::new(),
            broken: BrokenLines::default(),
            events: VecDeque::new(),
            stale: true,
        };
        for (service, config) in config.services.into_iter().take(MAX_SERVICES) {
            core.insert_service(service, config, now);
        }
        core.settle(now);
        core
    }

    /// Adds a service, if there are fewer than [`MAX_SERVICES`].
    pub fn add_service(&mut self, name: ServiceName, config: ServiceConfig, now: Instant) {
        if self.services.len() < MAX_SERVICES {
            self.yield_to_settings(&name, now);
            self.insert_service(name, config, now);
            self.settle(now);
        }
    }

    fn insert_service(&mut self, name: ServiceName, config: ServiceConfig, now: Instant) {
        self.stale = true;
        let offers = config.health.is_some();
        let service = Service::new(config, now);
        self.services.insert(name.clone(), service);
        if offers {
            self.discovery.set_service(name, OriginState::Unknown, now);
        }
    }

    /// Changes how a service's sessions are spread.
    pub fn set_policy(
        &mut self,
        name: &ServiceName,
        policy: Policy,
        weights: Weights,
        now: Instant,
    ) {
        if let Some(service) = self.services.get_mut(name) {
            service.balance = service::Balance { policy, weights };
            service.memory = service.memory.forgotten();
            self.stale = true;
        }
        self.settle(now);
    }

    /// Sets a service's addresses outside the mesh, at most [`MAX_FALLBACK_ADDRESSES`].
    pub fn set_fallback(
        &mut self,
        name: &ServiceName,
        mut addresses: Vec<SocketAddr>,
        now: Instant,
    ) {
        addresses.truncate(MAX_FALLBACK_ADDRESSES);
        if let Some(service) = self.services.get_mut(name) {
            service.fallback = addresses;
            self.stale = true;
        }
        self.settle(now);
    }

    /// Handles a gossip datagram from an admitted peer.
    pub fn handle_datagram(&mut self, from: NodeId, bytes: &[u8], now: Instant, wall: UnixSeconds) {
        self.discovery.handle_datagram(from, bytes, now, wall);
        self.settle(now);
    }

    /// See [`Discovery::wants_credential`].
    pub fn wants_credential(&mut self, peer: &NodeId, now: Instant) -> bool {
        self.discovery.wants_credential(peer, now)
    }

    /// Handles that a tunnel to a node is up or has ended.
    pub fn handle_session(&mut self, node: NodeId, up: bool, now: Instant) {
        self.discovery.handle_session(node, up, now);
        if !up {
            self.reach.forget(&node);
            self.announce_reach(now);
        }
        self.settle(now);
    }

    /// Handles a credential that the mesh has verified.
    pub fn handle_credential(&mut self, credential: &Credential, now: Instant, wall: UnixSeconds) {
        self.discovery.handle_credential(credential, now, wall);
        self.settle(now);
    }

    /// Replaces this node's credential and announces only the services that the new one permits.
    pub fn set_credential(&mut self, credential: &Credential, now: Instant) {
        self.discovery.set_credential(credential, now);
        self.announce_services(credential, now);
    }

    /// Continues as `me`, whose credential names this node's previous key as its predecessor.
    pub fn succeed(&mut self, me: LocalNode, now: Instant) {
        let credential = me.credential.clone();
        self.me = credential.node;
        self.discovery.succeed(me, now);
        self.announce_services(&credential, now);
    }

    /// Handles what a service's sessions found out about lines.
    pub fn handle_verdicts(
        &mut self,
        service: &ServiceName,
        verdicts: impl IntoIterator<Item = Attempted>,
        now: Instant,
    ) {
        let name = service;
        let Some(service) = self.services.get_mut(name) else { return };
        for attempted in verdicts {
            let Attempted { line, verdict, .. } = attempted;
            if let (Verdict::Silent | Verdict::Outrun, Some(hop)) = (verdict, line.first_hop()) {
                self.discovery.doubt(hop, now);
            }
            let changed = service.handle_attempted(attempted, now);
            self.stale |= changed;
            if let (true, Verdict::Denied, Some(origin)) = (changed, verdict, line.origin()) {
                self.events.push_back(Event::Denied { service: name.clone(), origin });
            }
        }
        self.settle(now);
    }

    /// Lets some sessions of local clients move to the line they belong on; `open` counts the
    /// sessions on a line of a service. Does nothing before it is due.
    pub fn handle_counts(&mut self, open: impl Fn(&ServiceName, &Line) -> u64, now: Instant) {
        for (name, service) in &mut self.services {
            for leave in service.drift.handle_counts(|line| open(name, line), now) {
                self.events.push_back(Event::Move { service: name.clone(), leave });
            }
        }
    }

    /// Changes the pace at which sessions move.
    pub fn set_drift(&mut self, name: &ServiceName, config: DriftConfig, now: Instant) {
        if let Some(service) = self.services.get_mut(name) {
            service.drift.set_config(config);
            self.stale = true;
        }
        self.settle(now);
    }

    /// Handles the set of lines that carry sessions of this node.
    pub fn handle_busy(&mut self, busy: BTreeSet<Line>, now: Instant) {
        if self.busy != busy {
            self.busy = busy;
            self.stale = true;
            self.settle(now);
        }
    }

    /// Nodes with sessions whose paths are about to be declared dead without proof of delivery: see
    /// [`NodeCore::handle_delivery`].
    pub fn overdue_paths(&self) -> impl Iterator<Item = NodeId> {
        self.discovery.overdue_paths()
    }

    /// Handles that a node acknowledged session data after its probes went unanswered.
    pub fn handle_delivery(&mut self, node: NodeId) {
        self.discovery.handle_delivery(node);
    }

    /// Handles that a node does not acknowledge large packets of sessions.
    pub fn handle_unacknowledged(&mut self, node: NodeId, now: Instant) {
        self.discovery.handle_unacknowledged(node, now);
        self.settle(now);
    }

    /// Measures every path again after this machine was suspended or changed networks.
    pub fn wake(&mut self, now: Instant) {
        self.discovery.wake(now);
        self.settle(now);
    }

    /// Advances time.
    pub fn handle_timeout(&mut self, now: Instant, wall: UnixSeconds) {
        self.discovery.handle_timeout(now, wall);
        self.let_instances_be_late(now);
        self.let_offers_end(now);
        self.settle(now);
    }

    /// Sets the nodes to announce to until they are members.
    pub fn set_seeds(&mut self, nodes: Vec<NodeId>, now: Instant) {
        self.discovery.set_seeds(nodes, now);
    }

    /// Sets this node's addresses as known without asking peers.
    pub fn set_endpoints(&mut self, own: OwnEndpoints, now: Instant) {
        self.reach.set_own(own);
        self.announce_reach(now);
    }

    /// Handles a peer's report of this node's address; `is_own` if the address belongs to this
    /// machine.
    pub fn handle_sight(&mut self, by: NodeId, at: SocketAddr, is_own: bool, now: Instant) {
        self.reach.note(by, at, is_own);
        self.announce_reach(now);
    }

    /// How its peers see this node.
    pub const fn reach(&self) -> &Reach {
        &self.reach
    }

    fn announce_reach(&mut self, now: Instant) {
        self.discovery.set_behind_nat(self.reach.is_behind_nat(), now);
        self.discovery.set_endpoints(self.reach.endpoints(), now);
    }

    /// Restores what was known before a restart.
    ///
    /// # Errors
    /// The bytes are damaged; nothing was restored.
    pub fn restore(
        &mut self,
        bytes: &[u8],
        now: Instant,
        wall: UnixSeconds,
    ) -> Result<usize, meshport_discovery::DiscoveryError> {
        let restored = self.discovery.restore(bytes, now, wall)?;
        self.settle(now);
        Ok(restored)
    }

    /// Restores the revocations known to an earlier process.
    pub fn restore_revocations(&mut self, all: Revocations, now: Instant) {
        self.discovery.restore_revocations(all, now);
        self.settle(now);
    }

    /// Applies a revocation by the authority here and, through gossip, everywhere.
    ///
    /// # Errors
    /// [`Rejected`] if the authority of this mesh has not signed it.
    pub fn handle_revocation(
        &mut self,
        revocation: &Revocation,
        now: Instant,
    ) -> Result<Added, Rejected> {
        let added = self.discovery.handle_revocation(revocation, now)?;
        self.settle(now);
        Ok(added)
    }

    /// Announces that this node leaves. What [`NodeCore::poll_transmit`] returns afterwards should
    /// still be sent. Repeats a reset of the sessions on its own instance: a reset now also ends
    /// sessions of other nodes, which no longer learn the instance's state.
    pub fn leave(&mut self, now: Instant) {
        self.discovery.leave(now);
        let own = Line::Direct(self.me);
        for service in self.services.values_mut() {
            self.stale |= service.doomed.remove(&own).is_some();
        }
        self.settle(now);
    }

    /// The next datagram for the gossip port.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.discovery.poll_transmit()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front();
        // A restored directory causes one event per node, once; free that capacity.
        if self.events.is_empty() && self.events.capacity() > KEPT_EVENTS {
            self.events = VecDeque::new();
        }
        event
    }

    /// Time at which [`NodeCore::handle_timeout`] or [`NodeCore::poll_probe`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let services = self.services.values().flat_map(|service| {
            let health = service.health.as_ref().and_then(Health::poll_timeout);
            let (gain, cleared) = (service.poll_choice(), service.evidence.poll_timeout());
            [health, gain, cleared, service.drift.poll_timeout()].into_iter().flatten()
        });
        let (discovery, offered) = (self.discovery.poll_timeout(), self.offered.poll_timeout());
        let others = [discovery, offered, self.relay_watch.poll_timeout()];
        services.chain(others.into_iter().flatten()).min()
    }

    /// Membership and path probes.
    pub fn discovery(&self) -> &Discovery {
        &self.discovery
    }

    /// The current order of a service's origins.
    pub fn route(&self, service: &ServiceName) -> Option<&Arc<Route>> {
        self.services.get(service).map(|service| &service.route)
    }

    /// Time since which a service's first candidate has been first.
    pub fn preferred_since(&self, service: &ServiceName) -> Option<Instant> {
        self.services.get(service)?.memory.preferred.map(|(_, since)| since)
    }

    /// Time since which an origin has announced its instance's current state.
    pub fn state_since(&self, service: &ServiceName, node: &NodeId) -> Option<Instant> {
        self.services.get(service)?.states.get(node).map(|(_, since)| *since)
    }

    /// The last changes of the first choice, newest first.
    pub fn changes(&self, service: &ServiceName) -> impl Iterator<Item = &Change> {
        self.services.get(service).into_iter().flat_map(|service| service.changes.iter())
    }

    /// How often the first choice changed since the start, by cause.
    pub fn change_counts(
        &self,
        service: &ServiceName,
    ) -> impl Iterator<Item = (&'static str, u64)> {
        self.services.get(service).into_iter().flat_map(|service| service.changes.counts())
    }

    /// The penalty points of a line from sessions, see [`super::evidence`].
    pub fn evidence(&self, service: &ServiceName, line: &Line, now: Instant) -> f64 {
        self.services.get(service).map_or(0.0, |service| service.evidence.score(line, now))
    }

    /// The services of this node.
    pub fn services(&self) -> impl Iterator<Item = &ServiceName> {
        self.services.keys()
    }

    /// Processes discovery events, routes and watched paths until nothing changes.
    fn settle(&mut self, now: Instant) {
        while let Some(found) = self.discovery.poll_event() {
            self.handle_found(found);
        }
        for service in self.services.values_mut() {
            self.stale |= service.evidence.handle_timeout(now);
        }
        let waited = self.services.values().filter_map(Service::poll_choice);
        let waited = waited.chain(self.relay_watch.poll_timeout());
        if self.stale || waited.min().is_some_and(|due| due <= now) {
            self.stale = false;
            self.choose_routes(now);
            self.watch_paths(now);
        }
    }

    fn handle_found(&mut self, found: Found) {
        match found {
            Found::MemberUp(node) => {
                self.touch(&node);
                self.events.push_back(Event::Member { node, up: true });
            }
            Found::MemberDown(node) => {
                self.touch(&node);
                self.events.push_back(Event::Member { node, up: false });
            }
            Found::Forgotten(node) => {
                self.touch(&node);
                self.events.push_back(Event::Forgotten(node));
            }
            Found::MemberSuspected(node) => self.events.push_back(Event::Suspected(node)),
            Found::PeerWanted { node, endpoints, credential } => {
                self.touch(&node);
                self.events.push_back(Event::Peer { node, endpoints, credential });
            }
            Found::Revoked(revocation) => {
                self.stale = true;
                if let (Some(node), Some(by)) = (revocation.revoked.node(), revocation.successor())
                {
                    let busy = std::mem::take(&mut self.busy);
                    self.busy = busy.into_iter().map(|line| line.renamed(node, by)).collect();
                }
                self.events.push_back(Event::Revoked(revocation));
            }
            Found::Ignored { node, reason } => {
                self.events.push_back(Event::Ignored { node, reason });
            }
            Found::Unknown { from, what } => self.events.push_back(Event::Unknown { from, what }),
            Found::Split { node, on } => self.events.push_back(Event::Split { node, on }),
            // This only makes routes stale.
            Found::StateChanged(node) => self.touch(&node),
            Found::PathChanged(node) => {
                self.stale = true;
                self.note_path(node);
            }
        }
    }

    /// Reports dead paths that answer again.
    fn note_path(&mut self, node: NodeId) {
        match self.path_to(&node) {
            Some(PathView::Dead) => {
                if self.silent.insert(node) {
                    self.events.push_back(Event::Silent(node));
                }
            }
            Some(PathView::Up(_)) if self.silent.remove(&node) => {
                self.events.push_back(Event::Revived(node));
            }
            Some(_) => {}
            None => {
                self.silent.remove(&node);
            }
        }
    }

    /// Handles a change of a node. Only few nodes matter to routes: those that offer, or offered, a
    /// service of this node, and those whose paths are measured.
    fn touch(&mut self, node: &NodeId) {
        let entry = self.discovery.directory().get(node);
        let offers = entry.is_some_and(|entry| {
            entry.services().any(|(service, _)| self.services.contains_key(service))
        });
        let offered = self.services.values().any(|service| service.states.contains_key(node));
        let is_measured = self.discovery.paths().get(node).is_some();
        self.stale |= offers || offered || is_measured;
        if entry.is_some_and(|entry| entry.credential.roles.contains(&Role::Relay)) {
            self.relay_watch.want();
        }
    }

    fn choose_routes(&mut self, now: Instant) {
        let names: Vec<ServiceName> = self.services.keys().cloned().collect();
        let relays = self.relays();
        self.judge_loss();
        let left = self.discovery.has_left().then_some(Line::Direct(self.me));
        for name in names {
            let direct = self.direct_views(&name);
            let mut service = self.services.remove(&name).expect("the name comes from this map");
            let own = service.own_state();
            let (views, chosen) = self.choose_paths(&mut service, direct, &relays, now);
            let (route, memory) =
                route::choose(chosen, &service.balance.policy, &service.memory, now);
            let before = std::mem::replace(&mut service.memory, memory);
            let states = views::states(&service, &views, now);
            service.set_states(states, &self.me, now);
            service.views = views;
            let changed = route != *service.route;
            let (from, to) = (service.route.choice(), route.choice());
            let line = |candidate: &Candidate| candidate.origin.line;
            let choice_changed = from.map(line) != to.map(line);
            if choice_changed {
                let trigger = Trigger::of(&before, &route, now);
                service.changes.note(from, to, &service.views, trigger, now);
            }
            if changed {
                service.route = Arc::new(route);
            }
            // The route comes first: a search that sees a reset must already know its cause.
            if changed {
                let change = service.changes.iter().next().filter(|_| choice_changed).cloned();
                let (service, route) = (name.clone(), service.route.clone());
                self.events.push_back(Event::Route { service, route, change });
            }
            self.events.extend(service.judge(&name, &self.busy, left, now));
            self.services.insert(name.clone(), service);
            self.announce_change(&name, own, now);
        }
    }
}

#[cfg(test)]
mod tests;
