//! Invariants checked at this level: the rules of [`crate::level::Judge`], as far as they are
//! observable from outside the nodes.
//!
//! * No session starts at an origin its node knows to be dead while another is healthy: checked at
//!   each start, by the node's published route.
//! * No running node within reach is considered down for long: checked every second, by status.
//! * Directories never go back, and queues and tables are bounded: checked every few seconds, by
//!   some nodes' saved directories and their metrics.
//! * Revoked nodes are locked out and not served: checked every second and at each answer.
//! * After a quiet time all agree, and routes are usable and near: checked at the end.
//! * Sessions opened = closed + open: checked at the end, by the count of clients and by that of
//!   nodes, which have none open once all clients have left.
//!
//! This module collects the evidence and writes it to the book.

use std::collections::BTreeMap;
use std::time::Duration;

use meshport_config::counters::Counter;
use meshport_config::{Policy, ServiceName, UnixSeconds};
use meshport_daemon::admin::metrics::Sample;
use meshport_discovery::{Count, MAX_LEAVES, MAX_MEMBERS};
use tokio::sync::broadcast::error::RecvError;
use tokio::time::sleep;

use super::saved::Record;
use super::{DRAIN, Simulation, lock, machine};
use crate::instance::Instance;
use crate::level::{Judge, Level};
use crate::rules::{self, FOLLOW_EVERY_S};
use crate::scenario::service;

/// How long a daemon may keep the sessions of a vanished or isolated peer: a connection times out
/// after that long without a packet (`IDLE_TIMEOUT` in `mesh/src/quic_config.rs`).
const VANISHED: Duration = Duration::from_secs(90);
/// Interval between checks of sessions that must end.
const LOOK: Duration = Duration::from_millis(100);
/// Drops that discovery counts only if one of its own queues or tables is full. Each has room for
/// far more than the nodes of this level can produce.
const OVERFLOWS: [Count; 8] = [
    Count::DroppedDirectoryFull,
    Count::DroppedEvents,
    Count::DroppedPaths,
    Count::DroppedRevocations,
    Count::DroppedRumours,
    Count::DroppedTimers,
    Count::DroppedTransmits,
    Count::DroppedWants,
];

impl Simulation {
    /// Runs all periodic checks.
    pub(super) async fn check(&mut self, now: Duration) {
        for at in 0..self.nodes.len() {
            let Some(process) = &self.nodes[at].process else { continue };
            let Ok(status) = process.handle().status().await else { continue };
            lock(&self.book).status(at, &status);
        }
        lock(&self.book).check_evicted();
        if now.as_secs().is_multiple_of(FOLLOW_EVERY_S) {
            let followed = lock(&self.book).scene.account.followed.clone();
            for at in followed {
                self.follow(at).await;
            }
        }
        self.look_at_peers().await;
        lock(&self.book).check_revoked();
    }

    /// Judges each suspicion of a process at the time of the suspicion, also while the process
    /// shuts down.
    pub(super) fn follow_suspicions(&mut self, at: usize) {
        let Some(process) = &self.nodes[at].process else { return };
        let (mut suspicions, book) = (process.suspicions(), self.book.clone());
        self.tasks.spawn(async move {
            loop {
                match suspicions.recv().await {
                    Ok(subject) => lock(&book).suspected(at, &subject),
                    Err(RecvError::Lagged(missed)) => lock(&book).overlooks(at, missed),
                    Err(RecvError::Closed) => return,
                }
            }
        });
    }

    /// Checks that no record of a node's directory went back and that all its tables are within
    /// bounds.
    async fn follow(&mut self, at: usize) {
        let Some(records) = self.saved(at).await else { return };
        let Some(process) = &self.nodes[at].process else { return };
        let Ok(samples) = process.handle().samples().await else { return };
        let size = records.len();
        let keys = records.into_iter().map(|(owner, record)| (owner, record.key)).collect();
        lock(&self.book).check_records(at, self.nodes[at].boot, keys);
        let service = service();
        let settings = self.nodes[at].settings().map(|it| {
            (f64::from(it.services[&service].max_sessions), f64::from(it.mesh.max_relayed))
        });
        let Some((clients, relayed)) = settings else { return };
        if let Some(what) = overflow(&samples, size, clients, relayed) {
            lock(&self.book).violates(rules::QUEUES, at, what);
        }
    }

    /// The records that a node would save now.
    async fn saved(&self, at: usize) -> Option<BTreeMap<usize, Record>> {
        let saved = self.nodes[at].process.as_ref()?.snapshot().await?;
        let now = machine::now();
        let wall = UnixSeconds(machine::WALL_START_S + now.as_secs());
        let all = self.reader.read(&saved.directory, (self.epoch + now).into_std(), wall);
        let book = lock(&self.book);
        Some(
            all.into_iter()
                .filter_map(|(id, it)| Some((book.scene.account.number(&id)?, it)))
                .collect(),
        )
    }

    /// Rules checked at the end, after a quiet time.
    pub(super) async fn check_end(&mut self) {
        if !lock(&self.book).is_quiet() {
            return;
        }
        for at in 0..self.nodes.len() {
            let process = self.nodes[at].process.as_ref();
            let Some(process) = process.filter(|_| lock(&self.book).takes_part(at)) else {
                continue;
            };
            let (status, records) = (process.handle().status().await, self.saved(at).await);
            let Some((status, records)) = status.ok().zip(records) else { continue };
            let policy = self.nodes[at].settings().map(|it| it.services[&service()].policy);
            let chosen = status.services.first().and_then(|it| it.chosen.as_ref());
            let lasting = chosen.map(|chosen| Duration::from_secs(chosen.since_s));
            let mut book = lock(&self.book);
            book.status(at, &status);
            let seen = &mut book.seen[at];
            seen.records = records;
            seen.lasting = lasting.filter(|_| policy == Some(Policy::Nearest));
        }
        lock(&self.book).check_quiet();
    }

    /// Checks that each session the clients opened is closed or open, and that nodes have none open
    /// after all clients have left. Virtual time continues, but the measures are already taken.
    pub(super) async fn check_sessions(&mut self) {
        for at in 0..self.nodes.len() {
            lock(&self.book).check_count(at);
        }
        let silent = [Some(Instance::Hung), Some(Instance::Stalled)];
        let hangs = lock(&self.book).scene.account.instances.iter().any(|it| silent.contains(it));
        // A node that hangs does not report a session's end either.
        let judged = lock(&self.book).is_quiet() && !hangs;
        for node in &mut self.nodes {
            node.clients.shutdown().await;
        }
        self.callers.shutdown().await;
        let forgotten = lock(&self.book).scene.account.last_disturbed() + VANISHED;
        let until = machine::now().max(forgotten) + DRAIN;
        let open = |world: &Self| {
            let processes = world.nodes.iter().filter_map(|node| node.process.as_ref());
            processes.map(meshport_daemon::Node::open_sessions).sum::<u64>()
        };
        while open(self) > 0 && machine::now() < until {
            sleep(LOOK).await;
        }
        for at in (0..self.nodes.len()).filter(|_| judged) {
            let Some(process) = &self.nodes[at].process else { continue };
            let (left, samples) = (process.open_sessions(), process.handle().samples().await);
            let opened = lock(&self.book).opened_by_process(at);
            let Ok(samples) = samples else { continue };
            if let Some(what) = unbalanced(&samples, left, opened) {
                lock(&self.book).violates(rules::SESSIONS, at, what);
            }
        }
    }
}

/// Finds a table or queue that exceeds its bound or dropped something. The bounds are for clients'
/// sessions and relayed ones.
fn overflow(samples: &[Sample], records: usize, clients: f64, relayed: f64) -> Option<String> {
    let overflows = OVERFLOWS.map(Counter::row);
    if records > MAX_MEMBERS {
        return Some(format!("{records} entries in the directory"));
    }
    samples.iter().find_map(|sample| {
        let name = sample.metric.name;
        let is_overflow = overflows
            .iter()
            .any(|row| row.metric == name && sample.label(row.label) == Some(row.value));
        let bound = match (name, sample.label("side")) {
            _ if is_overflow => 0.0,
            ("meshport_sessions_open", Some("client")) => clients,
            ("meshport_sessions_open", Some("relayed")) => relayed,
            #[expect(clippy::cast_precision_loss, reason = "a small constant")]
            ("meshport_leaves", _) => MAX_LEAVES as f64,
            _ => return None,
        };
        let (labels, value) = (sample.labels.join(", "), sample.number()?);
        (value > bound).then(|| format!("{name} of {labels}: {value}, more than {bound}"))
    })
}

/// Describes an error in a node's own count of sessions after all clients have left: `left` are
/// still open, and its clients `opened` so many.
fn unbalanced(samples: &[Sample], left: u64, opened: u64) -> Option<String> {
    if left > 0 {
        return Some(format!("{left} sessions are still open long after the last client left"));
    }
    let count = |name: &str, outcome: Option<&str>| {
        // The node does not count sessions of the way back as accepted clients.
        let is_client =
            |it: &&Sample| it.label("service") != Some(ServiceName::way_back().as_str());
        let is_it = |it: &&Sample| it.metric.name == name && it.label("outcome") == outcome;
        samples.iter().filter(is_client).filter(is_it).filter_map(Sample::number).sum::<f64>()
    };
    let accepted = count("meshport_sessions_accepted_total", None);
    let [connected, failed, abandoned, over] = ["connected", "failed", "abandoned", "over-limit"]
        .map(|outcome| count("meshport_sessions_total", Some(outcome)));
    if accepted != connected + failed + abandoned + over {
        return Some(format!(
            "{accepted} clients accepted, but {connected} connected, {failed} failed, {abandoned} \
             left early, {over} over the limit"
        ));
    }
    #[expect(clippy::cast_precision_loss, reason = "sessions are far fewer than 2^53")]
    let opened = opened as f64;
    (connected < opened)
        .then(|| format!("its clients have opened {opened} sessions, {connected} by its own count"))
}

#[cfg(test)]
mod tests;
