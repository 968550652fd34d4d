//! `[[expose]]`: addresses for clients that run no meshport.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use super::MAX_LISTEN;
use super::schema::{Key, Kind};
use crate::cidr::Cidr;
use crate::ids::{ListenerName, ServiceName};
use crate::name_pattern::NamePattern;
use crate::text::TextError;

/// Maximum exposed listeners of a node. Each has its own counters and label values.
pub const MAX_EXPOSED: usize = 32;
/// Maximum networks in a listener's list: each is compared with every new client.
pub const MAX_NETWORKS: usize = 256;
/// Maximum services that a listener selects by name.
pub const MAX_RULES: usize = 16;
/// The most names of one rule.
pub const MAX_NAMES: usize = 64;

/// How an instance gets the address of its client, before the client's own bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProxyHeader {
    /// No header.
    Off,
    /// The PROXY protocol, version 1: a line of text.
    V1,
    /// The PROXY protocol, version 2: binary.
    V2,
}

impl ProxyHeader {
    /// The text forms of all values.
    pub const NAMES: &[&str] = &["off", "v1", "v2"];

    /// The text form.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::V1 => "v1",
            Self::V2 => "v2",
        }
    }
}

impl FromStr for ProxyHeader {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        match text {
            "off" => Ok(Self::Off),
            "v1" => Ok(Self::V1),
            "v2" => Ok(Self::V2),
            _ => Err(TextError::form("a PROXY header", text, "off, v1 or v2")),
        }
    }
}

impl fmt::Display for ProxyHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
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

macro_rules! networks {
    ($field:ident) => {
        Kind::List {
            expected: Cidr::FORM,
            max: MAX_NETWORKS,
            get: |from| from.settings.$field.iter().map(ToString::to_string).collect(),
            clear: |into| into.settings.$field.clear(),
            push: |into, text| {
                let network = text.parse().ok()?;
                into.settings.$field.push(network);
                Some(())
            },
        }
    };
}

macro_rules! number {
    ($field:ident, $max:literal, $unit:literal) => {
        Kind::Integer {
            min: 1,
            max: $max,
            unit: $unit,
            get: |from| from.settings.$field,
            set: |into, value| into.settings.$field = value,
        }
    };
}

pub(super) const KEYS: &[Key<Named>] = &[
    Key {
        name: "name",
        about: "The name of this listener in status, metrics and logs. Required.",
        example: Some("\"ci\""),
        kind: Kind::Text {
            expected: NAME_FORM,
            get: |from| from.name.as_ref().map(ToString::to_string),
            set: |into, text| text.parse().ok().map(|name| into.name = Some(name)),
        },
    },
    Key {
        name: "service",
        about: "The service that clients reach. If there are rules, it serves clients whose TLS \
                server name matches no rule; without it those are refused.",
        example: Some("\"kube-apiserver\""),
        kind: Kind::Text {
            expected: SERVICE_FORM,
            get: |from| from.settings.service.as_ref().map(ToString::to_string),
            set: |into, text| text.parse().ok().map(|name| into.settings.service = Some(name)),
        },
    },
    Key {
        name: "listen",
        about: "TCP addresses for clients of other machines. Required.",
        example: Some("[\"203.0.113.5:6443\"]"),
        kind: Kind::List {
            expected: "an IP address and port, such as \"203.0.113.5:6443\" or \"[::]:6443\"",
            max: MAX_LISTEN,
            get: |from| from.settings.listen.iter().map(ToString::to_string).collect(),
            clear: |into| into.settings.listen.clear(),
            push: |into, text| text.parse().ok().map(|addr| into.settings.listen.push(addr)),
        },
    },
    Key {
        name: "allow",
        about: "The networks whose clients may connect; all others are reset before any data is \
                read. Default: none. Sessions that a new list does not allow end.",
        example: Some("[\"192.0.2.0/24\"]"),
        kind: networks!(allow),
    },
    Key {
        name: "accept-proxy-from",
        about: "The load balancers in front of this listener. Their connections must begin with a \
                PROXY header (v1 or v2); allow and limits then apply to the client it names. \
                Headers from \
                other sources are ignored.",
        example: Some("[]"),
        kind: networks!(accept_proxy_from),
    },
    Key {
        name: "send-proxy",
        about: "Whether to send the client's address to instances in a PROXY header. Every \
                instance of the service must expect it. Apiservers do not and refuse such \
                connections; the audit log has their clients' addresses.",
        example: Some("\"off\""),
        kind: Kind::Choice {
            names: ProxyHeader::NAMES,
            get: |from| from.settings.send_proxy.as_str(),
            set: |into, text| text.parse().ok().map(|value| into.settings.send_proxy = value),
        },
    },
    Key {
        name: "max-sessions",
        about: "Maximum concurrent sessions of this listener; further ones are reset.",
        example: Some("1000"),
        kind: number!(max_sessions, 100_000, "sessions"),
    },
    Key {
        name: "max-sessions-per-source",
        about: "Maximum concurrent sessions of a source: an IPv4 address, or an IPv6 /64.",
        example: Some("100"),
        kind: number!(max_sessions_per_source, 100_000, "sessions"),
    },
    Key {
        name: "max-rate-per-source",
        about: "New connections per second of a source, with a burst of the same size. Further \
                ones are reset.",
        example: Some("100"),
        kind: number!(max_rate_per_source, 10_000, "connections per second"),
    },
    Key {
        name: "idle-timeout",
        about: "How long a session may be idle before it is closed. Watches may be silent for \
                minutes.",
        example: Some("\"off\""),
        kind: Kind::PeriodOrOff {
            min: Duration::from_secs(1),
            max: Duration::from_secs(86_400),
            get: |from| from.settings.idle_timeout,
            set: |into, value| into.settings.idle_timeout = value,
        },
    },
];

pub(super) const RULE_KEYS: &[Key<Ruled>] = &[
    Key {
        name: "service",
        about: "The service of this rule. Required.",
        example: Some("\"prod\""),
        kind: Kind::Text {
            expected: SERVICE_FORM,
            get: |from| from.service.as_ref().map(ToString::to_string),
            set: |into, text| text.parse().ok().map(|name| into.service = Some(name)),
        },
    },
    Key {
        name: "sni",
        about: "The TLS server names that select it. \"*\" matches one label. An exact name takes \
                precedence over one with \"*\". TLS itself passes through. Required.",
        example: Some("[\"*.prod.example.com\"]"),
        kind: Kind::List {
            expected: NamePattern::FORM,
            max: MAX_NAMES,
            get: |from| from.rule.sni.iter().map(ToString::to_string).collect(),
            clear: |into| into.rule.sni.clear(),
            push: |into, text| text.parse().ok().map(|name| into.rule.sni.push(name)),
        },
    },
];
