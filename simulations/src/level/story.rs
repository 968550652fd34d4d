//! The input of a run: a scenario, a seed, and the time of the end.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use meshport_config::Settings;
use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::{Level, Scene};
use crate::Error;
use crate::report::Outcome;
use crate::scenario::target::Target;
use crate::scenario::timeline::{self, Planned};
use crate::scenario::{Happening, Load, NodeRef, Overrides, Scenario};

/// See the module's description.
#[derive(Debug)]
pub(crate) struct Story {
    pub(crate) scenario: Scenario,
    /// The events, in order of time.
    pub(crate) plan: Arc<[Planned]>,
    pub(crate) end: Duration,
    pub(crate) seed: u64,
    overrides: Overrides,
    /// Whether each node has clients.
    has_clients: Vec<bool>,
    /// Whether apiservers call the kubelet of each node.
    is_called: Vec<bool>,
}

pub(crate) struct Limits<'a> {
    /// Its name.
    pub(crate) level: &'a str,
    /// The maximum number of nodes, and the reason.
    pub(crate) most: usize,
    pub(crate) why: &'a str,
    /// The alternative to an event that it does not support.
    pub(crate) instead: &'a str,
}

impl Story {
    /// Until the end of the scenario, or until this time.
    pub(crate) fn new(
        scenario: Scenario,
        seed: u64,
        until: Option<Duration>,
    ) -> Result<Self, Error> {
        let on = |load: &Option<Load>| -> Result<Vec<bool>, Error> {
            let mut on = vec![false; scenario.nodes().count()];
            if let Some(load) = load {
                for at in Target::parse(&load.on, &scenario)?.possible() {
                    on[*at] = true;
                }
            }
            Ok(on)
        };
        let (has_clients, is_called) = (on(&scenario.load)?, on(&scenario.way_back)?);
        Ok(Self {
            plan: timeline::expand(&scenario, seed)?.into(),
            end: scenario.duration().min(until.unwrap_or(Duration::MAX)),
            seed,
            overrides: Overrides::new(&scenario)?,
            has_clients,
            is_called,
            scenario,
        })
    }

    /// Refuses a scenario that a level cannot run: with too many nodes, or with events or other
    /// features that it does not support.
    pub(crate) fn fit(
        &self,
        limits: &Limits<'_>,
        unknown: impl Fn(&Happening) -> Option<&'static str>,
        others: &[(&'static str, bool)],
    ) -> Result<(), Error> {
        let Limits { level, most, why, instead } = limits;
        let nodes = self.scenario.nodes().count();
        if nodes > *most {
            return Err(Error::Scenario(format!(
                "{nodes} nodes; {level} runs at most {most}, {why}. --nodes-per-site 3 reduces \
                 the sites"
            )));
        }
        let events = self.plan.iter().filter_map(|planned| unknown(&planned.happening));
        let tuned = ("[tuning]", !self.scenario.tuning.is_usual());
        let others = others.iter().copied().chain([tuned]);
        let others = others.filter_map(|(key, there)| there.then_some(key));
        let all: Vec<&str> = events.chain(others).collect::<BTreeSet<_>>().into_iter().collect();
        if all.is_empty() {
            return Ok(());
        }
        let all = all.join(", ");
        Err(Error::Scenario(format!("{level} does not support these: {all}. {instead}")))
    }

    /// The load of a node's clients, if it has any.
    pub(crate) fn load(&self, at: usize) -> Option<&Load> {
        self.scenario.load.as_ref().filter(|_| self.has_clients[at])
    }

    /// The streams to a node's kubelet, if there are any.
    pub(crate) fn way_back(&self, to: usize) -> Option<&Load> {
        self.scenario.way_back.as_ref().filter(|_| self.is_called[to])
    }

    /// The settings with which the nodes of a site start, or continue after this `configure` event.
    pub(crate) fn settings(&self, site: usize, configured: Option<usize>) -> &Settings {
        match configured {
            Some(event) => self.overrides.event(event, site),
            None => self.overrides.site(site),
        }
    }

    /// The nodes that a node knows before its first contact.
    pub(crate) fn seeds(&self, of: usize) -> impl Iterator<Item = usize> {
        let sites = (0..self.scenario.sites.len()).filter(|site| !self.scenario.sites[*site].nat);
        let first =
            |site| self.scenario.nodes().position(|node| node == NodeRef { site, number: 1 });
        sites.filter_map(first).filter(move |seed| *seed != of).take(self.scenario.seed_sites)
    }

    /// The nodes that start without an event.
    pub(crate) fn first(&self) -> impl Iterator<Item = usize> {
        let members = self.scenario.nodes().enumerate();
        members.filter(|(_, member)| self.scenario.starts(*member)).map(|(at, _)| at)
    }

    /// The times of first starts.
    pub(crate) fn first_starts(&self, rng: &mut ChaCha8Rng) -> Vec<(Duration, usize)> {
        let spread = Duration::from_secs_f64(self.scenario.start_over_s);
        let spread = spread.max(Duration::from_micros(1));
        self.first().map(|at| (rng.random_range(Duration::ZERO..spread), at)).collect()
    }

    pub(crate) fn outcome<L: Level>(&self, level: &L) -> Outcome {
        let Scene { now, account, trace, .. } = level.scene();
        let running = (0..account.len()).filter(|at| level.runs(*at));
        let routes: Vec<(usize, Option<usize>)> = running.map(|at| (at, level.first(at))).collect();
        let names = (0..account.len()).map(|at| account.name(at).to_owned());
        Outcome {
            level: L::NAME,
            description: self.scenario.description.clone(),
            seed: self.seed,
            virtual_time: *now,
            warmup: self.scenario.warmup(),
            datagrams: trace.datagrams(),
            trace_hash: trace.hash(),
            sites: self.scenario.sites.iter().map(|site| site.name.to_string()).collect(),
            nodes: names.zip(self.scenario.nodes().map(|member| member.site)).collect(),
            running: routes.len(),
            nearest: routes.iter().filter(|(at, to)| level.is_nearest(*at, *to)).count(),
            routes,
            plan: self.plan.iter().map(|it| (it.at, it.words.clone())).collect(),
            node_seconds: account.uptime(*now).as_secs_f64(),
            longest_queue: 0,
        }
    }
}
