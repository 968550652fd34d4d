//! Decides which Services of a cluster are offered in the mesh, and why the others are not. Pure: a
//! [`Plan`] depends only on [`Snapshot`] and [`Rules`], so gateways with the same rules agree.
//!
//! A Service requests it with the annotation [`EXPOSE`], or with type `LoadBalancer` and class
//! [`CLASS`]. If two request the same name, the older one gets it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use meshport_config::{Allow, Cidr, ServiceName};
use meshport_core::offered::{Instance, MAX_ALLOWED, MAX_INSTANCES, MAX_OFFERED_SERVICES};
use meshport_daemon::admin::offers::{OfferedService, OffersRequest};

use crate::endpoints::{Endpoint, Endpoints, Key, State, may_be_reached};

/// The names of a Service in the mesh: `NAME` or `NAME:PORT`, separated by commas. `PORT` is a
/// port's number or name, required if the Service has several.
pub(crate) const EXPOSE: &str = "meshport.io/expose";
/// The nodes that may use it, as in `allow` of `[service.NAME]`, separated by commas.
pub(crate) const ALLOW: &str = "meshport.io/allow";
/// The class of Services of type `LoadBalancer` that are offered without an annotation, as
/// `NAME-NAMESPACE`, and as `NAME-NAMESPACE-PORT` if there are several ports.
pub(crate) const CLASS: &str = "meshport.io/mesh";

/// The limits that the gateway's operator sets for the cluster.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rules {
    /// Namespaces whose Services are offered; empty for all.
    pub(crate) namespaces: BTreeSet<String>,
    /// Networks that endpoints must belong to; empty for all except this machine and its links.
    pub(crate) endpoint_networks: Vec<Cidr>,
    /// Whether Services of type `ExternalName` are offered.
    pub(crate) external_names: bool,
    /// Addresses written into the status of Services of type `LoadBalancer`; see [`has_address`].
    pub(crate) addresses: Vec<IpAddr>,
}

/// The state of a cluster.
#[derive(Debug, Clone, Default)]
pub(crate) struct Snapshot {
    pub(crate) services: Vec<Arc<Service>>,
    /// Their endpoints.
    pub(crate) endpoints: Endpoints,
    /// The addresses of names of Services of type `ExternalName`.
    pub(crate) resolved: BTreeMap<String, Vec<IpAddr>>,
}

/// The Services that are offered, and those that are not.
#[derive(Debug, Clone, Default)]
pub(crate) struct Plan {
    /// The offers, by name in the mesh.
    pub(crate) offers: BTreeMap<ServiceName, Offer>,
    pub(crate) refusals: Vec<Refusal>,
}

/// One port of a Service as a service of the mesh.
#[derive(Debug, Clone)]
pub(crate) struct Offer {
    pub(crate) service: Arc<Service>,
    /// The Service's own port.
    pub(crate) port: u16,
    /// The nodes that may use it; `None` for the default.
    pub(crate) allow: Option<Vec<String>>,
    /// Its instances: at most [`MAX_INSTANCES`], ready ones first.
    pub(crate) instances: Vec<Instance>,
    /// The number of endpoints omitted: above the limit, or at addresses that the rules forbid.
    pub(crate) left_out: usize,
}

/// A Service whose request is refused.
#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    pub(crate) service: Arc<Service>,
    /// The reason.
    pub(crate) cause: Cause,
}

/// Why a Service is not offered.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub(crate) enum Cause {
    /// An older Service has the name.
    #[error("the name {name} in the mesh belongs to the older Service {holder}")]
    NameTaken {
        /// The name.
        name: ServiceName,
        /// The Service that has it.
        holder: Key,
    },
    /// An older Service uses the port on the gateway's addresses.
    #[error("port {port} of the gateway's address belongs to the older Service {holder}")]
    PortTaken {
        /// The port.
        port: u16,
        /// The Service that has it.
        holder: Key,
    },
    /// An annotation is invalid.
    #[error("annotation {annotation}: {why}")]
    BadAnnotation {
        /// The annotation.
        annotation: &'static str,
        /// The problem.
        why: String,
    },
    /// The names derived for a Service of the class are too long.
    #[error("{0:?} is not a valid mesh service name; set the annotation {EXPOSE}")]
    BadName(String),
    /// There is no such TCP port.
    #[error("{0} is not a TCP port of this Service")]
    NoPort(String),
    /// Several ports, and none is named.
    #[error("this Service has {0} TCP ports, not one; set {EXPOSE} to \"NAME:PORT\"")]
    WhichPort(usize),
    /// There are too many offers.
    #[error("a gateway offers at most {MAX_OFFERED_SERVICES} services, and older ones are offered")]
    TooMany,
    /// The Service is of type `ExternalName`.
    #[error("this gateway does not offer Services of type ExternalName (--external-names)")]
    ExternalName,
    /// The daemon refuses it.
    #[error("the gateway's daemon refuses {name}: {why}")]
    Daemon {
        /// The name in the mesh.
        name: ServiceName,
        /// The daemon's reason.
        why: String,
    },
}

impl Cause {
    /// The `reason` of the Event that reports it.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::NameTaken { .. } => "MeshNameTaken",
            Self::PortTaken { .. } => "MeshPortTaken",
            Self::BadAnnotation { .. } => "MeshBadAnnotation",
            Self::BadName(_) => "MeshBadName",
            Self::NoPort(_) | Self::WhichPort(_) => "MeshNoPort",
            Self::TooMany => "MeshTooManyServices",
            Self::ExternalName => "MeshExternalName",
            Self::Daemon { .. } => "MeshRefused",
        }
    }
}

/// A Service's namespace and name.
pub(crate) fn key(service: &Service) -> Key {
    let metadata = &service.metadata;
    Key {
        namespace: metadata.namespace.clone().unwrap_or_default(),
        name: metadata.name.clone().unwrap_or_default(),
    }
}

/// Whether a Service is of type `LoadBalancer` and of the mesh's class.
pub(crate) fn is_of_class(service: &Service) -> bool {
    is_balancer(service) && class(service) == Some(CLASS)
}

/// Whether the gateway's addresses belong in a Service's status: if it has the class, or has no
/// class and the annotation. A Service without a class may also belong to the cloud's load
/// balancer, which should not run then.
pub(crate) fn has_address(service: &Service) -> bool {
    is_of_class(service)
        || is_balancer(service) && class(service).is_none() && annotation(service, EXPOSE).is_some()
}

fn is_balancer(service: &Service) -> bool {
    let spec = service.spec.as_ref();
    spec.and_then(|it| it.type_.as_deref()) == Some("LoadBalancer")
}

fn class(service: &Service) -> Option<&str> {
    service.spec.as_ref()?.load_balancer_class.as_deref()
}

/// The name behind a Service of type `ExternalName`.
pub(crate) fn external_name(service: &Service) -> Option<&str> {
    let spec = service.spec.as_ref()?;
    spec.external_name.as_deref().filter(|_| spec.type_.as_deref() == Some("ExternalName"))
}

/// Whether a Service requests to be offered and is in an allowed namespace.
pub(crate) fn is_wanted(service: &Service, rules: &Rules) -> bool {
    let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
    let is_here = rules.namespaces.is_empty() || rules.namespaces.contains(namespace);
    is_here && (annotation(service, EXPOSE).is_some() || is_of_class(service))
}

/// Decides which Services are offered.
pub(crate) fn plan(snapshot: &Snapshot, rules: &Rules) -> Plan {
    let mut wanted: Vec<&Arc<Service>> =
        snapshot.services.iter().filter(|it| is_wanted(it, rules)).collect();
    // Services created together have the same age, so the name decides. All gateways use this
    // order.
    wanted.sort_by_key(|it| (it.metadata.creation_timestamp.clone(), key(it)));
    let mut made = Making { snapshot, rules, plan: Plan::default(), ports: BTreeMap::new() };
    for service in wanted {
        if let Err(cause) = made.add(service) {
            made.plan.refusals.push(Refusal { service: service.clone(), cause });
        }
    }
    made.plan
}

impl Plan {
    /// The offer for the daemon, which holds it for `ttl_s` seconds.
    pub(crate) fn request(&self, ttl_s: u64) -> OffersRequest {
        let services = self.offers.iter().map(|(name, offer)| {
            let everyone = || Allow::everyone().iter().map(ToString::to_string).collect();
            let allow = offer.allow.clone().unwrap_or_else(everyone);
            (name.clone(), OfferedService { instances: offer.instances.clone(), allow })
        });
        OffersRequest { services: services.collect(), ttl_s }
    }
}

/// A plan under construction.
struct Making<'a> {
    snapshot: &'a Snapshot,
    rules: &'a Rules,
    plan: Plan,
    /// The Service that uses each port of the addresses.
    ports: BTreeMap<u16, Key>,
}

/// A port of a Service, and its name in the mesh.
struct Wish<'a> {
    name: ServiceName,
    port: &'a ServicePort,
}

impl Making<'_> {
    /// Offers everything that a Service requests, or nothing.
    fn add(&mut self, service: &Arc<Service>) -> Result<(), Cause> {
        if external_name(service).is_some() && !self.rules.external_names {
            return Err(Cause::ExternalName);
        }
        let wishes = wishes(service)?;
        let allow = allow(service)?;
        self.are_free(service, &wishes)?;
        if self.plan.offers.len() + wishes.len() > MAX_OFFERED_SERVICES {
            return Err(Cause::TooMany);
        }
        for Wish { name, port } in wishes {
            let number = number(port);
            if has_address(service) && !self.rules.addresses.is_empty() {
                self.ports.insert(number, key(service));
            }
            let (instances, left_out) = self.instances(service, port);
            let (service, allow) = (service.clone(), allow.clone());
            let offer = Offer { service, port: number, allow, instances, left_out };
            self.plan.offers.insert(name, offer);
        }
        Ok(())
    }

    /// Checks that no older Service has one of the names or ports.
    fn are_free(&self, service: &Service, wishes: &[Wish<'_>]) -> Result<(), Cause> {
        let mut names = BTreeSet::new();
        for Wish { name, port } in wishes {
            if let Some(offer) = self.plan.offers.get(name) {
                return Err(Cause::NameTaken { name: name.clone(), holder: key(&offer.service) });
            }
            if !names.insert(name) {
                let why = format!("{name} is listed twice");
                return Err(Cause::BadAnnotation { annotation: EXPOSE, why });
            }
            let holder = self.ports.get(&number(port)).filter(|_| has_address(service));
            if let Some(holder) = holder.cloned() {
                return Err(Cause::PortTaken { port: number(port), holder });
            }
        }
        Ok(())
    }

    /// The instances for a port, and the number of endpoints omitted.
    fn instances(&self, service: &Service, port: &ServicePort) -> (Vec<Instance>, usize) {
        let found = self.endpoints(service, port);
        let all = found.len();
        let allowed = |ip: IpAddr| {
            let networks = &self.rules.endpoint_networks;
            may_be_reached(ip) && (networks.is_empty() || networks.iter().any(|it| it.contains(ip)))
        };
        let mut found: Vec<(State, SocketAddr)> =
            found.into_iter().filter(|(_, address)| allowed(address.ip())).collect();
        found.sort_unstable();
        let best = match found.first() {
            Some((State::Ready | State::NotReady, _)) | None => State::Ready,
            Some((State::Draining, _)) => State::Draining,
        };
        let instances = found.iter().take(MAX_INSTANCES);
        let instances: Vec<Instance> =
            instances.map(|&(state, address)| Instance { address, ready: state == best }).collect();
        let left_out = all - instances.len();
        (instances, left_out)
    }

    /// Each address of a port once, with its best state.
    fn endpoints(&self, service: &Service, port: &ServicePort) -> BTreeSet<(State, SocketAddr)> {
        if let Some(host) = external_name(service) {
            let ips = self.snapshot.resolved.get(host).into_iter().flatten();
            return ips.map(|ip| (State::Ready, SocketAddr::new(*ip, number(port)))).collect();
        }
        let port = port.name.as_deref().unwrap_or_default();
        let mut best: BTreeMap<SocketAddr, State> = BTreeMap::new();
        let all = self.snapshot.endpoints.get(&key(service)).into_iter().flatten();
        for Endpoint { address, state, .. } in all.filter(|it| it.port == port) {
            best.entry(*address).and_modify(|it| *it = (*it).min(*state)).or_insert(*state);
        }
        best.into_iter().map(|(address, state)| (state, address)).collect()
    }
}

fn annotation<'a>(service: &'a Service, name: &str) -> Option<&'a str> {
    service.metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

/// The items of an annotation's list.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|it| !it.is_empty())
}

/// The nodes that may use a Service, if it has the annotation.
fn allow(service: &Service) -> Result<Option<Vec<String>>, Cause> {
    let Some(text) = annotation(service, ALLOW) else { return Ok(None) };
    let bad = |why: String| Cause::BadAnnotation { annotation: ALLOW, why };
    let entries: Vec<String> = words(text).map(str::to_owned).collect();
    if entries.len() > MAX_ALLOWED {
        return Err(bad(format!("{} entries; at most {MAX_ALLOWED} are possible", entries.len())));
    }
    for entry in &entries {
        entry.parse::<Allow>().map_err(|error| bad(error.to_string()))?;
    }
    Ok(Some(entries))
}

/// The ports and names that a Service requests in the mesh.
fn wishes(service: &Service) -> Result<Vec<Wish<'_>>, Cause> {
    let Some(text) = annotation(service, EXPOSE) else { return of_class(service) };
    let bad = |why: String| Cause::BadAnnotation { annotation: EXPOSE, why };
    let wishes: Result<Vec<Wish<'_>>, Cause> = words(text)
        .map(|word| {
            let (name, port) = word.split_once(':').map_or((word, None), |(a, b)| (a, Some(b)));
            let name = name.parse().map_err(|error| bad(format!("{error}")))?;
            Ok(Wish { name, port: port_of(service, port)? })
        })
        .collect();
    let wishes = wishes?;
    if wishes.is_empty() {
        return Err(bad("it contains no service name".to_owned()));
    }
    Ok(wishes)
}

/// All ports of a Service of the class.
fn of_class(service: &Service) -> Result<Vec<Wish<'_>>, Cause> {
    let Key { namespace, name } = key(service);
    let ports: Vec<&ServicePort> = tcp_ports(service).collect();
    if ports.is_empty() {
        return Err(Cause::WhichPort(0));
    }
    let several = ports.len() > 1;
    let wishes = ports.into_iter().map(|port| {
        let mut text = format!("{name}-{namespace}");
        if several {
            let number = || number(port).to_string();
            text.push('-');
            text.push_str(&port.name.clone().unwrap_or_else(number));
        }
        let name = text.parse().map_err(|_| Cause::BadName(text))?;
        Ok(Wish { name, port })
    });
    wishes.collect()
}

fn tcp_ports(service: &Service) -> impl Iterator<Item = &ServicePort> {
    let ports = service.spec.as_ref().and_then(|ServiceSpec { ports, .. }| ports.as_ref());
    ports
        .into_iter()
        .flatten()
        .filter(|port| port.protocol.as_deref().is_none_or(|it| it == "TCP") && number(port) > 0)
}

/// A port's number; 0 if it is out of range, which an apiserver does not accept.
fn number(port: &ServicePort) -> u16 {
    u16::try_from(port.port).unwrap_or(0)
}

/// The port with this name or number, or the only port.
fn port_of<'a>(service: &'a Service, named: Option<&str>) -> Result<&'a ServicePort, Cause> {
    match named {
        Some(named) => tcp_ports(service)
            .find(|it| it.name.as_deref() == Some(named) || number(it).to_string() == named)
            .ok_or_else(|| Cause::NoPort(named.to_owned())),
        None => {
            let mut ports = tcp_ports(service);
            let first = ports.next().ok_or(Cause::WhichPort(0))?;
            match ports.count() {
                0 => Ok(first),
                more => Err(Cause::WhichPort(more + 1)),
            }
        }
    }
}

#[cfg(test)]
mod tests;
