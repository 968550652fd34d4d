//! Compares the mesh's origins with the cluster's own list of apiservers.
//!
//! Kubernetes keeps a list of its apiservers (the endpoints of the service `kubernetes`). It
//! includes apiservers that the mesh does not know, but it lags by up to 18 s, freezes while etcd
//! stalls, and may have addresses that are unreachable from here. So it is only compared and never
//! changes a route. An unreadable list changes nothing. Bounded by [`MAX_LISTED`].

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use crate::units::counted;

/// Maximum addresses kept of a list; a control plane has three or five.
pub const MAX_LISTED: usize = 64;
/// The most addresses, or nodes, that a difference names.
const MAX_NAMED: usize = 5;
/// How long a difference must last before it counts: an apiserver that was killed stays on the
/// list for up to 18 s.
pub const LASTING: Duration = Duration::from_secs(25);

/// An origin of the mesh, as far as it is compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// The name of its node.
    pub name: String,
    /// Whether its node is up and its instance serves, so that the cluster should list it.
    pub serves: bool,
    /// Addresses of its node.
    pub addresses: Vec<IpAddr>,
}

/// The differences between the two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// How many apiservers the cluster lists.
    pub listed: usize,
    /// How many origins of the mesh serve.
    pub serving: usize,
    /// Listed addresses that belong to no serving origin's node.
    pub strangers: Vec<SocketAddr>,
    /// Nodes with a serving origin, none of whose addresses is listed.
    pub unlisted: Vec<String>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { listed, serving, strangers, unlisted } = self;
        let ours = counted(*serving as u64, "serving origin");
        let theirs = counted(*listed as u64, "apiserver");
        match listed == serving {
            true => write!(f, "the cluster lists {theirs}, but not those of the mesh")?,
            false => write!(f, "the cluster lists {theirs}, but the mesh has {ours}")?,
        }
        if !strangers.is_empty() {
            write!(f, "; no origin serves at {}", named(strangers))?;
        }
        if !unlisted.is_empty() {
            write!(f, "; it lists no address of {}", named(unlisted))?;
        }
        Ok(())
    }
}

/// The first few, and how many more there are.
fn named(all: &[impl fmt::Display]) -> String {
    let mut words: Vec<String> = all.iter().take(MAX_NAMED).map(ToString::to_string).collect();
    let more = all.len().saturating_sub(MAX_NAMED);
    words.extend((more > 0).then(|| format!("{more} more")));
    words.join(", ")
}

/// The comparison of one service.
#[derive(Debug, Clone, Default)]
pub struct Roster {
    listed: BTreeSet<SocketAddr>,
    /// Time since which there is a difference.
    since: Option<Instant>,
    difference: Option<Difference>,
    /// Lists that were read, and attempts that failed.
    pub readings: u64,
    /// Failed attempts to read the list.
    pub failures: u64,
}

impl Roster {
    /// Handles a list, and the currently known origins.
    pub fn handle_list(&mut self, listed: BTreeSet<SocketAddr>, origins: &[Known], now: Instant) {
        self.readings = self.readings.saturating_add(1);
        self.listed = listed.into_iter().take(MAX_LISTED).collect();
        let Some(found) = compare(&self.listed, origins) else {
            (self.since, self.difference) = (None, None);
            return;
        };
        let since = *self.since.get_or_insert(now);
        let lasts = now.saturating_duration_since(since) >= LASTING;
        self.difference = lasts.then_some(found);
    }

    /// Handles a failed reading: the last list stays.
    pub fn handle_failure(&mut self) {
        self.failures = self.failures.saturating_add(1);
    }

    /// How many apiservers the cluster listed last; 0 before the first reading.
    pub fn listed(&self) -> usize {
        self.listed.len()
    }

    /// The difference, once it has lasted.
    pub fn difference(&self) -> Option<&Difference> {
        self.difference.as_ref()
    }
}

fn compare(listed: &BTreeSet<SocketAddr>, origins: &[Known]) -> Option<Difference> {
    let serving: Vec<&Known> = origins.iter().filter(|origin| origin.serves).collect();
    let is_at = |origin: &Known, address: &SocketAddr| {
        let ip = address.ip().to_canonical();
        origin.addresses.iter().any(|own| own.to_canonical() == ip)
    };
    let is_known = |address: &SocketAddr| serving.iter().any(|origin| is_at(origin, address));
    let (known, mut strangers): (Vec<SocketAddr>, Vec<SocketAddr>) =
        listed.iter().copied().partition(is_known);
    let is_unlisted = |origin: &&&Known| !listed.iter().any(|address| is_at(origin, address));
    let unlisted = serving.iter().filter(is_unlisted);
    let mut unlisted: Vec<String> = unlisted.map(|origin| origin.name.clone()).collect();
    let agrees = listed.len() == serving.len() && (known.is_empty() || strangers.is_empty());
    // Addresses are comparable only if apiservers are listed under their nodes' addresses.
    if known.is_empty() {
        (strangers, unlisted) = (Vec::new(), Vec::new());
    }
    let (listed, serving) = (listed.len(), serving.len());
    (!agrees).then_some(Difference { listed, serving, strangers, unlisted })
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests need some first instant")]
mod tests {
    use super::*;

    fn listed(numbers: &[u8]) -> BTreeSet<SocketAddr> {
        numbers.iter().map(|number| SocketAddr::from(([10, 77, 0, *number], 6443))).collect()
    }

    fn origin(number: u8) -> Known {
        let addresses = vec![IpAddr::from([10, 77, 0, number])];
        Known { name: format!("cp-{number}"), serves: true, addresses }
    }

    #[test]
    fn a_difference_counts_once_it_lasts_and_ends_at_once() {
        let (mut roster, start) = (Roster::default(), Instant::now());
        let two = [origin(1), origin(2)];
        roster.handle_list(listed(&[1, 2, 3]), &two, start);
        assert_eq!((roster.difference(), roster.listed()), (None, 3));
        roster.handle_failure();
        roster.handle_list(listed(&[1, 2, 3]), &two, start + LASTING);
        let found = roster.difference().expect("it has lasted").to_string();
        assert!(found.contains("3 apiservers, but the mesh has 2 serving origins"), "{found}");
        assert!(found.contains("at 10.77.0.3:6443"), "{found}");
        roster.handle_list(listed(&[1, 2]), &two, start + LASTING);
        assert_eq!(roster.difference(), None);
        roster.handle_list(listed(&[1, 2, 3]), &two, start + LASTING * 2);
        assert_eq!(roster.difference(), None, "it has to last anew");
        assert_eq!((roster.readings, roster.failures), (4, 1));
    }

    #[test]
    fn an_origin_that_is_down_is_not_missed_by_the_list() {
        let down = Known { serves: false, ..origin(3) };
        let all = [origin(1), origin(2), down];
        assert_eq!(compare(&listed(&[1, 2]), &all), None);
        let found = compare(&listed(&[1, 2, 3]), &all).expect("its daemon is gone, it is not");
        assert_eq!(found.strangers, listed(&[3]).into_iter().collect::<Vec<_>>());
    }

    #[test]
    fn one_in_the_place_of_another_is_noticed_where_addresses_mean_something() {
        let found = compare(&listed(&[1, 9]), &[origin(1), origin(2)]).expect("a stranger");
        let expected = "the cluster lists 2 apiservers, but not those of the mesh; no origin \
                        serves at 10.77.0.9:6443; it lists no address of cp-2";
        assert_eq!(found.to_string(), expected);
        // Nodes that are known by other addresses than the listed ones.
        let elsewhere = Known { addresses: Vec::new(), ..origin(1) };
        assert_eq!(compare(&listed(&[8, 9]), &[elsewhere.clone(), elsewhere.clone()]), None);
        let found = compare(&listed(&[9]), &[elsewhere.clone(), elsewhere]).expect("a number");
        let expected = "the cluster lists 1 apiserver, but the mesh has 2 serving origins";
        assert_eq!(found.to_string(), expected);
    }

    #[test]
    fn a_difference_names_a_few_of_many() {
        let origins: Vec<Known> = (1..=20).map(origin).collect();
        let others: Vec<u8> = (20..=40).collect();
        let found = compare(&listed(&others), &origins).expect("they differ").to_string();
        assert!(found.contains("at 10.77.0.21:6443, "), "{found}");
        assert!(found.contains(", 10.77.0.25:6443, 15 more; it lists"), "{found}");
        assert!(found.ends_with("address of cp-1, cp-2, cp-3, cp-4, cp-5, 14 more"), "{found}");
    }

    #[test]
    fn a_list_is_bounded() {
        let many = (0..=u8::MAX).collect::<Vec<_>>();
        let mut roster = Roster::default();
        roster.handle_list(listed(&many), &[], Instant::now());
        assert_eq!(roster.listed(), MAX_LISTED);
    }
}
