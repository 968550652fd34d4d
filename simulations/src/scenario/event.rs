//! Events: as written in a file, and in a validated form.

use std::time::Duration;

use meshport_demo::wan::LinkConfig;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Instance, SitePath};

/// Something that happens: when, then exactly one of the keys from `kill` to `revoke`, then those
/// that go with it. `scenario/keys.rs` says which do.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Event {
    /// When, in virtual seconds; two numbers mean a random time between them.
    pub at_s: Option<When>,
    /// Number of repetitions in all; 1 if absent.
    pub times: Option<usize>,
    /// Interval of repetitions, in seconds.
    pub every_s: Option<f64>,
    /// Spreads several nodes over this many seconds, in random order.
    pub over_s: Option<f64>,
    /// Undoes the event after so many seconds: a killed, hanging, stalled or unready instance
    /// recovers, a crashed node restarts, a cut or degraded path is as before.
    pub for_s: Option<f64>,
    /// Instances whose server stops: connections are refused. See "Nodes" above.
    pub kill: Option<String>,
    /// Instances that accept connections and answer nothing.
    pub hang: Option<String>,
    /// Instances whose etcd member stalls: neither ready nor live, and requests hang.
    pub stall: Option<String>,
    /// Instances that answer but are not ready.
    pub unready: Option<String>,
    /// Instances that serve again.
    pub recover: Option<String>,
    /// Nodes whose process dies.
    pub crash: Option<String>,
    /// Crashed nodes whose process starts again.
    pub restart: Option<String>,
    /// Whether the restarted process finds no saved directory; false if absent.
    pub without_state: Option<bool>,
    /// Nodes that stop properly and start again after `down-s`, one after the other every `gap-s`.
    pub rolling_restart: Option<String>,
    /// Interval between the nodes of a rolling restart, in seconds; 10 if absent.
    pub gap_s: Option<f64>,
    /// How long each node of a rolling restart is down, in seconds; 2 if absent.
    pub down_s: Option<f64>,
    /// Nodes of `joining` that start for the first time.
    pub join: Option<String>,
    /// Nodes that leave properly and do not return.
    pub leave: Option<String>,
    /// Nothing passes between two sites, or between two nodes.
    pub cut: Option<[String; 2]>,
    /// Everything passes again between two sites, or between two nodes.
    pub heal: Option<[String; 2]>,
    /// Whether it affects only the path from the first to the second; false if absent.
    pub one_way: Option<bool>,
    /// Nothing passes between a site and all others. Inside it everything continues, so a site with
    /// an origin serves itself; for a site that loses power, `crash` all its nodes.
    pub isolate: Option<String>,
    /// The path between two sites gets worse (or better): keys as in `[[path]]`.
    pub degrade: Option<SitePath>,
    /// The path between two sites is as at the start.
    pub restore: Option<[String; 2]>,
    /// The path between two sites goes down and up in turn for `for-s` seconds.
    pub flap: Option<[String; 2]>,
    /// How long the path of a `flap` stays down, and up, in seconds; 1 if absent.
    pub period_s: Option<f64>,
    /// Nodes whose wall clock jumps `by-s` seconds.
    pub clock_step: Option<String>,
    /// How far a clock jumps, in seconds; negative goes back.
    pub by_s: Option<f64>,
    /// Nodes whose process is stopped repeatedly for `stall-ms`, for `for-s` seconds.
    pub starve: Option<String>,
    /// How long a starved process is stopped at a time, in milliseconds; 200 if absent.
    pub stall_ms: Option<f64>,
    /// Nodes behind a NAT whose mapping gets another public address; of others those alone, if none
    /// of them is behind one.
    pub rebind: Option<String>,
    /// Nodes that move to the site `to`, with other distances and another address.
    pub roam: Option<String>,
    /// The new site of a roaming node.
    pub to: Option<String>,
    /// Nodes whose settings change while they run: tables and keys of the daemon's settings file in
    /// `settings`.
    pub configure: Option<String>,
    /// The changed settings of `configure`; those of the start if absent.
    #[schemars(with = "Option<serde_json::Map<String, serde_json::Value>>")]
    pub settings: Option<toml::Table>,
    /// Nodes that lie from now on, or for `for-s` seconds, as `how` says.
    pub lie: Option<String>,
    /// The lie: `ready`, `garbage`, `replay`, `silent`, `relay`, `near` or `accuse`.
    pub how: Option<Lie>,
    /// Nodes that the authority revokes. A node that learns of its own revocation ends, as the
    /// daemon does.
    pub revoke: Option<String>,
    /// The node that receives the revocation from the operator; the first running one if absent.
    pub through: Option<String>,
}

/// When something happens.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum When {
    /// At this second.
    At(f64),
    /// At a random time between these seconds, another one for each seed.
    Between([f64; 2]),
}

/// How a node lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Lie {
    /// It reports its instance as ready regardless of its state.
    Ready,
    /// Its gossip is replaced by random bytes half of the time.
    Garbage,
    /// It resends its own old datagrams to arbitrary nodes.
    Replay,
    /// It ignores all gossip except path probes.
    Silent,
    /// It passes streams that it should relay to wrong nodes.
    Relay,
    /// It signs a distance of zero to every origin.
    Near,
    /// Every second, it claims to all nodes that all others are down, or alternately suspect.
    Accuse,
}

/// Something that happens at one moment.
#[derive(Debug, Clone, PartialEq)]
pub enum Happening {
    /// The instance on this node becomes this.
    Instance(usize, Instance),
    /// This node's process dies.
    Crash(usize),
    /// This node's process starts, with its saved directory or without.
    Start {
        /// The node.
        node: usize,
        /// Whether it finds what it saved.
        with_state: bool,
    },
    /// This node leaves cleanly.
    Leave(usize),
    /// A direction between two sites, by index, goes down or up.
    Path(usize, usize, bool),
    /// A direction between two nodes goes down or up.
    Pair(usize, usize, bool),
    /// A direction between two sites gets this quality; none: as at the start.
    Quality(usize, usize, Option<LinkConfig>),
    /// The wall clock of this node jumps by so many seconds.
    Clock(usize, i64),
    /// This node's process is stopped repeatedly for `stall`.
    Starve {
        /// The node.
        node: usize,
        /// The duration of each stop.
        stall: Duration,
        /// The end.
        until: Duration,
    },
    /// This node is seen under another address.
    Rebind(usize),
    /// This node is at another site from now on.
    Roam(usize, usize),
    /// The settings of this node change to those at this index of the scenario's overrides.
    Configure(usize, usize),
    /// The authority revokes this node's credential.
    Revoke {
        /// The node.
        node: usize,
        /// The node that receives the revocation first.
        through: Option<usize>,
    },
    /// This node lies from now on, or stops lying.
    Lie(usize, Option<Lie>),
}
