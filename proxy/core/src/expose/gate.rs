//! Admission of clients: networks, limits and rates.
//!
//! Clients outside the `allow` list are refused. Each source (an IPv4 address, or an IPv6 /64,
//! since one host may own all of it) has a limit on concurrent sessions and on the rate of new
//! connections; connections refused for another limit count towards the rate. A load balancer's
//! connection takes a slot of the listener until its header names the client, and then counts for
//! that client.
//!
//! Bounds: [`MAX_SOURCES`] sources that have a session or connected within the last second. None is
//! evicted early, so the limits are exact; if the table is full, new sources are refused.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::ops::Bound;
use std::time::{Duration, Instant};

use meshport_config::{Cidr, ExposeSettings};

use crate::credit::{Credit, Rate};

/// Maximum sources tracked: at most six megabytes, and more than an address has ports.
pub const MAX_SOURCES: usize = 65_536;
/// Sources examined for eviction with each new client: more than one, so that the table shrinks
/// while clients arrive.
const LOOKED_AT: usize = 2;
/// Interval between searches of a full table.
const SEARCH_INTERVAL: Duration = Duration::from_secs(1);
/// Prefix of an IPv6 source: a host may use a whole /64.
const SITE_BITS: u128 = !0 << 64;

/// A client as the limits see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Source(IpAddr);

impl Source {
    /// The source of an address.
    pub fn of(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            IpAddr::V6(ip) => Self(Ipv6Addr::from_bits(ip.to_bits() & SITE_BITS).into()),
            ip => Self(ip),
        }
    }

    /// Its address, or the first of its block.
    pub fn address(self) -> IpAddr {
        self.0
    }
}

/// Why a client is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// No network of `allow` contains its address.
    NotAllowed,
    /// All slots of the listener are taken.
    OverLimit,
    /// Its source has used all its slots.
    OverShare,
    /// Its source connects too often.
    OverRate,
    /// Too many sources are tracked already.
    TooManySources,
}

/// A listener's settings for clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    allow: Vec<Cidr>,
    balancers: Vec<Cidr>,
    max_sessions: u32,
    max_per_source: u32,
    rate: Rate,
}

impl From<&ExposeSettings> for Rules {
    fn from(settings: &ExposeSettings) -> Self {
        Self {
            allow: settings.allow.clone(),
            balancers: settings.accept_proxy_from.clone(),
            max_sessions: settings.max_sessions,
            max_per_source: settings.max_sessions_per_source,
            rate: Rate::per_second(settings.max_rate_per_source),
        }
    }
}

impl Rules {
    /// Whether a client with this address is admitted.
    pub fn allows(&self, ip: IpAddr) -> bool {
        self.allow.iter().any(|network| network.contains(ip))
    }

    /// Most connections that may hold a slot at once.
    pub fn max_sessions(&self) -> u32 {
        self.max_sessions
    }

    /// Whether PROXY headers from this address are trusted.
    pub fn believes(&self, ip: IpAddr) -> bool {
        self.balancers.iter().any(|network| network.contains(ip))
    }
}

/// The owner of a connection that holds a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// A client's connection.
    Client(Source),
    /// A balancer's connection, whose header names the client.
    Balancer,
}

/// The sessions and the rate of a source.
#[derive(Debug)]
struct Held {
    open: u32,
    credit: Credit,
}

/// The clients of one listener.
#[derive(Debug)]
pub struct Gate {
    rules: Rules,
    open: u32,
    sources: BTreeMap<Source, Held>,
    /// The source examined last.
    looked_at: Option<Source>,
    searched: Option<Instant>,
}

impl Gate {
    /// A gate without clients.
    pub fn new(rules: Rules) -> Self {
        Self { rules, open: 0, sources: BTreeMap::new(), looked_at: None, searched: None }
    }

    /// Checks a connection from `peer` by what is known at accept. It holds a slot until
    /// [`Gate::leave`].
    pub fn arrive(&mut self, peer: IpAddr, now: Instant) -> Result<Arrival, Refusal> {
        if self.rules.believes(peer) {
            self.take_place()?;
            return Ok(Arrival::Balancer);
        }
        let source = self.admit(peer, now)?;
        match self.take_place() {
            Ok(()) => Ok(Arrival::Client(source)),
            Err(refusal) => {
                self.give_up(source);
                Err(refusal)
            }
        }
    }

    /// Assigns a load balancer's connection, which holds a slot, to `client`.
    ///
    /// # Errors
    /// Why that client is refused; the connection keeps its slot until [`Gate::leave`].
    pub fn identify(&mut self, client: IpAddr, now: Instant) -> Result<Source, Refusal> {
        self.admit(client, now)
    }

    /// A connection that held a slot has ended; `source` is its owner, if known.
    pub fn leave(&mut self, source: Option<Source>) {
        self.open = self.open.saturating_sub(1);
        if let Some(source) = source {
            self.give_up(source);
        }
    }

    /// Applies new rules. Admitted clients stay admitted.
    pub fn set_rules(&mut self, rules: Rules, now: Instant) {
        if rules.rate != self.rules.rate {
            self.sources.values_mut().for_each(|held| held.credit.set_rate(rules.rate, now));
        }
        self.rules = rules;
    }

    /// Connections that hold a slot.
    pub fn open(&self) -> u32 {
        self.open
    }

    /// Tracked sources.
    pub fn sources(&self) -> usize {
        self.sources.len()
    }

    fn take_place(&mut self) -> Result<(), Refusal> {
        if self.open >= self.rules.max_sessions {
            return Err(Refusal::OverLimit);
        }
        self.open += 1;
        Ok(())
    }

    /// Counts one more session for the source of a client.
    fn admit(&mut self, client: IpAddr, now: Instant) -> Result<Source, Refusal> {
        // Checked first, so that no state is kept for clients that are not allowed.
        if !self.rules.allows(client) {
            return Err(Refusal::NotAllowed);
        }
        self.forget_some(now);
        let source = Source::of(client);
        if !self.sources.contains_key(&source) && !self.has_room(now) {
            return Err(Refusal::TooManySources);
        }
        let rate = self.rules.rate;
        let new = || Held { open: 0, credit: Credit::full(rate, now) };
        let held = self.sources.entry(source).or_insert_with(new);
        if !held.credit.take(now) {
            return Err(Refusal::OverRate);
        }
        if held.open >= self.rules.max_per_source {
            return Err(Refusal::OverShare);
        }
        held.open += 1;
        Ok(source)
    }

    fn give_up(&mut self, source: Source) {
        if let Some(held) = self.sources.get_mut(&source) {
            held.open = held.open.saturating_sub(1);
        }
    }

    /// Examines the next few sources and removes those with no session and full credit.
    fn forget_some(&mut self, now: Instant) {
        for _ in 0..LOOKED_AT {
            let from = self.looked_at.map_or(Bound::Unbounded, Bound::Excluded);
            let next = self.sources.range_mut((from, Bound::Unbounded)).next();
            let Some((source, held)) = next else {
                self.looked_at = None;
                return;
            };
            let source = *source;
            self.looked_at = Some(source);
            if held.open == 0 && held.credit.is_full(now) {
                self.sources.remove(&source);
            }
        }
    }

    /// Whether one more source can be tracked.
    fn has_room(&mut self, now: Instant) -> bool {
        let is_early = |at| now.saturating_duration_since(at) < SEARCH_INTERVAL;
        if self.sources.len() >= MAX_SOURCES && !self.searched.is_some_and(is_early) {
            self.searched = Some(now);
            self.sources.retain(|_, held| held.open > 0 || !held.credit.is_full(now));
        }
        self.sources.len() < MAX_SOURCES
    }
}

#[cfg(test)]
mod tests;
