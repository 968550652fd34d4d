//! Builds the view of a node outside a daemon, as in the simulator, which runs a [`NodeCore`] too.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use meshport_config::{Credential, MeshSecret, NodeId, ServiceName, UnixSeconds};
use meshport_core::history::{Counts, History};
use meshport_core::journal::{Journal, Kind};
use meshport_core::names;
use meshport_core::node::{Event, NodeCore};
use meshport_core::route::{Line, Policy};

use super::{LocalState, Peer, Reporter, ServiceFacts, change, line, member, name};
use crate::admin::explain::LineSessions;
use crate::admin::view::{SessionCounts, View};
use crate::identity::CurrentIdentity;
use crate::sessions::registry::Sessions;

/// The events of a node and its clients since its process began.
#[derive(Debug, Clone)]
pub struct Diary {
    journal: Journal,
    history: History,
}

impl Diary {
    /// For a process that starts now.
    pub fn new(now: Instant) -> Self {
        Self { journal: Journal::default(), history: History::new(now) }
    }

    /// Records an event of a core, as the daemon does.
    pub fn note(&mut self, core: &NodeCore, event: &Event, now: Instant) {
        let journal = &mut self.journal;
        match event {
            Event::Route { service, change: Some(it), .. } => {
                journal.note_service(Kind::Route, service, &change(core, it), it.at);
            }
            Event::Own { service, state, detail } => {
                let said = format!("{} is {state}: {detail}", names::local_instance(service));
                journal.note_service(Kind::Instance, service, &said, now);
            }
            Event::Member { node, up } => {
                let (kind, said) = member(core, node, *up);
                journal.note(kind, name(core, node), said, now);
            }
            Event::Revoked(revocation) => {
                journal.note(
                    Kind::Revoked,
                    revocation.revoked.to_string(),
                    "by the authority",
                    now,
                );
            }
            _ => {}
        }
    }

    /// Records that this many sessions are reset, and why.
    pub fn note_reset(&mut self, core: &NodeCore, reset: &Reset<'_>, now: Instant) {
        let said = format!("{} to {}: {}", reset.sessions, line(core, &reset.line), reset.why);
        self.journal.note_service(Kind::Reset, reset.service, &said, now);
    }

    /// Takes the counters of this second, as [`History::handle_counts`].
    pub fn count(&mut self, counts: impl FnOnce() -> Counts, now: Instant) {
        self.history.handle_counts(counts, now);
    }
}

/// Sessions that were reset.
#[derive(Debug)]
pub struct Reset<'a> {
    /// The service.
    pub service: &'a ServiceName,
    /// The line.
    pub line: Line,
    /// How many sessions.
    pub sessions: u64,
    /// Why.
    pub why: &'a str,
}

/// A node, with facts that its core does not have.
#[derive(Debug)]
pub struct Onlooker<'a> {
    /// The node's credential.
    pub credential: &'a Arc<Credential>,
    /// Start of its process.
    pub started: Instant,
    /// Start of its process by its wall clock.
    pub started_at: UnixSeconds,
    /// The address it is reached at.
    pub mesh_listen: SocketAddr,
    /// The service that is shown.
    pub service: ServiceName,
    /// Addresses for its clients.
    pub listen: Vec<SocketAddr>,
    /// How it chooses origins.
    pub policy: Policy,
    /// Address of its own instance, if it has one.
    pub origin: Option<String>,
    /// The nodes with which it has a tunnel.
    pub tunnels: BTreeSet<NodeId>,
    /// The sessions of its clients.
    pub sessions: SessionCounts,
    /// Sessions of other nodes that its instance serves.
    pub served: u64,
    /// The events until now.
    pub diary: &'a Diary,
    /// Whether it has left.
    pub is_leaving: bool,
}

impl Onlooker<'_> {
    /// The node's view. `open` gives its clients' open sessions on a line.
    pub fn view(&self, core: &NodeCore, open: impl Fn(&Line) -> u64, now: Instant) -> View {
        let state = &self.state();
        let reporter = Reporter { core, state };
        let session = || Peer { session: true, ..Peer::default() };
        let peers = self.tunnels.iter().map(|node| (*node, session())).collect();
        let mut view = reporter.view_beside(&peers, &reporter.secret_alone(), now);
        // Bytes and times are not simulated.
        view.stats.clear();
        for service in view.services.iter_mut().filter(|it| it.name == self.service) {
            let candidates = core.route(&self.service).map_or(&[][..], |it| &it.candidates);
            for (row, candidate) in service.origins.iter_mut().zip(candidates) {
                row.sessions = open(&candidate.origin.line);
            }
            let lines = service.origins.iter().filter(|row| row.sessions > 0);
            let lines = lines.map(|row| LineSessions { who: row.who.clone(), open: row.sessions });
            service.lines = lines.collect();
            service.sessions = self.sessions;
            if let Some(offering) = &mut service.offering {
                offering.sessions = self.served;
            }
        }
        view
    }

    fn state(&self) -> LocalState {
        // This is not a real secret, and none is shown.
        let secrets = MeshSecret::from_bytes([0; 32]).into();
        let identity = CurrentIdentity::of(self.credential.clone(), secrets);
        let facts = ServiceFacts {
            listen: self.listen.clone(),
            policy: self.policy.clone(),
            origin: self.origin.clone(),
            limits: None,
        };
        let services = BTreeMap::from([(self.service.clone(), facts)]);
        let mut state =
            LocalState::beside(identity, self.mesh_listen, &Sessions::default(), services);
        state.process.started = self.started;
        state.process.started_at = self.started_at;
        state.history = self.diary.history.clone();
        state.journal = self.diary.journal.clone();
        state.process.is_leaving = self.is_leaving;
        state
    }
}
