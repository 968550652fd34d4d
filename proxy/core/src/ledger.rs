//! Open sessions, the nodes they count for, and which of them must end.
//!
//! Each entry is a session, or an attempt to open one. The caller opens and closes entries, reports
//! the bytes they have carried, and asks what to do with each: [`Ledger::poll`] and
//! [`Ledger::poll_timeout`]. After a call that may affect other entries, [`Ledger::poll_changed`]
//! lists those to poll again. Queries on the hot path read counters, so that a node can serve
//! thousands of sessions; others sum up. No name outlives its last session, since peers choose the
//! service names of relayed streams.
//!
//! Bounded by the callers: a service's `max-sessions` for clients, [`MAX_SERVED`] for served ones,
//! and the daemon's own limit for relayed ones.

use std::collections::btree_map::Entry as Place;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

use meshport_config::{NodeId, ServiceName};
use serde::{Deserialize, Serialize};

use super::counter_hash;
use super::route::Line;

pub use life::{Cut, End, MAX_UNREST, QUIET, Traffic};
pub use shares::{Crowded, Crowding, Holder};

use life::Life;
use shares::Shares;

mod life;
mod shares;

/// Sessions of other nodes that this node serves at once, over all services: the ports of one local
/// address, from which instances are dialled. The mesh's windows, per stream and per peer, bound
/// the memory of readers that stopped. `shares` divides the sessions among nodes.
pub const MAX_SERVED: u64 = 32_768;

/// One node may have this fraction of all relayed sessions: a quarter.
pub const RELAYED_SHARE: u64 = 4;

/// Descriptors of a session with a client of this machine: the client's, and the local instance's.
pub const CLIENT_DESCRIPTORS: u64 = 2;

/// The side of the mesh that a session is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Side {
    /// A client of this node, going there.
    Client,
    /// The given node's client, served by the local instance.
    Served,
    /// A client of some node, relayed to the given origin.
    Relayed,
    /// The same session, counted for the node whose client it is.
    RelayedFor,
}

impl Side {
    const COUNT: usize = 4;

    /// Whether its sessions leave this node on the line they are counted under.
    fn goes_out(self) -> bool {
        matches!(self, Self::Client | Self::Relayed)
    }
}

/// Identifies an open entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SessionId(u64);

/// An entry, for the ledger of the process that succeeds this one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its name in the ledger that it is from.
    pub id: SessionId,
    /// The service.
    pub service: ServiceName,
    /// The side.
    pub side: Side,
    /// The line under which it is counted now.
    pub line: Line,
    /// The peer and the node that a served session counts for.
    pub holder: Option<(NodeId, NodeId)>,
}

type Key = (ServiceName, Side, Line);

/// The sessions of one service on one side with one node, in the order in which they move.
#[derive(Debug, Default)]
struct Group {
    sessions: BTreeSet<SessionId>,
    /// Established sessions without permission to move, with their turn; the first goes first.
    waiting: BTreeMap<u64, SessionId>,
    /// Permissions to move that no session has used yet.
    spare: u64,
    /// Whether those that are never quiet must end too.
    insist: bool,
}

#[derive(Debug)]
struct Session {
    key: Key,
    /// The peer and the node that a served session counts for.
    holder: Option<(NodeId, NodeId)>,
    /// Its turn to move, if it waits for one.
    turn: Option<u64>,
    life: Life,
}

impl Session {
    /// Waits for its turn to move.
    fn wait(&mut self, id: SessionId, group: &mut Group, turns: &mut u64) {
        *turns += 1;
        self.turn = Some(*turns);
        group.waiting.insert(*turns, id);
    }
}

/// All sessions of a node. See the module's doc.
#[derive(Debug, Default)]
pub struct Ledger {
    sessions: BTreeMap<SessionId, Session>,
    last: u64,
    turns: u64,
    by_line: BTreeMap<Key, Group>,
    /// Over all services, by the node of the client: needed for each stream.
    relayed_for: BTreeMap<Line, u64>,
    all: [u64; Side::COUNT],
    /// The most open sessions since [`Ledger::take_peak`].
    peak: u64,
    shares: Shares,
    /// Descriptors for clients of this machine: those with a slot, and those that wait for one.
    held: u64,
    /// Nodes whose key changed while sessions are open: the sessions stay under the line they began
    /// on, and are reported as the successor's.
    renamed: BTreeMap<NodeId, NodeId>,
    /// Sessions to poll again.
    changed: VecDeque<SessionId>,
    /// Whether [`Ledger::busy`] may have changed since that was last asked.
    busy_changed: bool,
}

impl Ledger {
    /// Opens an entry. Sessions of clients and those served for them are spread over a window when
    /// reset; relayed ones are reset at once, since the nodes of their clients spread them.
    pub fn open(&mut self, service: &ServiceName, side: Side, line: Line) -> SessionId {
        self.last += 1;
        let is_relayed = matches!(side, Side::Relayed | Side::RelayedFor);
        let place = if is_relayed { 0.0 } else { counter_hash::fraction(self.last) };
        let (id, key) = (SessionId(self.last), (service.clone(), side, line));
        self.all[side as usize] += 1;
        self.peak = self.peak.max(self.count());
        if side == Side::RelayedFor {
            *self.relayed_for.entry(line).or_insert(0) += 1;
        }
        let group = self.by_line.entry(key.clone()).or_default();
        group.sessions.insert(id);
        self.busy_changed |= group.sessions.len() == 1 && side.goes_out();
        self.sessions.insert(id, Session { key, holder: None, turn: None, life: Life::new(place) });
        id
    }

    /// Opens an entry for a session that `peer` has opened, for a client of `node`, in a process
    /// that may open this many descriptors.
    ///
    /// # Errors
    /// The limit on sessions is reached.
    pub fn serve(
        &mut self,
        service: &ServiceName,
        peer: NodeId,
        node: NodeId,
        descriptors: u64,
    ) -> Result<SessionId, Crowded> {
        let free = self.free(descriptors);
        self.shares.take(peer, node, free)?;
        let id = self.open(service, Side::Served, Line::Direct(peer));
        if let Some(session) = self.sessions.get_mut(&id) {
            session.holder = Some((peer, node));
        }
        Ok(id)
    }

    /// Reserves `count` descriptors for a client of this machine, in a process that may open this
    /// many; whether there are enough.
    pub fn hold(&mut self, count: u64, descriptors: u64) -> bool {
        let is_room = self.used().saturating_add(count) <= descriptors;
        self.held += if is_room { count } else { 0 };
        is_room
    }

    /// Gives back reserved descriptors.
    pub fn let_go(&mut self, count: u64) {
        self.held = self.held.saturating_sub(count);
    }

    /// Opens the two entries of a session relayed to `target` for `peer`, one under each; none if
    /// `most` are relayed already, or a quarter of these for that peer.
    pub fn relay(
        &mut self,
        service: &ServiceName,
        peer: NodeId,
        target: NodeId,
        most: u64,
    ) -> Option<[SessionId; 2]> {
        let from = Line::Direct(peer);
        let is_full = self.count_all(Side::Relayed) >= most
            || self.count_relayed_for(from) >= most.div_ceil(RELAYED_SHARE);
        let sides = [(Side::Relayed, Line::Direct(target)), (Side::RelayedFor, from)];
        (!is_full).then(|| sides.map(|(side, line)| self.open(service, side, line)))
    }

    /// Opens an entry for a session that another process of this node carries. It never has to
    /// move. A served session is admitted even beyond the limit.
    pub fn adopt(&mut self, entry: &Entry) -> SessionId {
        let id = self.open(&entry.service, entry.side, entry.line);
        if let Some((peer, node)) = entry.holder
            && self.shares.take(peer, node, u64::MAX).is_ok()
            && let Some(session) = self.sessions.get_mut(&id)
        {
            session.holder = Some((peer, node));
        }
        id
    }

    /// All open entries.
    pub fn entries(&self) -> impl Iterator<Item = Entry> {
        self.sessions.iter().map(|(id, Session { key: (service, side, line), holder, .. })| Entry {
            id: *id,
            service: service.clone(),
            side: *side,
            line: self.now(*line),
            holder: *holder,
        })
    }

    /// Ends one session at once.
    pub fn end_one(&mut self, id: SessionId, now: Instant) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.life.handle_cut(Cut::ForGood, now);
            self.changed.push_back(id);
        }
    }

    /// Closes an entry.
    pub fn close(&mut self, id: SessionId) {
        let Some(Session { key, holder, turn, .. }) = self.sessions.remove(&id) else { return };
        if let Some((peer, node)) = holder {
            self.shares.give_back(peer, node);
        }
        let (_, side, line) = &key;
        self.all[*side as usize] -= 1;
        if *side == Side::RelayedFor {
            take_one(&mut self.relayed_for, *line);
        }
        let Some(group) = self.by_line.get_mut(&key) else { return };
        group.sessions.remove(&id);
        turn.and_then(|turn| group.waiting.remove(&turn));
        if group.sessions.is_empty() {
            self.by_line.remove(&key);
            self.busy_changed |= side.goes_out();
        }
    }

    /// Handles that a session's origin has answered and its client is now carried. An earlier order
    /// to end does not apply if the answer `shows` that the instance is alive, unless its line has
    /// ended.
    pub fn handle_carried(&mut self, id: SessionId, shows: bool, now: Instant) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        if shows {
            session.life.handle_answer();
        }
        let Some(group) = self.by_line.get_mut(&session.key) else { return };
        if group.spare > 0 {
            group.spare -= 1;
            session.life.grant(group.insist, now);
        } else {
            session.wait(id, group, &mut self.turns);
        }
    }

    /// The decision about a session now.
    pub fn poll(&mut self, id: SessionId, traffic: Traffic, now: Instant) -> Option<End> {
        let session = self.sessions.get_mut(&id)?;
        let had_leave = session.life.has_leave();
        let end = session.life.poll(traffic, now);
        if end.is_none()
            && had_leave
            && !session.life.has_leave()
            && let Some(group) = self.by_line.get_mut(&session.key)
        {
            session.wait(id, group, &mut self.turns);
        }
        end
    }

    /// Time at which [`Ledger::poll`] is due without any input.
    pub fn poll_timeout(&self, id: SessionId) -> Option<Instant> {
        self.sessions.get(&id)?.life.poll_timeout()
    }

    /// A session to poll again.
    pub fn poll_changed(&mut self) -> Option<SessionId> {
        self.changed.pop_front()
    }

    /// Resets this node's sessions on a line. Returns their number.
    pub fn cut(&mut self, service: &ServiceName, line: Line, how: Cut, now: Instant) -> u64 {
        let sides = [Side::Client, Side::Relayed];
        let keys = sides.into_iter().flat_map(|side| self.keys(service, side, line));
        let keys: Vec<Key> = keys.collect();
        self.cut_all(&keys, how, now)
    }

    /// Resets the sessions of other nodes' clients with the local instance. Returns their number.
    pub fn cut_served(&mut self, service: &ServiceName, how: Cut, now: Instant) -> u64 {
        let keys = self.by_line.keys();
        let served = keys.filter(|(of, side, _)| of == service && *side == Side::Served);
        let served: Vec<Key> = served.cloned().collect();
        self.cut_all(&served, how, now)
    }

    /// Ends the sessions from here, open or being opened, that lead to or through a node for which
    /// `is_over` holds. Returns their number.
    pub fn end(&mut self, is_over: impl Fn(&NodeId) -> bool, now: Instant) -> u64 {
        let leads_there = |line: &Line| {
            let line = self.now(*line);
            [line.origin(), line.first_hop()].iter().flatten().any(&is_over)
        };
        let keys = self.by_line.keys();
        let ended = keys.filter(|(_, side, line)| side.goes_out() && leads_there(line));
        let ended: Vec<Key> = ended.cloned().collect();
        self.cut_all(&ended, Cut::ForGood, now)
    }

    /// Ends the sessions of a service, on every side, that come from a node or go to it from here:
    /// no path leads there, so the other end cannot report that it has given them up. Returns their
    /// number.
    pub fn sever(&mut self, service: &ServiceName, node: &NodeId, now: Instant) -> u64 {
        let keys = self.by_line.keys();
        let severed = keys.filter(|(of, _, line)| {
            of == service && self.now(*line).first_hop().as_ref() == Some(node)
        });
        let severed: Vec<Key> = severed.cloned().collect();
        self.cut_all(&severed, Cut::ForGood, now)
    }

    fn cut_all(&mut self, keys: &[Key], how: Cut, now: Instant) -> u64 {
        let mut count = 0;
        for group in keys.iter().filter_map(|key| self.by_line.get(key)) {
            count += group.sessions.len() as u64;
            for id in &group.sessions {
                if let Some(session) = self.sessions.get_mut(id) {
                    session.life.handle_cut(how, now);
                    self.changed.push_back(*id);
                }
            }
        }
        count
    }

    /// Lets `count` sessions of this node's clients on a line end, the longest open ones first,
    /// each as soon as it is idle, or with `insist` after a while in any case. Revokes unused
    /// permissions of an earlier call; with a `count` of 0 also those of sessions that are still
    /// open.
    pub fn release(
        &mut self,
        service: &ServiceName,
        line: Line,
        count: u64,
        insist: bool,
        now: Instant,
    ) {
        let mut left = count;
        for key in self.keys(service, Side::Client, line).collect::<Vec<_>>() {
            let Some(group) = self.by_line.get_mut(&key) else { continue };
            group.insist = insist;
            group.spare = left.min(group.sessions.len() as u64);
            left -= group.spare;
            let mut recalled = Vec::new();
            for id in &group.sessions {
                let Some(session) = self.sessions.get_mut(id) else { continue };
                session.life.insist(insist);
                if count == 0 && session.life.has_leave() {
                    session.life.recall();
                    recalled.push(*id);
                }
            }
            for id in recalled {
                if let Some(session) = self.sessions.get_mut(&id) {
                    session.wait(id, group, &mut self.turns);
                }
            }
            while group.spare > 0 {
                let Some((_, id)) = group.waiting.pop_first() else { break };
                group.spare -= 1;
                if let Some(session) = self.sessions.get_mut(&id) {
                    session.turn = None;
                    session.life.grant(insist, now);
                    self.changed.push_back(id);
                }
            }
        }
    }

    /// Moves a node's sessions to its successor.
    pub fn rename(&mut self, former: NodeId, node: NodeId) {
        // Drops names without open sessions; a chain is kept as a whole.
        let is_used = |name: &NodeId| {
            self.by_line.keys().any(|(_, _, line)| match line {
                Line::Direct(node) => node == name,
                Line::Relayed { origin, relay } => origin == name || relay == name,
                Line::Outside(_) => false,
            })
        };
        if !self.renamed.keys().any(is_used) {
            self.renamed.clear();
        }
        self.renamed.insert(former, node);
        self.busy_changed = true;
    }

    /// Records a stream refused for lack of a slot; returns whether to log it.
    pub fn turn_away(&mut self, now: Instant) -> bool {
        self.shares.turn_away(now)
    }

    /// The finding, if a stream was recently refused for lack of a slot.
    pub fn crowding(&self, now: Instant) -> Option<Crowding> {
        self.shares.crowding(now)
    }

    /// Open sessions of one service on one side and line.
    pub fn count_line(&self, service: &ServiceName, side: Side, line: Line) -> u64 {
        let groups = self.keys(service, side, line).filter_map(|key| self.by_line.get(&key));
        groups.map(|group| group.sessions.len() as u64).sum()
    }

    /// The lines of one service that have open sessions on one side, with how many.
    pub fn lines(&self, service: &ServiceName, side: Side) -> Vec<(Line, u64)> {
        let groups = self.by_line.iter().filter(|((of, at, _), _)| of == service && *at == side);
        let mut lines: BTreeMap<Line, u64> = BTreeMap::new();
        for ((_, _, line), group) in groups {
            *lines.entry(self.now(*line)).or_default() += group.sessions.len() as u64;
        }
        lines.into_iter().collect()
    }

    /// Sessions of all services that are relayed for the node at the end of a line.
    fn count_relayed_for(&self, line: Line) -> u64 {
        if self.renamed.is_empty() {
            return self.relayed_for.get(&line).copied().unwrap_or(0);
        }
        self.relayed_for.iter().filter(|(of, _)| self.now(**of) == line).map(|(_, it)| it).sum()
    }

    /// Open sessions of one service on one side.
    pub fn count_side(&self, service: &ServiceName, side: Side) -> u64 {
        let groups = self.by_line.iter().filter(|((of, at, _), _)| of == service && *at == side);
        groups.map(|(_, group)| group.sessions.len() as u64).sum()
    }

    /// Open sessions on one side over all services.
    pub fn count_all(&self, side: Side) -> u64 {
        self.all[side as usize]
    }

    /// The number of open sessions.
    pub fn count(&self) -> u64 {
        [Side::Client, Side::Served, Side::Relayed].map(|side| self.count_all(side)).iter().sum()
    }

    /// The most sessions that were open at once since the last call.
    pub fn take_peak(&mut self) -> u64 {
        let now = self.count();
        std::mem::replace(&mut self.peak, now)
    }

    /// The lines that carry sessions from here: of this node's clients, or relayed ones.
    pub fn busy(&self) -> BTreeSet<Line> {
        let keys = self.by_line.keys();
        keys.filter(|(_, side, _)| side.goes_out()).map(|(_, _, line)| self.now(*line)).collect()
    }

    /// Whether [`Ledger::busy`] may have changed since the last call.
    pub fn take_busy_changed(&mut self) -> bool {
        std::mem::take(&mut self.busy_changed)
    }

    /// How many more sessions can be served: each takes a port and a descriptor.
    fn free(&self, descriptors: u64) -> u64 {
        let free = MAX_SERVED.saturating_sub(self.count_all(Side::Served));
        free.min(descriptors.saturating_sub(self.used()))
    }

    /// Descriptors in use. Not every session of a client has reserved its own: other processes of
    /// this node carry some.
    fn used(&self) -> u64 {
        let clients = self.count_all(Side::Client).saturating_mul(CLIENT_DESCRIPTORS);
        self.count_all(Side::Served).saturating_add(clients.max(self.held))
    }

    /// The line under its current name.
    fn now(&self, line: Line) -> Line {
        let mut line = line;
        // Bounded, in case names form a cycle.
        for _ in 0..self.renamed.len() {
            let names = [line.origin(), line.first_hop()];
            let old = names.into_iter().flatten().find_map(|it| self.renamed.get_key_value(&it));
            let Some((former, node)) = old else { break };
            line = line.renamed(*former, *node);
        }
        line
    }

    /// The groups of a service on one side of a line, under any name the line had when they began.
    fn keys(
        &self,
        service: &ServiceName,
        side: Side,
        line: Line,
    ) -> impl Iterator<Item = Key> + use<'_> {
        let own = (service.clone(), side, line);
        let (service, has_own) = (service.clone(), self.by_line.contains_key(&own));
        let former = self.by_line.keys().filter(move |(of, at, on)| {
            *on != line && *at == side && *of == service && self.now(*on) == line
        });
        // Needed only while some node has a former key.
        let former = (!self.renamed.is_empty()).then_some(former);
        has_own.then_some(own).into_iter().chain(former.into_iter().flatten().cloned())
    }
}

/// Decrements a count, and removes it at zero.
fn take_one<K: Ord>(counts: &mut BTreeMap<K, u64>, key: K) {
    if let Place::Occupied(mut count) = counts.entry(key) {
        *count.get_mut() -= 1;
        if *count.get() == 0 {
            count.remove();
        }
    }
}

#[cfg(test)]
mod tests;
