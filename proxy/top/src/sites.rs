//! The sites as seen from this node, and the distances between them.

use std::collections::BTreeMap;

use meshport_config::SiteName;
use meshport_daemon::admin::view::{NodeRow, PathRow, SiteDistance, View};

/// A site, and the best path from here to a node there.
#[derive(Debug)]
pub(crate) struct Site<'a> {
    pub(crate) row: &'a meshport_daemon::admin::view::SiteRow,
    /// Absent if this node measures no path there.
    pub(crate) path: Option<&'a PathRow>,
    /// Whether it has the origin that sessions use.
    pub(crate) chosen: bool,
}

/// This node's site, then those that sessions can go to by distance, then the others by name.
pub(crate) fn sites<'a>(view: &'a View, service: usize) -> Vec<Site<'a>> {
    let mut best: BTreeMap<&SiteName, &NodeRow> = BTreeMap::new();
    for node in &view.nodes {
        let place = best.entry(&node.who.site).or_insert(node);
        if rank(&node.path) < rank(&place.path) {
            *place = node;
        }
    }
    let chosen = view.services.get(service).and_then(|it| it.chosen.as_ref());
    let chosen = chosen.and_then(|it| it.who.site.as_ref());
    let mut sites: Vec<Site<'a>> = view
        .sites
        .iter()
        .map(|row| Site {
            row,
            path: best.get(&row.name).map(|node| &node.path).filter(|path| path.kind != "none"),
            chosen: chosen == Some(&row.name),
        })
        .collect();
    let key = |site: &Site<'_>| {
        (!site.row.own, site.row.origins == 0, site.path.map_or((u8::MAX, u64::MAX), rank))
    };
    sites.sort_by_key(key);
    sites
}

/// Paths that carry traffic first, then the nearer ones.
fn rank(path: &PathRow) -> (u8, u64) {
    let kind = match path.kind.as_str() {
        "own" => 0,
        "none" => 4,
        "dead" => 2,
        "unmeasured" => 3,
        _ => 1,
    };
    let rtt = path.rtt_ms.unwrap_or(f64::MAX).clamp(0.0, 1e9);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped above")]
    let rtt_us = (rtt * 1000.0) as u64;
    (kind, rtt_us)
}

/// The distances as a table.
#[derive(Debug, Default)]
pub(crate) struct Matrix<'a> {
    pub(crate) from: Vec<&'a SiteName>,
    pub(crate) to: Vec<&'a SiteName>,
    cells: BTreeMap<(&'a SiteName, &'a SiteName), &'a SiteDistance>,
}

impl<'a> Matrix<'a> {
    pub(crate) fn of(view: &'a View) -> Self {
        let mut matrix = Self::default();
        for row in &view.distances {
            matrix.cells.insert((&row.from, &row.to), row);
        }
        let names = |pick: fn(&SiteDistance) -> &SiteName| {
            let mut names: Vec<&SiteName> = view.distances.iter().map(pick).collect();
            names.sort();
            names.dedup();
            names
        };
        matrix.from = names(|row| &row.from);
        matrix.to = names(|row| &row.to);
        matrix
    }

    pub(crate) fn cell(&self, from: &SiteName, to: &SiteName) -> Option<&'a SiteDistance> {
        self.cells.get(&(from, to)).copied()
    }
}
