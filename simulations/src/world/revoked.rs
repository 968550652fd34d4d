//! What the authority takes back: who is told first, what a node does that hears of it, and what
//! must hold afterwards.
//!
//! The news itself travels as the daemon's own gossip. Here is what the daemon's edges do about it:
//! the tunnel ends and no handshake is answered, sessions end, the revocation is kept with the
//! state, and a node that is revoked itself ends.

use std::time::Duration;

use meshport_config::{Revocation, Revocations, Revoked};

use super::{World, number};
use crate::brain::{Candidate, Wish};
use crate::flight::Flight;
use crate::measure::Notice;
use crate::rules::{self, MAX_NEWS, SETTLING};
use crate::tunnel::Tunnel;

impl World {
    /// The operator hands a revocation to a node that runs, this one, or the first. One that lies
    /// would keep it to itself.
    pub(super) fn revoke(&mut self, subject: usize, through: Option<usize>) {
        let wall = self.wall(subject);
        let id = self.nodes[subject].credential.node;
        let revocation = Revocation::issue(&self.authority, Revoked::Node(id), wall);
        self.nodes[subject].revoked.get_or_insert(self.now);
        let runs = |at: &usize| {
            let node = &self.nodes[*at];
            let is_honest = node.lie.is_none() && node.revoked.is_none();
            node.brain.is_some() && !node.leaving && is_honest
        };
        let Some(first) = through.filter(runs).or_else(|| (0..self.nodes.len()).find(runs)) else {
            return;
        };
        self.with_brain(first, |brain, now, _| brain.revoke(&revocation, now));
    }

    /// A node has heard of a revocation.
    pub(super) fn revoked(&mut self, at: usize, revocation: &Revocation) {
        // Those who are shut out are told too, as long as they can be.
        while let Some(Wish::Send(to, payload)) =
            self.nodes[at].brain.as_mut().and_then(crate::brain::Brain::transmit)
        {
            if let Some(to) = self.by_id.get(&to).copied() {
                self.gossip(at, to, payload);
            }
        }
        let Revoked::Node(id) = revocation.revoked else { return };
        let Some(subject) = self.by_id.get(&id).copied() else { return };
        self.nodes[at].revocations.add(revocation.clone());
        let now = self.now;
        if subject == at {
            self.trace.node(now, at, "the authority has revoked it".into());
            return self.stop(at);
        }
        let words = format!("shuts {} out: revoked", self.nodes[subject].name);
        self.trace.node(now, at, words);
        for fault in self.measures.followed(now) {
            if fault.notice() == Notice::Revoked {
                fault.notices(at, subject, now);
            }
        }
        self.nodes[at].tunnels.remove(number(subject));
        self.end_sessions(at, subject);
    }

    /// Whether a node processes nothing of another one, not even a handshake.
    pub(super) fn shuts_out(&self, at: usize, other: usize) -> bool {
        let known = &self.nodes[at].revocations;
        !known.is_empty() && known.has_node(&self.nodes[other].credential.node)
    }

    /// What a process that starts finds of revocations in its state folder; none if it must not
    /// start.
    pub(super) fn recalled(&mut self, at: usize, with_state: bool) -> Option<Revocations> {
        let node = &mut self.nodes[at];
        if !with_state {
            node.revocations = Revocations::default();
        }
        if node.revocations.covering(&node.credential).is_some() {
            self.trace.node(self.now, at, "does not start: the authority has revoked it".into());
            return None;
        }
        Some(self.nodes[at].revocations.clone())
    }

    /// Whoever was revoked is known to be by all within reach, and nobody has anything to do with
    /// it any more.
    pub(super) fn check_revoked(&mut self) {
        let late = |at: Duration| self.now.saturating_sub(at) > MAX_NEWS;
        let subjects: Vec<usize> =
            (0..self.nodes.len()).filter(|at| self.nodes[*at].revoked.is_some_and(late)).collect();
        for subject in subjects {
            let wrong = (0..self.nodes.len()).find_map(|at| Some((at, self.keeps(at, subject)?)));
            if let Some((at, what)) = wrong {
                let what = format!("{what} {}", self.nodes[subject].name);
                self.violates(rules::SHUT_OUT, Some(at), what);
            }
        }
    }

    /// What a node still has to do with one that was revoked long ago.
    fn keeps(&self, at: usize, subject: usize) -> Option<&'static str> {
        let node = &self.nodes[at];
        let brain = node.brain.as_ref()?;
        let settled = |since: Duration| self.now.saturating_sub(since) >= SETTLING;
        if at == subject || node.revoked.is_some() || node.lie.is_some() {
            return None;
        }
        if !self.shuts_out(at, subject) {
            let quiet = self.guard.ways_changed.is_zero() || settled(self.guard.ways_changed);
            let told = quiet && settled(self.guard.started[at]);
            let is_late = told && self.can_be_told(at, subject);
            return is_late.then_some("it does not know of the revocation of");
        }
        let id = self.nodes[subject].credential.node;
        let sessions = || node.clients.sessions.iter().flatten();
        let goes_there = |line: &Candidate| {
            let line = line.origin.line;
            line.origin() == Some(id) || line.first_hop() == Some(id)
        };
        if brain.directory().get(&id).is_some() {
            Some("its directory has an entry of")
        } else if brain.route().candidates.iter().any(goes_there) {
            Some("its route has a way through")
        } else if node.tunnels.get(number(subject)).is_some_and(Tunnel::is_up) {
            Some("it has a tunnel to")
        } else if sessions()
            .any(|it| it.target().is_some_and(|to| to.origin == subject || to.hop == subject))
        {
            Some("it has a session to")
        } else {
            None
        }
    }

    /// Whether anybody within reach of a node knows that another one is revoked. What nobody
    /// remembers nobody can be blamed for.
    fn can_be_told(&self, at: usize, subject: usize) -> bool {
        (0..self.nodes.len()).any(|other| {
            let teller = &self.nodes[other];
            let tells = teller.brain.is_some() && teller.lie.is_none();
            // Who is revoked itself is not listened to any more.
            let tells = tells && teller.revoked.is_none();
            tells && self.shuts_out(other, subject) && self.network.connects(at, other)
        })
    }

    /// An instance is about to answer a client: one of a node that was revoked long ago?
    pub(super) fn check_client(&mut self, at: usize, flight: &Flight) {
        let client = flight.trail.client() as usize;
        let Some(since) = self.nodes[client].revoked else { return };
        let changed = self.guard.ways_changed.max(self.guard.started[at]).max(since);
        let is_known = self.shuts_out(at, client) || self.can_be_told(at, client);
        let is_late = self.now.saturating_sub(changed) > SETTLING;
        // Two that are shut out may serve each other.
        let is_judged = self.nodes[at].lie.is_none() && self.nodes[at].revoked.is_none();
        if is_late && is_known && is_judged {
            let what = format!("it serves a client of {}", self.nodes[client].name);
            self.violates(rules::SERVED_NO_MORE, Some(at), what);
        }
    }
}
