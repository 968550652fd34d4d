//! Ends sessions early, as the daemon's own ledger decides.

use std::time::Duration;

use super::World;
use super::clients::{Owner, Request};
use super::sessions::Timer;
use crate::brain::{End, Leave, Reset};
use crate::flight::{SessionRef, StreamPath};
use crate::level::Level;

impl World {
    /// Sessions on a line are reset.
    pub(super) fn cut_sessions(&mut self, at: usize, reset: &Reset) {
        let Reset { line, how, served, why } = *reset;
        let origin = line.origin().and_then(|origin| self.scene.account.number(&origin));
        let name = origin.map_or("an upstream outside", |origin| self.scene.account.name(origin));
        self.says(at, format!("resets sessions to {name}: {why}"));
        let (now, clients) = (self.instant(), &mut self.nodes[at].clients);
        clients.ledger.cut(&clients.service, line, how, now);
        if served {
            clients.ledger.cut_served(&clients.service, how, now);
        }
        self.wake_sessions(at);
    }

    /// Some sessions of a line may move to a better origin; their clients reconnect.
    pub(super) fn move_sessions(&mut self, at: usize, leave: Leave) {
        let Leave { line, count, insist } = leave;
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
                Some(Owner::Carried(session)) => self.look_at_carried(at, session),
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

    /// Ends a session that a node relays or serves, or sets the time of the next check.
    pub(super) fn look_at_carried(&mut self, at: usize, session: SessionRef) {
        let now = self.instant();
        let Some(found) = self.nodes[session.node].clients.get(session) else { return };
        let (traffic, way) = (found.traffic(), found.target().and_then(|target| target.way));
        let clients = &mut self.nodes[at].clients;
        let Some(entry) = clients.carried(session) else { return };
        if clients.ledger.poll(entry, traffic, now).is_some() {
            // Its client sees the end after the return trip.
            if let Some(trip) = way.and_then(|way| self.trip_back(at, way, session.node)) {
                self.session_later(session, trip, Timer::Cut);
            }
        } else if let Some(due) = clients.ledger.poll_timeout(entry) {
            self.session_later(session, due.saturating_duration_since(now), Timer::Carried(at));
        }
    }

    /// The time from a node on the path of a session to its client; none if nothing gets through.
    fn trip_back(&self, at: usize, way: StreamPath, client: usize) -> Option<Duration> {
        let network = &self.scene.network;
        let legs = [(at, way.hop), (way.hop, client)].into_iter().filter(|(from, to)| from != to);
        let trips =
            legs.map(|(from, to)| network.connects(from, to).then(|| network.rtt(from, to) / 2));
        trips.sum()
    }

    /// A session has ended so that its client reconnects for its remaining requests.
    fn moved(&mut self, node: usize, slot: u32) {
        let Some(session) = self.end(node, slot) else { return };
        self.scene.measures.sessions.moved += 1;
        let fresh = Request { since: self.scene.now, repeated: false };
        self.come_again(node, &session, fresh);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Scenario;
    use crate::world::Options;

    /// Nobody learns the state of an instance once its node has announced that it leaves.
    #[test]
    fn an_origin_that_leaves_resets_what_its_stalled_instance_serves() {
        let text = "description = \"An origin stalls and leaves\"\nduration-s = 40\nwarmup-s = 10\n\
             load = { sessions-per-s = 1, hold-s = 10, requests-per-s = 1 }\n\
             site = [{ name = \"fra\", nodes = 6, origins = 1 },\n\
             { name = \"ams\", nodes = 3, origins = 1 }]\n\
             path = [{ between = [\"fra\", \"ams\"], rtt-ms = 9 }]\n\
             event = [{ at-s = 28, stall = \"fra-1\", for-s = 10 },\n\
             { at-s = 30, leave = \"fra-1\" }]\n";
        let scenario = Scenario::parse(text).expect("a good scenario");
        let mut world = World::new(scenario, 1, Options::default()).expect("a possible world");
        world.play();
        let mut broken = |s: u64| world.scene.measures.second(Duration::from_secs(s)).broken;
        let [resets, end] = [30, 31].map(&mut broken);
        assert!(resets > 60 && end == 0, "{resets} before its process ends, {end} when it does");
    }
}
