//! The network between nodes: links between sites, access links, NATs, addresses, cuts.
//!
//! [`Network::carry`] decides the fate of one datagram. It stores no datagram and identifies nodes
//! by number. All randomness is in the links, each with its own seed.
//!
//! Datagrams may queue behind each other at a bottleneck or an ordered link. Such a link is
//! consulted when a datagram reaches it. Otherwise a datagram sent early from afar would be served
//! before a later one from nearby that arrives first. So a datagram with such a link ahead is
//! carried in stretches, and its sender calls again for each.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use meshport_demo::wan::{DropReason, Jitter, Link, LinkConfig, Verdict};
use rand::RngCore;
use rand_chacha::ChaCha8Rng;

use crate::Error;
use crate::scenario::{Scenario, paths};
use crate::tunnel::Spread;

/// NAT mappings per node; a home router has several thousand.
const MAX_MAPPINGS: usize = 4096;

/// A node's attachment to its site.
struct Attachment {
    site: usize,
    /// Number of address changes.
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
    /// Time at which something was last sent to a peer.
    mappings: std::collections::HashMap<u32, Duration, std::hash::BuildHasherDefault<Spread>>,
}

/// All links.
pub(crate) struct Network {
    sites: usize,
    links: Vec<Link>,
    at_start: Vec<LinkConfig>,
    attachments: Vec<Attachment>,
    blocked: BTreeSet<(usize, usize)>,
}

/// The current state of the path between two sites; the worse direction counts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Between {
    /// The round trip without disturbance; none if a direction is blocked.
    pub(crate) rtt: Option<Duration>,
    /// Share of datagrams lost per direction, in percent.
    pub(crate) loss_percent: u8,
    /// Whether the path differs from the start.
    pub(crate) is_changed: bool,
}

/// The fate of a datagram on the next stretch of its path, or why it is lost.
pub(crate) type Fate = Result<Stretch, &'static str>;

/// How far a datagram gets before it must queue: its arrival time, and that of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stretch {
    /// Arrives at its destination.
    Arrives(Duration, Option<Duration>),
    /// At a link with a queue; call [`Network::carry_on`] then.
    Reaches(Duration, Option<Duration>, Leg),
}

/// A part of the path after the sender's own link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leg {
    /// Site to site.
    Between,
    /// Site to node.
    Down,
}

/// The properties of a datagram that determine its path.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parcel {
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// The destination address of the receiver.
    pub(crate) address: u16,
    /// Its size with all headers, in bytes.
    pub(crate) size: usize,
}

impl Network {
    pub(crate) fn new(scenario: &Scenario, rng: &mut ChaCha8Rng) -> Result<Self, Error> {
        let sites = scenario.sites.len();
        let at_start: Vec<LinkConfig> = paths::configs(scenario)?.into_values().collect();
        let links = at_start.iter().map(|it| Link::new(it.clone(), rng.next_u64())).collect();
        let mut attachments = Vec::new();
        for crate::scenario::NodeRef { site, .. } in scenario.nodes() {
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
            attachments.push(Attachment { site, address: 1, access, nat });
        }
        Ok(Self { sites, links, at_start, attachments, blocked: BTreeSet::new() })
    }

    /// Sends a datagram from one node to the address of another.
    pub(crate) fn carry(&mut self, now: Duration, parcel: Parcel) -> Fate {
        let Parcel { from, to, size, .. } = parcel;
        if !self.blocked.is_empty() && self.blocked.contains(&(from, to)) {
            return Err("cut");
        }
        if let Some(nat) = &mut self.attachments[from].nat
            && (nat.mappings.len() < MAX_MAPPINGS || nat.mappings.contains_key(&number(to)))
        {
            nat.mappings.insert(number(to), now);
        }
        let Some(access) = &mut self.attachments[from].access else {
            return self.between(now, parcel);
        };
        let (at, _) = deliver(access.up.send(now, size))?;
        let sites = self.attachments[from].site * self.sites + self.attachments[to].site;
        if self.links[sites].makes_wait() {
            return Ok(Stretch::Reaches(at, None, Leg::Between));
        }
        self.between(at, parcel)
    }

    /// Continues a datagram that has reached this leg.
    pub(crate) fn carry_on(&mut self, now: Duration, leg: Leg, parcel: Parcel) -> Fate {
        match leg {
            Leg::Between => self.between(now, parcel),
            Leg::Down => self.down(now, parcel),
        }
    }

    /// Carries a datagram from site to site, and further if there is no queue ahead.
    fn between(&mut self, at: Duration, parcel: Parcel) -> Fate {
        let attachment = &self.attachments[parcel.to];
        let sites = self.attachments[parcel.from].site * self.sites + attachment.site;
        let has_access = attachment.access.is_some();
        let (at, again) = deliver(self.links[sites].send(at, parcel.size))?;
        if has_access {
            return Ok(Stretch::Reaches(at, again, Leg::Down));
        }
        self.arrive(at, again, parcel)
    }

    /// Carries a datagram from the site to the node.
    fn down(&mut self, now: Duration, parcel: Parcel) -> Fate {
        let arrival = match &mut self.attachments[parcel.to].access {
            Some(access) => deliver(access.down.send(now, parcel.size))?,
            None => (now, None),
        };
        self.arrive(arrival.0, arrival.1, parcel)
    }

    /// Checks that the receiver still has that address and that its NAT passes the datagram.
    fn arrive(&self, at: Duration, again: Option<Duration>, parcel: Parcel) -> Fate {
        let attachment = &self.attachments[parcel.to];
        if attachment.address != parcel.address {
            return Err("address");
        }
        let lets_in = attachment.nat.as_ref().is_none_or(|nat| {
            let mapped = nat.mappings.get(&number(parcel.from));
            mapped.is_some_and(|last| at.saturating_sub(*last) < nat.timeout)
        });
        if lets_in { Ok(Stretch::Arrives(at, again)) } else { Err("nat") }
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

    /// Sets the quality of the link between two sites; none restores the initial one.
    pub(crate) fn set_quality(&mut self, from: usize, to: usize, quality: Option<LinkConfig>) {
        let link = from * self.sites + to;
        let up = self.links[link].config().up;
        let config = quality.unwrap_or_else(|| self.at_start[link].clone());
        self.links[link].set_config(LinkConfig { up, ..config });
    }

    /// Changes a node's public address.
    pub(crate) fn rebind(&mut self, node: usize) {
        let attachment = &mut self.attachments[node];
        attachment.address = attachment.address.wrapping_add(1).max(1);
        if let Some(nat) = &mut attachment.nat {
            nat.mappings.clear();
        }
    }

    pub(crate) fn roam(&mut self, node: usize, site: usize) {
        self.attachments[node].site = site;
        self.rebind(node);
    }

    pub(crate) fn site(&self, node: usize) -> usize {
        self.attachments[node].site
    }

    pub(crate) fn address(&self, node: usize) -> u16 {
        self.attachments[node].address
    }

    pub(crate) fn is_behind_nat(&self, node: usize) -> bool {
        self.attachments[node].nat.is_some()
    }

    /// Whether packets can pass in both directions between two nodes, apart from loss. Two nodes
    /// behind NATs do not reach each other, since nothing coordinates their packets.
    pub(crate) fn connects(&self, a: usize, b: usize) -> bool {
        let sites = (self.attachments[a].site, self.attachments[b].site);
        let up = |from: usize, to: usize| self.links[from * self.sites + to].config().up;
        !(self.is_behind_nat(a) && self.is_behind_nat(b))
            && up(sites.0, sites.1)
            && up(sites.1, sites.0)
            && !self.blocked.contains(&(a, b))
            && !self.blocked.contains(&(b, a))
    }

    /// Round-trip loss between two nodes in millionths, and the variation of the round-trip time.
    pub(crate) fn noise(&self, a: usize, b: usize) -> (u64, Duration) {
        let (here, there) = (self.attachments[a].site, self.attachments[b].site);
        let between = [(here, there), (there, here)];
        let links = between.map(|(from, to)| &self.links[from * self.sites + to]);
        let access = [a, b].into_iter().filter_map(|node| self.attachments[node].access.as_ref());
        let all = links.into_iter().chain(access.flat_map(|access| [&access.up, &access.down]));
        all.fold((0, Duration::ZERO), |(lost, varies), link| {
            let LinkConfig { loss, jitter, .. } = link.config();
            #[expect(clippy::cast_possible_truncation, reason = "at most a million")]
            #[expect(clippy::cast_sign_loss, reason = "a share")]
            let share = (loss.mean() * 1e6) as u64;
            let time = match jitter {
                Jitter::None => Duration::ZERO,
                Jitter::Uniform { max } => *max,
                Jitter::Exponential { mean } => *mean,
            };
            (lost + share, varies + time)
        })
    }

    /// The link between two sites.
    pub(crate) fn between_sites(&self, a: usize, b: usize) -> Between {
        let pair = [a * self.sites + b, b * self.sites + a];
        let links = pair.map(|link| self.links[link].config());
        let latency: Duration = links.iter().map(|it| it.latency).sum();
        let loss = links.iter().map(|it| it.loss.mean()).fold(0.0, f64::max);
        #[expect(clippy::cast_possible_truncation, reason = "at most 100")]
        #[expect(clippy::cast_sign_loss, reason = "a share")]
        let loss_percent = (loss * 100.0).round() as u8;
        Between {
            rtt: links.iter().all(|it| it.up).then_some(latency),
            loss_percent,
            is_changed: pair.iter().zip(links).any(|(link, it)| *it != self.at_start[*link]),
        }
    }

    /// The round trip between two nodes without disturbance.
    pub(crate) fn rtt(&self, a: usize, b: usize) -> Duration {
        let latency = |from: usize, to: usize| self.links[from * self.sites + to].config().latency;
        let sites = (self.attachments[a].site, self.attachments[b].site);
        let access = |node: usize| {
            let access = self.attachments[node].access.as_ref();
            access.map_or(Duration::ZERO, |it| it.up.config().latency + it.down.config().latency)
        };
        latency(sites.0, sites.1) + latency(sites.1, sites.0) + access(a) + access(b)
    }
}

fn deliver(verdict: Verdict) -> Result<(Duration, Option<Duration>), &'static str> {
    match verdict {
        Verdict::Deliver(deliveries) => Ok((deliveries.at, deliveries.duplicate_at)),
        Verdict::Drop(DropReason::Down) => Err("down"),
        Verdict::Drop(DropReason::TooBig) => Err("too-big"),
        Verdict::Drop(DropReason::QueueFull) => Err("queue-full"),
        Verdict::Drop(DropReason::Lost) => Err("lost"),
    }
}

/// The endpoint that represents an address of a node with this port.
pub(crate) fn endpoint(address: u16, port: usize) -> SocketAddr {
    let [high, low] = address.to_be_bytes();
    let port = u16::try_from(port).expect("at most MAX_NODES nodes");
    (Ipv4Addr::new(10, high, low, 1), port).into()
}

/// The address and port that an endpoint represents.
pub(crate) fn whose(endpoint: SocketAddr) -> Option<(u16, usize)> {
    let SocketAddr::V4(v4) = endpoint else { return None };
    let [_, high, low, _] = v4.ip().octets();
    Some((u16::from_be_bytes([high, low]), usize::from(v4.port())))
}

fn number(node: usize) -> u32 {
    u32::try_from(node).expect("at most MAX_NODES nodes")
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    const NEAR: usize = 0;
    const FAR: usize = 1;
    const EDGE: usize = 2;

    /// A node behind a mobile network, one at 1 ms from its site, and one at 100 ms.
    fn network() -> Network {
        let site =
            |name: &str, more: &str| format!("[[site]]\nname = \"{name}\"\nnodes = 1\n{more}");
        let path = |name: &str, rtt: u32| {
            format!("[[path]]\nbetween = [\"{name}\", \"edge\"]\nrtt-ms = {rtt}\n")
        };
        let sites = [site("near", ""), site("far", ""), site("edge", "access = \"lossy-lte\"\n")];
        let text = format!(
            "description = \"Near and far\"\nduration-s = 1\n{}{}{}",
            sites.concat(),
            path("near", 2),
            path("far", 200)
        );
        let scenario = Scenario::parse(&text).expect("a good scenario");
        Network::new(&scenario, &mut ChaCha8Rng::seed_from_u64(1)).expect("a possible network")
    }

    /// Carries datagrams to the edge, consulting each link at the datagram's arrival there, and
    /// returns the arrival times by node.
    fn arrivals(network: &mut Network, sent: &[(Duration, usize)]) -> [Vec<Duration>; 2] {
        let mut asked: Vec<(Duration, usize, Option<Leg>)> =
            sent.iter().map(|(at, from)| (*at, *from, None)).collect();
        let mut arrived = [Vec::new(), Vec::new()];
        while !asked.is_empty() {
            let next = (0..asked.len()).min_by_key(|index| asked[*index].0).expect("not empty");
            let (now, from, leg) = asked.remove(next);
            let parcel = Parcel { from, to: EDGE, address: 1, size: 1400 };
            let fate = match leg {
                None => network.carry(now, parcel),
                Some(leg) => network.carry_on(now, leg, parcel),
            };
            match fate {
                Ok(Stretch::Arrives(at, _)) => arrived[from].push(at),
                Ok(Stretch::Reaches(at, _, leg)) => asked.push((at, from, Some(leg))),
                Err(why) => assert_eq!(why, "lost"),
            }
        }
        arrived
    }

    /// A hundred datagrams fill the bottleneck for 93 ms from their arrival there.
    #[test]
    fn a_near_datagram_does_not_wait_for_a_far_one() {
        let burst = vec![(Duration::ZERO, FAR); 100];
        let near: Vec<_> = (1..=40).map(|ms| (Duration::from_millis(ms), NEAR)).collect();
        let [alone, _] = arrivals(&mut network(), &near);
        let [beside, far] = arrivals(&mut network(), &[burst.clone(), near].concat());
        assert!(alone.len() > 30 && far.len() > 80, "{} and {}", alone.len(), far.len());
        assert_eq!(beside, alone, "what is still at sea is in nobody's way");
        // A datagram that arrives during the burst must queue.
        let late: Vec<_> = (100..=110).map(|ms| (Duration::from_millis(ms), NEAR)).collect();
        let [behind, _] = arrivals(&mut network(), &[burst, late].concat());
        let first = behind.iter().min().expect("some arrive");
        assert!(*first > Duration::from_millis(100 + 27 + 50), "{first:?}");
    }
}
