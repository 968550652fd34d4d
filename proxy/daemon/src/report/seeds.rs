//! The members as seeds for other nodes.

use meshport_config::{MAX_ENDPOINTS, Seed};
use meshport_discovery::{Entry, Liveness};

use crate::admin::api::SeedRow;

use super::Reporter;

impl Reporter<'_> {
    /// This node first, then every present member with known endpoints.
    pub(crate) fn seeds(&self) -> Vec<SeedRow> {
        let entries = self.core.discovery().directory().iter().map(|(_, entry)| entry);
        let mut rows: Vec<SeedRow> = entries.filter_map(|entry| self.seed(entry)).collect();
        rows.sort_by(|a, b| (!a.own, &a.site, &a.name).cmp(&(!b.own, &b.site, &b.name)));
        rows
    }

    fn seed(&self, entry: &Entry) -> Option<SeedRow> {
        let own = entry.node() == self.state.identity.me.node;
        if !own && matches!(entry.liveness, Liveness::Down | Liveness::Left) {
            return None;
        }
        let endpoints = entry.endpoints().iter().filter_map(|at| (*at).try_into().ok());
        let seed = Seed::new(entry.node(), endpoints.take(MAX_ENDPOINTS).collect()).ok()?;
        Some(SeedRow::new(seed, &entry.credential, own))
    }
}
