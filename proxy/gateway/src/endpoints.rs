//! The endpoints of a Service: from EndpointSlices, or from Endpoints if the apiserver does not
//! serve `discovery.k8s.io/v1` (Kubernetes before 1.21).

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use k8s_openapi::api::core::v1::{EndpointAddress, Endpoints as LegacyEndpoints};
use k8s_openapi::api::discovery::v1::{EndpointConditions, EndpointSlice};

/// The label by which a slice names its Service.
const SERVICE_LABEL: &str = "kubernetes.io/service-name";

/// A Service, identified by namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) namespace: String,
    /// Its name in the namespace.
    pub(crate) name: String,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Whether an endpoint accepts new connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum State {
    /// It accepts them.
    Ready,
    /// It terminates but still accepts connections. It gets new ones while no other endpoint is
    /// ready, as with kube-proxy (KEP-1669).
    Draining,
    /// It does not accept them.
    NotReady,
}

/// One address that accepts connections for one port of a Service.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Endpoint {
    /// The name of the Service's port; empty for a port without one.
    pub(crate) port: String,
    pub(crate) address: SocketAddr,
    /// Whether it accepts new connections.
    pub(crate) state: State,
}

/// The endpoints of Services.
pub(crate) type Endpoints = BTreeMap<Key, Vec<Endpoint>>;

/// The Service of a slice, and the slice's endpoints; `None` if the slice belongs to no Service.
/// Host names and non-TCP ports are skipped.
pub(crate) fn of_slice(slice: &EndpointSlice) -> Option<(Key, Vec<Endpoint>)> {
    let name = slice.metadata.labels.as_ref()?.get(SERVICE_LABEL)?.clone();
    let key = Key { namespace: slice.metadata.namespace.clone()?, name };
    let mut found = Vec::new();
    for port in slice.ports.iter().flatten() {
        let Some(number) = tcp(port.protocol.as_deref(), port.port) else { continue };
        for endpoint in slice.endpoints.iter().flatten() {
            let state = state(endpoint.conditions.as_ref());
            found.extend(endpoint.addresses.iter().filter_map(|address| {
                let ip: IpAddr = address.parse().ok()?;
                let port = port.name.clone().unwrap_or_default();
                Some(Endpoint { port, address: SocketAddr::new(ip, number), state })
            }));
        }
    }
    Some((key, found))
}

/// The Service of an Endpoints object, which has the same name, and its endpoints.
pub(crate) fn of_endpoints(endpoints: &LegacyEndpoints) -> Option<(Key, Vec<Endpoint>)> {
    let metadata = &endpoints.metadata;
    let key = Key { namespace: metadata.namespace.clone()?, name: metadata.name.clone()? };
    let mut found = Vec::new();
    for subset in endpoints.subsets.iter().flatten() {
        for port in subset.ports.iter().flatten() {
            let Some(number) = tcp(port.protocol.as_deref(), Some(port.port)) else { continue };
            let mut add = |addresses: &Option<Vec<EndpointAddress>>, state| {
                found.extend(addresses.iter().flatten().filter_map(|address| {
                    let ip: IpAddr = address.ip.parse().ok()?;
                    let port = port.name.clone().unwrap_or_default();
                    Some(Endpoint { port, address: SocketAddr::new(ip, number), state })
                }));
            };
            add(&subset.addresses, State::Ready);
            add(&subset.not_ready_addresses, State::NotReady);
        }
    }
    Some((key, found))
}

/// The number of a TCP port; `None` for other protocols and for slices that cover all ports.
fn tcp(protocol: Option<&str>, number: Option<i32>) -> Option<u16> {
    let is_tcp = protocol.is_none_or(|it| it == "TCP");
    number.filter(|_| is_tcp).and_then(|it| u16::try_from(it).ok()).filter(|it| *it > 0)
}

/// Missing conditions count as ready, serving and not terminating.
fn state(conditions: Option<&EndpointConditions>) -> State {
    let Some(conditions) = conditions else { return State::Ready };
    if conditions.ready.unwrap_or(true) {
        State::Ready
    } else if conditions.terminating == Some(true) && conditions.serving.unwrap_or(true) {
        State::Draining
    } else {
        State::NotReady
    }
}

/// Whether a gateway may connect to such an address on behalf of others: never to itself, to its
/// link or to a multicast group. Otherwise an author of EndpointSlices could reach services on the
/// gateway's loopback (compare CVE-2021-25740).
pub(crate) fn may_be_reached(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => {
            !(ip.is_loopback()
                || ip.is_unspecified()
                || ip.is_link_local()
                || ip.is_multicast()
                || ip.is_broadcast())
        }
        IpAddr::V6(ip) => {
            !(ip.is_loopback()
                || ip.is_unspecified()
                || ip.is_unicast_link_local()
                || ip.is_multicast())
        }
    }
}
