//! Reports the state of the way back.

use std::time::{Duration, Instant};

use meshport_config::{Credential, NodeId, ServiceName};
use meshport_core::findings::{EGRESS_UNUSED, Finding};
use meshport_core::ledger::Side;
use meshport_core::node::Known;
use meshport_core::route::Line;
use meshport_mesh::Mesh;

use super::Reporter;
use crate::admin::wayback::WayBackStatus;
use crate::clock;
use crate::wayback::tunnel;

/// How long a socket may be without any connection: even if nobody reads logs, a cluster has an
/// aggregated API or a webhook.
const UNUSED: Duration = Duration::from_secs(3600);

impl Reporter<'_> {
    /// The finding for a socket that no apiserver has used.
    pub(super) fn unused_way_back(&self, now: Instant) -> Option<Finding> {
        let egress = self.state.process.way_back.egress();
        let socket = egress.socket.as_ref()?;
        let age = now.saturating_duration_since(self.state.process.started);
        let is_unused = self.state.process.way_back.accepted() == 0 && age >= UNUSED;
        is_unused.then(|| {
            let hours = age.as_secs() / 3600;
            let socket = socket.display();
            EGRESS_UNUSED.found(format!("nothing has connected to {socket} in {hours} h"))
        })
    }

    /// The way back's part of `status`.
    pub(super) fn way_back(&self, mesh: &Mesh) -> Option<WayBackStatus> {
        let socket = self.state.process.way_back.egress().socket.clone()?;
        let [there, down, missing] = self.kubelets(mesh).map(|(_, count)| count);
        let [(_, refused), _] = self.state.process.way_back.refusals();
        Some(WayBackStatus {
            socket,
            nodes_there: there,
            nodes_down: down,
            nodes_missing: missing,
            streams_open: self.state.sessions.count_side(&ServiceName::way_back(), Side::Client),
            refused: refused.iter().map(|(_, count)| count).sum(),
        })
    }

    /// The first path to a member's kubelet, as text; `None` without a socket here, or if the
    /// member serves no kubelet.
    pub(super) fn way_back_to(&self, member: &Credential) -> Option<String> {
        self.state.process.way_back.egress().socket.as_ref()?;
        let line = self.core.way_back_to(member)?;
        Some(match line {
            _ if self.core.absence(&member.node, clock::now()).is_some() => "down".into(),
            Line::Relayed { relay, .. } => format!("through {}", self.name(&relay)),
            Line::Direct(_) | Line::Outside(_) => "direct".into(),
        })
    }

    /// How many nodes of the cluster are reached through the mesh, are down, or are not in it.
    pub(super) fn kubelets(&self, mesh: &Mesh) -> [(&'static str, u64); 3] {
        let back = &self.state.process.way_back;
        let (nodes, egress) = (back.nodes(), back.egress());
        let known = Known {
            nodes: nodes.as_deref(),
            addresses: &egress.nodes,
            services: &egress.service_cidrs,
            own: &self.state.identity.credential,
            tunnel: |node: &NodeId| tunnel(mesh, node),
        };
        self.core.count_kubelets(&known, clock::wall())
    }
}
