//! The results of a run: as text ([`text`]), as JSON ([`json`], [`keys`]), as a page ([`html`]).

use std::collections::BTreeMap;
use std::time::Duration;

use self::film::Film;
use crate::measure::{Choices, Fault, Measures, News, Second, quantile, share};
use crate::trace::TraceHash;
use crate::tunnel::OVERHEAD;

pub mod film;
pub mod html;
pub mod json;
pub mod keys;
pub mod text;

/// Represents a time in a sweep if some nodes never noticed a fault that they should have: it is
/// worse than any time, and no plot may omit it.
pub const NEVER: f64 = f64::INFINITY;
/// Requests count for a fault until this long after its end: clients wait that long for an answer
/// unless the scenario says otherwise.
const AFTERMATH: Duration = Duration::from_secs(10);

/// Everything about one run.
#[derive(Debug)]
pub struct Run {
    /// How it ended.
    pub outcome: Outcome,
    /// The measurements.
    pub measures: Measures,
    /// Violated rules.
    pub violations: Vec<Violation>,
    /// The film of the run, if it was recorded.
    pub film: Option<Film>,
}

/// How a run ended.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The level of the simulation.
    pub level: keys::Level,
    /// The scenario in a sentence.
    pub description: String,
    /// The seed of all randomness.
    pub seed: u64,
    /// How long it lasted.
    pub virtual_time: Duration,
    /// Start of measuring.
    pub warmup: Duration,
    /// Datagrams on the wire.
    pub datagrams: u64,
    /// The hash over everything that happened.
    pub trace_hash: TraceHash,
    /// The sites' names.
    pub sites: Vec<String>,
    /// Every node's name and site.
    pub nodes: Vec<(String, usize)>,
    /// The number of running nodes at the end.
    pub running: usize,
    /// Running nodes and the origin each uses at the end.
    pub routes: Vec<(usize, Option<usize>)>,
    /// How many of them use the nearest serving one.
    pub nearest: usize,
    /// The events, in words.
    pub plan: Vec<(Duration, String)>,
    /// Total running time of nodes, in seconds.
    pub node_seconds: f64,
    /// The maximum length of the event queue.
    pub longest_queue: usize,
}

/// A violated rule.
#[derive(Debug, Clone)]
pub struct Violation {
    /// Time of the violation.
    pub at: Duration,
    /// The rule.
    pub rule: &'static str,
    /// Name of the node, if it concerns one.
    pub node: Option<String>,
    /// Description.
    pub what: String,
    /// The last events of that node.
    pub last: Vec<String>,
}

/// The load of the machine, for the parts of a report that differ between runs.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Wall time of the run.
    pub wall: Duration,
    /// Processor time of the run.
    pub processor: Duration,
    /// The peak memory of the process in bytes; 0 if unknown.
    pub memory: u64,
}

/// How nodes reacted to a fault. A node counts once for each victim that concerns it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Followed {
    /// Nodes that were hit; none if paths were.
    pub nodes: usize,
    /// Nodes that should have noticed.
    pub concerned: usize,
    /// How many of them did.
    pub noticed: usize,
    /// Half of them had noticed after this.
    pub detected_p50: Option<Duration>,
    /// 99 % of them had noticed after this.
    pub detected_p99: Option<Duration>,
    /// 99 % of those in the same site had noticed after this.
    pub same_site_p99: Option<Duration>,
    /// Nodes that used the victim; for a fault that affects the choice of nodes, those that had a
    /// choice or had to find one.
    pub users: usize,
    /// How many of them switched.
    pub left: usize,
    /// 99 % of them had switched after this; if switching was optional, 99 % of those that did.
    pub failover_p99: Option<Duration>,
    /// Requests that failed, of any client, from its beginning until ten seconds after its end.
    pub failed: u64,
    /// Requests that were slow in that time.
    pub slow: u64,
}

impl Run {
    /// The name of the origin that a node uses at the end.
    pub fn route_of(&self, name: &str) -> Option<&str> {
        let nodes = &self.outcome.nodes;
        let node = nodes.iter().position(|(node, _)| node == name)?;
        let (_, chosen) = self.outcome.routes.iter().find(|(at, _)| *at == node)?;
        chosen.map(|origin| nodes[origin].0.as_str())
    }

    /// Share of running nodes that use the nearest serving origin at the end, 0 to 1.
    pub fn nearest_share(&self) -> f64 {
        share(self.outcome.nearest as u64, self.outcome.routes.len() as u64)
    }

    /// Share of sessions that went to the nearest serving origin, 0 to 1; none without sessions.
    pub fn nearest_sessions(&self) -> Option<f64> {
        let Choices { nearest, compared, .. } = self.measures.choices;
        (compared > 0).then(|| share(nearest, compared))
    }

    /// Bytes per node and second after the start-up, with all headers: of discovery, and of
    /// tunnels.
    pub fn rates(&self) -> (f64, f64) {
        (self.rate(|second| second.gossip_bytes), self.rate(|second| second.tunnel_bytes))
    }

    /// Datagrams of discovery per node and second after the start-up, and the bytes in them without
    /// any header.
    pub fn packets(&self) -> (f64, f64) {
        let packets = self.rate(|second| second.gossip_packets);
        let headers = |second: &Second| second.gossip_packets * OVERHEAD as u64;
        let bytes = self.rate(|second| second.gossip_bytes.saturating_sub(headers(second)));
        (packets, bytes)
    }

    /// The bytes of discovery by purpose: membership, comparison, news, paths.
    pub fn families(&self) -> [f64; 4] {
        [0, 1, 2, 3].map(|of| self.rate(|second| second.families[of]))
    }

    /// The rate of a counter, per node and second after the start-up.
    fn rate(&self, of: impl Fn(&Second) -> u64) -> f64 {
        let from = usize::try_from(self.outcome.warmup.as_secs()).unwrap_or(usize::MAX);
        let after = || self.measures.timeline.iter().skip(from + 1);
        let running: u64 = after().map(|second| u64::from(second.running)).sum();
        share(after().map(of).sum(), running)
    }

    /// Requests that failed, and that were slow, from this time until that one.
    fn requests_within(&self, from: Duration, until: Duration) -> (u64, u64) {
        let second = |time: Duration| usize::try_from(time.as_secs()).unwrap_or(usize::MAX);
        let seconds = self.measures.timeline.iter().take(second(until).saturating_add(1));
        let seconds = seconds.skip(second(from));
        seconds.fold((0, 0), |(failed, slow), second| {
            (failed + u64::from(second.failed), slow + u64::from(second.slow))
        })
    }

    /// Microseconds of processor time that a second of a node took.
    pub fn cost(&self, effort: Effort) -> f64 {
        effort.processor.as_secs_f64() * 1e6 / self.outcome.node_seconds.max(f64::MIN_POSITIVE)
    }

    /// Bytes of memory per node.
    pub fn weight(&self, effort: Effort) -> u64 {
        effort.memory / (self.outcome.nodes.len() as u64).max(1)
    }

    /// How the nodes reacted to a fault.
    pub fn followed(&self, fault: &Fault) -> Followed {
        let concerned = fault.detected.len() + fault.unaware.len();
        let site = |node: usize| self.outcome.nodes[node].1;
        let is_about_nodes = !fault.victims.is_empty();
        let near = |(node, victim): &(usize, usize)| is_about_nodes && site(*node) == site(*victim);
        let detected_near = fault.detected.iter().filter(|(pair, _)| near(pair));
        let detected_near: BTreeMap<_, Duration> =
            detected_near.map(|(pair, after)| (*pair, *after)).collect();
        let unaware_near = fault.unaware.iter().filter(|pair| near(pair)).count();
        let all_near = detected_near.len() + unaware_near;
        let left = fault.moved.len();
        let users = left + fault.staying.len();
        let leavers = if fault.must_leave() { users } else { left };
        let until = fault.counted_until().saturating_add(AFTERMATH);
        let (failed, slow) = self.requests_within(fault.at, until);
        Followed {
            nodes: fault.victims.len(),
            concerned,
            noticed: fault.detected.len(),
            detected_p50: quantile(&fault.detected, concerned, 0.5),
            detected_p99: quantile(&fault.detected, concerned, 0.99),
            same_site_p99: quantile(&detected_near, all_near, 0.99),
            users,
            left,
            failover_p99: quantile(&fault.moved, leavers, 0.99),
            failed,
            slow,
        }
    }

    /// The longest time until 99 % of the others knew a lasting announcement of an origin; none if
    /// there was none, or if some did not learn it within a minute.
    pub fn news_p99(&self) -> Option<Duration> {
        self.news().collect::<Option<Vec<Duration>>>()?.into_iter().max()
    }

    /// Lasting announcements of origins that fewer than 99 % of the others ever knew.
    pub fn news_unheard(&self) -> usize {
        self.news().filter(Option::is_none).count()
    }

    /// For each announcement of an origin that lasted, the time within which 99 % of the others
    /// knew it.
    fn news(&self) -> impl Iterator<Item = Option<Duration>> {
        let lasting = |news: &&News| !news.superseded && news.audience > 0;
        let p99 = |news: &News| quantile(&news.known, news.audience, 0.99);
        self.measures.news.iter().filter(lasting).map(p99)
    }
}
