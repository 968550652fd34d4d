//! A running world that can be observed and changed, for `serve`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use meshport_core::history::Counts;
use meshport_core::ledger::Side;
use meshport_daemon::admin::view::{SessionCounts, View};
use serde::Serialize;

use super::{Event, World, node, number};
use crate::Error;
use crate::brain::Beside;
use crate::flight::StreamPath;
use crate::instance::Instance;
use crate::level::Level;
use crate::scenario::{self, timeline};
use crate::tunnel::Tunnel;

/// The number of recent events that are shown.
const MAX_SHOWN: usize = 40;
/// Up to this many sites, all paths are shown; beyond, those of one site.
const MAX_ALL_WAYS: usize = 24;
/// The maximum number of user actions in one world: each extends the plan.
const MAX_DONE: usize = 10_000;

/// The true state of the world, not a node's view.
#[derive(Debug, Serialize)]
pub struct Truth {
    /// The scenario in a sentence.
    pub description: String,
    /// The seed of all randomness.
    pub seed: u64,
    /// Virtual seconds since the start.
    pub now_s: f64,
    /// The end of its scenario; the world continues after it.
    pub end_s: f64,
    /// Its nodes.
    pub nodes: Vec<NodeTruth>,
    /// Its sites.
    pub sites: Vec<SiteTruth>,
    /// The paths between sites.
    pub links: Vec<LinkTruth>,
    /// The last events, newest first.
    pub happened: Vec<Happened>,
    /// The next event of the scenario.
    pub next: Option<Happened>,
    /// The user's actions, as events of a scenario.
    pub done: Vec<String>,
    /// Violated rules.
    pub violations: Vec<String>,
    /// Whether the run ended because of too many violations.
    pub is_over: bool,
    /// The hash over everything that happened.
    pub trace: String,
}

/// The true state of a node.
#[derive(Debug, Serialize)]
pub struct NodeTruth {
    /// Its name.
    pub name: String,
    /// Its site.
    pub site: String,
    /// Whether its process runs.
    pub runs: bool,
    /// The state of its instance: `ready`, `unready`, `stalled`, `hung` or `down`.
    pub instance: Option<&'static str>,
    /// Name of the origin it uses.
    pub goes_to: Option<String>,
    /// Whether sessions reach it.
    pub works: bool,
}

/// The true state of a site.
#[derive(Debug, Serialize)]
pub struct SiteTruth {
    /// Its name.
    pub name: String,
    /// Whether nothing passes between it and any other.
    pub is_isolated: bool,
}

/// The path between two sites.
#[derive(Debug, Serialize)]
pub struct LinkTruth {
    /// One end.
    pub from: String,
    /// The other end.
    pub to: String,
    /// The undisturbed round trip.
    pub rtt_ms: Option<f64>,
    /// Share of datagrams lost in a direction.
    pub loss_percent: u8,
    /// Whether nothing passes, in one direction at least.
    pub is_cut: bool,
}

/// An event.
#[derive(Debug, Serialize)]
pub struct Happened {
    /// Time.
    pub at_s: f64,
    /// Description.
    pub what: String,
}

impl World {
    /// Advances time to this moment; returns whether the run may continue.
    pub fn step(&mut self, until: Duration) -> bool {
        let until = until.min(self.story.end).max(self.scene.now);
        let goes_on = self.advance(until);
        if goes_on {
            self.scene.now = until;
        }
        goes_on
    }

    /// Virtual time since the start.
    pub fn time(&self) -> Duration {
        self.scene.now
    }

    /// The hash over everything that happened until now.
    pub fn trace(&self) -> crate::trace::TraceHash {
        self.scene.trace.hash()
    }

    /// Applies this event now, or from now on.
    pub fn strike(&mut self, event: &scenario::Event) -> Result<(), Error> {
        if self.done.len() >= MAX_DONE {
            let full = format!("{MAX_DONE} things were done to this world; begin another one");
            return Err(Error::Scenario(full));
        }
        let now = self.scene.now;
        let plan = &self.story.plan;
        let turn = plan.iter().map(|it| it.event + 1).max().unwrap_or(0);
        let story = &*self.story;
        let (planned, said) = timeline::improvise(&story.scenario, story.seed, event, now, turn)?;
        let first = plan.len();
        let all = plan.iter().cloned().chain(planned.iter().cloned()).collect();
        for (index, planned) in planned.iter().enumerate() {
            self.queue.push(planned.at, Event::Happens(first + index));
        }
        let story = Arc::get_mut(&mut self.story).expect("the world is its only owner");
        story.plan = all;
        // A user who cuts everything off wants to see that no request is answered.
        self.scene.account.answers_all = false;
        self.done.push(said);
        // The effect of an event is complete before the next request.
        self.advance(now);
        Ok(())
    }

    /// The first running node.
    pub fn first_running(&self) -> Option<&str> {
        let first = (0..self.nodes.len()).find(|at| self.runs(*at))?;
        Some(self.scene.account.name(first))
    }

    /// The `/view` document of a running node.
    pub fn view(&self, name: &str) -> Option<View> {
        let at = (0..self.nodes.len()).find(|at| self.scene.account.name(*at) == name)?;
        let node = &self.nodes[at];
        let wall =
            self.wall(at).0.saturating_sub((self.scene.now - node.process.started).as_secs());
        let tunnels = (0..self.nodes.len())
            .filter(|peer| node.tunnels.get(number(*peer)).is_some_and(Tunnel::is_up));
        let (clients, tally) = (&node.clients, node.process.tally);
        let beside = Beside {
            credential: &node.credential,
            settings: self.service_settings(at),
            hosts: self.scene.account.instances[at].is_some(),
            started: self.epoch + node.process.started,
            started_at: meshport_config::UnixSeconds(wall),
            address: node::endpoint(self.scene.network.address(at), at),
            tunnels: tunnels.map(|peer| self.scene.account.id(peer)).collect::<BTreeSet<_>>(),
            sessions: SessionCounts {
                open: clients.ledger.count_side(&clients.service, Side::Client),
                total: tally.total,
                failed: tally.failed,
            },
            served: self.served(at),
            is_leaving: node.process.leaving,
        };
        node.brain.as_ref()?.view(beside, |line| clients.count(*line), self.instant())
    }

    /// Open sessions of other nodes that an origin serves.
    fn served(&self, at: usize) -> u64 {
        let others = self.nodes.iter().enumerate().filter(|(node, _)| *node != at);
        let goes_here = |way: StreamPath| way.origin == at;
        let open = others.flat_map(|(_, node)| node.clients.sessions.iter().flatten());
        open.filter_map(|it| it.target()?.way).filter(|way| goes_here(*way)).count() as u64
    }

    /// Records the clients' activity of every node, each second.
    pub(super) fn keep_diaries(&mut self) {
        let now = self.instant();
        for node in &mut self.nodes {
            let Some(brain) = &mut node.brain else { continue };
            let (clients, tally) = (&node.clients, &mut node.process.tally);
            let counts = || Counts {
                open: clients.ledger.count_side(&clients.service, Side::Client),
                connected: tally.connected,
                failed: tally.failed,
                connect_us: tally.connect_us,
                slowest_us: std::mem::take(&mut tally.slowest_us),
                ..Counts::default()
            };
            brain.count_clients(counts, now);
        }
    }

    /// The true state of the world; with many sites, only the paths of this one.
    pub fn truth(&self, site: Option<&str>) -> Truth {
        let Self { scene, story, .. } = self;
        let said =
            |it: &timeline::Planned| Happened { at_s: it.at.as_secs_f64(), what: it.words.clone() };
        let past = story.plan.iter().filter(|it| it.at <= scene.now);
        let mut past: Vec<Happened> = past.map(said).collect();
        past.sort_by(|a, b| b.at_s.total_cmp(&a.at_s));
        past.dedup_by(|a, b| (a.at_s, &a.what) == (b.at_s, &b.what));
        past.truncate(MAX_SHOWN);
        let next = story.plan.iter().filter(|it| it.at > scene.now).min_by_key(|it| it.at);
        let violations = &scene.account.violations;
        Truth {
            description: story.scenario.description.clone(),
            seed: story.seed,
            now_s: scene.now.as_secs_f64(),
            end_s: story.scenario.duration().as_secs_f64(),
            nodes: (0..self.nodes.len()).map(|at| self.node_truth(at)).collect(),
            sites: (0..story.scenario.sites.len()).map(|at| self.site_truth(at)).collect(),
            links: self.links(site),
            happened: past,
            next: next.map(said),
            done: self.done.clone(),
            violations: violations.iter().map(|it| format!("{}: {}", it.rule, it.what)).collect(),
            is_over: scene.account.has_enough(),
            trace: scene.trace.hash().to_string(),
        }
    }

    fn site_name(&self, site: usize) -> String {
        self.story.scenario.sites[site].name.to_string()
    }

    fn node_truth(&self, at: usize) -> NodeTruth {
        let instance = self.scene.account.instances[at].map(|it| match it {
            Instance::Ready => "ready",
            Instance::Unready => "unready",
            Instance::Stalled => "stalled",
            Instance::Hung => "hung",
            Instance::Down => "down",
        });
        let line = self.first_line(at);
        NodeTruth {
            name: self.scene.account.name(at).to_owned(),
            site: self.site_name(self.scene.network.site(at)),
            runs: self.runs(at),
            instance,
            goes_to: self.first(at).map(|it| self.scene.account.name(it).to_owned()),
            works: line.is_some_and(|line| self.works(at, &line)),
        }
    }

    fn site_truth(&self, site: usize) -> SiteTruth {
        let mut others = (0..self.story.scenario.sites.len()).filter(|it| *it != site).peekable();
        let has_others = others.peek().is_some();
        let is_cut = |other| self.scene.network.between_sites(site, other).rtt.is_none();
        SiteTruth { name: self.site_name(site), is_isolated: has_others && others.all(is_cut) }
    }

    fn links(&self, of: Option<&str>) -> Vec<LinkTruth> {
        let sites = self.story.scenario.sites.len();
        let pairs = (0..sites).flat_map(|a| (a + 1..sites).map(move |b| (a, b)));
        let is_wanted = |(a, b): &(usize, usize)| {
            let named = |site: &usize| Some(self.story.scenario.sites[*site].name.as_ref()) == of;
            sites <= MAX_ALL_WAYS || named(a) || named(b)
        };
        let link = |(a, b): (usize, usize)| {
            let between = self.scene.network.between_sites(a, b);
            LinkTruth {
                from: self.site_name(a),
                to: self.site_name(b),
                rtt_ms: between.rtt.map(|rtt| (rtt.as_secs_f64() * 1e4).round() / 10.0),
                loss_percent: between.loss_percent,
                is_cut: between.rtt.is_none(),
            }
        };
        pairs.filter(is_wanted).map(link).collect()
    }
}
