//! The sites of [`crate::admin::view`], and how far apart they are.

use std::collections::BTreeMap;
use std::time::Duration;

use meshport_config::{Role, ServiceName, SiteName};
use meshport_discovery::{Liveness, OriginState};

use super::rounded;
use crate::admin::view::{MAX_DISTANCES, SiteDistance, SiteRow};
use crate::report::{Reporter, in_ms};

/// All distances from the nodes of one site to the origins of another.
#[derive(Debug, Default)]
struct Told {
    rtts_us: Vec<u32>,
    losses: Vec<u8>,
    unreachable: usize,
    at_s: u64,
}

impl Reporter<'_> {
    pub(super) fn site_rows(&self) -> Vec<SiteRow> {
        let mut sites: BTreeMap<&SiteName, SiteRow> = BTreeMap::new();
        for (node, entry) in self.core.discovery().directory().iter() {
            let name = &entry.credential.site;
            if entry.liveness == Liveness::Left {
                continue;
            }
            let site = sites.entry(name).or_insert_with(|| SiteRow {
                name: name.clone(),
                nodes: 0,
                alive: 0,
                origins: 0,
                ready: 0,
                relays: 0,
                own: *name == self.state.identity.me.site,
            });
            let is_here = *node == self.state.identity.me.node || entry.liveness == Liveness::Alive;
            let mut offers = entry.services().filter(|(it, _)| self.core.route(it).is_some());
            let first = offers.next();
            let ready = |(_, state): (&ServiceName, OriginState)| state == OriginState::Ready;
            site.nodes += 1;
            site.alive += usize::from(is_here);
            site.origins += usize::from(first.is_some());
            site.ready += usize::from(is_here && first.into_iter().chain(offers).any(ready));
            site.relays += usize::from(entry.credential.roles.contains(&Role::Relay));
        }
        sites.into_values().collect()
    }

    /// Distances from the records of live members.
    pub(super) fn distances(&self) -> Vec<SiteDistance> {
        let directory = self.core.discovery().directory();
        let mut told: BTreeMap<(&SiteName, &SiteName), Told> = BTreeMap::new();
        for (node, entry) in directory.iter() {
            if entry.liveness != Liveness::Alive && *node != self.state.identity.me.node {
                continue;
            }
            let distances = entry.node_state().map_or(&[][..], |state| &state.distances);
            for distance in distances {
                let Some(origin) = directory.get(&distance.origin) else { continue };
                let sites = (&entry.credential.site, &origin.credential.site);
                let told = told.entry(sites).or_default();
                told.at_s = told.at_s.max(self.at_s(entry.told));
                told.losses.push(distance.loss_percent);
                match distance.rtt_us {
                    Some(rtt_us) => told.rtts_us.push(rtt_us),
                    None => told.unreachable += 1,
                }
            }
        }
        let row = |((from, to), mut told): ((&SiteName, &SiteName), Told)| SiteDistance {
            from: from.clone(),
            to: to.clone(),
            rtt_ms: median(&mut told.rtts_us)
                .map(|us| rounded(in_ms(Duration::from_micros(us.into())))),
            pairs: told.losses.len(),
            loss_percent: median(&mut told.losses).unwrap_or_default(),
            unreachable: told.unreachable,
            told_at_s: told.at_s,
        };
        told.into_iter().map(row).take(MAX_DISTANCES).collect()
    }
}

fn median<T: Copy + Ord>(values: &mut [T]) -> Option<T> {
    values.sort_unstable();
    values.get(values.len().saturating_sub(1) / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_a_reported_value() {
        assert_eq!(median::<u8>(&mut []), None);
        assert_eq!(median(&mut [9, 1]), Some(1));
        assert_eq!(median(&mut [9, 1, 4]), Some(4));
    }
}
