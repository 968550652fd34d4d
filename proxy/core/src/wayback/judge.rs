//! Decides what a node dials for an apiserver. Only the destination node decides, and refuses by
//! default.
//!
//! | target | needs |
//! | --- | --- |
//! | any | the role `origin:kube-apiserver` of the caller |
//! | the kubelet | `node` and not `no-kubelet` of this node; `kubelet.serve`; its own port |
//! | a pod | the same; inside its own pod networks, and no address of the machine |
//! | a service | `egress` of this node; inside its `service-cidrs`, and no address of the machine |
//!
//! A relay names the origin for which it carries a stream and presents that node's credential,
//! which is only a claim ([`crate::access`]).

use std::collections::BTreeSet;
use std::iter;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use meshport_config::{
    Cidr, Credential, EgressSettings, KubeletSettings, NodeId, Revocations, Role, ServiceName,
    UnixSeconds,
};

use super::call::Want;
use super::join::serves_kubelet;
use super::nodes::{NodeObject, is_nowhere};
use super::refusal::Refusal;
use crate::access;
use crate::egress::{self, Credentials, MAX_TRUST};

/// A node's knowledge of itself.
#[derive(Debug, Clone, Copy)]
pub struct ServingNode<'a> {
    /// Its credential.
    pub credential: &'a Credential,
    /// The permissions in its settings.
    pub kubelet: &'a KubeletSettings,
    /// The same for services.
    pub egress: &'a EgressSettings,
    /// Its own Node object, if it has read it.
    pub object: Option<&'a NodeObject>,
}

impl ServingNode<'_> {
    /// The networks of its pods.
    fn pods(&self) -> impl Iterator<Item = &Cidr> {
        let said = self.object.map_or(&[][..], |object| &object.pod_cidrs);
        self.kubelet.pod_cidrs.iter().chain(said)
    }

    fn kubelet(&self, port: u16, is_local: impl Fn(IpAddr) -> bool) -> Vec<SocketAddr> {
        let said = self.object.map_or(&[][..], |object| &object.addresses);
        let more = self.kubelet.addresses.iter().chain(said).copied();
        // A Node object may list any address; a kubelet is on this machine.
        let more = more.filter(|ip| is_local(*ip));
        let all = iter::once(IpAddr::from(Ipv4Addr::LOCALHOST)).chain(more);
        let mut seen = BTreeSet::new();
        all.filter(|ip| seen.insert(*ip)).map(|ip| SocketAddr::new(ip, port)).collect()
    }

    fn has_port(&self, port: u16) -> bool {
        self.kubelet.port == port || self.object.is_some_and(|it| it.kubelet_port == port)
    }
}

/// Whether the holder of a credential is an apiserver's node.
///
/// # Errors
/// [`Refusal::NotOrigin`].
pub fn may_call(holder: &Credential, now: UnixSeconds) -> Result<(), Refusal> {
    let is_origin = holder.roles.may_offer(&ServiceName::kube_apiserver());
    if is_origin && holder.expires_at > now { Ok(()) } else { Err(Refusal::NotOrigin) }
}

/// The credential of the node that opened the stream: the peer's own, or that of the `client` for
/// which the peer relays it.
///
/// # Errors
/// [`Refusal`] if the peer is unknown, may not relay, or presents an invalid credential.
pub fn holder(
    peer: &NodeId,
    client: Option<&Credential>,
    credentials: &impl Credentials,
    now: UnixSeconds,
) -> Result<Arc<Credential>, Refusal> {
    let holder = egress::holder(peer, client, credentials, now).map_err(|why| match why {
        access::Denial::NoRelay | access::Denial::BadClient => Refusal::NotRelay,
        _ => Refusal::NotOrigin,
    })?;
    may_call(&holder, now).map(|()| holder)
}

/// The addresses to dial for a request of an apiserver's node, in this order. `is_local` tells
/// whether an address belongs to this machine.
///
/// # Errors
/// [`Refusal`]: the rule that forbids it.
pub fn judge(
    want: &Want,
    own: &ServingNode<'_>,
    is_local: impl Fn(IpAddr) -> bool,
) -> Result<Vec<SocketAddr>, Refusal> {
    match want {
        Want::Kubelet(_) | Want::Pod(_) if !serves_kubelet(own.credential) => {
            Err(Refusal::NoKubelet)
        }
        Want::Kubelet(_) | Want::Pod(_) if !own.kubelet.serve => Err(Refusal::Off),
        Want::Kubelet(port) if !own.has_port(*port) => Err(Refusal::Port),
        Want::Kubelet(port) => Ok(own.kubelet(*port, is_local)),
        Want::Service(_) if !own.credential.roles.contains(&Role::Egress) => {
            Err(Refusal::NotEgress)
        }
        Want::Pod(address) if !own.pods().any(|it| it.contains(address.ip())) => Err(Refusal::Pod),
        Want::Service(address)
            if !own.egress.service_cidrs.iter().any(|it| it.contains(address.ip())) =>
        {
            Err(Refusal::Service)
        }
        Want::Pod(address) | Want::Service(address) => {
            let ip = address.ip().to_canonical();
            if is_nowhere(ip) || address.port() == 0 || is_local(ip) {
                return Err(Refusal::OwnAddress);
            }
            Ok(vec![SocketAddr::new(ip, address.port())])
        }
    }
}

/// How long the stream of a `holder` may stay open before the next check; none if it must end: the
/// holder was revoked, its credential expired, or it is no longer an apiserver's node.
pub fn stays(
    holder: &Arc<Credential>,
    revocations: &Revocations,
    credentials: &impl Credentials,
    now: UnixSeconds,
) -> Option<Duration> {
    let holder = egress::present(holder, revocations, credentials)?;
    may_call(&holder, now).ok()?;
    let left = Duration::from_secs(holder.expires_at.0.saturating_sub(now.0));
    Some(left.min(MAX_TRUST))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{WALL, credential};

    /// A machine with this address.
    const LOCAL: [u8; 4] = [10, 0, 0, 7];

    fn is_local(ip: IpAddr) -> bool {
        ip.is_loopback() || ip == IpAddr::from(LOCAL) || ip == IpAddr::from([10, 244, 7, 1])
    }

    fn judged(roles: &str, want: &Want) -> Result<Vec<SocketAddr>, Refusal> {
        let own = credential(7, roles);
        let object = NodeObject {
            addresses: vec![LOCAL.into(), [10, 0, 0, 8].into()],
            pod_cidrs: vec!["10.244.7.0/24".parse().expect("a network")],
            kubelet_port: 10_255,
            ..NodeObject::named("node-7")
        };
        let egress = EgressSettings {
            service_cidrs: vec!["10.96.0.0/12".parse().expect("a network")],
            ..EgressSettings::default()
        };
        let kubelet = KubeletSettings::default();
        let own = ServingNode {
            credential: &own,
            kubelet: &kubelet,
            egress: &egress,
            object: Some(&object),
        };
        judge(want, &own, is_local)
    }

    fn address(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn a_node_dials_its_own_kubelet_on_its_own_addresses_only() {
        let all = |port: u16| Ok(vec![([127, 0, 0, 1], port).into(), (LOCAL, port).into()]);
        assert_eq!(judged("node", &Want::Kubelet(10_250)), all(10_250));
        assert_eq!(judged("node", &Want::Kubelet(10_255)), all(10_255), "of its Node object");
        for port in [22, 6443, 7445, 0] {
            assert_eq!(judged("node", &Want::Kubelet(port)), Err(Refusal::Port));
        }
        for roles in ["node,no-kubelet", "relay", "egress", "operator", "origin:kube-apiserver"] {
            assert_eq!(judged(roles, &Want::Kubelet(10_250)), Err(Refusal::NoKubelet), "{roles}");
            let pod = Want::Pod(address("10.244.7.9:443"));
            assert_eq!(judged(roles, &pod), Err(Refusal::NoKubelet), "{roles}");
        }
    }

    #[test]
    fn pods_are_those_in_its_own_networks() {
        let pod = |text: &str| judged("node", &Want::Pod(address(text)));
        assert_eq!(pod("10.244.7.9:443"), Ok(vec![address("10.244.7.9:443")]));
        assert_eq!(pod("[::ffff:10.244.7.9]:443"), Ok(vec![address("10.244.7.9:443")]));
        for other in ["10.244.8.9:443", "10.0.0.7:22", "127.0.0.1:10250", "[::1]:22"] {
            assert_eq!(pod(other), Err(Refusal::Pod), "{other}");
        }
        // The bridge of the pods is this machine.
        assert_eq!(pod("10.244.7.1:22"), Err(Refusal::OwnAddress));
        assert_eq!(pod("10.244.7.9:0"), Err(Refusal::OwnAddress));
    }

    #[test]
    fn services_take_the_role_egress_and_their_network() {
        let service = Want::Service(address("10.96.0.10:443"));
        assert_eq!(judged("node,egress", &service), Ok(vec![address("10.96.0.10:443")]));
        assert_eq!(judged("egress", &service), Ok(vec![address("10.96.0.10:443")]));
        assert_eq!(judged("node", &service), Err(Refusal::NotEgress));
        let other = Want::Service(address("10.0.0.9:443"));
        assert_eq!(judged("egress", &other), Err(Refusal::Service));
    }

    #[test]
    fn settings_can_shut_it_and_name_what_a_node_object_does_not() {
        let own = credential(7, "node");
        let egress = EgressSettings::default();
        let mut kubelet = KubeletSettings {
            addresses: vec![[10, 0, 0, 7].into(), [10, 0, 0, 9].into()],
            pod_cidrs: vec!["10.1.0.0/24".parse().expect("a network")],
            ..KubeletSettings::default()
        };
        let judged = |kubelet: &KubeletSettings, want: Want| {
            let own = ServingNode { credential: &own, kubelet, egress: &egress, object: None };
            judge(&want, &own, is_local)
        };
        let found = judged(&kubelet, Want::Kubelet(10_250)).expect("its own");
        assert_eq!(found, [address("127.0.0.1:10250"), address("10.0.0.7:10250")]);
        assert!(judged(&kubelet, Want::Pod(address("10.1.0.4:1"))).is_ok());
        kubelet.serve = false;
        assert_eq!(judged(&kubelet, Want::Kubelet(10_250)), Err(Refusal::Off));
    }

    #[test]
    fn only_apiservers_nodes_call() {
        for (roles, may) in [
            ("origin:kube-apiserver", true),
            ("node,origin:kube-apiserver", true),
            ("node", false),
            ("operator", false),
            ("relay", false),
            ("node,egress,origin:other", false),
        ] {
            let holder = credential(1, roles);
            assert_eq!(may_call(&holder, WALL).is_ok(), may, "{roles}");
            assert_eq!(may_call(&holder, holder.expires_at), Err(Refusal::NotOrigin));
        }
    }
}
