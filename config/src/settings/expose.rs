//! `[[expose]]`: addresses for clients that run no meshport.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use super::MAX_LISTEN;
use super::schema::{Key, key};
use super::tables::parsed;
use crate::cidr::Cidr;
use crate::ids::{ListenerName, ServiceName};
use crate::name_pattern::NamePattern;

/// Maximum exposed listeners of a node. Each has its own counters and label values.
pub const MAX_EXPOSED: usize = 32;
/// Maximum networks in a listener's list: each is compared with every new client.
pub const MAX_NETWORKS: usize = 256;
/// Maximum services that a listener selects by name.
pub const MAX_RULES: usize = 16;
/// The most names of one rule.
pub const MAX_NAMES: usize = 64;

choice! {
    /// How an instance gets the address of its client, before the client's own bytes.
    ProxyHeader, "a PROXY header", "off, v1 or v2", {
        /// No header.
        Off = "off",
        /// The PROXY protocol, version 1: a line of text.
        V1 = "v1",
        /// The PROXY protocol, version 2: binary.
        V2 = "v2",
    }
}

/// An exposed listener: addresses for clients without meshport, and its access control.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExposeSettings {
    /// The service for clients whose server name matches no rule, or that send none; without it
    /// they are refused.
    pub service: Option<ServiceName>,
    /// Its TCP addresses, 1 to [`MAX_LISTEN`].
    pub listen: Vec<SocketAddr>,
    /// The admitted clients, at most [`MAX_NETWORKS`]. Default none.
    pub allow: Vec<Cidr>,
    /// The balancers whose PROXY header is trusted, at most [`MAX_NETWORKS`]. Default none.
    pub accept_proxy_from: Vec<Cidr>,
    /// How instances get the client's address. Default off.
    pub send_proxy: ProxyHeader,
    /// The most sessions at once, 1 to 100,000. Default 1,000.
    pub max_sessions: u32,
    /// The most sessions of one source at once, 1 to 100,000. Default 100.
    pub max_sessions_per_source: u32,
    /// New connections of one source in a second, 1 to 10,000; as many may come at once. Default
    /// 100.
    pub max_rate_per_source: u32,
    /// How long nothing may pass before a session ends, 1 s to 24 h. Default off.
    pub idle_timeout: Option<Duration>,
    /// Services by the TLS server names that they are for, at most [`MAX_RULES`].
    pub rules: BTreeMap<ServiceName, ExposeRule>,
}

/// The names of one service at a listener.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExposeRule {
    /// 1 to [`MAX_NAMES`] of them.
    pub sni: Vec<NamePattern>,
}

impl Default for ExposeSettings {
    /// An empty listener: no address, no clients.
    fn default() -> Self {
        Self {
            service: None,
            listen: Vec::new(),
            allow: Vec::new(),
            accept_proxy_from: Vec::new(),
            send_proxy: ProxyHeader::Off,
            max_sessions: 1_000,
            max_sessions_per_source: 100,
            max_rate_per_source: 100,
            idle_timeout: None,
            rules: BTreeMap::new(),
        }
    }
}

impl ExposeSettings {
    /// Every service that it serves, each once.
    pub fn services(&self) -> impl Iterator<Item = &ServiceName> {
        let other = |name: &&ServiceName| !self.rules.contains_key(*name);
        self.service.iter().filter(other).chain(self.rules.keys())
    }

    /// Why no client can connect; `None` if some can.
    pub fn doubt(&self) -> Option<&'static str> {
        self.allow.is_empty().then_some(
            "an empty list refuses every client; list the networks that may connect, such as \
             [\"192.0.2.0/24\"]",
        )
    }

    /// The example in the reference.
    pub(super) fn example() -> Self {
        let service = Some(ServiceName::kube_apiserver());
        let listen = vec![SocketAddr::from(([203, 0, 113, 5], 6443))];
        let allow = vec!["192.0.2.0/24".parse().expect("a network")];
        Self { service, listen, allow, ..Self::default() }
    }
}

/// A listener with its name, as its table is read and written.
pub(super) struct Named {
    pub(super) name: Option<ListenerName>,
    pub(super) settings: ExposeSettings,
}

/// A rule with its service, as its table is read and written.
pub(super) struct Ruled {
    pub(super) service: Option<ServiceName>,
    pub(super) rule: ExposeRule,
}

const NAME_FORM: &str = "1 to 63 of a-z, 0-9 and '-', with no '-' at either end";
const SERVICE_FORM: &str = "the name of a service, such as \"kube-apiserver\"";
const LISTEN_FORM: &str = "an IP address and port, such as \"203.0.113.5:6443\" or \"[::]:6443\"";

pub(super) const KEYS: &[Key<Named>] = &[
    key(
        "name",
        "The name of this listener in status, metrics and logs. Required.",
        optional!(name, NAME_FORM, parsed),
    ),
    key(
        "service",
        "The service that clients reach. If there are rules, it serves clients whose TLS server \
         name matches no rule; without it those are refused.",
        optional!(settings.service, SERVICE_FORM, parsed),
    ),
    key(
        "listen",
        "TCP addresses for clients of other machines. Required.",
        list!(settings.listen, MAX_LISTEN, LISTEN_FORM, parsed),
    ),
    key(
        "allow",
        "The networks whose clients may connect; all others are reset before any data is read. \
         Default: none. Sessions that a new list does not allow end.",
        list!(settings.allow, MAX_NETWORKS, Cidr::FORM, parsed),
    ),
    key(
        "accept-proxy-from",
        "The load balancers in front of this listener. Their connections must begin with a PROXY \
         header (v1 or v2); allow and limits then apply to the client it names. Headers from other \
         sources are ignored.",
        list!(settings.accept_proxy_from, MAX_NETWORKS, Cidr::FORM, parsed),
    ),
    key(
        "send-proxy",
        "Whether to send the client's address to instances in a PROXY header. Every instance of \
         the service must expect it. Apiservers do not and refuse such connections; the audit log \
         has their clients' addresses.",
        word!(settings.send_proxy, ProxyHeader),
    ),
    key(
        "max-sessions",
        "Maximum concurrent sessions of this listener; further ones are reset.",
        number!(settings.max_sessions, 1, 100_000, "sessions"),
    ),
    key(
        "max-sessions-per-source",
        "Maximum concurrent sessions of a source: an IPv4 address, or an IPv6 /64.",
        number!(settings.max_sessions_per_source, 1, 100_000, "sessions"),
    ),
    key(
        "max-rate-per-source",
        "New connections per second of a source, with a burst of the same size. Further ones are \
         reset.",
        number!(settings.max_rate_per_source, 1, 10_000, "connections per second"),
    ),
    key(
        "idle-timeout",
        "How long a session may be idle before it is closed. Watches may be silent for minutes.",
        period_or_off!(settings.idle_timeout, Duration::from_secs(1), Duration::from_secs(86_400)),
    ),
];

pub(super) const RULE_KEYS: &[Key<Ruled>] = &[
    key("service", "The service of this rule. Required.", optional!(service, SERVICE_FORM, parsed)),
    key(
        "sni",
        "The TLS server names that select it. \"*\" matches one label. An exact name takes \
         precedence over one with \"*\". TLS itself passes through. Required.",
        list!(rule.sni, MAX_NAMES, NamePattern::FORM, parsed),
    ),
];
