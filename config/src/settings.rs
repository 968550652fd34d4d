//! The settings file: parses TOML into a checked value, or returns all problems.
//!
//! One table of keys ([`schema`], `tables`) defines each key's form, bounds, default and meaning;
//! reading, writing, the reference and the messages use it. A parsed [`Settings`] satisfies every
//! rule between fields; files it names are not checked here. Bounds: [`MAX_SETTINGS_BYTES`] of
//! text, [`MAX_SERVICES`], and a maximum for each list.

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
use std::time::Duration;

use crate::endpoint::Endpoint;
use crate::ids::{ListenerName, NodeId, NodeName, ServiceName, SiteName, VirtualName};
use crate::seed::NamedSeed;
use crate::text::TextError;

pub use self::allow::Allow;
pub use self::events::{EventsSettings, HttpUrl};
pub use self::expose::{
    ExposeRule, ExposeSettings, MAX_EXPOSED, MAX_NAMES, MAX_NETWORKS, MAX_RULES, ProxyHeader,
};
pub use self::parse::{parse, parse_leniently, parse_with};
pub use self::period::Period;
pub use self::problem::{MAX_PROBLEMS, Problem, ProblemKind};
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

macro_rules! choice {
    (
        $(#[$doc:meta])* $name:ident, $what:literal, $expected:literal,
        { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* }
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $name {
            /// The text forms of all values.
            pub const NAMES: &[&str] = &[$($text),*];

            /// The text form.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }
        }

        impl FromStr for $name {
            type Err = TextError;

            fn from_str(text: &str) -> Result<Self, TextError> {
                match text {
                    $($text => Ok(Self::$variant),)*
                    _ => Err(TextError::form($what, text, $expected)),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}

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
        /// HTTPS: `/version` tells whether it is alive, `/readyz` whether it is ready.
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

/// Logging.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSettings {
    /// How lines look. Default `text`.
    pub format: LogFormat,
    /// The least important lines. Default `info`.
    pub level: LogLevel,
}

/// The encrypted mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeshSettings {
    /// The UDP address for packets of the mesh; `[::]` takes IPv4 as well. Default `[::]:51820`.
    pub listen: SocketAddr,
    /// Addresses at which others reach this node, in addition to those they observe. At most
    /// [`MAX_ADVERTISE`].
    pub advertise: Vec<Endpoint>,
    /// Members to contact first, in addition to those in the state folder. At most
    /// [`MAX_SETTINGS_SEEDS`].
    pub seeds: Vec<NamedSeed>,
    /// The largest IP packet tried on outer paths, in bytes, 1280 to 9200. Default 9200: the MTU of
    /// each path is discovered.
    pub mtu: u16,
    /// Time between packets that keep a NAT's mapping, whole seconds, 1 s to 1 h. Default off.
    pub keepalive: Option<Duration>,
    /// The most sessions this node carries from one node to another at once, if its credential has
    /// the role `relay`; 0 to 100,000. Default 1,000.
    pub max_relayed: u32,
    /// Over how many threads the other nodes are spread, 1 to 4; 0 is one for each core. Default
    /// 1.
    pub shards: u32,
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

/// Membership and measurement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiscoverySettings {
    /// Time from one probe of a neighbour in this node's site to the next, 100 ms to 1 min; a
    /// random member is probed half as often. Default 1 s.
    pub probe_interval: Duration,
    /// How long a probed member may take to answer, 10 ms to 30 s. Default 400 ms.
    pub probe_timeout: Duration,
    /// How long a silent member is suspected before it counts as down, 500 ms to 5 min. Default
    /// 3 s.
    pub suspicion: Duration,
    /// Time between probes of a path that carries sessions, 100 ms to 1 min. Default 500 ms.
    pub path_probe_active: Duration,
    /// Time between probes of other paths, 500 ms to 5 min. Default 5 s.
    pub path_probe_idle: Duration,
    /// Time between comparisons of the directory with another member, 1 s to 1 h. Default 10 s.
    pub sync_interval: Duration,
}

/// A service: its local addresses for clients, whether this node offers it, and the choice of
/// origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceSettings {
    /// TCP addresses for local clients, at most [`MAX_LISTEN`]. Default for `kube-apiserver`:
    /// `127.0.0.1:7445` and `[::1]:7445`; for others none.
    pub listen: Vec<SocketAddr>,
    /// Whether `listen` may have addresses other machines can reach. Default false.
    pub allow_remote_clients: bool,
    /// The local instance of the service. Default none: this node only uses it.
    pub origin: Option<Endpoint>,
    /// Nodes that may use this node's instance, as its own clients may; at most [`MAX_ALLOW`].
    /// Default all nodes and operators.
    pub allow: Vec<Allow>,
    /// How a new session chooses among healthy origins. Default `nearest`.
    pub policy: Policy,
    /// The order of the policy `pinned`, at most [`MAX_PINNED`]; empty with every other policy.
    pub pinned: Vec<Pin>,
    /// Weights of origins, at most [`MAX_PINNED`]; unlisted ones have 1.
    pub weights: Vec<Weight>,
    /// Origins within this of the nearest share with it, 0 to 10 s. Default 1 ms.
    pub band: Duration,
    /// Origins within this share of the nearest's latency share with it, in percent, 0 to 100;
    /// the wider of the two counts. Default 15.
    pub band_percent: u8,
    /// How long a session may try origins before its client is refused, 100 ms to 1 min. Default 10
    /// s.
    pub connect_timeout: Duration,
    /// How long a session waits for an origin if there is none, 0 to 8 s (the TLS handshake timeout
    /// of common clients is 10 s). Default 3 s.
    pub hold: Duration,
    /// Sessions of a dead path or a hung instance are reset within this time; at most 10 s.
    pub cut_window: Duration,
    /// Whether a second origin is tried in parallel if the first is slow to answer. Default true.
    pub hedge: bool,
    /// The minimum time before the next origin is tried in parallel, 10 ms to 10 s. Default 100 ms;
    /// a shorter time has no effect, since an instance always has 100 ms plus its round trips to
    /// answer.
    pub hedge_min: Duration,
    /// The maximum time before it, 10 ms to 10 s. Default 500 ms.
    pub hedge_max: Duration,
    /// The share of the sessions away from the preferred origin that move to it every 10 s, in
    /// percent, 0 to 100; 0 leaves them. Default 10.
    pub drift_percent: u8,
    /// Time within which the sessions of a draining origin move elsewhere, 1 s to 1 h. Default 60
    /// s.
    pub drain_window: Duration,
    /// Addresses outside the mesh for when no origin in it answers, at most [`MAX_FALLBACK`].
    pub fallback: Vec<Endpoint>,
    /// A kubeconfig for reading the cluster's own list of apiservers, to warn when it differs from
    /// the mesh's origins. Default none.
    pub cluster_kubeconfig: Option<PathBuf>,
    /// The most sessions at once, 1 to 1,000,000; further ones are refused. Default 10,000.
    pub max_sessions: u32,
    /// How this node checks the local instance.
    pub health: HealthSettings,
}

/// How an origin checks its local instance of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthSettings {
    /// The protocol of the check. Default `kubernetes` for `kube-apiserver`, `tcp` for others.
    pub mode: HealthMode,
    /// Time from one check to the next, 100 ms to 5 min. Default 1 s.
    pub interval: Duration,
    /// How long an answer to "alive" may take, 100 ms to 1 min. Default 1 s.
    pub timeout: Duration,
    /// Failed checks in a row that count, 1 to 100. Default 2.
    pub fall: u8,
    /// How long an answer to "ready" may take, 100 ms to 1 min. Default 5 s.
    pub ready_timeout: Duration,
    /// Certificates (PEM) to verify the server with (`kubernetes`). Default none: not verified.
    pub ca_file: Option<PathBuf>,
    /// This node's client certificate (PEM), with its key (`kubernetes`). Default none.
    pub client_cert_file: Option<PathBuf>,
    /// The client certificate's private key (PEM). Default none.
    pub client_key_file: Option<PathBuf>,
    /// A file with a bearer token (`kubernetes`). Default none.
    pub bearer_token_file: Option<PathBuf>,
    /// The name in the server's certificate (`kubernetes`). Default: the origin's host.
    pub server_name: Option<String>,
    /// The requested path (`http`). Default `/`.
    pub path: String,
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
            log: LogSettings { format: LogFormat::Text, level: LogLevel::Info },
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

impl Default for MeshSettings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv6Addr::UNSPECIFIED, 51820)),
            advertise: Vec::new(),
            seeds: Vec::new(),
            mtu: 9200,
            keepalive: None,
            max_relayed: 1_000,
            shards: 1,
        }
    }
}

impl Default for DiscoverySettings {
    fn default() -> Self {
        Self {
            probe_interval: Duration::from_secs(1),
            probe_timeout: Duration::from_millis(400),
            suspicion: Duration::from_secs(3),
            path_probe_active: Duration::from_millis(500),
            path_probe_idle: Duration::from_secs(5),
            sync_interval: Duration::from_secs(10),
        }
    }
}

impl ServiceSettings {
    /// The settings of a service of this name whose table is empty.
    pub fn defaults(service: &ServiceName) -> Self {
        let is_apiserver = service.as_str() == ServiceName::KUBE_APISERVER;
        let (listen, mode) = if is_apiserver {
            let v4 = SocketAddr::from((Ipv4Addr::LOCALHOST, 7445));
            let v6 = SocketAddr::from((Ipv6Addr::LOCALHOST, 7445));
            (vec![v4, v6], HealthMode::Kubernetes)
        } else {
            (Vec::new(), HealthMode::Tcp)
        };
        Self {
            listen,
            allow_remote_clients: false,
            origin: None,
            allow: Allow::everyone(),
            policy: Policy::Nearest,
            pinned: Vec::new(),
            weights: Vec::new(),
            band: Duration::from_millis(1),
            band_percent: 15,
            connect_timeout: Duration::from_secs(10),
            hold: Duration::from_secs(3),
            cut_window: Duration::from_secs(1),
            hedge: true,
            hedge_min: Duration::from_millis(100),
            hedge_max: Duration::from_millis(500),
            drift_percent: 10,
            drain_window: Duration::from_secs(60),
            fallback: Vec::new(),
            cluster_kubeconfig: None,
            max_sessions: 10_000,
            health: HealthSettings::defaults(mode),
        }
    }
}

impl HealthSettings {
    /// The defaults of this mode.
    pub fn defaults(mode: HealthMode) -> Self {
        Self {
            mode,
            interval: Duration::from_secs(1),
            timeout: Duration::from_secs(1),
            fall: 2,
            ready_timeout: Duration::from_secs(5),
            ca_file: None,
            client_cert_file: None,
            client_key_file: None,
            bearer_token_file: None,
            server_name: None,
            path: "/".to_owned(),
        }
    }
}
