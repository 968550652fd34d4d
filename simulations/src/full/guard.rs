//! What must hold at this level: the rules of [`crate::rules`], as far as the nodes show from
//! outside whether they are kept.
//!
//! * No session begins at an origin its node knows to be dead while another is healthy: at each
//!   beginning, by the route that the node has published.
//! * Nobody who runs and is within reach is held for down for long: each second, by the status.
//! * Directories never go back, and queues and tables are bounded: every few seconds, by what some
//!   nodes would save, and by their metrics.
//! * Whoever is revoked is shut out and served no more: each second and at each answer (`revoked`).
//! * After a quiet time all agree, and routes are good and near: at the end.
//! * Sessions opened = closed + open: at the end, by the count of clients and by that of nodes, who
//!   have none open once all clients have gone.
//!
//! The judging is in plain functions, and what they judge is collected here.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use meshport_config::{Policy, UnixSeconds};
use meshport_daemon::admin::api::{Sample, Status};
use meshport_discovery::{MAX_LEAVES, MAX_MEMBERS};
use rand::RngCore;
use rand_chacha::ChaCha8Rng;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::sleep;

use super::saved::{Reader, Record};
use super::{DRAIN, World, lock, machine};
use crate::instance::Instance;
use crate::report::Violation;
use crate::rules::{
    self, Evictions, FOLLOW_EVERY_S, LASTING, MAX_FOLLOWED, MAX_VIOLATIONS, QUIET, Records,
};
use crate::scenario::service;

/// How long a daemon may hold the sessions of a peer that has vanished, or that is cut off: a
/// connection without any packet ends after that (`IDLE_TIMEOUT` in `mesh/src/io/quic_config.rs`).
const VANISHED: Duration = Duration::from_secs(90);
/// From one look at sessions that are to end to the next.
const LOOK: Duration = Duration::from_millis(100);
/// What discovery drops only where a queue or a table of its own is full. Each has room for far
/// more than the nodes of this level can fill it with.
const OVERFLOWS: [&str; 8] = [
    "dropped_directory_full",
    "dropped_events",
    "dropped_paths",
    "dropped_revocations",
    "dropped_rumours",
    "dropped_timers",
    "dropped_transmits",
    "dropped_wants",
];

/// The rules and what they need to remember.
#[derive(Debug)]
pub(super) struct Guard {
    pub(super) violations: Vec<Violation>,
    evictions: Evictions,
    records: Records,
    followed: Vec<usize>,
    reader: Reader,
}

/// What a node holds of the others.
#[derive(Debug, Clone, Default)]
struct Held {
    /// Who is down, or has left.
    absent: BTreeSet<usize>,
    /// How many are there, itself included.
    alive: usize,
    records: BTreeMap<usize, Record>,
}

impl Guard {
    pub(super) fn new(nodes: usize, reader: Reader, rng: &mut ChaCha8Rng) -> Self {
        let number = |random: u64| usize::try_from(random % nodes as u64).unwrap_or(0);
        let mut followed = BTreeSet::new();
        while followed.len() < MAX_FOLLOWED.min(nodes) {
            followed.insert(number(rng.next_u64()));
        }
        Self {
            violations: Vec::new(),
            evictions: Evictions::default(),
            records: Records::default(),
            followed: followed.into_iter().collect(),
            reader,
        }
    }

    /// A node's process has ended.
    pub(super) fn stopped(&mut self, at: usize) {
        self.evictions.forget(at);
        self.records.forget(at);
    }

    pub(super) fn has_enough(&self) -> bool {
        self.violations.len() >= MAX_VIOLATIONS
    }
}

impl World {
    pub(super) fn violates(&mut self, rule: &'static str, node: Option<usize>, what: String) {
        let violation = lock(&self.book).violation(rule, node, what);
        self.guard.violations.push(violation);
    }

    /// Looks at everything that needs a look now and then.
    pub(super) async fn check(&mut self, now: Duration) {
        for at in 0..self.nodes.len() {
            let Some(process) = &self.nodes[at].process else { continue };
            let Ok(status) = process.handle().status().await else { continue };
            self.check_absent(at, &status, now);
        }
        let settles = |holder, subject| lock(&self.book).settles(holder, subject);
        for (holder, subject) in self.guard.evictions.overdue(now, settles) {
            self.guard.evictions.end(holder, subject);
            let what = rules::evicted(&self.nodes[subject].name);
            self.violates(rules::EVICTED, Some(holder), what);
        }
        if now.as_secs().is_multiple_of(FOLLOW_EVERY_S) {
            for place in 0..self.guard.followed.len() {
                self.follow(self.guard.followed[place]).await;
            }
        }
        self.check_revoked().await;
        let found = std::mem::take(&mut lock(&self.book).violations);
        self.guard.violations.extend(found);
    }

    fn absent(&self, status: &Status) -> BTreeSet<usize> {
        let book = lock(&self.book);
        status.absent.iter().filter_map(|it| book.number(&it.who.node)).collect()
    }

    /// Takes down whom a node holds for down, and counts those who are not.
    fn check_absent(&mut self, at: usize, status: &Status, now: Duration) {
        let absent = self.absent(status);
        for subject in self.guard.evictions.set(at, &absent, now) {
            let mut book = lock(&self.book);
            let mut named = status.absent.iter().filter(|it| it.liveness == "down");
            let is_down = named.any(|it| book.number(&it.who.node) == Some(subject));
            if is_down && now >= self.scenario.warmup() {
                book.measures.suspicions.get_or_insert_default().evictions += 1;
            }
            let is_wrong = book.settles(at, subject).is_some_and(|from| from <= now);
            if is_wrong && now >= self.scenario.warmup() {
                book.measures.false_evictions += 1;
            }
        }
    }

    /// Judges whom a process suspects, each at its moment, also while it takes its leave.
    pub(super) fn follow_suspicions(&mut self, at: usize) {
        let Some(process) = &self.nodes[at].process else { return };
        let (mut suspicions, book) = (process.suspicions(), self.book.clone());
        self.tasks.spawn(async move {
            loop {
                match suspicions.recv().await {
                    Ok(subject) => lock(&book).suspects(at, &subject),
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
        let keys = records.into_iter().map(|(owner, record)| (owner, record.key));
        let process = (at, self.nodes[at].boot);
        if let Some(back) = self.guard.records.follow(process, self.nodes.len(), keys) {
            let what = rules::went_back(&self.nodes[back.0].name, back);
            self.violates(rules::NEVER_BACK, Some(at), what);
        }
        let service = service();
        let settings = self.nodes[at].settings().map(|it| {
            (f64::from(it.services[&service].max_sessions), f64::from(it.mesh.max_relayed))
        });
        let Some((clients, relayed)) = settings else { return };
        if let Some(what) = overflow(&samples, size, (clients, relayed)) {
            self.violates(rules::QUEUES, Some(at), what);
        }
    }

    /// The records that a node would save now.
    async fn saved(&self, at: usize) -> Option<BTreeMap<usize, Record>> {
        let saved = self.nodes[at].process.as_ref()?.snapshot().await?;
        let now = machine::now();
        let wall = UnixSeconds(machine::WALL_START_S + now.as_secs());
        let all = self.guard.reader.read(&saved.directory, (self.epoch + now).into_std(), wall);
        let book = lock(&self.book);
        Some(all.into_iter().filter_map(|(id, it)| Some((book.number(&id)?, it))).collect())
    }

    /// What must hold at the end, after a quiet time.
    pub(super) async fn check_end(&mut self) {
        if !self.is_quiet() {
            return;
        }
        let mut held = Vec::new();
        let mut since = vec![Duration::ZERO; self.nodes.len()];
        for (at, node) in self.nodes.iter().enumerate() {
            let process = node.process.as_ref().filter(|_| lock(&self.book).takes_part(at));
            let Some(process) = process else {
                held.push(None);
                continue;
            };
            let (status, records) = (process.handle().status().await, self.saved(at).await);
            let Some((status, records)) = status.ok().zip(records) else {
                held.push(None);
                continue;
            };
            let chosen = status.services.first().and_then(|it| it.chosen.as_ref());
            since[at] = Duration::from_secs(chosen.map_or(0, |chosen| chosen.since_s));
            let absent = self.absent(&status);
            held.push(Some(Held { absent, alive: status.members.alive, records }));
        }
        self.check_agreement(&held);
        self.check_routes(&held, &since);
    }

    fn is_quiet(&self) -> bool {
        machine::now().saturating_sub(lock(&self.book).disturbed) >= QUIET
    }

    /// Everybody knows of everybody within reach: alive, with the newest record.
    fn check_agreement(&mut self, all: &[Option<Held>]) {
        let own = |at: usize| all[at].as_ref()?.records.get(&at).cloned();
        let newest: Vec<Option<Record>> = (0..all.len()).map(own).collect();
        let mut wrong = None;
        for (at, held) in all.iter().enumerate() {
            let Some(held) = held else { continue };
            let within = lock(&self.book).within_reach(at);
            let name = |node: usize| self.nodes[node].name.clone();
            if let Some(what) = disagreement(held, &within, &newest, name) {
                wrong = Some((at, what));
                break;
            }
        }
        if let Some((at, what)) = wrong {
            self.violates(rules::AGREEMENT, Some(at), what);
        }
    }

    /// Nobody goes to an origin that does not serve while another does, or to one that is clearly
    /// farther than the nearest.
    fn check_routes(&mut self, all: &[Option<Held>], since: &[Duration]) {
        for at in (0..all.len()).filter(|at| all[*at].is_some()) {
            let policy = self.nodes[at].settings().map(|it| it.services[&service()].policy);
            let found = {
                let book = lock(&self.book);
                let bad = book.bad_route(at).map(|what| (rules::GOOD_ROUTES, what));
                let is_judged = policy == Some(Policy::Nearest) && since[at] >= LASTING;
                let far = || book.strays(at).map(|what| (rules::NEAR_ROUTES, what));
                bad.or_else(|| is_judged.then(far).flatten())
            };
            if let Some((rule, what)) = found {
                return self.violates(rule, Some(at), what);
            }
        }
    }

    /// What clients have opened is closed or open, and nodes know of no session once all clients
    /// have gone. Time goes on meanwhile; what was measured is in the result already.
    pub(super) async fn check_sessions(&mut self) {
        for at in 0..self.nodes.len() {
            let found = lock(&self.book).miscounted(at);
            if let Some(what) = found {
                self.violates(rules::SESSIONS, Some(at), what);
            }
        }
        let silent = [Some(Instance::Hung), Some(Instance::Stalled)];
        let hangs = lock(&self.book).instances.iter().any(|it| silent.contains(it));
        // Who hangs does not say that a session is over either.
        let judged = self.is_quiet() && !hangs;
        for clients in &mut self.clients {
            clients.shutdown().await;
        }
        let forgotten = lock(&self.book).disturbed + VANISHED;
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
                self.violates(rules::SESSIONS, Some(at), what);
            }
        }
    }
}

/// What is wrong with how a node holds those within its reach, if anything is.
fn disagreement(
    held: &Held,
    within: &[usize],
    newest: &[Option<Record>],
    name: impl Fn(usize) -> String,
) -> Option<String> {
    let mut seen = 0;
    for subject in within {
        let Some(newest) = &newest[*subject] else { continue };
        let record = held.records.get(subject);
        if held.absent.contains(subject) {
            return Some(format!("it holds {} for down", name(*subject)));
        }
        let Some(record) = record else { continue };
        seen += 1;
        if record.key.0 != newest.key.0 || record.services != newest.services {
            return Some(format!("its record of {} is not the newest", name(*subject)));
        }
    }
    let all = within.len();
    if seen < all {
        return Some(format!("it knows {seen} of {all} nodes within its reach"));
    }
    let (alive, all) = (held.alive, all);
    (alive < all).then(|| format!("it holds {alive} of {all} nodes within its reach for alive"))
}

/// A table or queue that is fuller than it may be, or from which something was dropped. The bounds
/// are of the sessions of clients, and of those that are carried on.
fn overflow(samples: &[Sample], records: usize, (clients, relayed): (f64, f64)) -> Option<String> {
    let is = |sample: &Sample, key: &str, value: &str| {
        sample.labels.iter().any(|(name, text)| *name == key && text == value)
    };
    if records > MAX_MEMBERS {
        return Some(format!("{records} entries in the directory"));
    }
    samples.iter().find_map(|sample| {
        let bound = match sample.name {
            "discovery_events" if OVERFLOWS.iter().any(|it| is(sample, "event", it)) => 0.0,
            "sessions_open" if is(sample, "side", "client") => clients,
            "sessions_open" if is(sample, "side", "relayed") => relayed,
            #[expect(clippy::cast_precision_loss, reason = "a small constant")]
            "leaves" => MAX_LEAVES as f64,
            _ => return None,
        };
        let labels: Vec<&str> = sample.labels.iter().map(|(_, text)| text.as_str()).collect();
        let (name, labels, value) = (sample.name, labels.join(", "), sample.value);
        (value > bound).then(|| format!("{name} of {labels}: {value}, more than {bound}"))
    })
}

/// What is wrong with a node's own count of sessions, after all clients have gone: `left` are still
/// open, and its clients say that they `opened` so many.
fn unbalanced(samples: &[Sample], left: u64, opened: u64) -> Option<String> {
    if left > 0 {
        return Some(format!("{left} sessions are open long after the last client went"));
    }
    let count = |event: &str| {
        let is_it = |sample: &&Sample| {
            sample.name == "sessions" && sample.labels.iter().any(|(_, text)| text == event)
        };
        samples.iter().filter(is_it).map(|sample| sample.value).sum::<f64>()
    };
    let [accepted, connected, failed, abandoned, over] =
        ["accepted", "connected", "failed", "abandoned", "over-limit"].map(count);
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
