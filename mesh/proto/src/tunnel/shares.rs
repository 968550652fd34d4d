//! Limits the handshakes of each source with a proven address under load.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

/// Initiations per second that one source may make under load: as many as one peer may. A source is
/// an IPv4 address or an IPv6 network of 64 bits.
pub(super) const MAX_PER_SOURCE: u32 = 50;
/// Initiations per second that are read before every source is limited to [`FEW_PER_SOURCE`]:
/// decrypting the claimed sender costs 42 us each, and having many addresses must not suffice to
/// occupy a core.
pub(super) const MAX_PROVEN: u32 = 1000;
/// Initiations of each source after that. A peer that renews its session or returns needs one,
/// repeated each second; two allow for peers that share an address.
pub(super) const FEW_PER_SOURCE: u32 = 2;
/// Initiations per second beyond [`MAX_PROVEN`] that are read from addresses of peers, which keep
/// [`MAX_PER_SOURCE`] since many peers may share an address or a network. Limited too, since a
/// member may flood from many addresses.
pub(super) const MAX_AT_HOME: u32 = 1000;
/// Maximum sources counted, about 100 bytes each; under load others wait for the next second,
/// except addresses of peers.
pub(super) const MAX_SOURCES: usize = 4096;
/// Maximum known sources of peers, 48 bytes each. Beyond it new ones must wait until others expire.
pub(super) const MAX_HOMES: usize = 4096;
/// How long an address counts as a peer's after a session began there: sessions in use are renewed
/// every two minutes, and a site that was cut off is still known when it returns.
pub(super) const HOME_LIFE: Duration = Duration::from_secs(3600);

/// See the module's description.
#[derive(Debug, Default)]
pub(super) struct Shares {
    /// Initiations of this second that were read.
    read: u32,
    /// Initiations beyond them from addresses of peers.
    read_at_home: u32,
    /// Initiations of this second, by source.
    pub(super) proven: BTreeMap<IpAddr, u32>,
    /// Addresses of peers, with the time at which one last began a session there.
    pub(super) homes: BTreeMap<IpAddr, Instant>,
}

impl Shares {
    /// Resets the counts.
    pub(super) fn begin(&mut self) {
        (self.read, self.read_at_home) = (0, 0);
        self.proven.clear();
    }

    /// An admitted peer has a session at this address.
    pub(super) fn settle(&mut self, ip: IpAddr, now: Instant) {
        let source = source_of(ip);
        if self.homes.len() >= MAX_HOMES && !self.homes.contains_key(&source) {
            self.homes.retain(|_, at| lasts(*at, now));
        }
        if self.homes.len() < MAX_HOMES || self.homes.contains_key(&source) {
            self.homes.insert(source, now);
        }
    }

    /// Counts an initiation from this address; false if its source has used up its share.
    pub(super) fn take(&mut self, ip: IpAddr, now: Instant) -> bool {
        let source = source_of(ip);
        let is_home = self.homes.get(&source).is_some_and(|at| lasts(*at, now));
        let is_counted = is_home || self.proven.contains_key(&source);
        if !is_counted && self.proven.len() >= MAX_SOURCES {
            return false;
        }
        let left = match self.read < MAX_PROVEN {
            true => Some(&mut self.read),
            false => Some(&mut self.read_at_home).filter(|read| is_home && **read < MAX_AT_HOME),
        };
        let most = if left.is_some() { MAX_PER_SOURCE } else { FEW_PER_SOURCE };
        let count = self.proven.entry(source).or_default();
        *count = count.saturating_add(1);
        let is_read = *count <= most;
        left.into_iter().for_each(|read| *read += u32::from(is_read));
        is_read
    }
}

fn source_of(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => ip,
        IpAddr::V6(ip) => Ipv6Addr::from(u128::from(ip) >> 64 << 64).into(),
    }
}

fn lasts(home: Instant, now: Instant) -> bool {
    now.saturating_duration_since(home) < HOME_LIFE
}
