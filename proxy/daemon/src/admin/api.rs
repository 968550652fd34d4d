//! The answers of a running daemon, as data.
//!
//! These types are the JSON of every `--json` query and of the loopback HTTP port; all tables are
//! rendered from them alone. Fields are only added. Names of durations contain their unit. Ages are
//! relative to now, so clocks need not agree.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use meshport_config::{
    Credential, GroupName, ListenerName, NodeId, NodeName, Role, Roles, Seed, ServiceName,
    SiteName, UnixSeconds, VerifyKey, VirtualName,
};
use meshport_core::findings::{self, Finding, Severity};
use serde::{Deserialize, Serialize};

use super::credentials::{FormerKey, RenewalStatus, SecretStatus};
use super::request::{Kind, Request, verbs};
use super::wayback::WayBackStatus;
use crate::Error;

/// Maximum probes per ping request; the client repeats it for more.
pub const MAX_PING_COUNT: u32 = 100;
/// A ping is answered when its last probe has returned or timed out; probes run one after another.
const MAX_PING_TIME_PER_PROBE: Duration = Duration::from_secs(5);

/// A node as people refer to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRef {
    /// Its WireGuard public key.
    pub node: NodeId,
    /// The name in its credential.
    pub name: NodeName,
    /// The site in its credential.
    pub site: SiteName,
}

/// `meshport status`: one node's view at a glance.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Status {
    /// The running daemon.
    #[serde(flatten)]
    pub process: ProcessStatus,
    /// This node.
    pub me: NodeRef,
    /// The roles in its credential.
    pub roles: Roles,
    /// Expiry of its credential.
    pub credential_expires_at: UnixSeconds,
    /// Members by liveness, this node included in `alive`.
    pub members: MemberCounts,
    /// Members that are down or left, most recent first.
    pub absent: Vec<AbsentMember>,
    /// The mesh secret in force.
    #[serde(default)]
    pub secret: SecretStatus,
    /// The key this node had before, while it still answers.
    #[serde(default)]
    pub former_key: Option<FormerKey>,
    /// How its credential is renewed.
    #[serde(default)]
    pub renewal: RenewalStatus,
    /// How members see this node; absent in an answer of a release before 0.1.
    #[serde(default)]
    pub reach: Option<ReachStatus>,
    /// The way back from the apiserver of this node; absent without `egress.socket`.
    #[serde(default)]
    pub way_back: Option<WayBackStatus>,
    /// Every service this node uses or offers.
    pub services: Vec<ServiceStatus>,
    /// The services of this node for other clients.
    #[serde(flatten)]
    pub edge: EdgeStatus,
    /// Warnings for the operator, as text.
    pub warnings: Vec<String>,
    /// The warnings as findings, with their ids.
    #[serde(default)]
    pub findings: Vec<FindingRow>,
}

/// How members see a node's address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReachStatus {
    /// The NAT in front of it: `none`; `endpoint-independent` (all members see one address);
    /// `endpoint-dependent` (each member sees another); `one-report` (only one member has
    /// reported); `advertised` (`mesh.advertise` is set); or `unknown`.
    pub nat: String,
    /// Addresses at which members see it, at most three.
    pub seen_at: Vec<SocketAddr>,
}

/// What a node serves to clients other than its own.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct EdgeStatus {
    /// Every listener for clients that run no meshport.
    #[serde(default)]
    pub exposed: Vec<ExposedStatus>,
    /// The virtual addresses of this node's groups.
    #[serde(default)]
    pub virtual_addresses: Vec<VirtualAddressStatus>,
    /// The services that a program on this machine offers through this node.
    #[serde(default)]
    pub offered: Vec<OfferedStatus>,
}

/// A service that a program on this machine offers, such as one of a Kubernetes cluster.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OfferedStatus {
    /// Its name.
    pub name: ServiceName,
    /// The addresses of its ready instances.
    pub instances: Vec<String>,
    /// The nodes and operators that may use it.
    pub allow: Vec<String>,
    /// Seconds until the offer ends unless the program renews it.
    pub ends_in_s: u64,
}

/// A daemon as a process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ProcessStatus {
    /// Its version.
    pub version: String,
    /// Seconds since it started.
    pub uptime_s: u64,
    /// The outer UDP address the mesh is bound to.
    pub mesh_listen: SocketAddr,
    /// The loopback HTTP address of metrics and this status, if it is on.
    pub admin_http: Option<SocketAddr>,
    /// Settings changed in the file that need a restart, as of the last reload.
    #[serde(default)]
    pub needs_restart: Vec<SettingChange>,
    /// Why the last upgrade failed, if this process continued after it.
    #[serde(default)]
    pub failed_upgrade: Option<String>,
    /// Whether it is stopping and draining its sessions.
    #[serde(default)]
    pub is_leaving: bool,
    /// The wall time that it checks credentials against; absent in an answer of a release before
    /// 0.1.
    #[serde(default)]
    pub now_s: Option<u64>,
}

/// A finding, as in [`meshport_core::findings`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FindingRow {
    /// `MP` and three digits.
    pub id: String,
    /// Whether something does not work because of it; false for a warning.
    pub is_error: bool,
    /// The problem on this node.
    pub detail: String,
    /// The remedy on this node.
    pub remedy: String,
}

impl From<&Finding> for FindingRow {
    fn from(it: &Finding) -> Self {
        let is_error = it.severity == Severity::Error;
        let (detail, remedy) = (it.detail.clone(), it.remedy.clone().into_owned());
        Self { id: it.kind.id.into(), is_error, detail, remedy }
    }
}

impl FindingRow {
    /// The finding; `None` for one that this version does not know.
    pub fn read(&self) -> Option<Finding> {
        let kind = findings::by_id(&self.id)?;
        let severity = if self.is_error { Severity::Error } else { Severity::Warning };
        let (detail, remedy) = (self.detail.clone(), self.remedy.clone().into());
        Some(Finding { kind, severity, detail, remedy })
    }
}

/// Members by liveness.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberCounts {
    /// Answers, or is not known to be silent yet.
    pub alive: usize,
    /// Does not answer.
    pub down: usize,
    /// Has left.
    pub left: usize,
    /// Living nodes by release; `unknown` for those that do not announce it.
    #[serde(default)]
    pub releases: BTreeMap<String, usize>,
}

/// A member that is not taking part.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AbsentMember {
    /// The member.
    #[serde(flatten)]
    pub who: NodeRef,
    /// `down` or `left`.
    pub liveness: String,
    /// Seconds since this node noticed.
    pub since_s: u64,
}

/// A service, seen from this node.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ServiceStatus {
    /// Its name.
    pub name: ServiceName,
    /// Local addresses clients connect to (the bound ones, also when port 0 was asked for).
    pub listen: Vec<SocketAddr>,
    /// Those that cannot be opened for now, as a finding (MP101) explains.
    #[serde(default)]
    pub lost: Vec<SocketAddr>,
    /// `nearest`, `spread`, `pinned`, `least-sessions` or `source`.
    pub policy: String,
    /// The origin new sessions try first.
    pub chosen: Option<Chosen>,
    /// Every known origin, in the order that a new session tries them.
    pub origins: Vec<OriginStatus>,
    /// The local instance that this node offers, if it is an origin.
    pub offering: Option<Offering>,
    /// Client sessions open now.
    pub sessions_open: u64,
    /// Client sessions since start.
    pub sessions_total: u64,
    /// Client connections that found no origin.
    pub sessions_failed: u64,
}

/// An exposed listener, for clients without meshport.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ExposedStatus {
    /// Its name.
    pub name: ListenerName,
    /// The addresses clients connect to (the bound ones, also when port 0 was asked for).
    pub listen: Vec<SocketAddr>,
    /// Addresses that are closed because no origin of its services answers.
    pub closed: Vec<SocketAddr>,
    /// Those that cannot be opened for now, as a finding (MP101) explains.
    #[serde(default)]
    pub lost: Vec<SocketAddr>,
    /// The services it leads to.
    pub services: Vec<ServiceName>,
    /// Connections open now, including those whose client is not known yet.
    pub sessions_open: u64,
    /// Sessions since start.
    pub sessions_total: u64,
    /// Refused connections, by reason.
    pub refused: BTreeMap<String, u64>,
}

/// A virtual address, and this node's part in it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct VirtualAddressStatus {
    /// Its name on this node.
    pub name: VirtualName,
    /// The address that clients know.
    pub address: IpAddr,
    /// The interface of its LAN.
    pub interface: String,
    /// The group of nodes that share it.
    pub group: GroupName,
    /// The service behind it.
    pub service: ServiceName,
    /// Priority; the largest takes it first.
    pub priority: u8,
    /// `holding`, `releasing`, `standby`, or `ready` to take it from a node that releases it.
    pub state: String,
    /// Seconds in that state.
    pub for_s: u64,
    /// Why this node cannot hold it; absent if it can.
    pub obstacle: Option<String>,
    /// The other node that claims to hold it.
    pub holder: Option<String>,
    /// The other nodes of the group that are reachable over the mesh.
    pub others: Vec<String>,
}

/// An origin as people refer to it, and how sessions reach it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OriginRef {
    /// Its WireGuard public key; absent for an address outside the mesh.
    pub node: Option<NodeId>,
    /// The name in its credential, or the address outside the mesh.
    pub name: String,
    /// The site in its credential.
    pub site: Option<SiteName>,
    /// The name of the relay, if one carries the sessions.
    #[serde(default)]
    pub relay: Option<String>,
}

impl OriginRef {
    /// The site, or a dash if there is none.
    pub fn site_or_dash(&self) -> &str {
        self.site.as_ref().map_or("-", SiteName::as_ref)
    }
}

/// The first choice and why.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Chosen {
    /// The origin.
    #[serde(flatten)]
    pub who: OriginRef,
    /// One phrase: "this node", "nearest ready", "kept: cp-2 is hardly nearer", ...
    pub why: String,
    /// Seconds since it became the first choice.
    pub since_s: u64,
}

/// An origin of a service.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OriginStatus {
    /// The origin.
    #[serde(flatten)]
    pub who: OriginRef,
    /// The state of its local instance, as it announces it: `ready`, `unready`, `draining`,
    /// `refusing`, `hung`, `unknown`, `stalled`.
    pub state: String,
    /// Seconds since this node learned that state.
    pub state_since_s: u64,
    /// `own`, `direct`, `relayed`, `outside` (of the mesh) or `dead`; `unmeasured` before the first
    /// answer.
    pub path: String,
    /// Smoothed round-trip time in milliseconds; absent when unmeasured or own.
    pub rtt_ms: Option<f64>,
    /// Share of recent probes that were lost, percent.
    pub loss_percent: Option<u8>,
    /// Sessions of this node open to it.
    pub sessions: u64,
    /// Whether new sessions use it if nothing better is available.
    pub usable: bool,
    /// Whether it is the first choice.
    pub chosen: bool,
    /// Whether new sessions are shared among it and other origins: those within `band` of the first
    /// choice, or as `policy` says.
    #[serde(default)]
    pub shares: bool,
    /// Its problem; empty if it is healthy: "path lost 12 s ago", "connection refused".
    pub lacks: String,
}

/// The instance this node hosts.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Offering {
    /// The address it is dialled at.
    pub address: String,
    /// Its state.
    pub state: String,
    /// Seconds since it is in that state.
    pub since_s: u64,
    /// The last probe's outcome in words.
    pub detail: String,
    /// Sessions of other nodes open to it.
    pub sessions: u64,
}

/// `meshport peers`: one row per node the mesh knows.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PeerRow {
    /// Its key.
    pub node: NodeId,
    /// Its name, once its credential is known.
    pub name: Option<NodeName>,
    /// Its site, once its credential is known.
    pub site: Option<SiteName>,
    /// Its roles, once its credential is known.
    pub roles: Option<Roles>,
    /// The key of the invite it joined with; absent when the authority itself signed for it.
    #[serde(default)]
    pub invite: Option<VerifyKey>,
    /// The endorsed authority key its credential was signed under; absent for the mesh's first key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authority: Option<VerifyKey>,
    /// `alive`, `down`, `left` or `unknown`.
    pub liveness: String,
    /// Source address of its packets.
    pub endpoint: Option<SocketAddr>,
    /// Why there is no direct path to it, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lacks: Option<String>,
    /// How apiservers of this node reach its kubelet first: `direct`, `through NAME` or `down`;
    /// absent without `egress.socket` here, and where no kubelet is served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub way_back: Option<String>,
    /// Seconds since the last WireGuard handshake.
    pub handshake_age_s: Option<u64>,
    /// Round-trip time in milliseconds, if measured.
    pub rtt_ms: Option<f64>,
    /// Bytes received in the tunnel.
    pub rx_bytes: u64,
    /// Bytes sent in the tunnel.
    pub tx_bytes: u64,
}

/// `meshport peers --seeds`: a member's key and addresses, for `mesh.seeds`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeedRow {
    /// Its key and the addresses that it announces: `NODEID@HOST:PORT,HOST:PORT`.
    pub seed: Seed,
    /// The name in its credential.
    pub name: NodeName,
    /// The site in its credential.
    pub site: SiteName,
    /// Whether it offers a service.
    pub is_origin: bool,
    /// Whether it is a relay.
    pub is_relay: bool,
    /// Whether it is the daemon's own node.
    pub own: bool,
}

impl SeedRow {
    /// The member that has this credential.
    pub fn new(seed: Seed, credential: &Credential, own: bool) -> Self {
        Self {
            seed,
            name: credential.name.clone(),
            site: credential.site.clone(),
            is_origin: credential.roles.iter().any(|role| matches!(role, Role::Origin(_))),
            is_relay: credential.roles.contains(&Role::Relay),
            own,
        }
    }
}

/// `meshport ping NAME`: round trips through the tunnel.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PingReport {
    /// The node that was probed.
    #[serde(flatten)]
    pub who: NodeRef,
    /// Probes sent.
    pub sent: u32,
    /// Round-trip times of the answers in milliseconds, in order of sending.
    pub rtt_ms: Vec<Option<f64>>,
    /// Why it cannot answer, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lacks: Option<String>,
}

/// A request of `meshport ping`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PingRequest {
    /// A node name or a NodeId.
    pub target: String,
    /// Probes to send, 1 to 100.
    pub count: u32,
}

impl Request for PingRequest {
    const PATH: &'static str = "/ping";
    const KIND: Kind = Kind::Command;
    type Reply = PingReport;

    fn check(&self) -> Result<(), Error> {
        match (1..=MAX_PING_COUNT).contains(&self.count) {
            true => Ok(()),
            false => Err(Error::Usage(format!(
                "count is {}; it must be 1 to {MAX_PING_COUNT}",
                self.count
            ))),
        }
    }

    fn limit(&self) -> Duration {
        MAX_PING_TIME_PER_PROBE * self.count
    }
}

verbs! {
    DrainRequest, "/drain", Command, DrainReport;
    RevokeRequest, "/revoke", Command, RevokeReport;
}

/// A request of `meshport drain` or `undrain`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainRequest {
    /// The service whose instance on this node is drained.
    pub service: ServiceName,
    /// True to drain it, false to offer it again.
    pub draining: bool,
}

/// The result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainReport {
    /// The service.
    pub service: ServiceName,
    /// Whether this changed anything.
    #[serde(default = "changed")]
    pub changed: bool,
    /// The state announced to other nodes from now on.
    pub state: String,
    /// Sessions of other nodes that are still open here.
    pub sessions: u64,
}

/// The default for a daemon that does not report this.
fn changed() -> bool {
    true
}

/// A request of `meshport revoke`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevokeRequest {
    /// The authority's signed line, `meshport-revocation-1....`
    pub revocation: String,
}

/// The revoked object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevokeReport {
    /// The revoked node or invite: `node KEY` or `invite KEY`.
    pub revoked: String,
    /// The name of the revoked member, if the daemon knows it.
    #[serde(default)]
    pub name: Option<NodeName>,
    /// Whether the daemon did not know it before.
    pub is_new: bool,
    /// How many current members it shut out, as far as the daemon knows.
    pub cut: usize,
    /// The node that continues with a new key, which this does not revoke.
    #[serde(default)]
    pub successor: Option<NodeId>,
}

/// The result of a reload (`meshport reload`, SIGHUP).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadReport {
    /// Settings that have changed and are in force now.
    pub applied: Vec<SettingChange>,
    /// Settings changed in the file that need a restart.
    pub needs_restart: Vec<SettingChange>,
    /// Settings changed in the file without effect, also after a restart, since the variable
    /// MESHPORT_LOG sets them.
    #[serde(default)]
    pub overridden: Vec<SettingChange>,
    /// Why the stored credential was not reloaded; absent if it is in use.
    #[serde(default)]
    pub kept_credential: Option<String>,
}

/// A successor of the daemon that is ready to take its place (`meshport upgrade`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpgradeReport {
    /// The process of the successor.
    pub successor: u32,
}

/// A setting with its old and new value, as in the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettingChange {
    /// The key with its tables, `mesh.mtu`; for a new service its table, `service.registry`.
    pub key: String,
    /// The previous value; absent if there was none.
    pub old: Option<String>,
    /// The value in the file; absent if it has none.
    pub new: Option<String>,
}

impl From<meshport_config::Difference> for SettingChange {
    fn from(it: meshport_config::Difference) -> Self {
        Self { key: it.key, old: it.old, new: it.new }
    }
}

impl std::fmt::Display for SettingChange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = |value: &Option<String>| value.clone().unwrap_or_else(|| "not set".into());
        write!(f, "{}: {} -> {}", self.key, shown(&self.old), shown(&self.new))
    }
}
