//! The way back from apiservers, see [`meshport_core::wayback`].
//!
//! Here is the state that its parts share, and `dial`, the connection to a target, made by the node
//! that serves it. [`crate::egress`] serves requests of apiservers and streams of their nodes,
//! [`crate::kubernetes`] reads the Node objects, [`crate::driver`] finds the node of a target.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use meshport_config::counters::{Counter, Counters, SharedCounters};
use meshport_config::{Credential, EgressSettings, KubeletSettings, NodeId, Settings, counters};
use meshport_core::wayback::Refusal;
use meshport_core::wayback::call::Want;
use meshport_core::wayback::judge::{self, ServingNode};
use meshport_core::wayback::nodes::Nodes;
use meshport_mesh::Mesh;
use tokio::sync::watch;

use crate::tcp::Host;

pub(crate) mod dial;

counters! {
    /// Outcomes of requests and streams.
    pub(crate) enum WayCount {
        "meshport_wayback_connected_total" by "target" {
            /// Connected to a kubelet.
            Kubelet = "kubelet",
            /// Connected to a pod.
            Pod = "pod",
            /// Connected to a service.
            Service = "service",
            /// Connected to a target outside the mesh that the settings name.
            Outside = "outside",
        }
        "meshport_wayback_relayed_total" by "" {
            /// Connected through a relay.
            Relayed = "",
        }
    }
}

/// Where a refusal was counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum At {
    /// On the socket, to an apiserver.
    Socket,
    /// For a stream of another node.
    Stream,
}

/// State that all parts of the way back share. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct WayBack(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    egress: watch::Sender<Arc<EgressSettings>>,
    kubelet: watch::Sender<Arc<KubeletSettings>>,
    /// The nodes as Kubernetes reports them.
    listed: Mutex<Option<Arc<Nodes>>>,
    /// Those nodes, with the addresses that the settings add.
    nodes: watch::Sender<Option<Arc<Nodes>>>,
    counts: SharedCounters<WayCount, { WayCount::ALL.len() }>,
    refused: [SharedCounters<Refusal, { Refusal::COUNT }>; 2],
    /// Connections of the socket that were accepted.
    accepted: AtomicU64,
}

impl Default for WayBack {
    /// The state of a node without way-back settings.
    fn default() -> Self {
        let site = "unnamed".parse().expect("a valid label");
        Self::new(&Settings::defaults(site), None)
    }
}

impl WayBack {
    /// A state with these settings and the nodes that an earlier process knew.
    pub(crate) fn new(settings: &Settings, stored: Option<&[u8]>) -> Self {
        let back = Self(Arc::new(Inner {
            egress: watch::Sender::new(Arc::new(settings.egress.clone())),
            kubelet: watch::Sender::new(Arc::new(settings.kubelet.clone())),
            listed: Mutex::default(),
            nodes: watch::Sender::new(None),
            counts: SharedCounters::default(),
            refused: [SharedCounters::default(), SharedCounters::default()],
            accepted: AtomicU64::new(0),
        }));
        if let Some(known) = stored.and_then(Nodes::from_bytes) {
            back.set_nodes(&known);
        }
        back
    }

    /// Applies new settings. The socket is not changed.
    pub(crate) fn set_settings(&self, egress: &EgressSettings, kubelet: &KubeletSettings) {
        let listed = self.listed();
        self.0.egress.send_replace(Arc::new(egress.clone()));
        self.0.kubelet.send_replace(Arc::new(kubelet.clone()));
        self.publish(listed.as_ref());
    }

    /// The current egress settings.
    pub(crate) fn egress(&self) -> Arc<EgressSettings> {
        self.0.egress.borrow().clone()
    }

    /// Resolves once the settings let apiservers reach this machine.
    pub(crate) async fn serves(&self) {
        // The sender lives as long as `self`.
        let _ = self.0.kubelet.subscribe().wait_for(|settings| settings.serve).await;
    }

    /// Resolves once the settings no longer permit dialling `want`.
    pub(crate) async fn until_refused(
        &self,
        want: &Want,
        credential: &watch::Receiver<Arc<Credential>>,
        host: &Host,
    ) {
        let (mut egress, mut kubelet) = (self.0.egress.subscribe(), self.0.kubelet.subscribe());
        loop {
            // The senders live as long as `self`.
            tokio::select! {
                _ = egress.changed() => {}
                _ = kubelet.changed() => {}
            }
            let own = credential.borrow().clone();
            if self.judge(want, &own, host).is_err() {
                return;
            }
        }
    }

    /// The nodes of the cluster, if Kubernetes has been read.
    pub(crate) fn nodes(&self) -> Option<Arc<Nodes>> {
        self.0.nodes.borrow().clone()
    }

    /// The same, and every later state.
    #[cfg(test)]
    pub(crate) fn watch_nodes(&self) -> watch::Receiver<Option<Arc<Nodes>>> {
        self.0.nodes.subscribe()
    }

    /// Replaces the nodes by those that Kubernetes reports, with the addresses that the settings
    /// add.
    pub(crate) fn set_nodes(&self, nodes: &Nodes) {
        let mut listed = self.listed();
        *listed = Some(Arc::new(nodes.clone()));
        self.publish(listed.as_ref());
    }

    fn listed(&self) -> MutexGuard<'_, Option<Arc<Nodes>>> {
        self.0.listed.lock().expect("no holder of this lock can panic")
    }

    fn publish(&self, listed: Option<&Arc<Nodes>>) {
        let more = &self.egress().nodes;
        let all = listed.map(|nodes| match more.is_empty() {
            true => nodes.clone(),
            false => {
                let mut all = Nodes::clone(nodes);
                all.add_addresses(more);
                Arc::new(all)
            }
        });
        self.0.nodes.send_replace(all);
    }

    /// Decides by this node's rules what it dials for apiservers on its `host`.
    pub(crate) fn judge(
        &self,
        want: &Want,
        credential: &Credential,
        host: &Host,
    ) -> Result<Vec<SocketAddr>, Refusal> {
        let nodes = self.nodes();
        let object = nodes.as_ref().and_then(|nodes| nodes.get(credential.name.as_str()));
        let (egress, kubelet) = (self.egress(), self.0.kubelet.borrow().clone());
        let own = ServingNode { credential, kubelet: &kubelet, egress: &egress, object };
        judge::judge(want, &own, |ip| host.has(ip))
    }

    pub(crate) fn accepted(&self) -> u64 {
        self.0.accepted.load(Ordering::Relaxed)
    }

    pub(crate) fn note_accepted(&self) {
        self.0.accepted.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn note_connected(&self, want: &Want, is_relayed: bool) {
        self.0.counts.bump(match want {
            Want::Kubelet(_) => WayCount::Kubelet,
            Want::Pod(_) => WayCount::Pod,
            Want::Service(_) => WayCount::Service,
        });
        if is_relayed {
            self.0.counts.bump(WayCount::Relayed);
        }
    }

    pub(crate) fn note_outside(&self) {
        self.0.counts.bump(WayCount::Outside);
    }

    pub(crate) fn note_refused(&self, at: At, why: Refusal) {
        self.0.refused[at as usize].bump(why);
    }

    /// Outcomes of requests and streams.
    pub(crate) fn counts(&self) -> Counters<WayCount, { WayCount::ALL.len() }> {
        self.0.counts.read()
    }

    /// Refusals by where they were counted.
    pub(crate) fn refusals(&self) -> [(&'static str, Counters<Refusal, { Refusal::COUNT }>); 2] {
        let [socket, stream] = &self.0.refused;
        [("socket", socket.read()), ("stream", stream.read())]
    }
}

/// Source address of an admitted peer's tunnel.
pub(crate) fn tunnel(mesh: &Mesh, node: &NodeId) -> Option<IpAddr> {
    mesh.credential(node)?;
    mesh.endpoint(node).map(|at| at.ip().to_canonical())
}
