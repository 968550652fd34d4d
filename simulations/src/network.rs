//! The ways between nodes: links between sites, access links, NATs, addresses, cuts.
//!
//! [`Network::carry`] decides what becomes of one datagram. It holds no datagram and knows no node
//! but by number. Everything random in it is in the links, each with a seed of its own.

use std::collections::BTreeSet;
use std::time::Duration;

use meshport::wan::{DropReason, Link, LinkConfig, Verdict};
use rand::RngCore;
use rand_chacha::ChaCha8Rng;

use crate::Error;
use crate::scenario::{Scenario, paths};
use crate::tunnel::Spread;

/// NAT mappings of one node; a home router has some thousands.
const MAX_MAPPINGS: usize = 4096;

/// Where a node is, and what lies between it and its site.
struct Place {
    site: usize,
    /// Counts the addresses it has had.
    address: u16,
    access: Option<Box<Access>>,
    nat: Option<Box<Nat>>,
}

struct Access {
    up: Link,
    down: Link,
}

struct Nat {
    timeout: Duration,
    /// When something was last sent to a peer.
    mappings: std::collections::HashMap<u32, Duration, std::hash::BuildHasherDefault<Spread>>,
}

/// All ways.
pub(crate) struct Network {
    sites: usize,
    links: Vec<Link>,
    at_start: Vec<LinkConfig>,
    places: Vec<Place>,
    blocked: BTreeSet<(usize, usize)>,
}

/// What becomes of a datagram: when it arrives, once or twice, or why not.
pub(crate) type Fate = Result<(Duration, Option<Duration>), &'static str>;

impl Network {
    pub(crate) fn new(scenario: &Scenario, rng: &mut ChaCha8Rng) -> Result<Self, Error> {
        let sites = scenario.sites.len();
        let at_start: Vec<LinkConfig> = paths::configs(scenario)?.into_values().collect();
        let links = at_start.iter().map(|it| Link::new(it.clone(), rng.next_u64())).collect();
        let mut places = Vec::new();
        for (site, _) in scenario.nodes() {
            let config = &scenario.sites[site];
            let access = match &config.access {
                Some(name) => {
                    let link = paths::preset(name)?;
                    let (up, down) = (rng.next_u64(), rng.next_u64());
                    let up = Link::new(link.clone(), up);
                    Some(Box::new(Access { up, down: Link::new(link, down) }))
                }
                None => None,
            };
            let timeout = config.nat_timeout();
            let nat = config
                .nat
                .then(|| Box::new(Nat { timeout, mappings: std::collections::HashMap::default() }));
            places.push(Place { site, address: 1, access, nat });
        }
        Ok(Self { sites, links, at_start, places, blocked: BTreeSet::new() })
    }

    /// Sends `size` bytes (all headers counted) from one node to the address of another.
    pub(crate) fn carry(
        &mut self,
        now: Duration,
        (from, to): (usize, usize),
        to_address: u16,
        size: usize,
    ) -> Fate {
        if !self.blocked.is_empty() && self.blocked.contains(&(from, to)) {
            return Err("cut");
        }
        let mut at = now;
        if let Some(nat) = &mut self.places[from].nat
            && (nat.mappings.len() < MAX_MAPPINGS || nat.mappings.contains_key(&number(to)))
        {
            nat.mappings.insert(number(to), now);
        }
        if let Some(access) = &mut self.places[from].access {
            at = deliver(access.up.send(at, size))?.0;
        }
        let sites = self.places[from].site * self.sites + self.places[to].site;
        let (mut at, mut again) = deliver(self.links[sites].send(at, size))?;
        if let Some(access) = &mut self.places[to].access {
            (at, again) = (deliver(access.down.send(at, size))?.0, None);
        }
        let place = &self.places[to];
        if place.address != to_address {
            return Err("address");
        }
        let lets_in = place.nat.as_ref().is_none_or(|nat| {
            let mapped = nat.mappings.get(&number(from));
            mapped.is_some_and(|last| at.saturating_sub(*last) < nat.timeout)
        });
        if lets_in { Ok((at, again)) } else { Err("nat") }
    }

    pub(crate) fn set_up(&mut self, from: usize, to: usize, up: bool) {
        self.links[from * self.sites + to].set_up(up);
    }

    pub(crate) fn block(&mut self, from: usize, to: usize, up: bool) {
        if up {
            self.blocked.remove(&(from, to));
        } else {
            self.blocked.insert((from, to));
        }
    }

    /// Changes the way between two sites; none brings back what it was at the start.
    pub(crate) fn set_quality(&mut self, from: usize, to: usize, quality: Option<LinkConfig>) {
        let place = from * self.sites + to;
        let up = self.links[place].config().up;
        let config = quality.unwrap_or_else(|| self.at_start[place].clone());
        self.links[place].set_config(LinkConfig { up, ..config });
    }

    /// Gives a node another public address.
    pub(crate) fn rebind(&mut self, node: usize) {
        let place = &mut self.places[node];
        place.address = place.address.wrapping_add(1).max(1);
        if let Some(nat) = &mut place.nat {
            nat.mappings.clear();
        }
    }

    pub(crate) fn roam(&mut self, node: usize, site: usize) {
        self.places[node].site = site;
        self.rebind(node);
    }

    pub(crate) fn site(&self, node: usize) -> usize {
        self.places[node].site
    }

    pub(crate) fn address(&self, node: usize) -> u16 {
        self.places[node].address
    }

    pub(crate) fn is_behind_nat(&self, node: usize) -> bool {
        self.places[node].nat.is_some()
    }

    /// Whether anything passes both ways between two nodes, apart from loss. Two that are behind
    /// NATs do not reach each other: nobody tells them when to speak.
    pub(crate) fn connects(&self, a: usize, b: usize) -> bool {
        let sites = (self.places[a].site, self.places[b].site);
        let up = |from: usize, to: usize| self.links[from * self.sites + to].config().up;
        !(self.is_behind_nat(a) && self.is_behind_nat(b))
            && up(sites.0, sites.1)
            && up(sites.1, sites.0)
            && !self.blocked.contains(&(a, b))
            && !self.blocked.contains(&(b, a))
    }

    /// The undisturbed round trip between two nodes.
    pub(crate) fn rtt(&self, a: usize, b: usize) -> Duration {
        let latency = |from: usize, to: usize| self.links[from * self.sites + to].config().latency;
        let sites = (self.places[a].site, self.places[b].site);
        let access = |node: usize| {
            let access = self.places[node].access.as_ref();
            access.map_or(Duration::ZERO, |it| it.up.config().latency + it.down.config().latency)
        };
        latency(sites.0, sites.1) + latency(sites.1, sites.0) + access(a) + access(b)
    }
}

fn deliver(verdict: Verdict) -> Fate {
    match verdict {
        Verdict::Deliver(deliveries) => Ok((deliveries.at, deliveries.duplicate_at)),
        Verdict::Drop(DropReason::Down) => Err("down"),
        Verdict::Drop(DropReason::TooBig) => Err("too-big"),
        Verdict::Drop(DropReason::QueueFull) => Err("queue-full"),
        Verdict::Drop(DropReason::Lost) => Err("lost"),
    }
}

fn number(node: usize) -> u32 {
    u32::try_from(node).expect("at most MAX_NODES nodes")
}
