//! `/view`: everything shown about a node in one document, for the page at `/` and for programs.
//!
//! The rules of [`super::api`] apply: fields are only added, and names contain units. Times
//! (`..._at_s`) are whole seconds since the daemon's start, so clocks need not agree: an age is
//! `now_s` minus such a time. Round-trip times have two significant digits, or whole milliseconds.
//! So an unchanged document has the same bytes up to `now_s`, its last field, and the same `ETag`.
//!
//! Bounds: [`MAX_NODES`] nodes, [`MAX_DISTANCES`] distances, and the bounds of the daemon's
//! directory, history and journal.

use std::net::{IpAddr, SocketAddr};

use meshport_config::{GroupName, Roles, ServiceName, SiteName, UnixSeconds, VirtualName};
use serde::{Deserialize, Serialize};

use super::api::{FindingRow, MemberCounts, NodeRef, OriginRef};
use super::credentials::Validity;
use super::explain::{LineSessions, RelayFacts, Seen};
use super::request::{Kind, Request};
use super::stats::StatsRow;

/// The version of the document. It increases when the meaning of a field changes.
pub const FORMAT: u32 = 1;
/// Nodes in one document: this one, then the origins, then absent nodes, then the others by name.
pub const MAX_NODES: usize = 1000;
/// Distances between sites in one document.
pub const MAX_DISTANCES: usize = 1024;

/// The request for a [`View`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViewRequest;

impl Request for ViewRequest {
    const PATH: &'static str = "/view";
    const KIND: Kind = Kind::Query;
    type Reply = View;

    fn news(body: &str) -> Option<&str> {
        body.rsplit_once(",\"now_s\":").map(|(news, _)| news)
    }
}

/// One node's view of the mesh. Unless stated otherwise, everything is this node's own observation.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct View {
    /// [`FORMAT`].
    pub format: u32,
    /// The node that shows this view.
    pub node: Viewer,
    /// The services this node uses or offers.
    pub services: Vec<ServiceView>,
    /// The sites of all known nodes, by name.
    pub sites: Vec<SiteRow>,
    /// The distances between sites' nodes and origins, as reported by the nodes.
    pub distances: Vec<SiteDistance>,
    /// The nodes, this one first.
    pub nodes: Vec<NodeRow>,
    /// Known nodes omitted for lack of space.
    pub nodes_left_out: usize,
    /// Findings, errors first; as in `meshport status` and `meshport doctor`.
    pub findings: Vec<FindingView>,
    /// Counters since the start, as in `meshport stats`.
    #[serde(default)]
    pub stats: Vec<StatsRow>,
    /// The virtual addresses that this node takes part in.
    #[serde(default)]
    pub addresses: Vec<AddressRow>,
    /// The last ten minutes of this node's clients.
    pub history: HistoryRows,
    /// Recent events, newest first.
    pub events: Vec<EventRow>,
    /// Seconds since the daemon started: now.
    pub now_s: u64,
}

/// One virtual address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressRow {
    /// Its name on this node.
    pub name: VirtualName,
    /// The address that clients know.
    pub address: IpAddr,
    /// The group of nodes that share it.
    pub group: GroupName,
    /// The service behind it.
    pub service: ServiceName,
    /// This node's state: `holding`, `releasing`, `standby` or `ready`.
    pub state: String,
    /// The name of the node that holds it: this one, or another that claims to.
    pub holder: Option<String>,
    /// Since when that node has held it, as far as this node knows; without a holder, since when
    /// nobody has.
    pub since_at_s: u64,
    /// Why this node cannot hold it; absent if it can.
    pub obstacle: Option<String>,
    /// The other nodes of the group that are reachable.
    pub others: Vec<String>,
}

/// The node that answers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Viewer {
    /// Its key, name and site.
    #[serde(flatten)]
    pub who: NodeRef,
    /// Version of the running daemon.
    pub version: String,
    /// The roles in its credential.
    pub roles: Roles,
    /// Expiry of its credential.
    pub credential_expires_at: UnixSeconds,
    /// Start of the daemon by this machine's clock. A different time means a different process.
    pub started_at: UnixSeconds,
    /// The outer UDP address the mesh is bound to.
    pub mesh_listen: SocketAddr,
    /// Whether peers see it behind NAT.
    pub behind_nat: bool,
    /// Members by liveness, this node included.
    pub members: MemberCounts,
    /// Whether the daemon is stopping.
    pub is_leaving: bool,
}

/// A service.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ServiceView {
    /// Its name.
    pub name: ServiceName,
    /// `nearest`, `spread`, `pinned`, `least-sessions` or `source`.
    pub policy: String,
    /// Local addresses clients connect to.
    pub listen: Vec<SocketAddr>,
    /// Listen addresses that cannot be opened for now.
    pub lost: Vec<SocketAddr>,
    /// Where sessions go and why, in one sentence.
    pub summary: String,
    /// The origin that is tried first; absent when none is usable.
    pub chosen: Option<Choice>,
    /// The origins, in the order a new session would try them.
    pub origins: Vec<OriginRow>,
    /// The instance this node hosts.
    pub offering: Option<OfferingRow>,
    /// The open sessions of this node's clients, by destination.
    pub lines: Vec<LineSessions>,
    /// The sessions of this node's clients.
    pub sessions: SessionCounts,
}

/// The first choice.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Choice {
    /// The origin.
    #[serde(flatten)]
    pub who: OriginRef,
    /// Why, as a phrase: "nearest ready".
    pub why: String,
    /// Since when it is the first choice.
    pub since_at_s: u64,
}

/// Sessions of one service's clients on this node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionCounts {
    /// Open now.
    pub open: u64,
    /// Total since the start.
    pub total: u64,
    /// Connections that found no origin, since the start.
    pub failed: u64,
}

/// An origin of a service, as this node sees it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OriginRow {
    /// The origin, and the relay to it.
    #[serde(flatten)]
    pub who: OriginRef,
    /// The state of its local instance, as it announces it: `ready`, `unready`, `draining`,
    /// `refusing`, `hung`, `unknown`, `stalled`.
    pub state: String,
    /// When it last changed that state, as far as this node knows.
    pub state_at_s: u64,
    /// The path to it.
    pub path: PathRow,
    /// `healthy`, `unproven`, `suspect`, `draining`, `doubtful`, `fallback` or `down`.
    pub standing: String,
    /// The cost of a session there, in milliseconds.
    pub cost_ms: f64,
    /// Sessions of this node's clients open to it.
    pub sessions: u64,
    /// Whether new sessions use it if nothing better is available.
    pub usable: bool,
    /// Whether it is the first choice.
    pub chosen: bool,
    /// Whether new sessions are shared among it and other origins: those within `band` of the first
    /// choice, or as `policy` says.
    #[serde(default)]
    pub shares: bool,
    /// Its problem; empty if it is healthy.
    pub lacks: String,
    /// How the other nodes see it; absent for an address outside the mesh.
    pub seen: Option<Seen>,
    /// The members that could carry sessions there, best first.
    pub relays: Vec<RelayFacts>,
}

/// Origins named as sharing new sessions with the first choice; the others are counted.
const MAX_SHARING: usize = 4;

/// Names the origins that share new sessions with the first choice because they are as near. Under
/// the other policies, the reason of the choice says it.
pub fn shared_with<'a>(policy: &str, others: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = others.collect();
    match names.len() {
        0 => String::new(),
        _ if policy != "nearest" => String::new(),
        1..=MAX_SHARING => format!("; shares new sessions with {}", names.join(", ")),
        all => {
            let shown = names[..MAX_SHARING].join(", ");
            format!("; shares new sessions with {shown} and {} more", all - MAX_SHARING)
        }
    }
}

/// The path to a node, as measured by this node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PathRow {
    /// `own`, `direct`, `relay`, `outside` (of the mesh), `dead`, `unmeasured`, or `none`: this
    /// node does not communicate with it.
    pub kind: String,
    /// The name of the relay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relay: Option<String>,
    /// Smoothed round-trip time in milliseconds.
    pub rtt_ms: Option<f64>,
    /// Share of recent probes that were lost, percent.
    pub loss_percent: Option<u8>,
    /// Since when the path has been up or dead.
    pub since_at_s: Option<u64>,
    /// When a packet last arrived on this path; absent while the node answers probes.
    pub heard_at_s: Option<u64>,
}

/// The instance this node hosts.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OfferingRow {
    /// The address it is dialled at.
    pub address: String,
    /// Its state.
    pub state: String,
    /// Since when it has that state.
    pub since_at_s: u64,
    /// The last probe's outcome, as text.
    pub detail: String,
    /// Sessions of other nodes open to it.
    pub sessions: u64,
}

/// A site.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SiteRow {
    /// Its name.
    pub name: SiteName,
    /// Nodes known there, except those that left.
    pub nodes: usize,
    /// Nodes there that answer.
    pub alive: usize,
    /// Nodes there that offer one of this node's services.
    pub origins: usize,
    /// Origins there that answer and are ready.
    pub ready: usize,
    /// Nodes that may relay.
    pub relays: usize,
    /// Whether this node belongs to it.
    pub own: bool,
}

/// The distance from the nodes of a site to the origins of another, or of the same site.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SiteDistance {
    /// The site of the nodes that report it.
    pub from: SiteName,
    /// The site of the origins.
    pub to: SiteName,
    /// The median round-trip time in milliseconds; absent when none is reached.
    pub rtt_ms: Option<f64>,
    /// The median share of lost probes, percent.
    pub loss_percent: u8,
    /// Pairs of a node and an origin that were measured.
    pub pairs: usize,
    /// Pairs that do not reach each other.
    pub unreachable: usize,
    /// When the newest of these records arrived.
    pub told_at_s: u64,
}

/// A node.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NodeRow {
    /// Its key, name and site.
    #[serde(flatten)]
    pub who: NodeRef,
    /// The roles in its credential.
    pub roles: Roles,
    /// `alive`, `down`, `left` or `unknown`, as membership agrees; `leaf` for an operator's machine
    /// that is attached to this node.
    pub liveness: String,
    /// Since when.
    pub since_at_s: u64,
    /// Its version, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Time at which its credential was issued.
    pub credential_issued_at: UnixSeconds,
    /// When its credential expires.
    pub credential_expires_at: UnixSeconds,
    /// Validity of its credential, as in `meshport credentials`; absent in views of releases before
    /// 0.1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credential_validity: Option<Validity>,
    /// Whether it reports that it is behind NAT.
    pub behind_nat: bool,
    /// The services it offers and may offer.
    pub offers: Vec<Offer>,
    /// When its last record arrived.
    pub told_at_s: Option<u64>,
    /// The path to it from here.
    pub path: PathRow,
}

/// A service that a node offers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// The service.
    pub service: ServiceName,
    /// The state of its instance, as it announces it.
    pub state: String,
}

/// A finding, with its entry in the catalogue.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FindingView {
    /// The finding as it occurs on this node.
    #[serde(flatten)]
    pub row: FindingRow,
    /// The finding in general.
    pub title: String,
    /// Its consequences.
    pub meaning: String,
    /// Its section in the documentation.
    pub anchor: String,
}

/// The last ten minutes of this node's clients, in columns. A second is omitted if it equals the
/// previous one, so an entry holds until the time of the next.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryRows {
    /// The length of the history, in seconds.
    pub seconds: u64,
    /// The ends of the seconds, ascending.
    pub at_s: Vec<u64>,
    /// Sessions open.
    pub open: Vec<u64>,
    /// Clients connected.
    pub connected: Vec<u32>,
    /// Clients that found no origin.
    pub failed: Vec<u32>,
    /// Bytes from clients.
    pub up_bytes: Vec<u64>,
    /// Bytes to clients.
    pub down_bytes: Vec<u64>,
    /// The mean wait for an origin, in microseconds.
    pub connect_us: Vec<u32>,
    /// The longest wait for an origin, in microseconds.
    pub slowest_us: Vec<u32>,
}

/// An event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventRow {
    /// Time.
    pub at_s: u64,
    /// `came`, `went`, `left`, `refused`, `revoked`, `route`, `instance` or `reset`.
    pub kind: String,
    /// The nodes concerned.
    pub names: Vec<String>,
    /// How many more nodes.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub others: u32,
    /// The service, if the event concerns one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<ServiceName>,
    /// The event as text.
    pub detail: String,
}

fn is_zero(value: &u32) -> bool {
    *value == 0
}
