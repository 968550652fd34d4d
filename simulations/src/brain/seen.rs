//! The data about a node for the daemon's dashboard.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use meshport_config::{Credential, NodeId, ServiceSettings, UnixSeconds};
use meshport_core::history::Counts;
use meshport_daemon::admin::view::{SessionCounts, View};
use meshport_daemon::report::onlooker::{Diary, Onlooker, Reset};

use super::{Brain, Line};

/// Facts about a node that its decisions do not have.
pub(crate) struct Beside<'a> {
    pub(crate) credential: &'a Arc<Credential>,
    pub(crate) settings: &'a ServiceSettings,
    pub(crate) hosts: bool,
    pub(crate) started: Instant,
    pub(crate) started_at: UnixSeconds,
    pub(crate) address: SocketAddr,
    pub(crate) tunnels: BTreeSet<NodeId>,
    pub(crate) sessions: SessionCounts,
    pub(crate) served: u64,
    pub(crate) is_leaving: bool,
}

impl Brain {
    /// Keeps a diary from now on, which changes no decision.
    pub(crate) fn keep_diary(&mut self, now: Instant) {
        self.diary = Some(Box::new(Diary::new(now)));
    }

    /// Counts what clients did, in whole seconds of its process.
    pub(crate) fn count_clients(&mut self, counts: impl FnOnce() -> Counts, now: Instant) {
        if let Some(diary) = &mut self.diary {
            diary.count(counts, now);
        }
    }

    /// This many sessions are reset.
    pub(crate) fn note_reset(&mut self, line: Line, sessions: u64, why: &str, now: Instant) {
        if let Some(diary) = self.diary.as_mut().filter(|_| sessions > 0) {
            let reset = Reset { service: &self.service, line, sessions, why };
            diary.note_reset(&self.core, &reset, now);
        }
    }

    /// The document of `/view`, if it keeps a diary; `open` says how many sessions are on a line.
    pub(crate) fn view(
        &self,
        beside: Beside<'_>,
        open: impl Fn(&Line) -> u64,
        now: Instant,
    ) -> Option<View> {
        let dialled = beside.settings.origin.as_ref().map(ToString::to_string);
        let onlooker = Onlooker {
            credential: beside.credential,
            started: beside.started,
            started_at: beside.started_at,
            mesh_listen: beside.address,
            service: self.service.clone(),
            listen: beside.settings.listen.clone(),
            policy: beside.settings.into(),
            // A scenario defines which node hosts an instance, but not its address.
            origin: beside.hosts.then(|| dialled.unwrap_or_else(|| "127.0.0.1:6443".into())),
            tunnels: beside.tunnels,
            sessions: beside.sessions,
            served: beside.served,
            diary: self.diary.as_ref()?,
            is_leaving: beside.is_leaving,
        };
        Some(onlooker.view(&self.core, open, now))
    }
}
