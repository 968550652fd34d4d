//! The common parts of all levels, independent of how they implement nodes.
//!
//! A level has a [`Scene`] and implements [`Level`], which provides facts about its nodes. All
//! levels derive from these: the scenario's ground truth (here), broken rules ([`judge`]), the
//! nodes' reactions ([`follow`]) and the clients' behaviour ([`clients`]). Nodes are identified by
//! number, in the order of the scenario.

use std::collections::{BTreeSet, HashMap};
use std::hash::BuildHasherDefault;
use std::time::Duration;

use meshport_config::NodeId;
use meshport_core::route::{Line, Route, Standing};
use rand::RngCore;
use rand_chacha::ChaCha8Rng;

use crate::flight::StreamPath;
use crate::instance::Instance;
use crate::measure::{Measures, Notice};
use crate::network::Network;
use crate::report::film::Film;
use crate::report::{Violation, keys};
use crate::rules::{self, Evictions, MAX_FOLLOWED, MAX_VIOLATIONS, Records, SETTLING};
use crate::scenario::Scenario;
use crate::trace::{Trace, TraceFile};
use crate::tunnel::Spread;

pub(crate) mod clients;
pub(crate) mod film;
mod follow;
mod judge;
mod story;

pub(crate) use film::Camera;
pub(crate) use follow::Follow;
pub(crate) use judge::Judge;
pub(crate) use story::{Limits, Story};

/// The assumed distance of a node's own loopback, so that stretch is defined there too.
const OWN: Duration = Duration::from_micros(50);
/// The default band: origins this near, or this many percent, are equally near.
const BAND: Duration = Duration::from_millis(1);
const BAND_PERCENT: u32 = 15;
/// A time after the end of every run.
const BEYOND_ANY_RUN: Duration = Duration::from_secs(u32::MAX as u64);

/// Node ids and their numbers; never iterated.
type Numbers = HashMap<NodeId, usize, BuildHasherDefault<Spread>>;

/// The true state of the nodes of a run, by the scenario.
#[derive(Debug)]
pub(crate) struct Account {
    names: Vec<String>,
    ids: Vec<NodeId>,
    by_id: Numbers,
    origins: Vec<usize>,
    /// The state of each node's instance; none for nodes without one.
    pub(crate) instances: Vec<Option<Instance>>,
    /// Time at which each node's credential was revoked.
    pub(crate) revoked: Vec<Option<Duration>>,
    /// Violated rules.
    pub(crate) violations: Vec<Violation>,
    /// Nodes whose directories are followed record by record.
    pub(crate) followed: Vec<usize>,
    evictions: Evictions,
    records: Records,
    since: Since,
    uptime: Uptime,
    warmup: Duration,
    /// Whether every request must be answered.
    pub(crate) answers_all: bool,
}

/// Running times of nodes.
#[derive(Debug)]
struct Uptime {
    since: Vec<Option<Duration>>,
    /// Of processes that have ended.
    sum: Duration,
}

/// Times since which nodes and paths are unchanged; recent changes excuse outdated views for a
/// while.
#[derive(Debug)]
struct Since {
    nodes: Vec<Duration>,
    paths: Duration,
    /// Time of the last change, past or planned.
    disturbed: Duration,
}

impl Account {
    /// For a scenario's nodes, with these ids. The directories to follow are drawn at random.
    pub(crate) fn new(scenario: &Scenario, ids: Vec<NodeId>, rng: &mut ChaCha8Rng) -> Self {
        let nodes = ids.len();
        let hosts = |node| scenario.hosts(node).then_some(Instance::Ready);
        let instances: Vec<Option<Instance>> = scenario.nodes().map(hosts).collect();
        let number = |random: u64| usize::try_from(random % nodes as u64).unwrap_or(0);
        let mut followed = BTreeSet::new();
        while followed.len() < MAX_FOLLOWED.min(nodes) {
            followed.insert(number(rng.next_u64()));
        }
        let (paths, disturbed) = (Duration::ZERO, Duration::ZERO);
        Self {
            by_id: ids.iter().enumerate().map(|(at, id)| (*id, at)).collect(),
            origins: (0..nodes).filter(|at| instances[*at].is_some()).collect(),
            names: scenario.nodes().map(|node| scenario.name(node)).collect(),
            ids,
            instances,
            revoked: vec![None; nodes],
            violations: Vec::new(),
            followed: followed.into_iter().collect(),
            evictions: Evictions::default(),
            records: Records::default(),
            since: Since { nodes: vec![Duration::ZERO; nodes], paths, disturbed },
            uptime: Uptime { since: vec![None; nodes], sum: Duration::ZERO },
            warmup: scenario.warmup(),
            answers_all: scenario.load.as_ref().is_some_and(|load| !load.may_fail),
        }
    }

    /// The number of nodes, running or not.
    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }

    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    pub(crate) fn name(&self, node: usize) -> &str {
        &self.names[node]
    }

    pub(crate) fn id(&self, node: usize) -> NodeId {
        self.ids[node]
    }

    pub(crate) fn number(&self, id: &NodeId) -> Option<usize> {
        self.by_id.get(id).copied()
    }

    /// The path of a line's streams; none outside the mesh.
    pub(crate) fn way(&self, line: &Line) -> Option<StreamPath> {
        let (origin, hop) = (self.number(&line.origin()?)?, self.number(&line.first_hop()?)?);
        Some(StreamPath { origin, hop })
    }

    /// The nodes that host an instance.
    pub(crate) fn origins(&self) -> &[usize] {
        &self.origins
    }

    pub(crate) fn has_enough(&self) -> bool {
        self.violations.len() >= MAX_VIOLATIONS
    }

    /// Records a change at this time, which may be in the future.
    pub(crate) fn disturbed(&mut self, at: Duration) {
        self.since.disturbed = self.since.disturbed.max(at);
    }

    /// Time of the last change, past or planned.
    pub(crate) fn last_disturbed(&self) -> Duration {
        self.since.disturbed.max(self.since.paths)
    }

    /// A node has started, moved, or was effectively gone, until this time.
    pub(crate) fn unsettled(&mut self, node: usize, until: Duration) {
        let since = &mut self.since.nodes[node];
        *since = if *since == BEYOND_ANY_RUN { until } else { until.max(*since) };
        self.disturbed(until);
    }

    /// By a node's clock all credentials have expired, so it accepts none until the clock is right.
    pub(crate) fn astray(&mut self, node: usize) {
        self.since.nodes[node] = BEYOND_ANY_RUN;
    }

    /// Sum of the running times of all nodes.
    fn uptime(&self, now: Duration) -> Duration {
        let running = self.uptime.since.iter().flatten().map(|since| now.saturating_sub(*since));
        self.uptime.sum + running.sum::<Duration>()
    }

    /// Time since which these nodes and the paths count as settled.
    fn settled(&self, nodes: &[usize]) -> Duration {
        let since = nodes.iter().map(|node| self.since.nodes[*node]).max();
        since.unwrap_or_default().max(self.since.paths) + SETTLING
    }
}

/// The state that every level has: the time, the paths between nodes, and the records.
pub(crate) struct Scene {
    /// Time since the start of the run.
    pub(crate) now: Duration,
    pub(crate) network: Network,
    pub(crate) account: Account,
    pub(crate) measures: Measures,
    pub(crate) trace: Trace,
    /// Its film, if it is filmed.
    pub(crate) film: Option<Film>,
}

impl Scene {
    /// Before the first moment. The trace is written to this file too.
    pub(crate) fn new(account: Account, network: Network, file: Option<TraceFile>) -> Self {
        let trace = Trace::new(account.names().to_vec(), file);
        let measures = Measures::default();
        Self { now: Duration::ZERO, network, account, measures, trace, film: None }
    }
}

/// A node's view of another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Held {
    /// As alive, with its newest record.
    Newest,
    /// As alive, with an older record.
    Older,
    /// As down or gone.
    Absent,
    /// Not at all.
    Nothing,
}

impl Held {
    /// Whether it considers it alive.
    pub(crate) fn is_there(self) -> bool {
        matches!(self, Self::Newest | Self::Older)
    }
}

/// A node's connections with another one.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Ties {
    /// An entry in its directory.
    pub(crate) entry: bool,
    pub(crate) tunnel: bool,
    /// A session of its clients to it or through it.
    pub(crate) session: bool,
}

/// See the module's description.
pub(crate) trait Level {
    const NAME: keys::Level;
    /// The notices that nodes show by a change of route.
    const SHOWN_BY_ROUTE: &[Notice] = &[];

    fn scene(&self) -> &Scene;

    fn scene_mut(&mut self) -> &mut Scene;

    fn account(&self) -> &Account {
        &self.scene().account
    }

    /// Time since the start of the run.
    fn now(&self) -> Duration {
        self.scene().now
    }

    /// Whether a node has a process.
    fn runs(&self, at: usize) -> bool;

    /// Whether a node's process has announced that it leaves.
    fn leaves(&self, _: usize) -> bool {
        false
    }

    /// Whether a node runs a program other than the daemon.
    fn lies(&self, _: usize) -> bool {
        false
    }

    /// The route of a running node, if it is observable.
    fn route(&self, _: usize) -> Option<&Route> {
        None
    }

    /// How long a node's first origin has been first, if its settings prefer the nearest.
    fn lasting(&self, at: usize) -> Option<Duration>;

    /// Whether a node knows that another one is revoked.
    fn shuts_out(&self, _at: usize, _subject: usize) -> bool {
        false
    }

    /// The connections a node still has with one that it has revoked, apart from its route.
    fn ties(&self, _at: usize, _subject: usize) -> Ties {
        Ties::default()
    }

    /// A node's view of another one, or of itself.
    fn holds(&self, at: usize, subject: usize) -> Held;

    /// How many nodes a node counts as alive, itself included, if that is observable.
    fn alive(&self, _: usize) -> Option<usize> {
        None
    }

    /// Whether a victim has an effect that a node can notice.
    fn has_to_notice(&self, _at: usize, _victim: usize, _: Notice) -> bool {
        false
    }

    /// The last known events of a node, for the report of a violation.
    fn last(&self, node: usize) -> Vec<String> {
        self.scene().trace.last(node)
    }

    /// Records an event at a node.
    fn says(&mut self, node: usize, words: String) {
        let Scene { now, trace, .. } = self.scene_mut();
        trace.node(*now, node, words);
    }

    /// The line of a node's first candidate, if it is worth trying.
    fn first_line(&self, at: usize) -> Option<Line> {
        let first = self.route(at)?.first()?;
        (first.standing < Standing::Down).then_some(first.origin.line)
    }

    /// The first origin of a node's route, if it is worth trying.
    fn first(&self, at: usize) -> Option<usize> {
        self.account().number(&self.first_line(at)?.origin()?)
    }

    /// Whether a node considers an origin healthy.
    fn believes_in(&self, at: usize, origin: usize) -> bool {
        let id = self.account().id(origin);
        let is_it = |view: rules::View| view.origin == id && view.is_healthy;
        self.route(at).is_some_and(|route| rules::views(route).any(is_it))
    }

    /// Whether packets pass in both directions between two nodes.
    fn connects(&self, a: usize, b: usize) -> bool {
        a == b || self.scene().network.connects(a, b)
    }

    /// Whether a node takes part in the mesh, so that others rely on it.
    fn takes_part(&self, at: usize) -> bool {
        let is_revoked = self.account().revoked[at].is_some();
        self.runs(at) && !self.leaves(at) && !self.lies(at) && !is_revoked
    }

    /// The running members within reach of a node, itself included.
    fn within_reach(&self, at: usize) -> impl Iterator<Item = usize> {
        let nodes = 0..self.account().len();
        nodes.filter(move |other| self.takes_part(*other) && self.connects(at, *other))
    }

    /// Time from which two nodes must know each other; none while one does not take part, or is out
    /// of the other's reach.
    fn settles(&self, holder: usize, subject: usize) -> Option<Duration> {
        let mutual = self.takes_part(holder) && self.takes_part(subject);
        let mutual = mutual && self.connects(holder, subject);
        mutual.then(|| self.account().settled(&[holder, subject]))
    }

    /// The node that gets news first: this one, or the first that takes part.
    fn teller(&self, through: Option<usize>) -> Option<usize> {
        let takes_part = |at: &usize| self.takes_part(*at);
        let first = || (0..self.account().len()).find(takes_part);
        through.filter(takes_part).or_else(first)
    }

    /// Whether a node within reach knows of the revocation of another one. No node can be blamed
    /// for a revocation that all reachable nodes have lost.
    fn can_be_told(&self, at: usize, subject: usize) -> bool {
        self.within_reach(at).any(|other| other != at && self.shuts_out(other, subject))
    }

    /// Whether an origin is ready and within reach of a node.
    fn serves(&self, node: usize, origin: usize) -> bool {
        let account = self.account();
        let is_ready = account.instances[origin] == Some(Instance::Ready);
        let runs = self.runs(origin) && !self.leaves(origin) && account.revoked[origin].is_none();
        is_ready && runs && self.connects(node, origin)
    }

    /// Whether sessions of a node that take this line reach an instance that is ready.
    fn works(&self, node: usize, line: &Line) -> bool {
        let Some(StreamPath { origin, hop }) = self.account().way(line) else { return false };
        let carries = self.runs(hop) && !self.leaves(hop);
        carries && self.connects(node, hop) && self.serves(hop, origin)
    }

    fn distance(&self, node: usize, origin: usize) -> Duration {
        if node == origin { OWN } else { self.scene().network.rtt(node, origin) }
    }

    /// The distance of the nearest origin that serves.
    fn best(&self, node: usize) -> Option<Duration> {
        let account = self.account();
        if account.revoked[node].is_some() {
            return None;
        }
        let serving = account.origins.iter().filter(|origin| self.serves(node, **origin));
        serving.map(|origin| self.distance(node, *origin)).min()
    }

    /// Whether no other ready and reachable origin is nearer than the chosen one by more than the
    /// band, by the scenario's own distances.
    fn is_nearest(&self, at: usize, chosen: Option<usize>) -> bool {
        match (self.best(at), chosen) {
            (Some(best), Some(chosen)) => {
                self.serves(at, chosen) && is_near(self.distance(at, chosen), best)
            }
            (best, chosen) => best.is_none() && chosen.is_none(),
        }
    }
}

fn is_near(own: Duration, best: Duration) -> bool {
    own <= best + BAND.max(best * BAND_PERCENT / 100)
}
