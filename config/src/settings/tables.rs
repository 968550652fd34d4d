//! All keys of the settings file, table by table, in the order they are written.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::schema::{Key, Kind};
use super::{
    AdminSettings, DiscoverySettings, HealthMode, HealthSettings, LogFormat, LogLevel, LogSettings,
    MAX_ADVERTISE, MAX_ALLOW, MAX_FALLBACK, MAX_LISTEN, MAX_PINNED, MAX_SETTINGS_SEEDS, MAX_SHARDS,
    MeshSettings, Policy, ServiceSettings, Settings, Weight,
};
use crate::endpoint::{Endpoint, Host};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// The longest path, in bytes: Linux's limit (PATH_MAX, without its final NUL).
const MAX_PATH_BYTES: usize = 4095;
/// The longest path in a URL, in bytes.
const MAX_URL_PATH_BYTES: usize = 1024;

const PATH_FORM: &str = "a path";
const ADDRESS_FORM: &str = "an IP address and port, such as \"127.0.0.1:7445\" or \"[::1]:7445\"";
const LISTEN_FORM: &str = "an IP address and port, such as \"[::]:51820\"";
const ORIGIN_FORM: &str = "a host and port to connect to, such as \"127.0.0.1:6443\"";
const ENDPOINT_FORM: &str =
    "a host and port, such as \"203.0.113.5:51820\" or \"cp-1.example.com:51820\"";
const FALLBACK_FORM: &str = "a host and port to connect to, such as \"k8s.example.com:6443\"";
const ALLOW_FORM: &str =
    "an entry such as \"role:node\", \"site:fra\", \"node:worker-7\" or \"node:NODEID\"";
const SITE_FORM: &str =
    "a name of 1 to 63 of a-z, 0-9 and '-', with no '-' at either end, such as \"fra\"";
const NODE_FORM: &str = "a name of 1 to 63 of a-z, 0-9, '-' and '.', such as \"worker-7\"";

macro_rules! period {
    ($field:ident, $min:expr, $max:expr) => {
        Kind::Period {
            min: $min,
            max: $max,
            get: |from| from.$field,
            set: |into, value| into.$field = value,
        }
    };
}

macro_rules! choice {
    ($field:ident, $kind:ty) => {
        Kind::Choice {
            names: <$kind>::NAMES,
            get: |from| from.$field.as_str(),
            set: |into, text| text.parse().ok().map(|value| into.$field = value),
        }
    };
}

macro_rules! list {
    ($field:ident, $max:expr, $expected:expr, $read:expr) => {
        Kind::List {
            expected: $expected,
            max: $max,
            get: |from| from.$field.iter().map(ToString::to_string).collect(),
            clear: |into| into.$field.clear(),
            push: |into, text| $read(text).map(|value| into.$field.push(value)),
        }
    };
}

macro_rules! optional_file {
    ($field:ident) => {
        Kind::Text {
            expected: PATH_FORM,
            get: |from| from.$field.as_deref().map(path_text),
            set: |into, text| path(text).map(|value| into.$field = Some(value)),
        }
    };
}

pub(super) const ROOT: &[Key<Settings>] = &[
    Key {
        name: "site",
        about: "The site of this node: a place with low latency between its machines. Required.",
        example: Some("\"fra\""),
        kind: Kind::Text {
            expected: SITE_FORM,
            get: |from| Some(from.site.to_string()),
            set: |into, text| text.parse().ok().map(|value| into.site = value),
        },
    },
    Key {
        name: "name",
        about: "The name of this node. Defaults to the name in its credential.",
        example: Some("\"worker-7\""),
        kind: Kind::Text {
            expected: NODE_FORM,
            get: |from| from.name.as_ref().map(ToString::to_string),
            set: |into, text| text.parse().ok().map(|value| into.name = Some(value)),
        },
    },
    Key {
        name: "state-dir",
        about: "The folder for keys, credential and directory.",
        example: None,
        kind: Kind::Text {
            expected: PATH_FORM,
            get: |from| Some(path_text(&from.state_dir)),
            set: |into, text| path(text).map(|value| into.state_dir = value),
        },
    },
    Key {
        name: "sandbox",
        about: "Whether the daemon drops capabilities, access to other files and system calls \
                that it does not need.",
        example: None,
        kind: Kind::Flag { get: |from| from.sandbox, set: |into, value| into.sandbox = value },
    },
];

pub(super) const LOG: &[Key<LogSettings>] = &[
    Key {
        name: "format",
        about: "The format of log lines: text, or one JSON object per line.",
        example: None,
        kind: choice!(format, LogFormat),
    },
    Key {
        name: "level",
        about: "The lowest level to log.",
        example: None,
        kind: choice!(level, LogLevel),
    },
];

pub(super) const MESH: &[Key<MeshSettings>] = &[
    Key {
        name: "listen",
        about: "The UDP address of the mesh. \"[::]\" accepts IPv4 as well.",
        example: None,
        kind: Kind::Text {
            expected: LISTEN_FORM,
            get: |from| Some(from.listen.to_string()),
            set: |into, text| text.parse().ok().map(|value| into.listen = value),
        },
    },
    Key {
        name: "advertise",
        about: "Where other nodes reach this one, if not at the address they see: with port \
                forwarding, or by DNS name.",
        example: None,
        kind: list!(advertise, MAX_ADVERTISE, ENDPOINT_FORM, reachable),
    },
    Key {
        name: "seeds",
        about: "Members to contact first, in addition to those of the invite: node names, or node \
                ids with endpoints, as NODEID@HOST:PORT,HOST:PORT. A node name refers to the \
                directory, \
                which is saved in the state folder. \
                HOST may be a DNS name, which is resolved again every minute. `meshport peers \
                --seeds` on a node prints such lines.",
        example: None,
        kind: list!(
            seeds,
            MAX_SETTINGS_SEEDS,
            "a node name, or a node id and 1 to 8 endpoints, as \"NODEID@HOST:PORT,HOST:PORT\"",
            parsed
        ),
    },
    Key {
        name: "mtu",
        about: "The largest IP packet tried between this node and others. The MTU of each path is \
                discovered; a lower limit helps on paths that report a wrong one.",
        example: None,
        kind: Kind::Integer {
            min: 1280,
            max: 9200,
            unit: "bytes",
            get: |from| from.mtu.into(),
            set: |into, value| into.mtu = value.try_into().unwrap_or(u16::MAX),
        },
    },
    Key {
        name: "keepalive",
        about: "Interval of packets to silent peers, so that a NAT in front of this node keeps \
                its mapping open. Paths to origins are probed more often anyway: this is for an \
                origin or a relay behind NAT. Whole seconds; \"25s\" suits most.",
        example: None,
        kind: Kind::PeriodOrOff {
            min: SECOND,
            max: Duration::from_secs(3600),
            get: |from| from.keepalive,
            set: |into, value| into.keepalive = value,
        },
    },
    Key {
        name: "max-relayed",
        about: "Maximum concurrent sessions that this node relays, at most a quarter of them for \
                one node. Needs the role relay in its credential.",
        example: None,
        kind: Kind::Integer {
            min: 0,
            max: 100_000,
            unit: "sessions",
            get: |from| from.max_relayed,
            set: |into, value| into.max_relayed = value,
        },
    },
    Key {
        name: "shards",
        about: "Number of threads that the other nodes are spread over, each with its own UDP \
                socket; a node's packets and sessions stay on one. 0 means one per core that this \
                process \
                may use, at most 4.",
        example: None,
        kind: Kind::Integer {
            min: 0,
            max: MAX_SHARDS,
            unit: "threads",
            get: |from| from.shards,
            set: |into, value| into.shards = value,
        },
    },
];

pub(super) const ADMIN: &[Key<AdminSettings>] = &[
    Key {
        name: "socket",
        about: "The Unix socket for `meshport status` and the other commands. The default follows \
                state-dir.",
        example: None,
        kind: Kind::Text {
            expected: PATH_FORM,
            get: |from| Some(path_text(&from.socket)),
            set: |into, text| path(text).map(|value| into.socket = value),
        },
    },
    Key {
        name: "http",
        about: "HTTP address of metrics and status. It has no authentication, so only a loopback \
                address is accepted.",
        example: None,
        kind: Kind::Text {
            expected: "\"off\", or a loopback address and port, such as \"127.0.0.1:7446\"",
            get: |from| Some(from.http.map_or("off".to_owned(), |addr| addr.to_string())),
            set: |into, text| {
                into.http = if text == "off" { None } else { Some(loopback(text)?) };
                Some(())
            },
        },
    },
];

pub(super) const DISCOVERY: &[Key<DiscoverySettings>] = &[
    Key {
        name: "probe-interval",
        about: "Interval of probes to a neighbour in this site; a random member is probed half as \
                often.",
        example: None,
        kind: period!(probe_interval, Duration::from_millis(100), MINUTE),
    },
    Key {
        name: "probe-timeout",
        about: "Timeout of a probe, after which other members probe the member too. Shorter than \
                probe-interval.",
        example: None,
        kind: period!(probe_timeout, Duration::from_millis(10), Duration::from_secs(30)),
    },
    Key {
        name: "suspicion",
        about: "How long a silent member is suspected before it is declared down. At least \
                probe-interval.",
        example: None,
        kind: period!(suspicion, Duration::from_millis(500), Duration::from_secs(300)),
    },
    Key {
        name: "path-probe-active",
        about: "Interval between probes of a path that carries sessions.",
        example: None,
        kind: period!(path_probe_active, Duration::from_millis(100), MINUTE),
    },
    Key {
        name: "path-probe-idle",
        about: "Interval between probes of other paths. At least path-probe-active.",
        example: None,
        kind: period!(path_probe_idle, Duration::from_millis(500), Duration::from_secs(300)),
    },
    Key {
        name: "sync-interval",
        about: "Interval between comparisons of the whole directory with another member.",
        example: None,
        kind: period!(sync_interval, SECOND, Duration::from_secs(3600)),
    },
];

pub(super) const SERVICE: &[Key<ServiceSettings>] = &[
    Key {
        name: "listen",
        about: "TCP addresses for local clients; an empty list offers the service only. Required \
                for services other than kube-apiserver.",
        example: None,
        kind: list!(listen, MAX_LISTEN, ADDRESS_FORM, parsed),
    },
    Key {
        name: "allow-remote-clients",
        about: "Whether listen may have addresses that other machines can reach. Anyone who \
                reaches them uses the mesh as this node.",
        example: None,
        kind: Kind::Flag {
            get: |from| from.allow_remote_clients,
            set: |into, value| into.allow_remote_clients = value,
        },
    },
    Key {
        name: "origin",
        about: "The local instance of the service, such as the local apiserver. Without it, this \
                node only uses the service. The credential needs the role origin:SERVICE.",
        example: Some("\"127.0.0.1:6443\""),
        kind: Kind::Text {
            expected: ORIGIN_FORM,
            get: |from| from.origin.as_ref().map(ToString::to_string),
            set: |into, text| reachable(text).map(|value| into.origin = Some(value)),
        },
    },
    Key {
        name: "allow",
        about: "Which nodes and operators may use this node's instance. Nodes not matched by any \
                entry are refused; an empty list refuses all except clients of this machine. \
                Sessions that a new list does not allow end. A name or site counts only under an \
                invite that fixes it. Needs origin.",
        example: None,
        kind: list!(allow, MAX_ALLOW, ALLOW_FORM, parsed),
    },
    Key {
        name: "policy",
        about: "Which healthy origin a new session goes to: the nearest, all in turn, the first \
                healthy one of the list pinned, the one with the fewest sessions of this node, or \
                the \
                same one for each client.",
        example: None,
        kind: choice!(policy, Policy),
    },
    Key {
        name: "pinned",
        about: "The order of the policy \"pinned\": names or ids of nodes.",
        example: None,
        kind: list!(pinned, MAX_PINNED, "a node's name or id", parsed),
    },
    Key {
        name: "weights",
        about: "Weights of origins that share sessions. An origin with weight 3 gets three times \
                the sessions of an unlisted one.",
        example: None,
        kind: list!(weights, MAX_PINNED, Weight::FORM, parsed),
    },
    Key {
        name: "band",
        about: "Origins whose latency is within this of the nearest share sessions with it.",
        example: None,
        kind: period!(band, Duration::ZERO, Duration::from_secs(10)),
    },
    Key {
        name: "band-percent",
        about: "The band as a share of the nearest's latency; the wider of the two counts.",
        example: None,
        kind: Kind::Integer {
            min: 0,
            max: 100,
            unit: "percent",
            get: |from| from.band_percent.into(),
            set: |into, value| into.band_percent = value.try_into().unwrap_or(u8::MAX),
        },
    },
    Key {
        name: "connect-timeout",
        about: "How long a new session tries origins before its client is refused.",
        example: None,
        kind: period!(connect_timeout, Duration::from_millis(100), MINUTE),
    },
    Key {
        name: "hold",
        about: "How long a new session waits for an origin when none is usable. Clients give up \
                after about 10s.",
        example: None,
        kind: period!(hold, Duration::ZERO, Duration::from_secs(8)),
    },
    Key {
        name: "cut-window",
        about: "When a path dies or an instance hangs or stalls, its sessions are reset at random \
                moments within this time, so that clients do not all reconnect at once. Sessions \
                whose \
                clients are waiting for an answer go first. At once if no other origin is healthy.",
        example: None,
        kind: period!(cut_window, Duration::ZERO, Duration::from_secs(10)),
    },
    Key {
        name: "hedge",
        about: "Whether a second origin is tried in parallel when the first is slow to answer a \
                new session; the first answer wins.",
        example: None,
        kind: Kind::Flag { get: |from| from.hedge, set: |into, value| into.hedge = value },
    },
    Key {
        name: "hedge-min",
        about: "The shortest delay before the next origin is tried in parallel. The actual delay \
                depends on the path's latency and its deviation.",
        example: None,
        kind: period!(hedge_min, Duration::from_millis(10), Duration::from_secs(10)),
    },
    Key {
        name: "hedge-max",
        about: "The longest delay before the next origin is tried in parallel.",
        example: None,
        kind: period!(hedge_max, Duration::from_millis(10), Duration::from_secs(10)),
    },
    Key {
        name: "drift-percent",
        about: "When a better origin is back, this share of the sessions elsewhere moves to it \
                every 10s: each ends when idle, and its client reconnects. 0 leaves them where \
                they are.",
        example: None,
        kind: Kind::Integer {
            min: 0,
            max: 100,
            unit: "percent",
            get: |from| from.drift_percent.into(),
            set: |into, value| into.drift_percent = value.try_into().unwrap_or(u8::MAX),
        },
    },
    Key {
        name: "drain-window",
        about: "Time within which sessions leave an origin after `meshport drain`.",
        example: None,
        kind: period!(drain_window, SECOND, Duration::from_secs(3600)),
    },
    Key {
        name: "fallback",
        about: "Addresses outside the mesh to use when no origin in it answers, such as an \
                existing load balancer. Names are resolved every 30s.",
        example: Some("[\"k8s.example.com:6443\"]"),
        kind: list!(fallback, MAX_FALLBACK, FALLBACK_FORM, reachable),
    },
    Key {
        name: "cluster-kubeconfig",
        about: "A kubeconfig whose user may get the endpoints of the service kubernetes, such as \
                the kubelet's. With it the node reads the cluster's list of apiservers through \
                listen \
                every 30s, and `meshport status` warns when it differs from the mesh's origins. \
                It never \
                changes a route.",
        example: Some("\"/etc/kubernetes/kubelet.conf\""),
        kind: optional_file!(cluster_kubeconfig),
    },
    Key {
        name: "max-sessions",
        about: "Maximum concurrent client sessions; further ones are refused.",
        example: None,
        kind: Kind::Integer {
            min: 1,
            max: 1_000_000,
            unit: "sessions",
            get: |from| from.max_sessions,
            set: |into, value| into.max_sessions = value,
        },
    },
];

/// How an origin checks its local instance.
pub(super) const HEALTH: &[Key<HealthSettings>] = &[
    Key {
        name: "mode",
        about: "How an origin probes the local instance: kubernetes (HTTPS /version and /readyz), \
                http (one path) or tcp (a connection). The default is kubernetes for \
                kube-apiserver and tcp for others.",
        example: None,
        kind: choice!(mode, HealthMode),
    },
    Key {
        name: "interval",
        about: "Interval of checks.",
        example: None,
        kind: period!(interval, Duration::from_millis(100), Duration::from_secs(300)),
    },
    Key {
        name: "timeout",
        about: "Timeout of a liveness check. At most ready-timeout.",
        example: None,
        kind: period!(timeout, Duration::from_millis(100), MINUTE),
    },
    Key {
        name: "fall",
        about: "Consecutive failed checks after which the instance counts as failed.",
        example: None,
        kind: Kind::Integer {
            min: 1,
            max: 100,
            unit: "checks",
            get: |from| from.fall.into(),
            set: |into, value| into.fall = value.try_into().unwrap_or(u8::MAX),
        },
    },
    Key {
        name: "ready-timeout",
        about: "Timeout of a readiness check.",
        example: None,
        kind: period!(ready_timeout, Duration::from_millis(100), MINUTE),
    },
    Key {
        name: "ca-file",
        about: "CA certificates (PEM) that verify the instance's certificate, with mode \
                kubernetes. Without it, the certificate is not verified.",
        example: Some("\"/etc/kubernetes/pki/ca.crt\""),
        kind: optional_file!(ca_file),
    },
    Key {
        name: "client-cert-file",
        about: "A client certificate (PEM) for instances that refuse anonymous requests. Needs \
                client-key-file and ca-file.",
        example: Some("\"/etc/meshport/health.crt\""),
        kind: optional_file!(client_cert_file),
    },
    Key {
        name: "client-key-file",
        about: "The private key (PEM) of client-cert-file.",
        example: Some("\"/etc/meshport/health.key\""),
        kind: optional_file!(client_key_file),
    },
    Key {
        name: "bearer-token-file",
        about: "A file with a bearer token, instead of a client certificate. Needs ca-file.",
        example: Some("\"/etc/meshport/health.token\""),
        kind: optional_file!(bearer_token_file),
    },
    Key {
        name: "server-name",
        about: "The name to verify in the instance's certificate, if it is not the host of origin.",
        example: Some("\"kubernetes.default.svc\""),
        kind: Kind::Text {
            expected: "a DNS name or an IP address",
            get: |from| from.server_name.clone(),
            set: |into, text| server_name(text).map(|value| into.server_name = Some(value)),
        },
    },
    Key {
        name: "path",
        about: "The path requested with mode http.",
        example: None,
        kind: Kind::Text {
            expected: "a URL path, such as \"/healthz\"",
            get: |from| Some(from.path.clone()),
            set: |into, text| url_path(text).map(|value| into.path = value),
        },
    },
];

/// The tables of the root, other than `service`.
pub(super) const TABLES: &[&str] =
    &["log", "mesh", "admin", "discovery", "events", "egress", "kubelet"];

fn parsed<V: std::str::FromStr>(text: &str) -> Option<V> {
    text.parse().ok()
}

pub(super) fn path_text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

pub(super) fn path(text: &str) -> Option<PathBuf> {
    let is_path = !text.is_empty() && text.len() <= MAX_PATH_BYTES && !text.contains('\0');
    is_path.then(|| PathBuf::from(text))
}

/// An endpoint that a node can connect to.
pub(super) fn reachable(text: &str) -> Option<Endpoint> {
    let endpoint: Endpoint = text.parse().ok()?;
    let is_nowhere = matches!(endpoint.host(), Host::Ip(ip) if ip.is_unspecified());
    (!is_nowhere).then_some(endpoint)
}

fn loopback(text: &str) -> Option<SocketAddr> {
    text.parse().ok().filter(|addr: &SocketAddr| addr.ip().is_loopback())
}

fn server_name(text: &str) -> Option<String> {
    let is_name = || Endpoint::new(Host::Name(text.to_owned()), 1).is_ok();
    (text.parse::<IpAddr>().is_ok() || is_name()).then(|| text.to_owned())
}

pub(super) fn url_path(text: &str) -> Option<String> {
    let is_path = text.starts_with('/')
        && text.len() <= MAX_URL_PATH_BYTES
        && text.bytes().all(|b| b.is_ascii_graphic() && b != b'#');
    is_path.then(|| text.to_owned())
}
