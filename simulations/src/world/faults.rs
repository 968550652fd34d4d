//! Carries out the scenario's plan in the world.

use std::collections::BTreeSet;
use std::time::Duration;

use rand::Rng;

use super::sessions::Timer;
use super::{Event, World};
use crate::flight::StreamPath;
use crate::instance::Instance;
use crate::level::{Follow, Level};
use crate::scenario::{Happening, Lie};
use crate::tunnel::Tunnels;

/// How long a process keeps running after it announced that it leaves, so that a lost announcement
/// is repeated.
const FAREWELL: Duration = Duration::from_secs(1);

impl World {
    pub(super) fn happen(&mut self, index: usize) {
        let plan = self.story.plan.clone();
        let planned = &plan[index];
        self.begins(&plan[index..]);
        self.happens(&planned.happening);
        match planned.happening {
            Happening::Instance(node, becomes) => {
                self.says(node, planned.words.clone());
                if becomes == Instance::Down {
                    self.break_sessions_to(node);
                }
            }
            Happening::Crash(node) => {
                self.says(node, planned.words.clone());
                self.stop(node);
            }
            Happening::Start { node, with_state } => self.start(node, with_state),
            Happening::Leave(node) => {
                self.says(node, planned.words.clone());
                self.nodes[node].process.leaving = true;
                self.with_brain(node, |brain, now, _| brain.leave(now));
                let boot = self.nodes[node].boot;
                self.queue.push(self.scene.now + FAREWELL, Event::Stop { node, boot });
            }
            Happening::Clock(node, by) => self.step_clock(node, by),
            Happening::Starve { node, stall, until } => self.starve(node, stall, until),
            Happening::Roam(node, _) => {
                let endpoints = self.endpoints(node);
                self.with_brain(node, |brain, now, _| brain.set_endpoints(endpoints, now));
            }
            Happening::Configure(node, event) => {
                self.nodes[node].clients.configured = Some(event);
                let settings = self.settings(node).clone();
                self.with_brain(node, |brain, now, _| brain.configure(&settings, now));
            }
            Happening::Revoke { node, through } => self.revoke(node, through),
            Happening::Lie(node, how) => self.set_lie(node, how),
            Happening::Path(..)
            | Happening::Pair(..)
            | Happening::Quality(..)
            | Happening::Rebind(_) => {}
        }
    }

    fn step_clock(&mut self, at: usize, by: i64) {
        self.nodes[at].ahead_s += by;
        match self.wall(at) >= self.nodes[at].credential.expires_at {
            true => self.scene.account.astray(at),
            false => self.scene.account.unsettled(at, self.scene.now),
        }
    }

    fn set_lie(&mut self, node: usize, how: Option<Lie>) {
        self.nodes[node].lie = how;
        if how.is_none() {
            self.fault_ends(node, &["lie"]);
            // Other nodes' view of it, and its view of them, dates from its lies.
            self.scene.account.unsettled(node, self.scene.now);
        }
    }

    /// A process ends and loses its state.
    pub(super) fn stop(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        let Some(brain) = node.brain.take() else { return };
        node.folder.generation = node.folder.generation.max(brain.generation());
        node.tunnels = Tunnels::default();
        node.process.wake = None;
        if std::mem::take(&mut node.process.leaving) && node.folder.saves {
            // A node that shuts down cleanly saves its directory last.
            node.folder.saved = (self.scene.now, brain.snapshot().into());
        }
        let targets = node.clients.targets(at);
        let sessions = node.clients.clear();
        for (session, target) in targets {
            self.carry_no_more(&target, session);
        }
        self.scene.measures.sessions.closed += sessions;
        self.process_ends(at);
    }

    /// A process is stopped briefly, and again after a while.
    pub(super) fn starve(&mut self, at: usize, stall: Duration, until: Duration) {
        if self.scene.now >= until {
            return;
        }
        let begins = self.scene.now + self.rng.random_range(Duration::ZERO..stall * 2);
        if self.scene.now > self.nodes[at].still_until {
            self.nodes[at].still_until = self.scene.now + stall;
            self.stands_still(at, stall, self.scene.now + stall);
        }
        self.queue.push(begins + stall, Event::Starve { node: at, stall, until });
    }

    /// A server stopped: its clients see the end after the return trip, as do those whose sessions
    /// a relay carries.
    pub(super) fn break_sessions_to(&mut self, origin: usize) {
        for node in 0..self.nodes.len() {
            let sessions = self.nodes[node].clients.sessions.iter().flatten();
            let paths = sessions.filter_map(|session| session.target()?.way);
            let hops: BTreeSet<usize> =
                paths.filter(|way| way.origin == origin).map(|way| way.hop).collect();
            for hop in hops {
                let second = hop == origin || self.scene.network.connects(hop, origin);
                if !second || !self.scene.network.connects(node, hop) {
                    continue;
                }
                let onward = self.scene.network.rtt(hop, origin);
                let onward = if hop == origin { Duration::ZERO } else { onward };
                let way = (self.scene.network.rtt(node, hop) + onward) / 2;
                self.later_for_sessions(node, |it| it == StreamPath { origin, hop }, way);
            }
        }
    }

    /// A relay's process shuts down cleanly: the sessions it carries end.
    pub(super) fn break_sessions_through(&mut self, relay: usize) {
        for node in 0..self.nodes.len() {
            if self.scene.network.connects(node, relay) {
                let way = self.scene.network.rtt(node, relay) / 2;
                self.later_for_sessions(node, |it| it.hop == relay && it.is_relayed(), way);
            }
        }
    }

    /// Ends some open sessions of a node after a while.
    pub(super) fn later_for_sessions(
        &mut self,
        node: usize,
        is_it: impl Fn(StreamPath) -> bool,
        wait: Duration,
    ) {
        for (session, target) in self.nodes[node].clients.targets(node) {
            if target.way.is_some_and(&is_it) {
                self.session_later(session, wait, Timer::Cut);
            }
        }
    }
}
