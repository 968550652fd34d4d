//! Members: counts by liveness and release, absent ones, how they see this node, and which ones to
//! ask about it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use meshport_config::{NodeId, NodeName, Role, ServiceName};
use meshport_core::inquiry::LocalFacts;
use meshport_core::node::NodeCore;
use meshport_discovery::{Entry, Liveness};
use meshport_mesh::Mesh;

use super::{Reporter, age_s, node_ref};
use crate::admin::api::{AbsentMember, MemberCounts, NodeRef, ReachStatus};

impl<'a> Reporter<'a> {
    /// Members by liveness, and live ones by release. Members of unknown liveness are not counted:
    /// only their record is known, from before a restart or from others.
    pub(super) fn members(&self) -> MemberCounts {
        let releases = self.releases();
        let mut members = MemberCounts { alive: 1, down: 0, left: 0, releases };
        for entry in self.others() {
            match entry.liveness {
                Liveness::Alive => members.alive += 1,
                Liveness::Down => members.down += 1,
                Liveness::Left => members.left += 1,
                Liveness::Unknown => {}
            }
        }
        members
    }

    /// Members that are alive by release, this node included.
    fn releases(&self) -> BTreeMap<String, usize> {
        let mut releases = BTreeMap::from([(env!("CARGO_PKG_VERSION").to_owned(), 1)]);
        for entry in self.others().filter(|entry| entry.liveness == Liveness::Alive) {
            let release = entry.node_state().and_then(|state| state.release.as_deref());
            *releases.entry(release.unwrap_or("unknown").to_owned()).or_default() += 1;
        }
        releases
    }

    /// Members that are down or have left, most recent first.
    pub(super) fn absent(&self, now: Instant) -> Vec<AbsentMember> {
        let mut absent: Vec<AbsentMember> = self
            .gone()
            .map(|entry| AbsentMember {
                who: node_ref(entry),
                liveness: entry.liveness.to_string(),
                since_s: age_s(entry.since, now),
            })
            .collect();
        absent.sort_by_key(|member| member.since_s);
        absent
    }

    /// The member that disappeared last among those that may offer this service.
    pub(super) fn absent_origin(&self, service: &ServiceName) -> Option<NodeName> {
        let role = Role::Origin(service.clone());
        let may_offer = self.gone().filter(|it| it.credential.roles.contains(&role));
        may_offer.max_by_key(|it| it.since).map(|it| it.credential.name.clone())
    }

    fn gone(&self) -> impl Iterator<Item = &'a Entry> {
        self.others().filter(|it| matches!(it.liveness, Liveness::Down | Liveness::Left))
    }

    fn others(&self) -> impl Iterator<Item = &'a Entry> {
        let own = self.state.identity.me.node;
        let all = self.core.discovery().directory().iter();
        all.filter_map(move |(node, entry)| (*node != own).then_some(entry))
    }

    /// Live members: those with a tunnel first, and among these origins and relays, whose firewalls
    /// matter most to others.
    pub(crate) fn to_inquire(&self, mesh: &Mesh) -> (Vec<NodeRef>, LocalFacts) {
        let peers = mesh.peers();
        let with_tunnel: BTreeSet<NodeId> =
            peers.iter().filter(|it| it.session).map(|it| it.node).collect();
        let mut members: Vec<&Entry> =
            self.others().filter(|entry| entry.liveness == Liveness::Alive).collect();
        members.sort_by_key(|entry| {
            let credential = &entry.credential;
            let is_used =
                credential.roles.iter().any(|it| matches!(it, Role::Origin(_) | Role::Relay));
            (!with_tunnel.contains(&credential.node), !is_used, credential.node)
        });
        let own = LocalFacts {
            version: env!("CARGO_PKG_VERSION").into(),
            settings: self.state.process.agreeing.clone(),
            port: self.state.process.mesh_listen.port(),
            is_behind_nat: self.core.discovery().is_behind_nat(),
        };
        (members.into_iter().map(node_ref).collect(), own)
    }
}

/// How members see this node's address.
pub(super) fn reach(core: &NodeCore) -> ReachStatus {
    let reach = core.reach();
    ReachStatus { nat: reach.nat_kind().into(), seen_at: reach.seen_at() }
}
