//! The paths that a node measures: those to origins and a few relays, and more often those with
//! sessions.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use meshport_config::NodeId;
use meshport_discovery::{Entry, PathUse};

use super::NodeCore;
use super::views::may_relay;
use crate::relay::{self, RelayCandidate};
use crate::route::{Line, PathView};

/// Shortest time between two searches for relays, each of which considers all possible relays.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// The relays whose paths are measured in case they are needed.
#[derive(Debug)]
pub(super) struct RelayWatch {
    watched: BTreeSet<NodeId>,
    /// Earliest time of the next check.
    look_at: Instant,
    /// Something changed since the last check.
    wanted: bool,
}

impl RelayWatch {
    pub(super) fn new(now: Instant) -> Self {
        Self { watched: BTreeSet::new(), look_at: now, wanted: true }
    }

    /// A node that may relay has changed.
    pub(super) fn want(&mut self) {
        self.wanted = true;
    }

    /// Time at which a check is due.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.wanted.then_some(self.look_at)
    }
}

impl NodeCore {
    /// Updates the measured paths to those in use and those that may be used.
    pub(super) fn watch_paths(&mut self, now: Instant) {
        self.look_for_relays(now);
        let mut wanted: BTreeMap<NodeId, PathUse> = BTreeMap::new();
        let mut want = |node: NodeId, usage: PathUse| {
            let wanted = wanted.entry(node).or_insert(usage);
            *wanted = usage.max(*wanted);
        };
        for view in self.services.values().flat_map(|service| &service.views) {
            view.line.first_hop().into_iter().for_each(|node| want(node, PathUse::Idle));
        }
        self.relay_watch.watched.iter().for_each(|node| want(*node, PathUse::Idle));
        let is_known = |node: &NodeId| self.discovery.directory().get(node).is_some();
        for line in &self.busy {
            // The direct path of a relayed session too, since it may become the better one again.
            let both = [line.first_hop(), line.origin()].into_iter().flatten();
            both.filter(is_known).for_each(|node| want(node, PathUse::Active));
        }
        wanted.remove(&self.me);
        if wanted == self.watched {
            return;
        }
        for (node, usage) in &wanted {
            if self.watched.get(node) != Some(usage) {
                self.discovery.set_path_interest(*node, Some(*usage), now);
            }
        }
        for node in self.watched.keys().filter(|node| !wanted.contains_key(node)) {
            self.discovery.set_path_interest(*node, None, now);
        }
        self.watched = wanted;
    }

    fn look_for_relays(&mut self, now: Instant) {
        self.relay_watch.wanted = true;
        if self.relay_watch.look_at > now {
            return;
        }
        let views = self.services.values().flat_map(|service| &service.views);
        let dead = views.filter(|view| view.path == PathView::Dead);
        let lost: BTreeSet<NodeId> = dead.filter_map(|view| direct(&view.line)).collect();
        let entries = self.discovery.directory().relays();
        let prospects = entries.filter(|entry| entry.node() != self.me && may_relay(entry));
        // The paths to origins are measured anyway.
        let prospects = prospects.filter(|entry| entry.services().next().is_none());
        let prospects = prospects.map(|entry| self.prospect(entry, &lost)).collect();
        let watched = relay::watched(prospects);
        self.relay_watch = RelayWatch { watched, look_at: now + LOOK_INTERVAL, wanted: false };
    }

    fn prospect(&self, entry: &Entry, lost: &BTreeSet<NodeId>) -> RelayCandidate {
        let node = entry.node();
        let distances = entry.node_state().map_or(&[][..], |state| &state.distances);
        let draw = node.as_bytes().iter().zip(self.me.as_bytes()).take(8);
        RelayCandidate {
            node,
            near: entry.credential.site == self.site,
            path: self.path_to(&node),
            rescues: distances.iter().any(|it| it.rtt_us.is_some() && lost.contains(&it.origin)),
            closest_us: distances.iter().filter_map(|it| it.rtt_us).min(),
            draw: draw.fold(0, |sum, (one, other)| sum << 8 | u64::from(one ^ other)),
        }
    }
}

fn direct(line: &Line) -> Option<NodeId> {
    match *line {
        Line::Direct(node) => Some(node),
        Line::Relayed { .. } | Line::Outside(_) => None,
    }
}
