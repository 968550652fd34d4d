//! The answer of `meshport explain`, as data: why sessions go where they go.
//!
//! The same rules as in [`super::api`]: fields are only ever added, units are in the names, ages
//! are counted from now.

use meshport_config::{NodeName, ServiceName, SiteName};
use serde::{Deserialize, Serialize};

use super::api::{Chosen, OriginRef, OriginStatus};

/// A service as this node sees it, with reasons.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Explanation {
    /// Its name.
    pub service: ServiceName,
    /// `nearest`, `spread`, `pinned`, `least-sessions` or `source`.
    pub policy: String,
    /// The origin new sessions try first.
    pub chosen: Option<Chosen>,
    /// Every candidate, in the order that a new session tries them.
    pub candidates: Vec<CandidateFacts>,
    /// The sessions of this node's clients, by destination.
    pub sessions: Vec<LineSessions>,
    /// The last changes of the first choice, newest first, at most ten.
    pub changes: Vec<RouteChange>,
}

/// A candidate, with the reasons for its position.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CandidateFacts {
    /// The origin, its state, its path and its problem.
    #[serde(flatten)]
    pub status: OriginStatus,
    /// `healthy`, `unproven`, `suspect`, `draining`, `doubtful`, `fallback` or `down`: better ones
    /// go first.
    pub standing: String,
    /// The cost of a session there, in milliseconds; among equals the cheaper one goes first.
    pub cost_ms: f64,
    /// Mean deviation of round trips, in milliseconds; absent if unmeasured or for the local
    /// instance.
    pub deviation_ms: Option<f64>,
    /// Points of evidence against it from sessions, 0 to 4; it is suspect from 2 on.
    pub evidence: f64,
    /// How the other nodes see it; absent for an address outside the mesh.
    pub seen: Option<Seen>,
    /// The members that could carry sessions there, best first.
    pub relays: Vec<RelayFacts>,
}

/// How other nodes see an origin, from the distances in their records.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    /// Nodes that measure it.
    pub nodes: u64,
    /// Nodes that do not reach it.
    pub unreachable: u64,
    /// Their sites.
    pub unreachable_sites: Vec<SiteName>,
    /// The shortest round-trip time of the nodes that reach it, in milliseconds.
    pub least_ms: Option<f64>,
    /// The longest, in milliseconds.
    pub most_ms: Option<f64>,
    /// A summary: "unreachable from 4 of 9 nodes, all in site b".
    pub words: String,
}

/// A member that could carry sessions to an origin.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RelayFacts {
    /// Its name.
    pub name: NodeName,
    /// Its site.
    pub site: SiteName,
    /// Sum of both round trips in milliseconds: the one measured here and the one the relay
    /// reports, or the one measured by sessions if that is longer.
    pub rtt_ms: f64,
    /// The cost of a session through it, including that of relaying.
    pub cost_ms: f64,
    /// Share of packets lost on the whole path, percent.
    pub loss_percent: u8,
    /// Whether it was recently silent or refusing.
    pub suspect: bool,
    /// Whether a session was recently connected through it.
    pub proven: bool,
    /// Whether new sessions to that origin use this path.
    pub used: bool,
}

/// Open sessions on one line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineSessions {
    /// The destination.
    #[serde(flatten)]
    pub who: OriginRef,
    /// Number of open sessions.
    pub open: u64,
}

/// A change of the first choice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteChange {
    /// Seconds since it happened.
    pub age_s: u64,
    /// The previous first choice, "cp-2 through relay-1" if a relay took part.
    pub from: Option<String>,
    /// The new first choice.
    pub to: Option<String>,
    /// Why, as a phrase: "path dead", "refusing", "nearer for long enough".
    pub cause: String,
}
