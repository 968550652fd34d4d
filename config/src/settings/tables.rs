//! All keys of the settings file, table by table, in the order they are written.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use super::schema::{Key, Kind, PATH_FORM, key, path, path_text};
use super::{
    AdminSettings, Allow, HealthMode, LogFormat, LogLevel, MAX_ADVERTISE, MAX_ALLOW, MAX_FALLBACK,
    MAX_LISTEN, MAX_PINNED, MAX_SETTINGS_SEEDS, MAX_SHARDS, Pin, Policy, Settings, Weight,
};
use crate::endpoint::{Endpoint, Host};
use crate::seed::NamedSeed;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// The longest path in a URL, in bytes.
const MAX_URL_PATH_BYTES: usize = 1024;

const ADDRESS_FORM: &str = "an IP address and port, such as \"127.0.0.1:7445\" or \"[::1]:7445\"";
const LISTEN_FORM: &str = "an IP address and port, such as \"[::]:51820\"";
const ORIGIN_FORM: &str = "a host and port to connect to, such as \"127.0.0.1:6443\"";
const ENDPOINT_FORM: &str =
    "a host and port, such as \"203.0.113.5:51820\" or \"cp-1.example.com:51820\"";
const FALLBACK_FORM: &str = "a host and port to connect to, such as \"k8s.example.com:6443\"";
const SEED_FORM: &str =
    "a node name, or a node id and 1 to 8 endpoints, as \"NODEID@HOST:PORT,HOST:PORT\"";
const ALLOW_FORM: &str =
    "an entry such as \"role:node\", \"site:fra\", \"node:worker-7\" or \"node:NODEID\"";
const SITE_FORM: &str =
    "a name of 1 to 63 of a-z, 0-9 and '-', with no '-' at either end, such as \"fra\"";
const NODE_FORM: &str = "a name of 1 to 63 of a-z, 0-9, '-' and '.', such as \"worker-7\"";

pub(super) const ROOT: &[Key<Settings>] = &[
    key::<Settings>(
        "site",
        "The site of this node: a place with low latency between its machines. Required.",
        text!(site, SITE_FORM, parsed),
    )
    .with_example("\"fra\""),
    key::<Settings>(
        "name",
        "The name of this node. Defaults to the name in its credential.",
        optional!(name, NODE_FORM, parsed),
    )
    .with_example("\"worker-7\""),
    key(
        "state-dir",
        "The folder for keys, credential and directory.",
        Kind::Text {
            expected: PATH_FORM,
            get: |from| Some(path_text(&from.state_dir)),
            set: |into, text| path(text).map(|value| into.state_dir = value),
        },
    ),
    key(
        "sandbox",
        "Whether the daemon drops capabilities, access to other files and system calls that it \
         does not need.",
        flag!(sandbox),
    ),
];

pub(super) const ADMIN: &[Key<AdminSettings>] = &[
    key(
        "socket",
        "The Unix socket for `meshport status` and the other commands. The default follows \
         state-dir.",
        Kind::Text {
            expected: PATH_FORM,
            get: |from| Some(path_text(&from.socket)),
            set: |into, text| path(text).map(|value| into.socket = value),
        },
    ),
    key(
        "http",
        "HTTP address of metrics and status. It has no authentication, so only a loopback address \
         is accepted.",
        Kind::Text {
            expected: "\"off\", or a loopback address and port, such as \"127.0.0.1:7446\"",
            get: |from| Some(from.http.map_or("off".to_owned(), |addr| addr.to_string())),
            set: |into, text| {
                into.http = if text == "off" { None } else { Some(loopback(text)?) };
                Some(())
            },
        },
    ),
];

table! {
    /// Logging.
    LogSettings, LOG;
    format: LogFormat = LogFormat::Text, "format" is word!(LogFormat),
        "The format of log lines: text, or one JSON object per line.";
    level: LogLevel = LogLevel::Info, "level" is word!(LogLevel),
        "The lowest level to log.";
}

table! {
    /// The encrypted mesh.
    #[expect(rustdoc::broken_intra_doc_links, reason = "[::] is an address")]
    MeshSettings, MESH;
    listen: SocketAddr = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 51820)),
        "listen" is text!(LISTEN_FORM, parsed),
        "The UDP address of the mesh. \"[::]\" accepts IPv4 as well.";
    advertise: Vec<Endpoint> = Vec::new(),
        "advertise" is list!(MAX_ADVERTISE, ENDPOINT_FORM, reachable),
        "Where other nodes reach this one, if not at the address they see: with port forwarding, \
         or by DNS name.";
    seeds: Vec<NamedSeed> = Vec::new(),
        "seeds" is list!(MAX_SETTINGS_SEEDS, SEED_FORM, parsed),
        "Members to contact first, in addition to those of the invite: node names, or node ids \
         with endpoints, as NODEID@HOST:PORT,HOST:PORT. A node name refers to the directory, which \
         is saved in the state folder. HOST may be a DNS name, which is resolved again every \
         minute. `meshport peers --seeds` on a node prints such lines.";
    mtu: u16 = 9200, "mtu" is number!(1280, 9200, "bytes"),
        "The largest IP packet tried between this node and others. The MTU of each path is \
         discovered; a lower limit helps on paths that report a wrong one. Below 1308, which QUIC \
         needs, long packets are sent in fragments.";
    keepalive: Option<Duration> = None,
        "keepalive" is period_or_off!(SECOND, Duration::from_secs(3600)),
        "Interval of packets to silent peers, so that a NAT in front of this node keeps its \
         mapping open. Paths to origins are probed more often anyway: this is for an origin or a \
         relay behind NAT. Whole seconds; \"25s\" suits most.";
    max_relayed: u32 = 1_000, "max-relayed" is number!(0, 100_000, "sessions"),
        "Maximum concurrent sessions that this node relays, at most a quarter of them for one \
         node. Needs the role relay in its credential.";
    shards: u32 = 1, "shards" is number!(0, MAX_SHARDS, "threads"),
        "Number of threads that the other nodes are spread over, each with its own UDP socket; a \
         node's packets and sessions stay on one. 0 means one per core that this process may use, \
         at most 4.";
}

table! {
    /// Membership and measurement.
    DiscoverySettings, DISCOVERY;
    probe_interval: Duration = Duration::from_secs(1),
        "probe-interval" is period!(Duration::from_millis(100), MINUTE),
        "Interval of probes to a neighbour in this site; a random member is probed half as often.";
    probe_timeout: Duration = Duration::from_millis(400),
        "probe-timeout" is period!(Duration::from_millis(10), Duration::from_secs(30)),
        "Timeout of a probe, after which other members probe the member too. Shorter than \
         probe-interval.";
    suspicion: Duration = Duration::from_secs(3),
        "suspicion" is period!(Duration::from_millis(500), Duration::from_secs(300)),
        "How long a silent member is suspected before it is declared down. At least \
         probe-interval.";
    path_probe_active: Duration = Duration::from_millis(500),
        "path-probe-active" is period!(Duration::from_millis(100), MINUTE),
        "Interval between probes of a path that carries sessions.";
    path_probe_idle: Duration = Duration::from_secs(5),
        "path-probe-idle" is period!(Duration::from_millis(500), Duration::from_secs(300)),
        "Interval between probes of other paths. At least path-probe-active.";
    sync_interval: Duration = Duration::from_secs(10),
        "sync-interval" is period!(SECOND, Duration::from_secs(3600)),
        "Interval between comparisons of the whole directory with another member.";
}

table! {
    /// A service: its local addresses for clients, whether this node offers it, and the choice of
    /// origin. The default is that of services other than kube-apiserver; see
    /// [`ServiceSettings::defaults`].
    ServiceSettings, SERVICE;
    listen: Vec<SocketAddr> = Vec::new(), "listen" is list!(MAX_LISTEN, ADDRESS_FORM, parsed),
        "TCP addresses for local clients; an empty list offers the service only. Required for \
         services other than kube-apiserver.";
    allow_remote_clients: bool = false, "allow-remote-clients" is flag!(),
        "Whether listen may have addresses that other machines can reach. Anyone who reaches them \
         uses the mesh as this node.";
    origin: Option<Endpoint> = None,
        "origin" is optional!(ORIGIN_FORM, reachable), example "\"127.0.0.1:6443\"",
        "The local instance of the service, such as the local apiserver. Without it, this node \
         only uses the service. The credential needs the role origin:SERVICE.";
    allow: Vec<Allow> = Allow::everyone(), "allow" is list!(MAX_ALLOW, ALLOW_FORM, parsed),
        "Which nodes and operators may use this node's instance. Nodes not matched by any entry \
         are refused; an empty list refuses all except clients of this machine. Sessions that a \
         new list does not allow end. A name or site counts only under an invite that fixes it. \
         Needs origin.";
    policy: Policy = Policy::Nearest, "policy" is word!(Policy),
        "Which healthy origin a new session goes to: the nearest, all in turn, the first healthy \
         one of the list pinned, the one with the fewest sessions of this node, or the same one \
         for each client.";
    pinned: Vec<Pin> = Vec::new(), "pinned" is list!(MAX_PINNED, "a node's name or id", parsed),
        "The order of the policy \"pinned\": names or ids of nodes.";
    weights: Vec<Weight> = Vec::new(), "weights" is list!(MAX_PINNED, Weight::FORM, parsed),
        "Weights of origins that share sessions. An origin with weight 3 gets three times the \
         sessions of an unlisted one.";
    band: Duration = Duration::from_millis(1),
        "band" is period!(Duration::ZERO, Duration::from_secs(10)),
        "Origins whose latency is within this of the nearest share sessions with it.";
    band_percent: u8 = 15, "band-percent" is number!(0, 100, "percent"),
        "The band as a share of the nearest's latency; the wider of the two counts.";
    connect_timeout: Duration = Duration::from_secs(10),
        "connect-timeout" is period!(Duration::from_millis(100), MINUTE),
        "How long a new session tries origins before its client is refused.";
    hold: Duration = Duration::from_secs(3),
        "hold" is period!(Duration::ZERO, Duration::from_secs(8)),
        "How long a new session waits for an origin when none is usable. Clients give up after \
         about 10s.";
    cut_window: Duration = Duration::from_secs(1),
        "cut-window" is period!(Duration::ZERO, Duration::from_secs(10)),
        "When a path dies or loses most packets, or an instance hangs or stalls, its sessions are \
         reset at random moments within this time, so that clients do not all reconnect at once. \
         Sessions whose clients are waiting for an answer go first. Without another healthy \
         origin, sessions on a dead path are reset at once, and all others stay.";
    hedge: bool = true, "hedge" is flag!(),
        "Whether a second origin is tried in parallel when the first is slow to answer a new \
         session; the first answer wins.";
    hedge_min: Duration = Duration::from_millis(100),
        "hedge-min" is period!(Duration::from_millis(10), Duration::from_secs(10)),
        "The shortest delay before the next origin is tried in parallel; less than 100ms has no \
         effect. The actual delay depends on the path's latency and its deviation.";
    hedge_max: Duration = Duration::from_millis(500),
        "hedge-max" is period!(Duration::from_millis(10), Duration::from_secs(10)),
        "The longest delay before the next origin is tried in parallel.";
    drift_percent: u8 = 10, "drift-percent" is number!(0, 100, "percent"),
        "When a better origin is back, this share of the sessions elsewhere moves to it every 10s: \
         each ends when idle, and its client reconnects. 0 leaves them where they are.";
    drain_window: Duration = Duration::from_secs(60),
        "drain-window" is period!(SECOND, Duration::from_secs(3600)),
        "Time within which each session on an origin gets its turn after `meshport drain`. It then \
         ends at its next pause in traffic, or after 10s without one.";
    fallback: Vec<Endpoint> = Vec::new(),
        "fallback" is list!(MAX_FALLBACK, FALLBACK_FORM, reachable),
        "Addresses outside the mesh to use when no origin in it answers, such as an existing load \
         balancer. Names are resolved every 30s.";
    cluster_kubeconfig: Option<PathBuf> = None,
        "cluster-kubeconfig" is optional_path!(), example "\"/etc/kubernetes/kubelet.conf\"",
        "A kubeconfig whose user may get the EndpointSlice or the Endpoints kubernetes in the \
         namespace default, such as the kubelet's. With it the node reads the cluster's list of \
         apiservers through listen every 30s, and `meshport status` warns when it differs from \
         the mesh's origins. It never changes a route.";
    max_sessions: u32 = 10_000, "max-sessions" is number!(1, 1_000_000, "sessions"),
        "Maximum concurrent client sessions; further ones are refused.";
    /// How this node checks the local instance.
    health: HealthSettings = HealthSettings::default();
}

table! {
    /// How an origin checks its local instance of a service. The default is that of services other
    /// than kube-apiserver; see [`ServiceSettings::defaults`].
    HealthSettings, HEALTH;
    mode: HealthMode = HealthMode::Tcp, "mode" is word!(HealthMode),
        "How an origin probes the local instance: kubernetes (HTTPS /version, /readyz and \
         /livez), http (one path) or tcp (a connection). The default is kubernetes for \
         kube-apiserver and tcp for others.";
    interval: Duration = Duration::from_secs(1),
        "interval" is period!(Duration::from_millis(100), Duration::from_secs(300)),
        "Interval of checks.";
    timeout: Duration = Duration::from_secs(1),
        "timeout" is period!(Duration::from_millis(100), MINUTE),
        "Timeout of the check whether the instance is alive: /version, the path or the \
         connection. At most ready-timeout.";
    fall: u8 = 2, "fall" is number!(1, 100, "checks"),
        "Consecutive failed checks after which the instance counts as failed.";
    ready_timeout: Duration = Duration::from_secs(5),
        "ready-timeout" is period!(Duration::from_millis(100), MINUTE),
        "Timeout of the checks whether it is ready and live: /readyz and /livez, or the path. \
         Mode tcp has none.";
    ca_file: Option<PathBuf> = None,
        "ca-file" is optional_path!(), example "\"/etc/kubernetes/pki/ca.crt\"",
        "CA certificates (PEM) that verify the instance's certificate, with mode kubernetes. \
         Without it, the certificate is not verified.";
    client_cert_file: Option<PathBuf> = None,
        "client-cert-file" is optional_path!(), example "\"/etc/meshport/health.crt\"",
        "A client certificate (PEM) for instances that refuse anonymous requests. Needs \
         client-key-file and ca-file.";
    client_key_file: Option<PathBuf> = None,
        "client-key-file" is optional_path!(), example "\"/etc/meshport/health.key\"",
        "The private key (PEM) of client-cert-file.";
    bearer_token_file: Option<PathBuf> = None,
        "bearer-token-file" is optional_path!(), example "\"/etc/meshport/health.token\"",
        "A file with a bearer token, instead of a client certificate. Needs ca-file.";
    server_name: Option<String> = None,
        "server-name" is optional!("a DNS name or an IP address", server_name),
        example "\"kubernetes.default.svc\"",
        "The name to verify in the instance's certificate, if it is not the host of origin.";
    path: String = "/".to_owned(), "path" is text!("a URL path, such as \"/healthz\"", url_path),
        "The path requested with mode http.";
}

/// The tables of the root, other than `service`.
pub(super) const TABLES: &[&str] =
    &["log", "mesh", "admin", "discovery", "events", "egress", "kubelet"];

pub(super) fn parsed<V: std::str::FromStr>(text: &str) -> Option<V> {
    text.parse().ok()
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
