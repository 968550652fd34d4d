//! Compares the mesh's origins with the cluster's list of apiservers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Instant;

use meshport_config::{NodeId, ServiceName};
use meshport_core::findings::{Finding, ROSTER_DIFFERS};
use meshport_core::node::NodeCore;
use meshport_core::roster::{Known, Roster};
use meshport_core::route::{Line, OriginView};
use meshport_discovery::{Entry, OriginState};

/// The cluster's own lists, for services whose list is read.
#[derive(Debug, Default)]
pub(crate) struct Rosters(BTreeMap<ServiceName, Roster>);

impl Rosters {
    /// Handles the cluster's list as read by node `me`; `None` if it could not be read.
    pub(crate) fn handle(
        &mut self,
        core: &NodeCore,
        me: NodeId,
        service: &ServiceName,
        list: Option<BTreeSet<SocketAddr>>,
        now: Instant,
    ) {
        let roster = self.0.entry(service.clone()).or_default();
        match list {
            Some(list) => roster.handle_list(list, &known(core, me, service), now),
            None => roster.handle_failure(),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&ServiceName, &Roster)> {
        self.0.iter()
    }

    /// The services whose two lists differ.
    pub(super) fn findings(&self) -> impl Iterator<Item = Finding> {
        self.iter().filter_map(|(service, roster)| {
            Some(ROSTER_DIFFERS.found(format!("{service}: {}", roster.difference()?)))
        })
    }
}

fn known(core: &NodeCore, me: NodeId, service: &ServiceName) -> Vec<Known> {
    let route = core.route(service).cloned().unwrap_or_default();
    let origins = route.candidates.iter().map(|candidate| &candidate.origin);
    let of_mesh = origins.filter(|origin| !matches!(origin.line, Line::Outside(_)));
    of_mesh.map(|origin| known_as(core, me, origin)).collect()
}

/// A terminating or drained instance may be on the list or not: it serves until it is gone.
fn known_as(core: &NodeCore, me: NodeId, origin: &OriginView) -> Known {
    let serves = origin.present
        && !matches!(
            origin.state,
            OriginState::Refusing | OriginState::Hung | OriginState::Stalled
        );
    let node = origin.line.origin().unwrap_or(me);
    let entry = core.discovery().directory().get(&node);
    let addresses = entry.map_or(&[][..], Entry::endpoints).iter().map(SocketAddr::ip);
    Known { name: origin.name.clone(), serves, addresses: addresses.collect() }
}
