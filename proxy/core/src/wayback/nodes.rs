//! The nodes of the cluster according to Kubernetes, and the node that an address or name belongs
//! to.
//!
//! Names of Node objects are unique and only the control plane assigns pod networks, but a kubelet
//! writes the addresses of its own Node object: an address that two nodes claim is refused, and
//! both are named. Bounds: [`MAX_NODES`], [`MAX_ADDRESSES`] of each kind for a node.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use meshport_config::{Cidr, Endpoint, Host, NodeAddress};
use serde::{Deserialize, Serialize};

use super::KUBELET_PORT;
use super::refusal::Refusal;
use super::reply::Refused;
use crate::names;

/// Maximum nodes kept: twice what Kubernetes supports.
pub const MAX_NODES: usize = 10_000;
/// Maximum addresses, names and pod networks of a node, each.
pub const MAX_ADDRESSES: usize = 16;
/// The longest name, in bytes (RFC 1035).
const MAX_NAME_BYTES: usize = 253;
/// Begins the stored form.
const FORMAT: u8 = 1;

/// The relevant facts about a node in Kubernetes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeObject {
    /// The name of its Node object.
    pub name: String,
    /// Other names of it: `Hostname`, `InternalDNS`, `ExternalDNS`.
    pub names: Vec<String>,
    /// Its addresses, internal ones first.
    pub addresses: Vec<IpAddr>,
    /// The networks of its pods.
    pub pod_cidrs: Vec<Cidr>,
    /// Port of its kubelet.
    pub kubelet_port: u16,
}

impl NodeObject {
    /// A node known only by name.
    pub fn named(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            names: Vec::new(),
            addresses: Vec::new(),
            pod_cidrs: Vec::new(),
            kubelet_port: KUBELET_PORT,
        }
    }

    /// Truncated to the bounds of this module; `None` if its name exceeds them.
    fn bounded(mut self) -> Option<Self> {
        self.names.retain(|name| name.len() <= MAX_NAME_BYTES);
        self.names.iter_mut().for_each(|name| name.make_ascii_lowercase());
        self.names.truncate(MAX_ADDRESSES);
        self.addresses.iter_mut().for_each(|ip| *ip = ip.to_canonical());
        self.addresses.retain(|ip| !is_nowhere(*ip));
        self.addresses.truncate(MAX_ADDRESSES);
        self.pod_cidrs.truncate(MAX_ADDRESSES);
        (!self.name.is_empty() && self.name.len() <= MAX_NAME_BYTES).then_some(self)
    }

    fn is_called(&self, name: &str) -> bool {
        self.names.iter().any(|own| own == name)
    }
}

/// The part of a node to which a target refers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Spot {
    /// The kubelet of this node, on this port.
    Kubelet(String, u16),
    /// A pod of this node.
    Pod(String, SocketAddr),
    /// A service of the cluster.
    Service(SocketAddr),
}

/// All nodes. See the module's doc.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Nodes {
    by_name: BTreeMap<String, NodeObject>,
}

impl Nodes {
    /// These nodes, up to the bound.
    pub fn new(objects: impl IntoIterator<Item = NodeObject>) -> Self {
        let mut nodes = Self::default();
        objects.into_iter().for_each(|object| nodes.set(object));
        nodes
    }

    /// Adds or updates a node.
    pub fn set(&mut self, object: NodeObject) {
        let Some(object) = object.bounded() else { return };
        if self.by_name.len() < MAX_NODES || self.by_name.contains_key(&object.name) {
            self.by_name.insert(object.name.clone(), object);
        }
    }

    /// Removes a node.
    pub fn remove(&mut self, name: &str) {
        self.by_name.remove(name);
    }

    /// Adds addresses that the settings name.
    pub fn add_addresses(&mut self, addresses: &[NodeAddress]) {
        for NodeAddress { name, address } in addresses {
            let known = self.by_name.remove(name.as_str());
            let mut object = known.unwrap_or_else(|| NodeObject::named(name.as_str()));
            let address = address.to_canonical();
            if !object.addresses.contains(&address) {
                // First, since the operator's settings take precedence.
                object.addresses.insert(0, address);
            }
            self.set(object);
        }
    }

    /// The known facts about a node.
    pub fn get(&self, name: &str) -> Option<&NodeObject> {
        self.by_name.get(name)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &NodeObject> {
        self.by_name.values()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Encodes them for the next start.
    pub fn to_bytes(&self) -> Vec<u8> {
        let objects: Vec<&NodeObject> = self.iter().collect();
        let body = postcard::to_allocvec(&objects).expect("plain data serialises");
        [&[FORMAT][..], &body].concat()
    }

    /// Decodes stored nodes; `None` for other bytes.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let body = bytes.strip_prefix(&[FORMAT])?;
        let objects: Vec<NodeObject> = postcard::from_bytes(body).ok()?;
        Some(Self::new(objects))
    }

    /// The node and part to which this target refers; `services` are the networks of services.
    ///
    /// # Errors
    /// [`Refused`] for a target of no node or of two, or a port that is not a kubelet's.
    pub fn find(&self, target: &Endpoint, services: &[Cidr]) -> Result<Spot, Refused> {
        let port = target.port();
        match target.host() {
            Host::Name(name) => {
                let object = self.by_given_name(name)?;
                kubelet(object, target)
            }
            Host::Ip(ip) => {
                let ip = ip.to_canonical();
                let address = SocketAddr::new(ip, port);
                if is_nowhere(ip) {
                    let said = format!("{address} is not the address of a node, pod or service");
                    return Err(Refused::new(Refusal::Loopback, said));
                }
                if let Some(object) = self.one(ip, |it| it.addresses.contains(&ip))? {
                    return kubelet(object, target);
                }
                let has_pod = |it: &NodeObject| it.pod_cidrs.iter().any(|net| net.contains(ip));
                if let Some(object) = self.one(ip, has_pod)? {
                    return Ok(Spot::Pod(object.name.clone(), address));
                }
                if services.iter().any(|network| network.contains(ip)) {
                    return Ok(Spot::Service(address));
                }
                let said = format!(
                    "no node, pod network or service network of {} known nodes has {ip}",
                    self.len()
                );
                Err(Refused::new(Refusal::Unknown, said))
            }
        }
    }

    fn by_given_name(&self, name: &str) -> Result<&NodeObject, Refused> {
        // What Kubernetes keeps unique takes precedence over what kubelets report.
        if let Some(object) = self.by_name.get(name) {
            return Ok(object);
        }
        if name == "localhost" {
            return Err(Refused::new(Refusal::Loopback, "localhost is not a node"));
        }
        let found = self.one(name, |it| it.is_called(name))?;
        found.ok_or_else(|| {
            let hint = names::suggestion(name, self.by_name.keys().map(String::as_str));
            let hint = hint.map_or_else(String::new, |hint| format!("; {hint}"));
            let said = format!("none of {} known nodes is called {name}{hint}", self.len());
            Refused::new(Refusal::Unknown, said)
        })
    }

    /// The only node that satisfies the condition.
    fn one(
        &self,
        what: impl std::fmt::Display,
        is_it: impl Fn(&NodeObject) -> bool,
    ) -> Result<Option<&NodeObject>, Refused> {
        let mut found = self.iter().filter(|object| is_it(object));
        match (found.next(), found.next()) {
            (one, None) => Ok(one),
            (None, Some(_)) => Ok(None),
            (Some(one), Some(two)) => {
                let said = format!("the nodes {} and {} both claim {what}", one.name, two.name);
                Err(Refused::new(Refusal::Ambiguous, said))
            }
        }
    }
}

fn kubelet(object: &NodeObject, target: &Endpoint) -> Result<Spot, Refused> {
    let (name, port) = (&object.name, object.kubelet_port);
    if target.port() == port {
        return Ok(Spot::Kubelet(name.clone(), port));
    }
    let said = format!("{target} is not the kubelet of {name}, which listens on port {port}");
    Err(Refused::new(Refusal::Port, said))
}

/// Whether an address refers to the machine itself, all machines, or none.
pub(super) fn is_nowhere(ip: IpAddr) -> bool {
    let is_local = match ip.to_canonical() {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast() || ip.octets()[0] == 0,
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    is_local || ip.is_loopback() || ip.is_unspecified() || ip.is_multicast()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(number: u8) -> NodeObject {
        NodeObject {
            names: vec![format!("Worker-{number}.Example.com")],
            addresses: vec![IpAddr::from([10, 0, 0, number])],
            pod_cidrs: vec![format!("10.244.{number}.0/24").parse().expect("a network")],
            ..NodeObject::named(format!("worker-{number}"))
        }
    }

    fn nodes() -> Nodes {
        Nodes::new([object(7), object(8)])
    }

    fn find(nodes: &Nodes, target: &str) -> Result<Spot, Refused> {
        let services = ["10.96.0.0/12".parse().expect("a network")];
        nodes.find(&target.parse().expect("a target"), &services)
    }

    fn refusal(nodes: &Nodes, target: &str) -> Refusal {
        find(nodes, target).expect_err("it is refused").why
    }

    #[test]
    fn a_target_is_a_kubelet_a_pod_or_a_service() {
        let nodes = nodes();
        let kubelet = Ok(Spot::Kubelet("worker-7".into(), 10_250));
        for target in ["10.0.0.7:10250", "worker-7:10250", "worker-7.example.com:10250"] {
            assert_eq!(find(&nodes, target), kubelet, "{target}");
        }
        assert_eq!(find(&nodes, "[::ffff:10.0.0.7]:10250"), kubelet);
        let pod = "10.244.8.9:8443".parse().expect("an address");
        assert_eq!(find(&nodes, "10.244.8.9:8443"), Ok(Spot::Pod("worker-8".into(), pod)));
        let service = "10.96.0.10:443".parse().expect("an address");
        assert_eq!(find(&nodes, "10.96.0.10:443"), Ok(Spot::Service(service)));
    }

    #[test]
    fn what_is_nobodys_is_refused_by_name() {
        let nodes = nodes();
        assert_eq!(refusal(&nodes, "10.0.0.7:22"), Refusal::Port);
        assert_eq!(refusal(&nodes, "worker-7:6443"), Refusal::Port);
        assert_eq!(refusal(&nodes, "10.0.0.9:10250"), Refusal::Unknown);
        let unknown = |target: &str| {
            let refused = find(&nodes, target).expect_err("it is refused");
            assert_eq!(refused.why, Refusal::Unknown);
            refused.said
        };
        let said = "none of 2 known nodes is called worker-9; did you mean worker-7, worker-8?";
        assert_eq!(unknown("worker-9:10250"), said);
        assert_eq!(unknown("zebra:10250"), "none of 2 known nodes is called zebra");
        for target in [
            "127.0.0.1:10250",
            "[::1]:10250",
            "0.0.0.0:10250",
            "[::ffff:127.0.0.1]:10250",
            "169.254.169.254:80",
            "[fe80::1]:10250",
            "224.0.0.1:10250",
            "localhost:10250",
        ] {
            assert_eq!(refusal(&nodes, target), Refusal::Loopback, "{target}");
        }
    }

    #[test]
    fn two_that_claim_one_address_are_named() {
        let mut nodes = nodes();
        let mut thief = object(8);
        thief.addresses.push(IpAddr::from([10, 0, 0, 7]));
        thief.names.push("worker-7.example.com".into());
        // A Kubernetes name cannot be claimed by listing it.
        thief.names.push("worker-7".into());
        nodes.set(thief);
        for target in ["10.0.0.7:10250", "worker-7.example.com:10250"] {
            let refused = find(&nodes, target).expect_err("both claim it");
            assert_eq!(refused.why, Refusal::Ambiguous);
            let said = refused.said;
            assert!(said.contains("worker-7 and worker-8 both claim"), "{said}");
        }
        assert_eq!(find(&nodes, "worker-7:10250"), Ok(Spot::Kubelet("worker-7".into(), 10_250)));
        nodes.remove("worker-8");
        assert!(find(&nodes, "10.0.0.7:10250").is_ok());
    }

    #[test]
    fn a_kubelets_own_loopback_address_leads_nowhere() {
        let mut object = object(7);
        object.addresses = vec![IpAddr::from([127, 0, 0, 1]), IpAddr::from([10, 0, 0, 7])];
        let nodes = Nodes::new([object]);
        assert_eq!(refusal(&nodes, "127.0.0.1:10250"), Refusal::Loopback);
        let known = nodes.get("worker-7").expect("known");
        assert_eq!(known.addresses, [IpAddr::from([10, 0, 0, 7])]);
    }

    #[test]
    fn settings_add_addresses_and_nodes() {
        let mut nodes = nodes();
        let more = ["worker-7=192.0.2.7", "worker-9=192.0.2.9"];
        nodes.add_addresses(&more.map(|text| text.parse().expect("an address of a node")));
        for (target, name) in [
            ("192.0.2.7:10250", "worker-7"),
            ("10.0.0.7:10250", "worker-7"),
            ("192.0.2.9:10250", "worker-9"),
        ] {
            assert_eq!(find(&nodes, target), Ok(Spot::Kubelet(name.into(), 10_250)));
        }
    }

    #[test]
    fn what_is_stored_comes_back_and_other_bytes_do_not() {
        let nodes = nodes();
        let bytes = nodes.to_bytes();
        assert_eq!(Nodes::from_bytes(&bytes), Some(nodes));
        assert_eq!(Nodes::from_bytes(&bytes[..bytes.len() - 1]), None);
        assert_eq!(Nodes::from_bytes(&[9]), None);
        assert_eq!(Nodes::from_bytes(&[]), None);
    }

    #[test]
    fn there_is_room_for_so_many_and_no_more() {
        let many = (0..=MAX_NODES).map(|number| NodeObject::named(format!("n-{number}")));
        let mut nodes = Nodes::new(many);
        assert_eq!(nodes.len(), MAX_NODES);
        // A known one can still change.
        let port = |nodes: &Nodes| nodes.get("n-0").map(|it| it.kubelet_port);
        nodes.set(NodeObject { kubelet_port: 1, ..NodeObject::named("n-0") });
        assert_eq!(port(&nodes), Some(1));
    }
}
