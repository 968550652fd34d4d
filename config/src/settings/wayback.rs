//! `[egress]` and `[kubelet]`: the way back from apiservers to nodes.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use super::tables::{parsed, reachable};
use crate::TextError;
use crate::cidr::Cidr;
use crate::endpoint::Endpoint;
use crate::ids::NodeName;

/// Maximum users that may open the socket: one per kind of apiserver.
pub const MAX_EGRESS_UIDS: usize = 16;
/// Maximum networks in a list: two families, and more for clusters that were extended.
pub const MAX_CIDRS: usize = 16;
/// The most addresses of one node's kubelet, and of a node in `nodes`.
pub const MAX_KUBELET_ADDRESSES: usize = 8;
/// The most targets outside the mesh.
pub const MAX_OUTSIDE: usize = 64;
/// The most entries of `nodes`.
pub const MAX_EGRESS_NODES: usize = 1024;

/// The mode of a socket's file, in octal: `0660`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SocketMode(u32);

impl SocketMode {
    /// The bits.
    pub fn bits(self) -> u32 {
        self.0
    }
}

impl fmt::Display for SocketMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

impl FromStr for SocketMode {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        let bits = u32::from_str_radix(text, 8).ok();
        let is_plain = text.len() == 4 && text.bytes().all(|b| b.is_ascii_digit());
        // No permissions for others: a process that opens it reaches every kubelet.
        let bits = bits.filter(|bits| is_plain && *bits <= 0o770 && bits & 0o007 == 0);
        bits.map(Self).ok_or_else(|| TextError::form("a mode", text, MODE_FORM))
    }
}

/// An address of a node, by the node's name: `worker-7=10.0.0.7`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeAddress {
    /// The node's name in its credential.
    pub name: NodeName,
    /// One of its addresses.
    pub address: IpAddr,
}

impl fmt::Display for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.address)
    }
}

impl FromStr for NodeAddress {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        let parse = || {
            let (name, address) = text.split_once('=')?;
            Some(Self { name: name.parse().ok()?, address: address.parse().ok()? })
        };
        parse().ok_or_else(|| TextError::form("an address of a node", text, NODE_FORM))
    }
}

const MODE_FORM: &str = "an octal mode without permissions for others, such as \"0660\"";
const NODE_FORM: &str = "a node's name and an address of it, such as \"worker-7=10.0.0.7\"";
const OUTSIDE_FORM: &str = "a host and port, such as \"hooks.example.com:443\"";
const CIDR_FORM: &str = "a network, such as \"10.96.0.0/12\" or \"fd00:1::/108\"";

table! {
    /// The settings of the way back on an apiserver's node and on a node with the role `egress`.
    EgressSettings, EGRESS;
    socket: Option<PathBuf> = None,
        "socket" is optional_path!(), example "\"/run/meshport/egress/egress.sock\"",
        "The Unix socket through which the local apiserver reaches kubelets, pods and services \
         (EgressSelectorConfiguration, see `meshport generate egress`). Only for a node with the \
         role origin:kube-apiserver. Off by default.";
    mode: SocketMode = SocketMode(0o660), "mode" is text!(MODE_FORM, parsed),
        "The mode of the socket file.";
    uids: Vec<u32> = Vec::new(), "uids" is list!(MAX_EGRESS_UIDS, "a user id, such as \"0\"", uid),
        "The ids of users whose processes may use the socket. Default: root and the daemon's user.";
    service_cidrs: Vec<Cidr> = Vec::new(), "service-cidrs" is list!(MAX_CIDRS, CIDR_FORM, parsed),
        "The addresses of the cluster's services (--service-cluster-ip-range). A node with the \
         socket sends connections to them to the nearest member with the role egress. A member \
         with that role dials only these.";
    nodes: Vec<NodeAddress> = Vec::new(), "nodes" is list!(MAX_EGRESS_NODES, NODE_FORM, parsed),
        "Addresses of nodes that Kubernetes does not know, or of all nodes if there is no \
         cluster-kubeconfig.";
    outside: Vec<Endpoint> = Vec::new(),
        "outside" is list!(MAX_OUTSIDE, OUTSIDE_FORM, reachable),
        "Targets outside the mesh that this node dials itself, as its apiserver would without the \
         socket: webhooks by URL, for the kind controlplane. Other outside targets are refused.";
    max_streams: u32 = 4_000, "max-streams" is number!(1, 100_000, "connections"),
        "Maximum concurrent connections of the socket; further ones are answered 503.";
}

table! {
    /// The targets on its own machine that a node lets apiservers reach.
    KubeletSettings, KUBELET;
    serve: bool = true, "serve" is flag!(),
        "Whether nodes with the role origin:kube-apiserver reach the kubelet and the pods of this \
         machine through the mesh. The role no-kubelet forbids it too.";
    port: u16 = 10250, "port" is number!(1, 65_535, "port"),
        "The kubelet's port, the only one that is dialled on this machine.";
    addresses: Vec<IpAddr> = Vec::new(),
        "addresses" is list!(MAX_KUBELET_ADDRESSES, "an IP address, such as \"10.0.0.7\"", parsed),
        "Where the kubelet listens, if not on 127.0.0.1 and not on an address of its Node object; \
         addresses of this machine.";
    pod_cidrs: Vec<Cidr> = Vec::new(), "pod-cidrs" is list!(MAX_CIDRS, CIDR_FORM, parsed),
        "The networks of this machine's pods, if its Node object lacks them or there is no \
         cluster-kubeconfig. Pods outside these networks are refused.";
}

/// A user's id in its one form.
fn uid(text: &str) -> Option<u32> {
    text.parse().ok().filter(|uid: &u32| uid.to_string() == text)
}

#[cfg(test)]
mod tests {
    use super::super::{Settings, parse};
    use super::*;

    fn parsed(text: &str) -> Result<Settings, String> {
        parse(&format!("site = \"fra\"\n{text}")).map_err(|problems| format!("{problems:?}"))
    }

    #[test]
    fn the_tables_are_read_and_written() {
        let settings = parsed(
            "[egress]\nsocket = \"/run/meshport/egress/egress.sock\"\nmode = \"0600\"\n\
             uids = [\"0\", \"65534\"]\nservice-cidrs = [\"10.96.0.0/12\"]\n\
             nodes = [\"worker-7=10.0.0.7\"]\noutside = [\"hooks.example.com:443\"]\n\
             max-streams = 7\n[kubelet]\nserve = false\nport = 10251\n\
             addresses = [\"10.0.0.7\"]\npod-cidrs = [\"fd00:1::/64\"]\n",
        );
        let settings = settings.expect("good settings");
        let EgressSettings { mode, uids, max_streams, .. } = &settings.egress;
        assert_eq!((mode.bits(), uids.as_slice(), *max_streams), (0o600, &[0, 65_534][..], 7));
        let KubeletSettings { serve, port, .. } = &settings.kubelet;
        assert_eq!((*serve, *port), (false, 10_251));
        assert_eq!(parse(&settings.to_toml()).as_ref(), Ok(&settings));
    }

    #[test]
    fn what_would_open_too_much_or_lead_nowhere_is_refused() {
        for (text, said) in [
            ("[egress]\nmode = \"0666\"", "permissions for others"),
            ("[egress]\nmode = \"4660\"", "octal mode"),
            ("[egress]\nmode = \"660\"", "octal mode"),
            ("[egress]\nuids = [\"root\"]", "a user id"),
            ("[egress]\nuids = [\"+0\"]", "a user id"),
            ("[egress]\nsocket = \"egress.sock\"", "an absolute path"),
            (
                "[egress]\nsocket = \"/var/lib/meshport/meshport.sock\"",
                "a path that no other setting uses",
            ),
            ("[egress]\nservice-cidrs = [\"10.96.0.1/12\"]", "a network"),
            ("[egress]\nnodes = [\"worker-7\"]", "a node's name and an address"),
            ("[egress]\noutside = [\"0.0.0.0:1\"]", "a host and port"),
            ("[kubelet]\nport = 0", "from 1 to 65535"),
            ("[service.way-back]\nlisten = []", "another name"),
        ] {
            let problems = parsed(text).expect_err(text);
            assert!(problems.contains(said), "{text}: {problems}");
        }
        let long = format!("[egress]\nsocket = \"/{}\"", "x".repeat(107));
        assert!(parsed(&long).expect_err("it is long").contains("107"));
    }
}
