//! The settings file: parses TOML into a checked value, or returns all problems.
//!
//! One table of keys ([`schema`], `tables`) defines each key's form, bounds, default and meaning;
//! reading, writing, the reference and the messages use it. A parsed [`Settings`] satisfies every
//! rule between fields; files it names are not checked here. Bounds: [`MAX_SETTINGS_BYTES`] of
//! text, [`MAX_SERVICES`], and a maximum for each list.

#[macro_use]
mod rows;

mod allow;
mod check;
mod events;
mod expose;
mod parse;
mod period;
mod problem;
mod read;
mod schema;
mod tables;
#[cfg(test)]
mod tests;
mod virtual_address;
mod wayback;
mod weight;
mod write;

use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use crate::ids::{ListenerName, NodeId, NodeName, ServiceName, SiteName, VirtualName};
use crate::text::TextError;

pub use self::allow::Allow;
pub use self::events::{EventsSettings, HttpUrl};
pub use self::expose::{
    ExposeRule, ExposeSettings, MAX_EXPOSED, MAX_NAMES, MAX_NETWORKS, MAX_RULES, ProxyHeader,
};
pub use self::parse::{parse, parse_leniently, parse_with};
pub use self::period::Period;
pub use self::problem::{MAX_PROBLEMS, Problem, ProblemKind};
pub use self::tables::{
    DiscoverySettings, HealthSettings, LogSettings, MeshSettings, ServiceSettings,
};
pub use self::virtual_address::{MAX_VIRTUAL_ADDRESSES, VirtualAddressSettings};
pub use self::wayback::{
    EgressSettings, KubeletSettings, MAX_CIDRS, MAX_EGRESS_NODES, MAX_EGRESS_UIDS,
    MAX_KUBELET_ADDRESSES, MAX_OUTSIDE, NodeAddress, SocketMode,
};
pub use self::weight::{MAX_WEIGHT, Weight};
pub use self::write::{Difference, reference};

/// The largest settings file, in bytes: 16 services with long lists are below 64 KiB.
pub const MAX_SETTINGS_BYTES: usize = 256 * 1024;
/// The most services of one node: each has its listeners, health checks and routes.
pub const MAX_SERVICES: usize = 16;
/// The most addresses one service listens on.
pub const MAX_LISTEN: usize = 8;
/// The most origins in a `pinned` list.
pub const MAX_PINNED: usize = 64;
/// Most addresses outside the mesh a service falls back to; a handful of load balancers.
pub const MAX_FALLBACK: usize = 16;
/// The most entries in a list `allow`.
pub const MAX_ALLOW: usize = 64;
/// The most endpoints a node advertises: what fits its record.
pub const MAX_ADVERTISE: usize = 8;
/// Most threads the mesh of a node runs on.
pub const MAX_SHARDS: u32 = 4;
/// The most seeds in the settings.
pub const MAX_SETTINGS_SEEDS: usize = 64;

choice! {
    /// How log lines look.
    LogFormat, "a log format", "text or json", {
        /// For people.
        Text = "text",
        /// One JSON object per line.
        Json = "json",
    }
}
choice! {
    /// The least important lines that are still logged.
    LogLevel, "a log level", "error, warn, info, debug or trace", {
        /// Failures that need an operator.
        Error = "error",
        /// Problems that do not stop work.
        Warn = "warn",
        /// Changes of state.
        Info = "info",
        /// Steps within a change.
        Debug = "debug",
        /// Single packets.
        Trace = "trace",
    }
}
choice! {
    /// How a new session chooses among healthy origins.
    Policy, "a policy", "nearest, spread, pinned, least-sessions or source", {
        /// The one with the least latency; those about as near share.
        Nearest = "nearest",
        /// All, in turn.
        Spread = "spread",
        /// The first healthy one of a list.
        Pinned = "pinned",
        /// The one with the fewest sessions of this node.
        LeastSessions = "least-sessions",
        /// The same one for each client, as long as it is healthy.
        Source = "source",
    }
}
choice! {
    /// How an origin checks its local instance of a service.
    HealthMode, "a health mode", "kubernetes, http or tcp", {
        /// HTTPS: `/version` tells whether it is alive, `/readyz` whether it is ready, `/livez`
        /// whether it stalls.
        Kubernetes = "kubernetes",
        /// Plain HTTP: alive with any answer, ready with a success status.
        Http = "http",
        /// Alive and ready if it accepts a connection.
        Tcp = "tcp",
    }
}

/// Default paths and addresses; they differ between a system service and a user's session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Defaults {
    /// The state folder.
    pub state_dir: PathBuf,
    /// The admin socket; `meshport.sock` in the state folder when absent.
    pub socket: Option<PathBuf>,
}

impl Default for Defaults {
    /// `/var/lib/meshport`, and the socket in it.
    fn default() -> Self {
        Self { state_dir: PathBuf::from("/var/lib/meshport"), socket: None }
    }
}

/// The settings of a node.
///
/// Serialises as the TOML tables and keys do, with every default filled in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The site this node is in.
    pub site: SiteName,
    /// The node's name; the one in its credential when absent.
    pub name: Option<NodeName>,
    /// The folder of keys, credential and directory. Default `/var/lib/meshport`.
    pub state_dir: PathBuf,
    /// Whether the daemon drops capabilities, file access and system calls that it does not need.
    /// Default true.
    pub sandbox: bool,
    /// Logging.
    pub log: LogSettings,
    /// The encrypted mesh.
    pub mesh: MeshSettings,
    /// The local admin interface.
    pub admin: AdminSettings,
    /// Membership and measurement.
    pub discovery: DiscoverySettings,
    /// Where events are posted.
    pub events: EventsSettings,
    /// The way back from apiservers: their side.
    pub egress: EgressSettings,
    /// The way back from apiservers: a node's side.
    pub kubelet: KubeletSettings,
    /// Services by name; [`ServiceName::kube_apiserver`] is always there. At most [`MAX_SERVICES`].
    pub services: BTreeMap<ServiceName, ServiceSettings>,
    /// Listeners for clients outside the mesh, by name. At most [`MAX_EXPOSED`]; default none.
    pub expose: BTreeMap<ListenerName, ExposeSettings>,
    /// Virtual addresses of this node's groups, by name. At most [`MAX_VIRTUAL_ADDRESSES`]; default
    /// none.
    pub virtual_addresses: BTreeMap<VirtualName, VirtualAddressSettings>,
}

/// The local admin interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdminSettings {
    /// The Unix socket for `meshport status` and the other verbs. Default `meshport.sock` in the
    /// state folder.
    pub socket: PathBuf,
    /// The loopback address of metrics and status over HTTP. Default `127.0.0.1:7446`.
    pub http: Option<SocketAddr>,
}

/// An origin in a `pinned` list: a node's name, or its key where names may repeat.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pin {
    /// Every node of this name.
    Name(NodeName),
    /// The node with this key.
    Node(NodeId),
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.fmt(f),
            Self::Node(node) => node.fmt(f),
        }
    }
}

impl FromStr for Pin {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        text.parse().map(Self::Node).or_else(|_| text.parse().map(Self::Name))
    }
}

impl Settings {
    /// The settings of a file that contains only `site`.
    pub fn defaults(site: SiteName) -> Self {
        Self::with_defaults(site, &Defaults::default())
    }

    /// Like [`Settings::defaults`], with folders chosen by the caller.
    pub fn with_defaults(site: SiteName, defaults: &Defaults) -> Self {
        let apiserver = ServiceName::kube_apiserver();
        let service = ServiceSettings::defaults(&apiserver);
        Self {
            site,
            name: None,
            state_dir: defaults.state_dir.clone(),
            sandbox: true,
            log: LogSettings::default(),
            mesh: MeshSettings::default(),
            admin: AdminSettings {
                socket: defaults.socket_in(&defaults.state_dir),
                http: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 7446))),
            },
            discovery: DiscoverySettings::default(),
            events: EventsSettings::default(),
            egress: EgressSettings::default(),
            kubelet: KubeletSettings::default(),
            services: BTreeMap::from([(apiserver, service)]),
            expose: BTreeMap::new(),
            virtual_addresses: BTreeMap::new(),
        }
    }

    /// The effective configuration as a TOML file: every key with its value. It parses back to an
    /// equal value, as long as the paths are UTF-8.
    pub fn to_toml(&self) -> String {
        write::to_toml(self)
    }

    /// These settings without secrets.
    #[must_use]
    pub fn redacted(&self) -> Self {
        let mut shown = self.clone();
        shown.events.url = self.events.url.as_ref().map(HttpUrl::redacted);
        shown
    }

    /// The differences from these settings to `new`, by key; empty exactly if both are equal.
    pub fn differences(&self, new: &Self) -> Vec<Difference> {
        write::differences(self, new)
    }
}

impl Defaults {
    fn socket_in(&self, state_dir: &std::path::Path) -> PathBuf {
        self.socket.clone().unwrap_or_else(|| state_dir.join("meshport.sock"))
    }
}

impl ServiceSettings {
    /// The settings of a service of this name whose table is empty. kube-apiserver listens on
    /// `127.0.0.1:7445` and `[::1]:7445` and is probed as `kubernetes`.
    pub fn defaults(service: &ServiceName) -> Self {
        let mut settings = Self::default();
        if service.as_str() == ServiceName::KUBE_APISERVER {
            let v4 = SocketAddr::from((Ipv4Addr::LOCALHOST, 7445));
            let v6 = SocketAddr::from((Ipv6Addr::LOCALHOST, 7445));
            settings.listen = vec![v4, v6];
            settings.health.mode = HealthMode::Kubernetes;
        }
        settings
    }
}
