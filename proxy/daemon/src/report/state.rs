//! What a node knows of itself and of its clients, beside its core.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use meshport_config::{ServiceName, UnixSeconds};
use meshport_core::duplicates::Duplicates;
use meshport_core::findings::{EVENTS_NOT_POSTED, Finding, STATE_NOT_STORED};
use meshport_core::history::{Counts, History};
use meshport_core::inquiry::{CallBudget, Setting};
use meshport_core::journal::Journal;
use meshport_core::outbox::{Outbox, Receiver};
use meshport_core::route::Policy;
use meshport_core::unknown::Unknown;
use meshport_mesh::Mesh;
use meshport_state::{Identity, KnownRenewals};
use tokio::sync::watch;

use super::admin::AdminFacts;
use super::crowding::CrowdingLog;
use super::floods::Floods;
use super::rosters::Rosters;
use crate::admin::api::SettingChange;
use crate::audit::Audit;
use crate::clock;
use crate::expose::Exposures;
use crate::identity::CurrentIdentity;
use crate::renewal::state::Renewals;
use crate::sessions::ingress::SessionLimits;
use crate::sessions::registry::Sessions;
use crate::sessions::totals::SessionCount;
use crate::tcp::Host;
use crate::vip::board::Board;
use crate::wayback::WayBack;

/// See the module's description. Only the driver changes it.
#[derive(Debug)]
pub(crate) struct LocalState {
    /// This node's identity; only [`Driver::change_identity`] changes it.
    ///
    /// [`Driver::change_identity`]: crate::driver::Driver::change_identity
    pub(crate) identity: CurrentIdentity,
    pub(crate) process: ProcessFacts,
    pub(crate) sessions: Sessions,
    pub(crate) audit: Audit,
    pub(crate) duplicates: Duplicates,
    /// The members that send messages unknown to this version.
    pub(crate) unknown: Unknown,
    pub(crate) floods: Floods,
    pub(crate) crowding: CrowdingLog,
    pub(crate) services: BTreeMap<ServiceName, ServiceFacts>,
    pub(crate) rosters: Rosters,
    pub(crate) history: History,
    /// Events so far.
    pub(crate) journal: Journal,
    /// One for each receiver of events in the settings.
    pub(crate) outboxes: BTreeMap<Receiver, Outbox>,
    /// Limits call-backs to members.
    pub(crate) calls: CallBudget,
    /// How this node's credential is renewed, and whether it renews others.
    pub(crate) renewals: Renewals,
}

/// Facts about the process: most are fixed for its life.
#[derive(Debug)]
pub(crate) struct ProcessFacts {
    pub(crate) started: Instant,
    /// The start time by this machine's clock.
    pub(crate) started_at: UnixSeconds,
    pub(crate) mesh_listen: SocketAddr,
    /// `None` for a node without an admin server.
    pub(crate) admin: Option<Arc<AdminFacts>>,
    /// Where the authority's key is, if it is in the state folder.
    pub(crate) authority_key: Option<PathBuf>,
    /// Settings that must be the same on all nodes.
    pub(crate) agreeing: Vec<Setting>,
    /// The listeners for clients without meshport.
    pub(crate) exposures: Exposures,
    pub(crate) way_back: WayBack,
    /// Its virtual addresses, and the nodes that may hold some.
    pub(crate) board: Board,
    /// Settings that differ from the file until a restart.
    pub(crate) needs_restart: Vec<SettingChange>,
    /// Why the last reload was refused, if it was.
    pub(crate) refused_reload: Option<String>,
    /// Why the last reload kept the credential in use, if it did.
    pub(crate) kept_credential: Option<String>,
    /// Why the last write to the state folder failed, if it did.
    pub(crate) failed_write: Option<String>,
    /// Why the last upgrade failed.
    pub(crate) failed_upgrade: Option<String>,
    /// Whether this daemon is stopping.
    pub(crate) is_leaving: bool,
}

impl ProcessFacts {
    /// Takes what a reload left for a restart, or why it was refused, which changes nothing else.
    pub(crate) fn note_reload(&mut self, outcome: Result<Vec<SettingChange>, String>) {
        match outcome {
            Ok(settings) => (self.needs_restart, self.refused_reload) = (settings, None),
            Err(why) => self.refused_reload = Some(why),
        }
    }
}

/// Facts about a service that the core does not have.
#[derive(Debug, Clone)]
pub(crate) struct ServiceFacts {
    pub(crate) listen: Vec<SocketAddr>,
    pub(crate) policy: Policy,
    pub(crate) origin: Option<String>,
    /// The limits of its sessions; absent until its clients are accepted.
    pub(crate) limits: Option<watch::Receiver<Arc<SessionLimits>>>,
}

impl ServiceFacts {
    /// The limit of open client sessions.
    pub(super) fn max_sessions(&self) -> Option<u64> {
        Some(self.limits.as_ref()?.borrow().max_sessions)
    }
}

impl LocalState {
    /// At the start of a process without admin server and state folder.
    pub(crate) fn new(
        identity: &Identity,
        mesh: &Mesh,
        sessions: &Sessions,
        services: BTreeMap<ServiceName, ServiceFacts>,
        host: &Host,
    ) -> Self {
        let mut state =
            Self::beside(CurrentIdentity::new(identity), mesh.local_addr(), sessions, services);
        state.process.exposures = Exposures::new(host.clone(), state.audit.clone());
        state
    }

    /// The same for a node that is reached at this address.
    pub(crate) fn beside(
        identity: CurrentIdentity,
        mesh_listen: SocketAddr,
        sessions: &Sessions,
        services: BTreeMap<ServiceName, ServiceFacts>,
    ) -> Self {
        let (now, audit) = (clock::now(), Audit::default());
        clock::note_own(identity.credential.issued_at);
        let process = ProcessFacts {
            started: now,
            started_at: clock::wall(),
            mesh_listen,
            admin: None,
            authority_key: None,
            agreeing: Vec::new(),
            exposures: Exposures::new(Host::default(), audit.clone()),
            way_back: WayBack::default(),
            board: Board::default(),
            needs_restart: Vec::new(),
            refused_reload: None,
            kept_credential: None,
            failed_write: None,
            failed_upgrade: None,
            is_leaving: false,
        };
        let renewals = Renewals::new(KnownRenewals::default(), &identity.credential);
        Self {
            identity,
            process,
            sessions: sessions.clone(),
            audit,
            duplicates: Duplicates::default(),
            unknown: Unknown::default(),
            floods: Floods::new(now),
            crowding: CrowdingLog::default(),
            services,
            rosters: Rosters::default(),
            history: History::new(now),
            journal: Journal::default(),
            outboxes: BTreeMap::new(),
            calls: CallBudget::default(),
            renewals,
        }
    }

    /// Takes the counters of this second, if it is time to.
    pub(crate) fn note_history(&mut self, now: Instant) {
        let (services, sessions) = (&self.services, &self.sessions);
        let counts = || {
            let mut sum = Counts::default();
            for service in services.keys() {
                let totals = sessions.totals(service);
                let (counts, connects) = (&totals.counts, &totals.connects);
                sum.open += totals.open.load(Ordering::Relaxed);
                sum.connected += counts.get(SessionCount::Connected);
                sum.failed += counts.get(SessionCount::Failed);
                sum.connect_us += connects.sum_us();
                sum.up_bytes += counts.get(SessionCount::UpBytes);
                sum.down_bytes += counts.get(SessionCount::DownBytes);
                sum.slowest_us = sum.slowest_us.max(connects.take_longest_us());
            }
            sum
        };
        self.history.handle_counts(counts, now);
    }

    /// The last write, if it failed.
    pub(super) fn unstored(&self) -> Option<Finding> {
        let why = self.process.failed_write.as_ref()?;
        Some(STATE_NOT_STORED.found(format!("the last write to the state folder failed: {why}")))
    }

    /// Events that cannot be posted.
    pub(super) fn unposted(&self) -> impl Iterator<Item = Finding> {
        self.outboxes.iter().filter_map(|(to, outbox)| {
            let (failures, refusal) = outbox.trouble()?;
            Some(
                EVENTS_NOT_POSTED.found(format!(
                    "{failures} posts of events {to} in a row have failed: {refusal}"
                )),
            )
        })
    }
}
