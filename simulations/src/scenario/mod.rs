//! The input of a run: a TOML file, strictly parsed.
//!
//! The types in here are the format: `serde` reads them, `schemars` makes the JSON schema from
//! them, and the tables in `simulations/REFERENCE.md` are generated from that schema. [`timeline`]
//! resolves a file for a seed (which node "any" is, when a random time is).
//! Bounds: [`MAX_NODES`], [`MAX_SITES`], [`MAX_HAPPENINGS`].

use std::collections::BTreeSet;
use std::time::Duration;

use meshport_config::SiteName;
use meshport_core::route::Damping;
use meshport_discovery::DiscoveryConfig;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Error;

mod event;
mod keys;
pub mod paths;
pub mod reference;
mod settings;
mod strict;
pub mod target;
#[cfg(test)]
mod tests;
pub mod timeline;

pub use event::{Event, Happening, Lie, When};
pub(crate) use settings::merge;
pub use settings::{Overrides, service};
pub use strict::read;
pub(crate) use strict::without_line;

pub use crate::instance::Instance;

/// Nodes of one run: what the directory of a node holds, with room for those that are gone.
pub const MAX_NODES: usize = 16_000;
/// Sites of one run: the links between them grow with the square.
pub const MAX_SITES: usize = 256;
/// Events in one run, repetitions included.
pub const MAX_HAPPENINGS: usize = 20_000;

/// Defaults for a scenario.
const USUAL_FALLBACK_RTT_MS: f64 = 40.0;
const USUAL_NAT_TIMEOUT_S: f64 = 30.0;

/// A whole scenario.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Scenario {
    /// Description, in a sentence.
    pub description: String,
    /// The level: `wide`, thousands of nodes with real decisions, or `full`, tens of nodes with
    /// everything real above the socket.
    #[serde(default)]
    pub level: Level,
    /// Duration, in virtual seconds.
    pub duration_s: f64,
    /// Virtual seconds at the start that count as start-up: traffic, stretch and evictions are
    /// measured after them. A quarter of the duration, at most 60, if absent.
    pub warmup_s: Option<f64>,
    /// Nodes start within this many seconds of each other.
    #[serde(default = "default_start_over_s")]
    pub start_over_s: f64,
    /// Nodes start with the saved directory of the whole mesh, as after a restart of everything;
    /// otherwise they know only their seeds.
    #[serde(default)]
    pub known_at_start: bool,
    /// Loss in each direction on every path without its own value, in percent.
    #[serde(default)]
    pub loss_percent: f64,
    /// Round trip between sites that have neither a path of their own nor coordinates, in
    /// milliseconds.
    #[serde(default = "default_rtt_ms")]
    pub default_rtt_ms: f64,
    /// Round trip from every node to the `fallback` of its settings, in milliseconds; 40 if absent.
    /// The fallback is always ready.
    pub fallback_rtt_ms: Option<f64>,
    /// Number of sites whose first node is a seed for all nodes.
    #[serde(default = "default_seed_sites")]
    pub seed_sites: usize,
    /// Settings under test: any table and key of the daemon's own settings file, for all nodes.
    #[serde(default)]
    #[schemars(with = "serde_json::Map<String, serde_json::Value>")]
    pub settings: toml::Table,
    /// Constants of discovery and route choice that are not settings, for sweeps at the wide level.
    #[serde(default)]
    pub tuning: Tuning,
    /// The clients of every node; none if absent.
    pub load: Option<Load>,
    /// Streams from apiservers to kubelets, at the full level; none if absent. `on` selects the
    /// nodes whose kubelets are called, each by the apiservers in turn.
    pub way_back: Option<Load>,
    /// The sites.
    #[serde(rename = "site")]
    pub sites: Vec<Site>,
    /// The paths between the sites.
    #[serde(rename = "path", default)]
    pub paths: Vec<SitePath>,
    /// Events, in any order.
    #[serde(rename = "event", default)]
    pub events: Vec<Event>,
}

/// A site with its nodes, which are named SITE-1, SITE-2 and so on.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Site {
    /// Its name.
    #[schemars(with = "String")]
    pub name: SiteName,
    /// Number of nodes.
    pub nodes: usize,
    /// Number of them, from the first, that host an apiserver instance.
    #[serde(default)]
    pub origins: usize,
    /// Number of them, from the last, that may relay sessions of others.
    #[serde(default)]
    pub relays: usize,
    /// Number of further nodes that start only by an event `join`.
    #[serde(default)]
    pub joining: usize,
    /// Latitude and longitude in degrees; gives the round trip to other sites that have them.
    pub at: Option<[f64; 2]>,
    /// Round trip between its nodes, in milliseconds.
    #[serde(default = "default_inside_rtt_ms")]
    pub rtt_ms: f64,
    /// A preset for the path from each node to its site, in addition to the paths between sites:
    /// `lan`, `metro`, `continent`, `intercontinental`, `lossy-lte` or `satellite`.
    pub access: Option<String>,
    /// Nodes are behind a NAT: unsolicited datagrams do not reach them, and they advertise no
    /// endpoint.
    #[serde(default)]
    pub nat: bool,
    /// Seconds without a datagram to a peer after which the NAT forgets it; 30 if absent.
    pub nat_timeout_s: Option<f64>,
    /// Settings of this site's nodes; they override the scenario's.
    #[serde(default)]
    #[schemars(with = "serde_json::Map<String, serde_json::Value>")]
    pub settings: toml::Table,
}

/// The path between two sites. Absent values are taken from the preset, or are perfect.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SitePath {
    /// The two sites; the same site twice means the path between its nodes.
    #[schemars(with = "[String; 2]")]
    pub between: [SiteName; 2],
    /// Only from the first to the second site.
    #[serde(default)]
    pub one_way: bool,
    /// Start from a preset: `lan`, `metro`, `continent`, `intercontinental`, `lossy-lte` or
    /// `satellite`.
    pub preset: Option<String>,
    /// Undisturbed round trip, in milliseconds.
    pub rtt_ms: Option<f64>,
    /// Delay added in each direction, in milliseconds: the mean of an exponential distribution, or
    /// the greatest value of a uniform one.
    pub jitter_ms: Option<f64>,
    /// The distribution of that delay: `exponential` or `uniform`.
    pub jitter: Option<String>,
    /// Share of datagrams lost in each direction, in percent.
    pub loss_percent: Option<f64>,
    /// Mean length of a burst in which everything is lost (Gilbert-Elliott), in milliseconds;
    /// independent losses if absent.
    pub loss_burst_ms: Option<f64>,
    /// Share of datagrams that may overtake others, in percent. 100 if absent: the path stands for
    /// many separate flows.
    pub reorder_percent: Option<f64>,
    /// Share of datagrams that arrive twice, in percent.
    pub duplicate_percent: Option<f64>,
    /// A bottleneck shared by all nodes of the site, in megabits per second.
    pub rate_mbit: Option<f64>,
    /// Longest queue before the bottleneck, in milliseconds of its rate. 50 if absent.
    pub queue_ms: Option<f64>,
    /// The largest IP packet that passes, in bytes.
    pub mtu: Option<usize>,
}

/// The clients of each node, or the callers of each kubelet.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Load {
    /// New sessions per second on each node, or streams to it.
    pub sessions_per_s: f64,
    /// Arrival of sessions: `poisson`, `regular`, or `bursts` of ten.
    #[serde(default = "default_arrival")]
    pub arrival: Arrival,
    /// How long a session is held on average, in seconds.
    #[serde(default = "default_hold_s")]
    pub hold_s: f64,
    /// Whether every session is held exactly that long instead of an exponentially distributed
    /// time.
    #[serde(default)]
    pub hold_fixed: bool,
    /// Requests per second on each held session, in addition to the one that opens it.
    #[serde(default)]
    pub requests_per_s: f64,
    /// Bytes of a request.
    #[serde(default = "default_request_bytes")]
    pub request_bytes: usize,
    /// Bytes of an answer.
    #[serde(default = "default_response_bytes")]
    pub response_bytes: usize,
    /// Seconds without an answer after which a client gives up a request.
    #[serde(default = "default_timeout_s")]
    pub timeout_s: f64,
    /// Whether a request may fail. If false, a failed one violates a rule; the lab refuses this.
    #[serde(default = "default_may_fail")]
    pub may_fail: bool,
    /// Which nodes have clients; see "Nodes" above.
    #[serde(default = "default_all")]
    pub on: String,
}

/// Constants of discovery and route choice that the daemon's settings file does not have. Absent
/// ones are as in the daemon.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Tuning {
    /// Random members per round of gossip, 1 to 32.
    pub gossip_fanout: Option<u8>,
    /// Interval of rounds of gossip, in milliseconds, 20 to 10000.
    pub gossip_interval_ms: Option<u16>,
    /// Members that are asked to probe a silent one, 1 to 16.
    pub indirect_probes: Option<u8>,
    /// How much cheaper than the preferred origin another one must be, in milliseconds, 0 to 1000;
    /// `gain-percent` is an alternative.
    pub gain_ms: Option<u16>,
    /// The same as a share of the preferred origin's cost, in percent, 0 to 1000.
    pub gain_percent: Option<u16>,
    /// How long another origin must be cheaper before it is used, in milliseconds, 0 to 60000.
    pub gain_lasting_ms: Option<u16>,
    /// How long an origin that was left must be good again before it is used, the first time, in
    /// milliseconds, 0 to 60000; at most `gain-lasting-ms`.
    pub return_lasting_ms: Option<u16>,
}

impl Tuning {
    /// Whether every number is as in the daemon.
    pub fn is_usual(&self) -> bool {
        *self == Self::default()
    }

    /// Applies the values for discovery.
    pub(crate) fn apply(&self, to: &mut DiscoveryConfig) {
        to.gossip_fanout = self.gossip_fanout.unwrap_or(to.gossip_fanout);
        to.indirect_probes = self.indirect_probes.unwrap_or(to.indirect_probes);
        let interval = self.gossip_interval_ms.map(|it| Duration::from_millis(it.into()));
        to.gossip_interval = interval.unwrap_or(to.gossip_interval);
    }

    /// Applies the values for route choice.
    pub(crate) fn damping(&self) -> Damping {
        let usual = Damping::default();
        let ms = |number: Option<u16>| number.map(|it| Duration::from_millis(it.into()));
        Damping {
            gain: ms(self.gain_ms).unwrap_or(usual.gain),
            gain_percent: self.gain_percent.map_or(usual.gain_percent, u32::from),
            gain_lasting: ms(self.gain_lasting_ms).unwrap_or(usual.gain_lasting),
            return_lasting: ms(self.return_lasting_ms).unwrap_or(usual.return_lasting),
        }
    }

    fn check(&self) -> Result<(), Error> {
        let numbers = [
            ("gossip-fanout", self.gossip_fanout.map(u16::from), 1..=32),
            ("gossip-interval-ms", self.gossip_interval_ms, 20..=10_000),
            ("indirect-probes", self.indirect_probes.map(u16::from), 1..=16),
            ("gain-ms", self.gain_ms, 0..=1000),
            ("gain-percent", self.gain_percent, 0..=1000),
            ("gain-lasting-ms", self.gain_lasting_ms, 0..=60_000),
            ("return-lasting-ms", self.return_lasting_ms, 0..=60_000),
        ];
        for (key, value, good) in numbers {
            if let Some(value) = value.filter(|value| !good.contains(value)) {
                let (from, to) = (good.start(), good.end());
                return Err(Error::Scenario(format!("{key} = {value}: expected {from} to {to}")));
            }
        }
        Ok(())
    }
}

/// What is simulated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// Thousands of nodes, each the daemon's own decisions.
    #[default]
    Wide,
    /// Tens of nodes with everything real above the socket.
    Full,
}

/// How sessions arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Arrival {
    /// Independently of each other.
    Poisson,
    /// One after the other at equal intervals.
    Regular,
    /// Ten at once, independently of other tens.
    Bursts,
}

fn default_start_over_s() -> f64 {
    1.0
}

fn default_rtt_ms() -> f64 {
    60.0
}

fn default_seed_sites() -> usize {
    3
}

fn default_inside_rtt_ms() -> f64 {
    0.3
}

fn default_arrival() -> Arrival {
    Arrival::Poisson
}

fn default_hold_s() -> f64 {
    30.0
}

fn default_request_bytes() -> usize {
    600
}

fn default_response_bytes() -> usize {
    4000
}

fn default_timeout_s() -> f64 {
    10.0
}

fn default_may_fail() -> bool {
    true
}

fn default_all() -> String {
    "all".into()
}

impl Site {
    /// After how long without a datagram to a peer its NAT forgets it.
    pub(crate) fn nat_timeout(&self) -> Duration {
        Duration::from_secs_f64(self.nat_timeout_s.unwrap_or(USUAL_NAT_TIMEOUT_S))
    }

    fn check(&self) -> Result<(), Error> {
        let nodes = self.nodes;
        for (kind, count) in [("relays", self.relays), ("origins", self.origins)] {
            if count > nodes {
                let wrong = format!("it has {count} {kind} but {nodes} nodes");
                return Err(Error::Scenario(wrong));
            }
        }
        milliseconds(self.rtt_ms, "rtt-ms")?;
        if let Some(timeout_s) = self.nat_timeout_s {
            seconds(timeout_s, "nat-timeout-s")?;
        }
        if let Some(preset) = &self.access {
            paths::preset(preset)?;
        }
        keys::check_site(self)
    }
}

/// A node of a scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeRef {
    /// The index of its site.
    pub site: usize,
    /// Its number within the site, from 1.
    pub number: usize,
}

impl Scenario {
    /// Reads a scenario and checks that it is consistent.
    ///
    /// # Errors
    /// [`Error::Scenario`] with the line and the key, and the nearest valid key for a wrong one.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let scenario: Self = read(text)?;
        scenario.check().map_err(|error| strict::with_line(text, error))?;
        Ok(scenario)
    }

    /// How long it lasts.
    pub fn duration(&self) -> Duration {
        Duration::from_secs_f64(self.duration_s)
    }

    /// The distance of targets outside the mesh.
    pub(crate) fn fallback_rtt(&self) -> Duration {
        Duration::from_secs_f64(self.fallback_rtt_ms.unwrap_or(USUAL_FALLBACK_RTT_MS) / 1000.0)
    }

    /// The start of measuring.
    pub fn warmup(&self) -> Duration {
        let usual = (self.duration_s / 4.0).min(60.0);
        Duration::from_secs_f64(self.warmup_s.unwrap_or(usual).clamp(0.0, self.duration_s))
    }

    /// The nodes.
    pub fn nodes(&self) -> impl Iterator<Item = NodeRef> {
        let sites = self.sites.iter().enumerate();
        sites.flat_map(|(site, config)| {
            (1..=config.nodes + config.joining).map(move |number| NodeRef { site, number })
        })
    }

    /// The name of a node.
    pub fn name(&self, node: NodeRef) -> String {
        format!("{}-{}", self.sites[node.site].name, node.number)
    }

    /// Whether a node starts without a `join` event.
    pub(crate) fn starts(&self, node: NodeRef) -> bool {
        node.number <= self.sites[node.site].nodes
    }

    /// Whether a node may relay the sessions of others: the last of those that start at once.
    pub fn relays(&self, node: NodeRef) -> bool {
        let site = &self.sites[node.site];
        self.starts(node) && node.number > site.nodes.saturating_sub(site.relays)
    }

    /// Whether a node hosts an instance: the first of its site.
    pub(crate) fn hosts(&self, node: NodeRef) -> bool {
        node.number <= self.sites[node.site].origins
    }

    /// The index of a site.
    pub fn site(&self, name: &str) -> Result<usize, Error> {
        let index = self.sites.iter().position(|site| site.name.as_str() == name);
        index.ok_or_else(|| {
            let names = self.sites.iter().map(|site| site.name.as_str());
            Error::Scenario(format!("there is no site \"{name}\"{}", strict::near(name, names)))
        })
    }

    fn check(&self) -> Result<(), Error> {
        seconds(self.duration_s, "duration-s")?;
        seconds(self.start_over_s, "start-over-s")?;
        percent(self.loss_percent, "loss-percent")?;
        self.tuning.check()?;
        milliseconds(self.default_rtt_ms, "default-rtt-ms")?;
        if self.sites.is_empty() || self.sites.len() > MAX_SITES {
            let sites = self.sites.len();
            return Err(Error::Scenario(format!("{sites} sites; 1 to {MAX_SITES} are possible")));
        }
        let mut names = BTreeSet::new();
        for (index, site) in self.sites.iter().enumerate() {
            site.check()
                .map_err(|error| strict::of_item("site", index, site.name.as_str(), error))?;
            if !names.insert(&site.name) {
                return Err(Error::Scenario(format!("two sites are named \"{}\"", site.name)));
            }
        }
        let nodes = self.nodes().count();
        if nodes == 0 || nodes > MAX_NODES {
            return Err(Error::Scenario(format!("{nodes} nodes; 1 to {MAX_NODES} are possible")));
        }
        self.check_load()?;
        paths::configs(self)?;
        self.check_fallback(&Overrides::new(self)?)?;
        // A draw outside any run: targets and times must be valid for every seed.
        timeline::expand(self, 0).map(|_| ())
    }

    fn check_fallback(&self, overrides: &Overrides) -> Result<(), Error> {
        let Some(rtt_ms) = self.fallback_rtt_ms else { return Ok(()) };
        milliseconds(rtt_ms, "fallback-rtt-ms")?;
        if overrides.any(|settings| !settings.services[&service()].fallback.is_empty()) {
            return Ok(());
        }
        let wrong = "\"fallback-rtt-ms\" means nothing without a \"fallback\" in the settings; \
                     add one, or leave it out";
        Err(Error::Scenario(wrong.into()))
    }

    fn check_load(&self) -> Result<(), Error> {
        if self.way_back.is_some() && self.level == Level::Wide {
            let what = "[way-back] is of the full level: add level = \"full\", or leave it out";
            return Err(Error::Scenario(what.into()));
        }
        [&self.load, &self.way_back].into_iter().flatten().try_for_each(|it| self.check_one(it))
    }

    fn check_one(&self, load: &Load) -> Result<(), Error> {
        let rate = |value: f64, key: &str| {
            let good = (0.0..=10_000.0).contains(&value);
            let wrong = || Error::Scenario(format!("{key} = {value}: expected 0 to 10000"));
            good.then_some(()).ok_or_else(wrong)
        };
        rate(load.sessions_per_s, "sessions-per-s")?;
        rate(load.requests_per_s, "requests-per-s")?;
        seconds(load.hold_s, "hold-s")?;
        seconds(load.timeout_s, "timeout-s")?;
        for (bytes, key) in
            [(load.request_bytes, "request-bytes"), (load.response_bytes, "response-bytes")]
        {
            if bytes > crate::flight::MAX_BYTES {
                let most = crate::flight::MAX_BYTES;
                return Err(Error::Scenario(format!("{key} = {bytes}: at most {most}")));
            }
        }
        target::Target::parse(&load.on, self).map(|_| ())
    }
}

pub(crate) fn seconds(value: f64, key: &str) -> Result<Duration, Error> {
    let wrong = || Error::Scenario(format!("{key} = {value}: expected 0 to 1000000 seconds"));
    if !(0.0..=1e6).contains(&value) {
        return Err(wrong());
    }
    Duration::try_from_secs_f64(value).map_err(|_| wrong())
}

pub(crate) fn milliseconds(value: f64, key: &str) -> Result<(), Error> {
    if (0.0..=60_000.0).contains(&value) {
        return Ok(());
    }
    Err(Error::Scenario(format!("{key} = {value}: expected 0 to 60000 milliseconds")))
}

pub(crate) fn percent(value: f64, key: &str) -> Result<(), Error> {
    if (0.0..=100.0).contains(&value) {
        return Ok(());
    }
    Err(Error::Scenario(format!("{key} = {value}: expected 0 to 100")))
}
