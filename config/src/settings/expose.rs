//! `[[expose]]`: addresses for clients that run no meshport.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use super::MAX_LISTEN;
use super::schema::{List, label};
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

const SERVICE_FORM: &str = "the name of a service, such as \"kube-apiserver\"";
const LISTEN_FORM: &str = "an IP address and port, such as \"203.0.113.5:6443\" or \"[::]:6443\"";

table! {
    /// An exposed listener: addresses for clients without meshport, and its access control.
    ExposeSettings, KEYS;
    service: Option<ServiceName> = None, "service" is optional!(SERVICE_FORM, parsed),
        "The service that clients reach. If there are rules, it serves clients whose TLS server \
         name matches no rule; without it those are refused.";
    listen: Vec<SocketAddr> = Vec::new(), "listen" is list!(MAX_LISTEN, LISTEN_FORM, parsed),
        "TCP addresses for clients of other machines. Required.";
    allow: Vec<Cidr> = Vec::new(), "allow" is list!(MAX_NETWORKS, Cidr::FORM, parsed),
        "The networks whose clients may connect; all others are reset before any data is read. \
         Default: none. Sessions that a new list does not allow end.";
    accept_proxy_from: Vec<Cidr> = Vec::new(),
        "accept-proxy-from" is list!(MAX_NETWORKS, Cidr::FORM, parsed),
        "The load balancers in front of this listener. Their connections must begin with a PROXY \
         header (v1 or v2); allow and limits then apply to the client it names. Headers from other \
         sources are ignored.";
    send_proxy: ProxyHeader = ProxyHeader::Off, "send-proxy" is word!(ProxyHeader),
        "Whether to send the client's address to instances in a PROXY header. Every instance of \
         the service must expect it. Apiservers do not and refuse such connections; the audit log \
         has their clients' addresses.";
    max_sessions: u32 = 1_000, "max-sessions" is number!(1, 100_000, "sessions"),
        "Maximum concurrent sessions of this listener; further ones are reset.";
    max_sessions_per_source: u32 = 100,
        "max-sessions-per-source" is number!(1, 100_000, "sessions"),
        "Maximum concurrent sessions of a source: an IPv4 address, or an IPv6 /64.";
    max_rate_per_source: u32 = 100,
        "max-rate-per-source" is number!(1, 10_000, "connections per second"),
        "New connections per second of a source, with a burst of the same size. Further ones are \
         reset.";
    idle_timeout: Option<Duration> = None,
        "idle-timeout" is period_or_off!(Duration::from_secs(1), Duration::from_secs(86_400)),
        "How long a session may be idle before it is closed. Watches may be silent for minutes.";
    /// Services by the TLS server names that they are for, at most [`MAX_RULES`].
    rules: BTreeMap<ServiceName, ExposeRule> = BTreeMap::new();
}

table! {
    /// The names of one service at a listener.
    ExposeRule, RULE_KEYS;
    sni: Vec<NamePattern> = Vec::new(), "sni" is list!(MAX_NAMES, NamePattern::FORM, parsed),
        "The TLS server names that select it. \"*\" matches one label. An exact name takes \
         precedence over one with \"*\". TLS itself passes through. Required.";
}

/// `[[expose]]`.
pub(super) const LISTENERS: List<ListenerName, ExposeSettings> = List {
    name: "expose",
    max: MAX_EXPOSED,
    label: label(
        "name",
        "The name of this listener in status, metrics and logs. Required.",
        "1 to 63 of a-z, 0-9 and '-', with no '-' at either end",
    ),
    differs: "a name that no other [[expose]] has",
    keys: KEYS,
    required: &[],
    tables: &["rule"],
    empty: ExposeSettings::empty,
};

/// `[[expose.rule]]`.
pub(super) const RULES: List<ServiceName, ExposeRule> = List {
    name: "rule",
    max: MAX_RULES,
    label: label("service", "The service of this rule. Required.", SERVICE_FORM),
    differs: "one rule for each service of a listener",
    keys: RULE_KEYS,
    required: &[],
    tables: &[],
    empty: ExposeRule::empty,
};

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
