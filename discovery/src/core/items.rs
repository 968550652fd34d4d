//! Merges records: new ones are verified, merged, reported and, if they are news, spread.

use std::sync::Arc;
use std::time::Instant;

use meshport_config::planted::{Bug, is_planted};
use meshport_config::{Credential, NodeId};

use super::{Discovery, Event, LocalNode};
use crate::Count;
use crate::directory::{Entry, Liveness, Merge, Priority, Record, credential_order};
use crate::state::{NodeState, SignedState};
use crate::verify::Rejected;
use crate::wire::{BadDatagram, Claim, Item, Message, Short, Standing};

/// The reason given for a node that is connected here and has no place in the directory.
const NO_ROOM: &str = "the directory is full; `meshport status` shows which nodes fill it";

/// How records arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Channel {
    /// In a comparison of directories: not spread.
    Sync,
    /// As news or as a rumour.
    Rumour,
}

/// The result of one record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taken {
    /// It is now in the directory.
    New { first: bool },
    /// Exactly this record is already there.
    Same,
    /// A newer one is there.
    Older,
    /// It was rejected, or there was none.
    Nothing,
}

impl Discovery {
    pub(super) fn take_items(
        &mut self,
        from: NodeId,
        items: &[Item<'_>],
        channel: Channel,
        now: Instant,
    ) {
        let mut claims: Vec<(NodeId, Claim)> = Vec::new();
        for item in items {
            if !self.peers.contacts.allow_record(from, now) {
                self.outbox.counters[Count::DroppedFlood] += 1;
                continue;
            }
            let first =
                item.credential.is_some_and(|bytes| self.take_credential(from, item, bytes, now));
            let Some(node) = self.peers.directory.resolve(item.short) else {
                self.outbox.counters[Count::RejectedStates] += u64::from(item.state.is_some());
                // If it came with one, a request would only return the same one.
                if item.credential.is_none() {
                    self.fetch(item.short, true, from);
                }
                continue;
            };
            if let Some(bytes) = item.state {
                self.gossip.sync.got(item.short);
                let taken = self.take_state(from, node, bytes, now);
                self.pass_on(node, taken, first, channel, now);
                if taken == Taken::Older && from == node {
                    // A node that does not know its own past must learn of it.
                    self.send_record(from, node, now);
                }
            }
            if let Some(claim) = item.claim {
                self.gossip.sync.got(item.short);
                let entry = self.peers.get(&node).filter(|_| node != self.peers.me);
                // Records arrive more than once, and each time with the claim about their node.
                let is_news = entry.is_none_or(|entry| !entry.is_old_news(&claim));
                if is_news && self.believes(from, node, claim, now) {
                    claims.push((node, claim));
                }
            }
        }
        let accused = claims
            .iter()
            .any(|(node, claim)| *node == self.peers.me && claim.standing != Standing::Alive);
        self.apply_claims(claims, channel == Channel::Rumour, now);
        if accused {
            // The accuser is answered directly; the others learn by gossip.
            self.send(from, &Message::Items(vec![self.own_item()]));
        }
    }

    pub(super) fn take_news(&mut self, from: NodeId, item: Item<'_>, now: Instant) {
        if item.short != Short::of(&from) {
            self.outbox.counters[Count::RejectedStates] += 1;
            return;
        }
        // A leaf forwards nothing.
        let channel = if self.attach.is_some() { Channel::Sync } else { Channel::Rumour };
        self.take_items(from, &[item], channel, now);
        let known = self.peers.get(&from).and_then(Entry::node_state);
        if let Some(revision) = known.map(NodeState::revision) {
            self.send(from, &Message::NewsSeen(revision));
        }
    }

    /// A peer that the mesh has admitted: its presence counts, even if it was forgotten.
    pub(super) fn take_admitted(&mut self, credential: &Credential, now: Instant) {
        let node = credential.node;
        if node == self.peers.me || self.local.has_left() || self.trust.is_revoked(credential) {
            return;
        }
        if credential.roles.is_leaf() {
            return self.take_leaf(credential);
        }
        self.peers.directory.welcome(&node);
        let known = self.peers.get(&node).map(|entry| &*entry.credential);
        // The known one is from a time when the clocks of both nodes were ahead.
        let is_early = known.is_some_and(|known| self.clock.wall < known.valid_from());
        let is_newer = |known| credential_order(credential, known).is_gt();
        if is_early || known.is_none_or(is_newer) {
            let bytes = credential.to_bytes();
            match self.trust.credential(&bytes, self.clock.wall) {
                Ok(credential) if is_early => self.replace_credential(&credential, now),
                Ok(credential) => {
                    self.evict_for(&credential, Priority::Here, now);
                    let outcome = self.merge(&Record { credential, state: None }, now);
                    if outcome == Merge::Full {
                        self.report_ignored(node, now, || NO_ROOM.to_owned());
                    }
                }
                Err(reason) => self.refuse_credential(node, &reason, now),
            }
        }
        self.peers.directory.set_here(&node, self.peers.contacts.session(&node));
        let is_alive = self.peers.get(&node).is_none_or(Entry::is_alive);
        if !is_alive && self.attach.is_none() {
            self.nudge(node, now);
        }
    }

    /// This node has another credential, which the mesh has verified. It may have been issued
    /// before the present one, if the clock was ahead then.
    pub fn set_credential(&mut self, credential: &Credential, now: Instant) {
        self.local.set_credential(credential.clone());
        self.replace_credential(&self.local.record().credential, now);
        self.settle(now);
    }

    /// Replaces a credential by the one that its node uses now, whichever was issued later.
    fn replace_credential(&mut self, credential: &Arc<Credential>, now: Instant) {
        if self.peers.directory.set_credential(credential) {
            self.outbox.counters[Count::Merged] += 1;
            self.adjust_path(credential.node, now);
        }
    }

    /// Merges verified records, from a snapshot or from others.
    pub(super) fn merge(&mut self, record: &Record, now: Instant) -> Merge {
        let node = record.credential.node;
        let outcome = self.peers.directory.merge(record, now);
        match outcome {
            Merge::Unchanged => return outcome,
            Merge::Full => {
                self.outbox.counters[Count::DroppedDirectoryFull] += 1;
                return outcome;
            }
            Merge::Forgotten => {
                self.outbox.counters[Count::DroppedForgotten] += 1;
                return outcome;
            }
            Merge::New | Merge::Credential | Merge::State => {
                self.outbox.counters[Count::Merged] += 1;
            }
        }
        let Some(entry) = self.peers.get(&node) else { return outcome };
        let event = Event::PeerWanted {
            node,
            endpoints: entry.endpoints().to_vec(),
            credential: Arc::clone(&entry.credential),
        };
        let (liveness, life) = (entry.liveness, entry.life);
        let farewell = entry.farewell();
        let has_state = entry.state.is_some();
        if farewell.is_none() {
            self.outbox.report(event);
        }
        if has_state && outcome != Merge::Credential {
            self.report_ignored_services(node, now);
            self.outbox.report(Event::StateChanged(node));
        }
        match farewell {
            Some(left) if life <= Some(left) && liveness != Liveness::Left => {
                self.member_left(node, left, now);
            }
            None if liveness == Liveness::Left => {
                self.peers.directory.set_liveness(&node, Liveness::Unknown, None, now);
            }
            _ => {}
        }
        self.adjust_path(node, now);
        self.end_former(&record.credential, now);
        outcome
    }

    /// Ends the predecessor named by a verified credential. Called after the successor was
    /// reported, so that sessions and settings of the previous node move to it.
    fn end_former(&mut self, credential: &Credential, now: Instant) {
        if let Some(end) = credential.ends_former() {
            self.revoke(end, None, now);
        }
    }

    /// This node continues as `me`, whose credential names this node as the predecessor. The others
    /// learn both from the credential.
    pub fn succeed(&mut self, me: LocalNode, now: Instant) {
        let former = std::mem::replace(&mut self.peers.me, me.credential.node);
        self.local.succeed(me, now);
        self.peers.directory.remove(&former);
        let own = self.local.record();
        self.evict_for(&own.credential, Priority::Here, now);
        self.peers.enter(&own, self.swim.life(), now);
        self.swim.succeed(self.peers.me, &self.peers, now);
        self.drain_swim(now);
        self.end_former(&own.credential, now);
        self.settle(now);
    }

    /// True if the node was unknown.
    fn take_credential(
        &mut self,
        from: NodeId,
        item: &Item<'_>,
        bytes: &[u8],
        now: Instant,
    ) -> bool {
        if item.short == Short::of(&self.peers.me) {
            return false;
        }
        if let Some(entry) = self.peers.directory.entry_of(item.short) {
            let newer = Credential::from_bytes(bytes)
                .is_ok_and(|it| credential_order(&it, &entry.credential).is_gt());
            if !newer {
                return false;
            }
        } else if self.would_refuse(bytes) {
            self.gossip.sync.got(item.short);
            self.outbox.counters[Count::DroppedDirectoryFull] += 1;
            return false;
        }
        match self.trust.credential(bytes, self.clock.wall) {
            Ok(credential) if self.trust.is_revoked(&credential) => {
                self.gossip.sync.got(item.short);
                self.outbox.counters[Count::RejectedCredentials] += 1;
                // The sender does not know of the revocation.
                self.tell_covering(from, &credential, now);
                false
            }
            Ok(credential) if Short::of(&credential.node) == item.short => {
                if self.refuses_leaf(&credential) {
                    return false;
                }
                self.gossip.sync.got(item.short);
                self.let_return(&credential, item.state);
                // No entry is removed for a node that is not admitted.
                if !self.peers.directory.is_forgotten(&credential.node) {
                    self.evict_for(&credential, Priority::of_hearsay(&credential), now);
                }
                self.merge(&Record { credential, state: None }, now) == Merge::New
            }
            Ok(_) => {
                self.refuse_credential(from, &Rejected::Malformed, now);
                false
            }
            Err(reason) => {
                self.refuse_credential(from, &reason, now);
                false
            }
        }
    }

    /// A forgotten node may return with a record that it has signed since.
    fn let_return(&mut self, credential: &Credential, state: Option<&[u8]>) {
        if !self.peers.directory.is_forgotten(&credential.node) {
            return;
        }
        let claimed = state.and_then(|bytes| Some((bytes, SignedState::read(bytes).ok()?)));
        let Some((bytes, claimed)) = claimed.filter(|(_, it)| it.node == credential.node) else {
            return;
        };
        let is_later = self.peers.directory.is_outlived(&claimed);
        let key = &credential.record_key;
        if is_later && self.trust.state(bytes, key).is_ok() {
            self.peers.directory.welcome(&credential.node);
        }
    }

    fn take_state(&mut self, from: NodeId, node: NodeId, bytes: &[u8], now: Instant) -> Taken {
        let Some(entry) = self.peers.get(&node) else { return Taken::Nothing };
        let known = entry.state.as_ref();
        if known.is_some_and(|known| known.as_bytes() == bytes) {
            return Taken::Same;
        }
        let claimed = SignedState::read(bytes).map_err(Rejected::from);
        let newer = claimed.as_ref().is_ok_and(|claimed| {
            known.is_none_or(|known| claimed.revision() >= known.get().revision())
        });
        if claimed.is_ok() && !newer && !is_planted(Bug::MergeLaw) {
            return Taken::Older;
        }
        let credential = Arc::clone(&entry.credential);
        let verified = claimed.and_then(|claimed| match claimed.node == node {
            true => self.trust.state(bytes, &credential.record_key),
            false => Err(Rejected::Signature),
        });
        let state = match verified {
            Ok(state) => state,
            Err(reason) => {
                self.outbox.counters[Count::RejectedStates] += 1;
                self.report_ignored(from, now, || {
                    format!("a record of {} from {}: {reason}", node.short(), from.short())
                });
                return Taken::Nothing;
            }
        };
        if node == self.peers.me {
            self.outlive(state.get().generation, now);
            return Taken::Nothing;
        }
        match self.merge(&Record { credential, state: Some(state) }, now) {
            Merge::New => Taken::New { first: true },
            Merge::State => Taken::New { first: false },
            Merge::Unchanged | Merge::Credential => Taken::Older,
            Merge::Full | Merge::Forgotten => Taken::Nothing,
        }
    }

    fn pass_on(&mut self, node: NodeId, taken: Taken, first: bool, channel: Channel, now: Instant) {
        match taken {
            Taken::New { first: new } if channel == Channel::Rumour => {
                self.spread(node, first || new, now);
            }
            Taken::Same => self.gossip.rumours.heard(&node),
            Taken::New { .. } | Taken::Older | Taken::Nothing => {}
        }
    }

    fn refuse_credential(&mut self, node: NodeId, reason: &Rejected, now: Instant) {
        self.outbox.counters[Count::RejectedCredentials] += 1;
        self.report_ignored(node, now, || reason.to_string());
    }

    /// Reports that a message of a node was rejected, at a bounded rate.
    pub(super) fn report_ignored(
        &mut self,
        node: NodeId,
        now: Instant,
        reason: impl FnOnce() -> String,
    ) {
        if self.peers.contacts.allow_report(node, now) {
            self.outbox.report(Event::Ignored { node, reason: reason() });
        }
    }

    /// A datagram from a peer that cannot be parsed.
    pub(super) fn take_bad(&mut self, from: NodeId, bad: BadDatagram, now: Instant) {
        let counters = &mut self.outbox.counters;
        let what = match bad {
            BadDatagram::Malformed => {
                counters[Count::DroppedMalformed] += 1;
                return;
            }
            BadDatagram::Version(version) => {
                counters[Count::DroppedVersion] += 1;
                format!("gossip of version {version}")
            }
            BadDatagram::Kind(kind) => {
                counters[Count::DroppedUnknownKind] += 1;
                format!("gossip message {kind}")
            }
        };
        if self.peers.contacts.allow_report(from, now) {
            self.outbox.report(Event::Unknown { from, what });
        }
    }

    fn report_ignored_services(&mut self, node: NodeId, now: Instant) {
        let Some(entry) = self.peers.get(&node) else { return };
        let ignored: Vec<String> = entry.ignored_services().map(ToString::to_string).collect();
        if !ignored.is_empty() {
            self.outbox.counters[Count::IgnoredServices] += ignored.len() as u64;
            let names = ignored.join(", ");
            self.report_ignored(node, now, || {
                format!("it announces {names}, which its credential does not allow")
            });
        }
    }
}
