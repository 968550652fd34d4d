//! What must hold at the end of a run in the lab, as the daemons show it themselves: by their
//! status, by who their peers are, and by who answers a request through each.
//!
//! After something has changed all of it needs a while. So the look is taken again each second
//! until all holds, for [`QUIET`] after the last change at most; only what is wrong even then is a
//! violation. The rules are those of [`crate::rules`], and judging is in plain functions.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::time::Duration;

use meshport_config::NodeId;
use meshport_daemon::admin::api::{PeerRow, ServiceStatus, Status};
use meshport_daemon::admin::queries::{PeersRequest, StatusRequest};
use meshport_demo::client::Client;
use meshport_demo::wan::LinkConfig;

use super::World;
use crate::Error;
use crate::instance::Instance;
use crate::report::Violation;
use crate::rules::{self, LASTING, QUIET};
use crate::scenario::{Happening, Scenario, service};

/// From one look to the next.
const LOOK: Duration = Duration::from_secs(1);
/// How long the request through a node may take: its daemon's own patience, and some.
const PATIENCE: Duration = Duration::from_secs(5);
/// The daemon's word for going to the nearest.
const NEAREST: &str = "nearest";

/// What is so, by what the lab has done.
#[derive(Debug)]
pub(super) struct Guard {
    names: Vec<String>,
    sites: Vec<usize>,
    /// For each pair of sites the time from one to the other, as at the start and now...
    usual: BTreeMap<(usize, usize), Duration>,
    now: BTreeMap<(usize, usize), Duration>,
    /// ...and whether nothing passes.
    down: BTreeSet<(usize, usize)>,
    instances: Vec<Option<Instance>>,
    revoked: BTreeSet<usize>,
    /// Those of them that have been started anew: one that has forgotten it is told by nobody.
    forgetful: BTreeSet<usize>,
    /// When something last changed, or will have.
    changed: Duration,
}

/// What a node shows.
#[derive(Debug, Clone)]
struct Seen {
    at: usize,
    /// Whom it holds for down, or gone.
    absent: BTreeSet<usize>,
    /// How many it holds for there, itself included.
    alive: usize,
    peers: BTreeSet<usize>,
    policy: String,
    /// Where it goes, through whom, and for how long it has gone there.
    chosen: Option<(usize, Option<usize>, Duration)>,
    /// Who has answered a request through it, or what came instead.
    answered: Result<usize, String>,
}

/// A rule that does not hold for a node, and what was seen of it.
type Finding = (&'static str, usize, String);

impl Guard {
    pub(super) fn new(scenario: &Scenario, links: &BTreeMap<(usize, usize), LinkConfig>) -> Self {
        let places: Vec<(usize, usize)> = scenario.nodes().collect();
        let usual: BTreeMap<_, _> =
            links.iter().map(|(ends, link)| (*ends, link.latency)).collect();
        let hosts = |(site, number): &(usize, usize)| *number <= scenario.sites[*site].origins;
        Self {
            names: places.iter().map(|place| scenario.name(*place)).collect(),
            sites: places.iter().map(|(site, _)| *site).collect(),
            now: usual.clone(),
            usual,
            down: BTreeSet::new(),
            instances: places.iter().map(|it| hosts(it).then_some(Instance::Ready)).collect(),
            revoked: BTreeSet::new(),
            forgetful: BTreeSet::new(),
            changed: Duration::ZERO,
        }
    }

    pub(super) fn is_revoked(&self, at: usize) -> bool {
        self.revoked.contains(&at)
    }

    /// Something is about to happen.
    pub(super) fn happens(&mut self, happening: &Happening, now: Duration) {
        self.changed = self.changed.max(now);
        match happening {
            Happening::Instance(node, becomes) => self.instances[*node] = Some(*becomes),
            Happening::Way(a, b, true) => drop(self.down.remove(&(*a, *b))),
            Happening::Way(a, b, false) => drop(self.down.insert((*a, *b))),
            Happening::Quality(a, b, quality) => {
                let usual = self.usual[&(*a, *b)];
                let latency = quality.as_ref().map_or(usual, |link| link.latency);
                self.now.insert((*a, *b), latency);
            }
            Happening::Starve { stall, until, .. } => {
                self.changed = self.changed.max(*until + *stall);
            }
            Happening::Revoke { node, .. } => drop(self.revoked.insert(*node)),
            Happening::Start { node, .. } if self.is_revoked(*node) => {
                self.forgetful.insert(*node);
            }
            _ => {}
        }
    }

    /// Whether a node that is revoked should have heard of it, and ended.
    fn has_heard(&self, at: usize, there: &[bool]) -> bool {
        let told = || (0..there.len()).any(|other| there[other] && self.connects(at, other));
        self.is_revoked(at) && !self.forgetful.contains(&at) && told()
    }

    fn rtt(&self, a: usize, b: usize) -> Duration {
        let (a, b) = (self.sites[a], self.sites[b]);
        self.now[&(a, b)] + self.now[&(b, a)]
    }

    fn connects(&self, a: usize, b: usize) -> bool {
        let (a, b) = (self.sites[a], self.sites[b]);
        !self.down.contains(&(a, b)) && !self.down.contains(&(b, a))
    }

    /// Whether sessions of a node reach a ready instance there, by this way.
    fn serves(&self, at: usize, (origin, relay): (usize, Option<usize>), there: &[bool]) -> bool {
        let hop = relay.unwrap_or(origin);
        let ways =
            (at == hop || self.connects(at, hop)) && (hop == origin || self.connects(hop, origin));
        ways && there[hop] && there[origin] && self.instances[origin] == Some(Instance::Ready)
    }

    /// What is wrong with what a node shows. `there` says who runs and has not been revoked.
    fn judge(&self, seen: &Seen, there: &[bool]) -> Vec<Finding> {
        let at = seen.at;
        let mut found = Vec::new();
        let within: Vec<usize> =
            (0..there.len()).filter(|it| there[*it] && self.connects(at, *it)).collect();
        if let Some(other) = within.iter().find(|it| seen.absent.contains(it)) {
            let what = format!("it holds {} for down", self.names[*other]);
            found.push((rules::AGREEMENT, at, what));
        } else if seen.alive < within.len() {
            let (alive, all) = (seen.alive, within.len());
            let what = format!("it holds {alive} of {all} nodes within its reach for alive");
            found.push((rules::AGREEMENT, at, what));
        }
        if let Some(revoked) = self.revoked.iter().find(|it| seen.peers.contains(it)) {
            let what = format!("among its peers is {}", self.names[*revoked]);
            found.push((rules::SHUT_OUT, at, what));
        }
        found.extend(self.judge_route(seen, there));
        found
    }

    fn judge_route(&self, seen: &Seen, there: &[bool]) -> Option<Finding> {
        let at = seen.at;
        let serving = (0..there.len()).filter(|it| self.serves(at, (*it, None), there));
        let best =
            serving.min_by_key(|it| if *it == at { Duration::ZERO } else { self.rtt(at, *it) })?;
        let bad = |what: String| Some((rules::GOOD_ROUTES, at, what));
        let better = &self.names[best];
        let Some((origin, relay, since)) = seen.chosen else {
            return bad(format!("it goes nowhere though {better} serves"));
        };
        if !self.serves(at, (origin, relay), there) {
            let to = &self.names[origin];
            return bad(format!("it goes to {to}, which does not serve, though {better} does"));
        }
        let answered = match &seen.answered {
            Ok(answered) => *answered,
            Err(error) => return bad(format!("a request through it fails: {error}")),
        };
        let is_judged = seen.policy == NEAREST && relay.is_none() && since >= LASTING;
        let far = [origin, answered].into_iter().filter(|to| *to != at).find(|to| {
            let least = if best == at { Duration::ZERO } else { self.rtt(at, best) };
            rules::is_far(self.rtt(at, *to), least)
        });
        let to = &self.names[far.filter(|_| is_judged)?];
        Some((rules::NEAR_ROUTES, at, format!("it goes to {to} though {better} serves nearby")))
    }
}

impl World {
    /// Looks until all is as it should be, or for as long as there is an excuse.
    pub(super) async fn check_end(&mut self, end: Duration) -> Result<(), Error> {
        // Nobody is starved any more.
        self.starved.clear();
        let deadline = self.guard.changed.min(end) + QUIET;
        loop {
            let found = self.findings().await?;
            let now = self.start.elapsed();
            if found.is_empty() {
                return Ok(());
            }
            if now >= deadline {
                for (rule, at, what) in found {
                    let node = &self.nodes[at];
                    let last = node.tail().lines().map(str::to_owned).collect();
                    let node = Some(node.name.clone());
                    self.violations.push(Violation { at: end, rule, node, what, last });
                }
                return Ok(());
            }
            self.wait_until(now + LOOK).await?;
        }
    }

    /// What does not hold now.
    async fn findings(&mut self) -> Result<Vec<Finding>, Error> {
        let mut found = Vec::new();
        let there: Vec<bool> = (0..self.nodes.len())
            .map(|at| self.nodes[at].is_running() && !self.guard.is_revoked(at))
            .collect();
        for at in (0..there.len()).filter(|at| self.guard.has_heard(*at, &there)) {
            if self.nodes[at].is_running() {
                found.push((rules::SHUT_OUT, at, "it runs though it is revoked".to_owned()));
            }
        }
        for at in (0..there.len()).filter(|at| there[*at]) {
            match self.see(at).await? {
                Some(seen) => found.extend(self.guard.judge(&seen, &there)),
                None => found.push((rules::AGREEMENT, at, "its daemon does not answer".into())),
            }
        }
        Ok(found)
    }

    /// What a node shows; none if its daemon does not answer.
    async fn see(&self, at: usize) -> Result<Option<Seen>, Error> {
        let node = &self.nodes[at];
        let (status, peers) =
            (node.admin().ask(&StatusRequest).await, node.admin().ask(&PeersRequest).await);
        let Some((status, peers)) = status.ok().zip(peers.ok()) else { return Ok(None) };
        let client = Client::new(node.clients(), self.authority.certificate_pem());
        let client = client.map_err(|error| Error::Machine(format!("make a client: {error}")))?;
        // That of every stand-in.
        let client = client.with_certified(Ipv4Addr::LOCALHOST.into()).with_timeout(PATIENCE);
        let answer = client.whoami().await;
        let answered = answer.map_err(|error| error.to_string()).and_then(|answer| {
            let origin = self.nodes.iter().position(|node| node.name == answer.origin);
            origin.ok_or_else(|| format!("{} is no node", answer.origin))
        });
        Ok(Some(self.seen(at, &status, &peers, answered)))
    }

    fn seen(
        &self,
        at: usize,
        status: &Status,
        peers: &[PeerRow],
        answered: Result<usize, String>,
    ) -> Seen {
        let number =
            |id: &NodeId| self.nodes.iter().position(|node| node.identity.credential.node == *id);
        let named = |name: &String| self.nodes.iter().position(|node| node.name == *name);
        let is_it = |it: &&ServiceStatus| it.name == service();
        let routed = status.services.iter().find(is_it);
        let chosen = routed.and_then(|it| it.chosen.as_ref()).and_then(|chosen| {
            let origin = number(chosen.who.node.as_ref()?)?;
            let relay = chosen.who.relay.as_ref().and_then(named);
            Some((origin, relay, Duration::from_secs(chosen.since_s)))
        });
        Seen {
            at,
            absent: status.absent.iter().filter_map(|it| number(&it.who.node)).collect(),
            alive: status.members.alive,
            peers: peers.iter().filter_map(|it| number(&it.node)).collect(),
            policy: routed.map(|it| it.policy.clone()).unwrap_or_default(),
            chosen,
            answered,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORIGIN: usize = 0;
    const WORKER: usize = 1;
    const FAR: usize = 2;
    const ALL: [bool; 3] = [true; 3];

    fn guard() -> Guard {
        let text = "description = \"Three\"\nduration-s = 1\n\
                    [[site]]\nname = \"fra\"\nnodes = 2\norigins = 1\n\
                    [[site]]\nname = \"ams\"\nnodes = 1\norigins = 1\n\
                    [[path]]\nbetween = [\"fra\", \"ams\"]\nrtt-ms = 20\n";
        let scenario = Scenario::parse(text).expect("a good scenario");
        let links = crate::scenario::paths::configs(&scenario).expect("good links");
        Guard::new(&scenario, &links)
    }

    fn good() -> Seen {
        Seen {
            at: WORKER,
            absent: BTreeSet::new(),
            alive: 3,
            peers: BTreeSet::from([ORIGIN, FAR]),
            policy: NEAREST.to_owned(),
            chosen: Some((ORIGIN, None, LASTING)),
            answered: Ok(ORIGIN),
        }
    }

    fn says(guard: &Guard, seen: &Seen, there: &[bool], rule: &str, word: &str) {
        let found = guard.judge(seen, there);
        let is_it = |it: &Finding| it.0 == rule && it.1 == WORKER && it.2.contains(word);
        assert!(found.len() == 1 && is_it(&found[0]), "{rule}, {word}: {found:?}");
    }

    #[test]
    fn a_daemon_that_disagrees_is_noticed() {
        let guard = guard();
        assert_eq!(guard.judge(&good(), &ALL), []);
        let rule = rules::AGREEMENT;
        let absent = Seen { absent: BTreeSet::from([FAR]), alive: 2, ..good() };
        says(&guard, &absent, &ALL, rule, "holds ams-1 for down");
        assert_eq!(guard.judge(&absent, &[true, true, false]), []);
        says(&guard, &Seen { alive: 2, ..good() }, &ALL, rule, "2 of 3");
    }

    #[test]
    fn a_bad_route_is_noticed() {
        let mut guard = guard();
        let rule = rules::GOOD_ROUTES;
        says(&guard, &Seen { chosen: None, ..good() }, &ALL, rule, "goes nowhere");
        let failed = Seen { answered: Err("no".into()), ..good() };
        says(&guard, &failed, &ALL, rule, "a request through it fails: no");
        guard.happens(&Happening::Instance(ORIGIN, Instance::Hung), LOOK);
        assert_eq!(guard.changed, LOOK);
        says(&guard, &good(), &ALL, rule, "goes to fra-1, which does not serve");
        // Nobody within reach serves: nothing is to be expected.
        guard.happens(&Happening::Way(1, 0, false), LOOK);
        let alone = Seen { alive: 2, ..failed };
        assert_eq!(guard.judge(&alone, &ALL), []);
    }

    #[test]
    fn a_far_route_is_noticed_once_it_lasts() {
        let mut guard = guard();
        let far = Seen { chosen: Some((FAR, None, LASTING)), answered: Ok(FAR), ..good() };
        says(&guard, &far, &ALL, rules::NEAR_ROUTES, "goes to ams-1 though fra-1");
        let stray = Seen { answered: Ok(FAR), ..good() };
        says(&guard, &stray, &ALL, rules::NEAR_ROUTES, "goes to ams-1 though fra-1");
        let just_now = Seen { chosen: Some((FAR, None, LOOK)), ..far.clone() };
        assert_eq!(guard.judge(&just_now, &ALL), []);
        let spread = Seen { policy: "spread".into(), ..far.clone() };
        assert_eq!(guard.judge(&spread, &ALL), []);
        let slow = LinkConfig::delay(Duration::from_millis(30));
        guard.happens(&Happening::Quality(0, 0, Some(slow)), LOOK);
        assert_eq!(guard.judge(&far, &ALL), []);
        guard.happens(&Happening::Quality(0, 0, None), LOOK);
        assert_eq!(guard.judge(&far, &ALL).len(), 1);
    }

    #[test]
    fn a_peer_that_is_revoked_is_noticed() {
        let mut guard = guard();
        guard.happens(&Happening::Revoke { node: FAR, through: None }, LOOK);
        let there = [true, true, false];
        says(&guard, &Seen { alive: 2, ..good() }, &there, rules::SHUT_OUT, "is ams-1");
        let shut = Seen { alive: 2, peers: BTreeSet::from([ORIGIN]), ..good() };
        assert_eq!(guard.judge(&shut, &there), []);
        // Its own daemon has to end, unless nobody tells it.
        assert!(guard.has_heard(FAR, &there) && !guard.has_heard(WORKER, &there));
        guard.happens(&Happening::Way(0, 1, false), LOOK);
        assert!(!guard.has_heard(FAR, &there));
        guard.happens(&Happening::Way(0, 1, true), LOOK);
        guard.happens(&Happening::Start { node: FAR, with_state: false }, LOOK);
        assert!(!guard.has_heard(FAR, &there));
    }
}
