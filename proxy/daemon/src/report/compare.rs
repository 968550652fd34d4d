//! Compares the mesh's origins with the cluster's list of apiservers.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Instant;

use meshport_config::ServiceName;
use meshport_discovery::{Entry, OriginState};

use super::Reporter;
use meshport_core::findings::{EVENTS_NOT_POSTED, Finding, ROSTER_DIFFERS};
use meshport_core::node::NodeCore;
use meshport_core::roster::Known;
use meshport_core::route::{Line, OriginView};

impl Reporter {
    /// Handles the cluster's list; `None` if it could not be read.
    pub(crate) fn compare(
        &mut self,
        core: &NodeCore,
        service: &ServiceName,
        list: Option<BTreeSet<SocketAddr>>,
        now: Instant,
    ) {
        let known = self.known(core, service);
        let roster = self.rosters.entry(service.clone()).or_default();
        match list {
            Some(list) => roster.handle_list(list, &known, now),
            None => roster.handle_failure(),
        }
    }

    /// The services whose two lists differ.
    pub(super) fn differences(&self) -> impl Iterator<Item = Finding> {
        self.rosters.iter().filter_map(|(service, roster)| {
            Some(ROSTER_DIFFERS.found(format!("{service}: {}", roster.difference()?)))
        })
    }

    /// Events that cannot be posted.
    pub(super) fn unposted(&self) -> impl Iterator<Item = Finding> {
        self.told.outboxes.iter().filter_map(|(to, outbox)| {
            let (failures, refusal) = outbox.trouble()?;
            Some(
                EVENTS_NOT_POSTED.found(format!(
                    "{failures} posts of events {to} in a row have failed: {refusal}"
                )),
            )
        })
    }

    fn known(&self, core: &NodeCore, service: &ServiceName) -> Vec<Known> {
        let route = core.route(service).cloned().unwrap_or_default();
        let origins = route.candidates.iter().map(|candidate| &candidate.origin);
        let of_mesh = origins.filter(|origin| !matches!(origin.line, Line::Outside(_)));
        of_mesh.map(|origin| self.known_as(core, origin)).collect()
    }

    /// A terminating or drained instance may be on the list or not: it serves until it is gone.
    fn known_as(&self, core: &NodeCore, origin: &OriginView) -> Known {
        let serves = origin.present
            && !matches!(
                origin.state,
                OriginState::Refusing | OriginState::Hung | OriginState::Stalled
            );
        let node = origin.line.origin().unwrap_or(self.identity.me.node);
        let entry = core.discovery().directory().get(&node);
        let addresses = entry.map_or(&[][..], Entry::endpoints).iter().map(SocketAddr::ip);
        Known { serves, addresses: addresses.collect() }
    }
}
