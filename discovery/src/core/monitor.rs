//! The paths that a node measures, the neighbours it watches, and the peers that depend on it.
//!
//! Paths lead to all origins and to peers that the caller requests. Neighbours are watched closely
//! for membership: random probes find a crash eventually, these find it soon. Bounded by
//! [`MAX_PATHS`].

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use meshport_config::NodeId;

use crate::config::DiscoveryConfig;
use crate::contacts::Contacts;
use crate::dependents::Dependents;
use crate::directory::Directory;
use crate::paths::{MAX_PATHS, PathState, PathUse, Paths};
use crate::state::Distance;

/// Paths measured because long packets are lost on them: a node has few sessions with members
/// that are not measured anyway.
const MAX_SUSPECTS: usize = 64;
/// How long such a path is measured after the last word of a loss.
const SUSPICION: Duration = Duration::from_secs(60);

/// Measured paths, watched neighbours, and why.
#[derive(Debug)]
pub(super) struct Monitor {
    pub(super) paths: Paths,
    /// The paths to the few members that this node watches.
    pub(super) neighbours: Paths,
    /// The peers that measure their path to this node because of their sessions.
    pub(super) dependents: Dependents,
    /// Members came or went, so the neighbours may have changed.
    pub(super) members_changed: bool,
    /// Paths requested by the caller; the others are those to all origins.
    interests: BTreeMap<NodeId, PathUse>,
    /// Paths nobody requested on which long packets were lost, and how long they are measured.
    suspects: BTreeMap<NodeId, Instant>,
}

impl Monitor {
    pub(super) fn new(config: &DiscoveryConfig, seed: [u8; 32]) -> Self {
        let watch = DiscoveryConfig { path_probe_active: config.probe_interval, ..config.clone() };
        Self {
            paths: Paths::new(config, seed, b'p').with_width(),
            neighbours: Paths::new(&watch, seed, b'w'),
            dependents: Dependents::new(config.path_probe_active),
            members_changed: false,
            interests: BTreeMap::new(),
            suspects: BTreeMap::new(),
        }
    }

    pub(super) fn handle_session(&mut self, node: NodeId, up: bool, now: Instant) {
        self.paths.handle_session(node, up, now);
        self.neighbours.handle_session(node, up, now);
    }

    pub(super) fn handle_echo(&mut self, node: NodeId, nonce: [u8; 8], now: Instant) {
        self.paths.handle_echo(node, nonce, now);
        self.neighbours.handle_echo(node, nonce, now);
        self.dependents.handle_echo(node);
    }

    pub(super) fn handle_probe(&mut self, node: NodeId, now: Instant) {
        self.neighbours.handle_probe(node, now);
        self.dependents.handle_probe(node, now);
    }

    /// The process was suspended for this long.
    pub(super) fn stalled(&mut self, by: Duration) {
        self.paths.stalled(by);
        self.neighbours.stalled(by);
        self.dependents.stalled(by);
    }

    /// Notes how often the caller wants a path measured; false if there are too many.
    pub(super) fn set_interest(&mut self, node: NodeId, usage: Option<PathUse>) -> bool {
        let Some(usage) = usage else {
            self.interests.remove(&node);
            self.suspects.remove(&node);
            return true;
        };
        let fits = self.interests.len() < MAX_PATHS || self.interests.contains_key(&node);
        if fits {
            self.interests.insert(node, usage);
        }
        fits
    }

    /// How often a path is to be measured, whether or not it leads to an origin.
    pub(super) fn interest(&self, node: &NodeId) -> Option<PathUse> {
        let suspect = self.suspects.get(node).map(|_| PathUse::Active);
        self.interests.get(node).copied().or(suspect)
    }

    /// Long packets of sessions are lost on the path to a peer. One that is not measured is, for a
    /// while: it may be narrow. True if that begins.
    pub(super) fn suspect(&mut self, node: NodeId, now: Instant) -> bool {
        let known = self.suspects.contains_key(&node);
        let fits = self.suspects.len() < MAX_SUSPECTS && self.paths.get(&node).is_none();
        if known || fits {
            self.suspects.insert(node, now + SUSPICION);
        }
        fits && !known
    }

    /// The suspected paths of which nothing was heard for long enough.
    pub(super) fn acquit(&mut self, now: Instant) -> Vec<NodeId> {
        self.suspects.extract_if(.., |_, until| *until <= now).map(|(node, _)| node).collect()
    }

    /// The smoothed round-trip time to a peer, if it is measured.
    pub(super) fn rtt(&self, node: &NodeId) -> Option<Duration> {
        self.paths.get(node).and_then(|path| path.rtt)
    }

    /// Watches these neighbours only.
    pub(super) fn watch(&mut self, wanted: &[NodeId], contacts: &Contacts, now: Instant) {
        let watched = self.neighbours.iter().map(|(node, _)| *node);
        let dropped: Vec<NodeId> = watched.filter(|node| !wanted.contains(node)).collect();
        for node in dropped {
            self.neighbours.set(node, None, false, now);
        }
        for node in wanted {
            self.neighbours.set(*node, Some(PathUse::Active), contacts.session(node), now);
        }
    }

    pub(super) fn is_silent(&self, neighbour: &NodeId) -> bool {
        self.neighbours.get(neighbour).is_some_and(|path| path.state == PathState::Dead)
    }

    /// Whether a path to a node has died less than `lately` ago.
    pub(super) fn has_died(&self, node: &NodeId, lately: Duration, now: Instant) -> bool {
        [&self.paths, &self.neighbours].into_iter().any(|paths| {
            paths.get(node).is_some_and(|path| {
                let age = now.saturating_duration_since(path.since);
                path.state == PathState::Dead && age < lately
            })
        })
    }

    /// The measured distances to all origins that are members.
    pub(super) fn distances(&self, directory: &Directory) -> Vec<Distance> {
        let mut distances = Vec::new();
        for (node, path) in self.paths.iter() {
            let origin = directory.get(node).filter(|entry| entry.is_alive());
            if origin.is_none_or(|entry| entry.services().next().is_none()) {
                continue;
            }
            let micros = |rtt: Duration| u32::try_from(rtt.as_micros()).unwrap_or(u32::MAX);
            let rtt_us = match path.state {
                PathState::Up if path.rtt.is_some() => path.rtt.map(micros),
                // Not measured yet.
                PathState::Up | PathState::Unknown => continue,
                PathState::Dead => None,
            };
            distances.push(Distance { origin: *node, rtt_us, loss_percent: path.loss_percent });
        }
        distances
    }

    /// Time at which a probe is due or an answer is overdue.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let paths = [self.paths.poll_timeout(), self.neighbours.poll_timeout()];
        paths.into_iter().chain([self.dependents.poll_timeout()]).flatten().min()
    }
}
