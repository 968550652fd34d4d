//! Keeps membership and directory in step: SWIM's verdicts become liveness, and signed records
//! decide which claims are accepted.

use std::time::{Duration, Instant};

use meshport_config::NodeId;

use super::{Discovery, Event};
use crate::Count;
use crate::directory::{Entry, Liveness, Record};
use crate::local::Urgency;
use crate::news::Offer;
use crate::state::{Life, NodeState};
use crate::swim::{Incoming, Output, View};
use crate::wire::{Claim, Item, Message, Standing};

/// Up to this many members, even unimportant news is passed on as rumours.
const SMALL_MESH: usize = 64;
/// A member heard this recently is only suspected, not down, regardless of reports. This does not
/// delay real deaths, since the suspicion that precedes them takes longer.
const HEARD_JUST_NOW: Duration = Duration::from_secs(2);
/// A member that has been down here for this long, and that another member considers alive, is
/// checked again. By then all members, including those whose path to it died with it, have learned
/// of a real death.
const DENIED_AFTER: Duration = Duration::from_secs(15);

/// Origins sent to a newcomer at once, in at most one datagram each: those of its own site first,
/// then some others.
const MAX_WELCOME: usize = 8;

impl Discovery {
    pub(super) fn take_swim(&mut self, from: NodeId, bytes: &[u8], now: Instant) {
        // A farewell is final until the node returns in a later life.
        let entry = self.peers.get(&from);
        let over = entry.and_then(Entry::farewell);
        let is_new = entry.is_none_or(|entry| !entry.is_alive() || entry.state.is_none());
        let incoming = Incoming { from, over, bytes };
        let Ok(seen) = self.swim.handle_datagram(incoming, &self.peers, now) else {
            self.outbox.counters[Count::DroppedSwim] += 1;
            return;
        };
        let renewals = self.outbox.counters[Count::Renewals];
        self.drain_swim(now);
        if let Some(claim) = &seen.sender {
            self.peers.directory.note_claim(&from, claim);
        }
        if self.outbox.counters[Count::Renewals] > renewals {
            // The member that considered this node down learns of the new process first.
            self.swim.announce(from, &self.peers, now);
        }
        if seen.stale {
            self.remind(from, now);
        }
        if seen.announces && is_new {
            self.welcome(from, now);
        }
        if self.peers.is_member(&from) {
            let mut claims = Vec::with_capacity(seen.claims.len());
            for (short, claim) in seen.claims {
                match self.peers.directory.entry_of(short) {
                    // Each claim arrives about ten times.
                    Some(entry) if entry.node() != self.peers.me && entry.is_old_news(&claim) => {}
                    Some(entry) => {
                        let node = entry.node();
                        // A member that spreads a life should have its record. One without the
                        // record answers with the claim again, so only membership may trigger the
                        // request.
                        if from != node && self.peers.is_unsigned(&node, claim.life) {
                            self.fetch(short, false, from);
                        }
                        if self.believes(from, node, claim, now) {
                            claims.push((node, claim));
                        }
                    }
                    None => {
                        self.outbox.counters[Count::DroppedClaimsUnknown] += 1;
                        self.fetch(short, true, from);
                    }
                }
            }
            self.apply_claims(claims, true, now);
        }
    }

    pub(super) fn apply_claims(
        &mut self,
        claims: Vec<(NodeId, Claim)>,
        spread: bool,
        now: Instant,
    ) {
        if claims.is_empty() {
            return;
        }
        if self.attach.is_some() {
            return self.hear_claims(claims, now);
        }
        for (node, claim) in &claims {
            if claim.standing == Standing::Suspect {
                self.monitor.neighbours.hurry(*node, now);
            }
        }
        self.swim.apply(claims.iter().copied(), spread, &self.peers, now);
        self.drain_swim(now);
        for (node, claim) in &claims {
            self.peers.directory.note_claim(node, claim);
        }
    }

    /// Whether a claim can be believed: about a life that the node has signed or shown itself in,
    /// and not contrary to what this node itself hears from it.
    pub(super) fn believes(
        &mut self,
        from: NodeId,
        node: NodeId,
        claim: Claim,
        now: Instant,
    ) -> bool {
        if node == self.peers.me {
            return claim.life == self.swim.life();
        }
        let Some(entry) = self.peers.get(&node) else { return false };
        let signed = entry.node_state().map(NodeState::life);
        if from != node && Some(claim.life) > signed.max(entry.life) {
            self.outbox.counters[Count::DroppedClaimsUnsigned] += 1;
            return false;
        }
        let gone = entry.liveness == Liveness::Left;
        if gone && claim.standing != Standing::Down && Some(claim.life) <= signed {
            return false;
        }
        let alive = entry.is_alive() && entry.life == Some(claim.life);
        let judges = self.attach.is_none();
        let down = entry.liveness == Liveness::Down && entry.life == Some(claim.life);
        let long = now.saturating_duration_since(entry.since) >= DENIED_AFTER;
        if judges && down && long && claim.standing == Standing::Alive && from != node {
            self.reconsider(node, claim, now);
            return false;
        }
        if judges && claim.standing == Standing::Down && alive && from != node {
            return self.second_opinion(from, node, claim, now);
        }
        true
    }

    /// Another member reports that a living one is down. A single report may be wrong or a lie: the
    /// member is suspected and notified, and down if it stays silent for a while. A second report
    /// settles it, or a path to the member that has just died, unless the member was heard since. A
    /// path that has been dead for longer proves nothing about the member: a relay may still reach
    /// it, and a liar must not be able to prevent that.
    fn second_opinion(&mut self, from: NodeId, node: NodeId, claim: Claim, now: Instant) -> bool {
        let lately = HEARD_JUST_NOW.min(self.config.suspicion * 2 / 3);
        let heard = self.peers.heard(&node);
        let just_now = heard.is_some_and(|at| now.saturating_duration_since(at) < lately);
        let first = self.doubts.first(&node, claim.life, now);
        let silent = self.monitor.has_died(&node, DENIED_AFTER, now);
        if !just_now && (silent || first.is_some_and(|first| first != from)) {
            self.doubts.remove(&node);
            return true;
        }
        self.outbox.counters[Count::SoftenedClaims] += 1;
        if first.is_none() && self.doubts.add(node, claim.life, from, now) {
            self.swim.verify(node, claim.life, &self.peers, now);
        }
        false
    }

    /// Another member considers a node alive that is down here. If only this node considers it
    /// down, and the two exchange no messages, the victim never learns of that and cannot refute
    /// it. So it becomes a suspect again, which all members learn: if it is alive it refutes that,
    /// otherwise it is soon down again.
    fn reconsider(&mut self, node: NodeId, claim: Claim, now: Instant) {
        self.swim.forget(node, claim.life);
        self.apply_claims(vec![(node, claim)], false, now);
        self.swim.suspect(node, claim.life, &self.peers, now);
        self.drain_swim(now);
    }

    /// Carries out the actions of membership until there are none left.
    pub(super) fn drain_swim(&mut self, now: Instant) {
        while let Some(output) = self.swim.poll_output() {
            match output {
                Output::Send(to, payload) => self.send_bytes(to, payload),
                Output::Up(node, life) => self.member_up(node, life, now),
                Output::Down(node, life) => self.member_down(node, life, now),
                Output::Renamed(node, life) => {
                    if let Some(liveness) = self.peers.get(&node).map(|it| it.liveness) {
                        self.peers.directory.set_liveness(&node, liveness, Some(life), now);
                    }
                }
                Output::Renewed(life) => self.renewed(life, now),
                Output::Tell(node, claim) => {
                    let suspect = Item { claim: Some(claim), ..Item::about(&node) };
                    let items = vec![suspect, self.own_item()];
                    self.send(node, &Message::Items(items));
                }
            }
        }
        for node in std::mem::take(&mut self.swim.tally.suspected) {
            self.outbox.counters[Count::Suspicions] += 1;
            self.outbox.report(Event::MemberSuspected(node));
        }
        self.outbox.counters[Count::Refutations] = self.swim.tally.refutations;
        self.outbox.counters[Count::DroppedTimers] = self.swim.tally.dropped_timers;
    }

    /// Notes and reports the liveness of a known node; true if it came up or went down.
    pub(super) fn set_liveness(
        &mut self,
        node: NodeId,
        liveness: Liveness,
        life: Life,
        now: Instant,
    ) -> bool {
        let before = self.peers.directory.set_liveness(&node, liveness, Some(life), now);
        let event = match (before == Some(Liveness::Alive), liveness == Liveness::Alive) {
            (false, true) => Event::MemberUp(node),
            (true, false) => Event::MemberDown(node),
            (true, true) | (false, false) => return false,
        };
        self.outbox.report(event);
        self.swim.set_size(self.peers.directory.alive());
        true
    }

    /// The node left on purpose, by its own signed statement.
    pub(super) fn member_left(&mut self, node: NodeId, life: Life, now: Instant) {
        if self.set_liveness(node, Liveness::Left, life, now) {
            self.monitor.members_changed = true;
        }
        let claim = Claim { life, incarnation: 0, standing: Standing::Down };
        self.apply_claims(vec![(node, claim)], true, now);
    }

    /// Sends a newcomer the origins before any request: its clients may be waiting, while its
    /// directory comparisons take turns with those of all others, and a seed through which a
    /// thousand nodes join may not answer them for seconds.
    fn welcome(&mut self, newcomer: NodeId, now: Instant) {
        let Some(entry) = self.peers.get(&newcomer) else { return };
        let told = self.peers.origins_for(entry, MAX_WELCOME).into_iter().map(Offer::whole);
        for payload in self.pack_items(told, MAX_WELCOME) {
            if self.peers.contacts.allow_welcome(newcomer, now) {
                self.send_bytes(newcomer, payload);
            }
        }
    }

    /// This node's statement about its own membership.
    pub(super) fn own_item(&self) -> Item<'static> {
        Item { claim: Some(self.swim.own_claim()), ..Item::about(&self.peers.me) }
    }

    /// Asks a node to admit this one, unless that was just done.
    pub(super) fn nudge(&mut self, node: NodeId, now: Instant) {
        if self.peers.contacts.allow_nudge(node, now) {
            self.swim.announce(node, &self.peers, now);
        }
    }

    /// Reminds a peer of this node's record and life.
    pub(super) fn remind(&mut self, peer: NodeId, now: Instant) {
        if self.peers.contacts.allow_nudge(peer, now) {
            self.send_record(peer, self.peers.me, now);
        }
    }

    fn member_up(&mut self, node: NodeId, life: Life, now: Instant) {
        let Some(entry) = self.peers.get(&node) else { return };
        if Some(life) <= entry.farewell() {
            return;
        }
        let first = self.peers.is_alone();
        let came = self.set_liveness(node, Liveness::Alive, life, now);
        self.outbox.counters[Count::MembersUp] += u64::from(came);
        if first {
            // The member that admitted this node does not know its addresses yet.
            self.gossip.sync.hasten(now);
            self.spread(self.peers.me, true, now);
        }
        self.monitor.members_changed = true;
        self.adjust_path(node, now);
    }

    fn member_down(&mut self, node: NodeId, life: Life, now: Instant) {
        let Some(entry) = self.peers.get(&node) else { return };
        if entry.liveness == Liveness::Left {
            return;
        }
        self.tell_witnesses(node, Standing::Down);
        let went = self.set_liveness(node, Liveness::Down, life, now);
        self.outbox.counters[Count::MembersDown] += u64::from(went);
        self.monitor.members_changed = true;
        self.gossip.seeds.wake(&node, now);
    }

    fn renewed(&mut self, life: Life, now: Instant) {
        self.outbox.counters[Count::Renewals] += 1;
        self.gossip.sync.hasten(now);
        self.local.set_life(life, now);
        self.peers.set_own_life(life, now);
    }

    /// The mesh remembers a later generation of this node than its state folder, so exceed it.
    pub(super) fn outlive(&mut self, generation: u64, now: Instant) {
        let Some(generation) = generation.checked_add(1) else { return };
        let life = Life { generation, renewal: 0 };
        self.outbox.counters[Count::GenerationRaised] += 1;
        self.local.set_life(life, now);
        self.swim.change_life(life, &self.peers, now);
        self.peers.set_own_life(life, now);
        self.drain_swim(now);
    }

    /// Spreads the newest record of a node as a rumour.
    pub(super) fn spread(&mut self, node: NodeId, with_credential: bool, now: Instant) {
        if !self.gossip.rumours.add(node, with_credential, now) {
            self.outbox.counters[Count::DroppedRumours] += 1;
        }
    }

    /// Publishes this node's record when it is due, and spreads it according to its urgency.
    pub(super) fn publish(&mut self, now: Instant) {
        let distances = || self.monitor.distances(&self.peers.directory);
        let Some((urgency, state)) = self.local.publish(distances, now) else { return };
        self.outbox.counters[Count::Published] += 1;
        let first = state.get().version == 1;
        let record = Record { state: Some(state), ..self.local.record() };
        self.peers.directory.merge(&record, now);
        // In a small mesh a rumour costs almost nothing.
        if urgency >= Urgency::Rumour || self.peers.directory.alive() <= SMALL_MESH {
            self.spread(self.peers.me, first, now);
        }
        if urgency == Urgency::News {
            self.start_news(now);
        }
    }
}
