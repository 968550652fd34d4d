//! What a run says.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde_json::json;

use crate::trace::TraceHash;

/// A node's first choice changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// When.
    pub at: Duration,
    /// Which node.
    pub node: usize,
    /// To which origin, if any.
    pub to: Option<usize>,
}

/// How the nodes followed one happening.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moved {
    /// When it happened.
    pub at: Duration,
    /// What happened.
    pub what: String,
    /// For each node that changed its first choice before the next happening, how long after this
    /// one it did so for the last time; ascending.
    pub after: Vec<Duration>,
}

/// The result of a run.
#[derive(Debug, Clone)]
pub struct Report {
    pub(crate) description: String,
    pub(crate) virtual_time: Duration,
    pub(crate) datagrams: u64,
    pub(crate) bytes: u64,
    /// The hash over everything on the wire.
    pub trace_hash: TraceHash,
    pub(crate) sites: Vec<String>,
    pub(crate) nodes: Vec<(String, usize)>,
    /// Running nodes and the origin each goes to at the end.
    pub routes: Vec<(usize, Option<usize>)>,
    /// How many of them go to the nearest ready one.
    pub nearest: usize,
    /// What happened and how the nodes followed.
    pub moved: Vec<Moved>,
}

impl Report {
    /// The origin a node goes to at the end, by name.
    pub fn route_of(&self, name: &str) -> Option<&str> {
        let node = self.nodes.iter().position(|(node, _)| node == name)?;
        let (_, chosen) = self.routes.iter().find(|(at, _)| *at == node)?;
        chosen.map(|origin| self.nodes[origin].0.as_str())
    }

    /// Share of running nodes that go to the nearest ready origin, 0 to 1.
    pub fn nearest_share(&self) -> f64 {
        share(self.nearest, self.routes.len())
    }

    /// The report as JSON.
    pub fn to_json(&self, scenario: &str, seed: u64, wall: Duration) -> serde_json::Value {
        let ms = |time: &Duration| time.as_secs_f64() * 1e3;
        let faults = self.moved.iter().map(|moved| {
            json!({
                "what": moved.what,
                "at_s": moved.at.as_secs_f64(),
                "nodes_moved": moved.after.len(),
                "moved_p50_ms": quantile(&moved.after, 50).as_ref().map(ms),
                "moved_last_ms": moved.after.last().map(ms),
            })
        });
        json!({
            "scenario": scenario,
            "seed": seed,
            "nodes": self.nodes.len(),
            "virtual_s": self.virtual_time.as_secs_f64(),
            "wall_s": wall.as_secs_f64(),
            "trace_hash": self.trace_hash.to_string(),
            "datagrams": self.datagrams,
            "bytes_per_node_per_s": self.bytes_per_node_per_s(),
            "nearest_share": self.nearest_share(),
            "faults": faults.collect::<Vec<_>>(),
        })
    }

    fn bytes_per_node_per_s(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53 bytes")]
        let bytes = self.bytes as f64;
        #[expect(clippy::cast_precision_loss, reason = "at most ten thousand nodes")]
        let nodes = self.nodes.len() as f64;
        bytes / nodes / self.virtual_time.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n", self.description)?;
        writeln!(f, "{:<14} {:>6}   goes to", "site", "nodes")?;
        for (site, name) in self.sites.iter().enumerate() {
            let mut to: BTreeMap<&str, usize> = BTreeMap::new();
            let here = self.routes.iter().filter(|(node, _)| self.nodes[*node].1 == site);
            for (_, chosen) in here.clone() {
                let origin = chosen.map_or("nowhere", |origin| self.nodes[origin].0.as_str());
                *to.entry(origin).or_default() += 1;
            }
            let to: Vec<String> =
                to.into_iter().map(|(origin, count)| format!("{origin} ({count})")).collect();
            writeln!(f, "{name:<14} {:>6}   {}", here.count(), to.join(", "))?;
        }
        if !self.moved.is_empty() {
            writeln!(
                f,
                "\n{:>8}  {:<44} {:>5} {:>9} {:>9}",
                "at", "what", "moved", "half", "last"
            )?;
        }
        for moved in &self.moved {
            let time = |time: Option<Duration>| {
                time.map_or("-".into(), |time| format!("{:.2} s", time.as_secs_f64()))
            };
            writeln!(
                f,
                "{:>6} s  {:<44} {:>5} {:>9} {:>9}",
                moved.at.as_secs_f64(),
                moved.what,
                moved.after.len(),
                time(quantile(&moved.after, 50)),
                time(moved.after.last().copied()),
            )?;
        }
        writeln!(f)?;
        writeln!(f, "nearest      {:.1} % of the running nodes", self.nearest_share() * 100.0)?;
        let rate = self.bytes_per_node_per_s();
        writeln!(f, "traffic      {} datagrams, {rate:.0} bytes/s a node", self.datagrams)?;
        write!(f, "trace        {}", self.trace_hash)
    }
}

fn quantile(ascending: &[Duration], percent: usize) -> Option<Duration> {
    let last = ascending.len().checked_sub(1)?;
    ascending.get(last * percent / 100).copied()
}

fn share(part: usize, whole: usize) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "at most ten thousand nodes")]
    let (part, whole) = (part as f64, whole as f64);
    if whole == 0.0 { 0.0 } else { part / whole }
}
