//! The daemon's own decision code, driven as the daemon drives it. The only module that uses the
//! interface of [`NodeCore`].
//!
//! Other modules identify nodes by number; this one uses NodeIds.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use meshport_config::{
    Credential, Endpoint, NodeId, RecordKey, Revocation, Revocations, ServiceName, ServiceSettings,
    Settings, UnixSeconds,
};
use meshport_core::connect::ConnectConfig;
use meshport_core::counter_hash::mix;
use meshport_core::health::{HealthConfig, Outcome, Question};
use meshport_core::node::{CoreConfig, Event, NodeCore, ServiceConfig};
use meshport_core::reach::OwnEndpoints;
use meshport_daemon::report::onlooker::Diary;
use meshport_discovery::{Directory, DiscoveryConfig, LocalNode, Memo, OriginState, Setup};

use crate::scenario::{Tuning, service};

mod seen;

pub(crate) use seen::Beside;

pub(crate) use meshport_core::connect::{Action, Connect, Kind, SearchContext, Searches};
pub(crate) use meshport_core::drift::Leave;
pub(crate) use meshport_core::evidence::{Attempted, Verdict};
pub(crate) use meshport_core::ledger::{Cut, End, Ledger, SessionId, Side, Traffic};
pub(crate) use meshport_core::route::{Candidate, Line, Route};

/// A node's identity and the initial state of its process.
pub(crate) struct Birth<'a> {
    pub(crate) credential: &'a Credential,
    pub(crate) record_key: &'a RecordKey,
    pub(crate) settings: &'a Settings,
    pub(crate) tuning: Tuning,
    /// Whether it hosts an instance.
    pub(crate) hosts: bool,
    pub(crate) generation: u64,
    pub(crate) seed: [u8; 32],
    /// Shared cache of verified signatures; without it this node verifies everything itself.
    pub(crate) memo: Option<Memo>,
    pub(crate) now: Instant,
}

/// The sessions of a line that a node resets.
#[derive(Debug)]
pub(crate) struct Reset {
    pub(crate) line: Line,
    pub(crate) how: Cut,
    /// Whether those that the local instance serves to other nodes end too.
    pub(crate) served: bool,
    pub(crate) why: &'static str,
}

/// An action or a message of a node.
#[derive(Debug)]
pub(crate) enum Wish {
    /// A gossip datagram.
    Send(NodeId, Vec<u8>),
    /// A probe of the local instance.
    Ask(Question),
    /// The route changed; whether its first candidate did.
    Route { first_changed: bool },
    /// Resets sessions.
    Reset(Reset),
    /// Some sessions may end when quiet.
    Move(Leave),
    /// The state of the local instance changed.
    Own(OriginState),
    /// Where a node may be reached.
    Peer(NodeId, Option<SocketAddr>),
    /// A node is no longer known.
    Release(NodeId),
    /// A node came or went.
    Member(NodeId, bool),
    /// A path to a node has fallen silent.
    Silent(NodeId),
    /// Long packets for a node are to be split, or no longer.
    Split(NodeId, bool),
    /// The node found another one silent and suspects it.
    Suspect(NodeId),
    /// A new revocation.
    Revoked(Revocation),
    /// The node rejected a message.
    Ignored(String),
}

/// The decisions of one node.
pub(crate) struct Brain {
    core: NodeCore,
    service: ServiceName,
    patience: ConnectConfig,
    /// The addresses of its machine.
    endpoints: Vec<SocketAddr>,
    /// The events so far, if the node is observed.
    diary: Option<Box<Diary>>,
}

impl Brain {
    pub(crate) fn new(birth: Birth<'_>) -> Self {
        let service = service();
        let settings = &birth.settings.services[&service];
        let health = birth.hosts.then(|| HealthConfig::from(&settings.health));
        let config = ServiceConfig {
            policy: settings.into(),
            weights: settings.into(),
            damping: birth.tuning.damping(),
            drift: settings.into(),
            health,
        };
        let mut discovery = DiscoveryConfig::from(&birth.settings.discovery);
        birth.tuning.apply(&mut discovery);
        let discovery = Setup { memo: birth.memo, ..discovery.into() };
        let config =
            CoreConfig { discovery, services: BTreeMap::from([(service.clone(), config)]) };
        let me = LocalNode {
            credential: birth.credential.clone(),
            record_key: birth.record_key.clone(),
        };
        let mut core = NodeCore::new(config, me, birth.generation, birth.seed, birth.now);
        core.set_fallback(&service, fallback(settings), birth.now);
        let patience = settings.into();
        Self { core, service, patience, endpoints: Vec::new(), diary: None }
    }

    /// Loads what an earlier process saved.
    pub(crate) fn restore(&mut self, saved: &[u8], now: Instant, wall: UnixSeconds) {
        self.core.restore(saved, now, wall).expect("what a node saved it can read");
    }

    pub(crate) fn restore_revocations(&mut self, all: Revocations, now: Instant) {
        self.core.restore_revocations(all, now);
    }

    /// Handles a revocation from the operator.
    pub(crate) fn revoke(&mut self, revocation: &Revocation, now: Instant) {
        self.core.handle_revocation(revocation, now).expect("the authority has signed it");
    }

    pub(crate) fn introduce(&mut self, at: Vec<SocketAddr>, seeds: Vec<NodeId>, now: Instant) {
        self.set_endpoints(at, now);
        self.core.set_seeds(seeds, now);
    }

    pub(crate) fn set_endpoints(&mut self, at: Vec<SocketAddr>, now: Instant) {
        self.endpoints.clone_from(&at);
        self.core.set_endpoints(OwnEndpoints::Guessed(at), now);
    }

    /// A peer reports the address at which it sees this node.
    pub(crate) fn sight(&mut self, by: NodeId, at: SocketAddr, now: Instant) {
        let is_own = self.endpoints.contains(&at);
        self.core.handle_sight(by, at, is_own, now);
    }

    /// Applies the changes that a reload makes in a running daemon.
    pub(crate) fn configure(&mut self, settings: &Settings, now: Instant) {
        let settings = &settings.services[&self.service];
        self.core.set_policy(&self.service, settings.into(), settings.into(), now);
        self.core.set_health(&self.service, HealthConfig::from(&settings.health), now);
        self.core.set_drift(&self.service, settings.into(), now);
        self.core.set_fallback(&self.service, fallback(settings), now);
        self.patience = settings.into();
    }

    pub(crate) fn datagram(&mut self, from: NodeId, bytes: &[u8], now: Instant, wall: UnixSeconds) {
        self.core.handle_datagram(from, bytes, now, wall);
    }

    pub(crate) fn wants_credential(&mut self, peer: &NodeId, now: Instant) -> bool {
        self.core.wants_credential(peer, now)
    }

    pub(crate) fn session(&mut self, peer: NodeId, up: bool, now: Instant) {
        self.core.handle_session(peer, up, now);
    }

    pub(crate) fn credential(&mut self, peer: &Credential, now: Instant, wall: UnixSeconds) {
        self.core.handle_credential(peer, now, wall);
    }

    pub(crate) fn outcome(&mut self, question: Question, outcome: Outcome, now: Instant) {
        self.core.handle_outcome(&self.service, question, outcome, now);
    }

    pub(crate) fn busy(&mut self, lines: BTreeSet<Line>, now: Instant) {
        self.core.handle_busy(lines, now);
    }

    /// A peer has not acknowledged the long packets of sessions.
    pub(crate) fn unacknowledged(&mut self, peer: NodeId, now: Instant) {
        self.core.handle_unacknowledged(peer, now);
    }

    /// Handles the findings of sessions.
    pub(crate) fn verdicts(&mut self, verdicts: Vec<Attempted>, now: Instant) {
        let service = self.service.clone();
        self.core.handle_verdicts(&service, verdicts, now);
    }

    /// Tells how many sessions each line has, if asked.
    pub(crate) fn counts(&mut self, open: impl Fn(&Line) -> u64, now: Instant) {
        self.core.handle_counts(|_, line| open(line), now);
    }

    /// Starts a client's search for an instance that answers.
    pub(crate) fn search(&self, ticket: u64, now: Instant) -> Connect {
        let route = Arc::clone(self.route());
        let mut connect = Connect::new(self.patience.clone(), route, ticket, now);
        // A client of an apiserver sends its TLS hello immediately.
        connect.handle_kind(Kind::Tls, now);
        connect
    }

    pub(crate) fn timeout(&mut self, now: Instant, wall: UnixSeconds) {
        self.core.handle_timeout(now, wall);
    }

    pub(crate) fn leave(&mut self, now: Instant) {
        self.core.leave(now);
    }

    /// The next action.
    pub(crate) fn poll(&mut self, now: Instant) -> Option<Wish> {
        if let Some(event) = self.core.poll_event() {
            if let Some(diary) = &mut self.diary {
                diary.note(&self.core, &event, now);
            }
            return Some(match event {
                Event::Route { change, .. } => Wish::Route { first_changed: change.is_some() },
                Event::Reset { line, how, served, why, .. } => {
                    Wish::Reset(Reset { line, how, served, why })
                }
                Event::Move { leave, .. } => Wish::Move(leave),
                Event::Own { state, .. } => Wish::Own(state),
                // The mesh tries all endpoints. Here each node has one address; the one peers saw
                // most recently is last.
                Event::Peer { node, endpoints, .. } => Wish::Peer(node, endpoints.last().copied()),
                Event::Member { node, up } => Wish::Member(node, up),
                // Simulated sessions have no tunnel and no pending connection, and none is denied.
                // All nodes run the same version.
                Event::Silent(node) => Wish::Silent(node),
                Event::Split { node, on } => Wish::Split(node, on),
                Event::Forgotten(node) => Wish::Release(node),
                Event::Revived(_)
                | Event::Denied { .. }
                | Event::Offered { .. }
                | Event::Unknown { .. } => return self.poll(now),
                Event::Suspected(node) => Wish::Suspect(node),
                Event::Revoked(revocation) => Wish::Revoked(revocation),
                Event::Ignored { reason, .. } => Wish::Ignored(reason),
            });
        }
        self.transmit().or_else(|| {
            let probe = self.core.poll_probe(now);
            probe.map(|(_, question)| Wish::Ask(question))
        })
    }

    /// The next gossip datagram, ahead of other requests.
    pub(crate) fn transmit(&mut self) -> Option<Wish> {
        let transmit = self.core.poll_transmit()?;
        Some(Wish::Send(transmit.to, transmit.payload))
    }

    /// The next time at which it needs a call.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.core.poll_timeout()
    }

    pub(crate) fn route(&self) -> &Arc<Route> {
        self.core.route(&self.service).expect("every node uses the service")
    }

    /// The time since which the first origin has been first.
    pub(crate) fn preferred_since(&self) -> Option<Instant> {
        self.core.preferred_since(&self.service)
    }

    /// The ticket of a session of `client`; `turn` counts the sessions of this node.
    pub(crate) fn ticket(&self, turn: u64, client: u64) -> u64 {
        self.route().draw().ticket(turn, || mix(client))
    }

    pub(crate) fn directory(&self) -> &Directory {
        self.core.discovery().directory()
    }

    /// The counters of its discovery.
    #[cfg(test)]
    pub(crate) fn counters(&self) -> &meshport_discovery::Counters {
        self.core.discovery().counters()
    }

    pub(crate) fn paths(&self) -> usize {
        self.core.discovery().paths().len()
    }

    pub(crate) fn snapshot(&self) -> Vec<u8> {
        self.core.discovery().snapshot()
    }

    pub(crate) fn generation(&self) -> u64 {
        self.core.discovery().generation()
    }
}

/// Addresses of a service outside the mesh. Names are not resolved: each counts as one address.
fn fallback(settings: &ServiceSettings) -> Vec<SocketAddr> {
    let named = |(index, endpoint): (usize, &Endpoint)| {
        let last = u8::try_from(index + 1).unwrap_or(u8::MAX);
        let made_up = SocketAddr::from(([192, 0, 2, last], endpoint.port()));
        endpoint.socket_addr().unwrap_or(made_up)
    };
    settings.fallback.iter().enumerate().map(named).collect()
}
