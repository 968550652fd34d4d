//! Ends sessions early, as the daemon's own ledger decides.

use super::World;
use super::clients::{Owner, Request};
use super::sessions::Timer;
use crate::brain::{Cut, End, Line, Traffic};
use crate::flight::SessionRef;
use crate::level::Level;

impl World {
    /// Sessions on a line are reset.
    pub(super) fn cut_sessions(&mut self, at: usize, line: Line, how: Cut, why: &'static str) {
        let origin = line.origin().and_then(|origin| self.scene.account.number(&origin));
        let name = origin.map_or("an upstream outside", |origin| self.scene.account.name(origin));
        self.says(at, format!("resets sessions to {name}: {why}"));
        let (now, clients) = (self.instant(), &mut self.nodes[at].clients);
        clients.ledger.cut(&clients.service, line, how, now);
        self.wake_sessions(at);
    }

    /// Some sessions of a line may move to a better origin; their clients reconnect.
    pub(super) fn move_sessions(&mut self, at: usize, line: Line, count: u64, insist: bool) {
        self.check_moves(at, line, count);
        let (now, clients) = (self.instant(), &mut self.nodes[at].clients);
        clients.ledger.release(&clients.service, line, count, insist, now);
        self.wake_sessions(at);
    }

    /// A node ends its sessions to or through another node.
    pub(super) fn end_sessions(&mut self, at: usize, subject: usize) {
        let subject = self.scene.account.id(subject);
        let now = self.instant();
        self.nodes[at].clients.ledger.end(|node| *node == subject, now);
        self.wake_sessions(at);
    }

    /// Handles the sessions of a node that are due.
    fn wake_sessions(&mut self, at: usize) {
        while let Some(entry) = self.nodes[at].clients.ledger.poll_changed() {
            match self.nodes[at].clients.owner(entry) {
                Some(Owner::Own(slot)) => self.look_at(at, slot),
                Some(Owner::Carried(session)) => {
                    let now = self.instant();
                    let end = self.nodes[at].clients.ledger.poll(entry, Traffic::default(), now);
                    // Its client sees the end after the return trip.
                    if end.is_some() && self.scene.network.connects(at, session.node) {
                        let way = self.scene.network.rtt(at, session.node) / 2;
                        self.session_later(session, way, Timer::Cut);
                    }
                }
                None => {}
            }
        }
    }

    /// Ends a session, or sets the time of the next check.
    pub(super) fn look_at(&mut self, node: usize, slot: u32) {
        let now = self.instant();
        let clients = &mut self.nodes[node].clients;
        let session = clients.sessions.get_mut(slot as usize).and_then(Option::as_mut);
        let Some(session) = session else { return };
        let Some(entry) = session.target().map(|target| target.entry) else { return };
        match clients.ledger.poll(entry, session.traffic(), now) {
            Some(End::Cut) => self.broken(node, slot),
            Some(End::Moved { .. }) => self.moved(node, slot),
            None => {
                let Some(due) = clients.ledger.poll_timeout(entry) else { return };
                let is_set = session.look_at.is_some_and(|at| at > now && at <= due);
                if !is_set {
                    session.look_at = Some(due);
                    let session = SessionRef { node, slot, number: session.number };
                    self.session_later(session, due.saturating_duration_since(now), Timer::Look);
                }
            }
        }
    }

    /// A session has ended so that its client reconnects for its remaining requests.
    fn moved(&mut self, node: usize, slot: u32) {
        let Some(session) = self.end(node, slot) else { return };
        self.scene.measures.sessions.moved += 1;
        let fresh = Request { since: self.scene.now, repeated: false };
        self.come_again(node, &session, fresh);
    }
}
