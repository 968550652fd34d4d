//! Chooses the seeds that an invite names, so that a new node can join while some are down.

use std::collections::BTreeMap;

use meshport_config::{MAX_SEEDS, NodeId, Seed, SiteName};

/// A member that could be named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// Its seed.
    pub seed: Seed,
    /// Its site.
    pub site: SiteName,
    /// Whether it offers a service, so that it should be reachable.
    pub is_origin: bool,
    /// Whether it is a relay, which should be reachable too.
    pub is_relay: bool,
}

/// At most [`MAX_SEEDS`], each node once: those of `first` in order, then `known` members from the
/// sites with the fewest seeds so far, then those of `last` in order. Within a site, origins come
/// before relays before others. A site with an origin counts one less, so that its second origin
/// ranks equal to the first node of another site.
pub fn choose(first: &[Seed], known: &[Known], last: &[Seed]) -> Vec<Seed> {
    let mut chosen: Vec<Seed> = Vec::new();
    add(&mut chosen, first);
    let mut named: BTreeMap<&SiteName, usize> = BTreeMap::new();
    let mut left: Vec<&Known> = Vec::new();
    for member in known {
        match is_in(&chosen, &member.seed.node) {
            true => *named.entry(&member.site).or_default() += 1,
            false => left.push(member),
        }
    }
    while chosen.len() < MAX_SEEDS {
        let rank = |it: &Known| {
            let of_site = named.get(&it.site).copied().unwrap_or(0);
            let weight = of_site.saturating_sub(usize::from(it.is_origin));
            (weight, !it.is_origin, !it.is_relay, of_site, it.seed.node)
        };
        let best = (0..left.len()).min_by_key(|at| rank(left[*at]));
        let Some(member) = best.map(|at| left.swap_remove(at)) else { break };
        *named.entry(&member.site).or_default() += 1;
        if !is_in(&chosen, &member.seed.node) {
            chosen.push(member.seed.clone());
        }
    }
    add(&mut chosen, last);
    chosen
}

/// Appends the nodes that are not chosen yet, up to [`MAX_SEEDS`].
fn add(chosen: &mut Vec<Seed>, seeds: &[Seed]) {
    for seed in seeds {
        if chosen.len() < MAX_SEEDS && !is_in(chosen, &seed.node) {
            chosen.push(seed.clone());
        }
    }
}

fn is_in(seeds: &[Seed], node: &NodeId) -> bool {
    seeds.iter().any(|seed| seed.node == *node)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seed(number: u8) -> Seed {
        let node = NodeId::from_bytes([number; 32]);
        Seed::new(node, vec![format!("192.0.2.{number}:51820").parse().expect("an endpoint")])
            .expect("it has one")
    }

    fn member(number: u8, site: &str, role: &str) -> Known {
        let (is_origin, is_relay) = (role == "origin", role == "relay");
        let site = site.parse().expect("a site");
        Known { seed: seed(number), site, is_origin, is_relay }
    }

    fn numbers(seeds: &[Seed]) -> Vec<u8> {
        seeds.iter().map(|seed| seed.node.as_bytes()[0]).collect()
    }

    #[test]
    fn origins_and_other_sites_come_first() {
        let known = [
            member(1, "fra", "origin"),
            member(2, "fra", "node"),
            member(3, "fra", "origin"),
            member(4, "nyc", "node"),
            member(5, "nyc", "origin"),
            member(6, "sin", "node"),
            member(7, "sin", "relay"),
        ];
        // This node is 1. Each site has one before any has a third.
        assert_eq!(numbers(&choose(&[seed(1)], &known, &[])), [1, 5, 3, 7, 4, 6, 2]);
    }

    #[test]
    fn a_mesh_of_one_site_and_one_of_many_fill_the_line() {
        let one: Vec<Known> = (1..=20).map(|number| member(number, "fra", "node")).collect();
        assert_eq!(choose(&[], &one, &[]).len(), MAX_SEEDS);
        let many: Vec<Known> =
            (1..=20).map(|number| member(number, &format!("s{number}"), "node")).collect();
        assert_eq!(choose(&[seed(20)], &many, &[]).len(), MAX_SEEDS);
        assert_eq!(choose(&[seed(20)], &many, &[])[0], seed(20));
        // Seeds named by a person stay, once each, whatever is known.
        let named: Vec<Seed> = (30..40).chain(30..40).map(seed).collect();
        assert_eq!(numbers(&choose(&named, &one, &[])), (30..38).collect::<Vec<_>>());
        assert!(choose(&[], &[], &[]).is_empty());
    }

    #[test]
    fn stored_seeds_fill_what_members_leave_free() {
        let stored: Vec<Seed> = (40..48).map(seed).collect();
        let known = [member(2, "nyc", "node"), member(41, "fra", "node")];
        let chosen = numbers(&choose(&[seed(1)], &known, &stored));
        assert_eq!(chosen, [1, 2, 41, 40, 42, 43, 44, 45]);
    }
}
