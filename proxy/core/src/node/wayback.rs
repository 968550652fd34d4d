//! Answers queries of the way back: which member a node is, its state, and the paths to it.

use std::net::IpAddr;
use std::time::Instant;

use meshport_config::{
    Cidr, Credential, Endpoint, NodeAddress, NodeId, Role, SiteName, UnixSeconds,
};
use meshport_discovery::{Entry, Liveness};

use super::NodeCore;
use super::views::may_relay;
use crate::route::{Line, PathView};
use crate::wayback::call::Want;
use crate::wayback::join;
use crate::wayback::nodes::{NodeObject, Nodes, Spot};
use crate::wayback::paths::{self, Prospect};
use crate::wayback::{Refusal, Refused};

/// The node of a target, and the path to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination {
    /// The target to dial there.
    pub want: Want,
    /// The node, or the nearest that can serve the target, as text: `worker-7 in fra`.
    pub who: String,
    /// Paths to try, best first, each with the node it leads to.
    pub paths: Vec<Line>,
}

/// Other facts about the mesh and the cluster.
#[derive(Debug)]
pub struct Known<'a, F> {
    /// The nodes of the cluster; `None` before the first answer from Kubernetes.
    pub nodes: Option<&'a Nodes>,
    /// Addresses that the settings add if Kubernetes has not answered.
    pub addresses: &'a [NodeAddress],
    /// The networks of its services.
    pub services: &'a [Cidr],
    /// This node's own credential.
    pub own: &'a Credential,
    /// Source address of a member's tunnel.
    pub tunnel: F,
}

impl NodeCore {
    /// The node of this target, and the paths to it.
    ///
    /// # Errors
    /// [`Refused`] with the reason, for the waiting caller.
    pub fn find_target<F: Fn(&NodeId) -> Option<IpAddr>>(
        &self,
        target: &Endpoint,
        known: &Known<'_, F>,
        wall: UnixSeconds,
    ) -> Result<Destination, Refused> {
        let of_members;
        let nodes = match known.nodes {
            Some(nodes) => nodes,
            None => {
                let mut nodes = self.as_nodes(known, wall);
                nodes.add_addresses(known.addresses);
                of_members = nodes;
                &of_members
            }
        };
        match nodes.find(target, known.services)? {
            Spot::Kubelet(name, port) => {
                self.at_node(&name, Want::Kubelet(port), nodes, known, wall)
            }
            Spot::Pod(name, address) => self.at_node(&name, Want::Pod(address), nodes, known, wall),
            Spot::Service(address) => self.at_egress(Want::Service(address), known, wall),
        }
    }

    fn at_node<F: Fn(&NodeId) -> Option<IpAddr>>(
        &self,
        name: &str,
        want: Want,
        nodes: &Nodes,
        known: &Known<'_, F>,
        wall: UnixSeconds,
    ) -> Result<Destination, Refused> {
        let named;
        let object = match nodes.get(name) {
            Some(object) => object,
            None => {
                named = NodeObject::named(name);
                &named
            }
        };
        let members = self.usable(known.own, wall);
        let credential = join::member(object, nodes, &members, &known.tunnel)?;
        let node = credential.node;
        let paths = match node == known.own.node {
            true => vec![Line::Direct(node)],
            false => {
                let relays = self.wayback_relays(&credential.site);
                paths::to_node(node, self.path_to(&node), relays)
            }
        };
        let who = format!("{} in {}", credential.name, credential.site);
        Ok(Destination { want, who, paths })
    }

    /// The members that dial services, the nearest first.
    fn at_egress<F>(
        &self,
        want: Want,
        known: &Known<'_, F>,
        wall: UnixSeconds,
    ) -> Result<Destination, Refused> {
        let is_one = |it: &&Credential| it.roles.contains(&Role::Egress);
        let able: Vec<&Credential> =
            self.usable(known.own, wall).into_iter().filter(is_one).collect();
        let path = |node: &NodeId| match *node == known.own.node {
            true => Some(PathView::Own),
            false if self.is_down(node) => Some(PathView::Dead),
            false => self.path_to(node),
        };
        let prospect = |it: &&Credential| Prospect {
            node: it.node,
            is_near: it.site == self.site,
            path: path(&it.node),
        };
        let paths =
            paths::to_any(able.iter().map(prospect).collect(), self.wayback_relays(&self.site));
        let first = paths.first().and_then(Line::origin);
        let Some(first) = able.iter().find(|it| Some(it.node) == first) else {
            let said = "no reachable member has the role egress";
            return Err(Refused::new(Refusal::NoEgress, said));
        };
        let who = format!("{} in {}", first.name, first.site);
        Ok(Destination { want, who, paths })
    }

    /// Since when a node has been unreachable, as text; `None` if it is present.
    pub fn absence(&self, node: &NodeId, now: Instant) -> Option<String> {
        let entry = self.discovery.directory().get(node)?;
        let (name, site) = (&entry.credential.name, &entry.credential.site);
        let since_s = now.saturating_duration_since(entry.since).as_secs();
        match entry.liveness {
            Liveness::Down => Some(format!("{name} in {site} has been down for {since_s} s")),
            Liveness::Left => Some(format!("{name} in {site} has left the mesh")),
            Liveness::Alive | Liveness::Unknown => None,
        }
    }

    /// The path to a member's kubelet that is tried first; `None` for a member that serves no
    /// kubelet.
    pub fn way_back_to(&self, member: &Credential) -> Option<Line> {
        let serves = join::serves_kubelet(member);
        let relays = || self.wayback_relays(&member.site);
        let paths =
            serves.then(|| paths::to_node(member.node, self.path_to(&member.node), relays()));
        paths?.into_iter().next()
    }

    /// Counts the nodes of the cluster by reachability through the mesh: present, down, and not a
    /// member.
    pub fn count_kubelets<F: Fn(&NodeId) -> Option<IpAddr>>(
        &self,
        known: &Known<'_, F>,
        wall: UnixSeconds,
    ) -> [(&'static str, u64); 3] {
        let of_members;
        let nodes = match known.nodes {
            Some(nodes) => nodes,
            None => {
                of_members = self.as_nodes(known, wall);
                &of_members
            }
        };
        let [mut there, mut down, mut missing] = [0; 3];
        let members = self.usable(known.own, wall);
        for object in nodes.iter() {
            match join::member(object, nodes, &members, &known.tunnel) {
                Ok(credential) if self.is_down(&credential.node) => down += 1,
                Ok(_) => there += 1,
                Err(_) => missing += 1,
            }
        }
        [("there", there), ("down", down), ("missing", missing)]
    }

    /// Members with a credential that is valid now, this node first.
    fn usable<'a>(&'a self, own: &'a Credential, wall: UnixSeconds) -> Vec<&'a Credential> {
        let entries = self.discovery.directory().iter().map(|(_, entry)| entry);
        let is_other =
            |entry: &&Entry| entry.liveness != Liveness::Left && entry.node() != own.node;
        let others = entries.filter(is_other).map(|entry| &*entry.credential);
        std::iter::once(own).chain(others).filter(|it| it.expires_at > wall).collect()
    }

    /// Without data from Kubernetes: the members under their names, with the addresses of their
    /// tunnels.
    fn as_nodes<F: Fn(&NodeId) -> Option<IpAddr>>(
        &self,
        known: &Known<'_, F>,
        wall: UnixSeconds,
    ) -> Nodes {
        let usable = self.usable(known.own, wall).into_iter();
        let serving = usable.filter(|it| join::serves_kubelet(it));
        Nodes::new(serving.map(|credential| NodeObject {
            addresses: (known.tunnel)(&credential.node).into_iter().collect(),
            ..NodeObject::named(credential.name.as_str())
        }))
    }

    fn is_down(&self, node: &NodeId) -> bool {
        let entry = self.discovery.directory().get(node);
        entry.is_some_and(|entry| entry.liveness == Liveness::Down)
    }

    fn wayback_relays(&self, site: &SiteName) -> Vec<Prospect> {
        let relays = self.discovery.directory().relays();
        let others = relays.filter(|entry| entry.node() != self.me && may_relay(entry));
        let view = |entry: &Entry| Prospect {
            node: entry.node(),
            is_near: entry.credential.site == *site,
            path: self.path_to(&entry.node()),
        };
        others.map(view).collect()
    }
}
