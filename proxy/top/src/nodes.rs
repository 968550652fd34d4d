//! The list of nodes: the search, the filter, the order, and the selection.

use std::cmp::Ordering;

use meshport_config::{NodeId, words};
use meshport_daemon::admin::view::{NodeRow, View};

use crate::look::{Tone, of_liveness, of_path};

words! {
    /// The nodes that are shown.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub(crate) enum Filter {
        #[default]
        All => "all",
        Trouble => "needs attention",
        Origins => "origins",
        Relays => "relays",
        Here => "this site",
    }
}

impl Filter {
    pub(crate) fn next(self) -> Self {
        next(&Self::ALL, self)
    }

    fn takes(self, node: &NodeRow, view: &View) -> bool {
        match self {
            Self::All => true,
            Self::Trouble => matches!(tone(node), Tone::Warn | Tone::Bad),
            Self::Origins => !node.offers.is_empty(),
            Self::Relays => node.roles.contains(&meshport_config::Role::Relay),
            Self::Here => node.who.site == view.node.who.site,
        }
    }
}

words! {
    /// The sort key.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub(crate) enum Sort {
        /// The order of the view: this node, origins, absent nodes, the others.
        #[default]
        Weight => "importance",
        Name => "name",
        Site => "site",
        RoundTrip => "round trip",
        Credential => "credential",
    }
}

impl Sort {
    pub(crate) fn next(self) -> Self {
        next(&Self::ALL, self)
    }

    fn compare(self, one: &NodeRow, other: &NodeRow) -> Ordering {
        let names = || one.who.name.cmp(&other.who.name);
        let rtt = |node: &NodeRow| node.path.rtt_ms.unwrap_or(f64::MAX);
        match self {
            Self::Weight => Ordering::Equal,
            Self::Name => names(),
            Self::Site => one.who.site.cmp(&other.who.site).then_with(names),
            Self::RoundTrip => rtt(one).total_cmp(&rtt(other)).then_with(names),
            Self::Credential => {
                one.credential_expires_at.cmp(&other.credential_expires_at).then_with(names)
            }
        }
    }
}

fn next<T: Copy + PartialEq>(order: &[T], now: T) -> T {
    let at = order.iter().position(|it| *it == now).map_or(0, |at| at + 1);
    order[at % order.len()]
}

pub(crate) fn tone(node: &NodeRow) -> Tone {
    match of_liveness(&node.liveness) {
        Tone::Good => {}
        other => return other,
    }
    match of_path(&node.path.kind) {
        bad @ (Tone::Bad | Tone::Warn) => bad,
        _ if node.offers.iter().any(|offer| offer.state != "ready") => Tone::Warn,
        _ => Tone::Good,
    }
}

/// The visible part of the list.
#[derive(Debug, Clone, Default)]
pub(crate) struct Listing {
    pub(crate) search: String,
    /// Whether keys go into the search.
    pub(crate) is_typing: bool,
    pub(crate) filter: Filter,
    pub(crate) sort: Sort,
    pub(crate) is_reversed: bool,
    /// By id, so that it stays when the list changes.
    pub(crate) selected: Option<NodeId>,
    /// Whether everything about the selected one is shown.
    pub(crate) is_open: bool,
}

impl Listing {
    /// The nodes that are shown, in order.
    pub(crate) fn rows<'a>(&self, view: &'a View) -> Vec<&'a NodeRow> {
        let wanted = self.search.to_lowercase();
        let found = |node: &NodeRow| {
            let text = |text: &str| text.to_lowercase().contains(&wanted);
            text(node.who.name.as_ref())
                || text(node.who.site.as_ref())
                || text(&node.liveness)
                || text(&node.path.kind)
                || text(&node.roles.to_string())
                || node.version.as_deref().is_some_and(text)
                || node.who.node.to_string().starts_with(&self.search)
        };
        let mut rows: Vec<&NodeRow> = view
            .nodes
            .iter()
            .filter(|node| self.filter.takes(node, view) && (wanted.is_empty() || found(node)))
            .collect();
        rows.sort_by(|one, other| self.sort.compare(one, other));
        if self.is_reversed {
            rows.reverse();
        }
        rows
    }

    /// The index of the selected node among these; the first if it is not there.
    pub(crate) fn position(&self, rows: &[&NodeRow]) -> usize {
        rows.iter().position(|row| Some(row.who.node) == self.selected).unwrap_or(0)
    }

    /// Moves the selection by this many rows within the list.
    pub(crate) fn step(&mut self, view: &View, by: isize) {
        let rows = self.rows(view);
        let at = self.position(&rows).saturating_add_signed(by).min(rows.len().saturating_sub(1));
        self.selected = rows.get(at).map(|row| row.who.node);
    }
}
