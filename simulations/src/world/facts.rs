//! The facts that this level shows of its nodes.

use std::time::Duration;

use meshport_config::Policy;
use meshport_core::route::Route;
use meshport_discovery::Liveness;

use super::{World, number};
use crate::brain::Brain;
use crate::level::{Held, Level, Scene, Ties};
use crate::measure::Notice;
use crate::report::keys;
use crate::tunnel::Tunnel;

impl Level for World {
    const NAME: keys::Level = keys::Level::Wide;
    const SHOWN_BY_ROUTE: &[Notice] = &[Notice::Instance];

    fn scene(&self) -> &Scene {
        &self.scene
    }

    fn scene_mut(&mut self) -> &mut Scene {
        &mut self.scene
    }

    fn runs(&self, at: usize) -> bool {
        self.nodes[at].brain.is_some()
    }

    fn leaves(&self, at: usize) -> bool {
        self.nodes[at].process.leaving
    }

    fn lies(&self, at: usize) -> bool {
        self.nodes[at].lie.is_some()
    }

    fn route(&self, at: usize) -> Option<&Route> {
        self.nodes[at].brain.as_ref().map(|brain| &**brain.route())
    }

    fn lasting(&self, at: usize) -> Option<Duration> {
        let is_nearest = self.service_settings(at).policy == Policy::Nearest;
        let brain = self.nodes[at].brain.as_ref().filter(|_| is_nearest);
        let since = brain.and_then(Brain::preferred_since)?;
        Some(self.scene.now.saturating_sub(since.saturating_duration_since(self.epoch)))
    }

    fn shuts_out(&self, at: usize, subject: usize) -> bool {
        Self::shuts_out(self, at, subject)
    }

    fn ties(&self, at: usize, subject: usize) -> Ties {
        let (node, id) = (&self.nodes[at], self.scene.account.id(subject));
        let sessions = node.clients.sessions.iter().flatten();
        let mut paths = sessions.filter_map(|session| session.target()?.way);
        Ties {
            entry: node.brain.as_ref().is_some_and(|it| it.directory().get(&id).is_some()),
            tunnel: node.tunnels.get(number(subject)).is_some_and(Tunnel::is_up),
            session: paths.any(|way| way.origin == subject || way.hop == subject),
        }
    }

    fn holds(&self, at: usize, subject: usize) -> Held {
        let id = self.scene.account.id(subject);
        let entry = |at: usize| self.nodes[at].brain.as_ref()?.directory().get(&id);
        let Some(held) = entry(at) else { return Held::Nothing };
        let state = held.node_state();
        let is_newest = || {
            let (own, held) = entry(subject)?.node_state().zip(state)?;
            Some(own.generation == held.generation && own.services == held.services)
        };
        match held.liveness {
            Liveness::Alive if is_newest().unwrap_or(false) => Held::Newest,
            Liveness::Alive => Held::Older,
            _ => Held::Absent,
        }
    }

    fn has_to_notice(&self, at: usize, victim: usize, notice: Notice) -> bool {
        let is_member = || self.holds(at, victim).is_there();
        match notice {
            Notice::Instance => self.believes_in(at, victim),
            Notice::Gone | Notice::Revoked => is_member(),
            Notice::Came => !is_member(),
            Notice::Path | Notice::Nothing => false,
        }
    }
}
