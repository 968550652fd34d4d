//! The nodes of the demo and the distances between them: a pure description.
//!
//! Three sites, each with an apiserver, an origin in front of it and a worker for clients. The
//! first site is the stage: it has the client, and the apiserver that is stopped. Seen from the
//! stage, the latency shows the site at a glance. The longest path is a detour, as routes between
//! networks sometimes are.

use std::time::Duration;

use crate::wan::{Jitter, LinkConfig, Loss};

/// The sites, the stage first.
pub const SITES: [&str; 3] = ["mad", "ams", "bru"];

/// Round trips between the sites in milliseconds.
pub const DISTANCES_MS: [(&str, &str, u64); 3] =
    [("mad", "ams", 35), ("mad", "bru", 120), ("ams", "bru", 2)];

/// The site whose apiserver is stopped.
pub const STAGE: usize = 0;

/// The role of a node in the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// It is in front of the site's apiserver.
    Origin,
    /// The site's clients are on it.
    Worker,
}

/// One daemon of the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodePlan {
    /// The index of its site in [`SITES`].
    pub site: usize,
    /// Its role in the demo.
    pub part: Part,
}

impl NodePlan {
    /// All of them; the first invites the others.
    pub fn all() -> impl Iterator<Item = Self> {
        let sites = 0..SITES.len();
        sites.flat_map(|site| [Part::Origin, Part::Worker].map(|part| Self { site, part }))
    }

    /// Its name in the mesh.
    pub fn name(&self) -> String {
        match self.part {
            Part::Origin => origin_name(self.site),
            Part::Worker => format!("{}-worker", SITES[self.site]),
        }
    }

    /// The name of its site.
    pub fn site_name(&self) -> &'static str {
        SITES[self.site]
    }
}

/// The name of a site's origin, which its apiserver's certificate has as well.
pub fn origin_name(site: usize) -> String {
    format!("{}-cp", SITES[site])
}

/// The round trip between two sites; inside one it is too short to count.
pub fn distance(a: usize, b: usize) -> Duration {
    let (a, b) = (SITES[a], SITES[b]);
    let joins =
        |(from, to, _): &&(&str, &str, u64)| (*from, *to) == (a, b) || (*from, *to) == (b, a);
    let found = DISTANCES_MS.iter().find(joins);
    found.map_or(Duration::ZERO, |(_, _, ms)| Duration::from_millis(*ms))
}

/// The site whose apiserver is the nearest to `site` among those that serve.
pub fn nearest(site: usize, serves: impl Fn(usize) -> bool) -> Option<usize> {
    (0..SITES.len()).filter(|to| serves(*to)).min_by_key(|to| distance(site, *to))
}

/// The path between two sites: its latency, a little jitter, and one datagram in two thousand lost.
pub fn link(round_trip: Duration) -> LinkConfig {
    LinkConfig {
        latency: round_trip / 2,
        jitter: Jitter::Exponential { mean: round_trip / 200 },
        loss: Loss::independent(0.000_5),
        mtu: 1500,
        ..LinkConfig::default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_site_has_an_origin_and_a_worker_and_names_differ() {
        let names: BTreeSet<String> = NodePlan::all().map(|node| node.name()).collect();
        assert_eq!(names.len(), 2 * SITES.len());
        assert_eq!(NodePlan::all().next().map(|node| node.name()), Some(origin_name(0)));
    }

    #[test]
    fn every_pair_has_its_own_distance() {
        let mut seen = BTreeSet::from([Duration::ZERO]);
        for (a, b) in [(0, 1), (0, 2), (1, 2)] {
            assert_eq!(distance(a, b), distance(b, a));
            assert!(seen.insert(distance(a, b)), "{a} {b}");
        }
    }

    #[test]
    fn the_nearest_is_the_local_one_and_then_the_least_far() {
        for site in 0..SITES.len() {
            assert_eq!(nearest(site, |_| true), Some(site));
        }
        assert_eq!(nearest(0, |site| site != 0), Some(1), "35 ms and not 120 ms");
        assert_eq!(nearest(2, |site| site != 2), Some(1), "2 ms and not 120 ms");
        assert_eq!(nearest(0, |_| false), None);
    }
}
