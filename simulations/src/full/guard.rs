//! What must hold at this level: the rules of [`crate::level::Judge`], as far as the nodes show
//! from outside whether they are kept.
//!
//! * No session begins at an origin its node knows to be dead while another is healthy: at each
//!   beginning, by the route that the node has published.
//! * No node that runs and is within reach is considered down for long: each second, by status.
//! * Directories never go back, and queues and tables are bounded: every few seconds, by what some
//!   nodes would save, and by their metrics.
//! * Revoked nodes are shut out and served no more: each second and at each answer.
//! * After a quiet time all agree, and routes are good and near: at the end.
//! * Sessions opened = closed + open: at the end, by the count of clients and by that of nodes, who
//!   have none open once all clients have gone.
//!
//! What the rules are judged by is collected here and put into the book.

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

/// How long a daemon may hold the sessions of a peer that has vanished, or that is cut off: a
/// connection without any packet ends after that (`IDLE_TIMEOUT` in `mesh/src/io/quic_config.rs`).
const VANISHED: Duration = Duration::from_secs(90);
/// From one look at sessions that are to end to the next.
const LOOK: Duration = Duration::from_millis(100);
/// What discovery drops only where a queue or a table of its own is full. Each has room for far
/// more than the nodes of this level can fill it with.
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
    /// Looks at everything that needs a look now and then.
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

    /// Judges whom a process suspects, each at its moment, also while it takes its leave.
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

    /// Whether a node's directory has gone back anywhere, and whether all it has is within bounds.
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

    /// Rules for the end, after a quiet time.
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

    /// What clients have opened is closed or open, and nodes know of no session once all clients
    /// have gone. Time goes on meanwhile; what was measured is in the result already.
    pub(super) async fn check_sessions(&mut self) {
        for at in 0..self.nodes.len() {
            lock(&self.book).check_count(at);
        }
        let silent = [Some(Instance::Hung), Some(Instance::Stalled)];
        let hangs = lock(&self.book).scene.account.instances.iter().any(|it| silent.contains(it));
        // A node that hangs does not report the end of a session either.
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

/// A table or queue that is fuller than it may be, or from which something was dropped. The bounds
/// are of the sessions of clients, and of those that are carried on.
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

/// What is wrong with a node's own count of sessions, after all clients have gone: `left` are still
/// open, and its clients say that they `opened` so many.
fn unbalanced(samples: &[Sample], left: u64, opened: u64) -> Option<String> {
    if left > 0 {
        return Some(format!("{left} sessions are open long after the last client went"));
    }
    let count = |name: &str, outcome: Option<&str>| {
        // Those of the way back are not accepted as clients.
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
             went before, {over} too many"
        ));
    }
    #[expect(clippy::cast_precision_loss, reason = "sessions are far fewer than 2^53")]
    let opened = opened as f64;
    (connected < opened)
        .then(|| format!("its clients have opened {opened} sessions, {connected} by its own count"))
}

#[cfg(test)]
mod tests;
