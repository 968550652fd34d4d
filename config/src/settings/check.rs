//! Rules between settings, each checked only if all its values were accepted.

use std::net::SocketAddr;
use std::time::Duration;

use super::period::Period;
use super::problem::{ProblemKind, Problems};
use super::read::{Positions, join};
use super::{
    Allow, DiscoverySettings, HealthMode, HealthSettings, Policy, ServiceSettings, Settings,
};
use crate::endpoint::{Endpoint, Host};
use crate::ids::ServiceName;
use crate::seed::NamedSeed;

mod exposed;
mod virtual_address;

/// The longest path of a Unix socket, in bytes: that of Linux (`sun_path`, without its NUL).
const MAX_SOCKET_PATH_BYTES: usize = 107;

/// Adds a problem for every rule that does not hold.
pub(super) fn check(settings: &Settings, positions: &Positions, problems: &mut Problems<'_>) {
    let mut rules = Rules { positions, problems };
    rules.socket(settings);
    rules.egress_socket(settings);
    rules.events_have_a_way(settings);
    rules.keepalive(settings.mesh.keepalive);
    rules.seeds_differ(&settings.mesh.seeds);
    rules.discovery(&settings.discovery);
    for (name, service) in &settings.services {
        let path = join("service", name.as_ref());
        let is_exposed = settings.expose.values().any(|it| it.services().any(|it| it == name));
        rules.use_of_service(name, &path, service, is_exposed);
        rules.listen_is_local(&path, service);
        rules.list_is_reached(&path, service);
        rules.allow_is_of_use(&path, service);
        rules.policy(&path, service);
        rules.weights_differ(&path, service);
        rules.hedging(&path, service);
        rules.health(&join(&path, "health"), &service.health);
    }
    for (name, listener) in &settings.expose {
        rules.exposed(settings, name, listener);
    }
    rules.virtual_addresses(settings);
    let listeners = listeners(settings);
    rules.listeners_differ(&listeners);
    rules.no_loops(settings, &listeners);
}

/// A TCP address that this node listens on.
struct Listener {
    key: String,
    /// The index of the element in the key's list.
    index: usize,
    addr: SocketAddr,
}

fn listeners(settings: &Settings) -> Vec<Listener> {
    let mut listeners = Vec::new();
    if let Some(addr) = settings.admin.http {
        listeners.push(Listener { key: "admin.http".to_owned(), index: 0, addr });
    }
    for (name, service) in &settings.services {
        let key = join(&join("service", name.as_ref()), "listen");
        for (index, addr) in service.listen.iter().enumerate() {
            listeners.push(Listener { key: key.clone(), index, addr: *addr });
        }
    }
    for (name, listener) in &settings.expose {
        let key = join(&join("expose", name.as_ref()), "listen");
        for (index, addr) in listener.listen.iter().enumerate() {
            listeners.push(Listener { key: key.clone(), index, addr: *addr });
        }
    }
    listeners
}

/// A duration and its key, within a table.
#[derive(Clone, Copy)]
struct Timed {
    key: &'static str,
    time: Duration,
}

const fn timed(key: &'static str, time: Duration) -> Timed {
    Timed { key, time }
}

struct Rules<'r, 't> {
    positions: &'r Positions,
    problems: &'r mut Problems<'t>,
}

impl Rules<'_, '_> {
    /// Whether the values of these keys, where given, were accepted.
    fn are_good(&self, keys: &[&str]) -> bool {
        keys.iter().all(|key| self.positions.get(*key).is_none_or(|position| position.is_good))
    }

    fn is_given(&self, key: &str) -> bool {
        self.positions.contains_key(key)
    }

    /// Adds a problem at a key or one element of its list; at its table, if only its default
    /// applies.
    fn conflict(
        &mut self,
        key: &str,
        index: Option<usize>,
        found: String,
        expected: impl Into<String>,
    ) {
        let mut span = None;
        let mut at = Some(key);
        while let (None, Some(path)) = (&span, at) {
            let position = self.positions.get(path);
            span = position.map(|position| {
                let element = index.and_then(|index| position.elements.get(index));
                element.unwrap_or(&position.span).clone()
            });
            at = path.rsplit_once('.').map(|(table, _)| table);
        }
        let span = span.unwrap_or(0..0);
        self.problems.add(ProblemKind::Conflict, &span, key, found, expected);
    }

    /// Requires one duration to be at most another.
    fn at_most(&mut self, path: &str, small: Timed, large: Timed) {
        let keys = [join(path, small.key), join(path, large.key)];
        if small.time <= large.time || !self.are_good(&[&keys[0], &keys[1]]) {
            return;
        }
        // Reported at the key that is in the file; at the first if both or none are.
        let at_large = self.is_given(&keys[1]) && !self.is_given(&keys[0]);
        let (key, own, rule, other) = if at_large {
            (&keys[1], large.time, "at least", small)
        } else {
            (&keys[0], small.time, "at most", large)
        };
        let expected = format!("{rule} {}, which is {}", other.key, Period(other.time));
        self.conflict(key, None, Period(own).to_string(), expected);
    }

    fn socket(&mut self, settings: &Settings) {
        let bytes = settings.admin.socket.as_os_str().len();
        if bytes > MAX_SOCKET_PATH_BYTES && self.are_good(&["admin.socket", "state-dir"]) {
            let expected = format!(
                "at most {MAX_SOCKET_PATH_BYTES}, the limit of Unix sockets; set admin.socket to a \
                 shorter path"
            );
            let key = if self.is_given("admin.socket") { "admin.socket" } else { "state-dir" };
            self.conflict(key, None, format!("a socket path of {bytes} bytes"), expected);
        }
    }

    fn egress_socket(&mut self, settings: &Settings) {
        const KEY: &str = "egress.socket";
        let Some(socket) = settings.egress.socket.as_ref().filter(|_| self.are_good(&[KEY])) else {
            return;
        };
        let bytes = socket.as_os_str().len();
        if bytes > MAX_SOCKET_PATH_BYTES {
            let expected = format!(
                "at most {MAX_SOCKET_PATH_BYTES}, the limit of Unix sockets; a shorter path"
            );
            self.conflict(KEY, None, format!("a socket path of {bytes} bytes"), expected);
        } else if !socket.is_absolute() {
            let found = format!("\"{}\"", socket.display());
            self.conflict(KEY, None, found, "an absolute path, as the apiserver sees it");
        } else if *socket == settings.admin.socket && self.are_good(&["admin.socket"]) {
            let found = format!("\"{}\", which is admin.socket", socket.display());
            self.conflict(KEY, None, found, "a path that no other setting uses");
        }
    }

    fn keepalive(&mut self, keepalive: Option<Duration>) {
        if let Some(time) = keepalive.filter(|time| time.subsec_nanos() != 0) {
            self.conflict("mesh.keepalive", None, Period(time).to_string(), "whole seconds");
        }
    }

    fn seeds_differ(&mut self, seeds: &[NamedSeed]) {
        if !self.are_good(&["mesh.seeds"]) {
            return;
        }
        let who = |seed: &NamedSeed| match seed {
            NamedSeed::Name(name) => name.to_string(),
            NamedSeed::Whole(seed) => seed.node.to_string(),
        };
        for (index, seed) in seeds.iter().enumerate() {
            if seeds[..index].iter().any(|earlier| who(earlier) == who(seed)) {
                let found = format!("{} a second time", who(seed));
                self.conflict(
                    "mesh.seeds",
                    Some(index),
                    found,
                    "all endpoints of a node in one seed",
                );
            }
        }
    }

    fn discovery(&mut self, discovery: &DiscoverySettings) {
        let interval = timed("probe-interval", discovery.probe_interval);
        let timeout = timed("probe-timeout", discovery.probe_timeout);
        if timeout.time == interval.time {
            let keys = ["discovery.probe-timeout", "discovery.probe-interval"];
            if self.are_good(&keys) {
                let interval = Period(interval.time);
                let expected = format!("less than probe-interval, which is {interval}");
                let key = keys[usize::from(!self.is_given(keys[0]))];
                self.conflict(key, None, Period(timeout.time).to_string(), expected);
            }
        }
        self.at_most("discovery", timeout, interval);
        self.at_most("discovery", interval, timed("suspicion", discovery.suspicion));
        let active = timed("path-probe-active", discovery.path_probe_active);
        self.at_most("discovery", active, timed("path-probe-idle", discovery.path_probe_idle));
    }

    fn hedging(&mut self, path: &str, service: &ServiceSettings) {
        let least = timed("hedge-min", service.hedge_min);
        self.at_most(path, least, timed("hedge-max", service.hedge_max));
    }

    fn use_of_service(
        &mut self,
        name: &ServiceName,
        path: &str,
        service: &ServiceSettings,
        is_exposed: bool,
    ) {
        if name.as_str() == ServiceName::KUBE_APISERVER {
            return;
        }
        let (listen, origin) = (join(path, "listen"), join(path, "origin"));
        if !self.is_given(&listen) {
            let span = self.positions.get(path).map_or(0..0, |position| position.span.clone());
            let expected = "the addresses for local clients, or [] to offer the service only";
            self.problems.add(ProblemKind::Missing, &span, &listen, "nothing", expected);
        } else if service.listen.is_empty()
            && service.origin.is_none()
            && !is_exposed
            && self.are_good(&[&listen, &origin])
        {
            let expected = "an address, an origin to offer, or an [[expose]] for it";
            self.conflict(&listen, None, "empty, but there is no origin".to_owned(), expected);
        }
    }

    fn listen_is_local(&mut self, path: &str, service: &ServiceSettings) {
        let keys = [join(path, "listen"), join(path, "allow-remote-clients")];
        if service.allow_remote_clients || !self.are_good(&[&keys[0], &keys[1]]) {
            return;
        }
        for (index, addr) in service.listen.iter().enumerate() {
            if !addr.ip().to_canonical().is_loopback() {
                let expected = "a loopback address, or allow-remote-clients = true";
                self.conflict(&keys[0], Some(index), format!("\"{addr}\""), expected);
            }
        }
    }

    fn events_have_a_way(&mut self, settings: &Settings) {
        let key = "events.kubernetes";
        let has_one = settings.services.values().any(|it| it.cluster_kubeconfig.is_some());
        if settings.events.kubernetes && !has_one && self.are_good(&[key]) {
            let expected = "cluster-kubeconfig of a service, which is used to write Events";
            self.conflict(key, None, "true".to_owned(), expected);
        }
    }

    fn list_is_reached(&mut self, path: &str, service: &ServiceSettings) {
        let keys = [join(path, "cluster-kubeconfig"), join(path, "listen")];
        let is_set = service.cluster_kubeconfig.is_some();
        if is_set && service.listen.is_empty() && self.are_good(&[&keys[0], &keys[1]]) {
            let expected = "an address in listen, to read the list through";
            self.conflict(&keys[0], None, "set, but listen is empty".to_owned(), expected);
        }
    }

    fn allow_is_of_use(&mut self, path: &str, service: &ServiceSettings) {
        let keys = [join(path, "allow"), join(path, "origin")];
        let is_set = service.allow != Allow::everyone();
        if is_set && service.origin.is_none() && self.are_good(&[&keys[0], &keys[1]]) {
            let expected = "origin as well: the list says who may use the local instance";
            self.conflict(&keys[0], None, "set, but there is no origin".to_owned(), expected);
        }
    }

    fn policy(&mut self, path: &str, service: &ServiceSettings) {
        let (policy, pinned) = (join(path, "policy"), join(path, "pinned"));
        if !self.are_good(&[&policy, &pinned]) {
            return;
        }
        let is_pinned = service.policy == Policy::Pinned;
        if is_pinned && service.pinned.is_empty() {
            let expected = "the list pinned with at least one node";
            self.conflict(&policy, None, "\"pinned\"".to_owned(), expected);
        }
        if !is_pinned && !service.pinned.is_empty() {
            let found = format!("set, but policy is \"{}\"", service.policy);
            self.conflict(&pinned, None, found, "policy = \"pinned\" with it, or no list");
        }
    }

    fn weights_differ(&mut self, path: &str, service: &ServiceSettings) {
        let key = join(path, "weights");
        for (index, later) in service.weights.iter().enumerate() {
            let mut earlier = service.weights[..index].iter();
            if earlier.any(|it| it.origin == later.origin) && self.are_good(&[&key]) {
                let found = format!("\"{later}\", but {} already has a weight", later.origin);
                self.conflict(&key, Some(index), found, "one weight for each origin");
            }
        }
    }

    fn health(&mut self, path: &str, health: &HealthSettings) {
        let timeout = timed("timeout", health.timeout);
        self.at_most(path, timeout, timed("ready-timeout", health.ready_timeout));
        self.health_mode(path, health);
        let key = |name: &str| join(path, name);
        let (ca, cert) = (key("ca-file"), key("client-cert-file"));
        let (private, token) = (key("client-key-file"), key("bearer-token-file"));
        if !self.are_good(&[&ca, &cert, &private, &token]) {
            return;
        }
        let with_key = health.client_key_file.is_some();
        let with_cert = health.client_cert_file.is_some();
        if with_cert && !with_key {
            self.conflict(&cert, None, "set".to_owned(), "client-key-file as well");
        }
        if with_key && !with_cert {
            self.conflict(&private, None, "set".to_owned(), "client-cert-file as well");
        }
        if health.ca_file.is_some() {
            return;
        }
        let why = "ca-file as well, so that it is sent only to the verified instance";
        if health.bearer_token_file.is_some() {
            self.conflict(&token, None, "set".to_owned(), why);
        }
        if with_cert {
            self.conflict(&cert, None, "set".to_owned(), why);
        }
    }

    /// Keys without effect in the mode are errors, so that nobody relies on them.
    fn health_mode(&mut self, path: &str, health: &HealthSettings) {
        const USES: [(&str, HealthMode); 6] = [
            ("ca-file", HealthMode::Kubernetes),
            ("client-cert-file", HealthMode::Kubernetes),
            ("client-key-file", HealthMode::Kubernetes),
            ("bearer-token-file", HealthMode::Kubernetes),
            ("server-name", HealthMode::Kubernetes),
            ("path", HealthMode::Http),
        ];
        // The default path is allowed, so that the effective configuration can show it.
        let is_set = |name: &str| name != "path" || health.path != "/";
        for (name, mode) in USES {
            let key = join(path, name);
            let is_used = mode == health.mode || !is_set(name) || !self.is_given(&key);
            if !is_used && self.are_good(&[&key, &join(path, "mode")]) {
                let found = format!("set, but mode is \"{}\"", health.mode);
                self.conflict(&key, None, found, format!("it only with mode = \"{mode}\""));
            }
        }
    }

    fn listeners_differ(&mut self, listeners: &[Listener]) {
        for (index, later) in listeners.iter().enumerate() {
            for earlier in &listeners[..index] {
                if !collide(earlier.addr, later.addr) || !self.are_good(&[&earlier.key, &later.key])
                {
                    continue;
                }
                // Report the problem at a value in the file rather than at a default.
                let at_earlier = !self.is_given(&later.key) && self.is_given(&earlier.key);
                let (at, other) = if at_earlier { (earlier, later) } else { (later, earlier) };
                let found =
                    format!("\"{}\", which {} takes as \"{}\"", at.addr, other.key, other.addr);
                self.conflict(
                    &at.key,
                    Some(at.index),
                    found,
                    "an address that nothing else \
                                                               listens on",
                );
            }
        }
    }

    /// An origin that is one of this node's own listeners would be reached through itself in a
    /// loop.
    fn no_loops(&mut self, settings: &Settings, listeners: &[Listener]) {
        for (name, service) in &settings.services {
            let Some(origin) = &service.origin else { continue };
            let key = join(&join("service", name.as_ref()), "origin");
            let own = listeners.iter().find(|listener| reaches(origin, listener.addr));
            if let Some(own) = own.filter(|own| self.are_good(&[&own.key, &key])) {
                let found = format!("\"{origin}\", which is {} of this node", own.key);
                self.conflict(&key, None, found, "the address of the instance itself");
            }
        }
    }
}

/// Whether both addresses cannot be listened on at once. Port 0 takes any free one.
fn collide(a: SocketAddr, b: SocketAddr) -> bool {
    let same_family = a.is_ipv4() == b.is_ipv4();
    let is_any = |addr: SocketAddr| addr.ip().is_unspecified();
    let overlap = a.ip() == b.ip() || (same_family && (is_any(a) || is_any(b)));
    a.port() == b.port() && a.port() != 0 && overlap
}

/// Whether connecting to `origin` reaches a listener of this node.
fn reaches(origin: &Endpoint, listener: SocketAddr) -> bool {
    let ip = listener.ip();
    let is_local = |host: &Host| match host {
        Host::Ip(host) => *host == ip || (host.is_loopback() && ip.is_unspecified()),
        Host::Name(name) => name == "localhost" && (ip.is_loopback() || ip.is_unspecified()),
    };
    origin.port() == listener.port() && is_local(origin.host())
}
