//! The nodes of [`crate::admin::view`], and the paths to them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use meshport_config::{Credential, NodeId, ServiceName};
use meshport_core::node::NodeCore;
use meshport_core::route::{Line, PathView};
use meshport_discovery::{Entry, Liveness, OriginState, PathState};
use meshport_mesh::Mesh;

use super::rounded;
use crate::admin::api::NodeRef;
use crate::admin::credentials::Validity;
use crate::admin::view::{MAX_NODES, NodeRow, Offer, PathRow};
use crate::clock;
use crate::report::{Reporter, in_ms, node_ref};

/// The state of the tunnel with a peer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Peer {
    /// Whether there is a tunnel.
    pub(crate) session: bool,
    /// Age of the last packet.
    pub(crate) last_received: Option<Duration>,
    pub(crate) quic_rtt: Option<Duration>,
    /// The credential that the peer presented; only for leaves, which are in no directory.
    pub(crate) credential: Option<Arc<Credential>>,
}

pub(super) fn peers(mesh: &Mesh, core: &NodeCore) -> BTreeMap<NodeId, Peer> {
    let peer = |it: meshport_mesh::PeerStatus| {
        let is_leaf = core.discovery().is_leaf(&it.node);
        let peer = Peer {
            session: it.session,
            last_received: it.last_received,
            quic_rtt: it.quic_rtt,
            credential: is_leaf.then(|| mesh.credential(&it.node)).flatten(),
        };
        (it.node, peer)
    };
    mesh.peers().into_iter().map(peer).collect()
}

impl Reporter<'_> {
    /// The nodes to show, and how many are omitted.
    pub(super) fn node_rows(
        &self,
        peers: &BTreeMap<NodeId, Peer>,
        now: Instant,
    ) -> (Vec<NodeRow>, usize) {
        let directory = self.core.discovery().directory();
        let rank = |node: &NodeId, entry: &Entry| match entry.liveness {
            _ if *node == self.state.identity.me.node => 0,
            _ if entry.services().next().is_some() => 1,
            Liveness::Down | Liveness::Unknown => 2,
            Liveness::Alive => 3,
            Liveness::Left => 4,
        };
        let mut entries: Vec<(u8, &Entry)> =
            directory.iter().map(|(node, entry)| (rank(node, entry), entry)).collect();
        entries.sort_by(|(one, a), (other, b)| {
            (one, &a.credential.name).cmp(&(other, &b.credential.name))
        });
        let left_out = entries.len().saturating_sub(MAX_NODES);
        let rows = entries.iter().take(MAX_NODES);
        let mut rows: Vec<NodeRow> = rows
            .map(|(_, entry)| {
                let peer = peers.get(&entry.node());
                NodeRow { path: self.path_row(&entry.node(), peer, now), ..self.node_row(entry) }
            })
            .collect();
        let leaves = peers.iter().filter(|(node, _)| self.core.discovery().is_leaf(node));
        rows.extend(leaves.filter_map(|(node, peer)| {
            let credential = peer.credential.as_ref()?;
            let path = self.path_row(node, Some(peer), now);
            let (name, site) = (credential.name.clone(), credential.site.clone());
            let (who, roles) = (NodeRef { node: *node, name, site }, credential.roles.clone());
            let since_at_s = self.at_s(now);
            Some(NodeRow {
                who,
                roles,
                liveness: "leaf".into(),
                since_at_s: path.since_at_s.unwrap_or(since_at_s),
                version: None,
                credential_issued_at: credential.issued_at,
                credential_expires_at: credential.expires_at,
                credential_validity: Some(Validity::of_node(credential, clock::wall())),
                behind_nat: false,
                offers: Vec::new(),
                told_at_s: None,
                path,
            })
        }));
        (rows, left_out)
    }

    fn node_row(&self, entry: &Entry) -> NodeRow {
        let own = entry.node() == self.state.identity.me.node;
        let offer = |(service, state): (&ServiceName, OriginState)| Offer {
            service: service.clone(),
            state: state.to_string(),
        };
        NodeRow {
            who: node_ref(entry),
            roles: entry.credential.roles.clone(),
            liveness: if own { Liveness::Alive } else { entry.liveness }.to_string(),
            since_at_s: self.at_s(entry.since),
            version: entry.node_state().and_then(|state| state.release.as_deref().map(Into::into)),
            credential_issued_at: entry.credential.issued_at,
            credential_expires_at: entry.credential.expires_at,
            credential_validity: Some(Validity::of_node(&entry.credential, clock::wall())),
            behind_nat: entry.node_state().is_some_and(|state| state.behind_nat),
            offers: entry.services().map(offer).collect(),
            told_at_s: entry.state.as_ref().map(|_| self.at_s(entry.told)),
            path: PathRow::none(),
        }
    }

    /// The path to any node: measured, or inferred from its tunnel.
    fn path_row(&self, node: &NodeId, peer: Option<&Peer>, now: Instant) -> PathRow {
        if *node == self.state.identity.me.node {
            return PathRow { kind: "own".into(), ..PathRow::none() };
        }
        let routes = self.core.services().filter_map(|name| self.core.route(name));
        let mut relayed = routes.flat_map(|route| &route.candidates).filter_map(|it| {
            match (it.origin.line, it.origin.path) {
                (Line::Relayed { origin, relay }, PathView::Up(rtt)) if origin == *node => {
                    Some((relay, rtt))
                }
                _ => None,
            }
        });
        let heard = peer.and_then(|peer| now.checked_sub(peer.last_received?));
        let heard_at_s = heard.map(|at| self.heard_at_s(at));
        let Some(path) = self.core.discovery().paths().get(node) else {
            let kind = if peer.is_some_and(|peer| peer.session) { "direct" } else { "none" };
            let rtt_ms = peer.and_then(|peer| peer.quic_rtt).map(in_ms).map(rounded);
            return PathRow { kind: kind.into(), rtt_ms, heard_at_s, ..PathRow::none() };
        };
        let since_at_s = Some(self.at_s(path.since));
        if let Some((relay, rtt)) = relayed.next() {
            return PathRow {
                kind: "relay".into(),
                relay: Some(self.name(&relay)),
                rtt_ms: Some(rounded(in_ms(rtt))),
                loss_percent: None,
                since_at_s,
                heard_at_s,
            };
        }
        let (kind, is_up) = match path.state {
            PathState::Up => ("direct", true),
            PathState::Dead => ("dead", false),
            PathState::Unknown => ("unmeasured", false),
        };
        PathRow {
            kind: kind.into(),
            relay: None,
            rtt_ms: path.rtt.filter(|_| is_up).map(in_ms).map(rounded),
            loss_percent: Some(path.loss_percent),
            since_at_s,
            heard_at_s: heard_at_s.filter(|_| !is_up),
        }
    }
}

impl PathRow {
    fn none() -> Self {
        Self {
            kind: "none".into(),
            relay: None,
            rtt_ms: None,
            loss_percent: None,
            since_at_s: None,
            heard_at_s: None,
        }
    }
}
